//! The source as an attempt finds it, and what is asked of it whatever it sends.
//!
//! Sessions are begun here with the settings that values are rendered by. What the stream is made
//! of does not belong here: messages of a logical slot are `source`'s, WAL is
//! [`crate::wal_source`]'s.

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

/// How the source's sessions render values: as the native subscriber asks.
/// Timeouts that somebody set for a database or role are not meant for them.
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

/// After a stop, how long the source may take to hear the last report.
pub(crate) const FAREWELL: Duration = Duration::from_millis(500);

/// For how long transactions that run when the catalogs are looked at are waited for; a logical slot waits for ever.
pub(crate) const LOOK_WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Behind all that has committed, flushed or not.
pub(crate) const WRITTEN: &str = "\
SELECT (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
             ELSE pg_catalog.pg_current_wal_insert_lsn() END)::text";

/// The source as it was found.
pub(crate) struct SourceEnd {
    /// In replication mode: will carry the stream.
    pub(crate) wire: Wire,
    pub(crate) session: Session,
    pub(crate) identity: SystemIdentity,
    /// The slot's name on the target's row, or what a new one will be called.
    pub(crate) slot_name: String,
    pub(crate) slot: Option<SlotState>,
    /// Where the source left the timelines before its own; asked only where it ships WAL.
    pub(crate) forks: Vec<Fork>,
    pub(crate) published: Vec<PublishedTable>,
}

impl SourceEnd {
    /// The source's timelines, in segments of so many bytes.
    pub(crate) fn lineage(&self, segment_size: u64) -> Lineage {
        Lineage { timeline: self.identity.timeline, forks: self.forks.clone(), segment_size }
    }

    /// Where the source left `timeline`.
    pub(crate) fn left_at(&self, timeline: u32) -> Option<Lsn> {
        self.forks.iter().find(|fork| fork.timeline == timeline).map(|fork| fork.end)
    }
}

/// A snapshot that rows are copied under.
pub(crate) struct Exported {
    /// For `SET TRANSACTION SNAPSHOT`.
    pub(crate) snapshot_name: String,
    /// What it does not see.
    pub(crate) since: Since,
    pub(crate) holder: Holder,
}

/// Who holds a snapshot: it lives as long.
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

    /// It is not needed any more. A temporary slot goes with its connection.
    pub(crate) async fn close(self) {
        if let Holder::Wire(wire) = self.holder {
            wire.close().await;
        }
    }
}

/// Waits until everything is flushed that was written before, and writes a record.
pub(crate) async fn flush(session: &Session) -> Result<(), Error> {
    const MESSAGE: &str = "BEGIN; SET LOCAL synchronous_commit = local; \
        SELECT pg_catalog.pg_logical_emit_message(true, 'pgsluice', ''); COMMIT";
    Ok(session.batch_execute(MESSAGE).await.map_err(|error| session.error(error))?)
}

/// Where WAL ends.
pub(crate) async fn end_of_wal(session: &Session) -> Result<Lsn, Error> {
    position(session, "SELECT pg_catalog.pg_current_wal_insert_lsn()").await
}

/// Where what is flushed of it ends: behind all that was inserted before a [`flush`] that has ended.
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
    // The exported snapshot is a transaction that is as long as the copy.
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
