//! Taking over from a native subscription of the target, and handing back.
//!
//! Handed: both ends and a name. Promises: no row is copied, no change is
//! lost or applied twice in either direction, and whatever interrupts it, the
//! same command goes on. The native subscription stays, disabled and without
//! its slot's name, so that neither ENABLE nor DROP SUBSCRIPTION can reach the
//! slot; the target's row keeps the name, and `run` streams from that slot.
//!
//! ```text
//!            T1: disable, slot_name = NONE,      T2: where it stood
//!                our row and origin              and its tables
//! native ───────────────────────────► unfinished ─────────────► adopted
//!    ▲                                    │                        │
//!    └────────────────────────────────────┴────────────────────────┘
//!      T3: its origin to where we stand, slot_name, enable; ours removed
//! ```
//!
//! T1, T2 and T3 are one transaction each, on the target alone. Between T1 and
//! T2 the native apply worker may still be applying; it is waited for.
//!
//! Hazards:
//! 1. The native worker commits after its position was read. It is waited for,
//!    its parallel workers too, and then its origin is attached to a session
//!    of ours (as rule P2): only then is the position read, and flushed.
//! 2. Ours does so while handing back: the same fence, under the advisory lock
//!    that keeps every other pgsluice away.
//! 3. Moving or dropping an origin is not undone when its transaction aborts.
//!    The native origin means nothing while its subscription has no slot, and
//!    our position is stored in our row before our origin is dropped.
//! 4. A walsender outlives its client for a moment. The native worker, started
//!    while it does, would fail and perhaps disable its subscription: the slot
//!    is waited for before anything is handed back.
//!
//! Waits have no bound of their own where only the native worker can end them
//! (one large transaction): ending that worker would help nobody, and whoever
//! does not want to wait may kill this process and repeat the command.

mod hand_back;
mod native;
mod take;

use std::time::{Duration, Instant};

use base::{Lsn, SubscriptionName};
use client::{ConnInfo, Session, SqlState};
use source::slot::{self, SlotState};
use tokio_postgres::GenericClient;

use crate::error::{Error, Kind};
use crate::refusal::{AdoptionRefusal as Why, Refusal};

pub use hand_back::release;
pub use native::{NativeOptions, options};
pub use take::adopt;

const POLL: Duration = Duration::from_millis(100);
/// A walsender whose client has gone notices within this, or not soon.
const SLOT_BOUND: Duration = Duration::from_secs(60);
/// What a dead process's backend holds on the target.
const ORIGIN_BOUND: Duration = Duration::from_secs(20);

/// What became of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Done, by this call, at `at`; the slot's name.
    Done {
        /// Where the one left off and the other goes on; `None` if an
        /// unfinished adoption was undone.
        at: Option<Lsn>,
        /// The slot, which is the same before and after.
        slot: String,
        /// Tables of the subscription.
        tables: usize,
    },
    /// An earlier call has done it.
    Already,
    /// There is no subscription to do it with.
    Missing,
}

/// That a subscription was adopted, and what its former owner looks like now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Adoption {
    native_oid: u32,
    /// The native subscription's name, if it still exists.
    pub(crate) native: Option<String>,
    /// The slot that the native subscription names; `None` as it should be.
    native_slot: Option<String>,
    slot: String,
    finished: bool,
    options: NativeOptions,
}

impl Adoption {
    /// Why `run` must not stream.
    pub(crate) fn refusal(&self, name: &SubscriptionName, origin_none: bool) -> Option<Refusal> {
        let name = || name.clone();
        if !self.finished {
            return Some(Why::Unfinished { name: name() }.into());
        }
        if let (Some(native), Some(slot)) = (&self.native, &self.native_slot) {
            return Some(Why::SlotGivenBack { native: native.clone(), slot: slot.clone() }.into());
        }
        (self.options.origin == "none" && !origin_none).then(|| Why::OriginNone { name: name() }.into())
    }
}

const ADOPTED: &str = "\
SELECT a.native_oid, n.subname::text, n.subslotname::text, s.slot, s.consistent_point IS NOT NULL, s.publications,
       a.binary_values, a.streaming, a.origin, a.synchronous_commit, a.disable_on_error
  FROM pgsluice.adopted a
  JOIN pgsluice.subscription s ON s.name = a.subscription
  LEFT JOIN pg_catalog.pg_subscription n ON n.oid = a.native_oid
   AND n.subdbid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
 WHERE a.subscription = $1";

/// Whether the subscription was adopted.
pub(crate) async fn adoption(
    target: &impl GenericClient,
    name: &SubscriptionName,
) -> Result<Option<Adoption>, tokio_postgres::Error> {
    let sql = "SELECT pg_catalog.to_regclass('pgsluice.adopted') IS NOT NULL";
    if !target.query_one(sql, &[]).await?.get::<_, bool>(0) {
        return Ok(None);
    }
    let row = target.query_opt(ADOPTED, &[&name.as_str()]).await?;
    Ok(row.map(|row| Adoption {
        native_oid: row.get(0),
        native: row.get(1),
        native_slot: row.get(2),
        slot: row.get(3),
        finished: row.get(4),
        options: NativeOptions {
            conninfo: None,
            publications: row.get(5),
            binary: row.get(6),
            streaming: row.get(7),
            origin: row.get(8),
            synchronous_commit: row.get(9),
            disable_on_error: row.get(10),
        },
    }))
}

/// Why a step of a transaction failed.
enum Failed {
    Query(tokio_postgres::Error),
    Refused(Why),
}

impl From<tokio_postgres::Error> for Failed {
    fn from(error: tokio_postgres::Error) -> Self {
        Failed::Query(error)
    }
}

impl Failed {
    fn told(self, target: &Session) -> Error {
        match self {
            Failed::Query(error) => Kind::Client(target.error(error)).into(),
            Failed::Refused(why) => Error::refused(why),
        }
    }

    fn is_in_use(&self) -> bool {
        matches!(self, Failed::Query(error) if error.code() == Some(&SqlState::OBJECT_IN_USE))
    }
}

fn refuse<T>(why: Why) -> Result<T, Failed> {
    Err(Failed::Refused(why))
}

/// A session whose commits are durable.
async fn target_session(info: &ConnInfo, name: &SubscriptionName) -> Result<Session, Error> {
    let settings = [("search_path", ""), ("lock_timeout", "30s"), ("synchronous_commit", "on")];
    Ok(client::connect(info, &name.application_name("command"), &settings).await?)
}

/// The slot, which must be one that can be streamed from here.
async fn usable_slot(source: &Session, slot: &str) -> Result<SlotState, Error> {
    let row = source.query_one("SELECT pg_catalog.current_database()::text", &[]).await;
    let here: String = row.map_err(|error| source.error(error))?.get(0);
    let (found, slot) = (slot::slot_state(source, slot).await?, slot.to_owned());
    let place = source.describe().to_owned();
    let Some(found) = found else { return Err(Error::refused(Why::SlotNotThere { slot, place })) };
    if found.plugin.as_deref() != Some("pgoutput") || found.database.as_deref() != Some(&here) {
        let (plugin, database) = (found.plugin, found.database);
        return Err(Error::refused(Why::SlotOfAnother { slot, place, plugin, database }));
    }
    if found.is_lost() {
        return Err(Error::refused(Why::SlotLost { slot, why: found.invalidation }));
    }
    Ok(found)
}

/// Hazard 4.
async fn wait_for_slot(source: &Session, slot: &str) -> Result<SlotState, Error> {
    let deadline = Instant::now() + SLOT_BOUND;
    loop {
        let found = usable_slot(source, slot).await?;
        let Some(pid) = found.active_pid else { return Ok(found) };
        if Instant::now() >= deadline {
            return Err(Error::refused(Why::SlotBusy { slot: slot.to_owned(), pid }));
        }
        tokio::time::sleep(POLL).await;
    }
}
