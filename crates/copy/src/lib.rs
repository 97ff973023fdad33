//! The first copy: tables under one snapshot, in parallel, into the target.
//!
//! Handed: an exported snapshot with its consistent point (rule C1), the tables and the options.
//! Promises, for every table it reports as finished: the target holds exactly the rows the snapshot
//! sees, durably, and the caller's [`CopyRecord`] says so. A crash at any instant leaves each table
//! finished, untouched, or recorded as begun; the next attempt empties a table that was begun. The
//! copy never parses rows: COPY's blocks go from one socket to the other unchanged, in binary if
//! every type allows it (rule C3).
//!
//! A table is copied in one of two ways:
//!
//! - **as one transaction**, with its record in the same transaction: small tables, and tables that
//!   already hold rows. The copy adds to these rows, as the native first copy does.
//!   [`Options::whole_tables`] asks for this way for all tables;
//! - **in ranges** of pages, several at a time, each its own transaction: large tables that are
//!   empty. The copy records the begin of the table before the first row, and its end after the
//!   last range. The transaction that records the end waits for its WAL, and so for all WAL before
//!   it.
//!
//! Ranges cost the target space in an index whose keys grow with the order of rows. Only the
//! foremost connection inserts at the right end, where pages are filled up. The pages of the others
//! split in the middle. Five million rows with a `bigint` key made an index of 107 MB over one
//! connection, 141 MB over two and 164 MB over four (PostgreSQL 15). One connection per table
//! avoids this cost.
//!
//! # Hazard
//! A predecessor that was killed, or lost its connection, may have sent a COMMIT that its backend
//! has not carried out yet. A new attempt would then read the record too early and copy the rows
//! twice. So every transaction that writes into a table holds an advisory lock on it. A range holds
//! it shared. The transaction that reads the record and decides holds it exclusively, and so waits
//! for that backend. Turned down: a lock on the table itself, which would delay the target's
//! readers and writers.
//!
//! Does not belong here: when to copy, the slot and its snapshot, where the
//! record is kept, and what happens to a table once it is copied.

mod error;
mod error_reference;
mod estimate;
mod held;
mod job;
mod layout;
mod options;
mod plan;
mod progress;
mod record;
mod run;
mod schedule;
mod session;
mod sql;
mod table;
mod transfer;

pub use error::Error;
pub use error_reference::error_reference;
pub use job::CopyJob;
pub use options::{ExportedSnapshot, Options};
pub use progress::{CopyProgress, CopyTotals, TableProgress, TableState};
pub use record::{CopyRecord, Recorded};
pub use run::{Attempt, copy_tables};
