//! Transactions into a target PostgreSQL: plan, batch, exact replay, origin
//! progress.
//!
//! ```text
//!   messages     transactions     batch        plan           target
//!   ---------> txn::Assembler --> batch --> fold, shape --> executor --> COMMIT + origin
//!                    ^              |                          |
//!                 catalog           +-- the changes as they came --> exact replay
//! ```
//! [`Target::attach`] passes the fences and reads how far the target is,
//! [`apply`] takes the stream from there. [`State`] is what is remembered on
//! the target, [`flush_continuously`] turns "applied" into "may be
//! confirmed".

mod activity;
mod applier;
mod bag;
mod batch;
mod catalog;
mod conflict_log;
mod counters;
mod crew;
mod early;
mod error;
mod error_reference;
mod executor;
mod explain;
mod fit;
mod flusher;
mod fold;
mod footprint;
mod gate;
mod holder;
mod join;
mod large;
mod lock_watch;
mod plan;
mod prefetch;
mod reach;
mod replaced;
mod runaway;
mod schedule;
mod search;
mod settled;
mod shape;
mod shared;
mod sizes;
mod spill;
mod state;
mod statement;
mod table;
mod target;
mod write;

pub use activity::{Activity, Doing, InHand};
pub use applier::{CommitOrder, Feed, Options, SourceTypes, apply, sessions};
pub use catalog::{JoinedTables, Since};
pub use conflict_log::ConflictLog;
pub use counters::Counters;
pub use error::Error;
pub use error_reference::error_reference;
pub use flusher::{flush_continuously, flush_now};
pub use gate::{Advance, Gate, Hold, HoldError};
pub use join::{Ended, JoinRequests, Joins, TableKey, joins};
pub use prefetch::{Mode as PrefetchMode, Options as PrefetchOptions, PrefetchFigures};
pub use reach::Reached;
pub use replaced::{CopiedFrom, Parting};
pub use state::{
    CopiedTable, PartitionRow, STATE_SCHEMA, STATE_SCHEMA_SQL, State, SubscriptionRow, Suspicion,
};
pub use target::{Backends, Target};
