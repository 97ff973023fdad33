//! Reads from the source: logical slots, their streams and feedback, publications, and WAL from
//! files.

pub mod end;
mod error;
mod error_reference;
mod frames;
pub mod publication;
pub mod queue;
pub mod restart_lsn;
pub mod segments;
pub mod slot;
pub mod standby_slots;
pub mod stream;

pub use error::Error;
pub use error_reference::{error_reference, segments_error_reference, slot_not_dropped};
