//! Places from which decoding of one database can begin again.
//!
//! ```text
//! WAL  ----A--------E-----------confirmed---->
//!          |        '- everything that was met before A has ended, and was read
//!          '- the catalogs as they were here, in a file
//! ```
//! A slot begins again at the greatest A whose E was confirmed. Every transaction that began
//! before A has ended before E, so it was confirmed as a whole, and no older catalogs are needed
//! (rule L2).
//!
//! A file is durable before anybody may name its place, and goes only when no slot names it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base::{Lsn, Xid};
use catalog::Catalog;
use output::Place;

const ENDING: &str = ".catalog";
/// Behind the name of a file that was not written to its end ([`catalog::replace_file`]).
const UNFINISHED: &str = ".new";

/// The anchors of one database.
#[derive(Debug)]
pub struct Anchors {
    dir: PathBuf,
    /// An anchor is made after this much WAL.
    distance: u64,
    /// By A, the E.
    known: BTreeMap<Lsn, Lsn>,
    candidate: Option<Candidate>,
}

/// Catalogs that become an anchor when the transactions before them have ended.
#[derive(Debug)]
struct Candidate {
    catalog: Vec<u8>,
    at: Lsn,
    /// The last record before, and the newest transaction that was met up to there.
    last: Lsn,
    newest: Xid,
}

impl Anchors {
    /// Finds the anchors in `dir`, which is made if there is none. New ones come after `distance`
    /// bytes of WAL.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn open(dir: &Path, distance: u64) -> io::Result<Anchors> {
        fs::create_dir_all(dir)?;
        let mut known = BTreeMap::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if let Some((at, end)) = parse(name) {
                known.insert(at, end);
            } else if name.ends_with(UNFINISHED) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(Anchors { dir: dir.to_owned(), distance, known, candidate: None })
    }

    /// Keeps the catalogs of a fresh look. A slot may begin there that has confirmed `end`: the
    /// look has seen what ended before.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, catalog: &Catalog, end: Lsn) -> io::Result<Lsn> {
        let at = catalog.needs_from();
        self.keep(at, end, &catalog.to_bytes())?;
        Ok(at)
    }

    /// Looks at where decoding is, and keeps an anchor if it is time for one. Returns its A.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn look(&mut self, place: Place<'_>) -> io::Result<Option<Lsn>> {
        let Some(candidate) = &self.candidate else {
            let at = place.catalog.needs_from();
            let newest = self.known.last_key_value().map_or(Lsn::INVALID, |(at, _)| *at);
            // Decoding that began at an anchor has not met what only had records before it. Up to
            // that anchor's end, such a transaction may be open.
            let has_met_all = self.greatest().is_none_or(|end| place.decoded >= end);
            let is_far = at.as_u64().saturating_sub(newest.as_u64()) >= self.distance;
            if is_far && has_met_all && place.catalog.is_past_look() {
                let (last, newest) = (place.catalog.last(), place.newest);
                self.candidate = Some(Candidate { catalog: place.catalog.to_bytes(), at, last, newest });
            }
            return Ok(None);
        };
        if !place.running.is_some_and(|running| running.have_ended(candidate.last, candidate.newest)) {
            return Ok(None);
        }
        let Some(Candidate { catalog, at, .. }) = self.candidate.take() else { return Ok(None) };
        self.keep(at, place.decoded, &catalog)?;
        Ok(Some(at))
    }

    fn keep(&mut self, at: Lsn, end: Lsn, catalog: &[u8]) -> io::Result<()> {
        let path = self.path(at, end);
        if let Err(error) = catalog::replace_file(&path, catalog) {
            // No other attempt has this name, and there may be no room.
            let _ = fs::remove_file(path.with_extension(format!("{}{UNFINISHED}", &ENDING[1..])));
            return Err(error);
        }
        self.known.insert(at, end);
        Ok(())
    }

    /// Where a slot begins again that has confirmed everything before `confirmed`.
    #[must_use]
    pub fn restart_of(&self, confirmed: Lsn) -> Option<Lsn> {
        self.known.iter().rev().find(|(_, end)| **end <= confirmed).map(|(at, _)| *at)
    }

    /// The catalogs at an anchor.
    ///
    /// # Errors
    /// There is no such anchor, or its file is damaged.
    pub fn load(&self, at: Lsn) -> Result<Catalog, catalog::Error> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("no catalogs are kept of {at}"));
        let end = self.known.get(&at).ok_or_else(missing)?;
        Catalog::open(&self.path(at, *end))
    }

    /// Removes anchors before `least`, the least that a slot names. The greatest anchor stays, for
    /// slots to come.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove_before(&mut self, least: Lsn) -> io::Result<()> {
        let last = self.known.last_key_value().map(|(at, _)| *at);
        while let Some((&at, &end)) = self.known.first_key_value()
            && at < least
            && Some(at) != last
        {
            fs::remove_file(self.path(at, end))?;
            self.known.remove(&at);
        }
        Ok(())
    }

    /// Removes those that know of WAL behind `fork`, which is not the publisher's any more.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove_behind(&mut self, fork: Lsn) -> io::Result<()> {
        self.candidate = None;
        let gone: Vec<(Lsn, Lsn)> =
            self.known.iter().filter(|(_, end)| **end > fork).map(|(at, end)| (*at, *end)).collect();
        for (at, end) in gone {
            fs::remove_file(self.path(at, end))?;
            self.known.remove(&at);
        }
        Ok(())
    }

    /// The greatest place up to which an anchor needs WAL.
    #[must_use]
    pub(crate) fn greatest(&self) -> Option<Lsn> {
        self.known.values().max().copied()
    }

    /// Removes all of them: no slot names any.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove_all(&mut self) -> io::Result<()> {
        self.candidate = None;
        while let Some((&at, &end)) = self.known.first_key_value() {
            fs::remove_file(self.path(at, end))?;
            self.known.remove(&at);
        }
        Ok(())
    }

    /// The least place from which WAL is needed for any of them.
    #[must_use]
    pub fn least(&self) -> Option<Lsn> {
        self.known.first_key_value().map(|(at, _)| *at)
    }

    fn path(&self, at: Lsn, end: Lsn) -> PathBuf {
        self.dir.join(format!("{:016X}-{:016X}{ENDING}", at.as_u64(), end.as_u64()))
    }
}

/// A and E of a file's name.
fn parse(name: &str) -> Option<(Lsn, Lsn)> {
    let (at, end) = name.strip_suffix(ENDING)?.split_once('-')?;
    let lsn = |text: &str| u64::from_str_radix(text, 16).ok().map(Lsn::new);
    Some((lsn(at)?, lsn(end)?))
}
