//! Rules of correctness and promises to users: each is held by a test, and this notices when one has none any more.
//!
//! A rule's tests begin with its name (`f4_one_missing_row_in_a_large_transaction`), wherever they are. A promise of
//! docs/guarantees.md names a test, or the file of several, in backquotes. Whether a test shows what it says is not known
//! here.
//!
//! Rules of what is not built yet are not on the list: deletion memory (D), the relay (L). Nor is the order of locks within a
//! set (A4): sets that are executed at the same time share no row. A test that is named after a rule that is not on the list is
//! a complaint too: so the list grows with what is built.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};

/// Rules that apply today, and what would be lost without each.
const RULES: [(&str, &str); 26] = [
    (
        "p1",
        "commits in the source's order, and progress that is the truth also where an abort can move an origin",
    ),
    ("p2", "a backend that is still committing is fenced off before progress is read"),
    ("p3", "what is confirmed to the source has been flushed by the target"),
    ("p4", "a target that was restored is noticed although idle feedback went past it"),
    ("p5", "origins needed and left are counted before a start"),
    ("f1", "the first operation on a key says what it expects, and that is checked key by key"),
    (
        "f2",
        "folds only where an index says which row is meant, or rows that look alike mean any; swaps and defaults as one by one",
    ),
    ("f3", "a commit timestamp belongs to one source transaction"),
    ("f4", "a conflict costs its own chunk and not the batch"),
    ("f5", "triggers and rules that fire for replicas see every change, or are refused"),
    ("f6", "SQL is not native apply: policies, identity columns, swallowed rows, rows replaced meanwhile"),
    ("a1", "what is met by a transaction executed ahead is void: only the first in line reports"),
    ("a2", "tables whose equality or indexes a change does not show are not executed ahead"),
    ("a3", "a wait that goes through a transaction executed ahead is ended by us, as no server sees it"),
    ("r1", "look-ups ahead read what a change will enter, and no more"),
    ("c1", "the stream applies to a table what its snapshot does not have, and nothing else"),
    ("c2", "without a logical slot, what a copy has is known by transaction and not by position"),
    ("c3", "binary only where no value has an OID of a user's type in it"),
    ("v1", "both ends are compared at one point of the stream"),
    (
        "w1",
        "a record is judged by the catalogs at the record, and what nobody can resolve stops at its commit",
    ),
    ("w2", "what a locator stands for is forgotten by whatever changes it, when that holds"),
    (
        "w3",
        "a failover is followed where the new primary has all that was applied, and WAL can wait for it to",
    ),
    (
        "q1",
        "a statement that finds rows by their key looks each up, whatever the statistics said when it was planned",
    ),
    ("s1", "what a window may forget and a history may not"),
    ("s2", "size is bounded also where leaves are never full again"),
    ("s3", "a version goes only after its successor is durable"),
];

/// Where promises are made.
const GUARANTEES: &str = "docs/guarantees.md";
/// The part of it that promises.
const PROMISES: &str = "## What you may rely on";

/// Rules without a test, tests of no rule, promises without evidence.
pub(crate) fn complaints() -> Result<Vec<String>> {
    let root = testkit::workspace_dir();
    let mut tests = BTreeSet::new();
    collect(&root.join("crates"), &mut tests)?;
    let text =
        std::fs::read_to_string(root.join(GUARANTEES)).with_context(|| format!("reading {GUARANTEES}"))?;
    let mut complaints = rules(&tests);
    let is_there = |path: &str| root.join(path).exists();
    complaints
        .extend(promises(&text, &tests, is_there).into_iter().map(|own| format!("{GUARANTEES}: {own}")));
    Ok(complaints)
}

fn collect(dir: &Path, tests: &mut BTreeSet<String>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, tests)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            tests.extend(named(&std::fs::read_to_string(&path)?));
        }
    }
    Ok(())
}

/// The tests of a source file, by name.
fn named(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_next = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_next = true;
        } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_next) {
            names.extend(rest.split(['(', '<']).next().map(str::to_owned));
            is_next = false;
        }
    }
    names
}

/// `f4` of a test's name, if it begins as those of rules do.
fn rule_of(test: &str) -> Option<&str> {
    let (rule, _) = test.split_once('_')?;
    let mut letters = rule.chars();
    let is_rule = letters.next().is_some_and(|first| first.is_ascii_lowercase())
        && letters.next().is_some_and(|second| second.is_ascii_digit())
        && letters.next().is_none();
    is_rule.then_some(rule)
}

fn rules(tests: &BTreeSet<String>) -> Vec<String> {
    let tested: BTreeSet<&str> = tests.iter().filter_map(|test| rule_of(test)).collect();
    let untested = RULES
        .iter()
        .filter(|(rule, _)| !tested.contains(rule))
        .map(|(rule, what)| format!("rule {}: no test is named {rule}_...: {what}", rule.to_uppercase()));
    let unknown = tests
        .iter()
        .filter(|test| rule_of(test).is_some_and(|rule| RULES.iter().all(|(known, _)| *known != rule)))
        .map(|test| format!("test {test}: its rule is not on the list in xtask/src/promises.rs"));
    untested.chain(unknown).collect()
}

/// Promises of `text` that name no test, and files that are not there.
fn promises(text: &str, tests: &BTreeSet<String>, is_there: impl Fn(&str) -> bool) -> Vec<String> {
    let mut complaints: Vec<String> = quoted(text)
        .filter(|word| word.starts_with("crates/") && !is_there(word))
        .map(|path| format!("`{path}` is not there"))
        .collect();
    let Some((_, rest)) = text.split_once(PROMISES) else {
        complaints.push(format!("no part is called \"{PROMISES}\""));
        return complaints;
    };
    let part = rest.split("\n## ").next().unwrap_or_default();
    for promise in part.split("\n- ").skip(1) {
        let is_held = quoted(promise)
            .any(|word| tests.contains(word) || word.starts_with("crates/") && word.contains("/tests/"));
        if !is_held {
            let title: String = promise.chars().take(40).collect();
            complaints.push(format!("names no test that holds it: {title}"));
        }
    }
    complaints
}

/// What stands in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn tests_are_found_by_their_attribute() {
        let text = "#[test]\nfn f1_a() {}\nfn helper() {}\n#[tokio::test(flavor = \"x\")]\n#[ignore = \"y\"]\nasync fn p2_b<T>() {}";
        assert_eq!(named(text), ["f1_a", "p2_b"]);
    }

    #[test]
    fn a_rule_wants_a_test_and_a_test_a_rule() {
        let mut all: Vec<String> = RULES.iter().map(|(rule, _)| format!("{rule}_holds")).collect();
        assert!(rules(&all.iter().cloned().collect()).is_empty());
        let gone = all.pop().unwrap();
        let complaints = rules(&all.iter().cloned().collect());
        assert_eq!(complaints.len(), 1);
        assert!(complaints[0].starts_with(&format!("rule {}: ", gone[..2].to_uppercase())), "{complaints:?}");
        all.extend([gone, "z9_of_nothing".to_owned(), "f10_is_no_rule".to_owned(), "v1".to_owned()]);
        let complaints = rules(&all.iter().cloned().collect());
        assert_eq!(complaints.len(), 1);
        assert!(complaints[0].contains("z9_of_nothing"), "{complaints:?}");
    }

    #[test]
    fn a_promise_names_a_test_or_a_file_that_is_there() {
        let tests = set(&["holds"]);
        let there = |path: &str| path == "crates/a/tests/a.rs" || path == "crates/a/src/a.rs";
        let text =
            |promise: &str| format!("# x\n\n{PROMISES}\n\n- **A.** {promise}\n\n## Else\n\n- **B.** free\n");
        assert!(promises(&text("see `holds`"), &tests, there).is_empty());
        assert!(promises(&text("see `crates/a/tests/a.rs`"), &tests, there).is_empty());
        assert_eq!(promises(&text("see `crates/a/src/a.rs`"), &tests, there).len(), 1);
        assert_eq!(promises(&text("see `nobody`"), &tests, there).len(), 1);
        let gone = promises(&text("see `crates/a/tests/b.rs`"), &tests, there);
        assert_eq!(gone, ["`crates/a/tests/b.rs` is not there"]);
        assert_eq!(promises("# x", &tests, there).len(), 1);
    }
}
