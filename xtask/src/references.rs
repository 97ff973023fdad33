//! Citations that lead nowhere: rules, files and headings that are not there.
//!
//! Handed are the files of the workspace and the names of the rules. Looked at are Markdown outside
//! of fenced blocks, and the comments of Rust files. A citation is one of:
//!
//! | citation | must lead to |
//! | --- | --- |
//! | a letter and a digit behind "rule" or "rules", or alone in parentheses | a rule of docs/rules.md |
//! | a path in backquotes, from the root or from the file itself | a file or directory of the workspace |
//! | the name of a Rust file in backquotes | a file whose path ends so |
//! | the name of a Markdown file, with backquotes or without | a file, from the root, from the file itself or by its name |
//! | `[text](path#heading)` in Markdown | a file, and a heading in it |
//!
//! A path with a placeholder (`*`, `<`, `{`) or one that only runs make is left alone. Pages of the
//! web are not fetched.

use std::collections::BTreeSet;

use crate::rules;

/// Directories at the root that paths begin with.
const ROOTS: [&str; 8] = ["crates/", "docs/", "xtask/", "bench/", "fuzz/", "scripts/", ".ci/", ".cargo/"];
/// Marks of a path that stands for several, or for none yet.
const PLACEHOLDERS: [&str; 6] = ["*", "<", "{", "...", "NNN", " "];

/// A file of the workspace: its path from the root, and its text.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A piece of prose, with the line that it begins at.
type Line<'a> = (usize, &'a str);

/// Citations of `files` that lead neither to one of `paths` nor to one of `known` rules.
pub(crate) fn complaints(files: &[File], known: &[String]) -> Vec<String> {
    let there = There { paths: paths(files), ignored: ignored(files), files };
    files.iter().flat_map(|file| of_file(file, known, &there)).collect()
}

fn of_file(file: &File, known: &[String], there: &There<'_>) -> Vec<String> {
    let lines = prose(file);
    let mut found = rule_citations(&lines, known);
    for (number, line) in &lines {
        let broken = |cited: &&str| !there.has(&file.path, cited);
        found.extend(
            cited_paths(line).filter(broken).map(|cited| (*number, format!("`{cited}` is not there"))),
        );
        if is_markdown(&file.path) {
            let broken = links(line).filter(|target| !there.leads(file, target));
            found.extend(broken.map(|target| (*number, format!("the link to {target} leads nowhere"))));
        }
    }
    found.sort();
    found.dedup();
    found.into_iter().map(|(number, what)| format!("{}: line {number}: {what}", file.path)).collect()
}

fn is_markdown(path: &str) -> bool {
    path.ends_with(".md")
}

/// What people read: Markdown outside of fenced blocks, comments of Rust.
fn prose(file: &File) -> Vec<Line<'_>> {
    let numbered = file.text.lines().enumerate().map(|(index, line)| (index + 1, line));
    if is_markdown(&file.path) {
        let mut fenced = false;
        let open = |(_, line): &Line<'_>| {
            let is_fence = line.trim_start().starts_with("```");
            fenced ^= is_fence;
            !fenced && !is_fence
        };
        return numbered.filter(open).collect();
    }
    if !file.path.ends_with(".rs") {
        return Vec::new();
    }
    numbered.filter_map(|(number, line)| Some((number, comment(line)?))).collect()
}

/// The text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']))
}

/// Rules that are cited and not `known`. A citation may go on in the next line.
fn rule_citations(lines: &[Line<'_>], known: &[String]) -> Vec<(usize, String)> {
    let old = format!("{}{}", "RUL", "ES");
    let mut complaints = Vec::new();
    let mut is_chain = false;
    for (number, line) in lines {
        for word in line.split_whitespace() {
            let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
            let name = bare.strip_suffix("'s").unwrap_or(bare);
            let is_alone = word.starts_with('(') && word[1..].starts_with(name) && word.contains(')');
            if rules::is_name(name) && (is_chain || is_alone) && !known.iter().any(|rule| rule == name) {
                complaints.push((*number, format!("rule {name} is not in {}", rules::PAGE)));
            }
            if bare == old {
                complaints.push((*number, format!("a rule is cited as `rule X9`, not as {old}")));
            }
            is_chain = match bare {
                "rule" | "rules" | "Rule" | "Rules" => !word.ends_with(['.', ':', ';']),
                "and" | "to" | "or" => is_chain,
                _ => is_chain && rules::is_name(name) && !word.contains(')'),
            };
        }
    }
    complaints
}

/// Paths and file names that a line cites.
fn cited_paths(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split('`').skip(1).step_by(2).filter(|word| {
        ROOTS.iter().any(|root| word.starts_with(root)) || word.starts_with("../") || word.ends_with(".rs")
    });
    let documents = line.split(|c: char| !(c.is_alphanumeric() || "./-_*<>{}".contains(c)));
    let documents = documents.map(|word| word.trim_end_matches('.')).filter(|word| word.ends_with(".md"));
    let is_path =
        |cited: &&str| !matches!(*cited, ".rs" | ".md") && !PLACEHOLDERS.iter().any(|m| cited.contains(m));
    // Only what looks like a path: prose and code stand in backquotes too.
    quoted.chain(documents).filter(is_path)
}

/// Where the links of a line of Markdown lead, in this repository.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
}

/// What citations may lead to.
struct There<'a> {
    /// Every file and directory, from the root.
    paths: BTreeSet<&'a str>,
    ignored: Vec<String>,
    files: &'a [File],
}

fn paths(files: &[File]) -> BTreeSet<&str> {
    let mut paths = BTreeSet::new();
    for file in files {
        paths.insert(file.path.as_str());
        paths.extend(file.path.match_indices('/').map(|(at, _)| &file.path[..at]));
    }
    paths
}

/// What programs make and Git ignores: it need not be there to be cited.
fn ignored(files: &[File]) -> Vec<String> {
    let lists = files.iter().filter(|file| file.path.ends_with(".gitignore"));
    let lines = lists.flat_map(|list| list.text.lines().map(|line| beside(&list.path, line)));
    lines.collect()
}

impl There<'_> {
    /// Whether `cited` in the file `from` leads somewhere: from the root, from the file, or, a
    /// name, anywhere.
    fn has(&self, from: &str, cited: &str) -> bool {
        let cited = cited.split(['#', ':']).next().unwrap_or_default().trim_end_matches('/');
        let is_last =
            |path: &str| path.strip_suffix(cited).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'));
        let is_name = cited.ends_with(".rs") || !cited.contains('/');
        self.paths.contains(cited)
            || self.paths.contains(beside(from, cited).as_str())
            || self.ignored.iter().any(|path| path == cited)
            || is_name && !cited.starts_with("../") && self.paths.iter().any(|path| is_last(path))
    }

    /// Whether a link in `from` leads to a file or directory, and to a heading if it names one.
    fn leads(&self, from: &File, target: &str) -> bool {
        let (path, heading) =
            target.split_once('#').map_or((target, None), |(path, heading)| (path, Some(heading)));
        let path = if path.is_empty() { from.path.clone() } else { beside(&from.path, path) };
        let is_there = path.is_empty() || self.paths.contains(path.trim_end_matches('/'));
        let Some(heading) = heading.filter(|_| is_there && is_markdown(&path)) else { return is_there };
        let text = self.files.iter().find(|file| file.path == path).map_or("", |file| file.text.as_str());
        headings(text).contains(heading)
    }
}

/// The path that `cited` means in the file `from`.
fn beside(from: &str, cited: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in cited.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of a Markdown text's headings, as GitHub and mdBook make them.
fn headings(text: &str) -> BTreeSet<String> {
    let titles =
        text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let anchor = |title: &str| {
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    };
    titles.map(anchor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(path: &str, text: &str) -> Vec<String> {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let files = [
            file("docs/a.md", "# A\n\n## Two words, `code`\n"),
            file("crates/x/src/deep/b.rs", "//! x\n"),
            file(path, text),
        ];
        complaints(&files, &["F1", "F2", "P1"].map(str::to_owned))
    }

    #[test]
    fn a_cited_rule_is_on_the_page() {
        assert!(judged("a.rs", "// See rule F1, and rules F1 to F2.\n").is_empty());
        assert_eq!(
            judged("a.rs", "    /// See rule F9.\n"),
            ["a.rs: line 1: rule F9 is not in docs/rules.md"]
        );
        assert_eq!(judged("a.rs", "// (rules F1, F9)\n").len(), 1);
        assert_eq!(judged("a.rs", "// It waits (F9).\n").len(), 1);
        assert_eq!(judged("a.md", "as rule\nF9 has it").len(), 1, "over the end of a line");
        assert!(judged("a.rs", "let f = \"rule F9\";\n").is_empty(), "only comments");
        assert!(judged("a.rs", "// The files F0 = F9, by the rule.\n").is_empty());
        assert_eq!(judged("a.rs", &format!("// ({}{} F1)\n", "RUL", "ES")).len(), 1, "the old way");
    }

    #[test]
    fn a_cited_file_is_there() {
        for fine in [
            "`crates/x/src/deep/b.rs`",
            "`b.rs`",
            "`deep/b.rs`",
            "docs/a.md",
            "a.md",
            "`docs/`",
            "`crates/*/b.rs`",
        ] {
            assert!(judged("crates/x/README.md", &format!("see {fine}.\n")).is_empty(), "{fine}");
        }
        for broken in
            ["`crates/x/src/b.rs`", "`eep/b.rs`", "`gone.rs`", "docs/gone.md", "GONE.md", "`../gone/x`"]
        {
            assert_eq!(judged("crates/x/README.md", &format!("see {broken}.\n")).len(), 1, "{broken}");
            assert_eq!(judged("crates/x/src/lib.rs", &format!("//! see {broken}.\n")).len(), 1, "{broken}");
        }
        assert!(judged("a.md", "```sh\n`gone.rs`\n```\n").is_empty(), "not in a fenced block");
    }

    #[test]
    fn a_link_leads_to_a_file_and_a_heading() {
        for fine in ["a.md", "a.md#two-words-code", "../crates/x", "https://example.org/gone"] {
            assert!(judged("docs/c.md", &format!("[x]({fine})\n")).is_empty(), "{fine}");
        }
        for broken in ["gone", "a.md#gone", "#gone"] {
            assert_eq!(judged("docs/c.md", &format!("[x]({broken})\n")).len(), 1, "{broken}");
        }
    }
}
