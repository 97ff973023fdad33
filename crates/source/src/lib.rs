//! Where bytes come from: logical slot, stream, publications, and the feedback they need; files of WAL.

mod catalogue;
mod error;
pub mod publication;
pub mod queue;
pub mod segments;
pub mod slot;
pub mod stream;

pub use catalogue::{catalogue, segments_catalogue, slot_not_dropped};
pub use error::Error;
