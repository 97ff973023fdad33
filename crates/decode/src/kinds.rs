//! Every kind of record by name: read here, or ignored for a reason.
//!
//! A kind that is in no table is an error: the version is unknown, or the record is broken in a way
//! that its checksum does not show. Names are those of `pg_waldump`.
//!
//! "Ignored" refers to what a record says about rows. Its page images still show pages, and code
//! that keeps pages or rows of catalogs takes them from there.

use wal::{Record, Rmgr};

use crate::input::{Input, Read};
use crate::{What, heap, server, xact};

type Reader = for<'a> fn(&Input<'_, 'a>) -> Read<What<'a>>;

#[derive(Clone, Copy)]
pub(crate) enum Meaning {
    Handled(Reader),
    Ignored(&'static str),
}

pub(crate) struct Kind {
    /// `xl_info` under the mask of its resource manager.
    op: u8,
    pub(crate) name: &'static str,
    /// The first and the last major that have it.
    since: u32,
    until: u32,
    pub(crate) meaning: Meaning,
}

const ALWAYS: (u32, u32) = (0, u32::MAX);

const fn kind(op: u8, name: &'static str, (since, until): (u32, u32), meaning: Meaning) -> Kind {
    Kind { op, name, since, until, meaning }
}

const fn handled(op: u8, name: &'static str, read: Reader) -> Kind {
    kind(op, name, ALWAYS, Meaning::Handled(read))
}

const fn ignored(op: u8, name: &'static str, reason: &'static str) -> Kind {
    kind(op, name, ALWAYS, Meaning::Ignored(reason))
}

/// Reasons that several kinds share.
mod because {
    pub(super) const CLEANUP: &str = "removes or freezes what no snapshot sees any more: no row changes";
    pub(super) const LOCK: &str = "locks a row: nothing of it changes";
    pub(super) const STATUS: &str = "transaction status, which commit and abort records say earlier";
    pub(super) const PROGRESS: &str =
        "how far an origin was replayed, which the commits say that were replayed";
    pub(super) const TABLESPACE: &str = "a directory: locators name tablespaces by their id";
    pub(super) const NOTHING: &str = "bookkeeping of recovery";
    pub(super) const INDEX: &str = "an index holds nothing that its table does not";
    pub(super) const EXTENSION: &str =
        "an extension's: rows of ordinary tables are not logged so, and what is cannot be published";
}

static XLOG: [Kind; 14] = [
    handled(0x00, "CHECKPOINT_SHUTDOWN", server::checkpoint_shutdown),
    handled(0x10, "CHECKPOINT_ONLINE", server::checkpoint_online),
    ignored(0x20, "NOOP", because::NOTHING),
    ignored(0x30, "NEXTOID", because::NOTHING),
    ignored(0x40, "SWITCH", "the rest of the segment is empty; the reader acts on it"),
    ignored(0x50, "BACKUP_END", because::NOTHING),
    handled(0x60, "PARAMETER_CHANGE", server::parameter_change),
    ignored(0x70, "RESTORE_POINT", "a name for a position"),
    handled(0x80, "FPW_CHANGE", server::full_page_writes),
    handled(0x90, "END_OF_RECOVERY", server::end_of_recovery),
    handled(0xA0, "FPI_FOR_HINT", server::page_images),
    handled(0xB0, "FPI", server::page_images),
    ignored(0xD0, "OVERWRITE_CONTRECORD", "names a record that a crash cut off; the reader acts on it"),
    kind(0xE0, "CHECKPOINT_REDO", (17, u32::MAX), Meaning::Handled(server::checkpoint_redo)),
];

static TRANSACTION: [Kind; 7] = [
    handled(0x00, "COMMIT", xact::commit),
    handled(0x10, "PREPARE", xact::prepare),
    handled(0x20, "ABORT", xact::abort),
    handled(0x30, "COMMIT_PREPARED", xact::commit),
    handled(0x40, "ABORT_PREPARED", xact::abort),
    handled(0x50, "ASSIGNMENT", xact::assignment),
    handled(0x60, "INVALIDATION", xact::invalidations),
];

static STORAGE: [Kind; 2] =
    [handled(0x10, "CREATE", server::file_created), handled(0x20, "TRUNCATE", server::file_truncated)];

static CLOG: [Kind; 2] =
    [ignored(0x00, "ZEROPAGE", because::STATUS), ignored(0x10, "TRUNCATE", because::STATUS)];

static DATABASE: [Kind; 5] = [
    kind(0x00, "CREATE", (0, 14), Meaning::Handled(server::database_copied)),
    kind(0x10, "DROP", (0, 14), Meaning::Handled(server::database_dropped)),
    kind(0x00, "CREATE_FILE_COPY", (15, u32::MAX), Meaning::Handled(server::database_copied)),
    kind(0x10, "CREATE_WAL_LOG", (15, u32::MAX), Meaning::Handled(server::database_logged)),
    kind(0x20, "DROP", (15, u32::MAX), Meaning::Handled(server::database_dropped)),
];

static TABLESPACE: [Kind; 2] =
    [ignored(0x00, "CREATE", because::TABLESPACE), ignored(0x10, "DROP", because::TABLESPACE)];

static MULTI_XACT: [Kind; 4] = [
    ignored(0x00, "ZERO_OFF_PAGE", because::LOCK),
    ignored(0x10, "ZERO_MEM_PAGE", because::LOCK),
    // A multixact may contain an updater. Its own records say what it did.
    ignored(0x20, "CREATE_ID", because::LOCK),
    ignored(0x30, "TRUNCATE_ID", because::LOCK),
];

static REL_MAP: [Kind; 1] = [handled(0x00, "UPDATE", server::relation_map)];

static STANDBY: [Kind; 3] = [
    ignored(0x00, "LOCK", "a table is locked, so that a standby locks it too"),
    handled(0x10, "RUNNING_XACTS", server::running_xacts),
    handled(0x20, "INVALIDATIONS", server::committed_invalidations),
];

static HEAP2: [Kind; 11] = [
    ignored(
        0x00,
        "REWRITE",
        "where rows went in a rewrite, for snapshots that are read by their place: ours are not",
    ),
    kind(0x10, "PRUNE", (0, 16), Meaning::Ignored(because::CLEANUP)),
    kind(0x20, "VACUUM", (0, 16), Meaning::Ignored(because::CLEANUP)),
    kind(0x30, "FREEZE_PAGE", (0, 16), Meaning::Ignored(because::CLEANUP)),
    kind(0x10, "PRUNE_ON_ACCESS", (17, u32::MAX), Meaning::Ignored(because::CLEANUP)),
    kind(0x20, "PRUNE_VACUUM_SCAN", (17, u32::MAX), Meaning::Ignored(because::CLEANUP)),
    kind(0x30, "PRUNE_VACUUM_CLEANUP", (17, u32::MAX), Meaning::Ignored(because::CLEANUP)),
    ignored(0x40, "VISIBLE", because::CLEANUP),
    handled(0x50, "MULTI_INSERT", heap::multi_insert),
    ignored(0x60, "LOCK_UPDATED", because::LOCK),
    handled(0x70, "NEW_CID", heap::new_cid),
];

static HEAP: [Kind; 8] = [
    handled(0x00, "INSERT", heap::insert),
    handled(0x10, "DELETE", heap::delete),
    handled(0x20, "UPDATE", heap::update),
    handled(0x30, "TRUNCATE", heap::truncate),
    handled(0x40, "HOT_UPDATE", heap::hot_update),
    handled(0x50, "HEAP_CONFIRM", heap::confirm),
    ignored(0x60, "LOCK", because::LOCK),
    handled(0x70, "INPLACE", heap::in_place),
];

static SEQUENCE: [Kind; 1] =
    [ignored(0x00, "LOG", "up to 32 values ahead of what was handed out: sequences are read by SQL")];

static COMMIT_TS: [Kind; 2] =
    [ignored(0x00, "ZEROPAGE", because::STATUS), ignored(0x10, "TRUNCATE", because::STATUS)];

static ORIGIN: [Kind; 2] =
    [ignored(0x00, "SET", because::PROGRESS), ignored(0x10, "DROP", because::PROGRESS)];

static MESSAGE: [Kind; 1] = [handled(0x00, "MESSAGE", server::message)];

/// Ignored for all operations.
static INDEX: Kind = ignored(0, "index", because::INDEX);
static EXTENSION: Kind = ignored(0, "extension", because::EXTENSION);

/// The bits of `xl_info` that belong to the resource manager. For some, one of these bits is a
/// flag.
const OP: u8 = 0xf0;
const OP_BESIDE_FLAG: u8 = 0x70;

/// The kinds of a resource manager, and the bits of `xl_info` that distinguish them.
fn of(rmgr: Rmgr) -> (&'static [Kind], u8) {
    match rmgr {
        Rmgr::Heap => (&HEAP, OP_BESIDE_FLAG),
        Rmgr::Heap2 => (&HEAP2, OP_BESIDE_FLAG),
        Rmgr::Transaction => (&TRANSACTION, OP_BESIDE_FLAG),
        Rmgr::Xlog => (&XLOG, OP),
        Rmgr::Storage => (&STORAGE, OP),
        Rmgr::Clog => (&CLOG, OP),
        Rmgr::Database => (&DATABASE, OP),
        Rmgr::Tablespace => (&TABLESPACE, OP),
        Rmgr::MultiXact => (&MULTI_XACT, OP),
        Rmgr::RelMap => (&REL_MAP, OP),
        Rmgr::Standby => (&STANDBY, OP),
        Rmgr::Sequence => (&SEQUENCE, OP),
        Rmgr::CommitTs => (&COMMIT_TS, OP),
        Rmgr::ReplicationOrigin => (&ORIGIN, OP),
        Rmgr::LogicalMessage => (&MESSAGE, OP),
        Rmgr::Btree | Rmgr::Hash | Rmgr::Gin | Rmgr::Gist | Rmgr::SpGist | Rmgr::Brin => {
            (std::slice::from_ref(&INDEX), 0)
        }
        Rmgr::Generic | Rmgr::Custom(_) => (std::slice::from_ref(&EXTENSION), 0),
    }
}

/// The kind of `record`; `None` if it is unknown.
pub(crate) fn find(record: &Record<'_>) -> Option<&'static Kind> {
    let (kinds, mask) = of(record.rmgr());
    let (op, major) = (record.info() & mask, record.layout().major());
    kinds.iter().find(|kind| kind.op == op && (kind.since..=kind.until).contains(&major))
}
