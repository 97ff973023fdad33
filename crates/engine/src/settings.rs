//! The settings of one pipeline, checked and typed.
//!
//! The program's settings table makes these. Units are in the types, and names are the settings'
//! own. Nothing here is read from an environment or a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apply::{CommitOrder, PrefetchMode};
use base::SubscriptionName;
use client::ConnInfo;
use output::OriginFilter;
use source::restart_lsn::KeptBeside;

/// One subscription's settings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The pipeline's name.
    pub subscription: SubscriptionName,
    /// Where changes come from.
    pub source: ConnInfo,
    /// Where changes are applied.
    pub target: ConnInfo,
    /// Publications on the source; at least one.
    pub publications: Vec<String>,
    /// How changes are read.
    pub source_mode: SourceMode,
    /// Whether values are asked for in binary form.
    pub binary: Binary,
    /// Whether large transactions are received while they are open.
    pub streaming: bool,
    /// Which changes are sent by their origin.
    pub origin: Origin,
    /// `synchronous_commit` of the sessions that write to the target.
    pub synchronous_commit: SynchronousCommit,
    /// Disable the subscription instead of trying a failing transaction again.
    pub disable_on_error: bool,
    /// Copy the rows that exist at the start.
    pub copy_data: bool,
    /// Bring the source's schema over where the target has none of it.
    pub create_schema: bool,
    /// The pg_dump to use; without it, pgsluice looks for one.
    pub pg_dump: Option<PathBuf>,
    /// Bring the source's schema over if the target has none of its tables.
    pub max_sync_workers_per_subscription: usize,
    /// Size of a range of a large table, in bytes.
    pub copy_split_bytes: u64,
    /// Most rows in one batch.
    pub batch_rows_max: usize,
    /// Most bytes in one batch.
    pub batch_bytes_max: usize,
    /// What to prefetch from the target before changes are applied.
    pub prefetch: PrefetchMode,
    /// Sessions that prefetch; `None` for as many as the target can spare.
    pub max_parallel_prefetch_workers_per_subscription: Option<usize>,
    /// Sessions that apply at the same time; at least one.
    pub max_parallel_apply_workers_per_subscription: usize,
    /// Whether transactions become visible in the source's order.
    pub commit_order: CommitOrder,
    /// Whether each source transaction becomes one target transaction with its commit time. `None`:
    /// only if the target keeps commit times.
    pub keep_commit_timestamps: Option<bool>,
    /// Apply every change by itself; for tests.
    pub exact_only: bool,
    /// Longest time between two reports to the source; zero: only on request.
    pub wal_receiver_status_interval: Duration,
    /// Longest silence of the source; zero: no limit.
    pub wal_receiver_timeout: Duration,
    /// Wait before the next attempt after an error.
    pub wal_retrieve_retry_interval: Duration,
    /// Interval between looks at the publication for tables that were added or dropped; zero: only
    /// on request.
    pub refresh_interval: Duration,
    /// What happens to a table whose name has passed to another table on the source.
    pub on_table_replaced: OnTableReplaced,
    /// Interval between comparisons of the followed catalogs with the source's, besides the one at
    /// each start; zero: only at starts.
    pub catalog_check_interval: Duration,
    /// Where to find WAL that the source has removed: segments as `archive_command` or
    /// `pg_receivewal` leaves them.
    pub wal_archive: Option<PathBuf>,
    /// Whether WAL comes through a slot as a stream. Otherwise all of it comes from
    /// [`Settings::wal_archive`].
    pub wal_stream: bool,
    /// Physical slots on the source. Their standbys must have WAL before it is decoded.
    pub synchronized_standby_slots: Vec<String>,
    /// Run although the target's triggers and foreign keys would act.
    pub allow_triggers: bool,
    /// How conflicts are resolved.
    pub conflict_rules: conflict::Rules,
    /// Rows that others wrote are conflicts even without a rule, if the target knows who wrote
    /// them.
    pub detect_origin_differs: bool,
    /// The longest hold of a transaction whose commit time the target's clock has not passed, where
    /// a rule compares commit times; `None` for no limit.
    pub clock_skew_max: Option<Duration>,
    /// Age at which conflicts are removed from their history.
    pub conflict_history_age: Duration,
    /// Most conflicts in the history; zero: none.
    pub conflict_history_rows: u64,
    /// Records and messages of conflicts have keys and rows.
    pub conflict_log_values: bool,
    /// How much of the target's deletions is remembered; `None` if nothing is.
    pub retain_deletions: Option<retention::Bounds>,
    /// How often deletions that are not needed are forgotten; `None`: as often as rows are deleted.
    pub retention_interval: Option<Duration>,
    /// Directory of locks, control sockets and spools.
    pub state_dir: PathBuf,
}

/// How changes are read from the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceMode {
    /// pgoutput from a logical slot.
    Logical,
    /// Physical WAL, decoded here.
    Wal,
}

/// What happens to a table whose name has passed to another table on the source. Its rows on the
/// target belong to the old table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTableReplaced {
    /// No changes are applied to it until the operator has removed its rows.
    LeaveOut,
    /// Its rows are removed, and it is copied again.
    Copy,
}

/// Whether values are asked for in binary form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// If every published column has a built-in type, or an array or range of one (rule C3).
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// pgoutput's `origin` option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Every change.
    Any,
    /// Only changes that did not come to the source by replication.
    None,
}

/// Levels of `synchronous_commit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SynchronousCommit {
    /// `off`
    Off,
    /// `local`
    Local,
    /// `remote_write`
    RemoteWrite,
    /// `on`
    On,
    /// `remote_apply`
    RemoteApply,
}

impl SynchronousCommit {
    /// PostgreSQL's word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            SynchronousCommit::Off => "off",
            SynchronousCommit::Local => "local",
            SynchronousCommit::RemoteWrite => "remote_write",
            SynchronousCommit::On => "on",
            SynchronousCommit::RemoteApply => "remote_apply",
        }
    }
}

impl Settings {
    /// The number of sessions that apply, if the target has room for them.
    pub(crate) fn apply_sessions(&self) -> usize {
        apply::sessions(self.max_parallel_apply_workers_per_subscription, self.commit_order, self.streaming)
    }

    /// The archive that is followed instead of a stream, if there is one.
    #[must_use]
    pub fn followed_archive(&self) -> Option<&Path> {
        let is_followed = self.source_mode == SourceMode::Wal && !self.wal_stream;
        self.wal_archive.as_deref().filter(|_| is_followed)
    }

    /// What the settings ask of the WAL of the source, where it is decoded here. Its slot keeps WAL
    /// for `kept_beside`, too.
    pub(crate) fn of_wal(&self, kept_beside: Option<Arc<KeptBeside>>) -> wal_source::Settings {
        wal_source::Settings {
            subscription: self.subscription.clone(),
            source: self.source.clone(),
            publications: self.publications.clone(),
            streaming: self.streaming,
            origin: match self.origin {
                Origin::Any => OriginFilter::Any,
                Origin::None => OriginFilter::None,
            },
            wal_receiver_status_interval: self.wal_receiver_status_interval,
            wal_receiver_timeout: self.wal_receiver_timeout,
            catalog_check_interval: self.catalog_check_interval,
            wal_archive: self.wal_archive.clone(),
            wal_stream: self.wal_stream,
            synchronized_standby_slots: self.synchronized_standby_slots.clone(),
            kept_beside,
            restart_file: self.restart_file(),
        }
    }

    /// The directory in which this subscription spools open transactions. Its contents are of no
    /// use once the process has ended.
    #[must_use]
    pub fn spool_dir(&self) -> PathBuf {
        spool_dir(&self.state_dir, &self.subscription)
    }

    /// As [`Settings::spool_dir`], for transactions that are decoded here.
    #[must_use]
    pub fn decoding_dir(&self) -> PathBuf {
        decoding_dir(&self.state_dir, &self.subscription)
    }

    /// The directory in which the target's deletions are remembered.
    #[must_use]
    pub fn deletions_dir(&self) -> PathBuf {
        deletions_dir(&self.state_dir, &self.subscription)
    }

    /// The file in which the source's catalogs are kept for a restart, where WAL is decoded here.
    #[must_use]
    pub fn restart_file(&self) -> PathBuf {
        restart_file(&self.state_dir, &self.subscription)
    }
}

/// See [`Settings::deletions_dir`].
#[must_use]
pub fn deletions_dir(state_dir: &Path, subscription: &SubscriptionName) -> PathBuf {
    state_dir.join(format!("{subscription}.deletions"))
}

/// See [`Settings::decoding_dir`].
#[must_use]
pub fn decoding_dir(state_dir: &Path, subscription: &SubscriptionName) -> PathBuf {
    state_dir.join(format!("{subscription}.decoding"))
}

/// See [`Settings::restart_file`].
#[must_use]
pub fn restart_file(state_dir: &Path, subscription: &SubscriptionName) -> PathBuf {
    state_dir.join(format!("{subscription}.wal"))
}

/// As [`Settings::spool_dir`], for commands that have no other settings.
#[must_use]
pub fn spool_dir(state_dir: &Path, subscription: &SubscriptionName) -> PathBuf {
    state_dir.join(format!("{subscription}.spool"))
}
