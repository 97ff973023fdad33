//! Counts how often each trap occurred, in the WAL itself and in the output, not in the plan of the
//! walk.

use std::collections::{BTreeMap, HashMap, HashSet};

use base::{Lsn, Oid, Xid};
use decode::{NewTuple, What};
use wal::{Reader, Start};

use crate::message::{Message, Sent, Value, read};

/// The situations that a decoder of WAL outside of the server gets wrong. Each must occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trap {
    CatalogRewrittenBeforeOwnDdl,
    CatalogRewrittenByUpkeep,
    TupleOnlyInPageImage,
    TupleSpliced,
    AbortedByCrash,
    MissingValue,
    LookAmidDdl,
    LookAmidCatalogRewrite,
    SpeculativeTakenBack,
    SpeculativeConfirmed,
    MultiInsert,
    ToastUnchanged,
    MovedByFilter,
    PartitionMove,
    Truncate,
    SubtransactionAborted,
    SubtransactionsAssigned,
    WeSpilled,
    WeStreamed,
    StreamedSubtransactionAborted,
    ServerStreamed,
    Prepared,
    PreparedAcrossCrash,
    FromOrigin,
    LogicalMessage,
    JoinedPass,
    LeftPass,
}

/// With fewer occurrences, a run of CI shows nothing about the trap.
pub(crate) const OCCURRENCES_MIN: u64 = 20;

const ALL: [Trap; 27] = [
    Trap::CatalogRewrittenBeforeOwnDdl,
    Trap::CatalogRewrittenByUpkeep,
    Trap::TupleOnlyInPageImage,
    Trap::TupleSpliced,
    Trap::AbortedByCrash,
    Trap::MissingValue,
    Trap::LookAmidDdl,
    Trap::LookAmidCatalogRewrite,
    Trap::SpeculativeTakenBack,
    Trap::SpeculativeConfirmed,
    Trap::MultiInsert,
    Trap::ToastUnchanged,
    Trap::MovedByFilter,
    Trap::PartitionMove,
    Trap::Truncate,
    Trap::SubtransactionAborted,
    Trap::SubtransactionsAssigned,
    Trap::WeSpilled,
    Trap::WeStreamed,
    Trap::StreamedSubtransactionAborted,
    Trap::ServerStreamed,
    Trap::Prepared,
    Trap::PreparedAcrossCrash,
    Trap::FromOrigin,
    Trap::LogicalMessage,
    Trap::JoinedPass,
    Trap::LeftPass,
];

/// Occurrences by trap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traps(BTreeMap<Trap, u64>);

impl Traps {
    pub(crate) fn add(&mut self, trap: Trap, count: u64) {
        *self.0.entry(trap).or_default() += count;
    }

    pub(crate) fn absorb(&mut self, other: &Traps) {
        other.0.iter().for_each(|(trap, count)| self.add(*trap, *count));
    }

    /// Prints one line for each trap.
    pub(crate) fn print(&self, whose: &str) {
        for trap in ALL {
            println!("{whose}: {:>8}  {trap:?}", self.0.get(&trap).copied().unwrap_or_default());
        }
    }

    /// The traps that occurred too rarely.
    pub(crate) fn rare(&self) -> Vec<(Trap, u64)> {
        let count = |trap: Trap| self.0.get(&trap).copied().unwrap_or_default();
        ALL.into_iter()
            .map(|trap| (trap, count(trap)))
            .filter(|(_, count)| *count < OCCURRENCES_MIN)
            .collect()
    }
}

/// Reads WAL beside the decoders.
pub(crate) struct Census {
    database: Oid,
    reader: Reader,
    /// Transactions that have written in the database and have not ended, without prepared ones.
    open: HashSet<Xid>,
    tops: HashMap<Xid, Xid>,
    /// Where updates were, since the last time they were taken.
    updates: HashSet<u64>,
    /// The top-level transactions that ended in this WAL.
    pub(crate) transactions: u64,
    pub(crate) traps: Traps,
}

impl Census {
    pub(crate) fn new(database: Oid, from: Lsn) -> Census {
        Census {
            database,
            reader: Reader::new(Start::at(from)).unwrap(),
            open: HashSet::new(),
            tops: HashMap::new(),
            updates: HashSet::new(),
            transactions: 0,
            traps: Traps::default(),
        }
    }

    pub(crate) fn position(&self) -> Lsn {
        self.reader.position()
    }

    pub(crate) fn read(&mut self, bytes: &[u8]) {
        // Moves the reader out, because its records borrow it while the rest of this value changes.
        let placeholder = Reader::new(Start::at(Lsn::new(0))).unwrap();
        let mut reader = std::mem::replace(&mut self.reader, placeholder);
        let mut records = reader.push(reader.position(), bytes).unwrap();
        while let Some(record) = records.poll().unwrap() {
            let decoded = decode::decode(&record).unwrap();
            if let Some(top) = decoded.top_level_xid {
                self.tops.insert(decoded.xid, top);
            }
            let locator = record.first_locator();
            let ours = locator.is_some_and(|locator| locator.database == self.database);
            if ours && decoded.xid.is_valid() {
                let top = self.top(decoded.xid);
                self.open.insert(top);
            }
            self.one(record.lsn(), &decoded.what, ours);
            self.traps.add(Trap::FromOrigin, u64::from(ours && decoded.origin.is_some()));
        }
        self.reader = reader;
    }

    fn top(&self, xid: Xid) -> Xid {
        self.tops.get(&xid).copied().unwrap_or(xid)
    }

    fn one(&mut self, lsn: Lsn, what: &What<'_>, ours: bool) {
        match what {
            What::Insert(insert) if ours => self.tuple(&insert.tuple),
            What::MultiInsert(rows) if ours && rows.is_logical && !rows.is_toast => {
                self.traps.add(Trap::MultiInsert, 1);
            }
            What::Update(update) if ours => {
                self.tuple(&update.tuple);
                self.updates.insert(lsn.as_u64());
                if let (Some(old), NewTuple::Whole(new)) = (&update.old, &update.tuple) {
                    let is_shorter = !old.key_only && old.tuple.attributes() < new.attributes();
                    self.traps.add(Trap::MissingValue, u64::from(is_shorter));
                }
            }
            What::Delete(delete) if ours => {
                self.traps.add(Trap::SpeculativeTakenBack, delete.is_super.into());
                self.traps.add(Trap::PartitionMove, delete.is_partition_move.into());
            }
            What::Confirm(_) if ours => self.traps.add(Trap::SpeculativeConfirmed, 1),
            What::Truncate(truncate) if truncate.database == self.database => {
                self.traps.add(Trap::Truncate, 1)
            }
            What::Assignment { .. } => self.traps.add(Trap::SubtransactionsAssigned, 1),
            What::Prepare(prepared) if prepared.database == self.database => {
                self.open.remove(&prepared.xid);
                self.traps.add(Trap::Prepared, 1);
            }
            What::Message(message) if message.database == self.database => {
                self.traps.add(Trap::LogicalMessage, 1);
            }
            What::Commit(ended) | What::Abort(ended) => self.end(ended.xid, ended.is_prepared),
            // Recovery has ended. Transactions that were open are gone, without a record.
            What::EndOfRecovery { .. } => self.crashed(),
            What::Checkpoint(checkpoint) if !checkpoint.oldest_active_xid.is_valid() => self.crashed(),
            _ => {}
        }
    }

    fn end(&mut self, xid: Xid, is_prepared: bool) {
        if self.tops.contains_key(&xid) {
            self.traps.add(Trap::SubtransactionAborted, 1);
        } else if self.open.remove(&xid) || is_prepared {
            self.transactions += 1;
        }
    }

    fn crashed(&mut self) {
        self.traps.add(Trap::AbortedByCrash, self.open.len() as u64);
        self.transactions += self.open.len() as u64;
        self.open.clear();
    }

    fn tuple(&mut self, tuple: &NewTuple<'_>) {
        match tuple {
            NewTuple::Whole(_) => {}
            NewTuple::Spliced(_) => self.traps.add(Trap::TupleSpliced, 1),
            NewTuple::InImage(_) => self.traps.add(Trap::TupleOnlyInPageImage, 1),
        }
    }

    /// Counts the traps that messages show. It uses the server's messages where either side's would
    /// do.
    pub(crate) fn messages(&mut self, theirs: &[Sent], ours: &[Sent]) {
        self.each(theirs, |census, sent, message| {
            let rows = match message {
                Message::Update { new, old, .. } => [Some(new), old.as_ref().map(|(_, row)| row)],
                _ => [None; 2],
            };
            let unchanged = rows.into_iter().flatten().flatten().filter(|value| **value == Value::Unchanged);
            census.traps.add(Trap::ToastUnchanged, u64::from(unchanged.count() > 0));
            let is_moved = matches!(message, Message::Insert { .. } | Message::Delete { .. });
            let is_update = census.updates.contains(&sent.lsn);
            census.traps.add(Trap::MovedByFilter, u64::from(is_moved && is_update));
            let is_streamed = matches!(message, Message::StreamStart { first: 1, .. });
            census.traps.add(Trap::ServerStreamed, is_streamed.into());
        });
        self.each(ours, |census, _, message| match message {
            Message::StreamStart { first: 1, .. } => census.traps.add(Trap::WeStreamed, 1),
            Message::StreamAbort { xid, sub, .. } if xid != sub => {
                census.traps.add(Trap::StreamedSubtransactionAborted, 1);
            }
            _ => {}
        });
    }

    fn each(&mut self, sent: &[Sent], mut see: impl FnMut(&mut Census, &Sent, &Message)) {
        let mut in_stream = false;
        for sent in sent {
            let (_, message) = read(&sent.data, in_stream).unwrap();
            match message {
                Message::StreamStart { .. } => in_stream = true,
                Message::StreamStop => in_stream = false,
                _ => {}
            }
            see(self, sent, &message);
        }
    }
}
