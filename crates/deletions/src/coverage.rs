//! What the memory covers: about which deletions it knows, and what that means for an UPDATE that
//! has found no row.

use base::{Lsn, Oid, PgTimestamp};

use crate::deletion::Tombstone;

/// The server whose deletions are remembered, as it is when the memory is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server {
    /// Of its cluster.
    pub system_id: u64,
    /// The database that is captured.
    pub database: Oid,
    /// The timeline that it is on.
    pub timeline: u32,
    /// Where that timeline began; invalid for the first.
    pub timeline_start: Lsn,
    /// Where its WAL ends.
    pub wal_end: Lsn,
    /// What its clock says, read after `wal_end`.
    pub clock: PgTimestamp,
}

/// A record of the server's WAL, the last one of what was captured. By it the history is known
/// again: another one has another record there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landmark {
    /// Where the record begins.
    pub lsn: Lsn,
    /// Its checksum.
    pub crc: u32,
}

/// Deletions that are not remembered although an UPDATE may need them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Those up to here.
    pub lsn: Lsn,
    /// The greatest time of one of them. An UPDATE that is newer does not need them.
    pub time: PgTimestamp,
}

impl Cut {
    /// Both of them.
    fn with(self, other: Cut) -> Cut {
        Cut { lsn: self.lsn.max(other.lsn), time: self.time.max(other.time) }
    }
}

/// Up to where deletions can be forgotten, once all updates of that time are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The position.
    pub lsn: Lsn,
    /// The greatest time of a deletion up to there.
    pub time: PgTimestamp,
}

/// An UPDATE that has found no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Miss {
    /// When it committed on its publisher.
    pub time: PgTimestamp,
    /// What the target had flushed after the row was found to be missing (rule D1).
    pub fence: Lsn,
}

/// What is known about a row that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It was deleted; of several deletions the last one.
    Deleted(Tombstone),
    /// No deletion of it was captured.
    NotSeen {
        /// The horizon has passed deletions that are newer than the UPDATE. That happens to
        /// updates that were forwarded from a third server, and where a clock was set back.
        may_be_forgotten: bool,
    },
    /// Deletions that may be newer than the UPDATE were cut, or not captured at all.
    NotCovered,
    /// Capture has not passed the fence: ask again when it has.
    NotYet,
}

/// What was forgotten, and what was ever known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Forgotten {
    /// Deletions up to here are not needed: the horizon has passed them.
    pub(crate) horizon: Lsn,
    /// The greatest time of these.
    pub(crate) until: Option<PgTimestamp>,
    /// What was forgotten in spite of being needed.
    pub(crate) cut: Option<Cut>,
    /// The greatest time of any deletion that was ever recorded.
    pub(crate) greatest: Option<PgTimestamp>,
}

impl Forgotten {
    /// Nothing up to here is remembered.
    pub(crate) fn floor(&self) -> Lsn {
        self.horizon.max(self.cut.map_or(Lsn::INVALID, |cut| cut.lsn))
    }

    /// Takes note of a cut.
    pub(crate) fn cut(&mut self, cut: Cut) {
        self.cut = Some(self.cut.map_or(cut, |before| before.with(cut)));
    }

    /// Moves the horizon. Returns whether it has passed the cut, so that nothing is missing any
    /// more.
    pub(crate) fn advance(&mut self, candidate: Candidate) -> bool {
        self.horizon = self.horizon.max(candidate.lsn);
        self.until = self.until.max(Some(candidate.time));
        let passed = self.cut.take_if(|cut| cut.lsn <= candidate.lsn && cut.time <= candidate.time);
        passed.is_some()
    }

    /// What it means that there is no tombstone.
    pub(crate) fn without_tombstone(&self, miss: Miss) -> Answer {
        match self.cut {
            Some(cut) if miss.time <= cut.time => Answer::NotCovered,
            _ => Answer::NotSeen { may_be_forgotten: self.until.is_some_and(|until| miss.time <= until) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn miss(time: i64) -> Miss {
        Miss { time: PgTimestamp(time), fence: Lsn::INVALID }
    }

    fn candidate(lsn: u64, time: i64) -> Candidate {
        Candidate { lsn: Lsn::new(lsn), time: PgTimestamp(time) }
    }

    const SEEN: Answer = Answer::NotSeen { may_be_forgotten: false };

    #[test]
    fn a_cut_hides_older_updates_until_the_horizon_has_passed_it() {
        let mut forgotten = Forgotten::default();
        assert_eq!(forgotten.without_tombstone(miss(0)), SEEN);
        forgotten.cut(Cut { lsn: Lsn::new(10), time: PgTimestamp(100) });
        forgotten.cut(Cut { lsn: Lsn::new(20), time: PgTimestamp(90) });
        assert_eq!((forgotten.floor(), forgotten.cut.unwrap().time), (Lsn::new(20), PgTimestamp(100)));
        assert_eq!(forgotten.without_tombstone(miss(100)), Answer::NotCovered);
        assert_eq!(forgotten.without_tombstone(miss(101)), SEEN);
        assert!(!forgotten.advance(candidate(15, 200)) && !forgotten.advance(candidate(25, 99)));
        assert_eq!(forgotten.without_tombstone(miss(50)), Answer::NotCovered);
        assert!(forgotten.advance(candidate(25, 100)));
        assert_eq!(forgotten.without_tombstone(miss(201)), SEEN);
    }

    #[test]
    fn what_the_horizon_has_passed_may_be_forgotten() {
        let mut forgotten = Forgotten::default();
        forgotten.advance(candidate(10, 100));
        assert_eq!(forgotten.without_tombstone(miss(100)), Answer::NotSeen { may_be_forgotten: true });
        assert_eq!(forgotten.without_tombstone(miss(101)), SEEN);
        assert_eq!(forgotten.floor(), Lsn::new(10));
    }
}
