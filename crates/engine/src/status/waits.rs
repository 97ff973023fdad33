//! Names the stage that takes long.
//!
//! An operator who sees figures that do not move asks what the pipeline waits for. The stages' own
//! figures say what is in hand (`apply::Activity`, the spool, the gate). `monitor` asks a server
//! what its backend does for us when no answer has come for about a second. The first row of the
//! table that holds gives the name.
//!
//! | stage | when |
//! |---|---|
//! | `lock` | a session of ours waits for a lock on either end |
//! | `spool` | the disk under the spool has been waited for, for a second |
//! | `statement`, `commit`, `network` | the target has one in hand for longer than a second; the server says which, and what it waits for |
//! | `rows` | a batch is applied one change at a time, for longer than a second |
//! | `transaction` | a large transaction is applied part by part, for longer than a second |
//! | `verify` | `pgsluice verify` holds the stream |
//! | `archive` | decoding waits for WAL, in the archive or on standbys |
//! | `open` | transactions that are open on the source are in the spool |
//! | `source` | the source has WAL that it has not sent, for a second; or nothing is behind |
//! | `flush` | what was applied is not durable on the target yet, for a second |

use std::time::{Duration, Instant};

use apply::{Doing, InHand};
use serde::{Deserialize, Serialize};

use super::standstill::lock;
use super::{LagFigures, Phase, Status};
use crate::byte_size::ByteSize;

/// Work that has been under way for less than this is not a wait.
const LONG: Duration = Duration::from_secs(1);
/// A server's answer is out of date after this.
const FRESH: Duration = Duration::from_secs(4);

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

/// What a backend of ours does, by its server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Look {
    /// `source` or `target`.
    pub(crate) end: &'static str,
    pub(crate) pid: i32,
    /// `None` where the server does not track it.
    pub(crate) state: Option<String>,
    pub(crate) wait_event: Option<(String, String)>,
    /// Operation and table of its statement.
    pub(crate) operation: Option<String>,
    pub(crate) table: Option<String>,
    pub(crate) lasts: Duration,
}

impl Look {
    /// Whether the backend executes something for us.
    pub(crate) fn works(&self) -> bool {
        let active = self
            .state
            .as_deref()
            .is_none_or(|state| matches!(state, "active" | "fastpath function call" | "disabled"));
        active && !self.waits_for_us()
    }

    /// The wait, in words for people.
    pub(crate) fn waits_for(&self) -> WaitsFor {
        WaitsFor::of_look(self)
    }

    fn waits_for_us(&self) -> bool {
        self.wait_event.as_ref().is_some_and(|(_, name)| name == "ClientRead")
    }

    /// Explains a wait in its statement, if that helps more than its name.
    fn why(&self) -> Option<String> {
        let (kind, name) = self.wait_event.as_ref()?;
        Some(match (kind.as_str(), name.as_str()) {
            (_, "SyncRep") => {
                "a synchronous standby that does not confirm (SyncRep): see pg_stat_replication there"
                    .to_owned()
            }
            (_, "WALSync" | "WalSync" | "WALWrite" | "WalWrite") => {
                format!("its WAL to reach the disk ({name})")
            }
            ("Client", "ClientWrite") => "us to take its answer (ClientWrite)".to_owned(),
            ("IO", _) => format!("its storage ({name})"),
            _ => format!("{kind}: {name}"),
        })
    }
}

/// The operation and the table of a statement of ours.
pub(crate) fn read_statement(sql: &str) -> (Option<String>, Option<String>) {
    let inner =
        ["WITH met AS (", "WITH d AS ("].iter().find_map(|start| sql.strip_prefix(start)).unwrap_or(sql);
    let operation: String = inner.trim_start().chars().take_while(char::is_ascii_alphabetic).collect();
    let behind = match operation.as_str() {
        "INSERT" => Some("INSERT INTO "),
        "UPDATE" => Some("UPDATE "),
        "DELETE" => Some("DELETE FROM "),
        "COPY" => Some("COPY "),
        "TRUNCATE" => Some("TRUNCATE "),
        "ANALYZE" => Some("ANALYZE "),
        // A look-up: its keys come from arrays, and the first real name is the table's.
        "SELECT" => inner.find("FROM \"").or_else(|| inner.find("FROM ONLY \"")).map(|_| "FROM "),
        _ => None,
    };
    let table = behind.and_then(|behind| match operation.as_str() {
        "SELECT" => inner.match_indices(behind).find_map(|(at, _)| name_at(&inner[at + behind.len()..])),
        _ => name_at(inner.trim_start().strip_prefix(behind)?),
    });
    (Some(operation).filter(|operation| !operation.is_empty()), table)
}

/// Reads `"schema"."table"`, with or without ONLY before it, as `schema.table`.
fn name_at(text: &str) -> Option<String> {
    let mut rest = text.strip_prefix("ONLY ").unwrap_or(text);
    let mut parts = Vec::new();
    loop {
        let (mut part, mut chars) = (String::new(), rest.strip_prefix('"')?.char_indices().peekable());
        let end = loop {
            match chars.next()? {
                (_, '"') if chars.peek().is_some_and(|(_, next)| *next == '"') => {
                    chars.next();
                    part.push('"');
                }
                (at, '"') => break at,
                (_, c) => part.push(c),
            }
        };
        parts.push(part);
        match rest[end + 2..].strip_prefix('.') {
            Some(more) => rest = more,
            None => return Some(parts.join(".")),
        }
    }
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

    fn of_look(look: &Look) -> WaitsFor {
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
                    "a batch that does not fit the target as a set: it is applied one change at a time",
                )
            },
            (_, _, Some((lasts, changes))) => WaitsFor::plain(
                "transaction",
                format!("a large transaction, which is applied in parts: {changes} changes so far"),
                lasts,
            ),
            (Some(Doing::Commit), ..) => plain("commit", "COMMIT on the target"),
            _ => plain("statement", "statements of a batch on the target"),
        }
    }
}

impl Status {
    /// Stores what a server says about a backend of ours; `None` clears it.
    pub(crate) fn set_looked(&self, end: usize, look: Option<Look>) {
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
            Phase::Waiting => {
                Some(WaitsFor::plain("retry", "the next attempt, after the last error", Duration::ZERO))
            }
            Phase::Stopping | Phase::Stopped => None,
        }
    }

    fn lock_wait(&self) -> Option<WaitsFor> {
        let blocked = self.blocked()?;
        Some(WaitsFor {
            table: blocked.table.clone(),
            pid: Some(blocked.pid),
            ..WaitsFor::plain("lock", blocked.to_string(), Duration::from_secs_f64(blocked.seconds))
        })
    }

    fn looked(&self) -> Option<Look> {
        let looked = lock(&self.standstill.looked);
        let fresh = |(look, at): &(Look, Instant)| {
            (at.elapsed() < FRESH).then(|| Look { lasts: look.lasts + at.elapsed(), ..look.clone() })
        };
        let found = looked
            .iter()
            .flatten()
            .filter_map(fresh)
            .filter(|look| look.lasts >= LONG || look.waits_for_us());
        // An end that waits for us may in truth wait for the other end's work, so work counts
        // first.
        found.max_by_key(Look::works)
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
        let late = |lag: &super::Lag| {
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

    #[test]
    fn a_statement_of_ours_names_its_operation_and_its_table() {
        for (sql, operation, table) in [
            ("UPDATE ONLY \"s\".\"t\" AS t SET \"a\" = s.c1 FROM (SELECT", "UPDATE", Some("s.t")),
            ("UPDATE \"s\".\"odd \"\"name\" AS t SET", "UPDATE", Some("s.odd \"name")),
            ("DELETE FROM ONLY \"s\".\"t\" AS t USING (SELECT", "DELETE", Some("s.t")),
            ("INSERT INTO \"s\".\"t\" (\"a\") OVERRIDING", "INSERT", Some("s.t")),
            ("WITH met AS (INSERT INTO \"s\".\"t\" (\"a\")", "INSERT", Some("s.t")),
            ("WITH d AS (DELETE FROM ONLY \"s\".\"t\" AS t WHERE", "DELETE", Some("s.t")),
            ("COPY \"s\".\"t\" (\"a\") FROM STDIN", "COPY", Some("s.t")),
            ("TRUNCATE ONLY \"s\".\"t\", \"s\".\"u\"", "TRUNCATE", Some("s.t")),
            (
                "SELECT 1 FROM (SELECT pg_catalog.unnest($1) AS c0) AS s WHERE EXISTS (SELECT FROM ONLY \"s\".\"t\" AS t",
                "SELECT",
                Some("s.t"),
            ),
            ("COMMIT", "COMMIT", None),
            ("UPDATE ONLY \"s\".\"cut of", "UPDATE", None),
        ] {
            assert_eq!(read_statement(sql), (Some(operation.to_owned()), table.map(str::to_owned)), "{sql}");
        }
        assert_eq!(read_statement(""), (None, None));
    }

    fn look(operation: &str, wait_event: Option<(&str, &str)>) -> Look {
        Look {
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
