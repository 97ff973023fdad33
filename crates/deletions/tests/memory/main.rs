//! The memory beside what really happened: directed tests of each promise, and random walks with
//! crashes.
//!
//! A walk prints its seed; `PGSLUICE_DELETIONS_SEED=n` repeats it, and `PGSLUICE_DELETIONS_ROUNDS`
//! walks more often.

#![allow(clippy::unwrap_used)]

mod directed;
mod disk;
mod walk;

use base::{Lsn, Oid, PgTimestamp, Xid};
use deletions::{
    Bounds, Deletion, Equality, Identity, Kind, Memory, Miss, Opened, RowKey, Server, Tombstone,
};

use crate::disk::SimDisks;

const TABLE: Oid = Oid(16_400);

pub(crate) fn server() -> Server {
    Server {
        system_id: 7,
        database: Oid(5),
        timeline: 1,
        timeline_start: Lsn::INVALID,
        wal_end: Lsn::new(u64::MAX >> 1),
        clock: PgTimestamp(i64::MAX >> 1),
    }
}

pub(crate) fn open(disks: &SimDisks, bounds: Bounds) -> (Memory, Opened) {
    Memory::open_on(disks.disks(), server(), bounds).unwrap()
}

/// The key of a row whose identity is a number.
pub(crate) fn row(number: u64) -> RowKey {
    let identity = Identity::new(vec![Equality::Integer(8)], false);
    let mut key = RowKey::default();
    identity.write(TABLE, [deletions::Value::Text(number.to_string().as_bytes())], &mut key).unwrap();
    key
}

/// A deletion without an origin, whose transaction has the number of its LSN.
pub(crate) fn tombstone(lsn: u64, time: i64) -> Tombstone {
    Tombstone {
        lsn: Lsn::new(lsn),
        xid: Xid(lsn as u32),
        origin: None,
        time: PgTimestamp(time),
        kind: Kind::Delete,
    }
}

pub(crate) fn record(memory: &mut Memory, key: &RowKey, tombstone: Tombstone) {
    memory.record(&Deletion { key, tombstone }).unwrap();
}

pub(crate) fn miss(time: i64, fence: u64) -> Miss {
    Miss { time: PgTimestamp(time), fence: Lsn::new(fence) }
}
