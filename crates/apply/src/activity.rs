//! What each session that applies has in hand, and since when. `status` uses it to name what takes
//! long.
//!
//! An executor reports what it enters and leaves ([`Session::enter`]). A reader takes a copy
//! ([`Activity::in_hand`]). No decision depends on it. Only the target knows what its backend does
//! meanwhile; callers ask the target for that.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use plan::Table;

/// The work of the target that a session waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Statements that write many rows each.
    Sets,
    /// One statement for each row.
    Rows,
    /// COMMIT, and the statements that belong to it.
    Commit,
}

/// One session's work at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InHand {
    /// The work that it waits for; `None` between two parts of a transaction that stays open.
    pub doing: Option<Doing>,
    /// How long that has lasted.
    pub lasts: Duration,
    /// In replay by single rows: the operation, the table, and how long the statement has run.
    pub row: Option<(&'static str, String, Duration)>,
    /// For a transaction applied in parts: how long it has been open, and how many of its changes
    /// were handed over.
    pub open: Option<(Duration, u64)>,
}

/// The work that all sessions of an applier have in hand.
#[derive(Debug, Default)]
pub struct Activity {
    hands: Mutex<Vec<Weak<Hand>>>,
    /// Start times of the reads and writes of spooled changes that are under way.
    disk: Mutex<Vec<Instant>>,
}

#[derive(Debug)]
struct Hand(Mutex<State>);

#[derive(Debug)]
struct State {
    doing: Option<Doing>,
    since: Instant,
    row: Option<(&'static str, Arc<Table>, Instant)>,
    open_since: Option<Instant>,
    changes: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Activity {
    /// Adds a session, until the result is dropped.
    pub(crate) fn session(&self) -> Session {
        let state = State { doing: None, since: Instant::now(), row: None, open_since: None, changes: 0 };
        let hand = Arc::new(Hand(Mutex::new(state)));
        let mut hands = lock(&self.hands);
        hands.retain(|hand| hand.strong_count() > 0);
        hands.push(Arc::downgrade(&hand));
        Session(hand)
    }

    /// The sessions that have work in hand. Those that wait for the target come first, then the
    /// longest.
    #[must_use]
    pub fn in_hand(&self) -> Vec<InHand> {
        let hands: Vec<Arc<Hand>> = lock(&self.hands).iter().filter_map(Weak::upgrade).collect();
        let mut found: Vec<InHand> = hands.iter().filter_map(|hand| hand.look()).collect();
        found.sort_by_key(|hand| std::cmp::Reverse((hand.doing.is_some(), hand.lasts)));
        found
    }

    /// Runs `act`, which reads or writes spooled changes on this machine's disk.
    pub(crate) fn disk<T>(&self, act: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        lock(&self.disk).push(began);
        let done = act();
        let mut disk = lock(&self.disk);
        if let Some(at) = disk.iter().position(|other| *other == began) {
            disk.swap_remove(at);
        }
        done
    }

    /// How long the oldest such read or write has lasted; `None` without one.
    #[must_use]
    pub fn on_disk(&self) -> Option<Duration> {
        lock(&self.disk).iter().map(Instant::elapsed).max()
    }
}

impl Hand {
    /// When it took up its present work: one set of statements, or one row's statement.
    fn held(&self) -> Option<Instant> {
        let state = lock(&self.0);
        match (state.doing, &state.row) {
            (_, Some((_, _, since))) => Some(*since),
            (Some(Doing::Sets), None) => Some(state.since),
            _ => None,
        }
    }

    fn look(&self) -> Option<InHand> {
        let state = lock(&self.0);
        let open = state.open_since.map(|since| (since.elapsed(), state.changes));
        (state.doing.is_some() || open.is_some()).then(|| InHand {
            doing: state.doing,
            lasts: state.since.elapsed(),
            row: state
                .row
                .as_ref()
                .map(|(operation, table, since)| (*operation, table.name.clone(), since.elapsed())),
            open,
        })
    }
}

/// The session's own handle.
pub(crate) struct Session(Arc<Hand>);

impl Session {
    /// Marks the session as waiting for the target to do this, until the result is dropped.
    pub(crate) fn enter(&self, doing: Doing) -> Inside {
        let mut state = lock(&self.0.0);
        let before = state.doing.replace(doing);
        state.since = Instant::now();
        drop(state);
        Inside { hand: Arc::clone(&self.0), before }
    }

    /// Makes the handle for the task that watches the statements.
    pub(crate) fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.0))
    }

    /// Notes that the next of several sets is sent.
    pub(crate) fn next_set(&self) {
        lock(&self.0.0).since = Instant::now();
    }

    /// Notes that the next row's statement is sent.
    pub(crate) fn row(&self, operation: &'static str, table: &Arc<Table>) {
        lock(&self.0.0).row = Some((operation, Arc::clone(table), Instant::now()));
    }

    /// Notes that `changes` more were handed over of a transaction that stays open.
    pub(crate) fn part(&self, changes: usize) {
        let mut state = lock(&self.0.0);
        state.open_since.get_or_insert_with(Instant::now);
        state.changes += changes as u64;
    }

    /// Notes that no transaction is open any more.
    pub(crate) fn closed(&self) {
        let mut state = lock(&self.0.0);
        state.open_since = None;
        state.changes = 0;
    }
}

/// The view of a session that another task may have.
pub(crate) struct Watch(Arc<Hand>);

impl Watch {
    /// When the session took up its present work: one set of statements, or one row's. `None` if it
    /// has neither.
    pub(crate) fn held(&self) -> Option<Instant> {
        self.0.held()
    }
}

/// Marks the work that a session waits for, until it is dropped.
#[must_use = "it is over when this is dropped"]
pub(crate) struct Inside {
    hand: Arc<Hand>,
    before: Option<Doing>,
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut state = lock(&self.hand.0);
        state.doing = self.before;
        state.since = Instant::now();
        state.row = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_longest_comes_first_and_idle_sessions_are_none() {
        let activity = Activity::default();
        let (first, second, idle) = (activity.session(), activity.session(), activity.session());
        assert_eq!(activity.in_hand(), []);
        let sets = first.enter(Doing::Sets);
        std::thread::sleep(Duration::from_millis(2));
        second.part(7);
        let commit = second.enter(Doing::Commit);
        let doing = |activity: &Activity| -> Vec<_> {
            activity.in_hand().iter().map(|hand| (hand.doing, hand.open.map(|open| open.1))).collect()
        };
        assert_eq!(doing(&activity), [(Some(Doing::Sets), None), (Some(Doing::Commit), Some(7))]);
        drop(commit);
        assert_eq!(doing(&activity), [(Some(Doing::Sets), None), (None, Some(7))]);
        second.closed();
        drop((sets, idle, first));
        assert_eq!(doing(&activity), []);
    }

    #[test]
    fn the_disk_is_waited_for_as_long_as_anybody_does() {
        let activity = Activity::default();
        activity.disk(|| {
            activity.disk(|| ());
            assert!(activity.on_disk().is_some());
        });
        assert_eq!(activity.on_disk(), None);
    }

    #[test]
    fn what_was_done_before_goes_on_behind_what_is_inside() {
        let activity = Activity::default();
        let session = activity.session();
        let rows = session.enter(Doing::Rows);
        drop(session.enter(Doing::Commit));
        assert_eq!(activity.in_hand()[0].doing, Some(Doing::Rows));
        drop(rows);
        assert_eq!(activity.in_hand(), []);
    }
}
