//! The source as an attempt finds it, and the questions that every source mode asks it.
//!
//! This module opens sessions with the settings that decide how values are rendered. It does not
//! deal with the stream itself: `source` owns the messages of a logical slot, and
//! [`crate::wal_source`] owns WAL.

use std::time::Duration;

use base::Lsn;
use client::{Replication, Session, Wire};
use source::publication::PublishedTable;
use source::segments::Lineage;
use source::slot::{self, CreatedSlot, Fork, SlotState, SystemIdentity};
use state::Since;
use tokio_postgres::types::PgLsn;

use crate::Settings;
use crate::error::Error;
use crate::refusal::Refusal;

/// Makes the source's sessions render values as native subscribers ask for them. Also switches off
/// timeouts that were set for a database or a role and are not meant for these sessions.
pub(crate) const SOURCE_SETTINGS: [(&str, &str); 8] = [
    ("search_path", ""),
    ("client_encoding", "UTF8"),
    ("datestyle", "ISO"),
    ("intervalstyle", "postgres"),
    ("extra_float_digits", "3"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_session_timeout", "0"),
];

/// How long the source may take to receive the last report after a stop.
pub(crate) const FAREWELL: Duration = Duration::from_millis(500);

/// How long a look at the catalogs waits for running transactions. A logical slot waits without a
/// limit.
pub(crate) const LOOK_WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A position behind everything that has committed, flushed or not.
pub(crate) const WRITTEN: &str = "\
SELECT (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
             ELSE pg_catalog.pg_current_wal_insert_lsn() END)::text";

/// The source as the attempt found it.
pub(crate) struct SourceEnd {
    /// In replication mode; carries the stream later.
    pub(crate) wire: Wire,
    pub(crate) session: Session,
    pub(crate) identity: SystemIdentity,
    /// The slot's name as the target's row has it, or the name for a new slot.
    pub(crate) slot_name: String,
    pub(crate) slot: Option<SlotState>,
    /// Where the source left its earlier timelines; read only if the source ships WAL.
    pub(crate) forks: Vec<Fork>,
    pub(crate) published: Vec<PublishedTable>,
}

impl SourceEnd {
    /// The source's timelines, for segments of `segment_size` bytes.
    pub(crate) fn lineage(&self, segment_size: u64) -> Lineage {
        Lineage { timeline: self.identity.timeline, forks: self.forks.clone(), segment_size }
    }

    /// Where the source left `timeline`.
    pub(crate) fn left_at(&self, timeline: u32) -> Option<Lsn> {
        self.forks.iter().find(|fork| fork.timeline == timeline).map(|fork| fork.end)
    }
}

/// A snapshot under which rows are copied.
pub(crate) struct Exported {
    /// For `SET TRANSACTION SNAPSHOT`.
    pub(crate) snapshot_name: String,
    /// Which changes the snapshot does not see.
    pub(crate) since: Since,
    pub(crate) holder: Holder,
}

/// The connection that holds a snapshot. The snapshot lives as long as the connection.
pub(crate) enum Holder {
    Wire(Box<Wire>),
    Session(#[expect(dead_code, reason = "it is there to stay open")] Box<Session>),
}

impl Exported {
    pub(crate) fn of_slot(made: CreatedSlot, wire: Wire) -> Result<Exported, Error> {
        let snapshot_name = made.snapshot_name.ok_or_else(|| Error::refused(Refusal::NoSnapshot))?;
        Ok(Exported {
            snapshot_name,
            since: made.consistent_point.into(),
            holder: Holder::Wire(Box::new(wire)),
        })
    }

    /// Ends the snapshot. A temporary slot is dropped with its connection.
    pub(crate) async fn close(self) {
        if let Holder::Wire(wire) = self.holder {
            wire.close().await;
        }
    }
}

/// Writes a record, and waits until it and everything written before it are flushed.
pub(crate) async fn flush(session: &Session) -> Result<(), Error> {
    const MESSAGE: &str = "BEGIN; SET LOCAL synchronous_commit = local; \
        SELECT pg_catalog.pg_logical_emit_message(true, 'pgsluice', ''); COMMIT";
    Ok(session.batch_execute(MESSAGE).await.map_err(|error| session.error(error))?)
}

/// The end of the WAL that was inserted.
pub(crate) async fn end_of_wal(session: &Session) -> Result<Lsn, Error> {
    position(session, "SELECT pg_catalog.pg_current_wal_insert_lsn()").await
}

/// The end of the WAL that was flushed. It lies behind everything that was inserted before a
/// [`flush`] that has returned.
pub(crate) async fn end_of_flushed(session: &Session) -> Result<Lsn, Error> {
    position(session, "SELECT pg_catalog.pg_current_wal_flush_lsn()").await
}

async fn position(session: &Session, sql: &str) -> Result<Lsn, Error> {
    let row = session.query_one(sql, &[]).await.map_err(|error| session.error(error))?;
    Ok(Lsn::new(row.get::<_, PgLsn>(0).into()))
}

/// A connection that makes a slot and holds its exported snapshot.
pub(crate) async fn snapshot_wire(settings: &Settings) -> Result<Wire, Error> {
    let name = settings.subscription.application_name("snapshot");
    let rendering = [SOURCE_SETTINGS.as_slice(), slot::EXPORT_SETTINGS.as_slice()].concat();
    let mut wire = Wire::connect(&settings.source, &name, Replication::Database, &rendering).await?;
    // The exported snapshot is a transaction that lasts as long as the copy.
    if wire.version().major() >= 17 {
        wire.query("SET transaction_timeout = 0").await?;
    }
    Ok(wire)
}

/// A session that looks at the catalogs and holds the snapshot of the look.
pub(crate) async fn snapshot_session(settings: &Settings) -> Result<Session, Error> {
    let name = settings.subscription.application_name("snapshot");
    let rendering = [SOURCE_SETTINGS.as_slice(), slot::EXPORT_SETTINGS.as_slice()].concat();
    let session = client::connect(&settings.source, &name, &rendering).await?;
    if session.version().major() >= 17 {
        let set = session.batch_execute("SET transaction_timeout = 0").await;
        set.map_err(|error| session.error(error))?;
    }
    Ok(session)
}
