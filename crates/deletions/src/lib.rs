//! Deletion memory: which rows were deleted on a server, by whom and when, for as long as that may
//! be asked.
//!
//! An UPDATE from a publisher that finds no row on the target has two explanations: the row was
//! deleted there, or it never was there. PostgreSQL 19 keeps the dead rows to tell these apart,
//! which holds VACUUM back. Here deletions are captured from the target's WAL and kept outside of
//! its tables.
//!
//! ```text
//! capture --- Deletion ---> Memory <--- look_up --- apply
//!             by RowKey       ^
//!                             '--- advance --- Horizon <--- what the publisher and the target say
//! ```
//!
//! [`RowKey`] names a row so that equal identities have equal keys. [`Memory`] keeps a tombstone
//! for each deletion, within bounds, across crashes. README.md says why answers are right, and what
//! a crash leaves.
//!
//! The crate knows no SQL and no sockets, and no clock but the ones that callers read. Decoding the
//! target's WAL belongs to `output`, capture to `retention`, acting on an answer to `apply`.

mod coverage;
mod deletion;
mod error;
mod horizon;
mod interval;
mod key;
mod ledger;
mod marks;
mod memory;
mod publisher;

pub use coverage::{Answer, Candidate, Cut, Landmark, Miss, Server};
pub use deletion::{Deletion, Kind, Tombstone};
pub use error::Error;
pub use horizon::{
    Ask, Dropped, Horizon, HorizonEvent, Moment, Progress, Question, Reply, Settings, Waiting,
};
pub use interval::Interval;
pub use key::{ColumnType, Equality, Identity, Malformed, RowKey, Shape, UnknownEquality, Value};
pub use memory::{Bounds, Discarded, Disks, Figures, Memory, Opened};
pub use publisher::{Activity, By, Doing, Holder, Publisher, Session};
