//! Applies transactions to a target PostgreSQL: planner, executor, exact replay, progress.
//!
//! ```text
//!   messages     transactions      batch      plan           target
//!   ---------> txn::Assembler --> planner --> chunk --> executor --> COMMIT + origin
//!                    ^              |                      |
//!                mappings           +-- the changes as they came --> exact replay
//! ```
//! [`Target::attach`] passes the fences and reads the target's progress. [`apply`] takes the stream
//! from there. Crate `plan` makes plans and their SQL, and crate `prefetch` reads their
//! pages ahead. Crate `state` keeps what pgsluice stores on the target.

mod activity;
mod applier;
mod chunk;
mod clock_figures;
mod conflict_log;
mod counters;
mod error;
mod error_reference;
mod executor;
mod expecting;
mod folded_backlog;
mod join;
mod large;
mod lock_watch;
mod mapping;
mod open_transaction;
mod planner;
#[cfg(test)]
mod plans_on_servers;
mod runaway;
mod set_size;
mod shared_progress;
mod sizes;
mod snapshot_gate;
mod spill;
mod target;
mod work;
mod workers;
mod write;

pub use activity::{Activity, Doing, InHand};
pub use applier::{CommitOrder, Feed, Options, SourceTypes, apply, sessions};
pub use clock_figures::{ClockFigures, ClockReading, HeldForClock};
pub use conflict_log::ConflictLog;
pub use counters::Counters;
pub use error::Error;
pub use error_reference::error_reference;
pub use join::{ApplierEnded, JoinRequests, Joins, joins};
pub use prefetch::{PrefetchFigures, PrefetchMode, PrefetchOptions};
pub use snapshot_gate::{Advance, GateHold, GateHoldError, SnapshotGate};
pub use target::{Backends, Target};
