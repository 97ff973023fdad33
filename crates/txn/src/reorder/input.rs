//! The input of the reorder buffer.

use base::{Lsn, Oid, PgTimestamp, RelFileLocator, Xid};
use decode::{OldTuple, RawTuple};

use super::event::Origin;

/// How much is kept in memory, and what comes out when.
#[derive(Debug, Clone)]
pub struct Options {
    /// `logical_decoding_work_mem`: if the changes of all open transactions take more memory than
    /// this, the largest transaction is spilled or streamed.
    pub work_mem_bytes: usize,
    /// Large transactions come out in blocks while they are open.
    pub streaming: bool,
    /// Transactions that were prepared at this position or later come out when they are prepared.
    /// Others come out when they commit; without a position, all do.
    pub two_phase_at: Option<Lsn>,
    /// Transactions that ended before this position do not come out, because they were confirmed.
    pub start: Lsn,
    /// The database whose messages and prepared transactions count.
    pub database: Oid,
    /// Leave out changes and transactions that have an origin (`origin = none`).
    pub local_only: bool,
    /// Logical messages come out.
    pub messages: bool,
}

impl Options {
    /// The options for whole transactions from `start` on, with 64 MB of them in memory.
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

/// The record that a change comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// Where the record starts.
    pub lsn: Lsn,
    /// The (sub)transaction that wrote it.
    pub xid: Xid,
    /// The origin that the session was replaying.
    pub origin: Option<u16>,
}

/// The meaning of files, or of a relation, at a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target<R> {
    /// A wanted relation, as it is at the record.
    Relation(R),
    /// The TOAST relation of a wanted relation.
    Toast,
    /// A relation whose changes are not wanted.
    Unwanted,
    /// Not known. The change is kept, and the question is asked again when the transaction ends.
    Unknown,
}

/// Identifies files and relations at the record that is being handed over. It uses the catalogs as
/// committed before the record, with the transaction's own changes.
pub trait Resolve<R> {
    /// Returns what these files hold, for the top-level transaction `xid`.
    fn files(&mut self, xid: Xid, locator: RelFileLocator) -> Target<R>;

    /// Returns what this relation is, for the top-level transaction `xid`.
    fn relation(&mut self, xid: Xid, relation: Oid) -> Target<R>;
}

/// A change to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawChange<'a> {
    /// A new row.
    Insert {
        /// The row.
        new: RawTuple<'a>,
        /// No later row uses the chunks that came before. False within a multi-insert.
        last_of_chunks: bool,
        /// The row counts only when it is confirmed.
        speculative: bool,
    },
    /// A changed row.
    Update {
        /// The old row, as far as it is logged.
        old: Option<OldTuple<'a>>,
        /// The new row.
        new: RawTuple<'a>,
    },
    /// A deleted row, as far as it is logged.
    Delete(Option<OldTuple<'a>>),
}

/// A record that ends or prepares a transaction.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// The transaction; for an abort possibly a subtransaction.
    pub xid: Xid,
    /// Where the record starts.
    pub lsn: Lsn,
    /// Where the record ends.
    pub end_lsn: Lsn,
    /// The time of the record, at the origin if there is one.
    pub time: PgTimestamp,
    /// The origin of the transaction.
    pub origin: Option<Origin>,
    /// The subtransactions that the record ends, too.
    pub subxacts: &'a [Xid],
    /// The name of a prepared transaction.
    pub gid: Option<&'a [u8]>,
}
