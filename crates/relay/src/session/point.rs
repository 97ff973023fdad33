//! The consistent point of a new slot, and the snapshot of it.
//!
//! Both come from a temporary slot of the publisher, which is dropped at once (rule L1). Sessions
//! that wait for one share it ([`crate::together`]).

use base::{Lsn, quote_literal};

use super::{Halt, Session, stopped};
use crate::create::SnapshotWish;
use crate::together::{Leader, Point, Turn};
use crate::told::{Told, code};

/// How every subscriber begins the copy of a table. Only behind it, and behind nothing else, can a
/// transaction take over another's snapshot.
const BEGIN_COPY: &str = "BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ";

impl Session<'_> {
    /// Whether a transaction that has just begun with `query` may take over a snapshot.
    pub(super) fn begins_copy(query: &str) -> bool {
        query.trim_end().trim_end_matches(';') == BEGIN_COPY
    }

    /// A point of the publisher, and the name of its snapshot if that was asked for.
    pub(super) async fn consistent_point(
        &mut self,
        wish: SnapshotWish,
    ) -> Result<(Lsn, Option<String>), Halt> {
        let is_fresh = std::mem::take(&mut self.is_fresh_for_copy);
        // An exported snapshot belongs to the session that has it.
        let may_share = wish == SnapshotWish::Nothing || (wish == SnapshotWish::Use && is_fresh);
        let context = self.context;
        let turn = tokio::select! {
            turn = context.together.turn(self.database, wish, may_share) => turn,
            () = context.stop.cancelled() => return Err(stopped()),
        };
        match turn {
            Turn::Leads(leader) => self.lead(wish, leader).await,
            Turn::Shares(shared) => {
                let Point { lsn, snapshot } = &shared.point;
                if wish == SnapshotWish::Use {
                    let none = || Told::new(code::INTERNAL_ERROR, "a shared point has no snapshot");
                    let name = snapshot.as_deref().ok_or_else(none)?;
                    let name = quote_literal(name);
                    self.row_of(&format!("SET TRANSACTION SNAPSHOT {name}")).await?;
                }
                Ok((*lsn, None))
            }
        }
    }

    /// Makes the slot for all who wait with this session.
    async fn lead(&mut self, wish: SnapshotWish, leader: Leader<'_>) -> Result<(Lsn, Option<String>), Halt> {
        self.slots_made += 1;
        // Another relay of the same publisher has other keys.
        let unique = self.cancellable.key.iter().take(4).map(|byte| format!("{byte:02x}"));
        let name = format!("pgsluice_relay_{}_{}", unique.collect::<String>(), self.slots_made);
        let words = wish.words(self.context.major);
        let row = self
            .row_of(&format!("CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL pgoutput {words}"))
            .await?;
        let text = |at: usize| row.get(at).cloned().flatten();
        let none = || Told::new(code::INTERNAL_ERROR, "the publisher named no consistent point");
        let lsn = text(1).and_then(|point| point.parse().ok()).ok_or_else(none)?;
        let exported = text(2);
        // An exported snapshot ends with the next command of its session.
        if wish != SnapshotWish::Export {
            self.row_of(&format!("DROP_REPLICATION_SLOT {name}")).await?;
        }
        let mut point = Point { lsn, snapshot: exported.clone() };
        if wish == SnapshotWish::Use && leader.is_to_export() {
            let row = self.row_of("SELECT pg_catalog.pg_export_snapshot()").await?;
            point.snapshot = row.into_iter().next().flatten();
        }
        let others = leader.share(&point).await;
        tracing::debug!(others, "the publisher's consistent point {lsn} was made");
        Ok((lsn, exported))
    }
}
