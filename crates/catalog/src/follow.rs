//! Takes records, and keeps the catalogs as they are behind them.
//!
//! There are two layers for each catalog. `pages` has bytes, and needs every record that changes a
//! page, of any transaction. `table` has rows, and needs only the transactions that the look at the
//! catalogs did not see. What the look saw is in the rows that it read.

use base::{Lsn, Oid, RelFileLocator, Xid};
use decode::{Decoded, NewTuple, Place, TransactionEnd, What, decode};
use rustc_hash::FxHashSet;
use wal::{Fork, Parts, Record, Rmgr};

use crate::changes::{Changes, Collected};
use crate::error::{Error, Kind as ErrorKind, Result};
use crate::pages::Tid;
use crate::rows::{CatalogRow, Kind};
use crate::table::Stamp;
use crate::transactions::{Entry, Unknown};
use crate::{Catalog, SHARED};

/// What a record means for earlier answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Followed {
    /// Shared answers that are void now. `None` if all hold, which is the case after nearly every
    /// record.
    pub changes: Option<Box<Changes>>,
    /// Whether rows of catalogs came or went for all transactions, even if no answer is void.
    pub rows: bool,
    /// The top-level transaction whose own answers are void, because it changed something or took
    /// something back.
    pub own: Option<Xid>,
    /// Changes to files that were unknown when they were read ([`Catalog::check_at_commit`]) and
    /// are known now that their transaction commits.
    pub resolved: Vec<(Lsn, RelFileLocator)>,
    /// The record's top-level transaction, if the record names one ([`Record::top_level_xid`]).
    pub top_level_xid: Option<Xid>,
    /// [`Record::first_locator`], if it was read here and belongs to no followed catalog.
    pub locator: Option<RelFileLocator>,
    /// Whether the record is about rows of a followed catalog.
    pub is_catalog: bool,
}

/// Between a position and the first record from there on lies at most a page header.
const PAGE_HEADER_MAX: u64 = 40;

fn tid(place: Place) -> Tid {
    Tid { block: place.block, offset: place.offset }
}

impl Catalog {
    /// Takes the next record. Every record has to come, from [`Catalog::start`] on. Records that
    /// were followed before the catalog was written to a file are ignored.
    ///
    /// # Errors
    /// The record does not fit to what is known, or says that catalogs cannot be followed any more.
    /// The catalog is then useless.
    pub fn follow(&mut self, record: &Record<'_>) -> Result<Followed> {
        self.follow_decoded(record, None)
    }

    /// Like [`Catalog::follow`], for a caller that has decoded the record already.
    ///
    /// # Errors
    /// As [`Catalog::follow`].
    pub fn follow_decoded(&mut self, record: &Record<'_>, decoded: Option<&Decoded<'_>>) -> Result<Followed> {
        if record.lsn() <= self.last {
            return Ok(Followed::default());
        }
        self.check_chain(record)?;
        self.last = record.lsn();
        let top_level_xid = match decoded {
            Some(decoded) => decoded.top_level_xid,
            None => record.top_level_xid()?,
        };
        if let Some(top) = top_level_xid {
            self.transactions.assign(record.xid(), top);
        }
        let mut followed = self.follow_next(record, decoded)?;
        followed.top_level_xid = top_level_xid;
        Ok(followed)
    }

    /// Takes a record about the files of another database. It changes nothing here but the place.
    ///
    /// # Errors
    /// It is not the next one, or it is damaged.
    pub fn pass_over(&mut self, record: &Record<'_>) -> Result<()> {
        if record.lsn() <= self.last {
            return Ok(());
        }
        self.check_chain(record)?;
        self.last = record.lsn();
        // The transaction may change catalogs that all databases share, and this may be the only
        // record that says to which one a subtransaction belongs.
        if let Some(top) = record.top_level_xid()? {
            self.transactions.assign(record.xid(), top);
        }
        Ok(())
    }

    fn follow_next(&mut self, record: &Record<'_>, decoded: Option<&Decoded<'_>>) -> Result<Followed> {
        match record.rmgr() {
            Rmgr::Heap | Rmgr::Heap2 => match record.first_locator() {
                Some(locator) if self.files.contains_key(&locator) => {
                    Ok(Followed { is_catalog: true, ..self.heap(record, locator)? })
                }
                locator @ Some(_) => Ok(Followed { locator, ..Followed::default() }),
                // The first block is of another fork.
                None => {
                    self.take_pages(record, &record.parts()?)?;
                    Ok(Followed::default())
                }
            },
            Rmgr::Xlog
            | Rmgr::Transaction
            | Rmgr::RelMap
            | Rmgr::Standby
            | Rmgr::Storage
            | Rmgr::Database => match decoded {
                Some(decoded) => self.server_record(record, decoded),
                None => self.server_record(record, &decode(record)?),
            },
            _ => Ok(Followed::default()),
        }
    }

    fn check_chain(&self, record: &Record<'_>) -> Result<()> {
        let lsn = record.lsn();
        let fits = if self.last.is_valid() {
            record.previous() == self.last
        } else {
            lsn >= self.start && lsn.as_u64() - self.start.as_u64() <= PAGE_HEADER_MAX
        };
        if fits {
            return Ok(());
        }
        let wanted = if self.last.is_valid() {
            format!("the one after {}", self.last)
        } else {
            format!("the first from {} on", self.start)
        };
        Err(Error::broken(lsn, format!("the catalogs are followed record by record, and {wanted} is next")))
    }

    /// Whether the changes of a transaction count, because they are not in the rows that the look
    /// read.
    fn counts(&self, database: Oid, top: Xid) -> bool {
        !self.is_before(database, top)
    }

    /// Takes images and new pages, and notes that a page was changed.
    fn take_pages(&mut self, record: &Record<'_>, parts: &Parts<'_>) -> Result<()> {
        let lsn = record.lsn();
        for block in parts.blocks().filter(|block| block.fork == Fork::Main) {
            let Some(file) = self.files.get_mut(&block.locator) else { continue };
            match block.image.filter(|image| image.apply) {
                Some(image) => {
                    let taken = file.pages.take_image(block.number, lsn, &image);
                    taken.map_err(|cause| Error::new(ErrorKind::Image { lsn, cause }))?;
                }
                None if block.will_init => file.pages.renew(block.number, lsn),
                None => file.pages.touch(block.number, lsn),
            }
        }
        Ok(())
    }

    /// Takes a record about rows of a followed file.
    fn heap(&mut self, record: &Record<'_>, locator: RelFileLocator) -> Result<Followed> {
        let decoded = decode(record)?;
        let lsn = record.lsn();
        self.take_pages(record, &record.parts()?)?;
        let stamp = Stamp { xid: decoded.xid, top: self.transactions.top(decoded.xid) };
        let at = At { lsn, stamp, locator };
        match decoded.what {
            What::Insert(insert) => self.new_row(&at, insert.place, insert.tuple, None)?,
            What::MultiInsert(insert) => {
                for (place, tuple) in insert.rows() {
                    self.new_row(&at, place, tuple, None)?;
                }
            }
            What::Update(update) => {
                self.new_row(&at, update.place, update.tuple, Some(update.old_place))?;
            }
            What::Delete(delete) => self.delete(&at, delete.place)?,
            What::InPlace(in_place) => {
                // This overwrites bytes only, and never a column that is kept of a row.
                if let Some(data) = in_place.data {
                    self.overwrite(&at, in_place.place, data)?;
                }
                return Ok(Followed::default());
            }
            _ => return Ok(Followed::default()),
        }
        Ok(Followed { own: Some(stamp.top), ..Followed::default() })
    }

    fn new_row(&mut self, at: &At, place: Place, tuple: NewTuple<'_>, old: Option<Place>) -> Result<()> {
        let (lsn, tid) = (at.lsn, tid(place));
        let file = self.files.get_mut(&at.locator).expect("looked up before");
        let kind = file.kind;
        match tuple {
            NewTuple::Whole(tuple) => file.pages.set(tid, lsn, &tuple),
            // The image was taken already.
            NewTuple::InImage(_) => {}
            NewTuple::Spliced(spliced) => {
                let old = old.map(self::tid).and_then(|old| file.pages.get(old));
                let bytes = old.and_then(|old| spliced.bytes(&old));
                let unseen =
                    || Error::broken(lsn, format!("the row of {} before it was never seen", kind.name()));
                file.pages.set(tid, lsn, &spliced.tuple(&bytes.ok_or_else(unseen)?));
            }
        }
        if !self.counts(self.files[&at.locator].database, at.stamp.top) {
            return Ok(());
        }
        self.enter(at)?;
        if let Some(old) = old {
            self.delete_row(at, self::tid(old))?;
        }
        let file = self.files.get_mut(&at.locator).expect("looked up before");
        let row = file.pages.get(tid).and_then(|tuple| self.shapes.get(&kind)?.row(&tuple));
        let row = row.ok_or_else(|| Error::broken(lsn, format!("its row is none of {}", kind.name())))?;
        if let Some(table) = &mut file.table {
            table.insert(tid, row.clone(), Some(at.stamp));
        }
        self.log(at, tid, false);
        self.rewritten(at, &row)
    }

    fn delete(&mut self, at: &At, place: Place) -> Result<()> {
        if !self.counts(self.files[&at.locator].database, at.stamp.top) {
            return Ok(());
        }
        self.enter(at)?;
        self.delete_row(at, tid(place))
    }

    fn delete_row(&mut self, at: &At, tid: Tid) -> Result<()> {
        let file = self.files.get_mut(&at.locator).expect("looked up before");
        let kind = file.kind;
        let found = file.table.as_mut().is_some_and(|table| table.delete(tid, at.stamp));
        match found {
            true => self.log(at, tid, true),
            // SQL cannot read these rows, so only new ones are known.
            false if kind == Kind::FilterChunk => {}
            false => {
                let what = format!("the row of {} that it deletes is not known", kind.name());
                return Err(Error::broken(at.lsn, what));
            }
        }
        Ok(())
    }

    fn log(&mut self, at: &At, tid: Tid, deletes: bool) {
        let entry = Entry { locator: at.locator, tid, deletes };
        self.transactions.log(at.stamp.xid, at.stamp.top, entry);
    }

    fn overwrite(&mut self, at: &At, place: Place, data: &[u8]) -> Result<()> {
        let file = self.files.get_mut(&at.locator).expect("looked up before");
        let unfit = || Error::broken(at.lsn, format!("the row of {} that it overwrites", file.kind.name()));
        let old = file.pages.get(tid(place)).filter(|old| old.data().len() == data.len());
        let old = old.ok_or_else(unfit)?;
        let (infomask2, infomask, hoff) = (old.infomask2, old.infomask, old.hoff);
        let bytes = [&old.bytes[..old.bytes.len() - data.len()], data].concat();
        let tuple = decode::RawTuple { infomask2, infomask, hoff, bytes: &bytes };
        file.pages.set(tid(place), at.lsn, &tuple);
        Ok(())
    }

    /// Takes a record that is not about rows.
    fn server_record(&mut self, record: &Record<'_>, decoded: &Decoded<'_>) -> Result<Followed> {
        let lsn = record.lsn();
        let mut followed = Followed::default();
        match &decoded.what {
            What::PageImages => self.take_pages(record, &record.parts()?)?,
            What::Commit(ended) => return self.commit(lsn, ended),
            What::Abort(ended) => followed.own = self.abort_record(ended),
            What::Prepare(prepared) => {
                for sub in prepared.subxacts.iter() {
                    self.transactions.assign(sub, prepared.xid);
                }
                self.transactions.open(prepared.xid).is_prepared = true;
            }
            What::Assignment { top, subxacts } => {
                subxacts.iter().for_each(|sub| self.transactions.assign(sub, *top));
            }
            What::RunningXacts(running) => {
                self.end_lost(Some(running.oldest));
                for space in self.spaces.values_mut() {
                    let is_over = |xmax: Xid| !running.oldest.precedes(xmax);
                    space.snapshot.take_if(|snapshot| is_over(Xid(snapshot.xmax as u32)));
                }
            }
            What::Checkpoint(checkpoint) => {
                if !checkpoint.full_page_writes {
                    return Err(Error::new(ErrorKind::FullPageWritesOff { lsn }));
                }
                self.check_wal_level(lsn, checkpoint.wal_level)?;
                for file in self.files.values_mut().filter(|file| file.table.is_some()) {
                    file.pages.forget_before(checkpoint.redo);
                }
                if checkpoint.shutdown {
                    self.end_lost(None);
                }
            }
            What::EndOfRecovery { .. } => self.end_lost(None),
            What::WalLevel(level) => self.check_wal_level(lsn, Some(*level))?,
            What::FullPageWrites(false) => return Err(Error::new(ErrorKind::FullPageWritesOff { lsn })),
            What::RelationMap(map) => {
                let top = self.transactions.top(decoded.xid);
                if self.spaces.contains_key(&map.database) && self.counts(map.database, top) {
                    self.map_relations(lsn, map.database, map.entries.iter())?;
                    followed.own = Some(top);
                }
            }
            What::FileTruncated(truncated) => {
                if let Some(file) = self.files.get_mut(&truncated.locator) {
                    file.pages.truncate(truncated.blocks);
                }
            }
            // If a database was moved before the look, the look found it in its new place. The
            // files that are removed after such a move are the old ones.
            What::DatabaseCreated(_) | What::DatabaseDropped(_) if lsn < self.looked => {}
            What::DatabaseCreated(created) if created.copy_of.is_some() => {
                self.check_moved(lsn, created.database)?
            }
            What::DatabaseDropped(dropped) => followed.changes = self.drop_database(dropped.database),
            _ => {}
        }
        Ok(followed)
    }

    fn check_wal_level(&self, lsn: Lsn, level: Option<decode::WalLevel>) -> Result<()> {
        match level {
            // Before the look, the level may have been raised. No change from then counts.
            Some(level) if level < decode::WalLevel::Logical && lsn >= self.looked => {
                Err(Error::new(ErrorKind::WalLevel { lsn }))
            }
            _ => Ok(()),
        }
    }

    /// A database that exists already has its files copied only when it moves to another
    /// tablespace.
    fn check_moved(&self, lsn: Lsn, database: Oid) -> Result<()> {
        match self.spaces.get(&database) {
            Some(space) => Err(Error::new(ErrorKind::Moved { lsn, database: space.name.clone() })),
            None => Ok(()),
        }
    }

    fn drop_database(&mut self, database: Oid) -> Option<Box<Changes>> {
        if database == SHARED || self.spaces.remove(&database).is_none() {
            return None;
        }
        self.files.retain(|_, file| file.database != database);
        let mut changes = Changes::default();
        changes.databases.insert(database);
        Some(Box::new(changes))
    }

    fn commit(&mut self, lsn: Lsn, ended: &TransactionEnd<'_>) -> Result<Followed> {
        let top = ended.xid;
        for sub in ended.subxacts.iter() {
            self.transactions.assign(sub, top);
        }
        let resolved = self.resolve_unknown(top)?;
        // Most transactions have left nothing that waits for their end.
        let Some(open) = self.transactions.take(top) else { return Ok(Followed::default()) };
        let mut collected = Collected::default();
        let committed: FxHashSet<Xid> = ended.subxacts.iter().collect();
        // Subtransactions that are not listed have aborted. They come first, because the rows that
        // they deleted still exist.
        for &xid in open.subs.iter().filter(|sub| !committed.contains(sub)) {
            self.take_back(xid);
        }
        for xid in ended.subxacts.iter().chain([top]) {
            for entry in self.transactions.take_log(xid) {
                self.settle(entry, xid, true, &mut collected);
            }
        }
        self.swap_files(lsn, &open.own_files)?;
        self.sweep_files(|owner| owner.top == top);
        let rows = collected.is_something;
        let changes = Some(collected.finish()).filter(|changes| !changes.is_empty()).map(Box::new);
        let own = changes.as_ref().map(|_| top);
        Ok(Followed { changes, rows, own, resolved, ..Followed::default() })
    }

    fn abort_record(&mut self, ended: &TransactionEnd<'_>) -> Option<Xid> {
        let gone: Vec<Xid> = ended.subxacts.iter().chain([ended.xid]).collect();
        // If a subtransaction wrote nothing itself, only its own subtransactions may be known.
        let top = gone.iter().map(|xid| self.transactions.top(*xid)).find(|top| !gone.contains(top));
        match top {
            None => self.abort(ended.xid),
            Some(_) => {
                for &xid in &gone {
                    self.take_back(xid);
                    self.transactions.drop_sub(xid);
                }
                self.sweep_files(|owner| gone.contains(&owner.xid));
            }
        }
        Some(top.unwrap_or(ended.xid))
    }

    /// Handles the abort of a top-level transaction.
    fn abort(&mut self, top: Xid) {
        let Some(open) = self.transactions.take(top) else { return };
        for xid in open.subs.into_iter().chain([top]) {
            self.take_back(xid);
        }
        self.sweep_files(|owner| owner.top == top);
    }

    fn take_back(&mut self, xid: Xid) {
        let entries = self.transactions.take_log(xid);
        if !entries.is_empty() || self.is_rewriting() {
            self.transactions.remember_aborted(xid);
        }
        for entry in entries {
            self.settle(entry, xid, false, &mut Collected::default());
        }
    }

    /// Ends the transactions that a crash left open. `oldest` is the oldest running transaction;
    /// `None` after a crash or a shutdown.
    fn end_lost(&mut self, oldest: Option<Xid>) {
        for top in self.transactions.ended_before(oldest) {
            self.abort(top);
        }
        if !self.is_rewriting() {
            self.transactions.forget_aborted(oldest);
        }
    }

    /// Settles a change of a (sub)transaction that has ended.
    fn settle(&mut self, entry: Entry, xid: Xid, committed: bool, collected: &mut Collected) {
        // Files that a rewrite replaced are gone.
        let Some(file) = self.files.get_mut(&entry.locator) else { return };
        let Some(table) = &mut file.table else { return };
        let is_it = |stamp: Option<Stamp>| stamp.is_some_and(|stamp| stamp.xid == xid);
        let Some(version) = table.get_mut(entry.tid) else { return };
        match (entry.deletes, committed) {
            // No other transaction has ever seen a row that its own transaction deleted again.
            (false, true) if is_it(version.inserter) && !version.is_only_its_makers() => {
                version.inserter = None;
                collected.add(file.database, &version.row, false);
            }
            (true, false) if is_it(version.deleter) => version.deleter = None,
            (true, true) if is_it(version.deleter) => {
                let was_there = version.inserter.is_none();
                if let Some(row) = table.remove(entry.tid).filter(|_| was_there) {
                    collected.add(file.database, &row, true);
                }
            }
            (false, false) if is_it(version.inserter) => drop(table.remove(entry.tid)),
            // Another row is in that place by now.
            _ => {}
        }
    }

    /// Notes a change to files that no relation has, according to [`crate::View::files`]. If no
    /// relation has them when the transaction commits, following stops there. If the transaction
    /// aborts, nothing happened.
    pub fn check_at_commit(&mut self, record: &Record<'_>, locator: RelFileLocator) {
        let (lsn, xid) = (record.lsn(), record.xid());
        let top = self.transactions.top(xid);
        self.transactions.open(top).unknown.push(Unknown { locator, lsn, xid });
    }

    fn resolve_unknown(&self, top: Xid) -> Result<Vec<(Lsn, RelFileLocator)>> {
        let Some(open) = self.transactions.get(top) else { return Ok(Vec::new()) };
        let mut resolved = Vec::new();
        for &Unknown { locator, lsn, .. } in &open.unknown {
            let view = self.view(locator.database, top);
            if view.is_some_and(|view| view.files(locator) == crate::Files::Unknown) {
                return Err(Error::new(ErrorKind::UnknownFiles { lsn, locator, xid: top }));
            }
            resolved.push((lsn, locator));
        }
        Ok(resolved)
    }

    /// Whether this transaction has changed catalogs and has not ended, so that it needs answers of
    /// its own.
    #[must_use]
    #[inline]
    pub fn has_changes(&self, xid: Xid) -> bool {
        self.transactions.have_changes() && self.transactions.has_changes_of(self.transactions.top(xid))
    }

    /// Checks whether the row moves a followed database to another default tablespace.
    pub(crate) fn check_database(&self, at: &At, row: &CatalogRow) -> Result<()> {
        let CatalogRow::Database(row) = row else { return Ok(()) };
        match self.spaces.get(&row.oid) {
            Some(space) if space.tablespace != row.tablespace => {
                Err(Error::new(ErrorKind::Moved { lsn: at.lsn, database: space.name.clone() }))
            }
            _ => Ok(()),
        }
    }
}

/// A record, its transaction, and the file that it is about.
pub(crate) struct At {
    pub(crate) lsn: Lsn,
    pub(crate) stamp: Stamp,
    pub(crate) locator: RelFileLocator,
}
