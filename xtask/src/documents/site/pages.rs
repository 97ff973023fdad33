//! Which pages the site has, and how they get from the repository into its source.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

/// The table of contents, whose links are relative to its own directory.
pub(in crate::documents) const SUMMARY: &str = "docs/SUMMARY.md";

/// The manual page for `man`, and in its place a page of the site.
const ROFF: &str = "docs/pgsluice.1";
pub(super) const MANUAL: &str = "docs/manual.md";

/// Pages at the repository's root.
const AT_ROOT: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];

/// Pages that the table of contents does not have.
pub(super) fn missing(root: &Path) -> Result<Vec<String>> {
    let summary = std::fs::read_to_string(root.join(SUMMARY)).context(SUMMARY)?;
    let listed: BTreeSet<String> =
        links(&summary).map(|link| text_of(&resolved(Path::new("docs"), link))).collect();
    let is_page = |path: &&String| path.ends_with(".md") && *path != SUMMARY;
    Ok(files(root)?.iter().filter(is_page).filter(|path| !listed.contains(*path)).cloned().collect())
}

/// Copies all pages, and the files that they link to, to `source`.
pub(super) fn stage(root: &Path, source: &Path) -> Result<()> {
    let mut staged = files(root)?;
    for page in staged.clone().iter().filter(|path| path.ends_with(".md")) {
        let text = std::fs::read_to_string(root.join(page)).with_context(|| page.clone())?;
        let dir = Path::new(page).parent().unwrap_or(Path::new(""));
        let linked = links(&text).map(|link| text_of(&resolved(dir, link)));
        staged.extend(linked.filter(|path| root.join(path).is_file()));
    }
    for path in &staged {
        let (from, to) = (root.join(path), source.join(path));
        std::fs::create_dir_all(to.parent().unwrap_or(source))?;
        std::fs::copy(&from, &to).with_context(|| format!("copying {path}"))?;
        if path.ends_with(".md") {
            std::fs::write(&to, with_indexes(&std::fs::read_to_string(from)?))?;
        }
    }
    let summary = std::fs::read_to_string(root.join(SUMMARY)).context(SUMMARY)?;
    std::fs::write(source.join("SUMMARY.md"), from_root(&summary))?;
    // In its own place it would be a page.
    std::fs::remove_file(source.join(SUMMARY)).context(SUMMARY)
}

/// A page whose links to a README lead to what mdBook makes of it: the index of its directory.
fn with_indexes(text: &str) -> String {
    let mut parts = text.split("](");
    let mut done = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find([')', '#', ' ']).unwrap_or(part.len());
        let (link, after) = part.split_at(end);
        let is_local = !link.contains("://");
        let link = link.strip_suffix("README.md").filter(|_| is_local).map(|dir| format!("{dir}index.md"));
        done.push_str("](");
        done.push_str(&link.unwrap_or_else(|| part[..end].to_owned()));
        done.push_str(after);
    }
    done
}

/// Pages, and all of docs/, from the root.
fn files(root: &Path) -> Result<BTreeSet<String>> {
    let mut files: BTreeSet<String> = AT_ROOT.iter().map(|path| (*path).to_owned()).collect();
    collect(root, Path::new("docs"), &mut files)?;
    for entry in std::fs::read_dir(root.join("crates"))? {
        let dir = Path::new("crates").join(entry?.file_name());
        for entry in std::fs::read_dir(root.join(&dir))? {
            let path = dir.join(entry?.file_name());
            files.extend(path.extension().is_some_and(|end| end == "md").then(|| text_of(&path)));
        }
    }
    Ok(files)
}

/// Adds every file under `dir`, except recorded runs, which only programs read.
fn collect(root: &Path, dir: &Path, files: &mut BTreeSet<String>) -> Result<()> {
    for entry in std::fs::read_dir(root.join(dir)).with_context(|| format!("reading {}", dir.display()))? {
        let entry = entry?;
        let path = dir.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            collect(root, &path, files)?;
        } else if path.extension().is_none_or(|end| end != "jsonl") {
            files.insert(text_of(&path));
        }
    }
    Ok(())
}

/// The table of contents as it must be at the root: without comments, and with links from there.
fn from_root(summary: &str) -> String {
    let mut text = String::new();
    for line in summary.lines().filter(|line| !line.starts_with("<!--")) {
        match line.split_once("](") {
            Some((before, rest)) => {
                let (link, after) = rest.split_once(')').unwrap_or((rest, ""));
                let path = match text_of(&resolved(Path::new("docs"), link)) {
                    path if path == ROFF => MANUAL.to_owned(),
                    path => path,
                };
                text.push_str(&format!("{before}]({path}){after}"));
            }
            None => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

/// The files that links of a page of Markdown name, without headings.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let paths = targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:"));
    paths.filter_map(|target| target.split('#').next()).filter(|path| !path.is_empty())
}

/// Where `link` leads from `dir`, from the root.
pub(in crate::documents) fn resolved(dir: &Path, link: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for component in dir.join(link).components() {
        match component {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

fn text_of(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_contents_moves_to_the_root() {
        let summary =
            "# Summary\n<!-- begin:x -->\n- [a](a.md)\n  - [b](../crates/b/README.md)\n- [c](pgsluice.1)\n";
        let moved = "# Summary\n- [a](docs/a.md)\n  - [b](crates/b/README.md)\n- [c](docs/manual.md)\n";
        assert_eq!(from_root(summary), moved);
    }

    #[test]
    fn a_readme_is_an_index() {
        let text = "[a](b/README.md#c), [d](README.md), [e](https://example.org/README.md), README.md";
        let there = "[a](b/index.md#c), [d](index.md), [e](https://example.org/README.md), README.md";
        assert_eq!(with_indexes(text), there);
    }

    #[test]
    fn links_are_found_and_resolved() {
        let text = "[a](../b.md#c) [d](https://example.org/e.md) [f](#g) ![h](i.svg)";
        let found: Vec<String> =
            links(text).map(|link| text_of(&resolved(Path::new("docs/x"), link))).collect();
        assert_eq!(found, ["docs/b.md", "docs/x/i.svg"]);
    }
}
