//! What the caller decides of an attempt: the snapshot under which it reads, and the operator's
//! options.

use base::Lsn;

/// An exported snapshot of the source. The connection that exported it must
/// stay open until the attempt has ended.
#[derive(Debug, Clone)]
pub struct ExportedSnapshot {
    /// For `SET TRANSACTION SNAPSHOT`.
    pub name: String,
    /// It sees exactly what committed before.
    pub consistent_point: Lsn,
}

/// The operator's options.
#[derive(Debug, Clone)]
pub struct Options {
    /// Pairs of connections, at least one. Several in one large table insert
    /// at several places of its indexes; see the crate's documentation.
    pub connections: usize,
    /// Maximum bytes in one range of a large table.
    pub split_bytes: u64,
    /// `synchronous_commit` of the ranges on the target. The record that a table is finished always
    /// waits for its WAL.
    pub synchronous_commit: String,
    /// Copy every table as one transaction, so that no attempt empties a table. Clients may then
    /// write to the tables on the target meanwhile.
    pub whole_tables: bool,
    /// Go on if the role may not set `session_replication_role`.
    pub allow_triggers: bool,
    /// `application_name` of the connections, as `pg_stat_activity` shows it.
    pub application_name: String,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connections: 4,
            split_bytes: 256 << 20,
            synchronous_commit: "off".into(),
            whole_tables: false,
            allow_triggers: false,
            application_name: "pgsluice copy".into(),
        }
    }
}
