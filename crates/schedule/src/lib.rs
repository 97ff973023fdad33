//! Which chunk of the stream is executed when, by which worker, and when it may commit.
//!
//! Handed: chunks in the source's commit order, each with its [`Footprint`] (what it touches), and
//! what became of each. Returns [`Action`]s: what each worker does next. Chunks are numbers here,
//! and workers are indexes.
//!
//! Promises:
//!
//! - with [`Preserve`], chunks commit in the source's order;
//! - with [`Relaxed`], a chunk commits after every chunk before it with which it shares a key;
//! - a lock wait that the target cannot see ends: whoever waits for a turn lets go (rule A3);
//! - [`CommittedRanges`] tells from the target's rows what it holds, whatever the order was.
//!
//! The crate does no I/O and knows no clock, so that the simulation can show it every order of
//! events. How a footprint is found out does not belong here (that is the plan's), nor do sessions,
//! SQL, or what a worker does with an action (that is the applier's).

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

/// Keys that are remembered for all chunks in flight together. A chunk with more is a barrier.
/// With two words each they take 16 MB.
const KEYS_MAX: usize = 1_000_000;
