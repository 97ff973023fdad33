//! Changes to whole transactions in commit order.
//!
//! pgoutput already sends small transactions whole and in commit order. Large
//! ones it may send while they are open, in blocks that alternate with other
//! transactions; [`Assembler`] puts those aside in a [`Spool`] on disk until
//! the source commits them (then they come out whole, in their place) or
//! aborts them (then they never come out). What leaves here is always whole
//! transactions in commit order.
//!
//! WAL has changes of all transactions in one row; the [`reorder`] module puts
//! them together, with the same spool. README.md is about that.

use base::Lsn;
use bytes::Bytes;

mod assembler;
pub mod reorder;
mod spool;

pub use assembler::error_reference::error_reference;
pub use assembler::{Assembler, AssemblyError, Begin, Change, Event, Notice, Op, Streamed, TruncateChange};
pub use spool::{DirSpool, Spool};

/// What a source hands over, in the order of the stream.
#[derive(Debug, Clone)]
pub enum Input {
    /// One message of pgoutput; of a physical slot or an archive, WAL as it stands, which goes on
    /// where the input before ended.
    Bytes(Bytes),
    /// Every transaction that committed before this position was handed over.
    CaughtUp(Lsn),
}

/// Inputs that were received together.
pub struct Block {
    /// In the order of the stream.
    pub inputs: Vec<Input>,
    /// Their place in the queue, given back by dropping it.
    pub room: Option<Box<dyn Send>>,
}
