//! Follows every link of the built site: to files, and to headings of pages.
//!
//! Other sites are not asked. But a script or picture must come from the site itself, so
//! that reading it tells nobody else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Links of the site in `book` that lead nowhere, or load something from elsewhere.
pub(super) fn broken(book: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    collect(book, book, &mut pages)?;
    let mut complaints = Vec::new();
    for (path, text) in &pages {
        // It is served for any address, so its links are from the root.
        if path == Path::new("404.html") {
            continue;
        }
        for link in attributes(text, "href").chain(attributes(text, "src")) {
            if !leads(book, &pages, path, link) {
                complaints.push(format!("{}: the link to {link} leads nowhere", path.display()));
            }
        }
        let loaded = attributes(text, "src").filter(|address| is_elsewhere(address));
        complaints.extend(loaded.map(|address| format!("{} loads {address}", path.display())));
    }
    complaints.sort();
    complaints.dedup();
    Ok(complaints)
}

fn collect(book: &Path, dir: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(book, &path, pages)?;
        } else if path.extension().is_some_and(|end| end == "html") {
            let own = path.strip_prefix(book).expect("it is below").to_owned();
            pages.insert(own, std::fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

/// The values of an attribute of HTML, as mdBook writes it.
fn attributes<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!(" {name}=\"");
    let mut rest = text;
    std::iter::from_fn(move || {
        let at = rest.find(&begin)? + begin.len();
        let (value, after) = rest[at..].split_once('"')?;
        rest = after;
        Some(value)
    })
}

fn is_elsewhere(link: &str) -> bool {
    link.contains("://") || link.starts_with("//")
}

fn leads(book: &Path, pages: &BTreeMap<PathBuf, String>, from: &Path, link: &str) -> bool {
    if is_elsewhere(link) || ["mailto:", "data:", "javascript:"].iter().any(|scheme| link.starts_with(scheme))
    {
        return true;
    }
    let (path, heading) = link.split_once('#').unwrap_or((link, ""));
    let to = if path.is_empty() { from.to_owned() } else { joined(from, path) };
    match pages.get(&to) {
        Some(text) => heading.is_empty() || text.contains(&format!("id=\"{heading}\"")),
        None => book.join(&to).is_file(),
    }
}

/// `path` as seen from the page `from`.
fn joined(from: &Path, path: &str) -> PathBuf {
    let mut to: Vec<&str> = from.to_str().unwrap_or_default().split('/').collect();
    to.pop();
    for part in path.split('/') {
        match part {
            ".." => drop(to.pop()),
            "." | "" => {}
            name => to.push(name),
        }
    }
    to.iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_to_a_file_or_a_heading_or_nowhere() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("d")).expect("a directory");
        let page = "<a href=\"../b.html#here\"></a><a href=\"../b.html#there\"></a><a href=\"c.html\"></a>\
                    <a href=\"../e.rs#L3\"></a>\
                    <img src=\"https://example.org/x.png\">";
        std::fs::write(dir.path().join("d/a.html"), page).expect("written");
        std::fs::write(dir.path().join("e.rs"), "//! A line of code.\n").expect("written");
        std::fs::write(dir.path().join("b.html"), "<h1 id=\"here\">").expect("written");
        let found = broken(dir.path()).expect("read");
        assert_eq!(
            found,
            [
                "d/a.html loads https://example.org/x.png",
                "d/a.html: the link to ../b.html#there leads nowhere",
                "d/a.html: the link to c.html leads nowhere",
            ]
        );
    }
}
