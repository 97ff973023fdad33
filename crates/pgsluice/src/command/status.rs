//! `pgsluice status [--json]`.
//!
//! Asks the running process, or without one the servers. The JSON form is one object per
//! subscription and line, and `running` says who answered. If a process runs, the keys are those of
//! `engine::StatusSnapshot`. Otherwise `stored` has the target's state and `slot` the source's,
//! null where there is none. `servers_asked` is false if the servers are not known.

use std::fmt::Write as _;

use engine::{
    CatchingUp, DecodedSnapshot, Lag, PrefetchSnapshot, Refresh, RetainedSnapshot, SchemaSnapshot,
    StatusSnapshot, TableSnapshot, Totals, ValuesSnapshot, WaitsFor,
};
use operate::admin::{self, SlotFigures, Stored};
use operate::control::{self, Request};
use serde::Serialize;

use super::{connect, from_admin, from_control};
use crate::exit::Code;
use crate::invocation::{complete, complete_json};
use crate::progress::show_building;
use crate::subject::Subject;
use crate::units::{show_bytes, show_count, show_seconds};

/// What was found of one subscription.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum FoundState {
    Running {
        running: bool,
        #[serde(flatten)]
        snapshot: Box<StatusSnapshot>,
    },
    Stored {
        running: bool,
        subscription: String,
        servers_asked: bool,
        stored: Option<Box<Stored>>,
        slot: Option<Box<SlotFigures>>,
        /// Position that the target has flushed.
        reached: Option<String>,
        /// WAL of the source after that position.
        behind_bytes: Option<u64>,
        /// The archive that is followed instead of a slot.
        archive: Option<String>,
    },
}

/// Shows all `subjects`; the exit code says whether all of them run.
pub(crate) async fn status(subjects: &[Subject], json: bool) -> anyhow::Result<Code> {
    let mut code = Code::Done;
    for (position, subject) in subjects.iter().enumerate() {
        let found = find(subject).await?;
        if matches!(found, FoundState::Stored { .. }) {
            code = Code::NotRunning;
        }
        let name = Some(subject.name.as_str());
        if json {
            super::say(format_args!("{}", complete_json(&serde_json::to_string(&found)?, name)));
        } else {
            let gap = if position > 0 { "\n" } else { "" };
            super::say(format_args!("{gap}{}", complete(text(&found).trim_end(), name)));
        }
    }
    Ok(code)
}

async fn find(subject: &Subject) -> anyhow::Result<FoundState> {
    let name = &subject.name;
    match control::ask(&subject.state_dir, name, &Request::Status).await {
        Ok(answer) => {
            let snapshot =
                answer.status.ok_or_else(|| anyhow::anyhow!("the process answered without a status"))?;
            return Ok(FoundState::Running { running: true, snapshot });
        }
        Err(error) if error.is_not_running() => {}
        Err(error) => return Err(from_control(error)),
    }
    let (mut stored, mut slot, mut end) = (None, None, None);
    let servers_asked = subject.has_ends();
    if servers_asked {
        let target = connect("target", &subject.target()?, name).await?;
        stored = admin::stored(&target, name).await.map_err(from_admin)?.map(Box::new);
        let source = connect("source", &subject.source()?, name).await?;
        let own = stored.as_ref().and_then(|stored| stored.slot.clone()).unwrap_or_else(|| name.slot());
        slot = admin::slot_figures(&source, &own).await.map_err(from_admin)?.map(Box::new);
        end = admin::source_end(&source).await.map_err(from_admin)?;
    }
    let reached = stored.as_ref().and_then(|stored| stored.reached());
    Ok(FoundState::Stored {
        running: false,
        subscription: name.to_string(),
        servers_asked,
        stored,
        slot,
        reached: reached.map(|lsn| lsn.to_string()),
        behind_bytes: reached.zip(end).map(|(lsn, end)| end.bytes_since(lsn)),
        archive: subject.followed_archive().map(|dir| dir.display().to_string()),
    })
}

/// The status as text.
fn text(found: &FoundState) -> String {
    let mut lines = Lines::default();
    match found {
        FoundState::Running { snapshot, .. } => running(&mut lines, snapshot),
        FoundState::Stored { subscription, servers_asked: false, .. } => {
            lines.add("subscription", subscription);
            lines.add("well", "no: it does not run on this machine");
            lines.add("state", "not running on this machine; give --source and --target to see more");
        }
        FoundState::Stored { subscription, stored, slot, reached, behind_bytes, archive, .. } => {
            lines.add("subscription", subscription);
            lines.add("well", "no: it does not run");
            lines.add("behind", behind_bytes.map_or_else(|| "not known".to_owned(), show_bytes));
            not_running(&mut lines, stored.as_deref());
            if let Some(reached) = reached {
                let behind = behind_bytes.map_or_else(|| "-".to_owned(), show_bytes);
                lines.add("flushed", format!("{reached} on the target, {behind} behind the source"));
            }
            show_slot(&mut lines, slot.as_deref(), archive.as_deref());
        }
    }
    lines.0
}

/// Names on the left, values on the right.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, value: impl std::fmt::Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{name:<14}{value}");
    }
}

fn running(lines: &mut Lines, snapshot: &StatusSnapshot) {
    let seconds_since = |unix_ms: i64| (snapshot.read_at_unix_ms - unix_ms).max(0) as f64 / 1e3;
    lines.add("subscription", &snapshot.subscription);
    three_answers(lines, snapshot);
    let up = show_seconds(seconds_since(snapshot.started_at_unix_ms));
    lines.add("state", format!("{}, process {}, up {up}", snapshot.phase, snapshot.pid));
    if let Some(catching_up) = &snapshot.catching_up {
        consistency(lines, catching_up);
    }
    if let Some(blocked) = &snapshot.blocked {
        lines.add("blocked", format!("for {}: {blocked}", show_seconds(blocked.seconds)));
        lines.add("", blocked.remedy());
    }
    if let Some(waits) = snapshot.waits_for.as_ref().filter(|_| snapshot.blocked.is_none()) {
        lines.add("waits for", show_wait(waits));
    }
    first_copy(lines, &snapshot.copy.tables);
    schema(lines, &snapshot.schema);
    if let Some(refresh) = &snapshot.refresh {
        published(lines, refresh);
    }
    progress(lines, snapshot);
    applied(lines, &snapshot.totals);
    lines.add("prefetch", show_prefetch(&snapshot.prefetch));
    if let Some(values) = &snapshot.values {
        lines.add("values", show_values(values));
    }
    if let Some(decoded) = &snapshot.decoded {
        lines.add("decoding", show_decoding(decoded, seconds_since));
    }
    if let Some(deletions) = &snapshot.deletions {
        retained(lines, deletions);
    }
    let met: Vec<_> = snapshot.totals.conflicts.iter().filter(|(_, count)| **count > 0).collect();
    let met: Vec<_> = met.iter().map(|(name, count)| format!("{name} {}", show_count(**count))).collect();
    lines.add("conflicts", if met.is_empty() { "none".to_owned() } else { met.join(", ") });
    errors(lines, snapshot);
}

/// Whether it is well, how far behind it is, what limits it, and what to do next.
fn three_answers(lines: &mut Lines, snapshot: &StatusSnapshot) {
    let (trouble, next) = trouble(snapshot).unzip();
    lines.add("well", trouble.map_or_else(|| "yes".to_owned(), |trouble| format!("no: {trouble}")));
    lines.add("behind", show_lag(&snapshot.lag.total));
    let unlimited = match (&snapshot.lag.total, snapshot.streams()) {
        (_, false) | (Lag { bytes: None, .. }, _) => "not known yet",
        (Lag { seconds: Some(1.0..), .. }, _) => "no part alone: none of them is busy all the time",
        _ => "nothing: the target keeps up with the source",
    };
    lines.add("limited by", snapshot.limited_by.as_ref().map_or(unlimited, |limit| &limit.what));
    if let Some(next) = next.flatten() {
        lines.add("next", next);
    }
}

/// What somebody should look at, and the next step if that is not part of it. The worst comes
/// first.
fn trouble(snapshot: &StatusSnapshot) -> Option<(String, Option<String>)> {
    if let (Some(_), Some(error)) = (&snapshot.failing, &snapshot.last_error) {
        return Some((format!("it fails again and again: {}", error.message), None));
    }
    if let Some(blocked) = &snapshot.blocked {
        return Some((blocked.to_string(), Some(blocked.remedy())));
    }
    if let Some(trouble) = snapshot.deletions.as_ref().and_then(|own| own.trouble.as_ref()) {
        return Some((format!("deletions are not remembered: {trouble}"), None));
    }
    let refresh = snapshot.refresh.as_ref()?;
    if let Some(waiting) = refresh.waiting.first() {
        return Some((format!("a table is left out: {}", waiting.reason), None));
    }
    let partition = refresh.partitions.first()?;
    let what = format!("partition {} of {}: {}", partition.partition, partition.root, partition.what);
    Some((what, Some(partition.remedy.clone())))
}

/// What is remembered of the target's deletions.
fn retained(lines: &mut Lines, deletions: &RetainedSnapshot) {
    let RetainedSnapshot { state, count, bytes, retention_exceeded, .. } = deletions;
    let (count, bytes, exceeded) = (show_count(*count), show_bytes(*bytes), show_count(*retention_exceeded));
    lines.add("deletions", format!("{state}, {count} remembered in {bytes}, {exceeded} misses not covered"));
    deletions.trouble.iter().for_each(|trouble| lines.add("", trouble));
    if let Some(why) = &deletions.not_covered_because {
        let until = "until older updates are applied";
        lines.add("", format!("earlier deletions are not covered {until}: {why}"));
    }
    if let Some(waits) = &deletions.horizon_waits_for {
        lines.add("", format!("the horizon waits for {waits}"));
    }
}

/// Nothing where this process has copied no table.
fn first_copy(lines: &mut Lines, tables: &[TableSnapshot]) {
    if tables.is_empty() {
        return;
    }
    let done = tables.iter().filter(|table| table.state == "done").count();
    let rows: u64 = tables.iter().map(|table| table.rows).sum();
    lines.add("first copy", format!("{done} of {} tables, {} rows", tables.len(), show_count(rows)));
    for table in tables.iter().filter(|table| table.state == "copying") {
        let (rows, all) = (show_count(table.rows), show_count(table.rows_estimated));
        lines.add("", format!("{}: {rows} of about {all} rows, {}", table.table, show_bytes(table.bytes)));
    }
}

/// How far each stage is, and how far behind the one before it.
fn progress(lines: &mut Lines, snapshot: &StatusSnapshot) {
    let lag = &snapshot.lag;
    lines.add("lag", show_lag(&lag.total));
    for (name, lag) in
        [("receive", lag.receive), ("queue", lag.queue), ("apply", lag.apply), ("flush", lag.flush)]
    {
        let waits = name == "queue" && lag.bytes.is_some_and(|bytes| bytes > 0) && is_applying(snapshot);
        let why = if waits { ": waits until the target has done what it has in hand" } else { "" };
        lines.add(&format!("  {name}"), show_lag(&lag) + why);
    }
    let or_none = |lsn: &Option<String>| lsn.clone().unwrap_or_else(|| "-".to_owned());
    lines.add(
        "positions",
        format!(
            "source {}, received {}, applied {}, flushed {}",
            or_none(&snapshot.source_end),
            or_none(&snapshot.received),
            or_none(&snapshot.applied),
            or_none(&snapshot.flushed)
        ),
    );
}

/// What was done since the process started.
fn applied(lines: &mut Lines, totals: &Totals) {
    lines.add(
        "applied",
        format!(
            "{} transactions in {} batches, {} replays, {} skipped",
            show_count(totals.transactions),
            show_count(totals.batches),
            show_count(totals.replays),
            show_count(totals.skipped_transactions)
        ),
    );
    lines.add(
        "rows",
        format!(
            "{} inserted, {} updated, {} deleted; {} written; {} tables truncated",
            show_count(totals.inserts),
            show_count(totals.updates),
            show_count(totals.deletes),
            show_count(totals.rows_written),
            show_count(totals.truncates)
        ),
    );
}

/// The last error, and whether it still recurs.
fn errors(lines: &mut Lines, snapshot: &StatusSnapshot) {
    let seconds_since = |unix_ms: i64| (snapshot.read_at_unix_ms - unix_ms).max(0) as f64 / 1e3;
    let totals = &snapshot.totals;
    match &snapshot.last_error {
        Some(error) => {
            let ago = show_seconds(seconds_since(error.at_unix_ms));
            if let Some(failing) = &snapshot.failing {
                let lasts = show_seconds(seconds_since(failing.since_unix_ms));
                lines.add(
                    "failing",
                    format!("for {lasts}, {} attempts in a row", show_count(failing.attempts)),
                );
            }
            lines.add("errors", format!("{}, last {ago} ago: {}", show_count(totals.errors), error.message));
        }
        None => lines.add("errors", "none"),
    }
}

/// Tables and partitions that differ from the source's, each with its remedy.
fn published(lines: &mut Lines, refresh: &Refresh) {
    if !refresh.joining.is_empty() {
        lines.add("being copied", refresh.joining.join(", "));
    }
    let mut name = "left out";
    for waiting in &refresh.waiting {
        lines.add(std::mem::take(&mut name), &waiting.reason);
    }
    let mut name = "differs";
    for partition in &refresh.partitions {
        let what = format!("partition {} of {}: {}", partition.partition, partition.root, partition.what);
        lines.add(std::mem::take(&mut name), what);
        lines.add("", &partition.remedy);
    }
}

/// The creation of the schema, while something is left to create.
fn schema(lines: &mut Lines, schema: &SchemaSnapshot) {
    if schema.done < schema.objects {
        lines.add("schema", format!("{} of {} objects created after the copy", schema.done, schema.objects));
    }
    for building in &schema.building {
        lines.add("", show_building(building));
    }
}

/// The position from which readers see states of the source, and what is missing until then.
fn consistency(lines: &mut Lines, catching_up: &CatchingUp) {
    if catching_up.is_done_but_for_foreign_keys() {
        lines.add("consistent", format!("in every row; still to be done: {catching_up}"));
        return;
    }
    let from = match (&catching_up.lsn, catching_up.bytes) {
        (Some(lsn), Some(bytes)) => format!("from {lsn} on, {} to go", show_bytes(bytes)),
        _ => "when the copies are finished".to_owned(),
    };
    lines.add("consistent", format!("{from}; before that, readers may see states that the source never had"));
    lines.add("", catching_up);
}

fn not_running(lines: &mut Lines, stored: Option<&Stored>) {
    match stored {
        Some(stored) => {
            lines.add("state", if stored.enabled { "not running, enabled" } else { "not running, disabled" });
            if let Some(native) = &stored.adopted_from {
                lines.add("adopted", format!("from native subscription \"{native}\", with its slot"));
            }
            if let Some(why) = &stored.adoption_refuses {
                lines.add("cannot run", why);
            }
            lines.add("publications", stored.publications.join(", "));
            let (copied, rest) = (stored.tables_copied, stored.tables_unfinished);
            lines.add("first copy", format!("{copied} tables finished, {rest} unfinished"));
            if let Some(catching_up) = &stored.catching_up {
                consistency(lines, catching_up);
            }
            if let Some(lsn) = &stored.skip_lsn {
                lines.add("to be skipped", lsn);
            }
            if let Some(error) = &stored.last_error {
                lines.add("last error", error);
            }
        }
        None => lines.add("state", "not running, nothing stored on the target"),
    }
}

/// The slot, and what the source keeps for it.
fn show_slot(lines: &mut Lines, slot: Option<&SlotFigures>, archive: Option<&str>) {
    match slot {
        Some(slot) => {
            let user = slot
                .active_pid
                .map_or_else(|| "inactive".to_owned(), |pid| format!("used by walsender {pid}"));
            lines.add("slot", format!("{}, {user}", slot.slot));
            match slot.physical {
                // A physical slot has no confirmed position: the target stores it.
                true => {
                    let restart = slot.restart_lsn.as_deref().unwrap_or("-");
                    lines.add("  from", format!("{restart}, where decoding continues"));
                }
                false => {
                    let confirmed = slot.confirmed_flush_lsn.as_deref().unwrap_or("-");
                    let behind = slot.lag_bytes.map_or_else(|| "-".to_owned(), show_bytes);
                    lines.add("  confirmed", format!("{confirmed}, {behind} behind the source"));
                }
            }
            let kept = slot.retained_bytes.map_or_else(|| "-".to_owned(), show_bytes);
            let word = slot.wal_status.as_deref().unwrap_or("-");
            lines.add("  keeps", format!("{kept} of WAL on the source ({word})"));
            if let Some(reason) = &slot.invalidation {
                lines.add("  lost", format!("{reason}: drop the subscription and run it again"));
            }
        }
        None => match archive {
            Some(dir) => lines.add("slot", format!("none: WAL comes from the archive {dir}")),
            None => lines.add("slot", "none on the source"),
        },
    }
}

/// `all, reading: 12,345 rows looked up by 8 sessions, 61.3 % of pages were in memory`
fn show_prefetch(prefetch: &PrefetchSnapshot) -> String {
    let Some(mode) = &prefetch.mode else { return "off".to_owned() };
    let state = match &prefetch.trouble {
        Some(why) => return format!("{mode}, off for a while: {why}"),
        None if prefetch.reading => "reading",
        None => "pausing",
    };
    let Some(rate) = prefetch.hit_rate else { return format!("{mode}, nothing looked up yet") };
    format!(
        "{mode}, {state}: {} rows looked up, {} not in time; {:.1} % of pages were in memory; {} sessions",
        show_count(prefetch.rows),
        show_count(prefetch.dropped),
        rate * 100.0,
        prefetch.workers
    )
}

/// `as text: column "mood" of table "public.accounts" has the user-defined type public.mood`
fn show_values(values: &ValuesSnapshot) -> String {
    match &values.reason {
        Some(reason) => format!("as {}: {reason}", values.form),
        None => format!("in {} form", values.form),
    }
}

/// `here, in one pass for 3 subscriptions; catalogs compared with the source's 12 s ago,
/// at 0/1A2B3C4D`
fn show_decoding(decoded: &DecodedSnapshot, seconds_since: impl Fn(i64) -> f64) -> String {
    let mut text = match decoded.subscriptions_in_pass {
        ..=1 => "here".to_owned(),
        count => format!("here, in one pass for {count} subscriptions"),
    };
    // Writing to a String cannot fail.
    let _ = match (&decoded.catalogs_compared_lsn, decoded.catalogs_compared_at_unix_ms) {
        (Some(lsn), Some(at)) => {
            let ago = show_seconds(seconds_since(at));
            write!(text, "; catalogs compared with the source's {ago} ago, at {lsn}")
        }
        _ => write!(text, "; catalogs not compared with the source's yet"),
    };
    if let (Some(lsn), Some(segment)) = (&decoded.needed_from_lsn, &decoded.needed_from_segment) {
        let _ = write!(text, "; WAL needed from {lsn} on, in {segment}");
    }
    if let Some(awaited) = &decoded.awaited {
        let _ = write!(text, "; waiting: {awaited}");
    }
    text
}

/// `UPDATE on public.t on the target, in its process 4711, for 12 s`
fn show_wait(waits: &WaitsFor) -> String {
    match waits.seconds {
        ..1.0 => waits.what.clone(),
        seconds => format!("{}, for {}", waits.what, show_seconds(seconds)),
    }
}

/// Whether the target executes something that the queue waits for.
fn is_applying(snapshot: &StatusSnapshot) -> bool {
    let stage = snapshot.waits_for.as_ref().map(|waits| waits.stage.as_str());
    matches!(stage, Some("lock" | "statement" | "commit" | "rows" | "transaction" | "network" | "queue"))
}

/// `1.2 MB, 0.4 s`
fn show_lag(lag: &Lag) -> String {
    match (lag.bytes, lag.seconds) {
        (Some(bytes), Some(seconds)) => format!("{}, {}", show_bytes(bytes), show_seconds(seconds)),
        (Some(bytes), None) => show_bytes(bytes),
        (None, _) => "not known yet".to_owned(),
    }
}
