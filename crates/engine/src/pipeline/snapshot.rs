//! Snapshots that rows are copied under.
//!
//! | source | the first copy | what is copied later |
//! | --- | --- | --- |
//! | `logical` | the slot's | that of a temporary slot |
//! | `wal` | that of the look at the catalogs | one that is taken by SQL |
//!
//! A slot's snapshot sees exactly what committed before a place in WAL; that of SQL sees transactions ([`Since`], rule C2).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use base::Lsn;
use base::crash_phases::{self, Phase};
use client::{Replication, Session, SnapshotText, Wire};
use source::slot::{self, CreatedSlot, NewSlot};
use state::{Since, State};
use tokio_postgres::types::PgLsn;

use super::feed::LOOK_WAIT_MAX;
use super::{Attempt, SOURCE_SETTINGS};
use crate::SourceMode;
use crate::error::Error;
use crate::refusal::Refusal;

/// After this it is said that transactions are waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// A snapshot that rows are copied under.
pub(crate) struct Exported {
    /// For `SET TRANSACTION SNAPSHOT`.
    pub(crate) snapshot_name: String,
    /// What it does not see.
    pub(crate) since: Since,
    pub(super) holder: Holder,
}

/// Who holds a snapshot: it lives as long.
pub(super) enum Holder {
    Wire(Box<Wire>),
    Session(#[expect(dead_code, reason = "it is there to stay open")] Box<Session>),
}

impl Exported {
    pub(super) fn of_slot(made: CreatedSlot, wire: Wire) -> Result<Exported, Error> {
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
pub(super) async fn end_of_flushed(session: &Session) -> Result<Lsn, Error> {
    position(session, "SELECT pg_catalog.pg_current_wal_flush_lsn()").await
}

async fn position(session: &Session, sql: &str) -> Result<Lsn, Error> {
    let row = session.query_one(sql, &[]).await.map_err(|error| session.error(error))?;
    Ok(Lsn::new(row.get::<_, PgLsn>(0).into()))
}

impl Attempt<'_> {
    /// A snapshot that tables are copied under which join what has begun: where the stream flows, after their changes were
    /// put aside. `source` is any session of the source.
    pub(crate) async fn late_snapshot(&self, source: &Session, state: &State) -> Result<Exported, Error> {
        const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        const EXPORT: &str = "SELECT pg_catalog.pg_current_snapshot()::text, pg_catalog.pg_export_snapshot()";
        if self.settings.source_mode == SourceMode::Logical {
            let mut wire = self.snapshot_wire().await?;
            let name = &self.settings.subscription.copy_slot(std::process::id());
            let new = NewSlot { name, temporary: true, snapshot: slot::Snapshot::Export, failover: false };
            let made = slot::create_logical_slot(&mut wire, &new).await?;
            return Exported::of_slot(made, wire);
        }
        let _look = crash_phases::inside(Phase::Look);
        state.keep_snapshots().await?;
        let session = self.snapshot_session().await?;
        // A transaction is in WAL before it is seen, and may have been passed: it is waited for.
        self.wait_for_running(&session).await?;
        session.batch_execute(BEGIN).await.map_err(|error| session.error(error))?;
        let row = session.query_one(EXPORT, &[]).await.map_err(|error| session.error(error))?;
        let SnapshotText(snapshot) = row.try_get(0).map_err(|error| session.error(error))?;
        // All that it sees lies before, and no crash takes it back.
        flush(source).await?;
        let lsn = end_of_flushed(source).await?;
        self.wait_for_standbys(source, lsn).await?;
        Ok(Exported {
            snapshot_name: row.get(1),
            since: Since { lsn, snapshot: Some(Arc::new(snapshot)) },
            holder: Holder::Session(Box::new(session)),
        })
    }

    async fn wait_for_running(&self, session: &Session) -> Result<(), Error> {
        let mut waiting = pin!(catalog::wait_for_running(session, LOOK_WAIT_MAX));
        let waited = match tokio::time::timeout(PATIENCE, waiting.as_mut()).await {
            Ok(waited) => waited,
            Err(_) => {
                tracing::warn!(
                    subscription = %self.settings.subscription,
                    "the copy waits until all transactions have ended on the source that were running: see pg_stat_activity and \
                     pg_prepared_xacts there for the oldest"
                );
                waiting.await
            }
        };
        Ok(waited.map_err(output::Error::from)?)
    }

    /// A connection that makes a slot and holds its exported snapshot.
    pub(super) async fn snapshot_wire(&self) -> Result<Wire, Error> {
        let name = self.settings.subscription.application_name("snapshot");
        let settings = [SOURCE_SETTINGS.as_slice(), slot::EXPORT_SETTINGS.as_slice()].concat();
        let mut wire = Wire::connect(&self.settings.source, &name, Replication::Database, &settings).await?;
        // The exported snapshot is a transaction that is as long as the copy.
        if wire.version().major() >= 17 {
            wire.query("SET transaction_timeout = 0").await?;
        }
        Ok(wire)
    }

    /// A session that looks at the catalogs and holds the snapshot of the look.
    pub(super) async fn snapshot_session(&self) -> Result<Session, Error> {
        let name = self.settings.subscription.application_name("snapshot");
        let settings = [SOURCE_SETTINGS.as_slice(), slot::EXPORT_SETTINGS.as_slice()].concat();
        let session = client::connect(&self.settings.source, &name, &settings).await?;
        if session.version().major() >= 17 {
            let set = session.batch_execute("SET transaction_timeout = 0").await;
            set.map_err(|error| session.error(error))?;
        }
        Ok(session)
    }
}
