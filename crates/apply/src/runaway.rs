//! Statements that run away are noticed, named, and taken back.
//!
//! No form of a statement that finds rows by their key can have a plan that reads the table for
//! each of them ([`crate::search`]). But tables without a key are found by whatever index there
//! is, large tables are searched in a form that trusts what was known of them, and a function of
//! the user's may do anything. So somebody looks: once a chunk has been executed for
//! [`FIRST_LOOK`], what its backends do is asked once a second.
//!
//! ```text
//!   chunk executed for 2 s --> look --(a set, on the processor, for too long)--> cancel
//!                               ^ 1 s                                              |
//!                               +---------------------------------------------- rolled back
//!   the executor: forgets its plans, has the table analysed, executes the chunk again
//! ```
//! *Too long* is [`LIMIT`], or four times what a statement of the same text took before; and twice
//! as long after each cancel of that text, until one of it ends by itself. So a statement that
//! honestly takes long costs at most as much again.
//! A backend that waits, for a lock or for a disk, has a plan like any other: only one that is on
//! the processor in four looks of five counts.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use client::{Canceller, ConnInfo, Session};

use crate::counters::Counters;

/// Most chunks are done by then.
const FIRST_LOOK: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_secs(1);
/// A statement writes some 4 MB; at 10 us a row the narrowest rows of that take a second.
const LIMIT: Duration = Duration::from_secs(10);
/// How much longer than the others of its text a statement may take.
const LONGER: u32 = 4;
/// Fewer looks than these tell nothing.
const LOOKS_MIN: u32 = 5;
/// Texts that are remembered.
const TEXTS_MAX: usize = 1_000;

/// What was cancelled in a session, until its executor asks.
#[derive(Debug, Default)]
pub(crate) struct Cancelled(Mutex<Option<Statement>>);

/// A statement that was cancelled.
#[derive(Debug, Clone)]
pub(crate) struct Statement {
    /// Its text, or as much of it as the server keeps.
    pub(crate) text: String,
    pub(crate) ran: Duration,
}

impl Cancelled {
    fn set(&self, statement: Option<Statement>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = statement;
    }

    /// What was cancelled since this was asked last.
    pub(crate) fn take(&self) -> Option<Statement> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A session that is looked after.
pub(crate) struct Watched {
    pub(crate) pid: i32,
    pub(crate) canceller: Canceller,
    pub(crate) cancelled: Arc<Cancelled>,
}

/// What a backend does, as the server tells.
#[derive(Debug, Clone, PartialEq)]
struct Look {
    pid: i32,
    /// Tells statements of one text apart.
    began: String,
    runs: Duration,
    waits: bool,
    text: String,
}

/// One statement, as it was seen so far.
#[derive(Debug)]
struct Seen {
    last: Look,
    looks: u32,
    on_processor: u32,
}

/// Which statements take too long.
#[derive(Debug, Default)]
struct Judge {
    seen: HashMap<i32, Seen>,
    /// The longest that a statement of a text was seen to take which then ended by itself.
    longest: HashMap<String, Duration>,
    /// How often those of a text were cancelled since one ended by itself.
    cancelled: HashMap<String, u32>,
}

impl Judge {
    /// Takes a look at all backends; those that have run away.
    fn look(&mut self, looks: Vec<Look>) -> Vec<Look> {
        let mut before = std::mem::take(&mut self.seen);
        let mut away = Vec::new();
        for look in looks {
            let seen = before.remove(&look.pid);
            let (seen, ended) = match seen {
                Some(seen) if seen.last.began == look.began => (Some(seen), None),
                ended => (None, ended),
            };
            self.ended(ended);
            let mut seen = seen.unwrap_or_else(|| Seen { last: look.clone(), looks: 0, on_processor: 0 });
            seen.looks += 1;
            seen.on_processor += u32::from(!look.waits);
            seen.last = look;
            if self.is_away(&seen) {
                *self.cancelled.entry(seen.last.text.clone()).or_default() += 1;
                away.push(seen.last);
            } else {
                self.seen.insert(seen.last.pid, seen);
            }
        }
        before.into_values().for_each(|seen| self.ended(Some(seen)));
        away
    }

    fn ended(&mut self, seen: Option<Seen>) {
        let Some(Seen { last, .. }) = seen else { return };
        if self.longest.len() >= TEXTS_MAX {
            self.longest.clear();
            self.cancelled.clear();
        }
        self.cancelled.remove(&last.text);
        let longest = self.longest.entry(last.text).or_default();
        *longest = last.runs.max(*longest);
    }

    fn is_away(&self, seen: &Seen) -> bool {
        let of_text = &seen.last.text;
        let longest = self.longest.get(of_text).copied().unwrap_or_default();
        let cancelled = self.cancelled.get(of_text).copied().unwrap_or_default();
        let limit = LIMIT.max(longest * LONGER) * 2_u32.saturating_pow(cancelled.min(16));
        let busy = seen.looks >= LOOKS_MIN && seen.on_processor * 5 >= seen.looks * 4;
        finds_rows(of_text) && busy && seen.last.runs >= limit
    }
}

/// Whether a statement is one that finds rows. Its first word tells: the server may have cut off the rest.
fn finds_rows(text: &str) -> bool {
    let word = text.split_ascii_whitespace().next().unwrap_or_default();
    ["DELETE", "INSERT", "SELECT", "UPDATE", "WITH"].contains(&word)
}

/// Looks after `watched` until it is dropped.
pub(crate) async fn watch(info: ConnInfo, name: String, watched: Vec<Watched>, counters: Arc<Counters>) {
    let pids: Vec<i32> = watched.iter().map(|session| session.pid).collect();
    let (mut session, mut judge, mut quiet, mut batches) = (None, Judge::default(), Duration::ZERO, 0);
    loop {
        tokio::time::sleep(INTERVAL).await;
        let done = counters.batches.load(Ordering::Relaxed);
        let executes = counters.executing.load(Ordering::Relaxed) && done == batches;
        quiet = if executes { quiet + INTERVAL } else { Duration::ZERO };
        batches = done;
        if quiet < FIRST_LOOK {
            judge.look(Vec::new());
            continue;
        }
        let looks = match ask(&mut session, &info, &name, &pids).await {
            Ok(looks) => looks,
            Err(error) => {
                tracing::debug!("could not ask what the target executes: {error}");
                session = None;
                continue;
            }
        };
        for look in judge.look(looks) {
            let Some(session) = watched.iter().find(|session| session.pid == look.pid) else { continue };
            take_back(session, look).await;
        }
    }
}

async fn take_back(session: &Watched, look: Look) {
    // Before the cancel, whose error the executor may see first.
    session.cancelled.set(Some(Statement { text: look.text, ran: look.runs }));
    if let Err(error) = session.canceller.cancel().await {
        session.cancelled.set(None);
        tracing::warn!("a statement that takes too long could not be cancelled: {error}");
    }
}

async fn ask(
    session: &mut Option<Session>,
    info: &ConnInfo,
    name: &str,
    pids: &[i32],
) -> Result<Vec<Look>, client::Error> {
    let connected = match session.take() {
        Some(connected) => connected,
        None => {
            let settings = [("search_path", ""), ("statement_timeout", "5s"), ("idle_session_timeout", "0")];
            client::connect(info, name, &settings).await?
        }
    };
    let rows = connected.query(ACTIVITY, &[&pids]).await.map_err(|error| connected.error(error))?;
    *session = Some(connected);
    let look = |row: &tokio_postgres::Row| Look {
        pid: row.get(0),
        began: row.get(1),
        runs: Duration::from_secs_f64(row.get::<_, f64>(2).max(0.0)),
        waits: row.get(3),
        text: row.get(4),
    };
    Ok(rows.iter().map(look).collect())
}

/// $1 the backends.
const ACTIVITY: &str = "
SELECT pid, query_start::text, extract(epoch FROM pg_catalog.clock_timestamp() - query_start)::float8,
       wait_event_type IS NOT NULL, query
  FROM pg_catalog.pg_stat_activity
 WHERE pid = ANY ($1) AND state = 'active' AND query_start IS NOT NULL AND query IS NOT NULL";

#[cfg(test)]
mod tests {
    use super::*;

    fn look(began: &str, runs: u64, waits: bool) -> Look {
        let text = "DELETE FROM ONLY t USING (SELECT pg_catalog.unnest($1) AS c0) AS s".to_owned();
        Look { pid: 7, began: began.to_owned(), runs: Duration::from_secs(runs), waits, text }
    }

    /// How long a statement has run when it is taken back.
    fn taken_back(judge: &mut Judge, began: &str, waits: impl Fn(u64) -> bool) -> Option<u64> {
        (2..200).find(|&second| !judge.look(vec![look(began, second, waits(second))]).is_empty())
    }

    #[test]
    fn a_set_that_stays_on_the_processor_is_taken_back_and_later_each_time() {
        let mut judge = Judge::default();
        assert_eq!(taken_back(&mut judge, "a", |_| false), Some(10));
        assert_eq!(taken_back(&mut judge, "b", |_| false), Some(20));
        assert_eq!(taken_back(&mut judge, "c", |_| false), Some(40));
        let other = |second| Look { text: "UPDATE ONLY t SET a = s.c0, b = s.".to_owned(), ..look("d", second, false) };
        let taken = (2..200).find(|&second| !judge.look(vec![other(second)]).is_empty());
        assert_eq!(taken, Some(10), "another text, of which the server keeps the beginning");
        (2..=3).for_each(|second| assert!(judge.look(vec![look("e", second, false)]).is_empty()));
        assert!(judge.look(Vec::new()).is_empty(), "one ended by itself");
        assert_eq!(taken_back(&mut judge, "f", |_| false), Some(12), "four times as long as that");
    }

    #[test]
    fn what_waits_or_finds_no_rows_is_let_run() {
        let mut judge = Judge::default();
        assert_eq!(taken_back(&mut judge, "a", |_| true), None);
        assert_eq!(taken_back(&mut judge, "b", |second| second % 3 == 0), None, "on a slow disk");
        let copy = |second| Look { text: "COPY t FROM STDIN".to_owned(), ..look("c", second, false) };
        assert!((2..200).all(|second| judge.look(vec![copy(second)]).is_empty()));
    }

    #[test]
    fn what_others_of_its_text_took_is_no_reason() {
        let mut judge = Judge::default();
        (2..=8).for_each(|second| assert!(judge.look(vec![look("a", second, false)]).is_empty()));
        assert!(judge.look(Vec::new()).is_empty(), "it ended by itself after 8 s");
        assert_eq!(taken_back(&mut judge, "b", |_| false), Some(32));
    }
}
