//! Which rows the target lost, and to whom: captured from the target's own WAL into the deletion
//! memory.
//!
//! ```text
//! target --physical slot--> Stream --WAL--> DeletionDecoder --deletions--> Memory
//!                              ^ RestartLsn      |                           |
//!                              '--- Keeper ------' catalogs, in a file       '-- look-ups
//! ```
//! | module | does |
//! | --- | --- |
//! | `removal` | drops the slot and the files |
//! | `settings` | what a subscription asks for, and its files |
//! | `slots`, `shared_slot` | which slot keeps WAL: the own one, or that of the other direction of a pair |
//! | `started` | when a server was started, and with it which server it is |
//! | `fence` | a position behind everything that had committed, which the target has flushed |
//! | `handle` | [`Retention`]: the memory that capture fills and others ask |
//! | `missed` | what became of rows that were not found |
//! | `asking` | the session for that, and by which key a row is known |
//! | `timings` | how long look-ups and their fences take |
//! | `beginning` | finds out where capture can go on, or begins it anew |
//! | `proof` | finds out by WAL whether the target was restored |
//! | `capture` | streams, decodes, records and commits until something ends it |
//! | `identities` | how rows of each table are named: roots, columns, types |
//! | `horizon_task`, `publisher` | ask the publisher and the applier, and move the horizon |
//! | `condition` | [`Condition`]: whether capture runs, and what to do if it cannot |
//!
//! Handed is where the target is. Promised is what [`deletions`] promises of its memory, for as
//! long as the condition is [`Condition::Capturing`]. Capture never ends a subscription: where it
//! fails it is tried again, and answers say that they do not cover the gap.
//!
//! What an UPDATE without its row leads to does not belong here.

mod asking;
mod beginning;
mod capture;
mod condition;
mod error;
mod fence;
mod handle;
mod horizon_task;
mod identities;
mod missed;
mod proof;
mod publisher;
mod removal;
mod settings;
mod shared_slot;
mod slots;
mod started;
mod timings;

pub use asking::{AskedTable, identities};
pub use capture::run;
pub use condition::{Condition, Unfit};
pub use deletions::{Answer, Bounds, Figures, Kind as DeletionKind, RowKey, Tombstone, Value, Waiting};
pub use error::Error;
pub use fence::fence;
pub use handle::Retention;
pub use horizon_task::{Applied, AskApplied, advance_horizon};
pub use missed::Missed;
pub use removal::{drop_slot, remove};
pub use settings::{Settings, slot_of};
pub use shared_slot::SharedSlot;
pub use started::started;
pub use timings::Quantiles;
