//! Snapshots under which rows are copied.
//!
//! | source | the first copy | later copies |
//! | --- | --- | --- |
//! | `logical` | the slot's | that of a temporary slot |
//! | `wal` | that of the look at the catalogs | one that is taken by SQL |
//!
//! A slot's snapshot sees exactly what committed before a position in WAL. A snapshot taken by SQL
//! sees a set of transactions ([`Since`], rule C2).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use base::crash_phases::{self, Phase};
use client::{Session, SnapshotText, Wire};
use source::end::{Exported, Holder, LOOK_WAIT_MAX, end_of_flushed, flush, snapshot_session, snapshot_wire};
use source::slot::{self, CreatedSlot, NewSlot};
use state::{Since, State};

use super::attempt::Attempt;
use crate::SourceMode;
use crate::error::Error;
use crate::refusal::Refusal;

/// How long the copy waits for running transactions before the log says so.
const PATIENCE: Duration = Duration::from_secs(10);

impl Attempt<'_> {
    /// Takes a snapshot for tables that join a stream that already flows, after their changes were
    /// put aside. `source` is any session of the source.
    pub(crate) async fn late_snapshot(&self, source: &Session, state: &State) -> Result<Exported, Error> {
        const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        const EXPORT: &str = "SELECT pg_catalog.pg_current_snapshot()::text, pg_catalog.pg_export_snapshot()";
        if self.settings.source_mode == SourceMode::Logical {
            let mut wire = snapshot_wire(&self.settings.source, &self.settings.subscription).await?;
            let name = &self.settings.subscription.copy_slot(std::process::id());
            let new =
                NewSlot { name, temporary: true, snapshot: slot::SlotSnapshot::Export, failover: false };
            let made = slot::create_logical_slot(&mut wire, &new).await?;
            return of_slot(made, wire);
        }
        let _look = crash_phases::inside(Phase::Look);
        state.keep_snapshots().await?;
        let session = snapshot_session(&self.settings.source, &self.settings.subscription).await?;
        // A transaction's commit is in WAL before other sessions see it, and the stream may have
        // passed it. So this waits for running transactions.
        self.wait_for_running(&session).await?;
        session.batch_execute(BEGIN).await.map_err(|error| session.error(error))?;
        let row = session.query_one(EXPORT, &[]).await.map_err(|error| session.error(error))?;
        let SnapshotText(snapshot) = row.try_get(0).map_err(|error| session.error(error))?;
        // Everything that the snapshot sees lies before this position, and no crash takes it back.
        flush(source).await?;
        let lsn = end_of_flushed(source).await?;
        wal_source::wait_for_standbys(self.of_wal, self.status.decoded(), source, lsn).await?;
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
                    "the copy waits until all transactions that were running on the source have ended: see \
                     pg_stat_activity and pg_prepared_xacts there for the oldest"
                );
                waiting.await
            }
        };
        Ok(waited.map_err(output::Error::from)?)
    }
}

/// The snapshot that came with a new slot.
pub(super) fn of_slot(made: CreatedSlot, wire: Wire) -> Result<Exported, Error> {
    Exported::of_slot(made, wire).ok_or_else(|| Error::refused(Refusal::NoSnapshot))
}
