//! The progress of the first copy, for bars, status and metrics.
//!
//! Written by the copy's workers, read by anyone; every figure is an atomic.
//! Figures of a table begin anew when it is emptied and copied again.
//!
//! The number of rows is an estimate until a table is done. It begins with the statistics or the
//! sampled pages (`crate::estimate`). Every copied range moves it towards the ratio of rows to size
//! on disk in that range. The first estimate weighs as much as a sixteenth of the table. For a
//! table that nobody has begun, the other tables tell how many bytes COPY makes of it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use source::publication::TableName;

/// Where a table stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableState {
    /// Not begun.
    Waiting,
    /// Rows are being copied.
    Copying,
    /// All rows are on the target, durably.
    Done,
}

/// One table.
#[derive(Debug)]
pub struct TableProgress {
    name: TableName,
    /// Before anything was copied.
    rows_estimated: AtomicU64,
    /// Its size on the source's disk.
    bytes_estimated: AtomicU64,
    /// The copied part of the table, by ranges that are done.
    done: Done,
    /// The same of all tables.
    all_done: Arc<Done>,
    rows: AtomicU64,
    bytes: AtomicU64,
    state: AtomicU8,
    times: Mutex<Times>,
    /// Whether the user was told that the table is put off.
    is_put_off: AtomicBool,
}

/// Ranges that were copied to their end.
#[derive(Debug, Default)]
struct Done {
    /// On the source's disk.
    disk_bytes: AtomicU64,
    rows: AtomicU64,
    /// As COPY data.
    bytes: AtomicU64,
}

impl Done {
    fn add(&self, disk_bytes: u64, rows: u64, bytes: u64) {
        self.disk_bytes.fetch_add(disk_bytes, Relaxed);
        self.rows.fetch_add(rows, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    fn clear(&self) {
        [&self.disk_bytes, &self.rows, &self.bytes].iter().for_each(|figure| figure.store(0, Relaxed));
    }
}

/// The first estimate weighs as much as one part in this many of the table.
const FIRST_WORD: f64 = 16.0;

#[derive(Debug, Default, Clone, Copy)]
struct Times {
    started: Option<Instant>,
    finished: Option<Instant>,
}

impl TableProgress {
    fn new(name: TableName, all_done: Arc<Done>) -> TableProgress {
        TableProgress {
            name,
            rows_estimated: AtomicU64::new(0),
            bytes_estimated: AtomicU64::new(0),
            done: Done::default(),
            all_done,
            rows: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            state: AtomicU8::new(TableState::Waiting as u8),
            times: Mutex::default(),
            is_put_off: AtomicBool::new(false),
        }
    }

    /// Marks the table as put off; true if the user was not told of it before.
    pub(crate) fn put_off(&self) -> bool {
        !self.is_put_off.swap(true, Relaxed)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &TableName {
        &self.name
    }

    /// The state of the table.
    #[must_use]
    pub fn state(&self) -> TableState {
        match self.state.load(Relaxed) {
            0 => TableState::Waiting,
            1 => TableState::Copying,
            _ => TableState::Done,
        }
    }

    /// Rows copied so far.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows.load(Relaxed)
    }

    /// Rows in the table: an estimate until the table is done, then the exact number.
    #[must_use]
    pub fn rows_estimated(&self) -> u64 {
        let first = self.rows_estimated.load(Relaxed);
        let (disk, done) = (self.bytes_estimated.load(Relaxed), self.done.disk_bytes.load(Relaxed));
        if self.state() != TableState::Copying || disk == 0 || done == 0 {
            return first.max(self.rows());
        }
        let (disk, done, rows) = (disk as f64, done as f64, self.done.rows.load(Relaxed) as f64);
        let rows_per_byte = (rows + first as f64 / FIRST_WORD) / (done + disk / FIRST_WORD);
        ((rows + rows_per_byte * (disk - done).max(0.0)) as u64).max(self.rows())
    }

    /// Bytes of COPY data so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Estimated bytes of COPY data: the copied bytes, scaled up by rows. Before the first row, the
    /// table's size on disk is scaled by the ratio in other tables.
    #[must_use]
    pub fn bytes_estimated(&self) -> u64 {
        let (bytes, rows) = (self.bytes(), self.rows());
        match rows {
            0 => {
                let disk = self.bytes_estimated.load(Relaxed);
                let others = (self.all_done.disk_bytes.load(Relaxed), self.all_done.bytes.load(Relaxed));
                let expected = match others {
                    (0, _) => disk,
                    (of, copied) => (disk as f64 * copied as f64 / of as f64) as u64,
                };
                expected.max(bytes)
            }
            _ => (bytes as f64 / rows as f64 * self.rows_estimated() as f64) as u64,
        }
    }

    /// 0 to 1; 1 only when done.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        match self.state() {
            TableState::Waiting => 0.0,
            TableState::Copying => (self.rows() as f64 / self.rows_estimated().max(1) as f64).min(0.999),
            TableState::Done => 1.0,
        }
    }

    /// Since its copy began, until it was done.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        let times = *self.times.lock().unwrap_or_else(PoisonError::into_inner);
        match (times.started, times.finished) {
            (Some(started), Some(finished)) => finished.saturating_duration_since(started),
            (Some(started), None) => started.elapsed(),
            _ => Duration::ZERO,
        }
    }

    pub(crate) fn start(&self) {
        self.done.clear();
        self.rows.store(0, Relaxed);
        self.bytes.store(0, Relaxed);
        self.state.store(TableState::Copying as u8, Relaxed);
        self.set_times(Times { started: Some(Instant::now()), finished: None });
    }

    /// A block of `rows` messages went to the target.
    pub(crate) fn add_block(&self, rows: u64, bytes: u64) {
        self.rows.fetch_add(rows, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// A range of `disk_bytes` on the source was copied: `rows` in `bytes`.
    pub(crate) fn unit_done(&self, disk_bytes: u64, rows: u64, bytes: u64) {
        self.done.add(disk_bytes, rows, bytes);
        self.all_done.add(disk_bytes, rows, bytes);
    }

    /// The server counted `rows` where we had counted `messages`: COPY's
    /// binary trailer is a message without a row.
    pub(crate) fn correct(&self, messages: u64, rows: u64) {
        self.rows.fetch_add(rows.wrapping_sub(messages), Relaxed);
    }

    pub(crate) fn finish(&self) {
        self.rows_estimated.store(self.rows(), Relaxed);
        self.state.store(TableState::Done as u8, Relaxed);
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.finished = Some(Instant::now());
    }

    fn set_times(&self, times: Times) {
        *self.times.lock().unwrap_or_else(PoisonError::into_inner) = times;
    }
}

/// Every table of this process's first copy.
#[derive(Debug, Default)]
pub struct CopyProgress {
    tables: Mutex<Vec<Arc<TableProgress>>>,
    done: Arc<Done>,
}

/// All tables together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopyTotals {
    /// Tables in all.
    pub tables: usize,
    /// Tables that are done.
    pub tables_done: usize,
    /// Rows copied so far.
    pub rows: u64,
    /// Rows there are, by estimate.
    pub rows_estimated: u64,
    /// Bytes of COPY data so far.
    pub bytes: u64,
    /// Bytes of COPY data there will be, by estimate.
    pub bytes_estimated: u64,
}

impl CopyProgress {
    /// The tables in the order they were announced.
    #[must_use]
    pub fn tables(&self) -> Vec<Arc<TableProgress>> {
        self.lock().clone()
    }

    /// Sums over all tables.
    #[must_use]
    pub fn totals(&self) -> CopyTotals {
        let mut totals = CopyTotals::default();
        for table in self.lock().iter() {
            totals.tables += 1;
            totals.tables_done += usize::from(table.state() == TableState::Done);
            totals.rows += table.rows();
            totals.rows_estimated += table.rows_estimated();
            totals.bytes += table.bytes();
            totals.bytes_estimated += table.bytes_estimated();
        }
        totals
    }

    /// The table's figures, waiting with new estimates. Another attempt at
    /// a table goes on with the same value.
    pub(crate) fn announce(&self, name: &TableName, rows: u64, bytes: u64) -> Arc<TableProgress> {
        let mut tables = self.lock();
        let table = match tables.iter().find(|table| table.name() == name) {
            Some(table) => Arc::clone(table),
            None => {
                tables.push(Arc::new(TableProgress::new(name.clone(), Arc::clone(&self.done))));
                Arc::clone(&tables[tables.len() - 1])
            }
        };
        table.state.store(TableState::Waiting as u8, Relaxed);
        table.done.clear();
        table.rows.store(0, Relaxed);
        table.bytes.store(0, Relaxed);
        table.rows_estimated.store(rows, Relaxed);
        table.bytes_estimated.store(bytes, Relaxed);
        table
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<TableProgress>>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_give_way_to_counts() {
        let progress = CopyProgress::default();
        let table = progress.announce(&TableName::new("s", "t"), 100, 8000);
        assert_eq!((table.rows_estimated(), table.bytes_estimated(), table.fraction()), (100, 8000, 0.0));
        table.start();
        table.add_block(11, 1100);
        table.correct(11, 10);
        assert_eq!((table.rows(), table.bytes_estimated()), (10, 11_000));
        assert!((table.fraction() - 0.1).abs() < 1e-9);
        table.finish();
        assert_eq!((table.rows_estimated(), table.bytes_estimated(), table.fraction()), (10, 1100, 1.0));
        let again = progress.announce(&TableName::new("s", "t"), 5, 10);
        assert!(Arc::ptr_eq(&table, &again));
        assert_eq!(
            progress.totals(),
            CopyTotals { tables: 1, rows_estimated: 5, bytes_estimated: 10, ..CopyTotals::default() }
        );
    }

    #[test]
    fn ranges_that_were_copied_mend_an_estimate_that_was_wrong() {
        let progress = CopyProgress::default();
        // Four times too many.
        let table = progress.announce(&TableName::new("s", "t"), 1_000_000, 16_000);
        let waiting = progress.announce(&TableName::new("s", "u"), 10, 4_000);
        table.start();
        let estimates: Vec<u64> = (0..16)
            .map(|_| {
                table.add_block(15_625, 500);
                table.unit_done(1_000, 15_625, 500);
                table.rows_estimated()
            })
            .collect();
        assert!(estimates.is_sorted_by(|before, after| before >= after), "{estimates:?}");
        assert!(estimates[0] < 650_000 && estimates[3] < 400_000 && estimates[7] < 300_000, "{estimates:?}");
        assert_eq!(estimates[15], 250_000);
        assert_eq!(waiting.bytes_estimated(), 2_000, "as COPY made of the other table");
        // Another attempt knows nothing of it.
        table.start();
        assert_eq!(table.rows_estimated(), 1_000_000);
    }
}
