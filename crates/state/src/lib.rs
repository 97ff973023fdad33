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
//! | who | works through |
//! | --- | --- |
//! | the process that holds the subscription's lock | [`State`] |
//! | commands, which hold no lock | [`stored`], [`removal`], [`conflict_history`], [`adoption()`] |
//! | transactions that apply or copy, because a record is true only together with their rows | [`statements`] |
//! | transactions that bring a schema over | [`schema_steps`] |
//! | checks of both ends | [`queries`] |
//!
//! No other crate has SQL that names the schema or what is in it. Which rows are applied does not
//! belong here, nor what the target's other tables look like.

mod adoption;
mod array_holders;
pub mod conflict_history;
mod conflict_record;
mod copied_from;
mod copy_again;
mod copy_origin;
mod error;
mod error_reference;
mod flusher;
mod origins;
mod partitions;
pub mod queries;
pub mod removal;
mod schema;
pub mod schema_steps;
mod since;
mod source_oids;
mod state;
pub mod statements;
pub mod stored;

pub use adoption::{AdoptedSource, Adoption, NativeOptions, adoption, make_adopted, store_adoption};
pub use conflict_record::{
    ConflictOutcome, ConflictRecord, RECORD_COLUMNS, RecordType, RecordValue, RecordedValues, WriterConflict,
};
pub use copied_from::{CopiedFrom, Parting};
pub use copy_origin::commit_under;
pub use error::Error;
pub use error_reference::error_reference;
pub use flusher::{flush_continuously, flush_now};
pub use origins::own_origins;
pub use partitions::{PartitionRow, Suspicion};
pub use schema::STATE_SCHEMA;
pub use since::{JoinedTables, Since, TableKey};
pub use source_oids::LEAVE_OUT;
pub use state::{ABORT_MOVES_ORIGIN, CopiedTable, State, SubscriptionRow, is_without_room};
