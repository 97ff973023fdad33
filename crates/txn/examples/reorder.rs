//! Measures how fast changes become transactions, on one core, without reading WAL before and
//! without an encoder behind.
//!
//! `cargo run --release -p txn --example reorder -- [REPEATS]` hands over rows of 60 bytes and
//! looks at every row that comes out. Seconds are those of the processor, because other programs
//! run too. Rows come in transactions of one row by eight sessions, in one transaction that fits
//! into memory, in one that is spilled, in one that is streamed, and in one with savepoints. "Bytes
//! a change" is what is copied when a change comes in. It is not copied again, unless it is
//! spilled: then it is written once and read once.

use std::error::Error;
use std::path::Path;

use base::{Lsn, Oid, PgTimestamp, RelFileLocator, Xid};
use decode::RawTuple;
use txn::DirSpool;
use txn::reorder::{
    At, Counters, End, Options, RawAction, RawChange, ReorderBuffer, ReorderedEvent, Resolve, Target,
};

const ROWS: u32 = 4_000_000;
const ROW_BYTES: usize = 60;
const FILES: RelFileLocator =
    RelFileLocator { tablespace: Oid(1663), database: Oid(5), relfilenumber: 16_385 };

struct Known;

impl Resolve<u32> for Known {
    fn files(&mut self, _xid: Xid, _files: RelFileLocator) -> Target<u32> {
        Target::Relation(1)
    }

    fn relation(&mut self, _xid: Xid, _relation: Oid) -> Target<u32> {
        Target::Relation(1)
    }
}

/// Counts of what came out, so that the compiler leaves nothing out.
#[derive(Default)]
struct Came {
    rows: u64,
    bytes: u64,
}

struct Load {
    buffer: ReorderBuffer<u32>,
    row: [u8; ROW_BYTES],
    lsn: u64,
    came: Came,
}

impl Load {
    fn insert(&mut self, xid: Xid) -> Result<(), txn::reorder::Error> {
        self.lsn += 100;
        let at = At { lsn: Lsn::new(self.lsn), xid, origin: None };
        let new = RawTuple { infomask2: 4, infomask: 0, hoff: 24, bytes: &self.row };
        let change = RawChange::Insert { new, last_of_chunks: true, speculative: false };
        self.buffer.change(at, FILES, Target::Relation(1), &change)?;
        self.drain()
    }

    fn end(&mut self, xid: Xid) -> End<'static> {
        self.lsn += 100;
        let (lsn, end_lsn) = (Lsn::new(self.lsn), Lsn::new(self.lsn + 50));
        End { xid, lsn, end_lsn, time: PgTimestamp(0), origin: None, subxacts: &[], gid: None }
    }

    fn commit(&mut self, xid: Xid) -> Result<(), txn::reorder::Error> {
        let end = self.end(xid);
        self.buffer.commit(&end, &mut Known)?;
        self.drain()
    }

    fn drain(&mut self) -> Result<(), txn::reorder::Error> {
        while let Some(event) = self.buffer.next()? {
            if let ReorderedEvent::Row(row) = event
                && let RawAction::Insert(new) = row.action
            {
                self.came.rows += 1;
                self.came.bytes += new.bytes.len() as u64 + u64::from(new.bytes[0]);
            }
        }
        Ok(())
    }
}

/// Transactions of one row, by eight sessions in turn.
fn small(load: &mut Load) -> Result<(), txn::reorder::Error> {
    for first in (100..100 + ROWS).step_by(8) {
        (first..first + 8).try_for_each(|xid| load.insert(Xid(xid)))?;
        (first..first + 8).try_for_each(|xid| load.commit(Xid(xid)))?;
    }
    Ok(())
}

fn bulk(load: &mut Load) -> Result<(), txn::reorder::Error> {
    (0..ROWS).try_for_each(|_| load.insert(Xid(100)))?;
    load.commit(Xid(100))
}

/// One transaction with each row in a savepoint that is rolled back, and a row behind each.
fn savepoints(load: &mut Load) -> Result<(), txn::reorder::Error> {
    for sub in 0..ROWS / 2 {
        let xid = Xid(101 + sub);
        load.buffer.assign(Lsn::new(load.lsn), Xid(100), xid)?;
        load.insert(xid)?;
        let end = load.end(xid);
        load.buffer.abort(&end)?;
        load.drain()?;
        load.insert(Xid(100))?;
    }
    load.commit(Xid(100))
}

type Work = fn(&mut Load) -> Result<(), txn::reorder::Error>;

fn run(work: Work, options: Options, dir: &Path) -> Result<(f64, Came, Counters), Box<dyn Error>> {
    let spool = Box::new(DirSpool::open(dir.to_path_buf())?);
    let buffer = ReorderBuffer::new(options, spool);
    let mut load = Load { buffer, row: [1; ROW_BYTES], lsn: 0, came: Came::default() };
    let before = processor_seconds()?;
    work(&mut load)?;
    Ok((processor_seconds()? - before, load.came, load.buffer.counters()))
}

fn main() -> Result<(), Box<dyn Error>> {
    let repeats: usize = std::env::args().nth(1).map_or(Ok(3), |number| number.parse())?;
    let dir = std::env::temp_dir().join(format!("pgsluice-reorder-{}", std::process::id()));
    let usual = Options::new(Oid(5), Lsn::INVALID);
    let cases: [(&str, Work, Options); 5] = [
        ("one row a transaction", small, usual.clone()),
        ("one transaction, spilled", bulk, usual.clone()),
        ("one transaction, streamed", bulk, Options { streaming: true, ..usual.clone() }),
        ("every second row in a savepoint that is rolled back", savepoints, usual.clone()),
        // The last one, because each reports the most memory that was ever used.
        ("one transaction, in memory", bulk, Options { work_mem_bytes: usize::MAX, ..usual }),
    ];
    for (name, work, options) in cases {
        let mut all = Vec::new();
        for _ in 0..repeats {
            all.push(run(work, options.clone(), &dir)?);
        }
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (seconds, came, counters) = &all[all.len() / 2];
        println!(
            "{name}: {:.2} M changes/s, {} rows out ({} bytes), spilled {} MB, {} blocks streamed, {} MB resident at most",
            f64::from(ROWS) / seconds / 1e6,
            came.rows,
            came.bytes,
            counters.spill_bytes >> 20,
            counters.stream_count,
            resident_at_most()? >> 10,
        );
        if counters.spill_bytes > 0 {
            println!("  {:.1} bytes a change", counters.spill_bytes as f64 / came.rows as f64);
        }
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

/// The processor time that this process has used.
fn processor_seconds() -> Result<f64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/self/schedstat")?;
    let nanoseconds: u64 = text.split_whitespace().next().ok_or("no number")?.parse()?;
    Ok(nanoseconds as f64 / 1e9)
}

/// `VmHWM`, in kB.
fn resident_at_most() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
}
