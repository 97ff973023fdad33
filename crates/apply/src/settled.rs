//! Batches that are folded while the executor is busy.
//!
//! A batch that is full and has nowhere to go is *settled*: its changes are
//! folded into a plan, where a row that is written again and again is held
//! once, and the changes as they came are put into a file, for the case that
//! the plan does not hold. So what grows in memory is what will be written,
//! not what happened, and the further the target is behind, the more is
//! written at once.
//!
//! ```text
//!   batch full, executor busy --> plan (net effect, in memory)   \
//!        |                                                        > one chunk
//!        +----------------------> file (every change, in order)  /
//! ```
//!
//! Layout of the file: records, each behind its length (u32); big-endian:
//!
//! ```text
//!   I  table(u32) tuple                     U  table kind(0|K|O) [old tuple] tuple
//!   D  table kind(K|O) tuple                T  restart(u8) count(u32) tables
//!   E  xid final_lsn commit_time commit_lsn end_lsn commit_time skipped(u8)
//! ```
//! Tables are numbers of the list that is kept beside it. The file has no
//! name and nothing of it outlives the process: what it held is not applied,
//! so it comes again.
//!
//! Invariants: a batch is in the file before it is in the plan; where it
//! cannot be put into the file it stays where it was, and nothing more is
//! settled.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use std::sync::Arc;

use base::{Lsn, PgTimestamp, Xid};
use bytes::{Buf, BufMut, Bytes};
use proto::pgoutput::{CommitInfo, OldTuple, Tuple};
use rustc_hash::FxHashMap;
use txn::{Begin, Op};

use crate::batch::{Batch, Change, Chunk, Digest, End};
use crate::plan::Plan;
use crate::table::Table;

/// The file is at most as long; what comes then waits.
const FILE_MAX: u64 = 512 * 1024 * 1024;
/// Written at once.
const BLOCK: usize = 256 * 1024;

/// The changes of a chunk as they came.
#[derive(Debug)]
pub(crate) enum Originals {
    Memory(Batch),
    Disk(Spilled),
}

/// Whole transactions that will be one chunk.
#[derive(Debug)]
pub(crate) struct Settled {
    file: File,
    length: u64,
    tables: Vec<Arc<Table>>,
    numbers: FxHashMap<u64, u32>,
    block: Vec<u8>,
    /// `None` after changes that contradict one another.
    plan: Option<Plan>,
    digest: Digest,
    /// Nothing more is taken in.
    closed: bool,
}

/// How much may be settled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Rows to write.
    pub(crate) rows: usize,
    /// Bytes of them.
    pub(crate) bytes: usize,
    /// Transactions: more than have fitted as a set are not worth it.
    pub(crate) transactions: usize,
}

impl Settled {
    /// Nothing yet. `file` is empty and becomes its own.
    pub(crate) fn new(file: File, binary: bool) -> Settled {
        Settled {
            file,
            length: 0,
            tables: Vec::new(),
            numbers: FxHashMap::default(),
            block: Vec::new(),
            plan: Some(Plan::detached(binary)),
            digest: Digest::default(),
            closed: false,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.digest.transactions == 0
    }

    /// Whether the transactions that end in `batch` can be taken in.
    pub(crate) fn has_room(&self, batch: &Batch, room: Room) -> bool {
        let Some(plan) = &self.plan else { return false };
        !self.closed
            && plan.rows() + batch.changes.len() <= room.rows
            && plan.bytes() + batch.bytes <= room.bytes
            && self.digest.transactions + batch.ends.len() <= room.transactions
            && self.length + batch.bytes as u64 <= FILE_MAX
    }

    /// Takes in `whole`, which has no open transaction; gives it back if the
    /// file cannot be written.
    pub(crate) fn add(&mut self, whole: Batch) -> Result<(), Batch> {
        debug_assert!(whole.open.is_none());
        if let Err(error) = self.write(&whole) {
            tracing::warn!(
                "changes cannot be put aside in the spool directory, so batches stay small: {error}; make room there"
            );
            self.closed = true;
            return Err(whole);
        }
        self.digest.extend(&Digest::of(&whole));
        let folded = self.plan.as_mut().is_some_and(|plan| plan.add_all(&whole.changes).is_ok());
        if !folded {
            self.plan = None;
        }
        Ok(())
    }

    pub(crate) fn into_chunk(self) -> Chunk {
        let Settled { file, length, tables, plan, digest, .. } = self;
        let originals = Originals::Disk(Spilled { file, length, tables });
        Chunk { originals, digest, plan, first: true, last: true }
    }

    /// Appends `batch` to the file; the file ends where it ended before if
    /// that fails.
    fn write(&mut self, batch: &Batch) -> io::Result<()> {
        let mut written = 0;
        let mut ends = batch.ends.iter().peekable();
        for number in 0..=batch.changes.len() {
            while let Some(end) = ends.next_if(|end| end.changes_end == number) {
                self.record(|out, _| put_end(out, end));
            }
            if let Some(change) = batch.changes.get(number) {
                self.record(|out, numbers| put_change(out, change, numbers));
            }
            if self.block.len() >= BLOCK {
                written += self.flush(written)?;
            }
        }
        written += self.flush(written)?;
        self.length += written;
        Ok(())
    }

    /// Writes the block at `offset` bytes behind what is valid.
    fn flush(&mut self, offset: u64) -> io::Result<u64> {
        let block = std::mem::take(&mut self.block);
        self.file.seek(io::SeekFrom::Start(self.length + offset))?;
        self.file.write_all(&block)?;
        let length = block.len() as u64;
        self.block = block;
        self.block.clear();
        Ok(length)
    }

    /// Puts a record, behind its length, into the block.
    fn record(&mut self, put: impl FnOnce(&mut Vec<u8>, &mut dyn FnMut(&Arc<Table>) -> u32)) {
        let Settled { block, tables, numbers, .. } = self;
        let mut number = |table: &Arc<Table>| {
            *numbers.entry(table.id).or_insert_with(|| {
                tables.push(Arc::clone(table));
                u32::try_from(tables.len() - 1).expect("far below 2^32 tables")
            })
        };
        let start = block.len();
        block.put_u32(0);
        put(block, &mut number);
        let length = u32::try_from(block.len() - start - 4).expect("a row is below 4 GiB");
        block[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }
}

fn put_change(out: &mut Vec<u8>, change: &Change, number: &mut dyn FnMut(&Arc<Table>) -> u32) {
    match change {
        Change::Row { table, op: Op::Insert(new) } => {
            out.put_u8(b'I');
            out.put_u32(number(table));
            new.write(out);
        }
        Change::Row { table, op: Op::Update { old, new } } => {
            out.put_u8(b'U');
            out.put_u32(number(table));
            match old {
                None => out.put_u8(0),
                Some(old) => put_old(out, old),
            }
            new.write(out);
        }
        Change::Row { table, op: Op::Delete(old) } => {
            out.put_u8(b'D');
            out.put_u32(number(table));
            put_old(out, old);
        }
        Change::Truncate { tables, restart_identity } => {
            out.put_u8(b'T');
            out.put_u8(u8::from(*restart_identity));
            out.put_u32(u32::try_from(tables.len()).expect("far below 2^32 tables"));
            tables.iter().for_each(|table| out.put_u32(number(table)));
        }
    }
}

fn put_old(out: &mut Vec<u8>, old: &OldTuple) {
    out.put_u8(if old.key_only { b'K' } else { b'O' });
    old.tuple.write(out);
}

fn put_end(out: &mut Vec<u8>, end: &End) {
    out.put_u8(b'E');
    out.put_u32(end.begin.xid.0);
    out.put_u64(end.begin.final_lsn.as_u64());
    out.put_i64(end.begin.commit_time.0);
    out.put_u64(end.commit.commit_lsn.as_u64());
    out.put_u64(end.commit.end_lsn.as_u64());
    out.put_i64(end.commit.commit_time.0);
    out.put_u8(u8::from(end.skipped));
}

/// Changes in a file.
#[derive(Debug)]
pub(crate) struct Spilled {
    file: File,
    length: u64,
    tables: Vec<Arc<Table>>,
}

impl Spilled {
    /// From the start.
    pub(crate) fn read(mut self) -> io::Result<Reader> {
        self.file.rewind()?;
        let input = BufReader::with_capacity(BLOCK, self.file.take(self.length));
        Ok(Reader { input, tables: self.tables })
    }
}

/// Reads [`Spilled`] changes batch by batch.
pub(crate) struct Reader {
    input: BufReader<io::Take<File>>,
    tables: Vec<Arc<Table>>,
}

impl Reader {
    /// Whole transactions of together about `bytes`; `None` at the end.
    pub(crate) fn next(&mut self, bytes: usize) -> io::Result<Option<Batch>> {
        let mut batch = Batch::default();
        while let Some(record) = self.record()? {
            self.take(&mut batch, record).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
            let complete = batch.ends.last().is_some_and(|end| end.changes_end == batch.changes.len());
            if complete && batch.bytes >= bytes {
                break;
            }
        }
        Ok((!batch.ends.is_empty()).then_some(batch))
    }

    fn record(&mut self) -> io::Result<Option<Bytes>> {
        let mut length = [0; 4];
        match self.input.read_exact(&mut length) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let mut record = vec![0; u32::from_be_bytes(length) as usize];
        self.input.read_exact(&mut record)?;
        Ok(Some(record.into()))
    }

    /// Adds a record to `batch`; `None` if it is none of ours.
    fn take(&self, batch: &mut Batch, mut record: Bytes) -> Option<()> {
        let kind = record.try_get_u8().ok()?;
        let op = match kind {
            b'E' => {
                let (begin, commit, skipped) = take_end(&mut record)?;
                batch.end(begin, commit, skipped);
                return Some(());
            }
            b'T' => {
                let restart_identity = record.try_get_u8().ok()? != 0;
                let count = record.try_get_u32().ok()?;
                let tables = (0..count).map(|_| self.table(&mut record)).collect::<Option<_>>()?;
                batch.push(Change::Truncate { tables, restart_identity });
                return Some(());
            }
            _ => kind,
        };
        let table = self.table(&mut record)?;
        let op = match op {
            b'I' => Op::Insert(Tuple::read(&mut record).ok()?),
            b'U' => {
                let old = take_old(&mut record)?;
                Op::Update { old, new: Tuple::read(&mut record).ok()? }
            }
            b'D' => Op::Delete(take_old(&mut record)??),
            _ => return None,
        };
        batch.push(Change::Row { table, op });
        Some(())
    }

    fn table(&self, record: &mut Bytes) -> Option<Arc<Table>> {
        self.tables.get(record.try_get_u32().ok()? as usize).cloned()
    }
}

/// The outer `None` is a record that is none of ours.
#[allow(clippy::option_option)]
fn take_old(record: &mut Bytes) -> Option<Option<OldTuple>> {
    let kind = record.try_get_u8().ok()?;
    if kind == 0 {
        return Some(None);
    }
    Some(Some(OldTuple { key_only: kind == b'K', tuple: Tuple::read(record).ok()? }))
}

fn take_end(record: &mut Bytes) -> Option<(Begin, CommitInfo, bool)> {
    let begin = Begin {
        xid: Xid(record.try_get_u32().ok()?),
        final_lsn: Lsn::new(record.try_get_u64().ok()?),
        commit_time: PgTimestamp(record.try_get_i64().ok()?),
    };
    let commit = CommitInfo {
        commit_lsn: Lsn::new(record.try_get_u64().ok()?),
        end_lsn: Lsn::new(record.try_get_u64().ok()?),
        commit_time: PgTimestamp(record.try_get_i64().ok()?),
    };
    Some((begin, commit, record.try_get_u8().ok()? != 0))
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proto::pgoutput::Column;

    use super::*;
    use crate::table::fixtures;

    const ROOM: Room = Room { rows: 1_000, bytes: 1_000_000, transactions: 1_000 };

    fn table() -> Arc<Table> {
        static TABLE: LazyLock<Arc<Table>> = LazyLock::new(fixtures::table);
        Arc::clone(&TABLE)
    }

    fn scratch() -> File {
        tempfile::tempfile().unwrap()
    }

    fn tuple(id: usize, a: Option<&str>) -> Tuple {
        let id = id.to_string();
        let a = a.map_or(Column::Unchanged, |a| Column::Text(a.as_bytes()));
        [Column::Text(id.as_bytes()), a, Column::Null].into_iter().collect()
    }

    fn row(op: Op) -> Change {
        Change::Row { table: table(), op }
    }

    /// Every kind of change, and a transaction that was skipped.
    fn batch(first: u32) -> Batch {
        let key = |id| OldTuple { key_only: true, tuple: tuple(id, None) };
        let full = OldTuple { key_only: false, tuple: tuple(7, Some("full")) };
        let transactions = [
            vec![row(Op::Insert(tuple(1, Some("x")))), row(Op::Update { old: None, new: tuple(1, None) })],
            vec![],
            vec![
                row(Op::Update { old: Some(full), new: tuple(7, Some("y")) }),
                row(Op::Delete(key(7))),
                Change::Truncate { tables: vec![table()], restart_identity: true },
            ],
        ];
        let mut batch = Batch::default();
        for (xid, changes) in (first..).zip(transactions) {
            let skipped = changes.is_empty();
            changes.into_iter().for_each(|change| batch.push(change));
            let lsn = |n| Lsn::new(u64::from(xid) * 100 + n);
            let begin = Begin { xid: Xid(xid), final_lsn: lsn(1), commit_time: PgTimestamp(-5) };
            let commit = CommitInfo { commit_lsn: lsn(1), end_lsn: lsn(2), commit_time: PgTimestamp(9) };
            batch.end(begin, commit, skipped);
        }
        batch
    }

    fn shown(batches: &[Batch]) -> Vec<String> {
        let mut all = Vec::new();
        for batch in batches {
            let mut start = 0;
            for end in &batch.ends {
                all.extend(batch.changes[start..end.changes_end].iter().map(|change| format!("{change:?}")));
                all.push(format!("{:?} {:?} {}", end.begin, end.commit, end.skipped));
                start = end.changes_end;
            }
        }
        all
    }

    #[test]
    fn changes_come_back_as_they_were_put_aside() {
        let mut settled = Settled::new(scratch(), false);
        for first in [10, 20, 30] {
            assert!(settled.has_room(&batch(first), ROOM));
            settled.add(batch(first)).unwrap();
        }
        assert_eq!(settled.digest.transactions, 9);
        let chunk = settled.into_chunk();
        assert_eq!((chunk.digest.skipped, chunk.digest.tally.updates), (3, 6));
        let Originals::Disk(spilled) = chunk.originals else { panic!("not on disk") };
        let mut reader = spilled.read().unwrap();
        let mut read = Vec::new();
        while let Some(batch) = reader.next(1).unwrap() {
            assert!(batch.ends.len() < 3, "one transaction exceeds a byte");
            read.push(batch);
        }
        assert_eq!(shown(&read), shown(&[batch(10), batch(20), batch(30)]));
    }

    #[test]
    fn what_cannot_be_written_is_given_back_and_what_was_stays() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let mut settled = Settled::new(scratch(), false);
        settled.add(batch(10)).unwrap();
        // A file that may not be written to stands for a full disk.
        let writable = std::mem::replace(&mut settled.file, File::open(path.path()).unwrap());
        let back = settled.add(batch(20)).unwrap_err();
        assert_eq!(shown(&[back]), shown(&[batch(20)]));
        assert!(!settled.has_room(&batch(20), ROOM), "nothing more is settled");
        settled.file = writable;
        let Originals::Disk(spilled) = settled.into_chunk().originals else { panic!("not on disk") };
        let read = spilled.read().unwrap().next(usize::MAX).unwrap().unwrap();
        assert_eq!(shown(&[read]), shown(&[batch(10)]));
    }

    #[test]
    fn a_row_that_is_written_again_takes_no_more_room() {
        let mut settled = Settled::new(scratch(), false);
        let update = |n: usize| {
            let mut batch = batch(10);
            batch.changes = vec![row(Op::Update { old: None, new: tuple(n % 10, Some("value")) })];
            batch.ends.truncate(1);
            batch.ends[0].changes_end = 1;
            batch
        };
        for n in 0..500 {
            settled.add(update(n)).unwrap();
        }
        let plan = settled.plan.as_ref().unwrap();
        assert_eq!(plan.rows(), 10);
        assert!(plan.bytes() < 10 * 300, "{}", plan.bytes());
        assert_eq!(settled.digest.tally.updates, 500);
    }

    #[test]
    fn changes_that_contradict_one_another_end_it() {
        let mut settled = Settled::new(scratch(), false);
        for _ in 0..2 {
            let mut twice = batch(10);
            twice.changes = vec![row(Op::Insert(tuple(1, Some("x"))))];
            twice.ends.truncate(1);
            twice.ends[0].changes_end = 1;
            settled.add(twice).unwrap();
        }
        assert!(!settled.has_room(&batch(10), ROOM));
        let chunk = settled.into_chunk();
        assert!(chunk.plan.is_none());
        assert_eq!(chunk.digest.transactions, 2);
    }
}
