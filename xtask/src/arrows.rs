//! Whether the crates depend on one another only in the order that ARCHITECTURE.md gives.
//!
//! The order stands there in a fenced block tagged `crates`: one crate per line, its name first. A
//! crate may depend only on crates above it. `(dev)` after the name marks what only tests and
//! chores use: the product may not depend on it, except for its tests, which may use any `(dev)`
//! crate.
//!
//! Circles of files inside a crate are looked for in [`circles`].

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cargo;
use crate::circles::{self, Crate};

/// One line of the block.
#[derive(Debug, PartialEq)]
struct Listed {
    name: String,
    dev: bool,
}

/// One dependency inside the workspace.
#[derive(Debug)]
struct Arrow {
    from: String,
    to: String,
    /// Only its tests need it.
    for_tests: bool,
}

/// Prints the circles of files; gives what is wrong with the arrows between crates, and inside of
/// them.
pub(crate) fn complaints() -> Result<Vec<String>> {
    let (order, metadata) = (listed()?, cargo::metadata()?);
    let (members, arrows) = workspace(&metadata);
    let mut complaints = judge(&order, &members, &arrows);
    let (found, mut gone) = circles::find(&product(&order, &metadata))?;
    for line in circles::described(&found) {
        println!("arrows: {line}");
    }
    complaints.append(&mut gone);
    complaints.extend(circles::complaints(&found));
    Ok(complaints)
}

/// Prints the arrows inside the circles of one crate.
pub(crate) fn list_inside(name: &str) -> Result<()> {
    let crates = product(&listed()?, &cargo::metadata()?);
    let of = crates
        .iter()
        .find(|own| own.name == name)
        .with_context(|| format!("{name} is no crate of the product"))?;
    for line in circles::inside(of)? {
        println!("{line}");
    }
    Ok(())
}

/// Writes the list of circles that are still to be opened.
pub(crate) fn settle() -> Result<()> {
    circles::settle(&circles::find(&product(&listed()?, &cargo::metadata()?))?.0)
}

fn listed() -> Result<Vec<Listed>> {
    let path = testkit::workspace_dir().join("ARCHITECTURE.md");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    order(&text).context("ARCHITECTURE.md has no fenced block tagged `crates`")
}

/// The crates that are not `(dev)`.
fn product(order: &[Listed], metadata: &Value) -> Vec<Crate> {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let sources = |name: &str| {
        let package = packages.iter().find(|package| package["name"].as_str() == Some(name))?;
        Some(Path::new(package["manifest_path"].as_str()?).with_file_name("src"))
    };
    let product = order.iter().filter(|listed| !listed.dev);
    product
        .filter_map(|listed| Some(Crate { name: listed.name.clone(), src: sources(&listed.name)? }))
        .collect()
}

fn order(text: &str) -> Option<Vec<Listed>> {
    let block = text.split_once("```crates\n")?.1.split_once("```")?.0;
    let listed = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?.to_owned();
        Some(Listed { name, dev: words.next() == Some("(dev)") })
    };
    Some(block.lines().filter_map(listed).collect())
}

fn workspace(metadata: &Value) -> (Vec<String>, Vec<Arrow>) {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let packages = list(&metadata["packages"]);
    let members: Vec<String> = packages.iter().map(name).collect();
    let mut arrows = Vec::new();
    for package in &packages {
        for dependency in list(&package["dependencies"]).iter().filter(|d| d["path"].is_string()) {
            let for_tests = dependency["kind"].as_str() == Some("dev");
            arrows.push(Arrow { from: name(package), to: name(dependency), for_tests });
        }
    }
    (members, arrows)
}

fn judge(order: &[Listed], members: &[String], arrows: &[Arrow]) -> Vec<String> {
    let place = |name: &str| order.iter().position(|listed| listed.name == name);
    let mut complaints = Vec::new();
    for member in members.iter().filter(|member| place(member).is_none()) {
        complaints.push(format!("{member} is a crate of the workspace and not in ARCHITECTURE.md's order"));
    }
    for listed in order.iter().filter(|listed| !members.contains(&listed.name)) {
        complaints.push(format!("{} is in ARCHITECTURE.md's order and not in the workspace", listed.name));
    }
    for arrow in arrows {
        let (Some(from), Some(to)) = (place(&arrow.from), place(&arrow.to)) else { continue };
        let Arrow { from: lower, to: upper, .. } = arrow;
        if arrow.for_tests && order[to].dev {
            continue;
        }
        if order[to].dev && !order[from].dev {
            complaints.push(format!("{lower} is part of the product and depends on {upper}, which is (dev)"));
        } else if to >= from {
            complaints.push(format!("{lower} depends on {upper}, which does not stand above it"));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "# A\n```crates\nbase     the words\napply    rows\ntestkit  (dev) clusters\n```\nmore\n";

    fn judged(arrows: &[(&str, &str, bool)]) -> Vec<String> {
        let members = ["base", "apply", "testkit"].map(str::to_owned);
        let arrow = |&(from, to, for_tests): &(&str, &str, bool)| Arrow {
            from: from.into(),
            to: to.into(),
            for_tests,
        };
        judge(&order(TEXT).unwrap(), &members, &arrows.iter().map(arrow).collect::<Vec<_>>())
    }

    #[test]
    fn the_order_is_read_from_its_block() {
        let order = order(TEXT).unwrap();
        assert_eq!(order[1], Listed { name: "apply".into(), dev: false });
        assert_eq!(order[2], Listed { name: "testkit".into(), dev: true });
        assert_eq!(super::order("no block"), None);
    }

    #[test]
    fn an_arrow_may_point_up_only() {
        assert!(judged(&[("apply", "base", false)]).is_empty());
        assert_eq!(
            judged(&[("base", "apply", false)]),
            ["base depends on apply, which does not stand above it"]
        );
        assert_eq!(judged(&[("base", "apply", true)]).len(), 1, "a test's arrow may not turn either");
    }

    #[test]
    fn the_product_needs_dev_crates_for_its_tests_only() {
        assert!(judged(&[("apply", "testkit", true)]).is_empty());
        assert_eq!(judged(&[("apply", "testkit", false)]).len(), 1);
    }

    #[test]
    fn the_list_and_the_workspace_name_the_same_crates() {
        let order = order(TEXT).unwrap();
        let complaints = judge(&order, &["base", "apply", "relay"].map(str::to_owned), &[]);
        assert_eq!(complaints.len(), 2, "{complaints:?}");
    }
}
