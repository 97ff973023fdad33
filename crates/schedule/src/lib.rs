//! Which chunk of the stream is executed when, by which worker, and when it may commit.
//!
//! Callers hand over chunks in the source's commit order, each with its [`Footprint`] (what it
//! touches), and report what became of each. The schedule returns [`Action`]s: what each worker
//! does next. Here, chunks are numbers and workers are indexes.
//!
//! Promises:
//!
//! - with [`Preserve`], chunks commit in the source's order;
//! - with [`Relaxed`], a chunk commits after every earlier chunk with which it shares a key;
//! - a lock wait that the target cannot see ends, because chunks that wait for their turn let go
//!   (rule A3);
//! - [`CommittedRanges`] tells from the target's rows what it holds, whatever the order was.
//!
//! The crate does no I/O and knows no clock, so that the simulation can show it every order of
//! events. The plan finds out footprints. The applier has the sessions and the SQL, and carries out
//! the actions.

mod action;
mod committed_ranges;
mod either;
mod footprint;
mod key_filter;
mod preserve;
mod relaxed;
#[cfg(test)]
mod simulation;

pub use action::{Action, Manner};
pub use committed_ranges::{CommittedRanges, RangeTracker};
pub use either::Either;
pub use footprint::{Footprint, Late, Split, Touched, Units};
pub use key_filter::KeyFilter;
pub use preserve::Preserve;
pub use relaxed::Relaxed;

/// Maximum keys that are remembered, for all chunks in flight together. A chunk that exceeds it is
/// a barrier. With two words each, the keys take 16 MB.
const KEYS_MAX: usize = 1_000_000;
