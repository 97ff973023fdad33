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

mod error_reference;
mod hand_back;
mod native;
mod refusal;
mod take;

use std::fmt;
use std::time::{Duration, Instant};

use base::{Lsn, SubscriptionName};
use client::{ConnInfo, Session, SqlState};
use source::slot::{self, SlotState};

pub use engine::adoption::NativeOptions;
pub use error_reference::error_reference;
pub use hand_back::release;
pub use native::options;
use refusal::Refusal as Why;
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

/// Why adopting or handing back failed.
#[derive(Debug)]
pub struct Error(Kind);

#[derive(Debug)]
enum Kind {
    /// A server, or a start of the pipeline, refuses it.
    Pipeline(engine::Error),
    Refused(Why),
}

impl Error {
    fn refused(why: Why) -> Error {
        Error(Kind::Refused(why))
    }

    /// The subscription's name is in use elsewhere.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(&self.0, Kind::Pipeline(error) if error.is_in_use())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Pipeline(error) => error.fmt(f),
            Kind::Refused(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Kind::Pipeline(error) => error.source(),
            Kind::Refused(_) => None,
        }
    }
}

impl<E: Into<engine::Error>> From<E> for Error {
    fn from(error: E) -> Error {
        Error(Kind::Pipeline(error.into()))
    }
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
            Failed::Query(error) => target.error(error).into(),
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
