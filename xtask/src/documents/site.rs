//! The documents as a site: pages are put together in `target/site`, mdBook makes HTML of them, and
//! every link of that is followed.
//!
//! Pages are staged in the layout of the repository, so that links between them hold in the
//! repository and on the site alike. A link to any other file of the repository takes that file
//! along. The manual page is added as a page of its own.
//!
//! mdBook is a program of its own below `target/tools`, and not a dependency: as a library it would
//! bring a hundred crates into the build of every `cargo x`, and so into `make test`. It is
//! installed when the site is first built. Where it cannot be fetched, a line tells so and the site
//! is left out.

mod links;
mod manual;
mod pages;
mod tools;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::{metadata, succeeds};
use crate::passed::Inputs;

pub(super) use pages::{SUMMARY, resolved};

/// Builds the site and follows its links; whether all is in order. `program` prints the manual.
/// With `check_only`, a site that has passed elsewhere is not built here for the first time.
pub(super) fn build(program: &Path, check_only: bool) -> Result<bool> {
    let root = testkit::workspace_dir();
    let missing = pages::missing(root)?;
    missing.iter().for_each(|page| eprintln!("docs: {page} is not in {SUMMARY}"));
    let target = target_dir()?;
    let (site, tools) = (target.join("site"), target.join("tools"));
    if site.exists() {
        std::fs::remove_dir_all(&site).with_context(|| format!("removing {}", site.display()))?;
    }
    pages::stage(root, &site.join("src"))?;
    std::fs::write(site.join("src").join(pages::MANUAL), manual::page(program)?)?;
    std::fs::copy(root.join("book.toml"), site.join("book.toml"))?;
    let inputs = inputs(&site)?;
    if check_only && !tools::has_mdbook(&tools) && inputs.have_passed()? {
        println!("docs: the site was not built: mdBook is not there, and built the same elsewhere");
        return Ok(missing.is_empty());
    }
    let Some(tools) = tools::fetch(&tools)? else {
        println!("docs: the site was not built, its tools could not be fetched");
        return Ok(missing.is_empty());
    };
    if let Some(mermaid) = &tools.mermaid {
        std::fs::copy(mermaid, site.join("src/mermaid.min.js"))?;
    }
    let mut mdbook = Command::new(&tools.mdbook);
    mdbook.arg("build").arg(&site).env("MDBOOK_LOG", "warn");
    if !succeeds(&mut mdbook)? {
        return Ok(false);
    }
    let book = site.join("book");
    let broken = links::broken(&book)?;
    broken.iter().for_each(|link| eprintln!("docs: {link}"));
    println!("docs: the site is in {}", book.display());
    Ok(missing.is_empty() && broken.is_empty() && inputs.pass(check_only, "cargo x docs")?)
}

/// All that the site is made of.
fn inputs(site: &Path) -> Result<Inputs> {
    let mut inputs = Inputs::new("site", tools::MDBOOK);
    inputs.add("book.toml", &site.join("book.toml"))?;
    let (mut dirs, mut files) = (vec![site.join("src")], Vec::new());
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.is_dir() { dirs.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    for file in files {
        inputs.add(&file.strip_prefix(site)?.to_string_lossy(), &file)?;
    }
    Ok(inputs)
}

fn target_dir() -> Result<PathBuf> {
    metadata()?["target_directory"].as_str().map(PathBuf::from).context("no target directory")
}
