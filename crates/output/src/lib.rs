//! WAL in, messages of pgoutput out.
//!
//! ```text
//! let mut decoder = Decoder::new(catalog, options, spool)?;
//! for bytes in wal {                        // from decoder.position() on, in pieces of any size
//!     let mut outputs = decoder.push(bytes)?;
//!     while let Some(Output { lsn, xid, data }) = outputs.next()? { ... }
//! }
//! decoder.finish()?;
//! ```
//!
//! The output is what `pg_logical_slot_get_binary_changes` returns for a slot of pgoutput: the same
//! messages, in the same order, with the same LSNs and transactions. README.md lists the
//! differences, and says why the rest is the same.
//!
//! Promises: no published change is left out silently. A change that cannot be rendered, filtered
//! or resolved is an error that names it, and after an error nothing comes out. Memory is bounded
//! by what the reorder buffer and the catalogs promise, plus the largest message.
//!
//! Does not belong here: where the bytes come from, where messages go, and what is stored for a
//! restart.

mod decoder;
mod deletion_decoder;
mod deletions;
mod error;
mod error_reference;
mod group;
mod options;
mod pass;
mod row;
mod survey;
mod table;
mod tables;
mod writer;

pub use catalog::Lost;
pub use decoder::{Decoder, Outputs};
pub use deletion_decoder::{DeletionDecoder, Deletions};
pub use deletions::{Deleted, DeletedFrom, DeletedWhat, DeletingCommit};
pub use error::{Error, RefusedTable};
pub use error_reference::error_reference;
pub use group::{MemberId, Place, Running};
pub use options::{OnRefused, Options, OriginFilter, Publications, Streaming, TakesPart};
pub use pass::{Pass, Refusal, Step, Steps};
pub use survey::{PublishedTable, Survey, published};
pub use writer::{Counters, Output};
