//! Decodes one database for any number of subscriptions, its members.
//!
//! | once for all members | once for each member |
//! | --- | --- |
//! | following the catalogs | which answers belong to which transaction: [`Tables`] |
//! | the filter's cache, of the union of what they want | the reorder buffer, its memory and its spool |
//! | decoding a record | messages |
//!
//! A record about the files of another database is only counted. For each other record, in this
//! order:
//!
//! 1. The catalogs follow it, and answers that depend on their changes become void.
//! 2. The filter may drop it.
//! 3. The reorder buffers take it.
//! 4. All output is written and handed out before the next record is read.
//!
//! A transaction that has changed catalogs sees other catalogs than the rest. So its records bypass
//! the filter, which is shared.
//!
//! A member that fails says nothing more, and the others go on without it.

use std::mem;
use std::sync::Arc;

use base::{Lsn, Oid, RelFileLocator, Xid};
use catalog::{Catalog, Followed};
use decode::{Decoded, What, decode};
use rustc_hash::FxHashMap;
use txn::Spool;
use txn::reorder::{Boundary, ReorderBuffer, ReorderedEvent};
use wal::{Interest, LocatorFilterCache, Record, Rmgr, Verdict};

use crate::deletions::{Deleted, DeletionWriter};
use crate::error::{Error, Kind, Result};
use crate::options::Options;
use crate::table::Wanted;
use crate::tables::{Asked, Tables};
use crate::writer::{Counters, Output, Writer};

/// The catalogs at a place in the WAL, and what was met on the way there.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The catalogs as of the last record that was read.
    pub catalog: &'a Catalog,
    /// Where the last record ended. Once no more output comes, everything that committed before it
    /// has come out. It may then be confirmed, and is [`Options::start`] after a restart.
    pub decoded: Lsn,
    /// The newest transaction or subtransaction with a record; invalid before the first.
    pub newest: Xid,
    /// The server's last report of running transactions. The server reports at each checkpoint, and
    /// every fifteen seconds in which something was written.
    pub running: Option<Running>,
    /// The last record that changed rows or files of catalogs for all transactions; invalid before
    /// the first.
    pub changed: Lsn,
}

/// A server's report of running transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Running {
    /// Where the record of the report is.
    pub lsn: Lsn,
    /// All older transactions have ended, and the records of their ends were read.
    pub oldest: Xid,
}

impl Running {
    /// Whether all transactions have ended that were met up to the record at `lsn`, the newest of
    /// which is `newest`; invalid if none was met.
    #[must_use]
    pub fn have_ended(self, lsn: Lsn, newest: Xid) -> bool {
        self.lsn > lsn && (!newest.is_valid() || newest.precedes(self.oldest))
    }
}

/// See the module.
pub(crate) struct Group {
    pub(crate) database: Oid,
    pub(crate) catalog: Catalog,
    /// Records up to here were followed before; their changes came out or never will.
    followed: Lsn,
    /// Where the last record ended.
    pub(crate) end: Lsn,
    /// Where the last record begins, and its checksum; `None` before the first.
    pub(crate) last: Option<(Lsn, u32)>,
    pub(crate) cache: LocatorFilterCache,
    /// The option of the first member. The output is the same either way.
    has_filter: bool,
    /// The newest transaction with a record.
    newest: Xid,
    running: Option<Running>,
    /// The last record that changed the catalogs for all transactions.
    changed: Lsn,
    pub(crate) members: Vec<Member>,
}

/// A member of a [`Pass`](crate::Pass).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MemberId(pub(crate) u64);

/// The part of a group that belongs to one subscription.
pub(crate) struct Member {
    pub(crate) id: MemberId,
    pub(crate) options: Arc<Options>,
    pub(crate) tables: Tables,
    pub(crate) buffer: ReorderBuffer<Wanted>,
    pub(crate) writer: Writer,
    /// Takes the place of `writer` where deletions come out.
    deletions: Option<DeletionWriter>,
    /// By running transaction. `None` without two-phase commit, because only that needs it.
    first: Option<FxHashMap<Xid, First>>,
    seen_by_look: u64,
    /// What went wrong with the last record. The member then takes no more records.
    failed: Option<Error>,
}

/// What the server knows of a transaction.
#[derive(Debug, Clone, Copy)]
struct First {
    /// Its first record of any kind.
    lsn: Lsn,
    /// One of its records made the server take a snapshot. Without a snapshot, the server does not
    /// say that the transaction was prepared.
    has_snapshot: bool,
}

impl Group {
    /// Makes a group of one member, which has read up to `end`.
    pub(crate) fn new(catalog: Catalog, end: Lsn, member: Member) -> Group {
        let database = member.options.database;
        Group {
            database,
            followed: catalog.last(),
            catalog,
            end,
            last: None,
            cache: LocatorFilterCache::new([database]),
            has_filter: member.options.early_filter,
            newest: Xid::INVALID,
            running: None,
            changed: Lsn::INVALID,
            members: vec![member],
        }
    }

    /// The same group, which may be handed the last record again.
    pub(crate) fn going_on(self) -> Group {
        Group { followed: self.catalog.last(), ..self }
    }

    /// The catalogs, and how far WAL was read.
    pub(crate) fn place(&self) -> Place<'_> {
        Place {
            catalog: &self.catalog,
            decoded: self.end,
            newest: self.newest,
            running: self.running,
            changed: self.changed,
        }
    }

    /// Takes the members of `other`, which has followed the same catalogs to the same place.
    pub(crate) fn take_over(&mut self, other: Group) {
        self.cache.forget_all();
        if newer(other.newest, self.newest) {
            self.newest = other.newest;
        }
        self.changed = self.changed.max(other.changed);
        self.members.extend(other.members);
    }

    /// Removes a member. The others then need not look at what only that member wanted.
    pub(crate) fn leave(&mut self, member: usize) -> Member {
        self.cache.forget_all();
        self.members.remove(member)
    }

    /// Makes a group of that member alone, which goes on here.
    pub(crate) fn split(&mut self, member: usize) -> Group {
        let member = self.leave(member);
        Group {
            newest: self.newest,
            running: self.running,
            changed: self.changed,
            ..Group::new(self.catalog.clone(), self.end, member)
        }
    }

    /// Takes a record.
    ///
    /// # Errors
    /// Errors that concern all members: of the record or the catalogs. A member reports its own
    /// errors itself.
    pub(crate) fn take(&mut self, record: &Record<'_>) -> Result<()> {
        self.end = record.end();
        self.last = Some((record.lsn(), record.crc()));
        if record.lsn() <= self.followed {
            return Ok(());
        }
        if self.has_filter && is_elsewhere(record, self.database) {
            return self.pass_over(record);
        }
        let decoded = match record.rmgr() {
            Rmgr::Transaction | Rmgr::Standby => Some(decode(record)?),
            _ => None,
        };
        let followed = self.catalog.follow_decoded(record, decoded.as_ref())?;
        self.forget(&followed);
        // The files of catalogs that pg_class does not have change at once.
        if followed.rows || followed.changes.is_some() || record.rmgr() == Rmgr::RelMap {
            self.changed = record.lsn();
        }
        let xid = record.xid();
        if newer(xid, self.newest) {
            self.newest = xid;
        }
        let is_seen = xid.is_valid() && self.catalog.is_before(self.database, xid);
        let top = followed.top_level_xid;
        if xid.is_valid() && !is_seen {
            self.members.iter_mut().for_each(|member| member.note_first(record, top));
        }
        if let Some(decoded) = &decoded {
            if record.rmgr() == Rmgr::Transaction {
                self.transaction(record, decoded);
                return Ok(());
            }
            if let What::RunningXacts(running) = &decoded.what {
                self.running = Some(Running { lsn: record.lsn(), oldest: running.oldest });
            }
            self.pass(record, decoded);
            return Ok(());
        }
        match record.rmgr() {
            Rmgr::Heap | Rmgr::Heap2 if !is_seen => return self.heap(record, &followed),
            Rmgr::LogicalMessage => return self.logical_message(record, is_seen),
            _ if is_seen => {}
            _ => self.assign(record, top),
        }
        Ok(())
    }

    /// Notes a record about the files of another database. No member wants it, and its transaction
    /// cannot change anything here.
    fn pass_over(&mut self, record: &Record<'_>) -> Result<()> {
        self.catalog.pass_over(record)?;
        let xid = record.xid();
        if newer(xid, self.newest) {
            self.newest = xid;
        }
        Ok(())
    }

    fn forget(&mut self, followed: &Followed) {
        for member in &mut self.members {
            if let Some(top) = followed.own {
                member.tables.forget_own(top);
            }
            if let Some(changes) = &followed.changes {
                member.tables.forget(changes, &mut self.cache);
            }
        }
    }

    /// Notes a record without output. It may still be the record that says which transaction a
    /// subtransaction belongs to.
    fn assign(&mut self, record: &Record<'_>, top: Option<Xid>) {
        let Some(top) = top else { return };
        for member in &mut self.members {
            member.attempt(|member| Ok(member.buffer.assign(record.lsn(), top, record.xid())?));
        }
    }

    fn heap(&mut self, record: &Record<'_>, followed: &Followed) -> Result<()> {
        let (lsn, xid, top) = (record.lsn(), record.xid(), followed.top_level_xid);
        if self.has_filter && followed.is_catalog {
            self.assign(record, top);
            return Ok(());
        }
        let sees_its_own = xid.is_valid() && self.catalog.has_changes(xid);
        if !self.has_filter || sees_its_own && !self.is_unfollowed_catalog(followed.locator) {
            self.pass(record, &decode(record)?);
            return Ok(());
        }
        match self.judge(record, followed.locator.or_else(|| record.first_locator())) {
            Verdict::Dropped => {
                for member in &mut self.members {
                    member.attempt(|member| Ok(member.buffer.passed_over(lsn, xid, top)?));
                }
            }
            // A record of a catalog, which was followed already.
            Verdict::Wanted(relation) if !relation.is_user_defined() => self.assign(record, top),
            Verdict::Wanted(_) | Verdict::Unknown(_) => self.pass(record, &decode(record)?),
            Verdict::Other if is_truncate(record) => self.pass(record, &decode(record)?),
            Verdict::Other => self.assign(record, top),
        }
        Ok(())
    }

    /// Whether any member wants a record. Unknown are only files that no relation has.
    #[inline]
    fn judge(&mut self, record: &Record<'_>, locator: Option<RelFileLocator>) -> Verdict {
        match self.cache.judge_of(record, locator) {
            Verdict::Unknown(locator) => match self.learn(locator) {
                Some(_) => self.cache.judge(record),
                None => Verdict::Unknown(locator),
            },
            verdict => verdict,
        }
    }

    /// Tells the filter what these files are to all transactions, and returns their relation;
    /// `None` if no relation has them.
    fn learn(&mut self, locator: RelFileLocator) -> Option<Oid> {
        let mut union = None;
        for member in &mut self.members {
            let (catalog, union) = (&self.catalog, &mut union);
            member.attempt(|member| {
                if let Some((relation, interest)) = member.tables.interest(catalog, locator)? {
                    *union = Some((relation, unite(*union, interest)));
                }
                Ok(())
            });
        }
        let (relation, interest) = union?;
        self.cache.insert(locator, relation, interest);
        Some(relation)
    }

    /// Whether these files are known to belong to a relation that the server came with. They belong
    /// to no other relation then, whatever a transaction has changed. A transaction writes many
    /// rows of catalogs for each table that it makes, so this question is worth its cost.
    fn is_unfollowed_catalog(&mut self, locator: Option<RelFileLocator>) -> bool {
        let Some(locator) = locator.filter(|of| of.database == self.database || of.database == Oid(0)) else {
            return false;
        };
        let relation = match self.cache.get(locator) {
            Some((relation, _)) => Some(relation),
            // A file from initdb. A catalog that was rewritten is known once another transaction
            // has written to it.
            None if locator.relfilenumber < Oid::FIRST_NORMAL.0 => self.learn(locator),
            None => None,
        };
        relation.is_some_and(|relation| !relation.is_user_defined())
    }

    /// A message outside of its transaction comes out, whatever the look has seen.
    fn logical_message(&mut self, record: &Record<'_>, is_seen: bool) -> Result<()> {
        let decoded = decode(record)?;
        match &decoded.what {
            What::Message(message) if is_seen && message.transactional => {}
            _ if is_seen => self.pass(record, &Decoded { top_level_xid: None, ..decoded }),
            _ => self.pass(record, &decoded),
        }
        Ok(())
    }

    fn transaction(&mut self, record: &Record<'_>, decoded: &Decoded<'_>) {
        // The record of COMMIT PREPARED has the xid of another transaction, or none.
        let database = self.database;
        let (xid, committed) = match &decoded.what {
            What::Commit(ended) => (ended.xid, ended.database.is_none_or(|of| of == database)),
            What::Abort(ended) => (ended.xid, false),
            What::Prepare(prepared) => (prepared.xid, false),
            _ => (decoded.xid, false),
        };
        // The catalogs no longer know a subtransaction that has aborted, nor which transaction it
        // belonged to. The buffer does, and has nothing of transactions that the look has seen.
        let has_aborted = matches!(decoded.what, What::Abort(_));
        let is_seen = xid.is_valid() && !has_aborted && self.catalog.is_before(database, xid);
        for member in &mut self.members {
            if member.is_its_first(xid, record, decoded) {
                continue;
            }
            if is_seen {
                member.seen_by_look += u64::from(committed);
                continue;
            }
            member.pass(&self.catalog, record, decoded);
            if matches!(decoded.what, What::Commit(_) | What::Abort(_)) {
                member.tables.ended(xid, !has_aborted);
            }
        }
    }

    /// Hands a record to the reorder buffers.
    fn pass(&mut self, record: &Record<'_>, decoded: &Decoded<'_>) {
        for member in &mut self.members {
            member.pass(&self.catalog, record, decoded);
        }
    }
}

impl Member {
    pub(crate) fn new(options: Options, spool: Box<dyn Spool>) -> Member {
        let first = options.two_phase_at.map(|_| FxHashMap::default());
        let buffer = ReorderBuffer::new(options.reorder(), spool);
        let deletions = options.deletions.as_ref().map(|_| DeletionWriter::default());
        let options = Arc::new(options);
        let (tables, writer) = (Tables::new(Arc::clone(&options)), Writer::new(Arc::clone(&options)));
        Member {
            id: MemberId::default(),
            options,
            tables,
            buffer,
            writer,
            deletions,
            first,
            seen_by_look: 0,
            failed: None,
        }
    }

    /// Goes to the next message of the records so far, if there is one. [`Member::output`] returns
    /// it.
    ///
    /// # Errors
    /// The member's error; [`Kind::Over`] if it failed before. Nothing comes out afterwards.
    pub(crate) fn advance(&mut self, catalog: &Catalog) -> Result<bool> {
        if let Some(failed) = &mut self.failed {
            return Err(mem::replace(failed, Error::new(Kind::Over)));
        }
        self.go(catalog).inspect_err(|_| self.failed = Some(Error::new(Kind::Over)))
    }

    fn go(&mut self, catalog: &Catalog) -> Result<bool> {
        loop {
            let has_output = match &self.deletions {
                Some(deletions) => deletions.has_output(),
                None => self.writer.advance(),
            };
            if has_output {
                return Ok(true);
            }
            if !self.buffer.go()? {
                return Ok(false);
            }
            let Some(event) = self.buffer.event() else { return Err(self.buffer.cut_short().into()) };
            if let Some(deletions) = &mut self.deletions {
                deletions.event(&event, &self.options)?;
                continue;
            }
            let first = |xid| self.first.as_ref()?.get(&xid).copied();
            if let ReorderedEvent::Boundary(Boundary::BeginPrepare(prepared) | Boundary::Prepare(prepared)) =
                &event
                && first(prepared.xid).is_some_and(|first| !first.has_snapshot)
            {
                continue;
            }
            self.writer.event(&event, catalog, |xid| first(xid).map(|first| first.lsn))?;
        }
    }

    /// The message that [`Member::advance`] went to.
    pub(crate) fn output(&self) -> Option<Output<'_>> {
        self.writer.output()
    }

    /// Takes the deletion away that [`Member::advance`] went to.
    pub(crate) fn take_deletion(&mut self) -> Option<Deleted> {
        self.deletions.as_mut().and_then(DeletionWriter::take)
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters { reorder: self.buffer.counters(), seen_by_look: self.seen_by_look, ..self.writer.counters }
    }

    /// Does nothing once the member has failed.
    fn attempt(&mut self, what: impl FnOnce(&mut Member) -> Result<()>) {
        if self.failed.is_none() {
            self.failed = what(self).err();
        }
    }

    /// The server's `first_lsn` is a transaction's first record. The buffer's is the first record
    /// that it kept.
    fn note_first(&mut self, record: &Record<'_>, top: Option<Xid>) {
        if let Some(first) = &mut self.first {
            let new = First { lsn: record.lsn(), has_snapshot: false };
            let top = top.unwrap_or_else(|| self.buffer.top_of(record.xid()));
            let first = first.entry(top).or_insert(new);
            first.has_snapshot |= makes_snapshot(record);
        }
    }

    /// Whether this PREPARE is the transaction's first record. The server does not know such a
    /// transaction, which has changed nothing: it reports neither its PREPARE nor its end. For a
    /// transaction that was prepared before the start, this may be the first record that is read;
    /// it came out before.
    fn is_its_first(&self, xid: Xid, record: &Record<'_>, decoded: &Decoded<'_>) -> bool {
        let first = self.first.as_ref().and_then(|first| first.get(&xid));
        first.is_some_and(|first| first.lsn == record.lsn())
            && matches!(decoded.what, What::Prepare(_))
            && record.lsn() >= self.options.start
    }

    /// Whether only deletions come out, and this changes a row and is none of them.
    fn is_no_deletion(&self, decoded: &Decoded<'_>) -> bool {
        let Some(skipped) = &self.options.deletions else { return false };
        let is_skipped = || decoded.origin.is_some_and(|origin| skipped.contains(&origin));
        match &decoded.what {
            What::Update(update) => update.old.is_none() || is_skipped(),
            What::Insert(_) | What::MultiInsert(_) | What::Confirm(_) => true,
            What::Delete(_) | What::Truncate(_) => is_skipped(),
            _ => false,
        }
    }

    fn pass(&mut self, catalog: &Catalog, record: &Record<'_>, decoded: &Decoded<'_>) {
        self.attempt(|member| {
            if member.is_no_deletion(decoded) {
                let (lsn, xid, top) = (record.lsn(), decoded.xid, decoded.top_level_xid);
                return Ok(member.buffer.passed_over(lsn, xid, top)?);
            }
            let mut asked = Asked { catalog, tables: &mut member.tables, error: None };
            let taken = member.buffer.record((record.lsn(), record.end()), decoded, &mut asked);
            if let Some(error) = asked.error {
                return Err(error);
            }
            taken?;
            if let (What::RunningXacts(running), Some(first)) = (&decoded.what, &mut member.first) {
                first.retain(|xid, _| !xid.precedes(running.oldest));
            }
            Ok(())
        });
    }
}

/// Whether `xid` is valid, and newer than `other` if that is valid.
fn newer(xid: Xid, other: Xid) -> bool {
    xid.is_valid() && (!other.is_valid() || other.precedes(xid))
}

/// The union of what all members want. They agree about a catalog.
fn unite(all: Option<(Oid, Interest)>, one: Interest) -> Interest {
    match (all, one) {
        (Some((_, Interest::Rows(all))), Interest::Rows(one)) => Interest::Rows(all | one),
        (Some((_, Interest::Catalog)), _) => Interest::Catalog,
        (_, one) => one,
    }
}

/// Kinds of record of `Heap` and `Heap2`, `xl_info & XLOG_HEAP_OPMASK`.
mod op {
    pub(super) const MASK: u8 = 0x70;
    pub(super) const TRUNCATE: u8 = 0x30;
    pub(super) const LOCK: u8 = 0x60;
    /// Of `Heap2`.
    pub(super) const MULTI_INSERT: u8 = 0x50;
}

/// Whether a record is about files, and these are of another database than this one. Records of
/// transactions and of the server concern all databases, as do files that all share.
#[inline]
fn is_elsewhere(record: &Record<'_>, database: Oid) -> bool {
    match record.rmgr() {
        Rmgr::Heap
        | Rmgr::Heap2
        | Rmgr::Btree
        | Rmgr::Hash
        | Rmgr::Gin
        | Rmgr::Gist
        | Rmgr::Sequence
        | Rmgr::SpGist
        | Rmgr::Brin
        | Rmgr::Generic => {
            let of = record.first_locator().map_or(database, |locator| locator.database);
            of != database && of != Oid(0)
        }
        _ => false,
    }
}

/// Whether the server takes a snapshot for a record's transaction (`SnapBuildProcessChange`). It
/// does for changes of rows and for messages, not for locks.
fn makes_snapshot(record: &Record<'_>) -> bool {
    match record.rmgr() {
        Rmgr::Heap => record.info() & op::MASK != op::LOCK,
        Rmgr::Heap2 => record.info() & op::MASK == op::MULTI_INSERT,
        Rmgr::LogicalMessage => true,
        _ => false,
    }
}

/// Whether this is the record of a TRUNCATE, which names relations and no files.
fn is_truncate(record: &Record<'_>) -> bool {
    record.rmgr() == Rmgr::Heap && record.info() & op::MASK == op::TRUNCATE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_have_ended_when_the_server_says_so_later() {
        let ended = |newest: u32, lsn: u64, oldest: u32| {
            let running = Running { lsn: Lsn::new(lsn), oldest: Xid(oldest) };
            running.have_ended(Lsn::new(100), Xid(newest))
        };
        assert!(!ended(900, 108, 900), "it runs");
        assert!(!ended(900, 108, 899), "an older one runs");
        assert!(ended(900, 108, 901));
        assert!(!ended(900, 100, 901), "said before");
        assert!(ended(u32::MAX, 108, 3), "ids wrap around");
        assert!(ended(0, 108, 3), "none was met");
    }
}
