//! What a stream of changes says, kept once for all who read it, each at its own place.
//!
//! ```text
//! messages --push--> | chapter | chapter | chapter | open
//!                        ^          ^          ^-- Cursor that keeps up: sent from memory
//!                        |          '-- Cursor that is late: sent from the file
//!                        '-- enter(LSN): finds its chapter, passes over what was confirmed
//! ```
//! A track has pgoutput's messages in the form in which they are sent, so that one encoding serves
//! every reader (rule L4). The newest part is in memory, which all tracks share. An older part goes
//! into files while some cursor still has to read it. If the files would grow beyond their limit,
//! the cursors that are furthest behind are evicted: nobody is waited for. Only a writer that runs
//! ahead of all readers may wait for the first of them ([`Track::wait_for_readers`]).
//!
//! # Where a reader enters
//!
//! A subscriber that comes back names the position that it has confirmed. It needs every
//! transaction whose commit is at or behind that position, and no other, as from a slot of the
//! server. So a cursor passes over whole transactions that were confirmed. Two things make that
//! harder, and with two-phase commit a third:
//!
//! - **A relation is described once**, maybe in a transaction that is passed over. So descriptions
//!   are repeated in every chapter ([`Track::push`] says when one begins), and a cursor that passes
//!   over a part of a chapter hands the descriptions out behind the next BEGIN. What a streamed
//!   transaction describes must count for that transaction only, also after its commit.
//! - **An open transaction is streamed in blocks** among others. If it ends behind the position,
//!   all its blocks are needed, also those before. A chapter knows which ones are open where it
//!   begins.
//! - **A transaction that was prepared before two-phase commit began** comes when it commits, with
//!   its PREPARE just before. Who needs the commit needs both, though the PREPARE has an older
//!   position ([`Track::with_two_phase_at`]).
//!
//! While a cursor does not know yet whether the end of a streamed transaction is before its
//! position, it hands nothing out. It knows when something comes that ends behind its position, or
//! when it is told that everything before has come ([`Cursor::came_to`]).

mod cursor;
mod error;
mod files;
mod memory;
mod portion;
mod scan;
mod shared;
mod track;

pub use cursor::{Cursor, Entrance, Next, NotHere};
pub use error::Error;
pub use memory::TrackMemory;
pub use portion::Portion;
pub use track::{Limits, Pushed, TooLong, Track};
