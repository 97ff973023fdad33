//! The wiring: from bytes to messages.
//!
//! ```text
//! bytes --> wal::Reader --> Catalog::follow --> LocatorFilterCache --> decode --> ReorderBuffer --> Writer --> Output
//!                              |  what changed      ^ nobody wants it:              ^
//!                              '------> Tables -----' dropped unread                '- Tables: which table, as of now
//! ```
//!
//! For each record, in this order: the catalogs follow it; what they say has changed makes answers void; the filter drops
//! it or not; the reorder buffer takes it; all that comes out is written and handed out before the next record is read.
//! A transaction that has changed catalogs sees what others do not: its records pass by the filter, which all share.

use std::sync::Arc;

use base::{Lsn, Oid, Xid};
use catalog::{Catalog, Followed};
use decode::{Decoded, What, decode};
use rustc_hash::FxHashMap;
use txn::Spool;
use txn::reorder::{Boundary, Event, ReorderBuffer};
use wal::{LocatorFilterCache, Reader, Record, Records, Rmgr, Start, Verdict};

use crate::error::{Error, Kind, Refused, Result};
use crate::options::Options;
use crate::table::Wanted;
use crate::tables::{Asked, Tables};
use crate::writer::Writer;

/// One message: a row of `pg_logical_slot_get_binary_changes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output<'a> {
    /// `lsn`.
    pub lsn: Lsn,
    /// `xid`.
    pub xid: Xid,
    /// `data`.
    pub data: &'a [u8],
}

/// See the crate.
pub struct Decoder {
    reader: Reader,
    core: Core,
}

/// All but the reader.
struct Core {
    options: Arc<Options>,
    catalog: Catalog,
    /// Records up to here were followed before, and what they changed came out or will not.
    followed: Lsn,
    /// Where the last record ended.
    end: Lsn,
    cache: LocatorFilterCache,
    tables: Tables,
    buffer: ReorderBuffer<Wanted>,
    writer: Writer,
    /// Of each transaction that runs: with two phases only, where it is said.
    first: Option<FxHashMap<Xid, First>>,
    seen_by_look: u64,
    /// The newest transaction that a record was of.
    newest: Xid,
    running: Option<Running>,
    /// Where something that everybody sees of the catalogs was last changed.
    changed: Lsn,
    failed: bool,
}

/// What the server last said of transactions that are running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Running {
    /// Where it said so.
    pub lsn: Lsn,
    /// All that are older than this one have ended, and how they did was read.
    pub oldest: Xid,
}

/// What the server knows of a transaction.
#[derive(Debug, Clone, Copy)]
struct First {
    /// Its first record, whatever that is about.
    lsn: Lsn,
    /// One of its records had the server make a snapshot; without one it has nothing to say that it was prepared.
    has_snapshot: bool,
}

/// What comes out of some bytes of WAL. Dropped before its end, the bytes that were not needed yet are handed over
/// again: [`Decoder::position`] says from where.
pub struct Outputs<'d, 'b> {
    records: Records<'d, 'b>,
    core: &'d mut Core,
}

/// How much was decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Of transactions that were spilled and streamed.
    pub reorder: txn::reorder::Counters,
    /// Transactions that came out: their commit, or that they were prepared.
    pub transactions: u64,
    /// Rows that came out.
    pub rows: u64,
    /// Transactions of the database that committed and were left out because the look at the catalogs saw them.
    pub seen_by_look: u64,
}

impl Decoder {
    /// A decoder that has seen no WAL. It begins where `catalog` does; transactions that the look at it saw
    /// ([`Catalog::is_before`]) do not come out.
    ///
    /// # Errors
    /// When options contradict one another, or the server's major has them not.
    pub fn new(catalog: Catalog, options: Options, spool: Box<dyn Spool>) -> Result<Decoder, Error> {
        let server = catalog.server();
        options.check(server.major)?;
        if catalog.view(options.database, Xid::INVALID).is_none() {
            return Err(Error::options(format!("database {} is none that was looked at", options.database)));
        }
        let followed = catalog.last();
        let reader = Reader::new(Start {
            lsn: if followed.is_valid() { followed } else { catalog.start() },
            segment_size: options.segment_size,
            system_id: Some(server.system_id),
            timeline: None,
        })?;
        let first = options.two_phase_at.map(|_| FxHashMap::default());
        let buffer = ReorderBuffer::new(options.reorder(), spool);
        let options = Arc::new(options);
        let core = Core {
            cache: LocatorFilterCache::new([options.database]),
            tables: Tables::new(Arc::clone(&options)),
            buffer,
            writer: Writer::new(Arc::clone(&options)),
            first,
            seen_by_look: 0,
            newest: Xid::INVALID,
            running: None,
            changed: Lsn::INVALID,
            failed: false,
            end: reader.position(),
            options,
            catalog,
            followed,
        };
        Ok(Decoder { reader, core })
    }

    /// Where the next bytes must begin: at first at the page of [`Catalog::start`], then where the bytes before ended.
    #[must_use]
    pub fn position(&self) -> Lsn {
        self.reader.position()
    }

    /// Takes bytes of WAL, any number of them, from [`Decoder::position`] on. Poll the result until it has nothing more.
    ///
    /// # Errors
    /// There was an error before.
    pub fn push<'d, 'b>(&'d mut self, bytes: &'b [u8]) -> Result<Outputs<'d, 'b>, Error> {
        if self.core.failed {
            return Err(Error::new(Kind::Over));
        }
        let records = self.reader.push(self.reader.position(), bytes)?;
        Ok(Outputs { records, core: &mut self.core })
    }

    /// Where WAL ended, if it did: nothing but zeros came from there on, or pages of an earlier use of the segment. The
    /// caller must know whether it may end there.
    #[must_use]
    pub fn end_of_wal(&self) -> Option<Lsn> {
        self.reader.zeros_from()
    }

    /// There are no more bytes: where the next record would start. What is open then does not come out.
    ///
    /// # Errors
    /// They ended in the middle of a record, or there was an error before.
    pub fn finish(&self) -> Result<Lsn, Error> {
        if self.core.failed {
            return Err(Error::new(Kind::Over));
        }
        Ok(self.reader.finish()?)
    }

    /// Where the last record ended that was read. What committed before it has come out, once [`Outputs::next`] has
    /// given `None`: it is what may be confirmed, and [`Options::start`] after a restart.
    #[must_use]
    pub fn decoded(&self) -> Lsn {
        self.core.end
    }

    /// Where reading has to begin again, with the catalogs as they were there, once what came out up to
    /// [`Decoder::decoded`] is confirmed.
    #[must_use]
    pub fn restart_lsn(&self) -> Lsn {
        self.core.buffer.restart_lsn(self.decoded())
    }

    /// The newest transaction that a record was of, subtransactions among them; invalid before the first.
    #[must_use]
    pub fn newest_xid(&self) -> Xid {
        self.core.newest
    }

    /// What the server last said of transactions that are running: it does so at each checkpoint, and every fifteen
    /// seconds in which something was written.
    #[must_use]
    pub fn running(&self) -> Option<Running> {
        self.core.running
    }

    /// The last record behind which everybody saw other rows or files of catalogs than before it; invalid before the first.
    #[must_use]
    pub fn changed(&self) -> Lsn {
        self.core.changed
    }

    /// How many transactions are open and have left something that may come out.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.core.buffer.open_count()
    }

    /// How much was decoded so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            reorder: self.core.buffer.counters(),
            seen_by_look: self.core.seen_by_look,
            ..self.core.writer.counters
        }
    }

    /// What was dropped unread because nobody wants it, by relation.
    #[must_use]
    pub fn dropped(&self) -> Vec<(Oid, wal::Dropped)> {
        let dropped = self.core.cache.dropped().into_iter();
        dropped.map(|((_, relation), dropped)| (relation, dropped)).collect()
    }

    /// Tables that would come out as the catalogs are now, but cannot.
    ///
    /// # Errors
    /// When the catalogs contradict themselves.
    pub fn refused(&mut self) -> Result<Vec<Refused>, Error> {
        let tables = self.core.tables.all(&self.core.catalog)?;
        Ok(tables.iter().filter_map(|table| table.refused().cloned()).collect())
    }

    /// The catalogs, as they are at the last record that was read.
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        &self.core.catalog
    }
}

impl Outputs<'_, '_> {
    /// The next message; `None` when more bytes are needed.
    ///
    /// # Errors
    /// Whatever is wrong, with its LSN. Nothing comes out any more.
    #[allow(clippy::should_implement_trait, reason = "what it gives is borrowed from it")]
    pub fn next(&mut self) -> Result<Option<Output<'_>>, Error> {
        if self.core.failed {
            return Err(Error::new(Kind::Over));
        }
        match self.advance() {
            Ok(true) => Ok(self.core.writer.output()),
            Ok(false) => Ok(None),
            Err(error) => {
                self.core.failed = true;
                Err(error)
            }
        }
    }

    fn advance(&mut self) -> Result<bool> {
        loop {
            if self.core.advance()? {
                return Ok(true);
            }
            match self.records.poll()? {
                Some(record) => self.core.take(&record)?,
                None => return Ok(false),
            }
        }
    }
}

impl Core {
    /// Goes to the next message of what has gone in, if there is one.
    fn advance(&mut self) -> Result<bool> {
        loop {
            if self.writer.advance() {
                return Ok(true);
            }
            if !self.buffer.go()? {
                return Ok(false);
            }
            let Some(event) = self.buffer.event() else { return Err(self.buffer.cut_short().into()) };
            let first = |xid| self.first.as_ref()?.get(&xid).copied();
            if let Event::Boundary(Boundary::BeginPrepare(prepared) | Boundary::Prepare(prepared)) = &event
                && first(prepared.xid).is_some_and(|first| !first.has_snapshot)
            {
                continue;
            }
            self.writer.event(&event, &self.catalog, |xid| first(xid).map(|first| first.lsn))?;
        }
    }

    fn take(&mut self, record: &Record<'_>) -> Result<()> {
        self.end = record.end();
        if record.lsn() <= self.followed {
            return Ok(());
        }
        let decoded = match record.rmgr() {
            Rmgr::Transaction | Rmgr::Standby => Some(decode(record)?),
            _ => None,
        };
        let followed = self.catalog.follow_decoded(record, decoded.as_ref())?;
        self.forget(&followed);
        // Files of catalogs that are not in pg_class change at once.
        if followed.rows || followed.changes.is_some() || record.rmgr() == Rmgr::RelMap {
            self.changed = record.lsn();
        }
        let xid = record.xid();
        if xid.is_valid() && (!self.newest.is_valid() || self.newest.precedes(xid)) {
            self.newest = xid;
        }
        let is_seen = xid.is_valid() && self.catalog.is_before(self.options.database, xid);
        if self.first.is_some() && xid.is_valid() && !is_seen {
            self.note_first(record, followed.top_level_xid);
        }
        let top = followed.top_level_xid;
        if let Some(decoded) = &decoded {
            if record.rmgr() == Rmgr::Transaction {
                return self.transaction(record, decoded);
            }
            if let What::RunningXacts(running) = &decoded.what {
                self.running = Some(Running { lsn: record.lsn(), oldest: running.oldest });
            }
            return self.pass(record, decoded);
        }
        match record.rmgr() {
            Rmgr::Heap | Rmgr::Heap2 if !is_seen => self.heap(record, top),
            Rmgr::LogicalMessage => self.logical_message(record, is_seen),
            _ if is_seen => Ok(()),
            _ => self.assign(record, top),
        }
    }

    fn forget(&mut self, followed: &Followed) {
        if let Some(top) = followed.own {
            self.tables.forget_own(top);
        }
        if let Some(changes) = &followed.changes {
            self.tables.forget(changes, &mut self.cache);
        }
    }

    /// The server's `first_lsn` is a transaction's first record, ours its first that was kept.
    fn note_first(&mut self, record: &Record<'_>, top: Option<Xid>) {
        if let Some(first) = &mut self.first {
            let new = First { lsn: record.lsn(), has_snapshot: false };
            let top = top.unwrap_or_else(|| self.buffer.top_of(record.xid()));
            let first = first.entry(top).or_insert(new);
            first.has_snapshot |= makes_snapshot(record);
        }
    }

    /// A record that says nothing that comes out; but it may be the one that says whose a subtransaction is.
    fn assign(&mut self, record: &Record<'_>, top: Option<Xid>) -> Result<()> {
        match top {
            Some(top) => Ok(self.buffer.assign(record.lsn(), top, record.xid())?),
            None => Ok(()),
        }
    }

    fn heap(&mut self, record: &Record<'_>, top: Option<Xid>) -> Result<()> {
        let (lsn, xid) = (record.lsn(), record.xid());
        if xid.is_valid() && self.catalog.has_changes(xid) {
            return self.pass(record, &decode(record)?);
        }
        match self.judge(record)? {
            Verdict::Dropped => Ok(self.buffer.passed_over(lsn, xid, top)?),
            // A catalog's: it was followed.
            Verdict::Wanted(relation) if !relation.is_user_defined() => self.assign(record, top),
            Verdict::Wanted(_) | Verdict::Unknown(_) => self.pass(record, &decode(record)?),
            Verdict::Other if is_truncate(record) => self.pass(record, &decode(record)?),
            Verdict::Other => self.assign(record, top),
        }
    }

    /// Who wants a record; unknown are files only that nobody has.
    fn judge(&mut self, record: &Record<'_>) -> Result<Verdict> {
        match self.cache.judge(record) {
            Verdict::Unknown(locator) if self.tables.teach(&self.catalog, locator, &mut self.cache)? => {
                Ok(self.cache.judge(record))
            }
            verdict => Ok(verdict),
        }
    }

    /// What does not belong to its transaction comes out whatever the look has seen.
    fn logical_message(&mut self, record: &Record<'_>, is_seen: bool) -> Result<()> {
        let decoded = decode(record)?;
        match &decoded.what {
            What::Message(message) if is_seen && message.transactional => Ok(()),
            _ if is_seen => self.pass(record, &Decoded { top_level_xid: None, ..decoded }),
            _ => self.pass(record, &decoded),
        }
    }

    fn transaction(&mut self, record: &Record<'_>, decoded: &Decoded<'_>) -> Result<()> {
        // Who ends a prepared transaction is another one, or none.
        let database = self.options.database;
        let (xid, committed) = match &decoded.what {
            What::Commit(ended) => (ended.xid, ended.database.is_none_or(|of| of == database)),
            What::Abort(ended) => (ended.xid, false),
            What::Prepare(prepared) => (prepared.xid, false),
            _ => (decoded.xid, false),
        };
        // One that has changed nothing is unknown to the server: it says neither that it is prepared nor how it ends. Of one
        // that was prepared before the start this may be the first record that is read, and it came out before.
        let is_first = self
            .first
            .as_ref()
            .is_some_and(|first| first.get(&xid).is_some_and(|first| first.lsn == record.lsn()));
        if is_first && matches!(decoded.what, What::Prepare(_)) && record.lsn() >= self.options.start {
            return Ok(());
        }
        // A subtransaction that has aborted is not known to the catalogs any more, nor whose it was: the buffer knows, and
        // has nothing of those that the look has seen.
        let has_aborted = matches!(decoded.what, What::Abort(_));
        if xid.is_valid() && !has_aborted && self.catalog.is_before(database, xid) {
            self.seen_by_look += u64::from(committed);
            return Ok(());
        }
        self.pass(record, decoded)?;
        if matches!(decoded.what, What::Commit(_) | What::Abort(_)) {
            self.tables.forget_own(xid);
        }
        Ok(())
    }

    /// Hands a record to the reorder buffer.
    fn pass(&mut self, record: &Record<'_>, decoded: &Decoded<'_>) -> Result<()> {
        let mut asked = Asked { catalog: &self.catalog, tables: &mut self.tables, error: None };
        let taken = self.buffer.record((record.lsn(), record.end()), decoded, &mut asked);
        if let Some(error) = asked.error {
            return Err(error);
        }
        taken?;
        if let (What::RunningXacts(running), Some(first)) = (&decoded.what, &mut self.first) {
            first.retain(|xid, _| !xid.precedes(running.oldest));
        }
        Ok(())
    }
}

/// A source of changes lives in a task of its own.
const _: () = {
    const fn may_be_sent<T: Send>() {}
    may_be_sent::<Decoder>();
};

/// Kinds of record of `Heap` and `Heap2`, `xl_info & XLOG_HEAP_OPMASK`.
mod op {
    pub(super) const MASK: u8 = 0x70;
    pub(super) const TRUNCATE: u8 = 0x30;
    pub(super) const LOCK: u8 = 0x60;
    /// Of `Heap2`.
    pub(super) const MULTI_INSERT: u8 = 0x50;
}

/// Whether the server makes a snapshot for a record's transaction (`SnapBuildProcessChange`): for changes of rows and for
/// messages, not for locks.
fn makes_snapshot(record: &Record<'_>) -> bool {
    match record.rmgr() {
        Rmgr::Heap => record.info() & op::MASK != op::LOCK,
        Rmgr::Heap2 => record.info() & op::MASK == op::MULTI_INSERT,
        Rmgr::LogicalMessage => true,
        _ => false,
    }
}

/// It names relations and no files.
fn is_truncate(record: &Record<'_>) -> bool {
    record.rmgr() == Rmgr::Heap && record.info() & op::MASK == op::TRUNCATE
}
