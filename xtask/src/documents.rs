//! Documents that are generated: references printed by the program, figures from recorded runs,
//! numbers of lines in links to the code, names of types, and the site of all documents.
//!
//! `cargo x docs` writes them; `cargo x docs --check` only says which are out of date. Both build
//! the site below `target/` and follow its links. On a machine without mdBook, `--check` leaves out
//! a site that was built elsewhere.

mod anchors;
mod catchup;
mod marked;
mod names;
mod records;
mod site;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::{Profile, build_pgsluice};
use crate::tidy;
use records::Records;

/// Arguments of the program, and the file that holds what it then prints.
const REFERENCES: [(&[&str], &str); 3] = [
    (&["config-reference"], "docs/configuration.md"),
    (&["error-reference"], "docs/errors.md"),
    (&["man"], "docs/pgsluice.1"),
];

/// Has a table of the types that several crates have under one name.
const GLOSSARY: &str = "docs/glossary.md";

/// Where benchmarks record their runs.
const RECORDS: &str = "docs/benchmarks";

/// Writes the documents, or with `check_only` says which are out of date; whether all is in order.
pub(crate) fn run(check_only: bool) -> Result<bool> {
    let mut fine = anchors::run(check_only)?;
    let program = build_pgsluice(Profile::Dev, &[])?;
    for (arguments, path) in REFERENCES {
        fine &= keep(path, &output(&program, arguments)?, check_only)?;
    }
    let records = Records::read(&testkit::workspace_dir().join(RECORDS))?;
    fine &= keep(catchup::CHART, &catchup::chart(&records)?, check_only)?;
    fine &= keep("README.md", &readme(&records)?, check_only)?;
    fine &= keep(site::SUMMARY, &summary()?, check_only)?;
    fine &= keep(GLOSSARY, &glossary()?, check_only)?;
    fine &= site::build(&program, check_only)?;
    Ok(fine)
}

/// The glossary with the types that several crates have under one name.
fn glossary() -> Result<String> {
    let root = testkit::workspace_dir();
    let text = std::fs::read_to_string(root.join(GLOSSARY)).context(GLOSSARY)?;
    marked::with_block(&text, "names", &names::table(&tidy::files()?)?)
}

/// The table of contents with the decisions that are recorded.
fn summary() -> Result<String> {
    let root = testkit::workspace_dir();
    let text = std::fs::read_to_string(root.join(site::SUMMARY)).context(site::SUMMARY)?;
    marked::with_block(&text, "decisions", &decisions(&root.join("docs/decisions"))?)
}

/// An entry for each decision in `dir`, with its title; nothing if there is none.
fn decisions(dir: &Path) -> Result<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(String::new()) };
    let mut records = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") && name != "README.md" {
            let text = std::fs::read_to_string(dir.join(&name))?;
            let title = text.lines().next().unwrap_or_default().trim_start_matches("# ").to_owned();
            records.push(format!("  - [{title}](decisions/{name})\n"));
        }
    }
    records.sort_by(|one, other| one.split("](").nth(1).cmp(&other.split("](").nth(1)));
    Ok(format!("- [Decisions](decisions/README.md)\n{}", records.concat()))
}

/// The README with its figures as they are recorded.
fn readme(records: &Records) -> Result<String> {
    let text = std::fs::read_to_string(testkit::workspace_dir().join("README.md"))?;
    let text = marked::with_block(&text, "catchup", &catchup::block(records)?)?;
    marked::with_figures(&text, records).context("in README.md")
}

/// Writes `text` to the file at `path`, or with `check_only` says that it differs; whether it is as
/// it should be.
fn keep(path: &str, text: &str, check_only: bool) -> Result<bool> {
    let file = testkit::workspace_dir().join(path);
    if std::fs::read_to_string(&file).is_ok_and(|old| old == text) {
        return Ok(true);
    }
    if check_only {
        eprintln!("docs: {path} is out of date: run `cargo x docs`");
        return Ok(false);
    }
    std::fs::write(&file, text).with_context(|| format!("writing {path}"))?;
    println!("wrote {path}");
    Ok(true)
}

/// What the program prints; the environment must not show in a document.
fn output(program: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name);
    }
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    ensure!(
        output.status.success(),
        "pgsluice {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    String::from_utf8(output.stdout).context("a document is UTF-8")
}
