//! Applies transactions to a target PostgreSQL: plan, batch, exact replay, progress by origin.
//!
//! ```text
//!   messages     transactions     batch        plan           target
//!   ---------> txn::Assembler --> batch --> fold, shape --> executor --> COMMIT + origin
//!                    ^              |                          |
//!                 catalog           +-- the changes as they came --> exact replay
//! ```
//! [`Target::attach`] passes the fences and reads the target's progress. [`apply`] takes the stream
//! from there. Crate `state` keeps what pgsluice stores on the target.

mod activity;
mod applier;
mod bag;
mod batch;
mod catalog;
mod conflict_log;
mod counters;
mod error;
mod error_reference;
mod executor;
mod explain;
mod fit;
mod fold;
mod footprint;
mod gate;
mod holder;
mod join;
mod large;
mod lock_watch;
mod open_transaction;
mod plan;
mod prefetch;
mod runaway;
mod search;
mod settled;
mod shape;
mod shared;
mod sizes;
mod spill;
mod statement;
mod table;
mod target;
mod workers;
mod write;

pub use activity::{Activity, Doing, InHand};
pub use applier::{CommitOrder, Feed, Options, SourceTypes, apply, sessions};
pub use conflict_log::ConflictLog;
pub use counters::Counters;
pub use error::Error;
pub use error_reference::error_reference;
pub use gate::{Advance, Gate, Hold, HoldError};
pub use join::{Ended, JoinRequests, Joins, joins};
pub use prefetch::{Mode as PrefetchMode, Options as PrefetchOptions, PrefetchFigures};
pub use target::{Backends, Target};
