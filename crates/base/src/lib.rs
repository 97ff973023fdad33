//! What every stage shares: PostgreSQL's words, and a few tools.
//!
//! The words are positions in the WAL, ids of transactions and objects, versions and times of
//! servers, snapshots, a subscription's name and its progress. A type belongs to them only when at
//! least three stages need it and its meaning is PostgreSQL's, not ours.
//!
//! The tools are a module each, and nearly every crate uses them: [`quote_ident`] and
//! [`quote_literal`] put text into SQL, [`with_causes`] tells an error in one line,
//! [`mod@error_reference`] lists errors for the reference that people read, and [`crash_phases`]
//! says what a process is doing when a crash test kills it.
//!
//! This crate depends on nothing, does no I/O and knows no protocol. What only two stages share has
//! a crate of its own, as `pglz` has.

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
