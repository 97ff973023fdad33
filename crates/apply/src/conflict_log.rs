//! Conflicts that stop nothing, in the log: the first of them one by one, and behind those how many more there were.
//!
//! Somebody who deletes a million rows on the target would otherwise have a million lines for it. Each kind on each table
//! has so many lines in a while; what is beyond is counted, and told when the while is over.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::{Lsn, Xid};
use conflict::Conflict;

/// Lines for one kind and table in [`WINDOW`].
const LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug, Default)]
pub struct ConflictLog(Mutex<BTreeMap<(&'static str, String), Told>>);

#[derive(Debug)]
struct Told {
    /// When the first of them came.
    since: Instant,
    lines: u32,
    /// Those that have no line.
    more: u64,
    /// All of them, since the process began.
    total: u64,
}

impl ConflictLog {
    fn told(&self) -> MutexGuard<'_, BTreeMap<(&'static str, String), Told>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A change of transaction `xid`, whose commit record is at `finished_at`, met this.
    pub(crate) fn met(&self, conflict: &Conflict, xid: Xid, finished_at: Lsn) {
        if let Some(total) = self.count(conflict, Instant::now()) {
            tracing::warn!(%xid, %finished_at, total, "{conflict}");
        }
    }

    /// Counts it; how many there were, if it has a line of its own.
    fn count(&self, conflict: &Conflict, now: Instant) -> Option<u64> {
        let mut told = self.told();
        let key = (conflict.kind.name(), conflict.relation.clone());
        let told = told.entry(key).or_insert(Told { since: now, lines: 0, more: 0, total: 0 });
        if told.more == 0 && now - told.since >= WINDOW {
            (told.since, told.lines) = (now, 0);
        }
        told.total += 1;
        if told.lines == LINES {
            told.more += 1;
            return None;
        }
        told.lines += 1;
        Some(told.total)
    }

    /// Says how many more there were, where the while is over, or everywhere (`at_once`).
    pub fn tell_rest(&self, at_once: bool) {
        for ((kind, relation), more, total) in self.rest(Instant::now(), at_once) {
            tracing::warn!(
                total,
                "conflict detected on relation \"{relation}\": conflict={kind}: {more} more, not logged one by one"
            );
        }
    }

    fn rest(&self, now: Instant, at_once: bool) -> Vec<((&'static str, String), u64, u64)> {
        let mut found = Vec::new();
        for (key, told) in self.told().iter_mut() {
            if told.more > 0 && (at_once || now - told.since >= WINDOW) {
                found.push((key.clone(), std::mem::take(&mut told.more), told.total));
                (told.since, told.lines) = (now, 0);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use conflict::ConflictType;

    use super::*;

    #[test]
    fn the_first_have_a_line_each_and_the_rest_one_together() {
        let log = ConflictLog::default();
        let of = |kind, relation: &str| Conflict { kind, relation: relation.to_owned(), index: None };
        let missing = of(ConflictType::DeleteMissing, "public.t");
        let now = Instant::now();
        let lines = (0..100).filter(|_| log.count(&missing, now).is_some()).count();
        assert_eq!(lines, LINES as usize);
        assert_eq!(log.count(&of(ConflictType::DeleteMissing, "public.u"), now), Some(1), "of another table");
        assert_eq!(log.rest(now, false), []);
        let rest = log.rest(now + WINDOW, false);
        assert_eq!(rest, [(("delete_missing", "public.t".to_owned()), 90, 100)]);
        assert_eq!(log.rest(now + WINDOW * 2, true), [], "told once");
        assert_eq!(log.count(&missing, now + WINDOW * 3), Some(101), "and the next have lines again");
    }
}
