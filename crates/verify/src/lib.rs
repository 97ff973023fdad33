//! Finds out whether both ends hold the same rows while replication goes on (rule V1).
//!
//! ```text
//!   publication --> tables --> chunks --> a group of them
//!                                           |  two snapshots that hold the same commits
//!                                           v
//!                     workers: digest of a chunk on both servers --equal--> next chunk
//!                                           |differs
//!                                  buckets --> rows --> columns, by name
//! ```
//! Each server reads its rows once and sends back a count and a sum: the sum of a 64-bit hash of
//! every row's text, which does not depend on the order of rows. Two chunks that differ agree in
//! both with a probability of 2^-64. A chunk is read again only if they do not agree, and the
//! servers send only rows that differ.
//!
//! Text means the same on both ends. Sessions have the same settings, and values are the results of
//! the types' output functions. Databases of different encodings are hashed as UTF-8; two databases
//! in SQL_ASCII are compared byte by byte. This crate compares order between two servers only if it
//! cannot depend on a collation.
//!
//! Memory here is bounded by the number of named differences, and by one chunk's buckets and a few
//! hundred rows of keys per worker. On the servers it is bounded by `work_mem`.
//!
//! Belongs elsewhere: how `run` is asked to hold its stream ([`Applier`]).

mod chunk;
mod compare;
mod error;
mod error_reference;
mod paired_snapshots;
mod progress;
mod range;
mod report;
mod run;
mod session;
mod sql;
mod table;

pub use error::Error;
pub use error_reference::error_reference;
pub use paired_snapshots::{Applier, ApplierError, NoApplier, SourceSnapshot};
pub use progress::{Progress, ProgressSnapshot};
pub use report::{Difference, KeyValues, Report, TableReport};
pub use run::{Options, verify};
