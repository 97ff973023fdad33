//! The target: rows are deleted there, its WAL is captured, and the publisher's updates are applied
//! by pipelines.
//!
//! Each update finds its row missing, so that each asks.

use std::collections::VecDeque;

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
    /// Records of a table whose copy is not finished.
    pub(crate) joining: VecDeque<Record>,
    /// Records behind `flushed` that are not reported as durable.
    pub(crate) undurable: VecDeque<Record>,
}

impl Pipeline {
    pub(crate) fn new((part, parts): (u64, u64), position: u64, is_known: bool) -> Pipeline {
        Pipeline {
            part,
            parts,
            received: position,
            applied: position,
            flushed: position,
            is_known,
            blocked: None,
            joining: VecDeque::new(),
            undurable: VecDeque::new(),
        }
    }

    pub(crate) fn has(&self, row: u64) -> bool {
        row % self.parts == self.part
    }

    /// The target crashes: what it had not flushed comes again.
    pub(crate) fn crash(&mut self) {
        let flushed = self.flushed;
        self.applied = flushed;
        self.blocked = None;
        self.joining.retain(|record| record.end <= flushed);
        self.undurable.retain(|record| record.end <= flushed);
    }
}

/// Whether a row is in the table that is copied anew now and then.
pub(crate) fn is_copied(row: u64) -> bool {
    row.is_multiple_of(5)
}
