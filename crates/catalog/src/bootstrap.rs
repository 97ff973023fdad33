//! The one look at the catalogs, by SQL.
//!
//! ```text
//! R: redo position of a checkpoint ---- following starts here, for the bytes of pages
//! F0: files of the catalogs
//! nx: a transaction id of our own, so the newest
//!     wait until all before nx have ended
//! S: a snapshot; under it the rows of the catalogs with their places (ctid), then F1: their files
//!     F0 and F1 must be equal, else again from F0
//! ```
//!
//! This needs a role that may log in, has REPLICATION (for the WAL) and may read catalogs like
//! every role. It needs no file access, no extension and no superuser. README.md says why the look
//! is right, and why other ways were rejected.
//!
//! Hazards, each with its remedy:
//! 1. A transaction that S does not see may have written before R, where following does not read.
//!    So the look waits: every transaction that ran when nx was taken, after R, has ended when S is
//!    taken. Either S sees it, or it has aborted.
//! 2. A catalog may be rewritten in between, and rows would be named by places of another file. So
//!    F0 is read before nx, and F1 under the locks that reading took. A transaction that S does not
//!    see began after F0. It writes the file that S read, or its records show its rewrite.
//! 3. Each database has a snapshot of its own, because no snapshot can be taken to another
//!    database. Shared catalogs have the snapshot of the first.

use std::time::Duration;

use base::{Lsn, Oid, RelFileLocator, Xid};
use client::Session;
use rustc_hash::FxHashMap;
use tokio::time::Instant;
use tokio_postgres::SimpleQueryMessage;

use crate::error::{Error, Kind as ErrorKind, Result};
use crate::pages::{Pages, Tid};
use crate::rows::{Attribute, Kind, Place, Shape};
use crate::table::CatalogTable;
use crate::transactions::Transactions;
use crate::{Catalog, File, GLOBAL_TABLESPACE, SHARED, Server, Space};

/// How to look at the catalogs.
#[derive(Debug, Clone)]
pub struct Look {
    /// Where following is to begin: the redo position of a checkpoint, which is what the
    /// `restart_lsn` of a new physical slot is. `None` takes that of the latest checkpoint; the
    /// caller must then have the WAL from there on.
    pub redo: Option<Lsn>,
    /// How long to wait for running transactions.
    pub wait_max: Duration,
}

/// What happens with the transaction of the look.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    End,
    Stay,
}

/// A rewrite of a catalog takes seconds, and is rare.
const ATTEMPTS_MAX: usize = 10;
/// The pause between two checks of running transactions: at first, and at most.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
const SUPPORTED: std::ops::RangeInclusive<u32> = 14..=18;
const BLOCK_SIZE: &str = "8192";

/// Text and time in the form that `types` renders, names without a schema only in `pg_catalog`, and
/// none of the role's timeouts.
const SETTINGS: &str = "SET LOCAL search_path = ''; SET LOCAL datestyle = 'ISO'; SET LOCAL intervalstyle = 'postgres'; \
    SET LOCAL extra_float_digits = 3; SET LOCAL bytea_output = 'hex'; SET LOCAL timezone = 'UTC'; \
    SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0; \
    SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off";

type Texts = Vec<Option<String>>;

/// The files of the followed catalogs, in one database or shared.
type FilesOf = FxHashMap<Kind, RelFileLocator>;

/// What was read from one database under its snapshot.
struct Read {
    space: Space,
    tables: Vec<(Kind, CatalogTable)>,
    files: FilesOf,
}

impl Catalog {
    /// Looks at the catalogs of the databases that `sessions` are connected to, one each, all of
    /// the same server.
    ///
    /// # Errors
    /// A server or database does not fit ([`Error::is_unfit`]). Running transactions do not end in
    /// time, or catalogs keep being rewritten ([`Error::is_passing`]). Or a session is lost.
    pub async fn look(sessions: &[Session], look: &Look) -> Result<Catalog> {
        Catalog::look_then(sessions, look, Then::End).await
    }

    /// Like [`Catalog::look`] at the database of one session. Also returns the name of the look's
    /// snapshot, for `SET TRANSACTION SNAPSHOT` in another session. Rows that are read under the
    /// snapshot, and changes of the transactions that it does not see ([`Catalog::is_before`]), are
    /// everything, and nothing twice.
    ///
    /// The snapshot lives as long as the session's transaction, which stays open without a lock. A
    /// `VACUUM FULL` of a catalog would wait for a lock, and every new connection would wait for
    /// the `VACUUM FULL`.
    ///
    /// # Errors
    /// As [`Catalog::look`].
    pub async fn look_and_export(session: &Session, look: &Look) -> Result<(Catalog, String)> {
        // A snapshot cannot be exported within a subtransaction.
        const EXPORT: &str = "RELEASE SAVEPOINT look; SELECT pg_catalog.pg_export_snapshot()";
        let catalog = Catalog::look_then(std::slice::from_ref(session), look, Then::Stay).await?;
        let [snapshot] = one(session, "exporting the snapshot of the look at the catalogs", EXPORT).await?;
        Ok((catalog, snapshot))
    }

    async fn look_then(sessions: &[Session], look: &Look, then: Then) -> Result<Catalog> {
        let Some(first) = sessions.first() else {
            return Err(Error::new(ErrorKind::Unfit("no database is asked for".to_owned())));
        };
        let (server, checkpoint, looked) = server(first).await?;
        let start = look.redo.unwrap_or(checkpoint);
        let mut databases = Vec::new();
        for session in sessions {
            databases.push(database(session, server.major).await?);
        }
        let deadline = Instant::now() + look.wait_max;
        let mut rewritten = Kind::Class;
        for _ in 0..ATTEMPTS_MAX {
            let mut before = Vec::new();
            for (index, session) in sessions.iter().enumerate() {
                before.push(
                    files(session, server.major, databases[index].0, &databases[index].1, index == 0).await?,
                );
            }
            wait_until(first, deadline).await?;
            let mut reads = Vec::new();
            for (index, session) in sessions.iter().enumerate() {
                let (oid, space) = databases[index].clone();
                reads.push((oid, read(session, server.major, (oid, space), index == 0, then).await?));
            }
            let moved = |((_, read), before): (&(Oid, Read), &FilesOf)| {
                before.iter().find(|(kind, file)| read.files.get(kind) != Some(file)).map(|(kind, _)| *kind)
            };
            match reads.iter().zip(&before).find_map(moved) {
                None => return Catalog::assemble(server, start, looked, reads),
                Some(kind) => rewritten = kind,
            }
            if then == Then::Stay {
                for session in sessions {
                    query(session, "looking at the catalogs again", "ROLLBACK").await?;
                }
            }
        }
        Err(Error::new(ErrorKind::Rewritten(rewritten.name())))
    }

    fn assemble(server: Server, start: Lsn, looked: Lsn, reads: Vec<(Oid, Read)>) -> Result<Catalog> {
        let mut catalog = Catalog {
            server,
            start,
            looked,
            last: Lsn::INVALID,
            spaces: FxHashMap::default(),
            files: FxHashMap::default(),
            shapes: FxHashMap::default(),
            transactions: Transactions::default(),
        };
        for (oid, Read { mut space, tables, files }) in reads {
            for (kind, table) in tables {
                let place = if kind.place() == Place::Shared { SHARED } else { oid };
                let locator = *files.get(&kind).ok_or_else(|| Error::row(kind.name(), "it has no files"))?;
                let file =
                    File { database: place, kind, pages: Pages::default(), table: Some(table), owner: None };
                catalog.files.insert(locator, file);
                if place == SHARED {
                    let shared = catalog.spaces.entry(SHARED).or_insert_with(|| space.shared());
                    shared.current.insert(kind, locator);
                } else {
                    space.current.insert(kind, locator);
                }
            }
            catalog.spaces.insert(oid, space);
        }
        catalog.shape()?;
        Ok(catalog)
    }

    /// Reads from the catalogs how their own rows lie on disk.
    pub(crate) fn shape(&mut self) -> Result<()> {
        let spaces = self.spaces.keys().copied().filter(|database| *database != SHARED);
        let database = spaces.min().ok_or_else(|| Error::row(Kind::Database.name(), "none is followed"))?;
        let table = self.table(database, Kind::Attribute, Xid::INVALID);
        let table = table.ok_or_else(|| Error::row(Kind::Attribute.name(), "it was not read"))?;
        let mut shapes = FxHashMap::default();
        for kind in Kind::of_place(self.server.major, &[Place::Database, Place::Hidden, Place::Shared]) {
            let rows = table.find::<Attribute>(0, kind.oid().0, Xid::INVALID);
            let mut rows: Vec<_> = rows.filter(|row| row.number > 0).collect();
            rows.sort_unstable_by_key(|row| row.number);
            let shape = Shape::new(kind, &rows).filter(|_| !rows.is_empty());
            shapes.insert(kind, shape.ok_or_else(|| Error::row(kind.name(), "its columns are not known"))?);
        }
        self.shapes = shapes;
        Ok(())
    }
}

impl Space {
    /// The shared catalogs, as one of the databases has read them.
    fn shared(&self) -> Space {
        Space {
            name: String::new(),
            tablespace: GLOBAL_TABLESPACE,
            collation_is_c: true,
            snapshot: self.snapshot.clone(),
            map: FxHashMap::default(),
            current: FxHashMap::default(),
        }
    }
}

async fn query(session: &Session, attempt: &'static str, sql: &str) -> Result<Vec<Texts>> {
    let messages = session.simple_query(sql).await;
    let messages =
        messages.map_err(|error| Error::new(ErrorKind::Look { attempt, cause: session.error(error) }))?;
    let texts = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect())
        }
        _ => None,
    };
    Ok(messages.iter().filter_map(texts).collect())
}

/// The only row of a query, without NULLs.
async fn one<const N: usize>(session: &Session, attempt: &'static str, sql: &str) -> Result<[String; N]> {
    let rows = query(session, attempt, sql).await?;
    let row = rows.into_iter().next().and_then(|row| row.into_iter().collect::<Option<Vec<_>>>());
    row.and_then(|row| row.try_into().ok())
        .ok_or_else(|| Error::row("the server", format!("{attempt}: no answer")))
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T> {
    text.parse()
        .map_err(|_| Error::row("the server", format!("\"{text}\" is none of its numbers or positions")))
}

async fn server(session: &Session) -> Result<(Server, Lsn, Lsn)> {
    const SQL: &str = "SELECT s.system_identifier::text, c.timeline_id::text, c.redo_lsn::text, (CASE WHEN pg_catalog.pg_is_in_recovery() THEN c.redo_lsn ELSE pg_catalog.pg_current_wal_insert_lsn() END)::text, \
            (c.full_page_writes AND current_setting('full_page_writes')::bool)::text, current_setting('wal_level'), \
            current_setting('block_size'), current_setting('wal_block_size'), pg_catalog.pg_is_in_recovery()::text \
       FROM pg_catalog.pg_control_system() s, pg_catalog.pg_control_checkpoint() c";
    let [system_id, timeline, redo, looked, images, level, block, wal_block, standby] =
        one(session, "asking for the latest checkpoint", SQL).await?;
    let major = session.version().major();
    let unfit = |what: String| Err(Error::new(ErrorKind::Unfit(what)));
    if !SUPPORTED.contains(&major) {
        return unfit(format!("PostgreSQL {major} is not supported, only 14 to 18"));
    }
    if level != "logical" {
        return unfit(format!("wal_level is {level}: set it to logical, for rows that are logged whole"));
    }
    if images != "true" {
        return unfit(
            "full_page_writes is off, or was at the latest checkpoint: switch it on, and CHECKPOINT"
                .to_owned(),
        );
    }
    if block != BLOCK_SIZE || wal_block != BLOCK_SIZE {
        return unfit(format!(
            "blocks of {block} and {wal_block} bytes are not supported, only {BLOCK_SIZE}"
        ));
    }
    if standby == "true" {
        return unfit(
            "a standby's snapshots do not tell which transactions are running: connect to its primary"
                .to_owned(),
        );
    }
    let server = Server { system_id: number(&system_id)?, major, timeline: number(&timeline)? };
    Ok((server, number(&redo)?, number(&looked)?))
}

async fn database(session: &Session, major: u32) -> Result<(Oid, Space)> {
    // From 15 on, text may be ordered by other providers than the C library. The built-in provider
    // orders by bytes.
    let is_c = match major {
        14 => "datcollate IN ('C', 'POSIX')",
        15 | 16 => "datlocprovider = 'c' AND datcollate IN ('C', 'POSIX')",
        _ => "datlocprovider = 'b' OR datlocprovider = 'c' AND datcollate IN ('C', 'POSIX')",
    };
    let sql = format!(
        "SELECT oid::text, datname, dattablespace::text, pg_catalog.pg_encoding_to_char(encoding), ({is_c})::text \
           FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()"
    );
    let [oid, name, tablespace, encoding, is_c] = one(session, "asking for the database", &sql).await?;
    if encoding != "UTF8" {
        return Err(Error::new(ErrorKind::Unfit(format!(
            "database \"{name}\" is encoded in {encoding}: only UTF8 can be decoded outside of the server"
        ))));
    }
    let space = Space {
        name,
        tablespace: Oid(number(&tablespace)?),
        collation_is_c: is_c == "true",
        snapshot: None,
        map: FxHashMap::default(),
        current: FxHashMap::default(),
    };
    Ok((Oid(number(&oid)?), space))
}

/// The catalogs that are read in a database. The first database also has the shared ones.
fn kinds(major: u32, shared: bool) -> impl Iterator<Item = Kind> {
    const OWN: &[Place] = &[Place::Database, Place::Hidden];
    const ALL: &[Place] = &[Place::Database, Place::Hidden, Place::Shared];
    Kind::of_place(major, if shared { ALL } else { OWN })
}

async fn files(session: &Session, major: u32, database: Oid, space: &Space, shared: bool) -> Result<FilesOf> {
    let oids: Vec<String> = kinds(major, shared).map(|kind| kind.oid().to_string()).collect();
    let sql = format!(
        "SELECT oid::text, pg_catalog.pg_relation_filenode(oid)::text, reltablespace::text \
           FROM pg_catalog.pg_class WHERE oid IN ({})",
        oids.join(", ")
    );
    let mut files = FilesOf::default();
    for row in query(session, "asking for the files of catalogs", &sql).await? {
        let [Some(oid), Some(file), Some(tablespace)] = row.as_slice() else { continue };
        let Some(kind) = Kind::of_oid(Oid(number(oid)?)) else { continue };
        let database = if kind.place() == Place::Shared { SHARED } else { database };
        let tablespace = match number(tablespace)? {
            0 => space.tablespace,
            other => Oid(other),
        };
        files.insert(kind, RelFileLocator { tablespace, database, relfilenumber: number(file)? });
    }
    Ok(files)
}

/// Waits until every transaction that is running now has ended. A snapshot taken afterwards sees
/// each committed transaction whose end was in WAL before the call.
///
/// # Errors
/// The transactions do not end within `wait_max` ([`Error::is_passing`]), or the session is lost.
pub async fn wait_for_running(session: &Session, wait_max: Duration) -> Result<()> {
    wait_until(session, Instant::now() + wait_max).await
}

async fn wait_until(session: &Session, deadline: Instant) -> Result<()> {
    const ATTEMPT: &str = "waiting for transactions that are running";
    // An id of our own is newer than those of all running transactions. A snapshot's xmax would not
    // do: it follows the newest id that has ended, and running transactions may be newer than that.
    const NEXT: &str = "SELECT pg_catalog.pg_current_xact_id()::text";
    const OLDEST: &str = "SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text";
    let [next] = one(session, ATTEMPT, NEXT).await?;
    let wanted: u64 = number(&next)?;
    let mut pause = PAUSE;
    loop {
        let [xmin] = one(session, ATTEMPT, OLDEST).await?;
        if number::<u64>(&xmin)? >= wanted {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Error::new(ErrorKind::StillRunning { xmin, wanted: next }));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Reads the catalogs of a database under one snapshot.
async fn read(
    session: &Session,
    major: u32,
    (oid, space): (Oid, Space),
    shared: bool,
    then: Then,
) -> Result<Read> {
    const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
    query(session, "beginning to look at the catalogs", BEGIN).await?;
    let read = read_inside(session, major, oid, space, shared).await;
    if then == Then::Stay && read.is_ok() {
        return read;
    }
    // Even after an error, the caller gets a session without a transaction.
    let end = query(session, "ending the look at the catalogs", "ROLLBACK").await;
    let read = read?;
    end.map(|_| read)
}

async fn read_inside(
    session: &Session,
    major: u32,
    oid: Oid,
    mut space: Space,
    shared: bool,
) -> Result<Read> {
    query(session, "preparing to look at the catalogs", SETTINGS).await?;
    let [snapshot] =
        one(session, "taking a snapshot", "SELECT pg_catalog.pg_current_snapshot()::text").await?;
    let parsed = snapshot.parse();
    space.snapshot =
        Some(parsed.map_err(|_| Error::row("the server", format!("\"{snapshot}\" is no snapshot")))?);
    query(session, "beginning to read the catalogs", "SAVEPOINT look").await?;
    let mut tables = Vec::new();
    for kind in kinds(major, shared) {
        tables.push((kind, table(session, major, kind).await?));
    }
    let files = files(session, major, oid, &space, shared).await?;
    const MAPPED: &str = "SELECT oid::text, pg_catalog.pg_relation_filenode(oid)::text FROM pg_catalog.pg_class \
        WHERE relfilenode = 0 AND NOT relisshared AND relkind IN ('r', 'i', 't')";
    for row in query(session, "reading the relation map", MAPPED).await? {
        if let [Some(oid), Some(file)] = row.as_slice() {
            space.map.insert(Oid(number(oid)?), number(file)?);
        }
    }
    // This releases the locks. The snapshot stays.
    query(session, "ending to read the catalogs", "ROLLBACK TO SAVEPOINT look").await?;
    Ok(Read { space, tables, files })
}

async fn table(session: &Session, major: u32, kind: Kind) -> Result<CatalogTable> {
    let mut table = CatalogTable::new(kind);
    if kind.place() == Place::Hidden {
        return Ok(table);
    }
    let sql = format!("SELECT ctid::text, {} FROM pg_catalog.{}", kind.select(major).join(", "), kind.name());
    for row in query(session, "reading a catalog", &sql).await? {
        let mut texts = row.into_iter();
        let place = texts.next().flatten().and_then(|text| tid(&text));
        let row = kind.row_of_sql(texts);
        let (Some(tid), Some(row)) = (place, row) else {
            return Err(Error::row(kind.name(), "a row of it cannot be read"));
        };
        table.insert(tid, row, None);
    }
    Ok(table)
}

/// Parses `(block,offset)`.
fn tid(text: &str) -> Option<Tid> {
    let (block, offset) = text.strip_prefix('(')?.strip_suffix(')')?.split_once(',')?;
    Some(Tid { block: block.parse().ok()?, offset: offset.parse().ok()? })
}
