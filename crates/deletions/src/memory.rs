//! The memory itself: tombstones in a window tree of the version store.
//!
//! Capture hands over deletions in the order in which their transactions committed, says how far it
//! has come, and has what is new committed every now and then. The applier asks about a row that
//! it has not found. The horizon says what nobody will ask for any more.
//!
//! ```text
//!                forgotten                     |  remembered         | not synced
//! ---------------------------------------------+---------------------+----------------+----> LSN
//!       horizon, or the cut if that is farther ^     last commit on disk ^     captured ^
//! ```
//!
//! Invariants:
//!
//! - Every deletion that committed between the floor (horizon or cut) and the captured position is
//!   there. An answer about an UPDATE whose deletion may lie outside of that says so.
//! - Nothing here waits for room (rule D4). Where a bound is met, the oldest tombstones are cut.
//! - What was forgotten is never remembered again as "not deleted": the greatest times of what the
//!   horizon passed, and of what was cut, are durable with it.
//!
//! It does not belong here where deletions come from, when the horizon may move
//! ([`crate::Horizon`]), and what an UPDATE without its row leads to.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::{Lsn, Oid, PgTimestamp};
use store::{Disk, FileDisk, Kind, Options, Store, Tree};

use crate::coverage::{Answer, Candidate, Cut, Forgotten, Landmark, Miss, Server};
use crate::deletion::{Deletion, Tombstone};
use crate::error::{Error, Result};
use crate::key::RowKey;
use crate::ledger::Entry;
use crate::marks::{Mark, Marks};

/// Memory for pages of the store: look-ups are rare, and writing needs the leaves of few tables.
const CACHE_BYTES: usize = 32 << 20;
/// Bytes that a tombstone takes in a page beside its key and value: the cell and its LSN.
const CELL_BYTES: usize = 14;
/// One over the share of the file's limit that tombstones may take. Pages are more than half full,
/// but garbage waits in them to be swept.
const FILL_SHARE: u64 = 2;
/// Of what a full memory holds, one over this share is kept. A cut of little would come again soon.
const KEPT_SHARE: u64 = 2;
/// A smaller file has no room for what a checkpoint writes beside the pages in use.
const SIZE_BYTES_MIN: u64 = 16 << 20;
/// How much WAL may pass without a deletion until a commit says where reading begins again.
const RESTART_BYTES: u64 = 16 << 20;

/// How much may be remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// `max_retention_duration`: older tombstones are cut.
    pub duration_max: Option<Duration>,
    /// `retention_size_max`: the store's file is never larger, but it may be 16 MB.
    pub size_bytes_max: Option<u64>,
}

/// What opening found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// No memory: capture may begin anywhere.
    New,
    /// A memory. It has no gap if capture hands over every transaction that commits behind
    /// `captured`, which reading WAL from `restart` on gives.
    Resumed {
        /// Everything that committed up to here is remembered.
        captured: Lsn,
        /// Where reading WAL must begin.
        restart: Lsn,
    },
    /// A memory that says nothing about this server. It was emptied.
    Discarded(Discarded),
}

/// Why a memory was emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discarded {
    /// It is of another cluster or database.
    OtherServer,
    /// The server has left the history that was captured: it failed over, or it was restored.
    OtherHistory,
    /// Its files are damaged, or of a version that is not known here.
    Damaged,
}

impl fmt::Display for Discarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Discarded::OtherServer => "it is of another cluster or database",
            Discarded::OtherHistory => "the server failed over or was restored since",
            Discarded::Damaged => "its files are damaged, or another version of pgsluice wrote them",
        })
    }
}

/// The two files of a memory.
#[derive(Debug, Clone)]
pub struct Disks {
    /// Its pages.
    pub data: Arc<dyn Disk>,
    /// Its log.
    pub log: Arc<dyn Disk>,
    /// Checkpoints run on a thread of their own.
    pub background: bool,
}

/// What is remembered, and what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Tombstones, the superseded ones of a row among them.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Size of the two files.
    pub file_bytes: u64,
    /// When the oldest tombstone was captured, by the clock of pgsluice's machine.
    pub oldest: Option<PgTimestamp>,
    /// How far capture has come.
    pub captured: Lsn,
    /// Deletions up to here are not needed any more.
    pub horizon: Lsn,
    /// What was cut, until the horizon has passed it.
    pub cut: Option<Cut>,
    /// Misses about which nothing is known because of a cut (`retention_exceeded`).
    pub retention_exceeded: u64,
    /// How often tombstones were cut to keep the bounds.
    pub cuts: u64,
    /// How often the horizon has passed a cut, so that everything is known again.
    pub resumed: u64,
    /// Deletions of our own origins, which are not kept.
    pub own: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Memory {
    store: Store,
    tombstones: Tree,
    ledger: Tree,
    server: Server,
    bounds: Bounds,
    own_origins: Vec<u16>,
    /// Whether capture has begun, and with it the answers.
    has_begun: bool,
    captured: Lsn,
    restart: Lsn,
    /// The last record of what was captured, as far as it is known.
    landmark: Option<Landmark>,
    /// It is not known whether this server's history is that of the memory.
    is_doubted: bool,
    forgotten: Forgotten,
    /// Something of `forgotten` is not on disk.
    is_unsaved: bool,
    marks: Marks,
    /// What was recorded since the last commit.
    open: Mark,
    /// The transaction that was recorded last.
    recorded: Lsn,
    /// The transaction in the middle of which the store was full.
    overflowed: Option<Lsn>,
    value: Vec<u8>,
    figures: Figures,
}

/// The tombstones that concern all rows of a table.
struct OfTable {
    table: Oid,
    emptied: Option<Tombstone>,
    unnamed: Option<Tombstone>,
}

/// Why the ledger does not say where to go on.
enum Unread {
    Useless(Discarded),
    Failed(store::Error),
}

impl From<store::Error> for Unread {
    fn from(error: store::Error) -> Unread {
        if error.is_damaged() { Unread::Useless(Discarded::Damaged) } else { Unread::Failed(error) }
    }
}

impl Memory {
    /// Opens the memory in the file `path`, with its log beside it; makes it if it is missing, and
    /// empties it if it says nothing about `server`.
    ///
    /// # Errors
    /// The disk's, and another process holds the files.
    pub fn open(path: &Path, server: Server, bounds: Bounds) -> Result<(Memory, Opened)> {
        let mut log = path.as_os_str().to_owned();
        log.push(".log");
        let open = |path: &Path| FileDisk::open(path).map_err(Error::disk("open its files"));
        let disks =
            Disks { data: Arc::new(open(path)?), log: Arc::new(open(log.as_ref())?), background: true };
        Memory::open_on(disks, server, bounds)
    }

    /// Removes the files of a memory that is not open, after [`Error::is_damaged`].
    ///
    /// # Errors
    /// The disk's.
    pub fn remove(path: &Path) -> Result<()> {
        for path in [log_path(path), path.to_owned()] {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::disk("remove its files")(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Opens a memory on two disks, as [`Memory::open`] does on two files.
    ///
    /// # Errors
    /// As [`Memory::open`].
    pub fn open_on(disks: Disks, server: Server, bounds: Bounds) -> Result<(Memory, Opened)> {
        let (mut memory, discarded) = match Memory::with(&disks, server, bounds) {
            Ok(memory) => (memory, None),
            Err(error) if error.is_damaged() => {
                (Memory::emptied(&disks, server, bounds)?, Some(Discarded::Damaged))
            }
            Err(error) => return Err(Error::store("open its store")(error)),
        };
        let found = match discarded {
            Some(_) => Ok(None),
            None => memory.read_ledger(),
        };
        let opened = match found {
            Ok(None) => discarded.map_or(Opened::New, Opened::Discarded),
            Ok(Some(entry)) => memory.resume(&entry),
            Err(Unread::Useless(why)) => {
                drop(memory);
                memory = Memory::emptied(&disks, server, bounds)?;
                Opened::Discarded(why)
            }
            Err(Unread::Failed(error)) => return Err(Error::store("read its store")(error)),
        };
        Ok((memory, opened))
    }

    fn with(disks: &Disks, server: Server, bounds: Bounds) -> std::result::Result<Memory, store::Error> {
        let options = Options {
            cache_bytes: CACHE_BYTES,
            size_bytes_max: bounds.size_bytes_max.map(|max| max.max(SIZE_BYTES_MIN)),
            background: disks.background,
            ..Options::default()
        };
        let mut store = Store::open_on(disks.data.clone(), disks.log.clone(), options)?;
        Ok(Memory {
            tombstones: store.tree("tombstones", Kind::Window)?,
            ledger: store.tree("ledger", Kind::Window)?,
            store,
            server,
            bounds,
            own_origins: Vec::new(),
            has_begun: false,
            captured: Lsn::INVALID,
            restart: Lsn::INVALID,
            landmark: None,
            is_doubted: false,
            forgotten: Forgotten::default(),
            is_unsaved: false,
            marks: Marks::default(),
            open: Mark::EMPTY,
            recorded: Lsn::INVALID,
            overflowed: None,
            value: Vec::new(),
            figures: Figures::default(),
        })
    }

    /// The same on disks that are emptied first.
    fn emptied(disks: &Disks, server: Server, bounds: Bounds) -> Result<Memory> {
        // A crash in between leaves a store that is damaged or says the same as before.
        for disk in [&disks.log, &disks.data] {
            disk.set_size(0).and_then(|()| disk.sync()).map_err(Error::disk("empty its files"))?;
        }
        Memory::with(disks, server, bounds).map_err(Error::store("make its store"))
    }

    /// Reads the marks and the newest entry, if there is one; or why it is of no use.
    fn read_ledger(&mut self) -> std::result::Result<Option<Entry>, Unread> {
        let mut newest = None;
        let committed = self.store.committed();
        for item in self.store.scan(self.ledger, .., committed)? {
            let (key, version) = item?;
            let entry = Entry::decode(&key, &version.value).ok_or(Unread::Useless(Discarded::Damaged))?;
            self.marks.push(entry.mark);
            newest = Some(entry);
        }
        let Some(entry) = newest else {
            let is_new = !committed.is_valid();
            return if is_new { Ok(None) } else { Err(Unread::Useless(Discarded::Damaged)) };
        };
        let Server { system_id, database, timeline, timeline_start, wal_end, .. } = self.server;
        if (entry.system_id, entry.database) != (system_id, database) {
            return Err(Unread::Useless(Discarded::OtherServer));
        }
        let has_left = entry.timeline > timeline || entry.timeline < timeline && committed > timeline_start;
        if has_left || committed > wal_end {
            return Err(Unread::Useless(Discarded::OtherHistory));
        }
        Ok(Some(entry))
    }

    /// Goes on behind the newest entry.
    fn resume(&mut self, entry: &Entry) -> Opened {
        self.captured = self.store.committed();
        self.recorded = self.captured;
        self.restart = entry.restart;
        self.landmark = entry.landmark;
        self.forgotten = entry.forgotten;
        if self.store.horizon() > above(self.forgotten.floor()) {
            // A commit without an entry, which a full store had no room for. What it has cut is not
            // known, but it had committed by now.
            let time = self.forgotten.greatest.unwrap_or(PgTimestamp(i64::MIN)).max(self.server.clock);
            self.forgotten.cut(Cut { lsn: self.store.horizon(), time });
        }
        self.marks.forget(self.forgotten.floor());
        Opened::Resumed { captured: self.captured, restart: self.restart }
    }

    /// By which record of WAL the history of a memory that was resumed is known again; `None` if
    /// nothing says so.
    #[must_use]
    pub fn landmark(&self) -> Option<Landmark> {
        self.landmark
    }

    /// Nothing is answered until [`Memory::prove`]: the server may have been restored since.
    pub fn doubt(&mut self) {
        self.is_doubted = true;
    }

    /// The server has the record of [`Memory::landmark`].
    pub fn prove(&mut self) {
        self.is_doubted = false;
    }

    /// What was committed last to disk.
    #[must_use]
    pub fn committed(&self) -> Lsn {
        self.store.committed()
    }

    /// Says whose deletions are not kept, because the stream that is applied orders them.
    pub fn set_own_origins(&mut self, origins: Vec<u16>) {
        self.own_origins = origins;
    }

    /// Capture begins, or begins again: every transaction that commits behind `from` will be handed
    /// over. `clock` is what the server's clock said after its WAL had reached `from`. If this
    /// memory has not captured everything up to `from`, there is a gap, and that is a cut.
    pub fn begin(&mut self, from: Lsn, clock: PgTimestamp) {
        if self.captured < from {
            self.captured = from;
            self.recorded = self.recorded.max(from);
            // What is there goes, too, and may be of a later time: from a third server, or from
            // before the clock was set back.
            let time = self.forgotten.greatest.map_or(clock, |greatest| greatest.max(clock));
            self.forget(Cut { lsn: from, time });
        }
        self.has_begun = true;
    }

    /// Remembers a deletion. Deletions come in the order of their LSNs; those that are remembered
    /// already may come again.
    ///
    /// # Errors
    /// The store's disk.
    pub fn record(&mut self, deletion: &Deletion<'_>) -> Result<()> {
        let Deletion { key, tombstone } = deletion;
        assert!(self.has_begun && tombstone.lsn.is_valid(), "capture begins before it records");
        if tombstone.lsn <= self.captured || self.overflowed == Some(tombstone.lsn) {
            return Ok(());
        }
        assert!(tombstone.lsn >= self.recorded, "deletions come in the order of their commits");
        if tombstone.origin.is_some_and(|origin| self.own_origins.contains(&origin)) {
            self.figures.own += 1;
            return Ok(());
        }
        if self.put(key, tombstone)? {
            self.recorded = tombstone.lsn;
            self.open.add(key.bytes().len() + self.value.len() + CELL_BYTES, tombstone.time);
            self.forgotten.greatest = self.forgotten.greatest.max(Some(tombstone.time));
        }
        Ok(())
    }

    /// Writes a tombstone. False if there was no room, and it is among what was cut.
    fn put(&mut self, key: &RowKey, tombstone: &Tombstone) -> Result<bool> {
        let failed = Error::store("write to its store");
        tombstone.encode(key.witness(), &mut self.value);
        match self.store.put(self.tombstones, key.bytes(), tombstone.lsn, &self.value) {
            Ok(()) => return Ok(true),
            Err(error) if !error.is_full() => return Err(failed(error)),
            Err(_) => {}
        }
        if self.open.count == 0 {
            // Everything before this transaction goes, and there is nothing more to come before it.
            let lsn = Lsn::new(tombstone.lsn.as_u64() - 1);
            if let Some(time) = self.marks.newest() {
                self.cut(Cut { lsn, time });
            }
            self.store.set_horizon(lsn);
            self.store.commit(lsn).map_err(failed)?;
            self.sweep()?;
            match self.store.put(self.tombstones, key.bytes(), tombstone.lsn, &self.value) {
                Ok(()) => return Ok(true),
                Err(error) if !error.is_full() => return Err(failed(error)),
                Err(_) => {}
            }
        }
        // The transaction exceeds the bound by itself.
        let time =
            self.open.newest.max(self.marks.newest()).map_or(tombstone.time, |time| time.max(tombstone.time));
        self.cut(Cut { lsn: tombstone.lsn, time });
        self.overflowed = Some(tombstone.lsn);
        self.recorded = tombstone.lsn;
        Ok(false)
    }

    /// Takes note of a cut that a bound asks for.
    fn cut(&mut self, cut: Cut) {
        self.figures.cuts += 1;
        self.forget(cut);
    }

    /// Forgets what may still be needed. That is on disk with the next commit.
    fn forget(&mut self, cut: Cut) {
        self.forgotten.cut(cut);
        self.marks.forget(self.forgotten.floor());
        self.is_unsaved = true;
    }

    /// Everything that committed up to `lsn` was recorded; from `restart` on WAL must be read so
    /// that everything behind it comes.
    pub fn passed(&mut self, lsn: Lsn, restart: Lsn) {
        self.captured = self.captured.max(lsn);
        self.restart = self.restart.max(restart);
    }

    /// The last record up to the position that [`Memory::passed`] was told.
    pub fn mark(&mut self, landmark: Landmark) {
        self.landmark = Some(landmark);
    }

    /// Makes durable what was recorded and forgotten, and keeps the bounds. Does nothing in the
    /// middle of a transaction. `now` is the clock of pgsluice's machine.
    ///
    /// # Errors
    /// The store's disk.
    pub fn commit(&mut self, now: PgTimestamp) -> Result<()> {
        self.keep_bounds(now);
        let is_between = self.recorded <= self.captured && self.captured > self.store.committed();
        let progress = self.captured.bytes_since(self.store.committed());
        let is_due = self.open.count > 0 || self.is_unsaved || progress >= RESTART_BYTES;
        if !is_between || !is_due {
            return Ok(());
        }
        let failed = Error::store("commit to its store");
        let mark = Mark { lsn: self.captured, made: now, ..self.open };
        let entry =
            Entry { landmark: self.landmark, ..Entry::new(&self.server, self.restart, mark, self.forgotten) };
        let written = self.store.put(self.ledger, &Entry::key(mark.lsn), mark.lsn, &entry.encode());
        let was_full = match written {
            Ok(()) => false,
            // Opening takes it for a cut that a commit has no entry.
            Err(error) if error.is_full() => true,
            Err(error) => return Err(failed(error)),
        };
        self.store.set_horizon(above(self.forgotten.floor()));
        self.store.commit(mark.lsn).map_err(failed)?;
        self.marks.push(mark);
        self.marks.forget(self.forgotten.floor());
        (self.open, self.is_unsaved) = (Mark::EMPTY, was_full);
        if self.overflowed.take().is_some() || was_full {
            self.sweep()?;
        }
        Ok(())
    }

    /// Makes room of what was forgotten. Pages that are empty now can be used again after a
    /// checkpoint.
    fn sweep(&mut self) -> Result<()> {
        self.store
            .sweep_all()
            .and_then(|()| self.store.checkpoint())
            .map_err(Error::store("make room in its store"))
    }

    fn keep_bounds(&mut self, now: PgTimestamp) {
        if let Some(max) = self.bounds.duration_max {
            let max = i64::try_from(max.as_micros()).unwrap_or(i64::MAX);
            let aged = self.marks.made_up_to(PgTimestamp(now.0.saturating_sub(max)));
            aged.into_iter().for_each(|lsn| self.cut_up_to(lsn));
        }
        if let Some(max) = self.bounds.size_bytes_max {
            let max = max.max(SIZE_BYTES_MIN) / FILL_SHARE;
            if self.marks.bytes() > max {
                let excess = self.marks.excess(max / KEPT_SHARE);
                excess.into_iter().for_each(|lsn| self.cut_up_to(lsn));
            }
        }
    }

    fn cut_up_to(&mut self, lsn: Lsn) {
        if let Some(time) = self.marks.newest_up_to(lsn) {
            self.cut(Cut { lsn, time });
        }
    }

    /// What is known about a row that an UPDATE has not found.
    ///
    /// # Errors
    /// The store's disk, and damage.
    pub fn look_up(&mut self, key: &RowKey, miss: Miss) -> Result<Answer> {
        self.look_up_all(std::iter::once((key, miss))).map(|answers| answers[0])
    }

    /// The same for many rows, in their order. What concerns the whole of a table is read once for
    /// those of the same table that follow each other.
    ///
    /// # Errors
    /// As [`Memory::look_up`].
    pub fn look_up_all<'k>(
        &mut self,
        misses: impl Iterator<Item = (&'k RowKey, Miss)>,
    ) -> Result<Vec<Answer>> {
        let mut answers = Vec::with_capacity(misses.size_hint().0);
        let mut of_table: Option<OfTable> = None;
        for (key, miss) in misses {
            let is_ahead = self.is_doubted || self.captured < miss.fence;
            let answer = match (self.has_begun, is_ahead) {
                (false, _) => Answer::NotCovered,
                (true, true) => Answer::NotYet,
                (true, false) => {
                    let table = key.table();
                    let known = match of_table.take().filter(|known| known.table == table) {
                        Some(known) => known,
                        None => self.of_table(table)?,
                    };
                    self.answer(key, miss, of_table.insert(known))?
                }
            };
            self.figures.retention_exceeded += u64::from(answer == Answer::NotCovered);
            answers.push(answer);
        }
        Ok(answers)
    }

    fn of_table(&self, table: Oid) -> Result<OfTable> {
        let emptied = self.tombstone(&RowKey::of_emptied(table, table))?;
        let unnamed = self.tombstone(&RowKey::of_unnamed(table))?;
        Ok(OfTable { table, emptied, unnamed })
    }

    fn answer(&self, key: &RowKey, miss: Miss, of_table: &OfTable) -> Result<Answer> {
        let row = self.stored(key)?;
        // A row of the same hash was deleted later, and hides what became of this one.
        if row.is_some_and(|(_, is_of_key)| !is_of_key) {
            return Ok(Answer::NotCovered);
        }
        let row = row.map(|(tombstone, _)| tombstone);
        let last = [row, of_table.emptied].into_iter().flatten().max_by_key(|tombstone| tombstone.lsn);
        Ok(match (last, of_table.unnamed) {
            // It may have been this row, which had come back.
            (Some(last), Some(unnamed)) if unnamed.lsn > last.lsn => Answer::NotCovered,
            (Some(last), _) => Answer::Deleted(last),
            (None, Some(_)) => Answer::NotCovered,
            (None, None) => self.forgotten.without_tombstone(miss),
        })
    }

    /// The last deletion of a row, or of a partition's or table's rows ([`RowKey::of_emptied`]),
    /// whether or not capture has passed anything.
    ///
    /// # Errors
    /// As [`Memory::look_up`].
    pub fn tombstone(&self, key: &RowKey) -> Result<Option<Tombstone>> {
        let stored = self.stored(key)?;
        Ok(stored.filter(|(_, is_of_key)| *is_of_key).map(|(tombstone, _)| tombstone))
    }

    /// The last deletion under these bytes, and whether it is of this key or of one with its hash.
    fn stored(&self, key: &RowKey) -> Result<Option<(Tombstone, bool)>> {
        let version =
            self.store.latest(self.tombstones, key.bytes()).map_err(Error::store("read its store"))?;
        let Some(version) = version.filter(|version| version.lsn > self.forgotten.floor()) else {
            return Ok(None);
        };
        let found = Tombstone::decode(version.lsn, &version.value);
        let (tombstone, witness) = found.expect("this memory wrote it, and the store checks its pages");
        Ok(Some((tombstone, witness == key.witness())))
    }

    /// Says that a row is going to be looked up, so that a page that is not in memory is read
    /// meanwhile.
    pub fn prefetch(&self, key: &RowKey) {
        self.store.prefetch(self.tombstones, key.bytes());
    }

    /// How far the horizon could move now; `None` if there is nothing to forget and no cut to pass.
    #[must_use]
    pub fn candidate(&self) -> Option<Candidate> {
        let open = self.open.newest;
        let cut = self.forgotten.cut.map(|cut| cut.time);
        let time = self.marks.newest().max(open).max(cut)?;
        Some(Candidate { lsn: self.captured, time })
            .filter(|candidate| candidate.lsn > self.forgotten.horizon)
    }

    /// Moves the horizon to a candidate: every update of its time or before is applied durably.
    pub fn advance(&mut self, candidate: Candidate) {
        assert!(candidate.lsn <= self.captured, "only what was captured can be forgotten");
        self.figures.resumed += u64::from(self.forgotten.advance(candidate));
        self.marks.forget(self.forgotten.floor());
        self.is_unsaved = true;
    }

    /// How far capture has come.
    #[must_use]
    pub fn captured(&self) -> Lsn {
        self.captured
    }

    /// Deletions up to here are not needed any more.
    #[must_use]
    pub fn horizon(&self) -> Lsn {
        self.forgotten.horizon
    }

    /// What is remembered, and what became of it.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let stats = self.store.stats();
        Figures {
            count: self.marks.count() + self.open.count,
            bytes: self.marks.bytes() + self.open.bytes,
            file_bytes: stats.file_bytes + stats.log_bytes,
            oldest: self.marks.oldest(),
            captured: self.captured,
            horizon: self.forgotten.horizon,
            cut: self.forgotten.cut,
            ..self.figures
        }
    }

    /// Makes everything durable so that the next start has nothing to do.
    ///
    /// # Errors
    /// The store's disk.
    pub fn close(mut self, now: PgTimestamp) -> Result<()> {
        self.commit(now)?;
        self.store.close().map_err(Error::store("close its store"))
    }
}

/// The store forgets what is below its horizon; here what is at the floor is forgotten, too.
fn above(floor: Lsn) -> Lsn {
    Lsn::new(floor.as_u64() + 1)
}

/// The log of the memory in `path`, as the store names it too.
fn log_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".log");
    PathBuf::from(name)
}
