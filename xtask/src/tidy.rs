//! House rules for files that no other tool knows.
//!
//! A check takes a file's path and text and returns complaints. Words that a check looks for are
//! put together here from halves, so that this file obeys its own checks. What needs more than one
//! file is elsewhere: citations ([`references`]), rules and promises ([`promises`]), plain language
//! ([`prose`]).

use std::path::Path;

use anyhow::{Context, Result};

use crate::references::{self, File};
use crate::{promises, prose, rules, state_sql};

/// Lines of a `.rs` file before its tests; longer wants `// long because: ...`.
const LINES_MAX: usize = 800;
/// Directories that hold nothing of ours.
const SKIPPED: [&str; 3] = ["target", ".git", "node_modules"];

/// How far in front of its arguments a macro may be.
const DEBUG_LINES: usize = 6;

type Check = fn(&str, &str) -> Vec<String>;

const CHECKS: [Check; 8] =
    [length, header, unfinished, ignored_tests, debug_output, one_title, home_paths, state_sql::elsewhere];

/// What is wrong with the files of the workspace.
pub(crate) fn complaints() -> Result<Vec<String>> {
    let files = files()?;
    let mut complaints: Vec<String> = files.iter().flat_map(|file| judge(&file.path, &file.text)).collect();
    complaints.extend(promises::complaints()?);
    complaints.extend(references::complaints(&files, &known_rules(&files)));
    complaints.extend(prose::complaints(&files));
    complaints.sort();
    Ok(complaints)
}

/// Prints every place under a path that is to be put into plain language.
pub(crate) fn list_prose(under: &str) -> Result<()> {
    for line in prose::listed(&files()?, under) {
        println!("{line}");
    }
    Ok(())
}

/// Writes the list of files that are still to be put into plain language.
pub(crate) fn settle_prose() -> Result<()> {
    let text = prose::settle(&files()?)?;
    std::fs::write(testkit::workspace_dir().join(prose::DEBT), text)
        .with_context(|| format!("writing {}", prose::DEBT))
}

/// The files of the workspace.
pub(crate) fn files() -> Result<Vec<File>> {
    let mut files = Vec::new();
    visit(testkit::workspace_dir(), "", &mut files)?;
    Ok(files)
}

/// The names of the rules; what is wrong with their page, [`promises`] says.
fn known_rules(files: &[File]) -> Vec<String> {
    let page = files.iter().find(|file| file.path == rules::PAGE).map_or("", |file| &file.text);
    rules::read(page).0.into_iter().map(|rule| rule.name).collect()
}

/// All files under a directory; the text of one that is not UTF-8 is empty, because no check is
/// about it.
fn visit(root: &Path, under: &str, files: &mut Vec<File>) -> Result<()> {
    for entry in std::fs::read_dir(root.join(under)).with_context(|| format!("reading {under}"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if under.is_empty() { name.clone() } else { format!("{under}/{name}") };
        if entry.file_type()?.is_dir() {
            if !SKIPPED.contains(&name.as_str()) {
                visit(root, &path, files)?;
            }
        } else {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            files.push(File { path, text });
        }
    }
    Ok(())
}

fn judge(path: &str, text: &str) -> Vec<String> {
    CHECKS
        .iter()
        .flat_map(|check| check(path, text))
        .map(|complaint| format!("{path}: {complaint}"))
        .collect()
}

fn is_rust(path: &str) -> bool {
    path.ends_with(".rs")
}

pub(crate) fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// A file that grew too long to be read in one sitting.
fn length(path: &str, text: &str) -> Vec<String> {
    if !is_rust(path) || path.contains("/tests/") || text.contains("// long because: ") {
        return Vec::new();
    }
    // A module written out below `#[cfg(test)]`; `mod tests;` alone says nothing about the lines
    // after it.
    let opens_tests = |next: &str| next.starts_with("mod ") && next.ends_with('{');
    let rest = text.lines().skip(1).chain([""]);
    let before_tests = |&(line, next): &(&str, &str)| !(line == "#[cfg(test)]" && opens_tests(next));
    let lines = text.lines().zip(rest).take_while(before_tests).count();
    if lines <= LINES_MAX {
        return Vec::new();
    }
    vec![format!(
        "{lines} lines before its tests; split it, or say `// long because: ...` (at most {LINES_MAX})"
    )]
}

/// A file that does not say what it is.
fn header(path: &str, text: &str) -> Vec<String> {
    if !is_rust(path) || text.starts_with("//!") {
        return Vec::new();
    }
    vec![
        "does not open with `//!`: what it is handed, what it promises, what does not belong here".to_owned(),
    ]
}

/// Macros that stand where code is missing or was looked at.
fn unfinished(path: &str, text: &str) -> Vec<String> {
    if !is_rust(path) {
        return Vec::new();
    }
    let words = ["todo", "unimplemented", "dbg"].map(|word| format!("{word}{}", "!("));
    let is_comment = |line: &str| line.trim_start().starts_with("//");
    numbered(text)
        .filter(|(_, line)| !is_comment(line))
        .flat_map(|(number, line)| {
            words.iter().filter(|word| line.contains(*word)).map(move |word| (number, word))
        })
        .map(|(number, word)| format!("line {number}: {word}...)"))
        .collect()
}

/// A test that is left out without saying why.
fn ignored_tests(path: &str, text: &str) -> Vec<String> {
    let bare = format!("#[{}]", "ignore");
    let lines = numbered(text).filter(|(_, line)| is_rust(path) && line.trim() == bare);
    lines.map(|(number, _)| format!("line {number}: a test is ignored without a reason")).collect()
}

/// `Debug` in a text that a person may read: names of our own types, brackets, OIDs.
///
/// It may stand where only developers look: what a mistake of ours panics with, `debug!` and
/// `trace!`, and `Debug` itself.
fn debug_output(path: &str, text: &str) -> Vec<String> {
    let is_product = path.starts_with("crates/") && path.contains("/src/") && is_rust(path);
    let parts: Vec<&str> = path.split(['/', '.']).collect();
    if !is_product || ["tests", "simulation", "testkit", "bench"].iter().any(|own| parts.contains(own)) {
        return Vec::new();
    }
    let inside =
        ["panic", "assert", "assert_eq", "assert_ne", "debug_assert", "unreachable", "debug", "trace"];
    let lines: Vec<&str> = text.lines().take_while(|line| *line != "#[cfg(test)]").collect();
    let is_debug = |line: &str| {
        let field = line.match_indices("= ?").any(|(at, _)| line[at + 3..].starts_with(char::is_alphabetic));
        !line.trim_start().starts_with("//") && (line.contains(":?}") || line.contains(":#?}") || field)
    };
    // The macro whose arguments they are opens a few lines before, perhaps with another one inside.
    let is_inside = |at: usize| {
        let before = lines[at.saturating_sub(DEBUG_LINES)..=at].join("\n");
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let names = before.match_indices("!(").map(|(end, _)| before[..end].rsplit(|c| !is_word(c)).next());
        names.flatten().any(|name| inside.contains(&name)) || before.contains("Debug for ")
    };
    let found = (0..lines.len()).filter(|&at| is_debug(lines[at]) && !is_inside(at));
    found.map(|at| format!("line {}: Debug output in a text that a person may read", at + 1)).collect()
}

/// A document with no title, or with two. mdBook's table of contents has one for each part.
fn one_title(path: &str, text: &str) -> Vec<String> {
    if !path.ends_with(".md") || path.ends_with("SUMMARY.md") {
        return Vec::new();
    }
    let mut fenced = false;
    let mut titles = 0;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced && line.starts_with("# ") {
            titles += 1;
        }
    }
    if titles == 1 { Vec::new() } else { vec![format!("{titles} titles (`# ...`); a document has one")] }
}

/// The place where somebody happened to work. `me` and `user` are nobody, and may stand in tests
/// and documents.
fn home_paths(_: &str, text: &str) -> Vec<String> {
    let places = [("/home", "/"), ("/root", "/"), ("/Users", "/")].map(|(a, b)| format!("{a}{b}"));
    let starts_there = |line: &str, place: &str| {
        line.match_indices(place).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = &line[at + place.len()..];
            let owner = after.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            let goes_on = before.is_some_and(|c| c.is_alphanumeric() || "./-_}$".contains(c));
            !goes_on && !["me", "user"].contains(&owner)
        })
    };
    numbered(text)
        .filter(|(_, line)| places.iter().any(|place| starts_there(line, place)))
        .map(|(number, _)| format!("line {number}: an absolute path into somebody's home"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complains(check: Check, path: &str, text: &str) -> bool {
        !check(path, text).is_empty()
    }

    #[test]
    fn a_long_file_is_split_or_says_why() {
        let long = "//! x\n".repeat(LINES_MAX + 1);
        assert!(complains(length, "src/a.rs", &long));
        assert!(!complains(length, "src/a.rs", &format!("// long because: one table\n{long}")));
        let tests = format!("//! x\n#[cfg(test)]\nmod tests {{\n{long}");
        assert!(!complains(length, "src/a.rs", &tests), "tests do not count");
        let elsewhere = format!("//! x\n#[cfg(test)]\nmod tests;\n{long}");
        assert!(complains(length, "src/a.rs", &elsewhere), "what follows is no test");
        assert!(!complains(length, "a.md", &long));
    }

    #[test]
    fn a_rust_file_opens_with_its_header() {
        assert!(complains(header, "a.rs", "use std::fmt;\n"));
        assert!(!complains(header, "a.rs", "//! What it is.\n"));
    }

    #[test]
    fn unfinished_code_is_found_outside_of_comments() {
        for word in ["todo", "unimplemented", "dbg"] {
            assert!(complains(unfinished, "a.rs", &format!("    {word}{}1)", "!(")), "{word}");
            assert!(!complains(unfinished, "a.rs", &format!("// {word}{}1)", "!(")), "{word}");
        }
    }

    #[test]
    fn a_test_is_ignored_with_a_reason() {
        assert!(complains(ignored_tests, "a.rs", &format!("    #[{}]", "ignore")));
        assert!(!complains(ignored_tests, "a.rs", "    #[ignore = \"needs an hour\"]"));
    }

    #[test]
    fn debug_output_is_for_developers() {
        let says = |line: &str| complains(debug_output, "crates/a/src/b.rs", &format!("//! x\n{line}\n"));
        assert!(says("    format!(\"databases {:?} are followed\", oids)"));
        assert!(says("    write!(f, \"{kind:?}\")"));
        assert!(says("    tracing::warn!(path = ?table.path, \"mapped\")"));
        assert!(!says("    state => unreachable!(\"executed in {state:?}\"),"));
        assert!(!says("    tracing::debug!(path = ?table.path, \"mapped\")"));
        assert!(!says("impl fmt::Debug for X {\n    write!(f, \"{:?}\", self.state)"));
        assert!(!says("#[cfg(test)]\n    println!(\"{x:?}\")"));
        assert!(!complains(debug_output, "crates/a/tests/b.rs", "//! x\nformat!(\"{x:?}\")\n"));
    }

    #[test]
    fn a_document_has_one_title_and_code_has_none() {
        assert!(complains(one_title, "a.md", "text"));
        assert!(complains(one_title, "a.md", "# a\n# b\n"));
        assert!(!complains(one_title, "a.md", "# a\n```sh\n# a comment\n```\n## b\n"));
    }

    #[test]
    fn nobodys_home_is_named() {
        assert!(complains(home_paths, "a.toml", &format!("dir = \"{}{}\"", "/home", "/ann/x")));
        assert!(complains(home_paths, "a.sh", &format!("{}{}", "/root", "/.cargo")));
        assert!(!complains(home_paths, "a.rs", &format!("(\"{}{}\")", "/home", "/me")));
        assert!(!complains(home_paths, "a.md", "see example.org/home/page and ~/.pgpass"));
    }
}
