//! Turns the texts of settings into the engine's types.
//!
//! This is the last place where a value can be wrong: names, connection strings, and settings that
//! a command needs. Messages name all three ways to give a missing setting.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use base::SubscriptionName;
use client::ConnInfo;
use engine::{PrefetchMode, Settings, Way};

use crate::config::Said;
use crate::conflict_rule;
use crate::failure::Failure;
use crate::settings::{
    Apply, Binary, CommitOrder, Ends, KeepCommitTimestamps, OnTableReplaced, Origin, Prefetch, SettingsTable,
    SourceMode, Stream, SynchronousCommit,
};
use crate::units::OnOff;

/// Not a setting: if this variable is set, every change is applied by itself, as after a batch that
/// does not fit. It is for tests that compare the two paths.
const EXACT_ONLY: &str = "PGSLUICE_EXACT_ONLY";

/// Sessions that apply, unless a number is given.
const WORKERS: usize = 1;
/// The same where transactions may commit out of order.
const RELAXED_WORKERS: usize = 2;

/// What every command needs to know about a subscription.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) name: SubscriptionName,
    pub(crate) state_dir: PathBuf,
    table: SettingsTable,
    /// Settings of this direction that the command line does not have, for the commands that
    /// messages print.
    own: Vec<Said>,
}

impl Subject {
    /// The name and state directory of `table`.
    pub(crate) fn new(table: SettingsTable) -> anyhow::Result<Subject> {
        let name = match (&table.which.subscription, table.stream.publication.first()) {
            (Some(name), _) | (None, Some(name)) => name,
            (None, None) => {
                return Err(Failure::NoName.into());
            }
        };
        let name = name.parse().map_err(Failure::BadName)?;
        let state_dir = match &table.which.state_dir {
            Some(dir) => dir.clone(),
            None => default_state_dir(&|name| std::env::var_os(name))?,
        };
        Ok(Subject { name, state_dir, table, own: Vec::new() })
    }

    /// The source, which must be set.
    pub(crate) fn source(&self) -> anyhow::Result<ConnInfo> {
        end("source", self.table.ends.source.as_deref())
    }

    /// The target, which must be set.
    pub(crate) fn target(&self) -> anyhow::Result<ConnInfo> {
        end("target", self.table.ends.target.as_deref())
    }

    /// Whether a setting is missing that an adopted subscription has stored on the target. The
    /// target itself is set.
    pub(crate) fn lacks_stored(&self, publications: bool) -> bool {
        let Ends { source, target } = &self.table.ends;
        target.is_some() && (source.is_none() || publications && self.table.stream.publication.is_empty())
    }

    /// Whether both ends are set.
    pub(crate) fn has_ends(&self) -> bool {
        self.table.ends.source.is_some() && self.table.ends.target.is_some()
    }

    /// The publications; may be empty.
    pub(crate) fn publications(&self) -> &[String] {
        &self.table.stream.publication
    }

    /// The settings that differ from the command line's, because this is one of two directions.
    pub(crate) fn own_settings(&self) -> &[Said] {
        &self.own
    }

    /// Makes this the first of two directions, and returns the other; see [`crate::both_ways`].
    pub(crate) fn with_way_back(
        &mut self,
        name: Option<&str>,
        published: &[String],
    ) -> anyhow::Result<Subject> {
        self.table.stream.origin = Origin::None;
        self.own = vec![said("origin", ["none"])];
        let mut table = self.table.clone();
        let name = name.map_or_else(|| format!("{}_back", self.name), str::to_owned);
        if name == self.name.as_str() {
            let why = format!("both directions are named \"{name}\": give another --back-subscription");
            return Err(Failure::Together(why).into());
        }
        let Ends { source, target } = &mut table.ends;
        std::mem::swap(source, target);
        let ends = [("source", source.clone()), ("target", target.clone())];
        let mut own: Vec<Said> =
            ends.into_iter().filter_map(|(key, text)| Some(said(key, [text?]))).collect();
        if !published.is_empty() {
            table.stream.publication = published.to_vec();
        }
        if !table.stream.publication.is_empty() {
            own.push(said("publication", table.stream.publication.clone()));
        }
        own.extend([said("origin", ["none"]), said("copy_data", ["off"]), said("create_schema", ["off"])]);
        table.which.subscription = Some(name);
        table.copy.copy_data = OnOff(false);
        table.copy.create_schema = OnOff(false);
        // They are about the server that is the target now.
        table.stream.wal_archive = None;
        table.stream.wal_stream = OnOff(true);
        table.stream.synchronized_standby_slots = Vec::new();
        Ok(Subject { own, ..Subject::new(table)? })
    }

    /// Whether this replicates without a copy what `other` replicates the other way with one.
    pub(crate) fn is_back_of(&self, other: &Subject) -> bool {
        let (own, its) = (&self.table, &other.table);
        let ends = |ends: &Ends| ends.source.clone().zip(ends.target.clone());
        let is_opposite =
            ends(&own.ends).is_some_and(|(source, target)| ends(&its.ends) == Some((target, source)));
        let keeps_apart = [own, its].iter().all(|table| table.stream.origin == Origin::None);
        is_opposite && keeps_apart && !own.copy.copy_data.0 && its.copy.copy_data.0
    }

    /// What the other direction of a pair must know of this one.
    pub(crate) fn way(&self) -> Way {
        let SettingsTable { stream, conflicts, .. } = &self.table;
        Way {
            name: self.name.clone(),
            has_physical_slot: stream.source_mode == SourceMode::Wal && stream.wal_stream.0,
            remembers_deletions: conflicts.retain_dead_tuples.0,
        }
    }

    /// The archive of WAL that is read instead of a stream.
    pub(crate) fn followed_archive(&self) -> Option<&Path> {
        let stream = &self.table.stream;
        let follows = stream.source_mode == SourceMode::Wal && !stream.wal_stream.0;
        stream.wal_archive.as_deref().filter(|_| follows)
    }

    /// Refuses settings that are valid one by one and not together.
    fn check_together(&self, stream: &Stream) -> anyhow::Result<()> {
        if stream.publication.is_empty() {
            return Err(Failure::Missing { key: "publication" }.into());
        }
        if stream.source_mode == SourceMode::Wal && !stream.wal_stream.0 && stream.wal_archive.is_none() {
            let why = "wal_stream = off needs wal_archive: without a stream, all WAL must come from there";
            return Err(Failure::Together(why.to_owned()).into());
        }
        if stream.source_mode == SourceMode::Logical && !stream.synchronized_standby_slots.is_empty() {
            let why = "synchronized_standby_slots needs source_mode = wal: the slots of logical are held back by the \
                       source's own setting of that name, from 17 on";
            return Err(Failure::Together(why.to_owned()).into());
        }
        if stream.synchronized_standby_slots.contains(&self.name.slot()) {
            let why = format!(
                "synchronized_standby_slots names \"{}\", the subscription's own slot: name the slots of standbys",
                self.name.slot()
            );
            return Err(Failure::Together(why).into());
        }
        Ok(())
    }

    /// Everything `run` needs.
    pub(crate) fn pipeline(&self) -> anyhow::Result<Settings> {
        let SettingsTable { stream, copy, apply, conflicts, .. } = &self.table;
        self.check_together(stream)?;
        Ok(Settings {
            subscription: self.name.clone(),
            source: self.source()?,
            target: self.target()?,
            publications: stream.publication.clone(),
            source_mode: match stream.source_mode {
                SourceMode::Logical => engine::SourceMode::Logical,
                SourceMode::Wal => engine::SourceMode::Wal,
            },
            binary: binary(stream.binary),
            streaming: stream.streaming.0,
            origin: match stream.origin {
                Origin::Any => engine::Origin::Any,
                Origin::None => engine::Origin::None,
            },
            synchronous_commit: synchronous_commit(apply.synchronous_commit),
            disable_on_error: apply.disable_on_error.0,
            copy_data: copy.copy_data.0,
            create_schema: copy.create_schema.0,
            pg_dump: copy.pg_dump.clone(),
            max_sync_workers_per_subscription: usize::from(copy.max_sync_workers_per_subscription),
            copy_split_bytes: copy.copy_split_bytes.0,
            batch_rows_max: apply.batch_rows_max as usize,
            // Both machines that pgsluice supports, x86-64 and aarch64, have 64-bit sizes.
            batch_bytes_max: apply.batch_bytes_max.0 as usize,
            prefetch: prefetch(apply)?,
            max_parallel_prefetch_workers_per_subscription: apply
                .max_parallel_prefetch_workers_per_subscription
                .map(usize::from),
            max_parallel_apply_workers_per_subscription: apply_workers(apply),
            commit_order: match apply.commit_order {
                CommitOrder::Preserve => engine::CommitOrder::Preserve,
                CommitOrder::Relaxed => engine::CommitOrder::Relaxed,
            },
            keep_commit_timestamps: keep_commit_timestamps(apply.keep_commit_timestamps),
            exact_only: std::env::var_os(EXACT_ONLY).is_some_and(|value| !value.is_empty()),
            wal_receiver_status_interval: stream.wal_receiver_status_interval.0,
            wal_receiver_timeout: stream.wal_receiver_timeout.0,
            wal_retrieve_retry_interval: stream.wal_retrieve_retry_interval.0,
            refresh_interval: stream.refresh_interval.0,
            on_table_replaced: match stream.on_table_replaced {
                OnTableReplaced::LeaveOut => engine::OnTableReplaced::LeaveOut,
                OnTableReplaced::Copy => engine::OnTableReplaced::Copy,
            },
            wal_archive: stream.wal_archive.clone(),
            wal_stream: stream.wal_stream.0,
            synchronized_standby_slots: stream
                .synchronized_standby_slots
                .iter()
                .map(|name| name.trim().to_owned())
                .collect(),
            catalog_check_interval: stream.catalog_check_interval.0,
            allow_triggers: apply.allow_triggers.0,
            conflict_rules: conflict_rule::rules(&conflicts.conflict).map_err(Failure::Together)?,
            detect_origin_differs: conflicts.detect_origin_differs.0,
            clock_skew_max: Some(conflicts.clock_skew_max.0).filter(|max| !max.is_zero()),
            conflict_history_age: conflicts.conflict_history_age.0,
            conflict_history_rows: conflicts.conflict_history_rows,
            conflict_log_values: conflicts.conflict_log_values.0,
            retain_deletions: conflicts.retain_dead_tuples.0.then(|| engine::Bounds {
                duration_max: Some(conflicts.max_retention_duration.0).filter(|max| !max.is_zero()),
                size_bytes_max: Some(conflicts.retention_size_max.0),
            }),
            retention_interval: Some(conflicts.retention_interval.0).filter(|fixed| !fixed.is_zero()),
            state_dir: self.state_dir.clone(),
        })
    }
}

/// The form in which values come.
fn binary(value: Binary) -> engine::Binary {
    match value {
        Binary::Auto => engine::Binary::Auto,
        Binary::On => engine::Binary::On,
        Binary::Off => engine::Binary::Off,
    }
}

/// A setting as a flag would give it.
fn said<T: Into<OsString>>(key: &str, values: impl IntoIterator<Item = T>) -> Said {
    Said { key: key.to_owned(), values: values.into_iter().map(Into::into).collect(), by_flag: true }
}

/// What a commit on the target waits for.
fn synchronous_commit(value: SynchronousCommit) -> engine::SynchronousCommit {
    match value {
        SynchronousCommit::Off => engine::SynchronousCommit::Off,
        SynchronousCommit::Local => engine::SynchronousCommit::Local,
        SynchronousCommit::RemoteWrite => engine::SynchronousCommit::RemoteWrite,
        SynchronousCommit::On => engine::SynchronousCommit::On,
        SynchronousCommit::RemoteApply => engine::SynchronousCommit::RemoteApply,
    }
}

/// `None` leaves it to the target's setting.
fn keep_commit_timestamps(value: KeepCommitTimestamps) -> Option<bool> {
    match value {
        KeepCommitTimestamps::Auto => None,
        KeepCommitTimestamps::On => Some(true),
        KeepCommitTimestamps::Off => Some(false),
    }
}

/// How many sessions apply. One alone cannot commit out of order.
fn apply_workers(apply: &Apply) -> usize {
    let by_default = match apply.commit_order {
        CommitOrder::Preserve => WORKERS,
        CommitOrder::Relaxed => RELAXED_WORKERS,
    };
    apply.max_parallel_apply_workers_per_subscription.map_or(by_default, usize::from)
}

/// Which pages are read ahead. The setting has two names.
fn prefetch(apply: &Apply) -> anyhow::Result<PrefetchMode> {
    let said = apply.prefetch.map(|what| match what {
        Prefetch::Off => PrefetchMode::Off,
        Prefetch::Identity => PrefetchMode::Identity,
        Prefetch::All => PrefetchMode::All,
    });
    let identity_only = apply.prefetch_replica_identity_only.map(|only| match only.0 {
        true => PrefetchMode::Identity,
        false => PrefetchMode::All,
    });
    match (said, identity_only) {
        (Some(said), Some(other)) if said != other => Err(Failure::Together(
            "prefetch and prefetch_replica_identity_only contradict one another: give only prefetch"
                .to_owned(),
        )
        .into()),
        (said, other) => Ok(said.or(other).unwrap_or(PrefetchMode::Off)),
    }
}

/// One end's connection string.
pub(crate) fn end(key: &'static str, text: Option<&str>) -> anyhow::Result<ConnInfo> {
    let text = text.ok_or(Failure::Missing { key })?;
    Ok(ConnInfo::parse(text).map_err(|error| Failure::Conninfo { key, error })?)
}

/// `$XDG_STATE_HOME/pgsluice`, or `~/.local/state/pgsluice`.
fn default_state_dir(env: &dyn Fn(&str) -> Option<std::ffi::OsString>) -> anyhow::Result<PathBuf> {
    let dir = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The XDG specification has relative paths ignored.
    let xdg = dir("XDG_STATE_HOME").filter(|path| path.is_absolute());
    xdg.or_else(|| dir("HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join("pgsluice"))
        .ok_or_else(|| Failure::NoStateDir.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_names_of_prefetch_agree_or_are_refused() {
        let read = |words: &[&str]| {
            let table = SettingsTable::read(words.iter().map(std::ffi::OsString::from)).unwrap();
            prefetch(&table.apply)
        };
        for (words, expected) in [
            (&[][..], PrefetchMode::Off),
            (&["--prefetch=off"], PrefetchMode::Off),
            (&["--prefetch-replica-identity-only"], PrefetchMode::Identity),
            (&["--prefetch-replica-identity-only=off"], PrefetchMode::All),
            (&["--prefetch=identity", "--prefetch-replica-identity-only=true"], PrefetchMode::Identity),
        ] {
            assert_eq!(read(words).unwrap(), expected, "{words:?}");
        }
        let error = read(&["--prefetch=off", "--prefetch-replica-identity-only"]).unwrap_err();
        assert!(error.to_string().contains("prefetch_replica_identity_only"), "{error}");
    }

    #[test]
    fn state_dir_follows_the_xdg_specification() {
        let cases = [
            (Some("/x"), Some("/home/me"), Some("/x/pgsluice")),
            (Some("relative"), Some("/home/me"), Some("/home/me/.local/state/pgsluice")),
            (Some(""), Some("/home/me"), Some("/home/me/.local/state/pgsluice")),
            (None, None, None),
        ];
        for (xdg, home, expected) in cases {
            let env = |name: &str| match name {
                "XDG_STATE_HOME" => xdg.map(Into::into),
                _ => home.map(Into::into),
            };
            assert_eq!(default_state_dir(&env).ok(), expected.map(PathBuf::from));
        }
    }
}
