//! How far the schema has come, for bars and status.
//!
//! Written by the workers, read by anyone.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Figures of what is created after the copy.
#[derive(Debug, Default)]
pub struct SchemaProgress(Mutex<Figures>);

#[derive(Debug, Default)]
struct Figures {
    objects: usize,
    done: usize,
    building: BTreeMap<i32, Work>,
}

#[derive(Debug)]
struct Work {
    object: String,
    pid: i32,
    started: Instant,
    phase: Option<String>,
    fraction: Option<f64>,
}

/// Something that is being created.
#[derive(Debug, Clone, PartialEq)]
pub struct Building {
    /// `INDEX sales.orders_v_idx`
    pub object: String,
    /// The server's word for what it is doing, if it builds an index.
    pub phase: Option<String>,
    /// How much of that phase is done, 0 to 1, if the server knows.
    pub fraction: Option<f64>,
    /// Since it was begun.
    pub elapsed: Duration,
}

impl SchemaProgress {
    /// All objects and how many of them are done.
    #[must_use]
    pub fn totals(&self) -> (usize, usize) {
        let figures = self.lock();
        (figures.objects, figures.done)
    }

    /// What is being created at this moment, in the order of the dump.
    #[must_use]
    pub fn building(&self) -> Vec<Building> {
        let building = |work: &Work| Building {
            object: work.object.clone(),
            phase: work.phase.clone(),
            fraction: work.fraction,
            elapsed: work.started.elapsed(),
        };
        self.lock().building.values().map(building).collect()
    }

    /// An attempt begins; what an earlier one was at is over.
    pub(crate) fn announce(&self, objects: usize, done: usize) {
        *self.lock() = Figures { objects, done, building: BTreeMap::new() };
    }

    pub(crate) fn begin(&self, number: i32, object: &str, pid: i32) {
        let work =
            Work { object: object.to_owned(), pid, started: Instant::now(), phase: None, fraction: None };
        self.lock().building.insert(number, work);
    }

    /// The work on `number` has ended, well or not.
    pub(crate) fn end(&self, number: i32, done: bool) {
        let mut figures = self.lock();
        figures.building.remove(&number);
        figures.done += usize::from(done);
    }

    /// The backends that are at work.
    pub(crate) fn pids(&self) -> Vec<i32> {
        self.lock().building.values().map(|work| work.pid).collect()
    }

    /// The server's word for what backend `pid` is doing.
    pub(crate) fn note(&self, pid: i32, phase: &str, fraction: Option<f64>) {
        if let Some(work) = self.lock().building.values_mut().find(|work| work.pid == pid) {
            work.phase = Some(phase.to_owned());
            work.fraction = fraction;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Figures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_told_until_it_ends() {
        let progress = SchemaProgress::default();
        progress.announce(5, 2);
        progress.begin(7, "INDEX s.i", 100);
        progress.begin(3, "CONSTRAINT s.t p", 101);
        progress.note(100, "building index", Some(0.5));
        progress.note(999, "somebody else's", None);
        let building = progress.building();
        assert_eq!((building[0].object.as_str(), building[0].fraction), ("CONSTRAINT s.t p", None));
        assert_eq!((building[1].phase.as_deref(), building[1].fraction), (Some("building index"), Some(0.5)));
        progress.end(7, true);
        progress.end(3, false);
        assert_eq!((progress.totals(), progress.building()), ((5, 3), vec![]));
    }
}
