//! What a relay's directory must hold at every moment (rule L2), read from its files.
//!
//! A slot's file names an anchor A and a confirmed position. Then the anchor is there with an E at
//! or before that position, and so is the WAL from A on. The confirmed position never falls. Where
//! the relay runs, a slot counts only if its file says the same before and after the look.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use base::Lsn;
use catalog::Catalog;
use serde_json::Value;

/// The size of a segment in tests.
const SEGMENT: u64 = 16 << 20;

/// Looks at one directory again and again.
pub(crate) struct Kept {
    dir: PathBuf,
    confirmed: HashMap<String, Lsn>,
    /// Slots that were looked at.
    pub(crate) looks: u64,
}

/// What a slot's file says.
#[derive(Debug, Clone, PartialEq)]
struct Slot {
    name: String,
    database: u64,
    confirmed: Lsn,
    restart: Lsn,
}

impl Slot {
    fn read(path: &Path) -> Option<Slot> {
        let state: Value = serde_json::from_slice(&fs::read(path).ok()?).expect("a slot's file is whole");
        let text = |key: &str| state[key].as_str().expect("a text").to_owned();
        let lsn = |key: &str| text(key).parse().expect("a position");
        Some(Slot {
            name: text("name"),
            database: state["database"].as_u64().expect("a number"),
            confirmed: lsn("confirmed"),
            restart: lsn("restart"),
        })
    }
}

impl Kept {
    pub(crate) fn new(dir: &Path) -> Kept {
        Kept { dir: dir.to_owned(), confirmed: HashMap::new(), looks: 0 }
    }

    /// Looks at all slots of a relay that may be running.
    pub(crate) fn look(&mut self) -> Result<(), String> {
        for path in files(&self.dir.join("slots")).into_iter().filter(|path| ends_with(path, "json")) {
            let Some(slot) = Slot::read(&path) else { continue };
            let anchor = self.anchor(&slot);
            let oldest = self.oldest_segment();
            if Slot::read(&path).as_ref() != Some(&slot) {
                continue;
            }
            self.looks += 1;
            let Slot { name, confirmed, restart, .. } = &slot;
            if anchor.is_none() {
                return Err(format!("slot {name} at {confirmed} names {restart}, where no anchor is"));
            }
            if oldest.is_none_or(|oldest| oldest > restart.as_u64() / SEGMENT) {
                return Err(format!("slot {name} names {restart}, whose WAL is gone: segment {oldest:?}"));
            }
            let before = self.confirmed.insert(name.clone(), *confirmed);
            if before.is_some_and(|before| before > *confirmed) {
                return Err(format!("slot {name} fell from {before:?} to {confirmed}"));
            }
        }
        Ok(())
    }

    /// Looks at all slots of a relay that was killed. Its anchors can be read, too.
    pub(crate) fn look_when_down(&mut self) -> Result<(), String> {
        self.look()?;
        for path in files(&self.dir.join("slots")).into_iter().filter(|path| ends_with(path, "json")) {
            let Some(slot) = Slot::read(&path) else { continue };
            let anchor = self.anchor(&slot).expect("it was there");
            if let Err(error) = Catalog::open(&anchor) {
                return Err(format!("slot {} names {}: {error}", slot.name, anchor.display()));
            }
        }
        Ok(())
    }

    /// The file of the anchor that a slot names.
    fn anchor(&self, slot: &Slot) -> Option<PathBuf> {
        let dir = self.dir.join("anchors").join(slot.database.to_string());
        files(&dir)
            .into_iter()
            .find(|path| places(path).is_some_and(|(at, end)| at == slot.restart && end <= slot.confirmed))
    }

    /// The number of the oldest segment.
    pub(crate) fn oldest_segment(&self) -> Option<u64> {
        files(&self.dir.join("wal")).iter().filter_map(|path| segment(path)).min()
    }

    /// The least A of all anchors.
    pub(crate) fn least_anchor(&self) -> Option<Lsn> {
        let dirs = files(&self.dir.join("anchors"));
        dirs.iter().flat_map(|dir| files(dir)).filter_map(|path| places(&path)).map(|(at, _)| at).min()
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

fn ends_with(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|own| own == ending)
}

/// A and E, of which the name of an anchor's file consists.
fn places(path: &Path) -> Option<(Lsn, Lsn)> {
    let (at, end) = path.file_name()?.to_str()?.strip_suffix(".catalog")?.split_once('-')?;
    let lsn = |text: &str| u64::from_str_radix(text, 16).ok().map(Lsn::new);
    Some((lsn(at)?, lsn(end)?))
}

/// The number of a segment, whole or partial.
fn segment(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_suffix(".partial").unwrap_or(name);
    if name.len() != 24 {
        return None;
    }
    let number = |range| u64::from_str_radix(name.get(range)?, 16).ok();
    Some(number(8..16)? * 256 + number(16..24)?)
}
