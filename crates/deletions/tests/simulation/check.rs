//! What must hold, whatever happens: told the facts as they are, and not what the horizon believes.
//!
//! - An update that is not durable on the target is newer than every deletion that was forgotten.
//! - An answer about a missing row names the row's last deletion, or says why it cannot.
//! - Everything is forgotten in the end, while everybody makes progress.
//!
//! An update that was forwarded may be of any age, and so may one whose publisher's clock was set
//! back. Its answer has to say that. A step that was seen is no excuse. An update may be needed
//! after all in two cases: the clock had not been read past the candidate's time before the update
//! took its own, or it was read behind that again.
//!
//! What was deleted before capture began, or in a gap, is known to be no later than the target's
//! clock then. A clock that was set back before that, or a third server's, excuses the memory.

use std::collections::BTreeSet;

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
    excuse: Option<Excuse>,
    /// The round that it took its time in, and how often the clock had been read in that.
    taken: (u64, usize),
    state: State,
}

/// Why an update may be older than what is forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Excuse {
    /// A third server's clock gave it its time.
    Forwarded,
    /// The publisher's clock was set back before it took its time.
    SetBack,
}

#[derive(Debug, Default)]
pub(crate) struct Checker {
    updates: Vec<Fact>,
    deletions: Vec<(u64, Tombstone)>,
    /// Where those of them are that were never captured.
    missed: Vec<Lsn>,
    /// Where the horizon was last moved to.
    horizon: Lsn,
    /// The greatest time that was forgotten.
    forgotten: Option<PgTimestamp>,
    /// The greatest value that the publisher's clock ever had.
    clock: Option<PgTimestamp>,
    /// Counts candidates.
    round: u64,
    /// What the publisher's clock showed since the last candidate, whatever the horizon was told.
    readings: Vec<PgTimestamp>,
    /// What was wrong first.
    pub(crate) failure: Option<String>,
    pub(crate) answers: u64,
    pub(crate) moves: u64,
    pub(crate) deleted: u64,
    /// The memory may have cut something, or knows nothing of what was deleted up to a time.
    pub(crate) may_be_cut: bool,
    begun: PgTimestamp,
    /// Where deletions are that were not captured and are later than the target's clock was when
    /// capture went on.
    unknowable: BTreeSet<Lsn>,
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

    /// The horizon takes a candidate.
    pub(crate) fn begins_round(&mut self) {
        self.round += 1;
        self.readings.clear();
    }

    /// The publisher's clock is read for the horizon.
    pub(crate) fn reads(&mut self, clock: PgTimestamp) {
        self.clock(clock);
        self.readings.push(clock);
    }

    /// Capture goes on at `from`, where the target's clock shows `clock`. The memory has what was
    /// captured up to `captured`; `all` is what was deleted.
    pub(crate) fn captures_from(
        &mut self,
        (from, clock): (Lsn, PgTimestamp),
        captured: Lsn,
        all: &[(u64, Tombstone)],
    ) {
        let is_known = |tombstone: &Tombstone| {
            tombstone.lsn <= captured && self.missed.binary_search(&tombstone.lsn).is_err()
        };
        let known = self.deletions.iter().map(|(_, tombstone)| *tombstone).filter(is_known);
        let time = known.map(|tombstone| tombstone.time).max().map_or(clock, |known| known.max(clock));
        self.begun = self.begun.max(time);
        for (row, tombstone) in all.iter().filter(|(_, tombstone)| tombstone.lsn <= from) {
            if self.deletion(*row, *tombstone) {
                self.missed.push(tombstone.lsn);
            }
            if tombstone.lsn > captured && tombstone.time > time {
                self.unknowable.insert(tombstone.lsn);
            }
        }
    }

    /// Whether the memory can know of a deletion, or that it may have missed it.
    fn is_knowable(&self, tombstone: &Tombstone) -> bool {
        !self.unknowable.contains(&tombstone.lsn)
    }

    /// A transaction takes the time of its commit.
    pub(crate) fn takes_time(&mut self, row: u64, time: PgTimestamp, is_forwarded: bool) -> Update {
        let is_set_back = self.clock.is_some_and(|clock| time < clock);
        let excuse = match is_forwarded {
            true => Some(Excuse::Forwarded),
            false => is_set_back.then_some(Excuse::SetBack),
        };
        let was_past = is_forwarded || self.clock > self.forgotten;
        if !was_past && self.forgotten >= Some(time) {
            self.fail(format!("an update takes {time:?}, and {:?} is forgotten", self.forgotten));
        }
        let taken = (self.round, self.readings.len());
        self.updates.push(Fact { row, time, excuse, taken, state: State::UnderWay });
        Update(self.updates.len() - 1)
    }

    /// Whether the clock was read past `time` before the update took its own, and never behind it
    /// since. The reading is one of this round.
    fn was_set_back_unseen(&self, fact: &Fact, time: PgTimestamp) -> bool {
        let (round, count) = fact.taken;
        let count = if round == self.round { count } else { 0 };
        let (before, after) = self.readings.split_at(count);
        before.iter().any(|clock| *clock > time) && after.iter().all(|clock| *clock > time)
    }

    pub(crate) fn gone(&mut self, update: Update) {
        self.updates[update.0].state = State::Gone;
    }

    pub(crate) fn durable(&mut self, update: Update) {
        self.updates[update.0].state = State::Durable;
    }

    /// A deletion was captured. Whether it is new.
    pub(crate) fn deletion(&mut self, row: u64, tombstone: Tombstone) -> bool {
        let is_new = self.deletions.last().is_none_or(|(_, last)| last.lsn < tombstone.lsn);
        if is_new {
            self.deletions.push((row, tombstone));
        }
        is_new
    }

    /// The horizon moves.
    pub(crate) fn moves(&mut self, to: Candidate) {
        self.moves += 1;
        let horizon = self.horizon;
        let is_new = |tombstone: &Tombstone| {
            tombstone.lsn > horizon && tombstone.lsn <= to.lsn && self.is_knowable(tombstone)
        };
        let new = self.deletions.iter().map(|(_, tombstone)| *tombstone).filter(is_new);
        let forgotten = new.map(|tombstone| tombstone.time).max();
        if forgotten > Some(to.time) {
            self.fail(format!("{to:?} forgets a deletion of {forgotten:?}"));
        }
        self.forgotten = self.forgotten.max(Some(to.time));
        self.horizon = self.horizon.max(to.lsn);
        let needs = |fact: &&Fact| {
            fact.state == State::UnderWay
                && fact.excuse != Some(Excuse::Forwarded)
                && fact.time <= to.time
                && !self.was_set_back_unseen(fact, to.time)
        };
        if let Some(fact) = self.updates.iter().find(needs) {
            self.fail(format!("{to:?} forgets what an update of {:?} may need", fact.time));
        }
    }

    pub(crate) fn row(&self, update: Update) -> (u64, PgTimestamp) {
        let Fact { row, time, .. } = self.updates[update.0];
        (row, time)
    }

    pub(crate) fn excuse(&self, update: Update) -> Option<Excuse> {
        self.updates[update.0].excuse
    }

    /// The memory answers about an update, after capture has come to `captured`.
    pub(crate) fn answers(&mut self, update: Update, answer: Answer, captured: Lsn) {
        self.answers += 1;
        let Fact { row, time, excuse, .. } = self.updates[update.0];
        let of_row = self.deletions.iter().filter(|(of, tombstone)| *of == row && tombstone.lsn <= captured);
        let of_row = of_row.map(|(_, tombstone)| *tombstone).filter(|tombstone| self.is_knowable(tombstone));
        let (last, newest) = of_row
            .fold((None, None), |(_, newest), tombstone| (Some(tombstone), newest.max(Some(tombstone.time))));
        let is_right = match answer {
            Answer::Deleted(tombstone) => {
                self.deleted += 1;
                Some(tombstone) == last
            }
            Answer::NotSeen { may_be_forgotten: false } => newest < Some(time),
            Answer::NotSeen { may_be_forgotten: true } => newest < Some(time) || excuse.is_some(),
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
