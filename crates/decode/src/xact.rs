//! How transactions end (`access/xact.h`).

use base::{Lsn, Oid, PgTimestamp, RelFileLocator, Xid};
use wal::Fields;

use crate::What;
use crate::input::{CUT_SHORT, Input, LEFT_OVER, Read};
use crate::items::{Invalidation, Items};

/// `XLOG_XACT_HAS_INFO`, a bit of the record's info: `xinfo` follows the time.
const HAS_INFO: u8 = 0x80;

/// Bits of `xinfo`.
mod has {
    pub(super) const DATABASE: u32 = 1 << 0;
    pub(super) const SUBXACTS: u32 = 1 << 1;
    pub(super) const FILES: u32 = 1 << 2;
    pub(super) const INVALIDATIONS: u32 = 1 << 3;
    pub(super) const TWO_PHASE: u32 = 1 << 4;
    pub(super) const ORIGIN: u32 = 1 << 5;
    /// Only with [`TWO_PHASE`].
    pub(super) const GID: u32 = 1 << 7;
    pub(super) const DROPPED_STATS: u32 = 1 << 8;
    /// Bits without data: exclusive locks for a standby, a request for feedback, removal of the
    /// relation cache's file, a commit that was forced to disk.
    pub(super) const NO_DATA: u32 = 1 << 6 | 1 << 29 | 1 << 30 | 1 << 31;
}

/// The origin of a transaction that was replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OriginProgress {
    /// Its commit there.
    pub lsn: Lsn,
    /// The time of that commit.
    pub time: PgTimestamp,
}

/// A transaction that committed or aborted.
#[derive(Debug, Clone, Copy)]
pub struct TransactionEnd<'a> {
    /// The transaction. For a prepared one, it is in the record's data, because another session
    /// ended it. It may be a subtransaction, which aborts with a record of its own.
    pub xid: Xid,
    /// The time.
    pub time: PgTimestamp,
    /// Its database, if the record has it.
    pub database: Option<Oid>,
    /// Subtransactions that end with it.
    pub subxacts: Items<'a, Xid>,
    /// Files that were removed.
    pub files: Items<'a, RelFileLocator>,
    /// What it changed in the catalogs. Aborts have none.
    pub invalidations: Items<'a, Invalidation>,
    /// Whether it was prepared.
    pub is_prepared: bool,
    /// The name it was prepared under, without the final NUL.
    pub gid: Option<&'a [u8]>,
    /// Its origin, if it was replayed.
    pub origin: Option<OriginProgress>,
}

/// A transaction that was prepared.
#[derive(Debug, Clone, Copy)]
pub struct Prepared<'a> {
    /// The transaction.
    pub xid: Xid,
    /// Its database.
    pub database: Oid,
    /// The time.
    pub time: PgTimestamp,
    /// Its name, without the final NUL.
    pub gid: &'a [u8],
    /// Its subtransactions.
    pub subxacts: Items<'a, Xid>,
    /// Files that are removed if it commits.
    pub files: Items<'a, RelFileLocator>,
    /// What it changes in the catalogs if it commits.
    pub invalidations: Items<'a, Invalidation>,
    /// Its origin, if it was replayed.
    pub origin: Option<OriginProgress>,
}

pub(crate) fn commit<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    end(input).map(What::Commit)
}

pub(crate) fn abort<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    end(input).map(What::Abort)
}

fn end<'a>(input: &Input<'_, 'a>) -> Read<TransactionEnd<'a>> {
    let mut main = Fields::new(input.parts.main());
    let time = PgTimestamp(main.i64().ok_or(CUT_SHORT)?);
    let xinfo = if input.record.info() & HAS_INFO != 0 { main.u32().ok_or(CUT_SHORT)? } else { 0 };
    let dropped_stats = input.facts.dropped_stats_item;
    let stats_bit = if dropped_stats > 0 { has::DROPPED_STATS } else { 0 };
    let known = has::DATABASE
        | has::SUBXACTS
        | has::FILES
        | has::INVALIDATIONS
        | has::TWO_PHASE
        | has::ORIGIN
        | has::GID
        | has::NO_DATA;
    if xinfo & !(known | stats_bit) != 0 {
        return Err("it has unknown flags");
    }
    let mut ended = TransactionEnd {
        xid: input.record.xid(),
        time,
        database: None,
        subxacts: Items::none(),
        files: Items::none(),
        invalidations: Items::none(),
        is_prepared: xinfo & has::TWO_PHASE != 0,
        gid: None,
        origin: None,
    };
    if xinfo & has::DATABASE != 0 {
        ended.database = Some(main.oid().ok_or(CUT_SHORT)?);
        // Its default tablespace.
        main.oid().ok_or(CUT_SHORT)?;
    }
    if xinfo & has::SUBXACTS != 0 {
        ended.subxacts = Items::counted(&mut main)?;
    }
    if xinfo & has::FILES != 0 {
        ended.files = Items::counted(&mut main)?;
    }
    if xinfo & stats_bit != 0 {
        skip_counted(&mut main, dropped_stats)?;
    }
    if xinfo & has::INVALIDATIONS != 0 {
        ended.invalidations = Items::counted(&mut main)?;
    }
    if ended.is_prepared {
        ended.xid = main.xid().ok_or(CUT_SHORT)?;
        if xinfo & has::GID != 0 {
            let length = main.rest().iter().position(|&byte| byte == 0).ok_or("its name has no end")?;
            ended.gid = main.take(length);
            main.u8().ok_or(CUT_SHORT)?;
        }
    }
    if xinfo & has::ORIGIN != 0 {
        ended.origin = Some(origin(&mut main)?);
    }
    if main.is_empty() { Ok(ended) } else { Err(LEFT_OVER) }
}

fn origin(fields: &mut Fields<'_>) -> Read<OriginProgress> {
    let lsn = fields.lsn().ok_or(CUT_SHORT)?;
    Ok(OriginProgress { lsn, time: PgTimestamp(fields.i64().ok_or(CUT_SHORT)?) })
}

/// Skips a counted list of items.
fn skip_counted(fields: &mut Fields<'_>, item: usize) -> Read<()> {
    let count = usize::try_from(fields.i32().ok_or(CUT_SHORT)?).map_err(|_| "a count is negative")?;
    fields.take(count.checked_mul(item).ok_or(CUT_SHORT)?).map(drop).ok_or(CUT_SHORT)
}

/// `TWOPHASE_MAGIC`.
const TWO_PHASE_MAGIC: u32 = 0x57F9_4534;

/// The state file of a prepared transaction: a header, then parts, each padded to eight bytes.
pub(crate) fn prepare<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let has_stats = input.facts.dropped_stats_item > 0;
    let mut numbers = || {
        let (magic, length, xid, database) = (main.u32()?, main.u32()?, main.xid()?, main.oid()?);
        let time = PgTimestamp(main.i64()?);
        // The owner.
        main.oid()?;
        let counts = [main.u32()?, main.u32()?, main.u32()?];
        let stats = if has_stats { [main.u32()?, main.u32()?] } else { [0; 2] };
        let invalidations = main.u32()?;
        // Whether the relation cache's file is removed, and padding.
        main.u16()?;
        let gid_length = main.u16()?;
        let origin = OriginProgress { lsn: main.lsn()?, time: PgTimestamp(main.i64()?) };
        Some((magic, length, xid, database, time, counts, stats, invalidations, gid_length, origin))
    };
    let (magic, length, xid, database, time, counts, stats, invalidations, gid_length, origin) =
        numbers().ok_or(CUT_SHORT)?;
    if magic != TWO_PHASE_MAGIC {
        return Err("it does not begin as a prepared transaction does");
    }
    // The length is that of the state file, which has a checksum at its end.
    if (length as usize) < input.parts.main().len() {
        return Err(LEFT_OVER);
    }
    let [subxacts, files, files_of_abort] = counts.map(|count| count as usize);
    let gid = padded(&mut main, gid_length.into())?;
    let gid = gid.strip_suffix(&[0]).ok_or("its name has no end")?;
    let subxacts = padded_items(&mut main, subxacts)?;
    let files = padded_items(&mut main, files)?;
    padded_items::<RelFileLocator>(&mut main, files_of_abort)?;
    for count in stats {
        let length = (count as usize).checked_mul(input.facts.dropped_stats_item).ok_or(CUT_SHORT)?;
        padded(&mut main, length)?;
    }
    let invalidations = padded_items(&mut main, invalidations as usize)?;
    // The rest are records of the lock manager, statistics and the like, which have no meaning
    // outside the server. The transaction has an origin if either field is set, because a session
    // need not give a position.
    let origin = (origin.lsn.is_valid() || origin.time.0 != 0).then_some(origin);
    Ok(What::Prepare(Prepared { xid, database, time, gid, subxacts, files, invalidations, origin }))
}

fn padded<'a>(fields: &mut Fields<'a>, length: usize) -> Read<&'a [u8]> {
    let taken = fields.take(length).ok_or(CUT_SHORT)?;
    fields.take(length.next_multiple_of(8) - length).ok_or(CUT_SHORT)?;
    Ok(taken)
}

fn padded_items<'a, T: crate::Item>(fields: &mut Fields<'a>, count: usize) -> Read<Items<'a, T>> {
    let length = count.checked_mul(T::SIZE).ok_or(CUT_SHORT)?;
    Items::take(&mut Fields::new(padded(fields, length)?), count)
}

pub(crate) fn assignment<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let top = main.xid().ok_or(CUT_SHORT)?;
    let subxacts = Items::counted(&mut main)?;
    if main.is_empty() { Ok(What::Assignment { top, subxacts }) } else { Err(LEFT_OVER) }
}

pub(crate) fn invalidations<'a>(input: &Input<'_, 'a>) -> Read<What<'a>> {
    let mut main = Fields::new(input.parts.main());
    let invalidations = Items::counted(&mut main)?;
    if main.is_empty() { Ok(What::Invalidations(invalidations)) } else { Err(LEFT_OVER) }
}
