//! Where bytes come from: logical slot, stream, publications, and the feedback they need.

mod catalogue;
mod error;
pub mod publication;
pub mod slot;
pub mod stream;

pub use catalogue::{catalogue, slot_not_dropped};
pub use error::Error;
