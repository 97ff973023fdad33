//! Turns changes into whole transactions in commit order.
//!
//! pgoutput sends small transactions whole and in commit order. It may send large transactions
//! while they are open, in blocks that alternate with other transactions. [`Assembler`] keeps those
//! blocks in a [`Spool`] on disk. If the source commits the transaction, it comes out whole, in its
//! place. If the source aborts it, it never comes out. The output is always whole transactions in
//! commit order.
//!
//! WAL has the changes of all transactions interleaved. The [`reorder`] module puts the
//! transactions together, with the same spool; README.md describes it.

use base::Lsn;
use bytes::Bytes;

mod assembler;
pub mod reorder;
mod spool;

pub use assembler::error_reference::error_reference;
pub use assembler::{
    Assembler, AssemblyError, Begin, Change, Event, Notice, Op, Streamed, TruncateChange, stored_origin,
};
pub use spool::{DirSpool, Spool};

/// The input from a source, in the order of the stream.
#[derive(Debug, Clone)]
pub enum Input {
    /// One message of pgoutput; or, from a physical slot or an archive, WAL that goes on where the
    /// input before ended.
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
