//! What pgsluice remembers on the target: the tables of schema `pgsluice`, the replication origins,
//! and the fences that guard both.
//!
//! Handed: a target, a subscription's name, and positions. Promises:
//!
//! - [`State::open`] lets one process in for each subscription and target;
//! - [`State::attach_origin`] reads the progress only when no earlier process can still commit
//!   (rule P2);
//! - [`flush_continuously`] reports a position as flushed only when it is durable (P3, P4);
//! - what an older version did not make is made when it is first needed, and each change of the
//!   tables is one transaction.
//!
//! [`statements`] has the SQL that must run in the transactions that apply or copy, because it is
//! true only together with their rows. Which rows these are does not belong here, nor what the
//! target's other tables look like.

mod array_holders;
mod copied_from;
mod copy_again;
mod copy_origin;
mod error;
mod error_reference;
mod flusher;
mod partitions;
mod schema;
mod since;
mod source_oids;
mod state;
pub mod statements;

pub use copied_from::{CopiedFrom, Parting};
pub use copy_origin::commit_under;
pub use error::Error;
pub use error_reference::error_reference;
pub use flusher::{flush_continuously, flush_now};
pub use partitions::{PartitionRow, Suspicion};
pub use schema::{STATE_SCHEMA, STATE_SCHEMA_SQL};
pub use since::{JoinedTables, Since, TableKey};
pub use source_oids::LEAVE_OUT;
pub use state::{ABORT_MOVES_ORIGIN, CopiedTable, State, SubscriptionRow, is_without_room};
