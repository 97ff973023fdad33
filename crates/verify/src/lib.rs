//! Whether both ends hold the same rows, found out while replication goes on
//! (rule V1).
//!
//! ```text
//!   publication --> tables --> chunks --> a group of them
//!                                           |  pin: two snapshots that hold the same commits
//!                                           v
//!                     workers: digest of a chunk on both servers --equal--> next chunk
//!                                           |differs
//!                                  buckets --> rows --> columns, by name
//! ```
//! Each server reads its rows once and sends back a count and a sum: the sum
//! of a 64-bit hash of every row's text, which does not depend on the order of
//! rows. Two chunks that differ agree in both with a probability of 2^-64.
//! Only where they do not is anything read again, and only rows that differ
//! are ever sent to us.
//!
//! Text means the same on both ends: sessions have the same settings, values
//! are what the types' output functions give, and databases of different
//! encodings are hashed as UTF-8; between two in SQL_ASCII bytes are compared
//! as they are. Nothing is compared by order between two
//! servers unless order cannot depend on a collation.
//!
//! Memory is bounded: by the number of differences that are named, one chunk's
//! buckets and a few hundred rows of keys per worker, here; and by
//! `work_mem` on the servers.
//!
//! Belongs elsewhere: how `run` is asked to hold its stream ([`Pin`]).

mod chunk;
mod compare;
mod error;
mod error_reference;
mod pin;
mod progress;
mod report;
mod run;
mod session;
mod sql;
mod table;

pub use error::Error;
pub use error_reference::error_reference;
pub use pin::{NoPin, Pin, PinError, SourceSnapshot};
pub use progress::{Progress, ProgressSnapshot};
pub use report::{Difference, Key, Report, TableReport};
pub use run::{Options, verify};
