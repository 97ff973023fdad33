//! Which file of a crate uses which other one.
//!
//! Handed is a crate's `src` directory. It gives the files, and an arrow from each file to each
//! other one that it names in a path: `use crate::plan::Plan`, `super::fold::fold(..)`, or
//! `child::f()` in the parent of `child`.
//!
//! - A name that a module only imports or exports again leads to the file where it is defined.
//! - Exporting again (`pub use`) is no use: a module that is a table of contents has no arrow to
//!   its chapters.
//! - `mod x;` is no use either. Nor is what stands behind `#[cfg(test)]`.
//! - Calls of methods are not seen: a type that is implemented in several files is one thing in
//!   several files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// How often a name may be imported from a module that imports it itself.
const IMPORTS_MAX: usize = 12;

/// A module's or an item's place in the crate, from the root.
type Names = Vec<String>;

/// The files of a crate, named by their paths in `src` without `.rs`, and what each uses.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub(crate) names: Vec<String>,
    pub(crate) uses: BTreeSet<(usize, usize)>,
}

/// One name that a module imports.
struct Import {
    path: Names,
    /// What it is called in the module; `None` for `*`.
    name: Option<String>,
}

#[derive(Default)]
struct Module {
    file: usize,
    children: BTreeSet<String>,
    imports: Vec<Import>,
}

/// The crate while it is read.
#[derive(Default)]
struct Reading {
    names: Vec<String>,
    modules: BTreeMap<Names, Module>,
    /// Paths that are used, each with the module in which it stands.
    used: Vec<(Names, Names)>,
    /// Files to read: the module, and its file.
    pending: Vec<(Names, PathBuf)>,
}

/// Reads the crate whose sources are in `src`.
pub(crate) fn read(src: &Path) -> Result<Files> {
    let mut files = Files::default();
    for root in ["lib.rs", "main.rs"].map(|name| src.join(name)).into_iter().filter(|root| root.exists()) {
        let mut reading = Reading { names: std::mem::take(&mut files.names), ..Reading::default() };
        reading.pending.push((Vec::new(), root));
        while let Some((module, file)) = reading.pending.pop() {
            reading.file(src, module, &file)?;
        }
        files.uses.extend(reading.arrows());
        files.names = reading.names;
    }
    Ok(files)
}

impl Reading {
    fn file(&mut self, src: &Path, module: Names, file: &Path) -> Result<()> {
        let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let tokens: TokenStream = text.parse().map_err(|error| anyhow!("{}: {error}", file.display()))?;
        let name = file.strip_prefix(src)?.with_extension("");
        self.names.push(name.to_string_lossy().into_owned());
        let own = Module { file: self.names.len() - 1, ..Module::default() };
        self.modules.insert(module.clone(), own);
        self.scan(tokens, &module);
        // Where the files of its modules are: beside a root or `mod.rs`, else in a directory of its
        // name.
        let is_root = module.is_empty() || file.ends_with("mod.rs");
        let dir = if is_root { file.parent().unwrap_or(src).to_owned() } else { file.with_extension("") };
        for child in self.modules[&module].children.clone() {
            let below = [module.clone(), vec![child.clone()]].concat();
            let candidates = [dir.join(format!("{child}.rs")), dir.join(&child).join("mod.rs")];
            if let Some(file) = candidates.into_iter().find(|file| file.exists()) {
                self.pending.push((below, file));
            }
        }
        Ok(())
    }

    /// Reads what stands in a module: its children, imports, and the paths that it uses.
    fn scan(&mut self, tokens: TokenStream, module: &Names) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            at = match &tokens[at] {
                TokenTree::Punct(punct) if punct.as_char() == '#' => attribute(&tokens, at),
                TokenTree::Ident(word) if word == "mod" => self.child(&tokens, at, module),
                TokenTree::Ident(word) if word == "use" => self.import(&tokens, at, module),
                // `pub(in crate::x)` names a module and uses nothing of it.
                TokenTree::Ident(word) if word == "pub" => {
                    at + 1 + usize::from(is_group(tokens.get(at + 1), Delimiter::Parenthesis))
                }
                TokenTree::Ident(_) => {
                    let (path, next) = path(&tokens, at);
                    // `::a::b` is of another crate, and so may be what stands behind `<T>::`.
                    let is_rest = at > 0
                        && is_punct(tokens.get(at - 1), ':')
                        && is_punct(tokens.get(at.wrapping_sub(2)), ':');
                    if path.len() > 1 && !is_rest {
                        self.used.push((module.clone(), path));
                    }
                    next
                }
                TokenTree::Group(group) => {
                    self.scan(group.stream(), module);
                    at + 1
                }
                _ => at + 1,
            };
        }
    }

    /// `mod x;` or `mod x { .. }`; gives the place behind it.
    fn child(&mut self, tokens: &[TokenTree], at: usize, module: &Names) -> usize {
        let Some(TokenTree::Ident(name)) = tokens.get(at + 1) else { return at + 1 };
        let file = self.modules[module].file;
        if let Some(own) = self.modules.get_mut(module) {
            own.children.insert(name.to_string());
        }
        if let Some(TokenTree::Group(body)) = tokens.get(at + 2) {
            let below = [module.clone(), vec![name.to_string()]].concat();
            self.modules.insert(below.clone(), Module { file, ..Module::default() });
            self.scan(body.stream(), &below);
        }
        at + 3
    }

    /// `use a::{b, c as d};`; gives the place behind it.
    fn import(&mut self, tokens: &[TokenTree], at: usize, module: &Names) -> usize {
        let rest = &tokens[at + 1..];
        let length = rest.iter().position(|token| is_punct(Some(token), ';')).unwrap_or(rest.len());
        let mut imports = Vec::new();
        tree(&rest[..length], &Vec::new(), &mut imports);
        let before = at.checked_sub(1).map(|before| &tokens[before]);
        let is_exported = match before {
            Some(TokenTree::Ident(word)) => word == "pub",
            Some(token) => is_group(Some(token), Delimiter::Parenthesis),
            None => false,
        };
        if !is_exported {
            self.used.extend(imports.iter().map(|import| (module.clone(), import.path.clone())));
        }
        if let Some(own) = self.modules.get_mut(module) {
            own.imports.append(&mut imports);
        }
        at + 1 + length
    }

    fn arrows(&self) -> BTreeSet<(usize, usize)> {
        let arrow = |(module, path): &(Names, Names)| {
            let from = self.modules[module].file;
            let to = self.leads(module, path, IMPORTS_MAX)?;
            (from != to).then_some((from, to))
        };
        self.used.iter().filter_map(arrow).collect()
    }

    /// The file in which a path that stands in `module` is defined, if it is one of this crate.
    fn leads(&self, module: &Names, path: &[String], imports_left: usize) -> Option<usize> {
        let mut place = module.clone();
        let mut rest = path;
        let mut is_first = true;
        while let Some((name, behind)) = rest.split_first() {
            match name.as_str() {
                "crate" => place.clear(),
                "self" => {}
                "super" => drop(place.pop()?),
                name if self.modules.get(&place)?.children.contains(name) => place.push(name.to_owned()),
                // Another crate, or a name of this file, which needs no arrow.
                _ if is_first => return None,
                name => {
                    let module = self.modules.get(&place)?;
                    let is_named = |import: &&Import| import.name.as_deref() == Some(name);
                    let Some(import) = module.imports.iter().find(is_named) else { break };
                    let path = [import.path.as_slice(), behind].concat();
                    return self.leads(&place, &path, imports_left.checked_sub(1)?);
                }
            }
            is_first = false;
            rest = behind;
        }
        self.modules.get(&place).map(|module| module.file)
    }
}

/// The place behind an attribute, and behind the item if it is only for tests.
fn attribute(tokens: &[TokenTree], at: usize) -> usize {
    let group = at + 1 + usize::from(is_punct(tokens.get(at + 1), '!'));
    let Some(TokenTree::Group(body)) = tokens.get(group) else { return at + 1 };
    let text = body.stream().to_string().replace(' ', "");
    let is_test = text.starts_with("cfg(") && text.contains("test") && !text.contains("not(test");
    if !is_test {
        return group + 1;
    }
    let ends = |token: &TokenTree| is_punct(Some(token), ';') || is_group(Some(token), Delimiter::Brace);
    let length = tokens[group + 1..].iter().position(ends);
    length.map_or(tokens.len(), |length| group + 2 + length)
}

/// `a::b::c` from `at` on, and the place behind it.
fn path(tokens: &[TokenTree], mut at: usize) -> (Names, usize) {
    let mut names = Vec::new();
    while let Some(TokenTree::Ident(name)) = tokens.get(at) {
        names.push(name.to_string());
        at += 1;
        if !(is_punct(tokens.get(at), ':') && is_punct(tokens.get(at + 1), ':')) {
            break;
        }
        at += 2;
    }
    (names, at)
}

/// What a tree of `use` imports.
fn tree(tokens: &[TokenTree], before: &Names, imports: &mut Vec<Import>) {
    let (names, at) = path(tokens, 0);
    let is_self = names.last().is_some_and(|name| name == "self") && !before.is_empty();
    let own = if is_self { &names[..names.len() - 1] } else { &names[..] };
    let path = [before.as_slice(), own].concat();
    match tokens.get(at) {
        Some(TokenTree::Group(group)) => {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            for part in inner.split(|token| is_punct(Some(token), ',')).filter(|part| !part.is_empty()) {
                tree(part, &path, imports);
            }
        }
        Some(TokenTree::Punct(_)) => imports.push(Import { path, name: None }),
        // `as d`
        Some(_) => imports.push(Import { path, name: tokens.get(at + 1).map(TokenTree::to_string) }),
        None => imports.push(Import { name: path.last().cloned(), path }),
    }
}

fn is_punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

fn is_group(token: Option<&TokenTree>, wanted: Delimiter) -> bool {
    matches!(token, Some(TokenTree::Group(group)) if group.delimiter() == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrows(files: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let file = dir.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let files = read(dir.path()).unwrap();
        let mut arrows: Vec<String> = files
            .uses
            .iter()
            .map(|&(from, to)| format!("{} {}", files.names[from], files.names[to]))
            .collect();
        arrows.sort();
        arrows
    }

    #[test]
    fn paths_lead_to_files() {
        let lib = "mod a; mod b; pub use b::B;";
        let b = "//! use crate::a;\npub struct B; fn f(x: std::fmt::Error) { Vec::new() }";
        let used =
            |a: &str| arrows(&[("lib.rs", lib), ("a.rs", a), ("b.rs", b), ("a/c.rs", "pub fn f() {}")]);
        assert!(used("mod c; pub use c::f;").is_empty(), "exporting again is no use");
        assert_eq!(used("use crate::b::{self, B as X};"), ["a b"]);
        assert_eq!(used("use crate::B;"), ["a b"], "through the root");
        assert_eq!(used("fn g() { println!(\"{}\", crate::b::B) }"), ["a b"], "inside a macro");
        assert_eq!(used("mod c; fn g() { c::f() }"), ["a a/c"]);
        assert_eq!(used("use super::*;"), ["a lib"]);
        assert!(used("mod c; fn g() { ::c::f() }").is_empty(), "another crate");
        assert!(used("use std::fmt; pub(in crate::b) struct X;").is_empty());
        assert!(used("#[cfg(test)] mod tests { use crate::b::B; }").is_empty());
        assert!(used("#[cfg(test)] use crate::b::B; struct X;").is_empty());
        assert_eq!(used("mod inner { use super::super::b::B; }"), ["a b"]);
    }

    #[test]
    fn a_child_that_uses_its_parents_imports_uses_their_files() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "mod c; use crate::b::B; struct A;"),
            ("b.rs", "pub struct B;"),
        ];
        let used = |c: &str| arrows(&[&files[..], &[("a/c.rs", c)]].concat());
        assert_eq!(used("use super::B;"), ["a b", "a/c b"]);
        assert_eq!(used("use super::A;"), ["a b", "a/c a"]);
    }
}
