//! Notices statements that run away, names them and cancels them.
//!
//! A statement that finds rows by their key cannot have a plan that reads the table for each row
//! ([`plan::search`]). Other statements can run away:
//!
//! - Tables without a key are searched by whatever index there is.
//! - Large tables are searched in a form that trusts the statistics.
//! - A user's function may do anything.
//!
//! So a watcher looks. Once a session has worked on the same plan for [`FIRST_LOOK`], it asks once
//! a second what the session's backend does.
//!
//! ```text
//!   a plan in hand for 2 s --> look --(on the processor, for too long)--> cancel
//!                               ^ 1 s                                       |
//!                               +---------------------------------------- rolled back
//!   the executor: forgets its plans, has the table analysed, executes the set again
//! ```
//! *Too long* is [`ALONE`] for one statement and [`TOGETHER`] for consecutive statements of one
//! text, or four times what earlier ones of that text took. Each cancel of a text doubles the
//! limit, until a statement of that text ends by itself. So if a statement has good reason to take
//! long, its cancelled attempts cost at most about twice its own time.
//!
//! A backend that waits for a lock or a disk may have a good plan. So only a backend counts that is
//! on the processor in four of five looks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use client::{Canceller, ConnInfo, Session};

use crate::activity::Watch;

/// Most plans are done by then.
const FIRST_LOOK: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_secs(1);
/// A statement writes some 4 MB. The narrowest rows of that size take a second, at 10 us each.
const ALONE: Duration = Duration::from_secs(10);
/// A session has a few dozen of these in hand at once.
const TOGETHER: Duration = Duration::from_secs(30);
/// Factor by which a statement may exceed the earlier ones of its text.
const LONGER: u32 = 4;
/// Fewer looks than these prove nothing.
const LOOKS_MIN: u32 = 5;
/// Number of texts that are remembered.
const TEXTS_MAX: usize = 1_000;

/// The statement that was cancelled in a session, until its executor asks.
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

    /// The statement cancelled since the last call.
    pub(crate) fn take(&self) -> Option<Statement> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A session under watch.
pub(crate) struct Watched {
    pub(crate) pid: i32,
    pub(crate) canceller: Canceller,
    pub(crate) cancelled: Arc<Cancelled>,
    pub(crate) hand: Watch,
}

/// What a backend does, as the server reports it.
#[derive(Debug, Clone, PartialEq)]
struct Look {
    pid: i32,
    /// When the session took up its present work; tells one set from the next.
    hand: Instant,
    /// Tells statements of one text apart.
    began: String,
    runs: Duration,
    waits: bool,
    text: String,
}

/// Consecutive statements of one text, as far as they were seen.
#[derive(Debug)]
struct Seen {
    last: Look,
    /// Time of all but the last.
    before: Duration,
    looks: u32,
    on_processor: u32,
}

/// Experience with one text.
#[derive(Debug, Default)]
struct Known {
    /// The longest time seen of one statement that ended by itself, and of all in one hand.
    alone: Duration,
    together: Duration,
    /// Cancels since a statement of this text ended by itself.
    cancelled: u32,
}

impl Known {
    /// Notes a statement that ended by itself.
    fn alone(&mut self, ran: Duration) {
        self.alone = self.alone.max(ran);
    }

    fn limit(&self, least: Duration, longest: Duration) -> Duration {
        least.max(longest * LONGER) * 2_u32.saturating_pow(self.cancelled.min(16))
    }
}

/// Decides which statements take too long.
#[derive(Debug, Default)]
struct Judge {
    seen: HashMap<i32, Seen>,
    texts: HashMap<String, Known>,
}

impl Judge {
    /// Takes one look at all backends; returns those that have run away.
    fn look(&mut self, looks: Vec<Look>) -> Vec<Look> {
        let mut before = std::mem::take(&mut self.seen);
        let mut away = Vec::new();
        for look in looks {
            let mut seen = match before.remove(&look.pid) {
                Some(seen) if (seen.last.hand, &seen.last.text) == (look.hand, &look.text) => seen,
                ended => {
                    self.ended(ended);
                    Seen { last: look.clone(), before: Duration::ZERO, looks: 0, on_processor: 0 }
                }
            };
            if seen.last.began != look.began {
                seen.before += seen.last.runs;
                self.known(&look.text).alone(seen.last.runs);
            }
            seen.looks += 1;
            seen.on_processor += u32::from(!look.waits);
            seen.last = look;
            if self.is_away(&seen) {
                self.known(&seen.last.text).cancelled += 1;
                away.push(seen.last);
            } else {
                self.seen.insert(seen.last.pid, seen);
            }
        }
        before.into_values().for_each(|seen| self.ended(Some(seen)));
        away
    }

    fn known(&mut self, text: &str) -> &mut Known {
        if self.texts.len() >= TEXTS_MAX && !self.texts.contains_key(text) {
            self.texts.clear();
        }
        self.texts.entry(text.to_owned()).or_default()
    }

    fn ended(&mut self, seen: Option<Seen>) {
        let Some(Seen { last, before, .. }) = seen else { return };
        let known = self.known(&last.text);
        known.alone(last.runs);
        known.together = known.together.max(before + last.runs);
        known.cancelled = 0;
    }

    fn is_away(&mut self, seen: &Seen) -> bool {
        let busy = seen.looks >= LOOKS_MIN && seen.on_processor * 5 >= seen.looks * 4;
        let known = self.known(&seen.last.text);
        let alone = seen.last.runs >= known.limit(ALONE, known.alone);
        let together = seen.before + seen.last.runs >= known.limit(TOGETHER, known.together);
        finds_rows(&seen.last.text) && busy && (alone || together)
    }
}

/// Whether the statement finds rows. The first word tells; the server may have cut off the rest.
fn finds_rows(text: &str) -> bool {
    let word = text.split_ascii_whitespace().next().unwrap_or_default();
    ["DELETE", "INSERT", "SELECT", "UPDATE", "WITH"].contains(&word)
}

/// Watches the sessions until this future is dropped.
pub(crate) async fn watch(info: ConnInfo, name: String, watched: Vec<Watched>) {
    let (mut session, mut judge) = (None, Judge::default());
    loop {
        tokio::time::sleep(INTERVAL).await;
        let held = |own: &Watched| own.hand.held().filter(|since| since.elapsed() >= FIRST_LOOK);
        let hands: HashMap<i32, Instant> =
            watched.iter().filter_map(|own| Some((own.pid, held(own)?))).collect();
        if hands.is_empty() {
            judge.look(Vec::new());
            continue;
        }
        let looks = match ask(&mut session, &info, &name, &hands).await {
            Ok(looks) => looks,
            Err(error) => {
                tracing::debug!("could not ask what the target executes: {error}");
                session = None;
                continue;
            }
        };
        for look in judge.look(looks) {
            let Some(session) = watched.iter().find(|session| session.pid == look.pid) else { continue };
            // Work that ended meanwhile did not run away.
            if held(session) == Some(look.hand) {
                take_back(session, look).await;
            }
        }
    }
}

async fn take_back(session: &Watched, look: Look) {
    // Set it before the cancel: the executor may see the error at once.
    session.cancelled.set(Some(Statement { text: look.text, ran: look.runs }));
    if let Err(error) = session.canceller.cancel().await {
        session.cancelled.set(None);
        tracing::warn!("could not cancel a statement that takes too long: {error}");
    }
}

async fn ask(
    session: &mut Option<Session>,
    info: &ConnInfo,
    name: &str,
    hands: &HashMap<i32, Instant>,
) -> Result<Vec<Look>, client::Error> {
    let connected = match session.take() {
        Some(connected) => connected,
        None => {
            let settings = [("search_path", ""), ("statement_timeout", "5s"), ("idle_session_timeout", "0")];
            client::connect(info, name, &settings).await?
        }
    };
    let pids: Vec<i32> = hands.keys().copied().collect();
    let rows = connected.query(ACTIVITY, &[&pids]).await.map_err(|error| connected.error(error))?;
    *session = Some(connected);
    let look = |row: &tokio_postgres::Row| Look {
        pid: row.get(0),
        hand: hands[&row.get::<_, i32>(0)],
        began: row.get(1),
        runs: Duration::from_secs_f64(row.get::<_, f64>(2).max(0.0)),
        waits: row.get(3),
        text: row.get(4),
    };
    Ok(rows.iter().map(look).collect())
}

/// $1 are the backends.
const ACTIVITY: &str = "
SELECT pid, query_start::text, extract(epoch FROM pg_catalog.clock_timestamp() - query_start)::float8,
       wait_event_type IS NOT NULL, query
  FROM pg_catalog.pg_stat_activity
 WHERE pid = ANY ($1) AND state = 'active' AND query_start IS NOT NULL AND query IS NOT NULL";

#[cfg(test)]
mod tests {
    use super::*;

    fn look(began: &str, runs: u64, waits: bool) -> Look {
        static HAND: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        let text = "DELETE FROM ONLY t USING (SELECT pg_catalog.unnest($1) AS c0) AS s".to_owned();
        let runs = Duration::from_secs(runs);
        Look { pid: 7, hand: *HAND, began: began.to_owned(), runs, waits, text }
    }

    /// After how many seconds a statement is cancelled.
    fn taken_back(judge: &mut Judge, began: &str, waits: impl Fn(u64) -> bool) -> Option<u64> {
        (2..200).find(|&second| !judge.look(vec![look(began, second, waits(second))]).is_empty())
    }

    #[test]
    fn a_set_that_stays_on_the_processor_is_taken_back_and_later_each_time() {
        let mut judge = Judge::default();
        assert_eq!(taken_back(&mut judge, "a", |_| false), Some(10));
        assert_eq!(taken_back(&mut judge, "b", |_| false), Some(20));
        assert_eq!(taken_back(&mut judge, "c", |_| false), Some(40));
        let other = |second| {
            let text = "UPDATE ONLY t SET a = s.c0, b = s.".to_owned();
            Look { text, ..look("d", second, false) }
        };
        let taken = (2..200).find(|&second| !judge.look(vec![other(second)]).is_empty());
        assert_eq!(taken, Some(10), "another text, of which the server keeps the beginning");
        (2..=3).for_each(|second| assert!(judge.look(vec![look("e", second, false)]).is_empty()));
        assert!(judge.look(Vec::new()).is_empty(), "one ended by itself");
        assert_eq!(taken_back(&mut judge, "f", |_| false), Some(12), "four times as long as that");
    }

    #[test]
    fn many_behind_each_other_are_taken_back_together_and_those_of_another_set_are_not() {
        let (mut judge, hand) = (Judge::default(), Instant::now());
        let mut third = |hand: Instant| {
            (0..100).find(|number| {
                let looks = (1..=8).map(|second| Look { hand, ..look(&number.to_string(), second, false) });
                looks.into_iter().any(|look| !judge.look(vec![look]).is_empty())
            })
        };
        assert_eq!(third(hand), Some(3), "30 s are over in the fourth of eight seconds each");
        assert_eq!(third(hand + Duration::from_secs(1)), Some(7), "twice that");
        let (mut judge, mut sets) = (Judge::default(), 0..20);
        let alone = |second| Look { hand: hand + Duration::from_secs(second), ..look("a", 8, false) };
        assert!(sets.all(|number| judge.look(vec![alone(number)]).is_empty()));
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
