//! Types that several crates have under one name: a table that says which is which.
//!
//! It is made of the first sentence of each type's documentation. Types of one crate only are left
//! out, and so are the names that nearly every crate has.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use crate::references::File;

/// Every library may have these.
const EVERYWHERE: [&str; 2] = ["Error", "Result"];
/// Helps tests only.
const LEFT_OUT: &str = "testkit";

/// By type, the crates with what it is there.
type Names = BTreeMap<String, Vec<(String, String)>>;

/// The table's lines, of the crates among the workspace's files.
pub(super) fn table(files: &[File]) -> Result<String> {
    let mut names = Names::new();
    for File { path, text } in files.iter().filter(|file| file.path.ends_with(".rs")) {
        let within = path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"));
        let Some((owner, _)) = within.filter(|(owner, _)| *owner != LEFT_OUT) else { continue };
        for (public, what) in types(text) {
            names.entry(public).or_default().push((owner.to_owned(), what));
        }
    }
    let mut lines = "| type | in | what it is |\n| --- | --- | --- |\n".to_owned();
    names.retain(|name, of| of.len() > 1 && !EVERYWHERE.contains(&name.as_str()));
    for (name, mut of) in names {
        of.sort();
        for (number, (owner, what)) in of.into_iter().enumerate() {
            ensure!(!what.is_empty(), "{name} of {owner} has no documentation that says which it is");
            let first = if number == 0 { format!("`{name}` ") } else { String::new() };
            lines.push_str(&format!("| {first}| `{owner}` | {what} |\n"));
        }
    }
    Ok(lines)
}

/// The public types of a file, each with the first sentence of its documentation.
fn types(text: &str) -> Vec<(String, String)> {
    let mut documentation = Vec::new();
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(words) = line.strip_prefix("///") {
            documentation.push(words.trim());
        } else if let Some(name) = type_name(line) {
            found.push((name.to_owned(), first_sentence(&documentation)));
            documentation.clear();
        } else if !line.starts_with("#[") {
            documentation.clear();
        }
    }
    found
}

fn type_name(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub ")?;
    let rest = ["struct ", "enum ", "trait ", "type "].iter().find_map(|kind| rest.strip_prefix(kind))?;
    rest.split(|at: char| !at.is_alphanumeric() && at != '_').next().filter(|name| !name.is_empty())
}

/// As it can stand in a table's cell: links are left as their words.
fn first_sentence(documentation: &[&str]) -> String {
    let first: Vec<&str> = documentation.iter().take_while(|line| !line.is_empty()).copied().collect();
    let text = first.join(" ");
    let end = text.find(". ").map_or(text.len(), |at| at + 1);
    text[..end].replace("[`", "`").replace("`]", "`").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_types_have_their_first_sentence() {
        let text = "/// The most that [`Track`] keeps. More is\n/// elsewhere.\n///\n/// Long.\n#[derive(Debug)]\n\
                    pub struct Limits {\n    /// Not this.\n    pub a: u8,\n}\n\n/// Away.\nfn f() {}\n\
                    pub(crate) struct Hidden;\npub type Bare = u8;\n";
        let expected = [("Limits", "The most that `Track` keeps."), ("Bare", "")];
        assert_eq!(types(text), expected.map(|(name, what)| (name.to_owned(), what.to_owned())));
    }
}
