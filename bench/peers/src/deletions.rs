//! Deletions that come steadily, and a horizon that follows: what a store occupies that remembers
//! them. The benchmark `update-deleted` runs this beside pgsluice (its case `memory`), with the
//! rows, the pace and the horizon that pgsluice has there.
//!
//! Our side is the deletion memory, without anything around it. The other side is LMDB, the fastest
//! other store of `churn` where keys come in order and go in order, as these do. It keeps what the
//! memory keeps: the row's key, the LSN and the tombstone. An ordered store does not know what is
//! behind the horizon, so a queue has the keys in the order of their LSNs.
//!
//! Each second there is a line of output with the number of deletions that are remembered. The
//! reader of the lines looks at the process and its files.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use base::{Lsn, Oid, PgTimestamp, Xid};
use deletions::{Bounds, Deletion, Equality, Identity, Kind, Memory, RowKey, Server, Tombstone, Value};
use serde::Deserialize;

use crate::engines::Arm;
use crate::engines::lmdb::Lmdb;

/// The table's OID, as first ones of a new cluster are.
const TABLE: Oid = Oid(16_384);
/// WAL of one deletion, as PostgreSQL writes it.
const WAL_BYTES: u64 = 60;
/// Between two lines.
const LINE: Duration = Duration::from_secs(1);

/// The stream, and how long it lasts.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Plan {
    /// Rows of one statement, which is a transaction and a commit of the store.
    per_statement: u64,
    /// From one statement to the next.
    pace_ms: u64,
    /// From one move of the horizon to the next.
    interval_ms: u64,
    seconds: u64,
}

/// A store that remembers deletions.
trait Remembers {
    /// Makes the deletions of one transaction durable.
    fn remember(&mut self, deleted: &[(RowKey, Tombstone)]) -> Result<()>;
    /// Forgets everything that is remembered now, no later than with the next commit.
    fn forget(&mut self);
    fn count(&self) -> u64;
}

impl Remembers for Memory {
    fn remember(&mut self, deleted: &[(RowKey, Tombstone)]) -> Result<()> {
        for (key, tombstone) in deleted {
            self.record(&Deletion { key, tombstone: *tombstone })?;
        }
        if let Some((_, last)) = deleted.last() {
            self.passed(last.lsn, last.lsn);
            self.commit(last.time)?;
        }
        Ok(())
    }

    fn forget(&mut self) {
        if let Some(candidate) = self.candidate() {
            self.advance(candidate);
        }
    }

    fn count(&self) -> u64 {
        self.figures().count
    }
}

/// LMDB, and what it has.
struct InLmdb {
    store: Lmdb,
    /// In the order in which they came.
    versions: VecDeque<Vec<u8>>,
    /// How many of them go with the next commit.
    forgotten: usize,
}

impl Remembers for InLmdb {
    fn remember(&mut self, deleted: &[(RowKey, Tombstone)]) -> Result<()> {
        let gone: Vec<Vec<u8>> = self.versions.drain(..std::mem::take(&mut self.forgotten)).collect();
        let come: Vec<(Vec<u8>, Vec<u8>)> =
            deleted.iter().map(|(key, tombstone)| (version(key, tombstone), value(tombstone))).collect();
        self.store.write(
            come.iter().map(|(version, value)| (&version[..], &value[..])),
            gone.iter().map(|version| &version[..]),
        )?;
        self.versions.extend(come.into_iter().map(|(version, _)| version));
        Ok(())
    }

    fn forget(&mut self) {
        self.forgotten = self.versions.len();
    }

    fn count(&self) -> u64 {
        (self.versions.len() - self.forgotten) as u64
    }
}

/// The row's key and the LSN, newest first.
fn version(key: &RowKey, tombstone: &Tombstone) -> Vec<u8> {
    [key.bytes(), &(!tombstone.lsn.as_u64()).to_be_bytes()].concat()
}

/// The bytes that the memory keeps of a tombstone.
fn value(tombstone: &Tombstone) -> Vec<u8> {
    let origin = tombstone.origin.unwrap_or(0).to_le_bytes();
    [&[0][..], &tombstone.xid.0.to_le_bytes(), &origin, &tombstone.time.0.to_le_bytes()].concat()
}

fn open(arm: Arm, dir: &Path) -> Result<Box<dyn Remembers>> {
    match arm {
        Arm::Ours => {
            let server = Server {
                system_id: 1,
                database: Oid(5),
                timeline: 1,
                timeline_start: Lsn::INVALID,
                wal_end: Lsn::new(u64::MAX >> 1),
                clock: PgTimestamp(0),
            };
            let (mut memory, _) = Memory::open(&dir.join("deletions"), server, Bounds::default())?;
            memory.begin(Lsn::new(1), PgTimestamp(0));
            Ok(Box::new(memory))
        }
        Arm::Lmdb => {
            let store = Lmdb::open(dir)?;
            Ok(Box::new(InLmdb { store, versions: VecDeque::new(), forgotten: 0 }))
        }
        other => bail!("{} does not remember deletions here: take ours or lmdb", other.name()),
    }
}

/// The rows of one statement, which deletes the next ones by a bigint key.
fn statement(number: u64, per_statement: u64) -> Result<Vec<(RowKey, Tombstone)>> {
    let identity = Identity::new(vec![Equality::Integer(8)], false);
    let first = number * per_statement + 1;
    let tombstone = Tombstone {
        lsn: Lsn::new(2 + (first + per_statement) * WAL_BYTES),
        xid: Xid(number as u32 + 1),
        origin: None,
        time: PgTimestamp(number as i64 + 1),
        kind: Kind::Delete,
    };
    let row = |id: u64| -> Result<(RowKey, Tombstone)> {
        let mut key = RowKey::default();
        identity.write(TABLE, [Value::Text(id.to_string().as_bytes())], &mut key)?;
        Ok((key, tombstone))
    };
    (first..first + per_statement).map(row).collect()
}

/// Remembers deletions as `plan` says, in a new store in `dir`.
pub(crate) fn run(arm: Arm, plan: Plan, dir: &Path) -> Result<()> {
    let mut store = open(arm, dir)?;
    let pace = Duration::from_millis(plan.pace_ms);
    let (interval, time) = (Duration::from_millis(plan.interval_ms), Duration::from_secs(plan.seconds));
    let started = Instant::now();
    let (mut horizon_due, mut line_due) = (interval, LINE);
    for number in 0.. {
        store.remember(&statement(number, plan.per_statement)?)?;
        let elapsed = started.elapsed();
        if elapsed >= horizon_due {
            store.forget();
            horizon_due += interval;
        }
        if elapsed >= line_due {
            println!("{}", store.count());
            line_due += LINE;
        }
        if elapsed >= time {
            break;
        }
        std::thread::sleep((pace * (number as u32 + 1)).saturating_sub(started.elapsed()));
    }
    Ok(())
}
