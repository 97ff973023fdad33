//! Changes in a file, as they came from the stream.
//!
//! The file is a sequence of records, each preceded by its length (u32); integers are big-endian:
//!
//! ```text
//!   I  table(u32) tuple                     U  table kind(0|K|O) [old tuple] tuple
//!   D  table kind(K|O) tuple                T  restart(u8) count(u32) tables
//!   E  xid final_lsn commit_time commit_lsn end_lsn commit_time skipped(u8)
//! ```
//! A table is a number in the list that is kept in memory beside the file. The file has no name,
//! and nothing of it outlives the process: its changes were not applied, so the source sends them
//! again. `docs/spools.md` describes this format beside the others.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use std::sync::Arc;

use base::{Lsn, PgTimestamp, Xid};
use bytes::{Buf, BufMut, Bytes};
use plan::{Batch, Change, End, Plan, Table};
use proto::pgoutput::{CommitInfo, OldTuple, Tuple};
use rustc_hash::FxHashMap;
use txn::{Begin, Op, stored_origin};

/// Size of one write.
const BLOCK: usize = 256 * 1024;

/// A file of changes that grows.
#[derive(Debug)]
pub(crate) struct Spill {
    file: File,
    length: u64,
    tables: Vec<Arc<Table>>,
    numbers: FxHashMap<u64, u32>,
    block: Vec<u8>,
}

impl Spill {
    /// Makes an empty one. `file` is empty, and this owns it from now on.
    pub(crate) fn new(file: File) -> Spill {
        Spill { file, length: 0, tables: Vec::new(), numbers: FxHashMap::default(), block: Vec::new() }
    }

    /// Writes to `file` from now on; returns the previous file.
    #[cfg(test)]
    pub(crate) fn exchange(&mut self, file: File) -> File {
        std::mem::replace(&mut self.file, file)
    }

    /// Length of the file in bytes.
    pub(crate) fn byte_len(&self) -> u64 {
        self.length
    }

    /// Ends writing, so that the changes can be read.
    pub(crate) fn into_spilled(self) -> Spilled {
        Spilled { file: self.file, length: self.length, tables: self.tables }
    }

    /// Appends `batch` to the file. On failure the file keeps its previous end.
    pub(crate) fn add(&mut self, batch: &Batch) -> io::Result<()> {
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

    /// Writes the block at `offset` bytes behind the valid part.
    fn flush(&mut self, offset: u64) -> io::Result<u64> {
        let block = std::mem::take(&mut self.block);
        self.file.seek(io::SeekFrom::Start(self.length + offset))?;
        self.file.write_all(&block)?;
        let length = block.len() as u64;
        self.block = block;
        self.block.clear();
        Ok(length)
    }

    /// Puts a record, preceded by its length, into the block.
    fn record(&mut self, put: impl FnOnce(&mut Vec<u8>, &mut dyn FnMut(&Arc<Table>) -> u32)) {
        let Spill { block, tables, numbers, .. } = self;
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
    // No origin has an empty name.
    let origin = end.begin.origin.unwrap_or_default();
    let length = u16::try_from(origin.len()).expect("stored_origin refuses longer names");
    out.put_u16(length);
    out.put_slice(origin.as_bytes());
    out.put_u64(end.commit.commit_lsn.as_u64());
    out.put_u64(end.commit.end_lsn.as_u64());
    out.put_i64(end.commit.commit_time.0);
    out.put_u8(u8::from(end.skipped));
}

/// Changes in a file, to be read.
#[derive(Debug)]
pub(crate) struct Spilled {
    file: File,
    length: u64,
    tables: Vec<Arc<Table>>,
}

impl Spilled {
    /// Length of the file in bytes.
    pub(crate) fn byte_len(&self) -> u64 {
        self.length
    }

    /// Plans the statements for all changes; `None` where changes contradict one another. The file
    /// can be read again.
    pub(crate) fn plan(&self, binary: bool) -> io::Result<Option<Plan>> {
        let file = self.file.try_clone()?;
        let mut reader = Spilled { file, length: self.length, tables: self.tables.clone() }.read()?;
        let mut plan = Plan::detached(binary);
        while let Some(batch) = reader.next(1 << 20)? {
            if plan.add_all(&batch.changes).is_err() {
                return Ok(None);
            }
        }
        Ok(Some(plan))
    }

    /// Reads the changes from the start.
    pub(crate) fn read(mut self) -> io::Result<SpillReader> {
        self.file.rewind()?;
        let input = BufReader::with_capacity(BLOCK, self.file.take(self.length));
        Ok(SpillReader { input, tables: self.tables })
    }
}

/// Reads [`Spilled`] changes batch by batch.
pub(crate) struct SpillReader {
    input: BufReader<io::Take<File>>,
    tables: Vec<Arc<Table>>,
}

impl SpillReader {
    /// Returns whole transactions of about `bytes` together; `None` at the end.
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

    /// Returns the next part of the only transaction in the file: at most this many `changes`, of
    /// about `bytes` together. The last part has `open: None`; after it this returns `None`.
    pub(crate) fn part(&mut self, begin: Begin, changes: usize, bytes: usize) -> io::Result<Option<Batch>> {
        let mut batch = Batch { open: Some(begin), ..Batch::default() };
        while batch.changes.len() < changes && batch.bytes < bytes {
            let Some(record) = self.record()? else { break };
            self.take(&mut batch, record).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
            if !batch.ends.is_empty() {
                batch.open = None;
                return Ok(Some(batch));
            }
        }
        Ok((!batch.changes.is_empty()).then_some(batch))
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

    /// Adds a record to `batch`; `None` if the record is malformed.
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

/// The outer `None` means a malformed record.
#[allow(clippy::option_option)]
fn take_old(record: &mut Bytes) -> Option<Option<OldTuple>> {
    let kind = record.try_get_u8().ok()?;
    if kind == 0 {
        return Some(None);
    }
    Some(Some(OldTuple { key_only: kind == b'K', tuple: Tuple::read(record).ok()? }))
}

/// The origin that was written, if there was one.
fn take_origin(record: &mut Bytes) -> Option<Option<&'static str>> {
    let length = usize::from(record.try_get_u16().ok()?);
    let name = (record.len() >= length).then(|| record.split_to(length))?;
    Some(if name.is_empty() { None } else { stored_origin(std::str::from_utf8(&name).ok()?) })
}

fn take_end(record: &mut Bytes) -> Option<(Begin, CommitInfo, bool)> {
    let begin = Begin {
        xid: Xid(record.try_get_u32().ok()?),
        final_lsn: Lsn::new(record.try_get_u64().ok()?),
        commit_time: PgTimestamp(record.try_get_i64().ok()?),
        origin: take_origin(record)?,
    };
    let commit = CommitInfo {
        commit_lsn: Lsn::new(record.try_get_u64().ok()?),
        end_lsn: Lsn::new(record.try_get_u64().ok()?),
        commit_time: PgTimestamp(record.try_get_i64().ok()?),
    };
    Some((begin, commit, record.try_get_u8().ok()? != 0))
}
