//! Names the stage that takes long.
//!
//! An operator who sees figures that do not move asks what the pipeline waits for. The stages' own
//! figures say what is in hand (`apply::Activity`, the spool, the gate). `monitor` asks a server
//! what its backend does for us when no answer has come for about a second. The first row of the
//! table that holds gives the name.
//!
//! | stage | when |
//! |---|---|
//! | `retry` | an attempt failed, and the next one has not begun |
//! | `copy` | the other direction of a pair makes its first copy |
//! | `lock` | a session of ours waits for a lock on either end |
//! | `spool` | the disk under the spool has been waited for, for a second |
//! | `statement`, `commit`, `network` | the target has one in hand for longer than a second; the server says which, and what it waits for |
//! | `rows` | a batch is applied one change at a time, for longer than a second |
//! | `transaction` | a large transaction is applied part by part, for longer than a second |
//! | `verify` | `pgsluice verify` holds the stream |
//! | `clock` | a transaction is held for longer than a second until the target's clock has passed its commit time |
//! | `archive` | decoding waits for WAL, in the archive or on standbys |
//! | `open` | transactions that are open on the source are in the spool |
//! | `source` | the source has WAL that it has not sent, for a second; or nothing is behind |
//! | `flush` | what was applied is not durable on the target yet, for a second |

use std::time::{Duration, Instant};

use apply::{Doing, HeldForClock, InHand};
use base::SubscriptionName;
use serde::{Deserialize, Serialize};

use super::Status;
use super::lag::{Lag, LagFigures};
use super::look::BackendLook;
use super::phase::Phase;
use super::standstill::lock;
use crate::byte_size::ByteSize;

/// Work that has been under way for less than this is not a wait.
const LONG: Duration = Duration::from_secs(1);
/// A server's answer is out of date after this.
const FRESH: Duration = Duration::from_secs(4);

/// Why a pipeline is in [`Phase::Waiting`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pause {
    /// An attempt ended with an error. The next one begins at this time, or earlier where somebody
    /// skips the transaction.
    Retry(Instant),
    /// The other subscription of a pair makes the first copy.
    OtherCopy {
        /// Its name.
        name: SubscriptionName,
        /// When this pipeline began to wait.
        since: Instant,
    },
}

/// What a pipeline waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WaitsFor {
    /// The stage that takes long; see the module's table.
    pub stage: String,
    /// For people: what it is, and the cause, if it is known.
    pub what: String,
    /// How long it has lasted; 0 if nothing is behind.
    pub seconds: f64,
    /// The operation of a statement, as `UPDATE`.
    #[serde(default)]
    pub operation: Option<String>,
    /// Its table, schema-qualified.
    #[serde(default)]
    pub table: Option<String>,
    /// The backend that works for us.
    #[serde(default)]
    pub pid: Option<i32>,
    /// What that backend waits for, in PostgreSQL's words: type and name.
    #[serde(default)]
    pub wait_event: Option<String>,
}

impl WaitsFor {
    fn plain(stage: &str, what: impl Into<String>, lasts: Duration) -> WaitsFor {
        WaitsFor {
            stage: stage.to_owned(),
            what: what.into(),
            seconds: lasts.as_secs_f64(),
            operation: None,
            table: None,
            pid: None,
            wait_event: None,
        }
    }

    /// Whether it waits only because nothing is behind.
    pub(super) fn is_for_changes(&self) -> bool {
        self.stage == "source" && self.seconds == 0.0
    }

    /// Whether only figures of lag say so. What is busy says more.
    pub(super) fn is_by_lag(&self) -> bool {
        matches!(self.stage.as_str(), "queue" | "open" | "source" | "flush")
    }

    /// The wait for what a backend does.
    pub(crate) fn of_look(look: &BackendLook) -> WaitsFor {
        let end = look.end;
        let (stage, mut what) = match look.operation.as_deref() {
            _ if look.waits_for_us() => (
                "network",
                format!(
                    "the {end}'s backend {} has nothing to do and waits for us: this process is busy, or the network between is slow",
                    look.pid
                ),
            ),
            Some("COMMIT" | "END") => ("commit", format!("COMMIT on the {end}")),
            Some(operation) => {
                let on = look.table.as_ref().map(|table| format!(" on {table}")).unwrap_or_default();
                ("statement", format!("{operation}{on} on the {end}, in its process {}", look.pid))
            }
            None => ("statement", format!("a statement on the {end}, in its process {}", look.pid)),
        };
        if let Some(why) = look.why().filter(|_| stage != "network") {
            what.push_str(&format!("; it waits for {why}"));
        }
        WaitsFor {
            operation: look.operation.clone(),
            table: look.table.clone(),
            pid: Some(look.pid),
            wait_event: look.wait_event.as_ref().map(|(kind, name)| format!("{kind}: {name}")),
            ..WaitsFor::plain(stage, what, look.lasts)
        }
    }

    /// The wait for the target's clock, if it takes long.
    fn of_clock(held: &HeldForClock) -> Option<WaitsFor> {
        let HeldForClock { xid, lasts, ahead } = *held;
        let what = format!(
            "the target's clock to pass the commit time of transaction {xid}, {:.1} s ahead of it, because a conflict \
             rule compares commit times: correct the clocks of both servers",
            ahead.as_secs_f64()
        );
        (lasts + ahead >= LONG).then(|| WaitsFor::plain("clock", what, lasts))
    }

    /// The wait for what the applier has in hand.
    fn of_hand(hand: &InHand) -> WaitsFor {
        let plain = |stage, what: &str| WaitsFor::plain(stage, what, hand.lasts);
        match (hand.doing, &hand.row, hand.open) {
            (Some(Doing::Rows), Some((operation, table, lasts)), _) if *lasts >= LONG => WaitsFor {
                operation: Some((*operation).to_owned()),
                table: Some(table.clone()),
                ..WaitsFor::plain(
                    "statement",
                    format!("{operation} of one row on {table} on the target"),
                    *lasts,
                )
            },
            (Some(Doing::Rows), row, _) => WaitsFor {
                table: row.as_ref().map(|(_, table, _)| table.clone()),
                ..plain(
                    "rows",
                    "a batch that does not fit the target as a set: pgsluice applies it one change at a time",
                )
            },
            (_, _, Some((lasts, changes))) => WaitsFor::plain(
                "transaction",
                format!("a large transaction, which pgsluice applies in parts: {changes} changes so far"),
                lasts,
            ),
            (Some(Doing::Commit), ..) => plain("commit", "COMMIT on the target"),
            _ => plain("statement", "statements of a batch on the target"),
        }
    }
}

impl Status {
    /// Stores what a server says about a backend of ours; `None` clears it.
    pub(crate) fn set_looked(&self, end: usize, look: Option<BackendLook>) {
        lock(&self.standstill.looked)[end] = look.map(|look| (look, Instant::now()));
    }

    /// The wait that `status` names; `None` while everything moves.
    pub(super) fn waits_for(&self, lag: &LagFigures) -> Option<WaitsFor> {
        match self.phase() {
            Phase::Starting | Phase::Copying | Phase::Indexing => {
                self.lock_wait().or_else(|| self.looked().map(|look| WaitsFor::of_look(&look)))
            }
            Phase::CatchingUp | Phase::Streaming => {
                self.lock_wait().or_else(|| self.work_wait()).or_else(|| self.other_wait(lag))
            }
            Phase::Waiting => self.pause(),
            Phase::Stopping | Phase::Stopped => None,
        }
    }

    fn pause(&self) -> Option<WaitsFor> {
        Some(match lock(&self.pause).clone()? {
            Pause::Retry(at) => {
                let left = at.saturating_duration_since(Instant::now()).as_secs_f64();
                let cause = lock(&self.last_error).as_ref().map(|error| format!(": {}", error.message));
                let what = format!(
                    "the next attempt, in {left:.1} s, because the last one failed{}",
                    cause.unwrap_or_default()
                );
                WaitsFor::plain("retry", what, Duration::ZERO)
            }
            Pause::OtherCopy { name, since } => {
                let what = format!("the end of the first copy of subscription \"{name}\"");
                WaitsFor::plain("copy", what, since.elapsed())
            }
        })
    }

    fn lock_wait(&self) -> Option<WaitsFor> {
        let blocked = self.blocked()?;
        Some(WaitsFor {
            table: blocked.table.clone(),
            pid: Some(blocked.pid),
            ..WaitsFor::plain("lock", blocked.to_string(), Duration::from_secs_f64(blocked.seconds))
        })
    }

    fn looked(&self) -> Option<BackendLook> {
        let looked = lock(&self.standstill.looked);
        let fresh = |(look, at): &(BackendLook, Instant)| {
            (at.elapsed() < FRESH).then(|| BackendLook { lasts: look.lasts + at.elapsed(), ..look.clone() })
        };
        let found = looked
            .iter()
            .flatten()
            .filter_map(fresh)
            .filter(|look| look.lasts >= LONG || look.waits_for_us());
        // An end that waits for us may in truth wait for the other end's work, so work counts
        // first.
        found.max_by_key(BackendLook::works)
    }

    /// The wait for what is in hand on the target or on our disk.
    fn work_wait(&self) -> Option<WaitsFor> {
        let disk = self.spooling.busy().max(self.counters.activity.on_disk());
        if let Some(lasts) = disk.filter(|lasts| *lasts >= LONG) {
            return Some(WaitsFor::plain("spool", "the disk under the spool, which takes long", lasts));
        }
        let hands = self.counters.activity.in_hand();
        let long = |hand: &&InHand| {
            hand.doing.is_some() && hand.lasts >= LONG || hand.open.is_some_and(|(lasts, _)| lasts >= LONG)
        };
        let hand = hands.iter().find(long)?;
        match self.looked() {
            Some(look) if hand.doing.is_some() && hand.lasts >= LONG => Some(WaitsFor::of_look(&look)),
            _ => Some(WaitsFor::of_hand(hand)),
        }
    }

    fn other_wait(&self, lag: &LagFigures) -> Option<WaitsFor> {
        let late = |lag: &Lag| {
            let seconds = lag.seconds.filter(|_| lag.bytes.is_some_and(|bytes| bytes > 0))?;
            Duration::try_from_secs_f64(seconds).ok().filter(|lasts| *lasts >= LONG)
        };
        if self.gate().is_held() {
            return Some(WaitsFor::plain(
                "verify",
                "pgsluice verify, which holds the stream",
                Duration::ZERO,
            ));
        }
        if let Some(waits) = self.counters.clock.figures().held.and_then(|held| WaitsFor::of_clock(&held)) {
            return Some(waits);
        }
        if let Some(awaited) = self.decoded.snapshot().and_then(|own| own.awaited) {
            return Some(WaitsFor::plain("archive", awaited, Duration::ZERO));
        }
        if let Some(lasts) = late(&lag.queue).filter(|_| !self.counters.activity.in_hand().is_empty()) {
            return Some(WaitsFor::plain(
                "queue",
                "what was received waits until the target has done what it has in hand",
                lasts,
            ));
        }
        if let (open @ 1.., bytes) = self.spooling.held() {
            let plural = if open == 1 { "a transaction that is" } else { "transactions that are" };
            let what = format!(
                "the commit of {plural} open on the source: {open} with {} in the spool",
                ByteSize(bytes)
            );
            return Some(WaitsFor::plain("open", what, Duration::ZERO));
        }
        if let Some(lasts) = late(&lag.receive) {
            let what = "the source, which has WAL that its walsender has not sent: it decodes, or the network is slow";
            return Some(WaitsFor::plain("source", what, lasts));
        }
        if lag.total.bytes == Some(0) {
            return Some(WaitsFor::plain(
                "source",
                "changes of the source: nothing is behind",
                Duration::ZERO,
            ));
        }
        if let Some(lasts) = late(&lag.flush) {
            let what = "the target's disk, to which what was committed is not flushed yet";
            return Some(WaitsFor::plain("flush", what, lasts));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(operation: &str, wait_event: Option<(&str, &str)>) -> BackendLook {
        BackendLook {
            end: "target",
            pid: 7,
            state: Some("active".to_owned()),
            wait_event: wait_event.map(|(kind, name)| (kind.to_owned(), name.to_owned())),
            operation: Some(operation.to_owned()),
            table: (operation == "UPDATE").then(|| "public.t".to_owned()),
            lasts: Duration::from_secs(5),
        }
    }

    #[test]
    fn the_clock_is_named_when_it_holds_for_long() {
        let of = |lasts, ahead| {
            let held = HeldForClock {
                xid: base::Xid(7),
                lasts: Duration::from_millis(lasts),
                ahead: Duration::from_millis(ahead),
            };
            WaitsFor::of_clock(&held)
        };
        assert_eq!(of(400, 500), None);
        let waits = of(500, 2_500).unwrap();
        assert_eq!((waits.stage.as_str(), waits.seconds), ("clock", 0.5));
        assert!(waits.what.contains("transaction 7, 2.5 s ahead of it"), "{waits:?}");
    }

    #[test]
    fn the_stage_is_the_one_that_takes_long() {
        for (operation, event, stage, words) in [
            ("UPDATE", None, "statement", "UPDATE on public.t on the target, in its process 7"),
            ("UPDATE", Some(("IO", "DataFileRead")), "statement", "it waits for its storage (DataFileRead)"),
            ("COMMIT", Some(("IPC", "SyncRep")), "commit", "a synchronous standby that does not confirm"),
            ("COMMIT", Some(("IO", "WALSync")), "commit", "its WAL to reach the disk"),
            ("UPDATE", Some(("Client", "ClientRead")), "network", "waits for us"),
        ] {
            let waits = WaitsFor::of_look(&look(operation, event));
            assert_eq!(waits.stage, stage);
            assert!(waits.what.contains(words), "{waits:?}");
        }
        assert!(look("UPDATE", None).works() && !look("UPDATE", Some(("Client", "ClientRead"))).works());
    }
}
