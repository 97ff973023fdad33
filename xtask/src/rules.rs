//! The rules of correctness, as docs/rules.md lists them.
//!
//! Handed the text of that page, it gives the rules with the tests that each wants, and complains
//! where the page does not keep its own form. No list of rules exists outside that page.
//!
//! ```text
//! ## F. Folds                      the group, by its letter
//! ### F1: What it says in short    a rule
//! ...
//! Why: what is lost without it.
//! Tests: `f1_*`                    or "Not built yet.", or "No test of its own: ..."
//! ```
//!
//! Whether a rule's tests exist is a question for [`crate::promises`], whether a citation leads to
//! a rule one for [`crate::references`].

/// Where the rules are.
pub(crate) const PAGE: &str = "docs/rules.md";

/// What holds a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Held {
    /// Tests whose names begin with the rule's.
    ByTests,
    /// Nothing yet, because what it rules is not built.
    NotBuilt,
    /// Tests of another rule, or nothing that a test could show; the page says why.
    WithoutTest,
}

/// One rule of the page.
#[derive(Debug, PartialEq)]
pub(crate) struct Rule {
    /// `F1`.
    pub(crate) name: String,
    /// What the heading says of it.
    pub(crate) title: String,
    pub(crate) held: Held,
}

/// The rules of `text`, and what is wrong with the page.
pub(crate) fn read(text: &str) -> (Vec<Rule>, Vec<String>) {
    let (mut rules, mut complaints) = (Vec::<Rule>::new(), Vec::new());
    for section in text.split("\n### ").skip(1) {
        let section = section.split("\n## ").next().unwrap_or_default();
        let (heading, body) = section.split_once('\n').unwrap_or((section, ""));
        match rule(heading, body) {
            Ok(rule) if rules.iter().any(|other| other.name == rule.name) => {
                complaints.push(format!("{PAGE}: rule {} stands there twice", rule.name));
            }
            Ok(rule) => rules.push(rule),
            Err(what) => complaints.push(format!("{PAGE}: \"{heading}\": {what}")),
        }
    }
    (rules, complaints)
}

fn rule(heading: &str, body: &str) -> Result<Rule, &'static str> {
    let (name, title) = heading.split_once(": ").ok_or("a rule's heading is `### X9: title`")?;
    if !is_name(name) {
        return Err("a rule's name is a letter and a digit");
    }
    let paragraphs: Vec<&str> = body.split("\n\n").map(str::trim).filter(|text| !text.is_empty()).collect();
    if !paragraphs.iter().any(|paragraph| paragraph.starts_with("Why: ")) {
        return Err("no paragraph begins with `Why: `");
    }
    let last = paragraphs.last().copied().unwrap_or_default();
    let held = match last {
        "Not built yet." => Held::NotBuilt,
        _ if last == format!("Tests: `{}_*`", name.to_lowercase()) => Held::ByTests,
        _ if last.starts_with("No test of its own: ") => Held::WithoutTest,
        _ => return Err("its last line is neither `Tests:` with its prefix nor says why there are none"),
    };
    Ok(Rule { name: name.to_owned(), title: title.to_owned(), held })
}

/// Whether `word` is a letter and a digit, as `F1`.
pub(crate) fn is_name(word: &str) -> bool {
    matches!(word.as_bytes(), [letter, digit] if letter.is_ascii_uppercase() && digit.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_with_what_holds_them() {
        let text = "# Rules\n\n## F. Folds\n\n### F1: One\n\nIt is.\n\nWhy: so.\n\nTests: `f1_*`\n\n\
                    ### F2: Two\n\nIt is.\n\nWhy: so.\n\nNot built yet.\n\n## A. Else\n\n### A4: Four\n\nWhy: so.\n\n\
                    No test of its own: those of F1\nhold it.\n";
        let (rules, complaints) = read(text);
        assert!(complaints.is_empty(), "{complaints:?}");
        let held: Vec<(&str, Held)> = rules.iter().map(|rule| (rule.name.as_str(), rule.held)).collect();
        assert_eq!(held, [("F1", Held::ByTests), ("F2", Held::NotBuilt), ("A4", Held::WithoutTest)]);
        assert_eq!(rules[0].title, "One");
    }

    #[test]
    fn a_rule_out_of_form_is_named() {
        let page = |rule: &str| read(&format!("# Rules\n\n{rule}")).1.len();
        assert_eq!(page("### F1: One\n\nWhy: so.\n\nTests: `f1_*`\n"), 0);
        assert_eq!(page("### F1 One\n\nWhy: so.\n\nTests: `f1_*`\n"), 1);
        assert_eq!(page("### First: One\n\nWhy: so.\n\nTests: `f1_*`\n"), 1);
        assert_eq!(page("### F1: One\n\nTests: `f1_*`\n"), 1, "no reason");
        assert_eq!(page("### F1: One\n\nWhy: so.\n\nTests: `f2_*`\n"), 1, "another's tests");
        assert_eq!(page("### F1: One\n\nWhy: so.\n"), 1, "nothing holds it");
        let twice = "### F1: One\n\nWhy: so.\n\nNot built yet.\n\n";
        assert_eq!(page(&twice.repeat(2)), 1);
    }
}
