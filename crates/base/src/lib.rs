//! What every stage shares: PostgreSQL's terms, and a few tools.
//!
//! The terms are positions in the WAL, ids of transactions and objects, versions and times of
//! servers, snapshots, a subscription's name and its progress. A type belongs to them only if at
//! least three stages need it and PostgreSQL defines its meaning.
//!
//! Each tool is a module, and nearly every crate uses them. [`quote_ident`] and [`quote_literal`]
//! put text into SQL. [`with_causes`] prints an error in one line. [`mod@error_reference`] lists
//! errors for the reference that operators read. [`crash_phases`] reports what a process is doing
//! when a crash test kills it.
//!
//! This crate depends on nothing, does no I/O and knows no protocol. Code that only two stages
//! share has a crate of its own, as `pglz` does.

mod causes;
pub mod crash_phases;
pub mod error_reference;
mod ids;
mod lsn;
mod progress;
mod snapshot;
mod sql;
mod subscription;
mod time;
mod version;

pub use causes::with_causes;
pub use ids::{Oid, RelFileLocator, Xid};
pub use lsn::{Lsn, ParseLsnError};
pub use progress::{Progress, ProgressSnapshot};
pub use snapshot::{ParseSnapshotError, PgSnapshot};
pub use sql::{quote_ident, quote_literal};
pub use subscription::{NameError, SubscriptionName};
pub use time::PgTimestamp;
pub use version::PgVersion;
