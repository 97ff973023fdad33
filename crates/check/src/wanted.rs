//! What is wanted of the two servers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::SubscriptionName;

/// What is wanted of the two servers.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Names slot and origins.
    pub subscription: SubscriptionName,
    /// At least one.
    pub publications: Vec<String>,
    /// Copy the rows that exist at the start.
    pub copy_data: bool,
    /// Bring the schema over where none of the published tables is there.
    pub create_schema: Option<NewSchema>,
    /// Connections that copy at the same time.
    pub copy_connections: usize,
    /// Sessions that apply.
    pub apply_sessions: usize,
    /// Go on if the role may not set `session_replication_role`.
    pub allow_triggers: bool,
    /// Whether each source transaction stays one; `None`: where the target keeps commit timestamps.
    pub keep_commit_timestamps: Option<bool>,
    /// `synchronous_commit` of the sessions that apply.
    pub synchronous_commit: &'static str,
    /// The slot is a physical one: WAL is decoded outside the server.
    pub physical_slot: bool,
    /// The archive that has the WAL that the slot lost.
    pub wal_archive: Option<PathBuf>,
    /// Slots whose standbys must have WAL before it is decoded.
    pub standby_slots: Vec<String>,
    /// Whether there is a slot; otherwise all WAL comes from `wal_archive`.
    pub wal_stream: bool,
    /// How conflicts are resolved.
    pub conflict_rules: conflict::Rules,
    /// The longest hold of a transaction whose commit time the target's clock has not passed;
    /// `None` for no limit.
    pub clock_skew_max: Option<Duration>,
    /// The target's deletions are remembered.
    pub retain_dead_tuples: bool,
    /// The slot of the other direction of a pair keeps WAL for that.
    pub shares_slot: bool,
}

impl Wanted {
    /// The archive that is followed instead of a stream.
    pub(crate) fn followed_archive(&self) -> Option<&Path> {
        self.wal_archive.as_deref().filter(|_| self.physical_slot && !self.wal_stream)
    }
}

/// How a schema is to be brought over.
#[derive(Debug, Clone)]
pub struct NewSchema {
    /// The pg_dump to use; otherwise one is looked for.
    pub pg_dump: Option<PathBuf>,
}
