//! Log lines for conflicts that stop nothing: the first are logged one by one, the rest as a count.
//!
//! Without a limit, deleting a million rows on the target would log a million lines. Each kind of
//! conflict on each table gets a few lines in a period. Further conflicts are counted, and the
//! count is logged when the period is over.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::{Lsn, Xid};
use conflict::Conflict;

/// Maximum lines for one kind and table in one [`WINDOW`].
const LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(10);

/// The log of conflicts; the module explains it.
#[derive(Debug, Default)]
pub struct ConflictLog(Mutex<BTreeMap<(&'static str, String), Told>>);

#[derive(Debug)]
struct Told {
    /// When the period began, with its first conflict.
    since: Instant,
    lines: u32,
    /// Conflicts of this period without a line.
    more: u64,
    /// All conflicts since the process began.
    total: u64,
}

impl ConflictLog {
    fn told(&self) -> MutexGuard<'_, BTreeMap<(&'static str, String), Told>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports that a change of transaction `xid`, whose commit record is at `finished_at`, met
    /// this conflict.
    pub(crate) fn met(&self, conflict: &Conflict, xid: Xid, finished_at: Lsn) {
        if let Some(total) = self.count(conflict, Instant::now()) {
            tracing::warn!(%xid, %finished_at, total, "{conflict}");
        }
    }

    /// Counts the conflict. Returns the total so far if the conflict gets a line of its own.
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

    /// Logs how many more there were where the period is over, or everywhere (`at_once`).
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
        let of = |kind, relation: &str| Conflict { kind, relation: relation.to_owned(), met: Vec::new() };
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
