//! The source as an attempt finds it, and the questions that every source mode asks it.
//!
//! Handed is where the source is, and the subscription that sessions are named after. This module
//! opens sessions with the settings that decide how values are rendered, and holds the snapshot
//! under which rows are copied. The stream itself belongs to [`crate::stream`], WAL that is decoded
//! outside the server to the crate `wal_source`.

use std::time::Duration;

use base::{Lsn, SubscriptionName};
use client::{ConnInfo, Error, Replication, Session, Wire};
use state::Since;
use tokio_postgres::types::PgLsn;

use crate::publication::PublishedTable;
use crate::segments::Lineage;
use crate::slot::{self, CreatedSlot, Fork, SlotState, SystemIdentity};

/// Makes the source's sessions render values as native subscribers ask for them. Also switches off
/// timeouts that were set for a database or a role and are not meant for these sessions.
pub const SOURCE_SETTINGS: [(&str, &str); 8] = [
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
pub const FAREWELL: Duration = Duration::from_millis(500);

/// How long a look at the catalogs waits for running transactions. A logical slot waits without a
/// limit.
pub const LOOK_WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A position behind everything that has committed, flushed or not.
pub const WRITTEN: &str = "\
SELECT (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
             ELSE pg_catalog.pg_current_wal_insert_lsn() END)::text";

/// The source as the attempt found it.
pub struct SourceEnd {
    /// In replication mode; carries the stream later.
    pub wire: Wire,
    /// For ordinary queries.
    pub session: Session,
    /// What the source said of itself on `wire`.
    pub identity: SystemIdentity,
    /// The slot's name as the target's row has it, or the name for a new slot.
    pub slot_name: String,
    /// The slot, if it exists.
    pub slot: Option<SlotState>,
    /// Where the source left its earlier timelines; read only if the source ships WAL.
    pub forks: Vec<Fork>,
    /// What the subscription's publications publish.
    pub published: Vec<PublishedTable>,
}

impl SourceEnd {
    /// The source's timelines, for segments of `segment_size` bytes.
    #[must_use]
    pub fn lineage(&self, segment_size: u64) -> Lineage {
        Lineage { timeline: self.identity.timeline, forks: self.forks.clone(), segment_size }
    }

    /// Where the source left `timeline`.
    #[must_use]
    pub fn left_at(&self, timeline: u32) -> Option<Lsn> {
        self.forks.iter().find(|fork| fork.timeline == timeline).map(|fork| fork.end)
    }
}

/// A snapshot under which rows are copied.
pub struct Exported {
    /// For `SET TRANSACTION SNAPSHOT`.
    pub snapshot_name: String,
    /// Which changes the snapshot does not see.
    pub since: Since,
    /// What must stay open until the rows are copied.
    pub holder: Holder,
}

/// The connection that holds a snapshot. The snapshot lives as long as the connection.
pub enum Holder {
    /// The one that made a logical slot.
    Wire(Box<Wire>),
    /// One that took the snapshot by SQL.
    Session(Box<Session>),
}

impl Exported {
    /// The snapshot that came with a new slot; `None` if none came. PostgreSQL always gives one.
    #[must_use]
    pub fn of_slot(made: CreatedSlot, wire: Wire) -> Option<Exported> {
        Some(Exported {
            snapshot_name: made.snapshot_name?,
            since: made.consistent_point.into(),
            holder: Holder::Wire(Box::new(wire)),
        })
    }

    /// Ends the snapshot. A temporary slot is dropped with its connection.
    pub async fn close(self) {
        if let Holder::Wire(wire) = self.holder {
            wire.close().await;
        }
    }
}

/// Writes a record, and waits until it and everything written before it are flushed.
///
/// # Errors
/// The query failed.
pub async fn flush(session: &Session) -> Result<(), Error> {
    const MESSAGE: &str = "BEGIN; SET LOCAL synchronous_commit = local; \
        SELECT pg_catalog.pg_logical_emit_message(true, 'pgsluice', ''); COMMIT";
    session.batch_execute(MESSAGE).await.map_err(|error| session.error(error))
}

/// The end of the WAL that was inserted.
///
/// # Errors
/// The query failed.
pub async fn end_of_wal(session: &Session) -> Result<Lsn, Error> {
    position(session, "SELECT pg_catalog.pg_current_wal_insert_lsn()").await
}

/// The end of the WAL that was flushed. It lies behind everything that was inserted before a
/// [`flush`] that has returned.
///
/// # Errors
/// The query failed.
pub async fn end_of_flushed(session: &Session) -> Result<Lsn, Error> {
    position(session, "SELECT pg_catalog.pg_current_wal_flush_lsn()").await
}

/// A position behind everything that has committed, flushed or not. On a standby it is the position
/// up to which the standby has replayed.
///
/// # Errors
/// The query failed.
pub async fn written(session: &Session) -> Result<Lsn, Error> {
    let end: Option<String> = session.query_once(WRITTEN).await?.get(0);
    Ok(end.and_then(|text| text.parse().ok()).unwrap_or(Lsn::INVALID))
}

async fn position(session: &Session, sql: &str) -> Result<Lsn, Error> {
    Ok(Lsn::new(session.query_once(sql).await?.get::<_, PgLsn>(0).into()))
}

/// A connection that makes a slot and holds its exported snapshot.
///
/// # Errors
/// The connection failed.
pub async fn snapshot_wire(source: &ConnInfo, subscription: &SubscriptionName) -> Result<Wire, Error> {
    let name = subscription.application_name("snapshot");
    let rendering = [SOURCE_SETTINGS.as_slice(), slot::EXPORT_SETTINGS.as_slice()].concat();
    let mut wire = Wire::connect(source, &name, Replication::Database, &rendering).await?;
    // The exported snapshot is a transaction that lasts as long as the copy.
    if wire.version().major() >= 17 {
        wire.query("SET transaction_timeout = 0").await?;
    }
    Ok(wire)
}

/// A session that looks at the catalogs and holds the snapshot of the look.
///
/// # Errors
/// The connection failed.
pub async fn snapshot_session(source: &ConnInfo, subscription: &SubscriptionName) -> Result<Session, Error> {
    let name = subscription.application_name("snapshot");
    let rendering = [SOURCE_SETTINGS.as_slice(), slot::EXPORT_SETTINGS.as_slice()].concat();
    let session = client::connect(source, &name, &rendering).await?;
    if session.version().major() >= 17 {
        let set = session.batch_execute("SET transaction_timeout = 0").await;
        set.map_err(|error| session.error(error))?;
    }
    Ok(session)
}
