//! Taking over from a native subscription of the target, and handing back.
//!
//! Callers hand in both ends and a name. This module promises that no row is copied, and that no
//! change is lost or applied twice, in either direction. If anything interrupts a command, the same
//! command continues it. The native subscription stays, disabled and without its slot's name, so
//! that neither ENABLE nor DROP SUBSCRIPTION can reach the slot. The target's row keeps the slot's
//! name, and `run` streams from that slot.
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
//! T1, T2 and T3 are one transaction each, on the target alone. The native apply worker may still
//! be applying between T1 and T2, so the command waits for it.
//!
//! Hazards:
//! 1. The native worker commits after its position was read. So the command waits for it and its
//!    parallel workers. Then it attaches the worker's origin to a session of ours (as rule P2).
//!    Only after that it reads the position, and flushes it.
//! 2. A worker of ours does the same while handing back. The remedy is the same fence, under the
//!    advisory lock that keeps every other pgsluice away.
//! 3. Moving or dropping an origin is not undone when its transaction aborts. The native origin has
//!    no meaning while its subscription has no slot. Our position is stored in our row before our
//!    origin is dropped.
//! 4. A walsender outlives its client for a moment. A native worker that started meanwhile would
//!    fail, and perhaps disable its subscription. So the command waits for the slot before it hands
//!    anything back.
//!
//! A wait that only the native worker can end (one large transaction) has no bound. Ending that
//! worker would help nobody. An operator who does not want to wait may kill this process and repeat
//! the command.

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

pub use error_reference::error_reference;
pub use hand_back::release;
pub use native::options;
use refusal::Refusal as Why;
pub use state::NativeOptions;
pub use take::adopt;

const POLL: Duration = Duration::from_millis(100);
/// How long to wait for a slot. A walsender whose client has gone notices within this time, or not
/// soon.
const SLOT_BOUND: Duration = Duration::from_secs(60);
/// How long to wait for what a dead process's backend holds on the target.
const ORIGIN_BOUND: Duration = Duration::from_secs(20);

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdoptionOutcome {
    /// This call did it.
    Done {
        /// The position where one subscription left off and the other goes on; `None` if an
        /// unfinished adoption was undone.
        at: Option<Lsn>,
        /// The slot's name, which is the same before and after.
        slot: String,
        /// The number of the subscription's tables.
        tables: usize,
    },
    /// An earlier call has done it.
    Already,
    /// The subscription does not exist.
    Missing,
}

/// Why adopting or handing back failed.
#[derive(Debug)]
pub struct Error(Kind);

#[derive(Debug)]
enum Kind {
    /// A server failed, or a start of the pipeline would be refused.
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

/// Opens a session whose commits are durable.
async fn target_session(info: &ConnInfo, name: &SubscriptionName) -> Result<Session, Error> {
    let settings = [("search_path", ""), ("lock_timeout", "30s"), ("synchronous_commit", "on")];
    Ok(client::connect(info, &name.application_name("command"), &settings).await?)
}

/// Reads the slot, and checks that it can be streamed from here.
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

/// Waits until no walsender uses the slot: hazard 4.
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
