//! What goes in.

use base::{Lsn, Oid, PgTimestamp, RelFileLocator, Xid};
use decode::{OldTuple, RawTuple};

use super::event::Origin;

/// How much is kept, and what of it comes out when.
#[derive(Debug, Clone)]
pub struct Options {
    /// `logical_decoding_work_mem`: when the changes of all open transactions take more memory than this, the largest
    /// goes to the spool, or is streamed.
    pub work_mem_bytes: usize,
    /// Transactions that are too large come out in blocks while they are open.
    pub streaming: bool,
    /// Prepared transactions come out when they are prepared, if that was at this position or later. Those that were
    /// prepared before, and all if there is no position, come out when they commit.
    pub two_phase_at: Option<Lsn>,
    /// Nothing comes out that ended before this position: it was confirmed.
    pub start: Lsn,
    /// The database whose messages and prepared transactions count.
    pub database: Oid,
    /// Changes and transactions that have an origin do not count (`origin = none`).
    pub local_only: bool,
    /// Logical messages come out.
    pub messages: bool,
}

impl Options {
    /// Whole transactions from `start` on, 64 MB of them in memory.
    #[must_use]
    pub fn new(database: Oid, start: Lsn) -> Options {
        Options {
            work_mem_bytes: 64 << 20,
            streaming: false,
            two_phase_at: None,
            start,
            database,
            local_only: false,
            messages: true,
        }
    }
}

/// Which record something is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// Where it starts.
    pub lsn: Lsn,
    /// The (sub)transaction that wrote it.
    pub xid: Xid,
    /// The origin that its session was replaying.
    pub origin: Option<u16>,
}

/// What files, or a relation, are at a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target<R> {
    /// A relation that somebody wants, as it is there.
    Relation(R),
    /// The TOAST relation of one that somebody wants.
    Toast,
    /// Nothing that anybody wants.
    Unwanted,
    /// Nobody can say. It is kept, and asked again when the transaction ends.
    Unknown,
}

/// Says what files and relations are, at the record that is being handed over: the catalogs as they were committed
/// before it, with the transaction's own changes.
pub trait Resolve<R> {
    /// What these files hold, for the top-level transaction `xid`.
    fn files(&mut self, xid: Xid, locator: RelFileLocator) -> Target<R>;

    /// What this relation is, for the top-level transaction `xid`.
    fn relation(&mut self, xid: Xid, relation: Oid) -> Target<R>;
}

/// A change to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// It is new.
    Insert {
        /// What it is.
        new: RawTuple<'a>,
        /// No other row follows to which the chunks belong that came before: false inside of a multi-insert.
        last_of_chunks: bool,
        /// It counts when it is confirmed.
        speculative: bool,
    },
    /// It changed.
    Update {
        /// What it was, as far as that is logged.
        old: Option<OldTuple<'a>>,
        /// What it is.
        new: RawTuple<'a>,
    },
    /// It is gone; what it was, as far as that is logged.
    Delete(Option<OldTuple<'a>>),
}

/// A record that ends a transaction or prepares it.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// The transaction; of an abort maybe a subtransaction.
    pub xid: Xid,
    /// Where the record starts.
    pub lsn: Lsn,
    /// Where it ends.
    pub end_lsn: Lsn,
    /// When it was, at the origin if there is one.
    pub time: PgTimestamp,
    /// Where the transaction comes from.
    pub origin: Option<Origin>,
    /// The subtransactions that it is said of too.
    pub subxacts: &'a [Xid],
    /// By which name it was prepared, if it was.
    pub gid: Option<&'a [u8]>,
}
