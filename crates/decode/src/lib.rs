//! WAL records to row changes, as raw tuples, and to everything else that decides what these mean.
//! No I/O, no copies, no state.
//!
//! [`decode`] is handed one [`wal::Record`] and returns what it says. That may be a change of rows
//! in a relation's files, the end of a transaction, or something about catalogs and files. Or the
//! kind of record has no meaning for decoding. Each kind is in a table with its name (`kinds`):
//! read, or ignored for a reason. A kind that is not there is an error with the LSN, and so is a
//! record that does not have the form of its kind.
//!
//! Values keep their stored form: a [`RawTuple`] is the tuple without its fixed header, checked
//! only up to its null bitmap. The differences between majors are a table too (`layout`).
//!
//! Circle: heap, kinds, lib, server, xact: [`What`] lists the results of the readers of kinds, and
//! each of them returns a [`What`].
//!
//! Does not belong here: which relation has the files and what its columns are (`catalog`), which
//! transaction a change belongs to in the end, what a value means, and whether it is wanted
//! (`wal::LocatorFilterCache`).

mod error;
mod heap;
mod input;
mod items;
mod kinds;
mod layout;
mod server;
mod tuple;
mod xact;

pub use error::Error;
pub use heap::{
    Confirm, Delete, InPlace, Insert, MultiInsert, NewCid, NewTuple, OldTuple, Place, Rows, Spliced,
    Truncate, Update,
};
pub use items::{Invalidation, Item, Items, MapEntry};
pub use server::{
    Checkpoint, DatabaseCreated, DatabaseDropped, FileCreated, FileTruncated, LogicalMessage, RelationMap,
    RunningXacts,
};
pub use tuple::{PageItem, RawTuple, page_item, page_tuple};
pub use xact::{OriginProgress, Prepared, TransactionEnd};

use base::{Oid, Xid};
use wal::Record;

use crate::input::Input;

/// What a record says.
#[derive(Debug, Clone, Copy)]
pub struct Decoded<'a> {
    /// The name of its kind in `pg_waldump`.
    pub name: &'static str,
    /// The (sub)transaction that wrote it; invalid if it needed none.
    pub xid: Xid,
    /// The top-level transaction of `xid`, if this is the first record of a subtransaction.
    pub top_level_xid: Option<Xid>,
    /// The replication origin that the record's session was replaying.
    pub origin: Option<u16>,
    /// The rest of what it says.
    pub what: What<'a>,
}

/// What a record says, by kind.
#[derive(Debug, Clone, Copy)]
pub enum What<'a> {
    /// A new row.
    Insert(Insert<'a>),
    /// New rows on one page.
    MultiInsert(MultiInsert<'a>),
    /// A changed row.
    Update(Update<'a>),
    /// A deleted row, or a speculative insertion taken back.
    Delete(Delete<'a>),
    /// TRUNCATE, in the order of the transaction's changes.
    Truncate(Truncate<'a>),
    /// A speculative insertion was confirmed.
    Confirm(Confirm),
    /// A catalog row was overwritten. It holds at once for all transactions, even if its own
    /// aborts.
    InPlace(InPlace<'a>),
    /// The command ids of a catalog row that the next record changes.
    NewCid(NewCid),
    /// A transaction committed.
    Commit(TransactionEnd<'a>),
    /// A transaction, or a subtransaction, aborted.
    Abort(TransactionEnd<'a>),
    /// A transaction was prepared.
    Prepare(Prepared<'a>),
    /// Some transactions are subtransactions of a top-level transaction.
    Assignment {
        /// The top-level transaction.
        top: Xid,
        /// Some of its subtransactions.
        subxacts: Items<'a, Xid>,
    },
    /// What a command of the transaction changed in the catalogs.
    Invalidations(Items<'a, Invalidation>),
    /// What a transaction without an id changed in the catalogs.
    CommittedInvalidations {
        /// The database it was in.
        database: Oid,
        /// What it changed.
        invalidations: Items<'a, Invalidation>,
    },
    /// The running transactions. All older ones that are not listed have ended.
    RunningXacts(RunningXacts<'a>),
    /// `pg_logical_emit_message`.
    Message(LogicalMessage<'a>),
    /// Mapped catalogs have these files from here on.
    RelationMap(RelationMap<'a>),
    /// Files were made for a relation.
    FileCreated(FileCreated),
    /// Files got shorter.
    FileTruncated(FileTruncated),
    /// A database was made.
    DatabaseCreated(DatabaseCreated),
    /// A database was dropped.
    DatabaseDropped(DatabaseDropped<'a>),
    /// A checkpoint.
    Checkpoint(Checkpoint),
    /// The server was started with another `wal_level`, among other settings.
    WalLevel(WalLevel),
    /// `full_page_writes` was switched.
    FullPageWrites(bool),
    /// Recovery ended, and `timeline` begins.
    EndOfRecovery {
        /// The timeline from here on.
        timeline: u32,
        /// The previous timeline.
        previous: u32,
    },
    /// Whole pages, which are in the record's blocks.
    PageImages,
    /// Nothing that decoding needs, for this reason. The record's page images still count.
    Ignored(&'static str),
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "they are PostgreSQL's names")]
pub enum WalLevel {
    Minimal,
    Replica,
    Logical,
}

/// Decodes `record`.
///
/// # Errors
/// A record of an unknown kind, or one that does not have the form of its kind.
pub fn decode<'a>(record: &Record<'a>) -> Result<Decoded<'a>, Error> {
    let parts = record.parts().map_err(Error::wal)?;
    let kind = kinds::find(record).ok_or_else(|| Error::unknown(record))?;
    let input = Input { record: *record, parts: &parts, facts: layout::facts(record.layout()) };
    let what = match kind.meaning {
        kinds::Meaning::Handled(read) => {
            read(&input).map_err(|what| Error::broken(record, kind.name, what))?
        }
        kinds::Meaning::Ignored(reason) => What::Ignored(reason),
    };
    Ok(Decoded {
        name: kind.name,
        xid: record.xid(),
        top_level_xid: parts.top_level_xid(),
        origin: parts.origin(),
        what,
    })
}
