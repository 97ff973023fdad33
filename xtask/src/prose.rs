//! What a machine can see of plain language: long sentences, wide lines, and phrases that hide who
//! acts.
//!
//! Handed are the files of the workspace, it looks at prose: Markdown outside of fenced blocks, and
//! comments of Rust.
//!
//! | check | where | not |
//! | --- | --- | --- |
//! | a sentence has at most 35 words | Markdown, table cells included, and `//!` headers | |
//! | a line has at most 100 columns | Markdown and comments | tables, addresses of the web, links to lines of code |
//! | no phrase of [`PHRASES`] | Markdown and comments | |
//!
//! Files that were there before these checks are on a list, [`DEBT`], with the number of findings
//! that each may have. A file that is not on it may have none. A number may only fall: a file with
//! more is a complaint, and so is a file on the list that has none left. [`settle`] writes the list
//! anew, and follows files that were moved; it refuses when the sum would grow.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use crate::references::File;

/// The list of files that are still to be put into plain language.
pub(crate) const DEBT: &str = "xtask/prose-debt.txt";

const WORDS_MAX: usize = 35;
const COLUMNS_MAX: usize = 100;
/// Words with a stop that does not end a sentence.
const ABBREVIATIONS: [&str; 4] = ["e.g.", "i.e.", "vs.", "cf."];

/// Phrases that stand for a noun or an actor, in halves, so that this file obeys its own check.
const PHRASES: [(&str, &str); 22] = [
    ("is", " said"),
    ("so", " many"),
    ("of", " late"),
    ("who", " asked"),
    ("who", " asks"),
    ("who", " waits"),
    ("who", " runs"),
    ("who", "ever"),
    ("no", "body's"),
    ("any", "body's"),
    ("some", "body's"),
    ("is", " nobody"),
    ("without", " a word"),
    ("whose", " it is"),
    ("has", " come of"),
    ("all", " the same"),
    ("for", " ever"),
    ("such", " a one"),
    ("is", " begun"),
    ("look", " to look"),
    ("this", " one's"),
    ("has", " not got"),
];

/// One finding: a line of a file, and what is wrong there.
type Finding = (usize, String);

/// Files that have more findings than the list allows, and lines of the list that are out of date.
pub(crate) fn complaints(files: &[File]) -> Vec<String> {
    let (allowed, mut complaints) = read(list(files).unwrap_or_default());
    for file in files {
        let found = findings(&file.path, &file.text);
        let path = &file.path;
        match allowed.get(path) {
            None => {
                complaints.extend(found.iter().map(|(number, what)| format!("{path}: line {number}: {what}")))
            }
            Some(_) if found.is_empty() => {
                complaints.push(format!("{path}: is plain now: take it off with `cargo x tidy --settle`"));
            }
            Some(&allowed) if found.len() > allowed => complaints.push(format!(
                "{path}: {} places to put into plain language, {DEBT} allows {allowed}: \
                 `cargo x tidy --prose {path}` lists them",
                found.len()
            )),
            Some(_) => {}
        }
    }
    let gone = allowed.keys().filter(|path| files.iter().all(|file| file.path != **path));
    complaints
        .extend(gone.map(|path| format!("{path}: is on {DEBT} and not there: `cargo x tidy --settle`")));
    complaints
}

/// All findings in files whose path begins with `under`, as lines to print.
pub(crate) fn listed(files: &[File], under: &str) -> Vec<String> {
    let wanted = files.iter().filter(|file| file.path.starts_with(under));
    let lines = wanted.flat_map(|file| {
        let found = findings(&file.path, &file.text);
        found.into_iter().map(|(number, what)| format!("{}: line {number}: {what}", file.path))
    });
    lines.collect()
}

/// The list as it should be now; an error if more would be allowed in all than before.
///
/// Without a list before, everything that is found is allowed.
pub(crate) fn settle(files: &[File]) -> Result<String> {
    let counted = files.iter().map(|file| (file.path.as_str(), findings(&file.path, &file.text).len()));
    let counts: BTreeMap<&str, usize> = counted.filter(|(_, count)| *count > 0).collect();
    let sum: usize = counts.values().sum();
    if let Some(text) = list(files) {
        let before: usize = read(text).0.values().sum();
        ensure!(sum <= before, "{sum} places are to be put into plain language, {before} were allowed");
    }
    let mut text = String::from(
        "# Places that are still to be put into plain language, for each file. A number may only fall.\n\
         # `cargo x tidy --prose PATH` lists the places, `cargo x tidy --settle` writes this file.\n",
    );
    for (path, count) in counts {
        text.push_str(&format!("{count} {path}\n"));
    }
    Ok(text)
}

fn list(files: &[File]) -> Option<&str> {
    files.iter().find(|file| file.path == DEBT).map(|file| file.text.as_str())
}

/// How many findings each file may have, and lines that do not say.
fn read(text: &str) -> (BTreeMap<String, usize>, Vec<String>) {
    let (mut allowed, mut complaints) = (BTreeMap::new(), Vec::new());
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match entry(line) {
            Ok((path, count)) => drop(allowed.insert(path, count)),
            Err(error) => complaints.push(format!("{DEBT}: \"{line}\": {error:#}")),
        }
    }
    (allowed, complaints)
}

fn entry(line: &str) -> Result<(String, usize)> {
    let (count, path) = line.split_once(' ').context("a line is a number and a path")?;
    Ok((path.to_owned(), count.parse().context("a line begins with a number")?))
}

/// What is wrong with the prose of one file, by line.
fn findings(path: &str, text: &str) -> Vec<Finding> {
    let is_markdown = path.ends_with(".md");
    if !is_markdown && !path.ends_with(".rs") {
        return Vec::new();
    }
    let lines = prose(text, is_markdown);
    let mut found = Vec::new();
    for line in &lines {
        found.extend(width(line).map(|what| (line.number, what)));
        found.extend(phrases(line.text).map(|what| (line.number, what)));
    }
    let is_header = |line: &&Line<'_>| is_markdown || line.whole.starts_with("//!");
    found.extend(long_sentences(lines.iter().filter(is_header)));
    found.sort();
    found
}

/// A line of prose: with its indentation and comment marks, and without.
struct Line<'a> {
    number: usize,
    whole: &'a str,
    text: &'a str,
}

/// The lines that people read as prose. A fenced block comes out as one empty line, which ends a
/// paragraph.
fn prose(text: &str, is_markdown: bool) -> Vec<Line<'_>> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (index, whole) in text.lines().enumerate() {
        let comment = || Some(whole.trim_start().strip_prefix("//")?.trim_start_matches(['/', '!']));
        let Some(text) = (if is_markdown { Some(whole) } else { comment() }) else {
            fenced = false;
            continue;
        };
        let is_fence = text.trim_start().starts_with("```");
        fenced ^= is_fence;
        let text = if fenced || is_fence { "" } else { text.trim() };
        lines.push(Line { number: index + 1, whole, text });
    }
    lines
}

fn width(line: &Line<'_>) -> Option<String> {
    let columns = line.whole.chars().count();
    // An entry of a list that is nothing but a link cannot be wrapped.
    let is_link = line.text.starts_with("- [") && line.text.ends_with(')');
    // `cargo x docs` writes the numbers of lines, and wraps nothing.
    let is_given = line.text.contains("://") || line.text.contains(".rs#L");
    let is_free = line.text.is_empty() || line.text.starts_with('|') || is_given || is_link;
    (columns > COLUMNS_MAX && !is_free).then(|| format!("{columns} columns, at most {COLUMNS_MAX}"))
}

fn phrases(text: &str) -> impl Iterator<Item = String> {
    let text = text.to_lowercase();
    let is_word = |c: char| c.is_alphanumeric();
    let stands_in = move |phrase: &str| {
        text.match_indices(phrase).any(|(at, _)| {
            let (before, after) = (&text[..at], &text[at + phrase.len()..]);
            !before.ends_with(is_word) && !after.starts_with(is_word)
        })
    };
    let phrases = PHRASES.iter().map(|(a, b)| format!("{a}{b}"));
    phrases
        .filter(move |phrase| stands_in(phrase))
        .map(|phrase| format!("\"{phrase}\": name the actor or the thing"))
}

fn long_sentences<'a>(lines: impl Iterator<Item = &'a Line<'a>>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut paragraph = Vec::new();
    for line in lines {
        if line.text.starts_with('|') {
            sentences(&std::mem::take(&mut paragraph), &mut found);
            for cell in line.text.split('|') {
                sentences(&[(line.number, cell)], &mut found);
            }
        } else {
            if begins(line.text) {
                sentences(&std::mem::take(&mut paragraph), &mut found);
            }
            paragraph.push((line.number, line.text));
        }
    }
    sentences(&paragraph, &mut found);
    found
}

/// Whether a line begins a paragraph, a heading or an item of a list.
fn begins(text: &str) -> bool {
    let after_number = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_numbered = after_number.len() < text.len() && after_number.starts_with(". ");
    text.is_empty() || is_numbered || ["#", "- ", "* ", "> ", "<"].iter().any(|mark| text.starts_with(mark))
}

/// The sentences of a paragraph that have too many words. Code in backquotes is one word.
fn sentences(paragraph: &[(usize, &str)], found: &mut Vec<Finding>) {
    let (mut words, mut first) = (0, 0);
    let mut is_code = false;
    let mut all =
        paragraph.iter().flat_map(|(number, text)| text.split_whitespace().map(|word| (*number, word)));
    let mut next = all.next();
    while let Some((number, word)) = next {
        next = all.next();
        let was_code = is_code;
        is_code ^= word.matches('`').count() % 2 == 1;
        if !was_code && word.contains(char::is_alphanumeric) {
            words += 1;
            first = if words == 1 { number } else { first };
        }
        let ends = !is_code && word.trim_end_matches([')', '"', '\'', '*', '_']).ends_with(['.', '?', '!']);
        if next.is_none() || ends && !ABBREVIATIONS.contains(&word.trim_start_matches('(')) {
            if words > WORDS_MAX {
                found.push((first, format!("a sentence of {words} words, at most {WORDS_MAX}")));
            }
            words = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        findings(path, text).len()
    }

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn a_long_sentence_is_found_where_it_begins() {
        let words = |n: usize| vec!["word"; n].join("\n");
        assert_eq!(count("a.md", &format!("{}.\n", words(WORDS_MAX))), 0);
        let found = findings("a.md", &format!("# A\n\nShort one. W{}.\n", words(WORDS_MAX + 1)));
        assert_eq!(found, [(3, "a sentence of 36 words, at most 35".to_owned())]);
        let two = format!("{}. Then {}.\n", words(20), words(20));
        assert_eq!(count("a.md", &two), 0);
        assert_eq!(
            count("a.md", &two.replace(". Then", ", e.g. then")),
            1,
            "an abbreviation does not end a sentence"
        );
        assert_eq!(count("a.md", &format!("{}\n\n- {}\n", words(20), words(20))), 0);
        assert_eq!(count("a.md", &format!("| a | {} |\n", vec!["word"; 36].join(" "))), 1, "a cell");
        assert_eq!(
            count("a.md", &format!("it is `{}` here\n", vec!["code"; 40].join(" "))),
            1,
            "too wide only"
        );
        assert_eq!(count("a.rs", &format!("//! {}\n", words(36).replace('\n', "\n//! "))), 1);
        assert_eq!(count("a.rs", &format!("/// {}\n", words(36).replace('\n', "\n/// "))), 0, "no header");
    }

    #[test]
    fn a_wide_line_is_found_in_prose_only() {
        let wide = "w".repeat(COLUMNS_MAX + 1);
        assert_eq!(count("a.md", &wide), 1);
        assert_eq!(count("a.rs", &format!("    // {wide}")), 1);
        assert_eq!(count("a.rs", &format!("let a = \"{wide}\";")), 0);
        assert_eq!(count("a.md", &format!("| {wide} |\n\n```text\n{wide}\n```\n")), 0);
        assert_eq!(count("a.md", &format!("https://example.org/{wide}\n")), 0);
        assert_eq!(count("a.md", &format!("[`a`](a.rs#L1) {wide}\n")), 0);
    }

    #[test]
    fn a_phrase_is_found_as_whole_words() {
        for (a, b) in PHRASES {
            assert_eq!(count("a.md", &format!("It {a}{b}, then.\n")), 1, "{a}{b}");
            assert_eq!(count("a.rs", &format!("let x = \"{a}{b}\";\n")), 0);
        }
        assert_eq!(count("a.md", "Also many of later ones.\n"), 0);
    }

    #[test]
    fn a_file_may_have_what_the_list_allows() {
        let bad = format!("{0}\n\n{0}\n", "w".repeat(101));
        let judged = |list: &str| complaints(&[file("a.md", &bad), file(DEBT, list)]).len();
        assert_eq!(judged(""), 2, "each finding of a file that is not on the list");
        assert_eq!(judged("2 a.md\n"), 0);
        assert_eq!(judged("3 a.md\n"), 0);
        assert_eq!(judged("1 a.md\n"), 1);
        assert_eq!(judged("2 a.md\n1 gone.md\n"), 1);
        assert_eq!(judged("2 a.md\nx\n"), 1);
        assert_eq!(complaints(&[file("a.md", "Plain.\n"), file(DEBT, "2 a.md\n")]).len(), 1);
    }

    #[test]
    fn the_list_follows_a_moved_file_and_never_grows() {
        let bad = "w".repeat(101);
        let settled = |list: &str| settle(&[file("new.md", &bad), file(DEBT, list)]);
        assert!(settled("1 old.md\n").unwrap().ends_with("\n1 new.md\n"));
        assert!(settled("").is_err());
        assert!(settle(&[file("new.md", &bad)]).unwrap().ends_with("\n1 new.md\n"));
    }
}
