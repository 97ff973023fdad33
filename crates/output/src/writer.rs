//! Turns the reorder buffer's events into messages, as pgoutput's callbacks do.
//!
//! One event becomes any number of messages: none for a row that a filter drops, several for the
//! first row of a table. They go into one buffer, which is handed out message by message before the
//! next event is taken.

use std::ops::Range;
use std::sync::Arc;

use base::{Lsn, Oid, Xid};
use catalog::Catalog;
use filter::Filter;
use proto::pgoutput::CommitInfo;
use proto::pgoutput::encode::{self, Marker};
use rustc_hash::FxHashMap;
use txn::reorder::{
    Boundary, Finished, Origin, Prepared, RawAction, ReorderedEvent, ReorderedMessage, ReorderedRow,
    ReorderedTruncate,
};
use wal::Actions;

use crate::error::{Error, Kind, Result};
use crate::options::{OnRefused, Options, Streaming};
use crate::row::{Of, Room, Side};
use crate::table::{Failure, OutputTable, Wanted};

/// From this major on, BEGIN is sent with a transaction's first message, and a transaction without
/// messages is not sent.
const DELAYS_BEGIN_SINCE: u32 = 15;

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

/// Counts of what was decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Counts of transactions that were spilled or streamed.
    pub reorder: txn::reorder::Counters,
    /// Transactions that came out with their commit or their PREPARE.
    pub transactions: u64,
    /// Rows that came out.
    pub rows: u64,
    /// Committed transactions of the database that were left out because the look at the catalogs
    /// saw them.
    pub seen_by_look: u64,
}

/// Messages that are being written.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    /// The end of each message, with its LSN and transaction.
    ends: Vec<(usize, Lsn, Xid)>,
    /// The number of messages handed out.
    out: usize,
}

impl Batch {
    /// Marks the message that was written last as complete.
    fn end(&mut self, lsn: Lsn, xid: Xid) {
        self.ends.push((self.bytes.len(), lsn, xid));
    }

    fn range(&self, number: usize) -> Range<usize> {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before].0);
        start..self.ends[number].0
    }
}

/// The transaction that is coming out, or a block of it.
#[derive(Debug, Clone, Copy)]
struct Current {
    top: Xid,
    in_stream: bool,
    /// Its BEGIN, until that is sent.
    begin: Option<Finished>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Writer {
    options: Arc<Options>,
    batch: Batch,
    current: Option<Current>,
    /// By relation, the number of the description that the receiver has.
    announced: FxHashMap<Oid, u64>,
    /// The last announcement that was looked up: the streamed transaction, if any, and the
    /// description's number.
    last_announced: (Option<Xid>, u64),
    /// The same as `announced` for open transactions, which the receiver may never see.
    in_streams: FxHashMap<(Xid, Oid), u64>,
    rooms: [Room; 2],
    relations: Vec<Oid>,
    pub(crate) counters: Counters,
}

impl Writer {
    pub(crate) fn new(options: Arc<Options>) -> Writer {
        Writer {
            options,
            batch: Batch::default(),
            current: None,
            announced: FxHashMap::default(),
            last_announced: (None, 0),
            in_streams: FxHashMap::default(),
            rooms: [Room::default(), Room::default()],
            relations: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Goes to the next message, if there is one.
    pub(crate) fn advance(&mut self) -> bool {
        if self.batch.out < self.batch.ends.len() {
            self.batch.out += 1;
            return true;
        }
        if self.batch.out > 0 {
            self.batch.out = 0;
            self.batch.ends.clear();
        }
        self.batch.bytes.clear();
        self.batch.bytes.shrink_to(ROOM_KEPT_BYTES);
        false
    }

    /// The message that [`Writer::advance`] went to.
    pub(crate) fn output(&self) -> Option<Output<'_>> {
        let number = self.batch.out.checked_sub(1)?;
        let (_, lsn, xid) = *self.batch.ends.get(number)?;
        Some(Output { lsn, xid, data: &self.batch.bytes[self.batch.range(number)] })
    }

    /// Writes the messages for `event`. `first_lsn` returns the server's LSN of a transaction's
    /// first record.
    pub(crate) fn event(
        &mut self,
        event: &ReorderedEvent<'_, Wanted>,
        catalog: &Catalog,
        first_lsn: impl Fn(Xid) -> Option<Lsn>,
    ) -> Result<()> {
        match event {
            ReorderedEvent::Row(row) => self.row(row, catalog),
            ReorderedEvent::Boundary(boundary) => {
                self.boundary(boundary, catalog, first_lsn);
                Ok(())
            }
            ReorderedEvent::Truncate(truncate) => self.truncate(truncate, catalog),
            ReorderedEvent::Message(message) => {
                self.message(message, catalog);
                Ok(())
            }
        }
    }

    fn boundary(&mut self, boundary: &Boundary, catalog: &Catalog, first_lsn: impl Fn(Xid) -> Option<Lsn>) {
        match boundary {
            Boundary::Begin(begin) => {
                self.current = Some(Current { top: begin.xid, in_stream: false, begin: Some(*begin) });
                if self.options.settings.version.major() < DELAYS_BEGIN_SINCE {
                    self.begin(first_lsn(begin.xid).unwrap_or(begin.first_lsn), catalog);
                }
            }
            Boundary::Commit(commit) => {
                let was_sent = self.current.take().is_some_and(|current| current.begin.is_none());
                if was_sent {
                    self.counters.transactions += 1;
                    encode::commit(&mut self.batch.bytes, &info(commit));
                    self.batch.end(commit.end_lsn, commit.xid);
                }
            }
            Boundary::BeginPrepare(prepared) => {
                self.current = Some(Current { top: prepared.xid, in_stream: false, begin: None });
                let lsn = first_lsn(prepared.xid).unwrap_or(prepared.first_lsn);
                encode::begin_prepare(&mut self.batch.bytes, &told(prepared));
                self.batch.end(lsn, prepared.xid);
                self.origin(prepared.origin, (lsn, prepared.xid), catalog);
            }
            Boundary::Prepare(prepared) => {
                self.current = None;
                self.counters.transactions += 1;
                encode::prepare(&mut self.batch.bytes, &told(prepared));
                self.batch.end(prepared.end_lsn, prepared.xid);
            }
            Boundary::CommitPrepared { commit, gid } => {
                encode::commit_prepared(&mut self.batch.bytes, commit.xid, &info(commit), gid);
                self.batch.end(commit.end_lsn, commit.xid);
            }
            Boundary::RollbackPrepared { prepared, end_lsn, time } => {
                encode::rollback_prepared(&mut self.batch.bytes, &told(prepared), *end_lsn, *time);
                self.batch.end(*end_lsn, prepared.xid);
            }
            Boundary::StreamStart { xid, first_segment, first_lsn, origin } => {
                self.current = Some(Current { top: *xid, in_stream: true, begin: None });
                encode::stream_start(&mut self.batch.bytes, *xid, *first_segment);
                self.batch.end(*first_lsn, *xid);
                let origin = origin.filter(|_| *first_segment).map(|id| Origin { id, lsn: Lsn::INVALID });
                self.origin(origin, (*first_lsn, *xid), catalog);
            }
            Boundary::StreamStop { xid, last_lsn } => {
                self.current = None;
                encode::stream_stop(&mut self.batch.bytes);
                self.batch.end(*last_lsn, *xid);
            }
            Boundary::StreamCommit(commit) => {
                self.counters.transactions += 1;
                encode::stream_commit(&mut self.batch.bytes, commit.xid, &info(commit));
                self.batch.end(commit.end_lsn, commit.xid);
                self.end_stream(commit.xid, true);
            }
            Boundary::StreamPrepare(prepared) => {
                self.counters.transactions += 1;
                encode::stream_prepare(&mut self.batch.bytes, &told(prepared));
                self.batch.end(prepared.end_lsn, prepared.xid);
                self.end_stream(prepared.xid, false);
            }
            Boundary::StreamAbort { xid, subxid, end_lsn, time } => {
                let place = (self.options.streaming == Streaming::Parallel).then_some((*end_lsn, *time));
                encode::stream_abort(&mut self.batch.bytes, *xid, *subxid, place);
                self.batch.end(*end_lsn, *subxid);
                // The aborted part may have announced relations.
                self.end_stream(*xid, false);
            }
        }
    }

    /// Lets every relation and type be described again at its next use. No message may be waiting.
    pub(crate) fn describe_again(&mut self) {
        self.announced.clear();
        self.last_announced = (None, 0);
    }

    /// Ends the announcements of a stream. If the transaction committed, they hold for all.
    fn end_stream(&mut self, top: Xid, committed: bool) {
        let hold = committed && !self.options.read_by_many;
        for ((_, relation), number) in self.in_streams.extract_if(|(xid, _), _| *xid == top) {
            if hold {
                self.announced.insert(relation, number);
            }
        }
        self.last_announced = (None, 0);
    }

    /// Writes a transaction's origin, if it has one with a known name.
    fn origin(&mut self, origin: Option<Origin>, (lsn, xid): (Lsn, Xid), catalog: &Catalog) {
        let Some(origin) = origin else { return };
        let Some(name) = catalog.origin_name(origin.id) else { return };
        encode::origin(&mut self.batch.bytes, origin.lsn, name);
        self.batch.end(lsn, xid);
    }

    /// Writes the BEGIN of a transaction before its first message, which is at `lsn`.
    fn begin(&mut self, lsn: Lsn, catalog: &Catalog) {
        let Some(begin) = self.current.as_mut().and_then(|current| current.begin.take()) else { return };
        encode::begin(&mut self.batch.bytes, begin.final_lsn, begin.commit_time, begin.xid);
        self.batch.end(lsn, begin.xid);
        self.origin(begin.origin, (lsn, begin.xid), catalog);
    }

    fn top(&self) -> Xid {
        self.current.map_or(Xid::INVALID, |current| current.top)
    }

    /// The transaction that a message names. Messages name one only in a stream.
    fn named(&self, xid: Xid) -> Option<Xid> {
        self.current.filter(|current| current.in_stream).map(|_| xid)
    }

    /// Describes a table to the receiver, unless the receiver has this description.
    fn announce(&mut self, table: &OutputTable, lsn: Lsn, xid: Xid) {
        let (top, named) = (self.top(), self.named(xid));
        let last = (named.map(|_| top), table.number);
        if self.last_announced == last {
            return;
        }
        self.last_announced = last;
        let known = match named {
            Some(_) => self.in_streams.insert((top, table.oid), table.number),
            None => self.announced.insert(table.oid, table.number),
        };
        if known == Some(table.number) {
            return;
        }
        for message in &table.announcements {
            self.batch.bytes.push(message[0]);
            if let Some(xid) = named {
                self.batch.bytes.extend_from_slice(&xid.0.to_be_bytes());
            }
            self.batch.bytes.extend_from_slice(&message[1..]);
            self.batch.end(lsn, top);
        }
    }

    /// Whether rows of the table can come out. False if they are left out; an error if they may not
    /// be.
    fn can_come_out(&self, table: &OutputTable, lsn: Lsn) -> Result<bool> {
        match &table.failure {
            None => Ok(true),
            Some(Failure::Refused(refused)) => match &self.options.refused {
                OnRefused::LeaveOut => Ok(false),
                OnRefused::LeaveOutOthers(part) if !part.has(&refused.published_as) => Ok(false),
                OnRefused::Stop | OnRefused::LeaveOutOthers(_) => {
                    Err(Error::new(Kind::Refused { lsn, refused: refused.clone() }))
                }
            },
            Some(Failure::Publication(what)) => {
                Err(Error::new(Kind::Publication { lsn, what: what.clone() }))
            }
        }
    }

    fn row(&mut self, row: &ReorderedRow<'_, Wanted>, catalog: &Catalog) -> Result<()> {
        let Wanted(table) = row.relation;
        let (action, filters) = match &row.action {
            RawAction::Insert(_) => (Actions::INSERT, &table.filters.insert),
            RawAction::Update { .. } => (Actions::UPDATE, &table.filters.update),
            // Without a replica identity, there is nothing to send.
            RawAction::Delete(None) => return Ok(()),
            RawAction::Delete(Some(_)) => (Actions::DELETE, &table.filters.delete),
        };
        if !table.actions.any_of(action) || !self.can_come_out(table, row.lsn)? {
            return Ok(());
        }
        let of = Of { lsn: row.lsn, table, chunks: row.chunks };
        let Some(change) = self.taken_apart(&of, &row.action, filters.as_deref())? else { return Ok(()) };
        self.begin(row.lsn, catalog);
        self.announce(table, row.lsn, row.xid);
        let named = self.named(row.xid);
        let form = (&self.options.settings, self.options.binary);
        let out = &mut self.batch.bytes;
        encode::row(out, change.letter, named, table.target);
        if let Some(old) = &change.old {
            encode::marker(out, if table.whole_old { Marker::Old } else { Marker::Key });
            of.write(old, form, out)?;
        }
        if let Some(new) = &change.new {
            encode::marker(out, Marker::New);
            of.write(new, form, out)?;
        }
        self.batch.end(row.lsn, self.top());
        self.counters.rows += 1;
        let [new_room, old_room] = &mut self.rooms;
        change.new.into_iter().for_each(|side| new_room.give(side));
        change.old.into_iter().for_each(|side| old_room.give(side));
        Ok(())
    }

    /// The rows of a change, and the kind of change that is sent; `None` if its filters drop it.
    fn taken_apart<'a>(
        &mut self,
        of: &Of<'a>,
        action: &RawAction<'a>,
        filters: Option<&'a [Filter]>,
    ) -> Result<Option<SentChange<'a>>> {
        let [new_room, old_room] = &mut self.rooms;
        let change = match action {
            RawAction::Insert(new) => {
                SentChange { letter: b'I', old: None, new: Some(of.side(new, new_room)?) }
            }
            RawAction::Update { old, new } => {
                let old = old.as_ref().map(|old| of.side(&old.tuple, old_room)).transpose()?;
                SentChange { letter: b'U', old, new: Some(of.side(new, new_room)?) }
            }
            RawAction::Delete(old) => {
                let old = old.as_ref().map(|old| of.side(&old.tuple, old_room)).transpose()?;
                SentChange { letter: b'D', old, new: None }
            }
        };
        match filters {
            None => Ok(Some(change)),
            Some(filters) => filtered(of, filters, change),
        }
    }

    fn truncate(&mut self, truncate: &ReorderedTruncate<'_, Wanted>, catalog: &Catalog) -> Result<()> {
        let lsn = truncate.lsn;
        let mut relations = std::mem::take(&mut self.relations);
        relations.clear();
        for Wanted(table) in &truncate.relations {
            if let Some(Failure::Publication(what)) = &table.failure {
                return Err(Error::new(Kind::Publication { lsn, what: what.clone() }));
            }
            if table.truncates {
                relations.push(table.oid);
                self.begin(lsn, catalog);
                self.announce(table, lsn, truncate.xid);
            }
        }
        if !relations.is_empty() {
            let named = self.named(truncate.xid);
            let (cascade, restart) = (truncate.cascade, truncate.restart_identity);
            encode::truncate(&mut self.batch.bytes, named, &relations, cascade, restart);
            self.batch.end(lsn, self.top());
        }
        self.relations = relations;
        Ok(())
    }

    fn message(&mut self, message: &ReorderedMessage<'_>, catalog: &Catalog) {
        let (lsn, transactional) = (message.lsn, message.transactional);
        let (xid, named) = if transactional {
            self.begin(lsn, catalog);
            // Unlike a row, a message does not name the subtransaction that wrote it.
            (self.top(), self.named(self.top()))
        } else {
            (message.xid, None)
        };
        let words = (message.prefix, message.content);
        encode::message(&mut self.batch.bytes, named, transactional, lsn, words);
        self.batch.end(lsn, xid);
    }
}

/// A change of a row in the form that is sent.
struct SentChange<'a> {
    letter: u8,
    old: Option<Side<'a>>,
    new: Option<Side<'a>>,
}

/// What filters leave of a change. An update that moves a row into the published rows becomes an
/// insert; one that moves it out becomes a delete.
fn filtered<'a>(
    of: &Of<'a>,
    filters: &'a [Filter],
    change: SentChange<'a>,
) -> Result<Option<SentChange<'a>>> {
    let (old, new) = match (&change.old, &change.new) {
        (Some(old), Some(new)) => (old, new),
        (Some(one), None) | (None, Some(one)) => {
            return Ok(of.keeps(filters, one)?.then_some(change));
        }
        (None, None) => return Ok(None),
    };
    let completed = of.complete(new, old)?;
    let kept = (of.keeps(filters, old)?, of.keeps(filters, &completed)?);
    Ok(match kept {
        (false, false) => None,
        (false, true) => Some(SentChange { letter: b'I', old: None, new: Some(completed) }),
        (true, false) => Some(SentChange { letter: b'D', old: change.old, new: None }),
        (true, true) => Some(change),
    })
}

/// Memory that the buffer keeps. What a wide row needed beyond this is given back.
const ROOM_KEPT_BYTES: usize = 1 << 20;

fn info(finished: &Finished) -> CommitInfo {
    CommitInfo {
        commit_lsn: finished.final_lsn,
        end_lsn: finished.end_lsn,
        commit_time: finished.commit_time,
    }
}

fn told(prepared: &Prepared) -> encode::Prepared<'_> {
    encode::Prepared {
        prepare_lsn: prepared.prepare_lsn,
        end_lsn: prepared.end_lsn,
        time: prepared.prepare_time,
        xid: prepared.xid,
        gid: &prepared.gid,
    }
}
