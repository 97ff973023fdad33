//! Replication slots of the publisher.
//!
//! Callers hand in a connection in `replication=database` mode for what only the replication
//! protocol can do: make a slot and export its snapshot. They hand in an ordinary session for the
//! rest. This module sends each major the command that it understands. Streaming from a slot does
//! not belong here.
//!
//! Other sessions can import an exported snapshot only while the connection that made the slot
//! stays open and gets no other command. That connection is idle in a transaction meanwhile, so
//! connect it with [`EXPORT_SETTINGS`].

use base::{Lsn, quote_ident};
use client::{Session, SqlState, Wire};

use crate::Error;

/// Settings for a connection that exports a snapshot. Without them, a server that ends idle
/// transactions would end it.
pub const EXPORT_SETTINGS: [(&str, &str); 1] = [("idle_in_transaction_session_timeout", "0")];

/// A server's identity, and the position of its WAL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemIdentity {
    /// `system_identifier` of the cluster, the same on its standbys.
    pub system_id: u64,
    /// The current timeline.
    pub timeline: u32,
    /// The position up to which WAL is flushed.
    pub xlogpos: Lsn,
    /// The database of the connection.
    pub dbname: Option<String>,
}

/// `IDENTIFY_SYSTEM`.
///
/// # Errors
/// The connection fails or is not a replication connection.
pub async fn identify_system(wire: &mut Wire) -> Result<SystemIdentity, Error> {
    let attempt = "identify the source";
    let rows = wire.query("IDENTIFY_SYSTEM").await.map_err(|error| Error::client(attempt, error))?;
    let parsed = rows.first().and_then(|row| {
        Some(SystemIdentity {
            system_id: text(row, 0)?.parse().ok()?,
            timeline: text(row, 1)?.parse().ok()?,
            xlogpos: text(row, 2)?.parse().ok()?,
            dbname: text(row, 3).map(str::to_owned),
        })
    });
    parsed.ok_or_else(|| Error::reply(attempt, format!("IDENTIFY_SYSTEM gave {}", shown(&rows))))
}

/// A walsender's answer, in words.
#[must_use]
pub fn shown(rows: &[Vec<Option<String>>]) -> String {
    if rows.is_empty() {
        return "no row".to_owned();
    }
    let row = |row: &Vec<Option<String>>| {
        let values: Vec<&str> = row.iter().map(|value| value.as_deref().unwrap_or("NULL")).collect();
        format!("({})", values.join(", "))
    };
    rows.iter().map(row).collect::<Vec<_>>().join(", ")
}

/// The end of a timeline, where the next one went on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fork {
    /// The timeline that ended.
    pub timeline: u32,
    /// The last position that it shares with the next one.
    pub end: Lsn,
}

/// Reads the ancestors of `timeline` by `TIMELINE_HISTORY`. The first timeline has none.
///
/// # Errors
/// The server has no history file for it, or the connection fails.
pub async fn timeline_forks(wire: &mut Wire, timeline: u32) -> Result<Vec<Fork>, Error> {
    if timeline <= 1 {
        return Ok(Vec::new());
    }
    let attempt = || format!("read the history of the source's timeline {timeline}");
    let rows = wire.query(&format!("TIMELINE_HISTORY {timeline}")).await;
    let rows = rows.map_err(|error| Error::client(attempt(), error))?;
    let content = rows.first().and_then(|row| text(row, 1));
    let content =
        content.ok_or_else(|| Error::reply(attempt(), format!("TIMELINE_HISTORY gave {}", shown(&rows))))?;
    Ok(content.lines().filter_map(fork).collect())
}

/// Parses a line of a history file: timeline, end, reason. Returns `None` for comments and empty
/// lines.
fn fork(line: &str) -> Option<Fork> {
    let mut words = line.split_whitespace();
    Some(Fork { timeline: words.next()?.parse().ok()?, end: words.next()?.parse().ok()? })
}

fn text(row: &[Option<String>], index: usize) -> Option<&str> {
    row.get(index)?.as_deref()
}

/// What happens to the snapshot from which a new slot starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotSnapshot {
    /// Exported, for `SET TRANSACTION SNAPSHOT` in other sessions.
    Export,
    /// Discarded.
    Nothing,
}

/// A logical slot to make, with pgoutput.
#[derive(Debug, Clone)]
pub struct NewSlot<'a> {
    /// Its name: lower-case letters, digits and underscores.
    pub name: &'a str,
    /// Drop the slot when the connection that made it ends.
    pub temporary: bool,
    /// What happens to its snapshot.
    pub snapshot: SlotSnapshot,
    /// Synchronize it to standbys (17 or newer; ignored before).
    pub failover: bool,
}

/// A slot that was just made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedSlot {
    /// Decoding starts here. The snapshot sees exactly the transactions that committed before; the
    /// stream has those that commit after.
    pub consistent_point: Lsn,
    /// The exported snapshot.
    pub snapshot_name: Option<String>,
}

/// The command for `slot` on a server of version `major`.
fn create_command(slot: &NewSlot<'_>, major: u32) -> String {
    let name = quote_ident(slot.name);
    let temporary = if slot.temporary { " TEMPORARY" } else { "" };
    let options = match (major, slot.snapshot) {
        (0..=14, SlotSnapshot::Export) => "EXPORT_SNAPSHOT".to_owned(),
        (0..=14, SlotSnapshot::Nothing) => "NOEXPORT_SNAPSHOT".to_owned(),
        (_, snapshot) => {
            let snapshot = if snapshot == SlotSnapshot::Export { "export" } else { "nothing" };
            // The server refuses to synchronize a temporary slot.
            let failover =
                if slot.failover && !slot.temporary && major >= 17 { ", FAILOVER true" } else { "" };
            format!("(SNAPSHOT '{snapshot}'{failover})")
        }
    };
    format!("CREATE_REPLICATION_SLOT {name}{temporary} LOGICAL pgoutput {options}")
}

/// Makes a logical slot. Waits until all transactions that run now have ended, however long they
/// take.
///
/// # Errors
/// A slot of that name exists (SQLSTATE 42710), no slot is free (53400), the server's `wal_level`
/// is not `logical` (55000), or the connection fails.
pub async fn create_logical_slot(wire: &mut Wire, slot: &NewSlot<'_>) -> Result<CreatedSlot, Error> {
    let attempt = || format!("create replication slot \"{}\" on the source", slot.name);
    let command = create_command(slot, wire.version().major());
    let rows = wire.query(&command).await.map_err(|error| Error::client(attempt(), error))?;
    // slot_name, consistent_point, snapshot_name, output_plugin
    let created = rows.first().and_then(|row| {
        let consistent_point = text(row, 1)?.parse().ok()?;
        Some(CreatedSlot { consistent_point, snapshot_name: text(row, 2).map(str::to_owned) })
    });
    match created {
        Some(created) if slot.snapshot == SlotSnapshot::Nothing || created.snapshot_name.is_some() => {
            Ok(created)
        }
        _ => Err(Error::reply(attempt(), format!("CREATE_REPLICATION_SLOT gave {}", shown(&rows)))),
    }
}

/// Makes a physical slot, which keeps WAL from the latest checkpoint on. Returns that position.
///
/// # Errors
/// A slot of that name exists (SQLSTATE 42710), no slot is free (53400), or the session fails.
pub async fn create_physical_slot(session: &Session, name: &str) -> Result<Lsn, Error> {
    const SQL: &str = "SELECT lsn::text FROM pg_catalog.pg_create_physical_replication_slot($1, true)";
    let attempt = || format!("create physical replication slot \"{name}\" on the source");
    let row = session.query_one(SQL, &[&name]).await.map_err(|error| Error::client(attempt(), error))?;
    let lsn = row.try_get::<_, Option<&str>>(0).ok().flatten().and_then(|text| text.parse().ok());
    lsn.ok_or_else(|| Error::reply(attempt(), "it has no position"))
}

/// Returns the redo position of the server's latest checkpoint.
///
/// # Errors
/// The session fails.
pub async fn latest_redo(session: &Session) -> Result<Lsn, Error> {
    const SQL: &str = "SELECT redo_lsn::text FROM pg_catalog.pg_control_checkpoint()";
    let attempt = "look up the source's latest checkpoint";
    let row = session.query_one(SQL, &[]).await.map_err(|error| Error::client(attempt, error))?;
    let lsn = row.try_get::<_, &str>(0).ok().and_then(|text| text.parse().ok());
    lsn.ok_or_else(|| Error::reply(attempt, "it has no position"))
}

/// Moves a physical slot that no walsender uses to `lsn`, if that is ahead of it. Returns false if
/// the slot does not exist or is in use.
///
/// # Errors
/// The session fails.
pub async fn advance_physical_slot(session: &Session, name: &str, lsn: Lsn) -> Result<bool, Error> {
    const SQL: &str = "SELECT pg_catalog.pg_replication_slot_advance(s.slot_name, GREATEST(s.restart_lsn, $2::text::pg_lsn)) \
                       FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1 AND s.slot_type = 'physical' AND NOT s.active";
    let rows = session.query(SQL, &[&name, &lsn.to_string()]).await;
    let rows = rows
        .map_err(|error| Error::client(format!("move replication slot \"{name}\" on the source"), error))?;
    Ok(!rows.is_empty())
}

/// Drops a slot. Returns false if it did not exist.
///
/// # Errors
/// The slot is in use (`OBJECT_IN_USE`), or the session fails.
pub async fn drop_slot(session: &Session, name: &str) -> Result<bool, Error> {
    match session.query("SELECT pg_catalog.pg_drop_replication_slot($1)", &[&name]).await {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_OBJECT) => Ok(false),
        Err(error) => Err(Error::client(format!("drop replication slot \"{name}\" on the source"), error)),
    }
}

/// A slot as `pg_replication_slots` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotState {
    /// The output plugin; `None` for a physical slot.
    pub plugin: Option<String>,
    /// The database it decodes.
    pub database: Option<String>,
    /// The slot ends with the session that made it.
    pub temporary: bool,
    /// The walsender that uses it.
    pub active_pid: Option<i32>,
    /// The subscriber has confirmed everything before this position.
    pub confirmed_flush: Option<Lsn>,
    /// The slot keeps WAL from here on.
    pub restart_lsn: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// Bytes of WAL that may still be written before the slot is lost; `None` without
    /// `max_slot_wal_keep_size`.
    pub safe_wal_size: Option<i64>,
    /// Why the server invalidated the slot: `wal_removed`, `rows_removed`,
    /// `wal_level_insufficient`, `idle_timeout`.
    pub invalidation: Option<String>,
}

impl SlotState {
    /// Whether the slot decodes `database` with pgoutput.
    #[must_use]
    pub fn is_pgoutput_of(&self, database: Option<&str>) -> bool {
        self.plugin.as_deref() == Some("pgoutput") && self.database.as_deref() == database
    }

    /// Whether the slot is physical, so that it ships WAL as it stands.
    #[must_use]
    pub fn is_physical(&self) -> bool {
        self.plugin.is_none() && self.database.is_none()
    }

    /// Whether the slot can never be streamed from again.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.invalidation.is_some()
    }
}

// Columns that older majors lack are looked up by name in the row's JSON form. 16 says only that a
// slot conflicts; 14 and 15 say only that WAL is gone.
const SLOT: &str = "\
SELECT s.plugin::text, s.database::text, s.temporary, s.active_pid, s.confirmed_flush_lsn::text,
       s.restart_lsn::text, s.wal_status, s.safe_wal_size,
       COALESCE(pg_catalog.to_jsonb(s) ->> 'invalidation_reason',
                CASE WHEN pg_catalog.to_jsonb(s) ->> 'conflicting' = 'true' THEN 'rows_removed'
                     WHEN s.wal_status = 'lost' THEN 'wal_removed' END)
FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1";

/// Reads a slot of the publisher; `None` if there is none of that name.
///
/// # Errors
/// The session fails.
pub async fn slot_state(session: &Session, name: &str) -> Result<Option<SlotState>, Error> {
    let failed = |error: tokio_postgres::Error| {
        Error::client(format!("look up replication slot \"{name}\" on the source"), error)
    };
    let Some(row) = session.query_opt(SLOT, &[&name]).await.map_err(failed)? else { return Ok(None) };
    let lsn = |index: usize| -> Result<Option<Lsn>, tokio_postgres::Error> {
        Ok(row.try_get::<_, Option<&str>>(index)?.and_then(|text| text.parse().ok()))
    };
    let state = || -> Result<SlotState, tokio_postgres::Error> {
        Ok(SlotState {
            plugin: row.try_get(0)?,
            database: row.try_get(1)?,
            temporary: row.try_get(2)?,
            active_pid: row.try_get(3)?,
            confirmed_flush: lsn(4)?,
            restart_lsn: lsn(5)?,
            wal_status: row.try_get(6)?,
            safe_wal_size: row.try_get(7)?,
            invalidation: row.try_get(8)?,
        })
    };
    state().map(Some).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_file_names_what_each_timeline_shares() {
        let file = "1\t0/3000158\tno recovery target specified\n\n# by hand\n2\tA/10\tbefore 'x'\n";
        let forks: Vec<Fork> = file.lines().filter_map(fork).collect();
        let expected = [(1, Lsn::new(0x300_0158)), (2, Lsn::new(0xa_0000_0010))];
        assert_eq!(forks, expected.map(|(timeline, end)| Fork { timeline, end }));
    }

    #[test]
    fn each_major_gets_its_own_syntax() {
        let mut slot = NewSlot { name: "s", temporary: true, snapshot: SlotSnapshot::Export, failover: true };
        let command = |slot: &NewSlot<'_>, major| create_command(slot, major);
        assert_eq!(
            command(&slot, 14),
            "CREATE_REPLICATION_SLOT \"s\" TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
        );
        assert_eq!(
            command(&slot, 15),
            "CREATE_REPLICATION_SLOT \"s\" TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')"
        );
        slot = NewSlot { temporary: false, snapshot: SlotSnapshot::Nothing, ..slot };
        assert_eq!(command(&slot, 14), "CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput NOEXPORT_SNAPSHOT");
        assert_eq!(command(&slot, 16), "CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput (SNAPSHOT 'nothing')");
        assert_eq!(
            command(&slot, 17),
            "CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput (SNAPSHOT 'nothing', FAILOVER true)"
        );
    }
}
