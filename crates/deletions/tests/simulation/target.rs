//! The target: rows are deleted there, its WAL is captured, and the publisher's updates are applied
//! by pipelines.
//!
//! Each update finds its row missing, so that each asks.

use std::collections::{BTreeSet, VecDeque};

use base::{Lsn, PgTimestamp, Xid};
use deletions::{Kind, Tombstone};
use rand::Rng;
use rand::rngs::StdRng;

use crate::publisher::Record;
use crate::world::{MS, ROWS, SECOND};

#[derive(Debug)]
pub(crate) struct Target {
    /// Of its clock, to the true time.
    pub(crate) offset: i64,
    pub(crate) insert: u64,
    pub(crate) flushed: u64,
    pub(crate) deletions: Vec<(u64, Tombstone)>,
}

impl Target {
    pub(crate) fn new(random: &mut StdRng) -> Target {
        let offset = random.random_range(-2000..2000) * MS;
        Target { offset, insert: 1000, flushed: 1000, deletions: Vec::new() }
    }

    pub(crate) fn clock(&self, now: i64) -> PgTimestamp {
        PgTimestamp(now + self.offset)
    }

    /// Somebody deletes a row; or a third server's stream does, whose clock is another one.
    pub(crate) fn delete(&mut self, now: i64, random: &mut StdRng) {
        let is_third = random.random_bool(0.1);
        let skew = if is_third { random.random_range(-SECOND..2 * SECOND) } else { 0 };
        self.insert += random.random_range(50..300);
        let tombstone = Tombstone {
            lsn: Lsn::new(self.insert),
            xid: Xid(self.deletions.len() as u32 + 1),
            origin: is_third.then_some(9),
            time: PgTimestamp(self.clock(now).0 + skew),
            kind: Kind::Delete,
        };
        self.deletions.push((random.random_range(0..ROWS), tombstone));
    }

    pub(crate) fn flush(&mut self) -> Lsn {
        self.flushed = self.insert;
        Lsn::new(self.flushed)
    }

    /// What was not flushed did not happen.
    pub(crate) fn crash(&mut self) {
        self.insert = self.flushed;
        let flushed = self.flushed;
        self.deletions.retain(|(_, tombstone)| tombstone.lsn.as_u64() <= flushed);
    }
}

/// One stream from the publisher to the target. Positions are the publisher's.
#[derive(Debug)]
pub(crate) struct Pipeline {
    /// Rows with this remainder are its own.
    part: u64,
    parts: u64,
    pub(crate) received: u64,
    pub(crate) applied: u64,
    pub(crate) flushed: u64,
    /// It counts for the horizon.
    pub(crate) is_known: bool,
    /// The record that waits for an answer, and what capture must pass.
    pub(crate) blocked: Option<(Record, Lsn)>,
    /// `commit_order = relaxed`: a transaction may commit before an earlier one.
    is_relaxed: bool,
    /// Records that are applied later than those behind them.
    pub(crate) late: VecDeque<Record>,
    /// Where the records end that were applied before an earlier one.
    ahead: BTreeSet<u64>,
    /// Records of a table whose copy is not finished.
    pub(crate) joining: VecDeque<Record>,
    /// Records behind `flushed` that are not reported as durable.
    pub(crate) undurable: VecDeque<Record>,
}

impl Pipeline {
    pub(crate) fn new(
        (part, parts): (u64, u64),
        position: u64,
        is_known: bool,
        is_relaxed: bool,
    ) -> Pipeline {
        Pipeline {
            part,
            parts,
            received: position,
            applied: position,
            flushed: position,
            is_known,
            blocked: None,
            is_relaxed,
            late: VecDeque::new(),
            ahead: BTreeSet::new(),
            joining: VecDeque::new(),
            undurable: VecDeque::new(),
        }
    }

    pub(crate) fn has(&self, row: u64) -> bool {
        row % self.parts == self.part
    }

    /// Whether a record is left for later. It is the next one.
    pub(crate) fn is_left(&self, random: &mut StdRng) -> bool {
        self.is_relaxed && self.late.len() < 4 && random.random_bool(0.1)
    }

    /// Whether the target has a record already, which comes again.
    pub(crate) fn is_done(&self, record: &Record) -> bool {
        self.ahead.contains(&record.end)
    }

    /// The target flushes everything; returns what is durable now.
    pub(crate) fn flush(&mut self) -> Vec<Record> {
        let done: Vec<Record> = self.undurable.drain(..).collect();
        self.ahead.extend(done.iter().map(|record| record.end));
        let missing = self.late.iter().map(|record| record.end - 1).min();
        self.flushed = missing.map_or(self.applied, |missing| missing.min(self.applied));
        self.ahead.retain(|end| *end > self.flushed);
        done
    }

    /// The last position up to which anything is flushed.
    pub(crate) fn flushed_last(&self) -> u64 {
        self.ahead.last().copied().unwrap_or_default().max(self.flushed)
    }

    /// The target crashes: what it had not flushed comes again.
    pub(crate) fn crash(&mut self) {
        let flushed = self.flushed;
        self.applied = flushed;
        self.blocked = None;
        self.late.clear();
        self.joining.retain(|record| record.end <= flushed);
        self.undurable.retain(|record| record.end <= flushed);
    }
}

/// Whether a row is in the table that is copied anew now and then.
pub(crate) fn is_copied(row: u64) -> bool {
    row.is_multiple_of(5)
}
