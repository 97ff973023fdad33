//! WAL records to row changes, as raw tuples, and to what else decides what they mean. No I/O, no
//! copies, no state.
//!
//! Handed one [`wal::Record`], [`decode`] gives back what it says: a change to rows of a relation's
//! files, the end of a transaction, something about catalogs and files, or that the kind of record
//! has no meaning for decoding. Each kind is in a table with its name (`kinds`): handled, or
//! ignored for a reason. A kind that is not there, or a record that is not as its kind has to be,
//! is an error with the LSN.
//!
//! Values stay as they are on disk: a [`RawTuple`] is the tuple without its fixed header, checked
//! only as far as its null bitmap. What differs between majors is a table too (`layout`).
//!
//! Circle: heap, kinds, lib, server, xact: [`What`] lists what the readers of the kinds give, and
//! each of them gives a [`What`].
//!
//! Not here: which relation the files hold and what its columns are (`catalog`), which transaction
//! a change belongs to in the end, what a value means, and whether anybody wants it
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
    Checkpoint, DatabaseCreated, DatabaseDropped, FileCreated, FileTruncated, Message, RelationMap,
    RunningXacts,
};
pub use tuple::{PageItem, RawTuple, page_item, page_tuple};
pub use xact::{Ended, OriginProgress, Prepared};

use base::{Oid, Xid};
use wal::Record;

use crate::input::Input;

/// What a record says.
#[derive(Debug, Clone, Copy)]
pub struct Decoded<'a> {
    /// Its kind, as `pg_waldump` names it.
    pub name: &'static str,
    /// The (sub)transaction that wrote it; invalid when it needed none.
    pub xid: Xid,
    /// The top-level transaction of `xid`, where this is the first record of a subtransaction.
    pub top_level_xid: Option<Xid>,
    /// The replication origin that the session that wrote it was replaying.
    pub origin: Option<u16>,
    /// The rest.
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
    /// A speculative insertion became one.
    Confirm(Confirm),
    /// A catalog row was overwritten: at once for everybody, whatever becomes of the transaction.
    InPlace(InPlace<'a>),
    /// The command ids of a catalog row that the next record changes.
    NewCid(NewCid),
    /// A transaction committed.
    Commit(Ended<'a>),
    /// A transaction, or a subtransaction, aborted.
    Abort(Ended<'a>),
    /// A transaction was prepared.
    Prepare(Prepared<'a>),
    /// These are subtransactions of a top-level transaction.
    Assignment {
        /// The top-level transaction.
        top: Xid,
        /// Its subtransactions, some of them.
        subxacts: Items<'a, Xid>,
    },
    /// What a command of the transaction changed in the catalogs.
    Invalidations(Items<'a, Invalidation>),
    /// A transaction without an id changed this in the catalogs.
    CommittedInvalidations {
        /// The database it was in.
        database: Oid,
        /// What it changed.
        invalidations: Items<'a, Invalidation>,
    },
    /// Transactions that are running; those not named that are older have ended.
    RunningXacts(RunningXacts<'a>),
    /// `pg_logical_emit_message`.
    Message(Message<'a>),
    /// Mapped catalogs have these files from here on.
    RelationMap(RelationMap<'a>),
    /// Files for a relation.
    FileCreated(FileCreated),
    /// Files got shorter.
    FileTruncated(FileTruncated),
    /// A database is made.
    DatabaseCreated(DatabaseCreated),
    /// A database is gone.
    DatabaseDropped(DatabaseDropped<'a>),
    /// A checkpoint.
    Checkpoint(Checkpoint),
    /// The server was started with another `wal_level`, among others.
    WalLevel(WalLevel),
    /// `full_page_writes` was switched.
    FullPageWrites(bool),
    /// Recovery ended, and `timeline` begins.
    EndOfRecovery {
        /// The timeline from here on.
        timeline: u32,
        /// The one before.
        previous: u32,
    },
    /// Whole pages; they are in the record's blocks.
    PageImages,
    /// Nothing that decoding needs, for this reason. Its page images are images all the same.
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

/// What `record` says.
///
/// # Errors
/// An unknown kind of record, or one that is not as its kind has to be.
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
