//! Links from documents to a line of the code: each leads to the line where its item is defined.
//!
//! A link has this form; the path is relative to the page:
//!
//! ```text
//! [`Assembler::push`](../crates/txn/src/assembler.rs#L403)
//! ```
//!
//! The last part of the name is the item, and a type before it says whose method it is. `cargo x
//! docs` corrects a number when the item has moved within its file. An item that is not in its
//! file any more is a complaint, because only a person knows what the sentence should say now.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::keep;
use super::site::resolved;

/// Words that may stand before the keyword of a definition.
const QUALIFIERS: [&str; 4] = ["async", "unsafe", "default", "extern"];
/// Keywords that define an item.
const KEYWORDS: [&str; 9] =
    ["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "macro_rules!"];
/// What precedes the number of a line.
const ANCHOR: &str = ".rs#L";

/// Corrects the links of all pages, or with `check_only` names those that are stale; whether all is
/// in order.
pub(super) fn run(check_only: bool) -> Result<bool> {
    let root = testkit::workspace_dir();
    let mut fine = true;
    for page in pages(root)? {
        let text = std::fs::read_to_string(root.join(&page)).with_context(|| page.clone())?;
        let Judged { text: corrected, stale, gone } =
            judge(&page, &text, |path| std::fs::read_to_string(root.join(path)).ok());
        let told = if check_only { stale } else { Vec::new() };
        gone.iter().chain(&told).for_each(|complaint| eprintln!("docs: {complaint}"));
        fine &= keep(&page, &corrected, check_only)? && gone.is_empty();
    }
    Ok(fine)
}

/// ARCHITECTURE.md and every page below docs/, from the root.
fn pages(root: &Path) -> Result<Vec<String>> {
    let mut pages = vec!["ARCHITECTURE.md".to_owned()];
    let mut dirs = vec![PathBuf::from("docs")];
    while let Some(dir) = dirs.pop() {
        for entry in
            std::fs::read_dir(root.join(&dir)).with_context(|| format!("reading {}", dir.display()))?
        {
            let entry = entry?;
            let path = dir.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                pages.push(path.to_string_lossy().into_owned());
            }
        }
    }
    pages.sort();
    Ok(pages)
}

/// A page with its numbers corrected, and what was wrong with them.
struct Judged {
    text: String,
    /// The item stands in another line: `text` has it.
    stale: Vec<String>,
    /// The item or its file is not there: `text` has the link as it was.
    gone: Vec<String>,
}

/// Looks at every link of `page` to a line of a Rust file; `read` gives a file by its path from the
/// root.
fn judge(page: &str, text: &str, read: impl Fn(&str) -> Option<String>) -> Judged {
    let dir = Path::new(page).parent().unwrap_or(Path::new(""));
    let mut parts = text.split(ANCHOR);
    let mut judged =
        Judged { text: parts.next().unwrap_or_default().to_owned(), stale: Vec::new(), gone: Vec::new() };
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let (number, after) = part.split_at(end);
        let link = link_before(&judged.text).map(|(name, path)| (name.to_owned(), format!("{path}.rs")));
        let mut shown = number.to_owned();
        if let Some((name, path)) = link {
            let file = resolved(dir, &path).to_string_lossy().into_owned();
            match (read(&file).map(|code| lines_of(&name, &code)), number.parse::<usize>()) {
                (Some(lines), Ok(line)) if lines.contains(&line) => {}
                (Some(lines), Ok(line)) if !lines.is_empty() => {
                    let now = lines.into_iter().min_by_key(|now| now.abs_diff(line)).unwrap_or(line);
                    judged.stale.push(format!("{page}: {name} is in line {now} of {file}, not {number}"));
                    shown = now.to_string();
                }
                (Some(_), _) => judged.gone.push(format!("{page}: {name} is not defined in {file}")),
                (None, _) => judged.gone.push(format!("{page}: {name} leads to {file}, which is not there")),
            }
        } else {
            judged.gone.push(format!("{page}: a link to line {number} does not name an item in backquotes"));
        }
        judged.text.push_str(&format!("{ANCHOR}{shown}{after}"));
    }
    judged
}

/// The name and the path of a link whose text ends in the middle of the path.
fn link_before(text: &str) -> Option<(&str, &str)> {
    let (before, path) = text.rsplit_once("`](")?;
    let (_, name) = before.rsplit_once("[`")?;
    let is_one = |part: &str| !part.contains([' ', '\n', '`', ')']);
    (is_one(name) && is_one(path)).then_some((name, path))
}

/// The lines of `code` that define the item `name`, counted from 1.
///
/// Of `Owner::item` only lines within an `impl` of the owner count, or within its trait. Of a bare
/// name those at the margin count before others. Tests count only for what is nowhere else.
fn lines_of(name: &str, code: &str) -> Vec<usize> {
    let name = name.trim_end_matches("()");
    let (owner, item) = name.rsplit_once("::").map_or((None, name), |(owner, item)| (Some(owner), item));
    // A module is the file itself, and not written in it.
    let owner = owner.and_then(|owner| owner.rsplit("::").next());
    let owner = owner.filter(|owner| owner.starts_with(char::is_uppercase));
    let lines: Vec<&str> = code.lines().collect();
    let tests = lines.iter().position(|line| *line == "#[cfg(test)]").unwrap_or(lines.len());
    let all = (0..lines.len()).filter(|&at| defines(lines[at], item));
    let all: Vec<usize> = all.filter(|&at| owner.is_none_or(|owner| is_of(owner, &lines[..at]))).collect();
    let better = |is_better: &dyn Fn(usize) -> bool, of: Vec<usize>| {
        let some: Vec<usize> = of.iter().copied().filter(|&at| is_better(at)).collect();
        if some.is_empty() { of } else { some }
    };
    let all = better(&|at| at < tests, all);
    let is_at_margin = |at: usize| owner.is_some() || !lines[at].starts_with(' ');
    better(&is_at_margin, all).into_iter().map(|at| at + 1).collect()
}

/// Whether a line of code begins the definition of `item`.
fn defines(line: &str, item: &str) -> bool {
    let mut words = line
        .split_whitespace()
        .filter(|word| !word.starts_with("pub") && !QUALIFIERS.contains(word) && !word.starts_with('"'));
    let mut keyword = words.next();
    let mut name = words.next();
    if keyword == Some("const") && name == Some("fn") {
        (keyword, name) = (name, words.next());
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    keyword.is_some_and(|keyword| KEYWORDS.contains(&keyword))
        && name.and_then(|name| name.split(|c| !is_word(c)).next()) == Some(item)
}

/// Whether what follows `before` stands in an `impl` of `owner`, or in its trait.
fn is_of(owner: &str, before: &[&str]) -> bool {
    let is_block = |line: &&&str| !line.starts_with([' ', '}', '/', '#', ')']) && !line.is_empty();
    let Some(block) = before.iter().rfind(is_block) else { return false };
    let block = block.split(" where ").next().unwrap_or_default();
    let whose = block.rsplit(" for ").next().unwrap_or_default();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    (block.starts_with("impl") || block.contains("trait "))
        && whose.split(|c| !is_word(c)).any(|w| w == owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "\
//! x
pub struct One;
pub(crate) async fn run() {
}
impl One {
    /// Runs.
    pub async fn run(&self) {
    }
    const fn new() -> One {
    }
}
impl<T> Clone for Two<T> {
    fn clone(&self) {
    }
}
trait Three {
    fn run(&self);
}
#[cfg(test)]
mod tests {
    fn new() {}
    fn only() {}
}
";

    fn judged(text: &str) -> Judged {
        judge("docs/a.md", text, |path| (path == "crates/x/src/y.rs").then(|| CODE.to_owned()))
    }

    #[test]
    fn an_item_is_found_where_it_is_defined() {
        for (name, lines) in [
            ("One", &[2][..]),
            ("run", &[3]),
            ("y::run", &[3]),
            ("One::run", &[7]),
            ("x::One::run()", &[7]),
            ("One::new", &[9]),
            ("new", &[9]),
            ("Two::clone", &[13]),
            ("Three::run", &[17]),
            ("only", &[22]),
            ("Clone::clone", &[]),
            ("Two::run", &[]),
            ("ru", &[]),
        ] {
            assert_eq!(lines_of(name, CODE), lines, "{name}");
        }
    }

    #[test]
    fn a_link_to_the_right_line_stays() {
        let text = "See [`One::run`](../crates/x/src/y.rs#L7) and [y](../crates/x/src/y.rs), [`a`](b.md#L1).";
        let judged = judged(text);
        assert_eq!(judged.text, text);
        assert!(judged.stale.is_empty() && judged.gone.is_empty());
    }

    #[test]
    fn a_number_follows_its_item() {
        let judged = judged("[`One`](../crates/x/src/y.rs#L9), [`run`](../crates/x/src/y.rs#L30).");
        assert_eq!(judged.text, "[`One`](../crates/x/src/y.rs#L2), [`run`](../crates/x/src/y.rs#L3).");
        assert_eq!(
            judged.stale,
            [
                "docs/a.md: One is in line 2 of crates/x/src/y.rs, not 9",
                "docs/a.md: run is in line 3 of crates/x/src/y.rs, not 30",
            ]
        );
        assert!(judged.gone.is_empty());
    }

    #[test]
    fn an_item_or_a_file_that_is_gone_is_named() {
        let text = "[`One::stop`](../crates/x/src/y.rs#L7) [`One`](../crates/x/src/z.rs#L2)\n\
                    [here](../crates/x/src/y.rs#L7)";
        let judged = judged(text);
        assert_eq!(judged.text, text);
        assert_eq!(
            judged.gone,
            [
                "docs/a.md: One::stop is not defined in crates/x/src/y.rs",
                "docs/a.md: One leads to crates/x/src/z.rs, which is not there",
                "docs/a.md: a link to line 7 does not name an item in backquotes",
            ]
        );
    }
}
