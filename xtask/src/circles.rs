//! Circles of files inside a crate: files that use one another, directly or through others.
//!
//! The input is the crates of the product with their sources. A circle is a complaint unless the
//! crate's header explains it, in a paragraph of this form with the files as this check prints
//! them:
//!
//! ```text
//! Circle: a, a/b, c: why they cannot be taken apart.
//! ```

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::modules::{self, Files};

/// The list of circles that are still to be opened.
pub(crate) const DEBT: &str = "xtask/circles-debt.txt";
const MARK: &str = "Circle: ";

type Circle = BTreeSet<String>;

/// A crate of the product, and where its sources are.
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) src: PathBuf,
}

/// A circle, the crate that it is in, and whether the crate's header explains it.
#[derive(Debug, PartialEq)]
pub(crate) struct Found {
    in_crate: String,
    circle: Circle,
    is_explained: bool,
}

/// The circles of all crates, and explanations of circles that are not there.
pub(crate) fn find(crates: &[Crate]) -> Result<(Vec<Found>, Vec<String>)> {
    let (mut all, mut complaints) = (Vec::new(), Vec::new());
    for Crate { name, src } in crates {
        let circles = circles(&modules::read(src)?);
        let header = ["lib.rs", "main.rs"]
            .map(|root| std::fs::read_to_string(src.join(root)))
            .into_iter()
            .flatten()
            .next();
        let header = header.unwrap_or_default();
        let explained = explained(&header);
        let gone = explained.iter().filter(|circle| !circles.contains(circle));
        complaints.extend(
            gone.map(|circle| format!("{name}: its header explains a circle that is gone: {}", list(circle))),
        );
        let found = |circle: Circle| Found {
            is_explained: explained.contains(&circle),
            in_crate: name.clone(),
            circle,
        };
        all.extend(circles.into_iter().map(found));
    }
    Ok((all, complaints))
}

/// The arrows of a crate's circles, one line each: what has to go for a circle to open.
pub(crate) fn inside(of: &Crate) -> Result<Vec<String>> {
    let files = modules::read(&of.src)?;
    let circles = circles(&files);
    let is_inside = |from: &String, to: &String| {
        circles.iter().any(|circle| circle.contains(from) && circle.contains(to))
    };
    let named = files.uses.iter().map(|&(from, to)| (&files.names[from], &files.names[to]));
    let mut lines: Vec<String> =
        named.filter(|(from, to)| is_inside(from, to)).map(|(from, to)| format!("{from} -> {to}")).collect();
    lines.sort();
    Ok(lines)
}

/// One line for each circle.
pub(crate) fn described(found: &[Found]) -> Vec<String> {
    let line = |Found { in_crate, circle, is_explained }: &Found| {
        let how = if *is_explained { "explained" } else { "to be opened" };
        format!("{in_crate}: circle of {} files, {how}: {}", circle.len(), list(circle))
    };
    found.iter().map(line).collect()
}

/// Circles that are neither explained nor on the list, and lines of the list that are out of date.
pub(crate) fn complaints(found: &[Found]) -> Vec<String> {
    judge(found, &debt().unwrap_or_default())
}

fn judge(found: &[Found], debt: &str) -> Vec<String> {
    let allowed = read(debt);
    let open: Vec<&Found> = found.iter().filter(|found| !found.is_explained).collect();
    let is_within = |found: &Found, (name, circle): &(String, Circle)| {
        *name == found.in_crate && found.circle.is_subset(circle)
    };
    let mut complaints = Vec::new();
    for found in open.iter().filter(|found| !allowed.iter().any(|line| is_within(found, line))) {
        let files = list(&found.circle);
        complaints.push(format!(
            "{}: a circle of files: {files}. Open it, or explain it in the header: `//! {MARK}{files}: why`",
            found.in_crate
        ));
    }
    for line in allowed.iter().filter(|line| !open.iter().any(|found| is_within(found, line))) {
        complaints.push(format!("{DEBT}: a circle of {} is gone: `cargo x arrows --settle`", line.0));
    }
    complaints
}

/// The list as it should be now; an error if it would have more files in circles than before.
pub(crate) fn settle(found: &[Found]) -> Result<()> {
    let text = settled(found, debt().as_deref())?;
    std::fs::write(testkit::workspace_dir().join(DEBT), text).with_context(|| format!("writing {DEBT}"))
}

fn settled(found: &[Found], before: Option<&str>) -> Result<String> {
    let open: Vec<&Found> = found.iter().filter(|found| !found.is_explained).collect();
    let sum: usize = open.iter().map(|found| found.circle.len()).sum();
    if let Some(before) = before {
        let before: usize = read(before).iter().map(|(_, circle)| circle.len()).sum();
        ensure!(sum <= before, "{sum} files are in circles, {before} were allowed");
    }
    let mut text = String::from(
        "# Circles of files that are still to be opened: crate, then files. The list may only shrink.\n\
         # `cargo x arrows` prints all circles, `cargo x arrows --settle` writes this file.\n",
    );
    for found in open {
        text.push_str(&format!("{}: {}\n", found.in_crate, list(&found.circle)));
    }
    Ok(text)
}

fn debt() -> Option<String> {
    std::fs::read_to_string(testkit::workspace_dir().join(DEBT)).ok()
}

fn read(debt: &str) -> Vec<(String, Circle)> {
    let lines = debt.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(": "));
    lines.map(|(name, files)| (name.to_owned(), names(files))).collect()
}

fn names(files: &str) -> Circle {
    files.split(',').map(|file| file.trim().to_owned()).collect()
}

fn list(circle: &Circle) -> String {
    circle.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// The circles that a crate's header explains.
fn explained(text: &str) -> Vec<Circle> {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let header = lines.collect::<Vec<_>>().join("\n");
    let paragraphs = header.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
    let circles = paragraphs.filter_map(|paragraph| {
        let (files, _why) = paragraph.strip_prefix(MARK)?.split_once(": ")?;
        Some(names(files))
    });
    circles.collect()
}

/// Groups of two files and more that reach one another.
fn circles(files: &Files) -> Vec<Circle> {
    let reaches: Vec<BTreeSet<usize>> = (0..files.names.len()).map(|from| reached(files, from)).collect();
    let mut circles = BTreeSet::new();
    for (file, reached) in reaches.iter().enumerate() {
        let others = reached.iter().filter(|&&other| reaches[other].contains(&file));
        let circle: Circle = others.map(|&other| files.names[other].clone()).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

/// Every file that an arrow or several lead to.
fn reached(files: &Files, from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        let next = files.uses.range((file, 0)..=(file, usize::MAX)).map(|&(_, to)| to);
        open.extend(next.filter(|&to| reached.insert(to)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &str, is_explained: bool) -> Found {
        Found { in_crate: "apply".to_owned(), circle: names(files), is_explained }
    }

    #[test]
    fn files_that_reach_one_another_are_a_circle() {
        let names = ["a", "b", "c", "d", "e"].map(str::to_owned).to_vec();
        let uses = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 3)].into();
        let circles: Vec<String> = circles(&Files { names, uses }).iter().map(list).collect();
        assert_eq!(circles, ["a, b, c", "d, e"]);
        let names = ["a", "b"].map(str::to_owned).to_vec();
        assert!(super::circles(&Files { names, uses: [(0, 1)].into() }).is_empty());
    }

    #[test]
    fn a_header_explains_a_circle() {
        let text = "//! What it is.\n//!\n//! Circle: a, b/c: one is the other's\n//! state.\n//!\n//! More.\nuse x;\n";
        assert_eq!(explained(text), [names("a, b/c")]);
        assert!(explained("//! What it is.\n").is_empty());
    }

    #[test]
    fn a_circle_is_explained_or_on_the_list() {
        assert_eq!(judge(&[found("a, b", false)], "").len(), 1);
        assert!(judge(&[found("a, b", true)], "").is_empty());
        assert!(judge(&[found("a, b", false)], "# x\napply: a, b, c\n").is_empty());
        assert_eq!(judge(&[found("a, b, c", false)], "apply: a, b\n").len(), 2, "it grew");
        assert_eq!(judge(&[found("a, b", false)], "engine: a, b\n").len(), 2, "another crate's");
        assert_eq!(judge(&[], "apply: a, b\n").len(), 1, "it is gone");
    }

    #[test]
    fn the_list_may_shrink_only() {
        let all = [found("a, b", false), found("c, d", true)];
        assert!(settled(&all, Some("apply: a, b, c\n")).unwrap().ends_with("\napply: a, b\n"));
        assert!(settled(&all, Some("apply: a\n")).is_err());
        assert!(settled(&all, None).is_ok());
    }
}
