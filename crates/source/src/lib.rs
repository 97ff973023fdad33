//! Where bytes come from: logical slot, stream, publications, and the feedback they need.

mod error;
pub mod publication;
pub mod slot;
pub mod stream;

pub use error::Error;
