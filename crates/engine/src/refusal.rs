//! The states in which a pipeline does not begin or go on, because only a person can help.
//!
//! Each message says what is wrong and what to do. A start finds most of them before anything is
//! changed.

use std::fmt;

use base::{Lsn, SubscriptionName, quote_ident};
use source::publication::{BinaryRefusal, TableName};
use wal_source::OtherSource;

/// The reason for a refusal.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The catalogs were lost, and tables must be copied again, which the operator has not allowed.
    Relook {
        cause: String,
        is_proven: bool,
        tables: Vec<String>,
        copy_data: bool,
    },
    /// A subscription keeps the source mode that its slot was made for.
    OtherMode {
        name: SubscriptionName,
        made_for: &'static str,
    },
    /// `check` found reasons to refuse the start; one text for each.
    Check(Vec<String>),
    /// The source has our slot, and the target has no row of ours.
    SlotOfAnotherTarget {
        slot: String,
        name: SubscriptionName,
    },
    OtherSource(OtherSource),
    /// The source has a slot of our name that we did not make.
    NotOurSlot {
        slot: String,
        name: SubscriptionName,
        plugin: Option<String>,
        database: Option<String>,
    },
    SlotLost {
        slot: String,
        why: Option<String>,
    },
    SlotGone {
        slot: String,
    },
    /// The slot is past the position that the target has.
    TargetBehind {
        slot: String,
        confirmed: Lsn,
        start: Lsn,
    },
    /// The source's WAL ends before the position that the target has.
    SourceBehind {
        end: Lsn,
        start: Lsn,
    },
    /// The timelines parted before the last applied position.
    Forked {
        before: i64,
        now: i64,
        fork: Lsn,
        applied: Lsn,
    },
    /// The source never was on the timeline of last time.
    OtherHistory {
        before: i64,
        now: i64,
        applied: Lsn,
    },
    /// `binary = on` is set, and a column has no binary form.
    Binary(BinaryRefusal),
    Generated {
        table: TableName,
        column: String,
    },
    /// The target has some of the tables that were to be created.
    PartOfTheTables {
        there: Vec<String>,
        missing: Vec<String>,
    },
    /// A table that was added to the publication does not take part.
    NotJoined {
        table: String,
        reason: String,
    },
    /// The first copy of a pair, where both sides have rows.
    BothHaveRows {
        table: TableName,
        database: String,
    },
    /// The other direction of a pair has ended before both were set up.
    OtherDirection {
        name: SubscriptionName,
    },
    /// The subscription's row went away during a start or a release.
    Dropped,
    NoSnapshot,
    ApplierEnded,
    ApplierBroke(String),
    /// The command that adopts was interrupted.
    AdoptionUnfinished {
        name: SubscriptionName,
    },
    /// An adopted native subscription names its slot again.
    SlotGivenBack {
        native: String,
        slot: String,
    },
    /// The native subscription had `origin = none`, and the settings do not.
    AdoptedOriginNone {
        name: SubscriptionName,
    },
}

/// Advice for a source whose history is not the one that the target has.
const COPY_AGAIN: &str = "the target may hold rows that the source lacks: pgsluice drop, empty the tables and copy \
                          again; pgsluice verify shows what differs";

/// Most table names that a message shows.
const NAMES_SHOWN_MAX: usize = 10;

fn or_none(text: Option<&String>) -> &str {
    text.map_or("none", String::as_str)
}

fn or_lost(text: Option<&String>) -> &str {
    text.map_or("lost", String::as_str)
}

/// The first names, and the number of the others.
pub(crate) fn shown(all: &[String]) -> String {
    let more = all.len().saturating_sub(NAMES_SHOWN_MAX);
    let shown = all[..all.len() - more].join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Relook { .. } | Refusal::Binary(..) | Refusal::Generated { .. } | Refusal::PartOfTheTables { .. } | Refusal::NotJoined { .. } | Refusal::BothHaveRows { .. } => self.of_tables(f),
            Refusal::OtherMode { name, made_for } => write!(
                f,
                "subscription \"{name}\" has a slot for --source-mode {made_for}, and can continue in that mode \
                 only; give that mode, or drop the subscription and copy again"
            ),
            Refusal::Check(reasons) => {
                let count = match reasons.len() {
                    1 => "1 reason".to_owned(),
                    count => format!("{count} reasons"),
                };
                write!(f, "these servers cannot replicate as they are, for {count}; see pgsluice check:")?;
                reasons.iter().try_for_each(|reason| write!(f, "\n  {reason}"))
            }
            Refusal::SlotOfAnotherTarget { .. } | Refusal::NotOurSlot { .. } | Refusal::SlotLost { .. } | Refusal::SlotGone { .. } => self.of_slot(f),
            Refusal::OtherSource(other) => other.fmt(f),
            Refusal::TargetBehind { .. } | Refusal::SourceBehind { .. } | Refusal::Forked { .. } | Refusal::OtherHistory { .. } => self.of_history(f),
            Refusal::OtherDirection { name } => write!(
                f,
                "the other direction, subscription \"{name}\", has ended before both were set up: see its error, \
                 repair that, and run both again"
            ),
            Refusal::Dropped => f.write_str(
                "the subscription was dropped from the target just now; to begin again: pgsluice run",
            ),
            Refusal::NoSnapshot => f.write_str(
                "the source made a slot but exported no snapshot; give a --source that leads to PostgreSQL itself, \
                 without a pooler between",
            ),
            Refusal::ApplierEnded => f.write_str("the applier ended although nobody had asked it to"),
            Refusal::ApplierBroke(error) => write!(f, "the applier broke down: {error}"),
            Refusal::AdoptionUnfinished { .. } | Refusal::SlotGivenBack { .. } | Refusal::AdoptedOriginNone { .. } => self.of_adoption(f),
        }
    }
}

/// The messages by theme. `fmt` says which variants belong to which.
impl Refusal {
    /// A slot that is not ours, or has not what the target needs.
    fn of_slot(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::SlotOfAnotherTarget { slot, name } => write!(
                f,
                "replication slot \"{slot}\" exists on the source, but the target knows no subscription \"{name}\": \
                 the name is in use by another target; choose another --subscription, or drop the slot if nothing \
                 uses it"
            ),
            Refusal::NotOurSlot { slot, name, plugin, database } => write!(
                f,
                "replication slot \"{slot}\" on the source is not the one that was made for subscription \"{name}\" \
                 (plugin {}, database {}), so changes may be missing; drop the subscription and copy again, or give \
                 the right --source",
                or_none(plugin.as_ref()),
                or_none(database.as_ref())
            ),
            Refusal::SlotLost { slot, why } => write!(
                f,
                "replication slot \"{slot}\" has lost WAL that the target still needs ({}); drop the subscription and \
                 copy again, and see max_slot_wal_keep_size",
                or_lost(why.as_ref())
            ),
            Refusal::SlotGone { slot } => write!(
                f,
                "replication slot \"{slot}\" does not exist on the source any more, so changes may be missing; drop \
                 the subscription and copy again"
            ),
            _ => unreachable!("another theme: {self:?}"),
        }
    }

    /// A source whose WAL does not continue what the target has.
    fn of_history(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::TargetBehind { slot, confirmed, start } => write!(
                f,
                "the slot \"{slot}\" on the source is at {confirmed}, but the target has only changes up to {start}, \
                 and those in between are gone: the target was restored from an older backup or lost what it had \
                 flushed, or the slot was made again or advanced by somebody; drop the subscription and copy again"
            ),
            Refusal::SourceBehind { end, start } => write!(
                f,
                "the source's WAL ends at {end}, but the target has its changes up to {start}: the source was \
                 restored to an earlier state, and pgsluice would miss what it writes until then; {COPY_AGAIN}"
            ),
            Refusal::Forked { before, now, fork, applied } => write!(
                f,
                "the source is on timeline {now}, which left timeline {before} at {fork}, but the target has changes \
                 of timeline {before} up to {applied}: the source was restored, or failed over to a standby that had \
                 not received them; {COPY_AGAIN}"
            ),
            Refusal::OtherHistory { before, now, applied } => write!(
                f,
                "the source is on timeline {now}, but the target has changes up to {applied} of timeline {before}, \
                 which is not part of its history: it was restored to an earlier state, or is an old primary; give \
                 the right --source; if this is the one, {COPY_AGAIN}"
            ),
            _ => unreachable!("another theme: {self:?}"),
        }
    }

    /// Tables and columns that cannot be replicated as they are.
    fn of_tables(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Relook { cause, is_proven, tables, copy_data } => {
                let why = match is_proven {
                    true => "were written since the last change that the target has",
                    false => "may have rows that were decoded wrongly",
                };
                let with = if *copy_data { "" } else { " --copy-data on" };
                write!(
                    f,
                    "{cause}. To continue, pgsluice must read the catalogs again, and copy again the tables that \
                     {why}: {}. It removes their rows on the target first. To allow that: pgsluice relook; then: \
                     pgsluice run{with}",
                    shown(tables)
                )
            }
            Refusal::Binary(why) => write!(f, "--binary on is not possible: {why}; use --binary auto"),
            Refusal::Generated { table, column } => write!(
                f,
                "column \"{column}\" of table \"{table}\" is published by the source but generated on the target; \
                 make it an ordinary column there, or do not publish it"
            ),
            Refusal::PartOfTheTables { there, missing } => write!(
                f,
                "--create-schema creates all published tables or none, but the target has some of them: {}; it \
                 lacks: {}; drop those that it has, or create the others too",
                shown(there),
                shown(missing)
            ),
            Refusal::BothHaveRows { table, database } => write!(
                f,
                "table \"{table}\" in {database} has rows, and the first copy would bring others into it: if only \
                 that side has rows, swap --source and --target; if both sides have the same rows, which pgsluice \
                 verify can tell, give --copy-data off; if the rows may go, TRUNCATE {}",
                table.quoted()
            ),
            Refusal::NotJoined { table, reason } => write!(f, "table \"{table}\" could not join: {reason}"),
            _ => unreachable!("another theme: {self:?}"),
        }
    }

    /// A subscription that was adopted.
    fn of_adoption(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::AdoptionUnfinished { name } => write!(
                f,
                "adopting subscription \"{name}\" was interrupted; to continue: pgsluice adopt; to hand it back: \
                 pgsluice release"
            ),
            Refusal::SlotGivenBack { native, slot } => write!(
                f,
                "native subscription \"{native}\" of the target has slot \"{slot}\" again, although pgsluice has \
                 adopted it: only one of the two may use the slot; ALTER SUBSCRIPTION {ident} DISABLE; ALTER \
                 SUBSCRIPTION {ident} SET (slot_name = NONE); to hand it back: pgsluice release",
                ident = quote_ident(native)
            ),
            Refusal::AdoptedOriginNone { name } => write!(
                f,
                "subscription \"{name}\" was adopted with origin = none: give --origin none, or no --publication, so \
                 that its options are taken from the target"
            ),
            _ => unreachable!("another theme: {self:?}"),
        }
    }
}
