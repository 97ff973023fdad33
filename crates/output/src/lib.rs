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
//! What comes out is what `pg_logical_slot_get_binary_changes` of a slot of pgoutput returns: the same messages, in the
//! same order, with the same LSNs and transactions.

mod decoder;
mod error;
mod options;

pub use decoder::{Counters, Decoder, Output, Outputs};
pub use error::{Error, Refused};
pub use options::{OnRefused, Options, OriginFilter, Publications, Streaming};
