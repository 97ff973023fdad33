//! Rules of correctness and promises to users: each is held by a test, and this notices when one
//! has none any more.
//!
//! docs/rules.md lists the rules ([`crate::rules`] reads it). A rule's tests begin with its name,
//! as `f4_one_missing_row_in_a_large_transaction` does, wherever they are. A promise of
//! docs/guarantees.md names a test, or the file of several, in backquotes. Whether a test shows
//! what it says is not known here.
//!
//! A test that is named after a rule that the page does not have is a complaint too, and so is a
//! test of a rule that the page marks as not built. So the page grows with what is built.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};

use crate::rules::{self, Held, Rule};

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
    let page = std::fs::read_to_string(root.join(rules::PAGE))
        .with_context(|| format!("reading {}", rules::PAGE))?;
    let (rules, mut complaints) = rules::read(&page);
    complaints.extend(held(&rules, &tests));
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

/// Rules without the tests that they want, and tests of no rule.
fn held(rules: &[Rule], tests: &BTreeSet<String>) -> Vec<String> {
    let prefix = |rule: &Rule| rule.name.to_lowercase();
    let tests_of = |rule: &Rule| tests.iter().filter(|test| rule_of(test) == Some(&prefix(rule))).count();
    let page = rules::PAGE;
    let mut complaints = Vec::new();
    for rule in rules {
        let Rule { name, title, .. } = rule;
        match (rule.held, tests_of(rule)) {
            (Held::ByTests, 0) => {
                complaints.push(format!("rule {name}: no test is named {}_...: {title}", prefix(rule)));
            }
            (Held::NotBuilt | Held::WithoutTest, 1..) => {
                complaints.push(format!("rule {name} has tests, and {page} says that it has none"));
            }
            _ => {}
        }
    }
    let is_known = |of: &str| rules.iter().any(|rule| prefix(rule) == of);
    let unknown = tests.iter().filter(|test| rule_of(test).is_some_and(|of| !is_known(of)));
    complaints.extend(unknown.map(|test| format!("test {test}: its rule is not in {page}")));
    complaints
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
        let rule = |name: &str, held| Rule { name: name.to_owned(), title: "so".to_owned(), held };
        let rules = [rule("F1", Held::ByTests), rule("D1", Held::NotBuilt), rule("A4", Held::WithoutTest)];
        let judged = |tests: &[&str]| held(&rules, &set(tests));
        assert!(judged(&["f1_holds", "f10_is_no_rule", "v1"]).is_empty());
        assert_eq!(judged(&["v1"]), ["rule F1: no test is named f1_...: so"]);
        assert_eq!(judged(&["f1_holds", "d1_holds"]).len(), 1, "built, and the page says that it is not");
        assert_eq!(judged(&["f1_holds", "a4_holds"]).len(), 1);
        assert_eq!(
            judged(&["f1_holds", "z9_of_nothing"]),
            ["test z9_of_nothing: its rule is not in docs/rules.md"]
        );
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
