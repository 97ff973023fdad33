//! Records about the server as a whole: running transactions, files, databases, checkpoints,
//! messages.

use base::{Lsn, Oid, RelFileLocator, Xid};
use wal::Fields;

use crate::input::{CUT_SHORT, Input, LEFT_OVER, Read};
use crate::items::{Items, MapEntry};
use crate::{WalLevel, What};

/// Transactions that were running when the record was made, or a little earlier. The commit record
/// of a listed transaction may be before this record.
#[derive(Debug, Clone, Copy)]
pub struct RunningXacts<'a> {
    /// Whether some subtransactions are missing from the list.
    pub overflowed: bool,
    /// The next id that will be assigned.
    pub next: Xid,
    /// All transactions before this one have ended.
    pub oldest: Xid,
    /// The newest transaction that has ended.
    pub latest_completed: Xid,
    /// Top-level transactions, including prepared ones.
    pub xacts: Items<'a, Xid>,
    /// Subtransactions.
    pub subxacts: Items<'a, Xid>,
}

/// `pg_logical_emit_message`.
#[derive(Debug, Clone, Copy)]
pub struct LogicalMessage<'a> {
    /// The database it was written in.
    pub database: Oid,
    /// Whether it counts only if its transaction commits.
    pub transactional: bool,
    /// The prefix, which says which program it is for, without the final NUL.
    pub prefix: &'a [u8],
    /// Its content.
    pub content: &'a [u8],
}

/// The files of all mapped catalogs: the whole map. It holds at once, even if the transaction
/// aborts.
#[derive(Debug, Clone, Copy)]
pub struct RelationMap<'a> {
    /// The database, 0 for the map of shared catalogs.
    pub database: Oid,
    /// All entries.
    pub entries: Items<'a, MapEntry>,
}

/// Files were made for a relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileCreated {
    /// The files.
    pub locator: RelFileLocator,
    /// The fork's number.
    pub fork: u32,
}

/// Files that were cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileTruncated {
    /// The files.
    pub locator: RelFileLocator,
    /// The number of blocks that are left.
    pub blocks: u32,
}

/// A database that was made: as a copy of another one's files or, from 15 on, by the records of its
/// pages that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatabaseCreated {
    /// The database.
    pub database: Oid,
    /// Its tablespace.
    pub tablespace: Oid,
    /// The database that it is a copy of; `None` if its pages are logged.
    pub copy_of: Option<Oid>,
}

/// A database that was dropped.
#[derive(Debug, Clone, Copy)]
pub struct DatabaseDropped<'a> {
    /// The database.
    pub database: Oid,
    /// The tablespaces with its files.
    pub tablespaces: Items<'a, Oid>,
}

/// A checkpoint, as of the moment it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// Where recovery would begin.
    pub redo: Lsn,
    /// The timeline.
    pub timeline: u32,
    /// The previous timeline, if the checkpoint begins one; otherwise the same.
    pub previous_timeline: u32,
    /// Whether the first change of every page after `redo` has the page's image.
    pub full_page_writes: bool,
    /// The `wal_level`, from 17 on.
    pub wal_level: Option<WalLevel>,
    /// The next transaction id, with its epoch in the high half.
    pub next_xid: u64,
    /// The oldest running transaction; invalid at a shutdown.
    pub oldest_active_xid: Xid,
    /// Whether the server was shutting down, so that no transaction was running.
    pub shutdown: bool,
}

fn end<T>(fields: &Fields<'_>, value: T) -> Read<T> {
    if fields.is_empty() { Ok(value) } else { Err(LEFT_OVER) }
}

pub(crate) fn running_xacts<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let mut numbers = || {
        let (xacts, subxacts, overflowed) = (main.u32()?, main.u32()?, main.u8()?);
        main.take(3)?;
        Some((xacts as usize, subxacts as usize, overflowed != 0, main.xid()?, main.xid()?, main.xid()?))
    };
    let (xacts, subxacts, overflowed, next, oldest, latest_completed) = numbers().ok_or(CUT_SHORT)?;
    let (xacts, subxacts) = (Items::take(&mut main, xacts)?, Items::take(&mut main, subxacts)?);
    let running = RunningXacts { overflowed, next, oldest, latest_completed, xacts, subxacts };
    end(&main, What::RunningXacts(running))
}

pub(crate) fn committed_invalidations<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let database = main.oid().ok_or(CUT_SHORT)?;
    // Tablespace, whether the relation cache's file is removed, padding.
    main.take(8).ok_or(CUT_SHORT)?;
    let invalidations = Items::counted(&mut main)?;
    end(&main, What::CommittedInvalidations { database, invalidations })
}

pub(crate) fn message<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let (database, transactional) = (main.oid().ok_or(CUT_SHORT)?, main.u8().ok_or(CUT_SHORT)?);
    main.take(3).ok_or(CUT_SHORT)?;
    let length =
        |length: Option<u64>| length.and_then(|length| usize::try_from(length).ok()).ok_or(CUT_SHORT);
    let (prefix, content) = (length(main.u64())?, length(main.u64())?);
    let prefix = main.take(prefix).ok_or(CUT_SHORT)?;
    let prefix = prefix.strip_suffix(&[0]).ok_or("its prefix has no end")?;
    let content = main.take(content).ok_or(CUT_SHORT)?;
    end(&main, What::Message(LogicalMessage { database, transactional: transactional != 0, prefix, content }))
}

/// `RELMAPPER_FILEMAGIC`.
const MAP_MAGIC: u32 = 0x0059_2717;

pub(crate) fn relation_map<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let (database, _tablespace) = (main.oid().ok_or(CUT_SHORT)?, main.oid().ok_or(CUT_SHORT)?);
    let length = main.u32().ok_or(CUT_SHORT)? as usize;
    if length != input.facts.map_length || main.rest().len() != length {
        return Err("its map has not the length of one");
    }
    let (magic, count) = (main.u32().ok_or(CUT_SHORT)?, main.u32().ok_or(CUT_SHORT)? as usize);
    if magic != MAP_MAGIC || count > input.facts.map_entries {
        return Err("what it has is no relation map");
    }
    let entries = Items::take(&mut main, count)?;
    Ok(What::RelationMap(RelationMap { database, entries }))
}

pub(crate) fn file_created<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let locator = main.locator().ok_or(CUT_SHORT)?;
    let fork = main.u32().ok_or(CUT_SHORT)?;
    end(&main, What::FileCreated(FileCreated { locator, fork }))
}

pub(crate) fn file_truncated<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let blocks = main.u32().ok_or(CUT_SHORT)?;
    let locator = main.locator().ok_or(CUT_SHORT)?;
    // The forks. For a table, the main fork is always among them.
    main.u32().ok_or(CUT_SHORT)?;
    end(&main, What::FileTruncated(FileTruncated { locator, blocks }))
}

pub(crate) fn database_copied<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let (database, tablespace) = (main.oid().ok_or(CUT_SHORT)?, main.oid().ok_or(CUT_SHORT)?);
    let copy_of = Some(main.oid().ok_or(CUT_SHORT)?);
    main.oid().ok_or(CUT_SHORT)?;
    end(&main, What::DatabaseCreated(DatabaseCreated { database, tablespace, copy_of }))
}

pub(crate) fn database_logged<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let (database, tablespace) = (main.oid().ok_or(CUT_SHORT)?, main.oid().ok_or(CUT_SHORT)?);
    end(&main, What::DatabaseCreated(DatabaseCreated { database, tablespace, copy_of: None }))
}

pub(crate) fn database_dropped<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let database = main.oid().ok_or(CUT_SHORT)?;
    let tablespaces = Items::counted(&mut main)?;
    end(&main, What::DatabaseDropped(DatabaseDropped { database, tablespaces }))
}

fn wal_level(number: u32) -> Read<WalLevel> {
    match number {
        0 => Ok(WalLevel::Minimal),
        1 => Ok(WalLevel::Replica),
        2 => Ok(WalLevel::Logical),
        _ => Err("it names an unknown wal_level"),
    }
}

pub(crate) fn checkpoint_online<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    checkpoint(input, false)
}

pub(crate) fn checkpoint_shutdown<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    checkpoint(input, true)
}

fn checkpoint<'a>(input: &Input<'_, 'a>, shutdown: bool) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let mut read = || {
        let (redo, timeline, previous_timeline) = (main.lsn()?, main.u32()?, main.u32()?);
        let full_page_writes = main.u8()? != 0;
        main.take(3)?;
        let level = main.u32()?;
        let next_xid = main.u64()?;
        // Ids of objects and multixacts, the oldest of each, and times are not needed.
        main.take(48)?;
        let oldest_active_xid = main.xid()?;
        // Padding.
        main.take(4)?;
        Some((redo, timeline, previous_timeline, full_page_writes, level, next_xid, oldest_active_xid))
    };
    let (redo, timeline, previous_timeline, full_page_writes, level, next_xid, oldest_active_xid) =
        read().ok_or(CUT_SHORT)?;
    let wal_level = if input.facts.checkpoint_has_wal_level { Some(wal_level(level)?) } else { None };
    let checkpoint = Checkpoint {
        redo,
        timeline,
        previous_timeline,
        full_page_writes,
        wal_level,
        next_xid,
        oldest_active_xid,
        shutdown,
    };
    end(&main, What::Checkpoint(checkpoint))
}

pub(crate) fn checkpoint_redo<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let level = wal_level(main.u32().ok_or(CUT_SHORT)?)?;
    end(&main, What::WalLevel(level))
}

pub(crate) fn parameter_change<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    // Limits on connections, workers, walsenders, prepared transactions and locks.
    main.take(20).ok_or(CUT_SHORT)?;
    let level = wal_level(main.u32().ok_or(CUT_SHORT)?)?;
    // wal_log_hints, track_commit_timestamp, padding.
    main.take(4).ok_or(CUT_SHORT)?;
    end(&main, What::WalLevel(level))
}

pub(crate) fn full_page_writes<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let on = main.u8().ok_or(CUT_SHORT)?;
    end(&main, What::FullPageWrites(on != 0))
}

pub(crate) fn end_of_recovery<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    // The time. From 17 on, the `wal_level` follows, which a parameter change reports too.
    main.take(8).ok_or(CUT_SHORT)?;
    let (timeline, previous) = (main.u32().ok_or(CUT_SHORT)?, main.u32().ok_or(CUT_SHORT)?);
    Ok(What::EndOfRecovery { timeline, previous })
}

pub(crate) fn page_images<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    if input.parts.blocks().any(|block| block.image.is_none_or(|image| !image.apply)) {
        return Err("one of its blocks has no image");
    }
    Ok(What::PageImages)
}
