//! What must hold, whatever happens: told the facts as they are, and not what the horizon believes.
//!
//! - An update that is not durable on the target is newer than every deletion that was forgotten.
//! - An answer about a missing row names the row's last deletion, or says why it cannot.
//! - Everything is forgotten in the end, while everybody makes progress.
//!
//! An update whose publisher's clock was set back, and one that was forwarded, may be as old as it
//! likes. Its answer has to say that.

use base::{Lsn, PgTimestamp};
use deletions::{Answer, Candidate, Tombstone};

/// An update, by its place in [`Checker::updates`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Update(usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It has a time, and may come to the target.
    UnderWay,
    /// The target has it for good.
    Durable,
    /// It never committed.
    Gone,
}

#[derive(Debug)]
struct Fact {
    row: u64,
    time: PgTimestamp,
    /// Nothing is promised about its time.
    is_exempt: bool,
    state: State,
}

#[derive(Debug, Default)]
pub(crate) struct Checker {
    updates: Vec<Fact>,
    deletions: Vec<(u64, Tombstone)>,
    /// Where the horizon was last moved to.
    horizon: Lsn,
    /// The greatest time that was forgotten.
    forgotten: Option<PgTimestamp>,
    /// The greatest value that the publisher's clock ever had.
    clock: Option<PgTimestamp>,
    /// What was wrong first.
    pub(crate) failure: Option<String>,
    pub(crate) answers: u64,
    pub(crate) moves: u64,
    pub(crate) deleted: u64,
    /// The memory may have cut something, or was empty up to that time.
    pub(crate) may_be_cut: bool,
    pub(crate) begun: PgTimestamp,
}

impl Checker {
    pub(crate) fn new(may_be_cut: bool) -> Checker {
        Checker { may_be_cut, ..Checker::default() }
    }

    pub(crate) fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    /// The publisher's clock is read by somebody.
    pub(crate) fn clock(&mut self, now: PgTimestamp) {
        self.clock = self.clock.max(Some(now));
    }

    /// A transaction takes the time of its commit.
    pub(crate) fn takes_time(&mut self, row: u64, time: PgTimestamp, is_forwarded: bool) -> Update {
        let is_exempt = is_forwarded || self.clock.is_some_and(|clock| time < clock);
        if !is_exempt && self.forgotten >= Some(time) {
            self.fail(format!("an update takes {time:?}, and {:?} is forgotten", self.forgotten));
        }
        self.updates.push(Fact { row, time, is_exempt, state: State::UnderWay });
        Update(self.updates.len() - 1)
    }

    pub(crate) fn gone(&mut self, update: Update) {
        self.updates[update.0].state = State::Gone;
    }

    pub(crate) fn durable(&mut self, update: Update) {
        self.updates[update.0].state = State::Durable;
    }

    /// A deletion was captured.
    pub(crate) fn deletion(&mut self, row: u64, tombstone: Tombstone) {
        if self.deletions.last().is_none_or(|(_, last)| last.lsn < tombstone.lsn) {
            self.deletions.push((row, tombstone));
        }
    }

    /// The horizon moves.
    pub(crate) fn moves(&mut self, to: Candidate) {
        self.moves += 1;
        let horizon = self.horizon;
        let is_new = |tombstone: &Tombstone| tombstone.lsn > horizon && tombstone.lsn <= to.lsn;
        let new = self.deletions.iter().map(|(_, tombstone)| *tombstone).filter(is_new);
        let forgotten = new.map(|tombstone| tombstone.time).max();
        if forgotten > Some(to.time) {
            self.fail(format!("{to:?} forgets a deletion of {forgotten:?}"));
        }
        self.forgotten = self.forgotten.max(Some(to.time));
        self.horizon = self.horizon.max(to.lsn);
        let needs = |fact: &&Fact| fact.state == State::UnderWay && !fact.is_exempt && fact.time <= to.time;
        if let Some(fact) = self.updates.iter().find(needs) {
            self.fail(format!("{to:?} forgets what an update of {:?} may need", fact.time));
        }
    }

    pub(crate) fn row(&self, update: Update) -> (u64, PgTimestamp) {
        let Fact { row, time, .. } = self.updates[update.0];
        (row, time)
    }

    /// The memory answers about an update, after capture has come to `captured`.
    pub(crate) fn answers(&mut self, update: Update, answer: Answer, captured: Lsn) {
        self.answers += 1;
        let Fact { row, time, is_exempt, .. } = self.updates[update.0];
        let of_row = self.deletions.iter().filter(|(of, tombstone)| *of == row && tombstone.lsn <= captured);
        let (last, newest) = of_row.fold((None, None), |(_, newest), (_, tombstone)| {
            (Some(*tombstone), newest.max(Some(tombstone.time)))
        });
        let is_right = match answer {
            Answer::Deleted(tombstone) => {
                self.deleted += 1;
                Some(tombstone) == last
            }
            Answer::NotSeen { may_be_forgotten: false } => newest < Some(time),
            Answer::NotSeen { may_be_forgotten: true } => newest < Some(time) || is_exempt,
            Answer::NotCovered => self.may_be_cut || time <= self.begun,
            Answer::NotYet => false,
        };
        if !is_right {
            self.fail(format!(
                "row {row}, updated at {time:?}: {answer:?}, but its last deletion is {last:?}"
            ));
        }
    }
}
