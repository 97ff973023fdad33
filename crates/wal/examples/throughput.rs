//! Measures how fast WAL is read when no rows of it are wanted: the segments of a directory, on one
//! core.
//!
//! `cargo run --release -p wal --example throughput -- DIR [REPEATS]` reads the segments in the
//! order of their names. It reads them from memory, so that the reader is measured and not the
//! disk. Every record's checksum is compared. The filter, which is told of each table once, judges
//! and drops every change of a row.

use std::error::Error;
use std::time::{Duration, Instant};

use base::{Lsn, Oid};
use wal::{Actions, Interest, LocatorFilterCache, Reader, Start, Verdict};

#[derive(Default)]
struct Figures {
    bytes: u64,
    records: u64,
    dropped: u64,
    took: Duration,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("which directory of segments?")?;
    let repeats = arguments.next().map_or(Ok(5), |number| number.parse())?;
    let segments = segments(&dir)?;
    let mut all = Vec::new();
    for _ in 0..repeats {
        all.push(read(&segments)?);
    }
    all.sort_by_key(|figures: &Figures| figures.took);
    let Figures { bytes, records, dropped, took } = &all[all.len() / 2];
    let seconds = took.as_secs_f64();
    println!(
        "{:.3} GB, {records} records, {dropped} dropped: {seconds:.3} s, {:.2} GB/s, {:.1} M records/s (median of {repeats})",
        *bytes as f64 / 1e9,
        *bytes as f64 / 1e9 / seconds,
        *records as f64 / 1e6 / seconds,
    );
    Ok(())
}

/// The segments of a directory, from the first to the last.
fn segments(dir: &str) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.len() == 24 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths.iter().map(std::fs::read).collect::<Result<_, _>>()?)
}

/// Reads up to the end of WAL: the end of the last segment, or zeros or pages of an earlier time.
fn read(segments: &[Vec<u8>]) -> Result<Figures, Box<dyn Error>> {
    let first = segments.first().and_then(|segment| segment.get(8..16)).ok_or("there is no segment")?;
    let start = Lsn::new(u64::from_le_bytes(first.try_into()?));
    let mut reader = Reader::new(Start::at(start))?;
    let mut cache = LocatorFilterCache::new([]);
    let mut figures = Figures::default();
    let started = Instant::now();
    for segment in segments {
        let mut records = reader.push(reader.position(), segment)?;
        while let Some(record) = records.poll()? {
            figures.records += 1;
            let mut verdict = cache.judge(&record);
            if let Verdict::Unknown(locator) = verdict {
                cache.insert(locator, Oid(locator.relfilenumber), Interest::Rows(Actions::NONE));
                verdict = cache.judge(&record);
            }
            if verdict == Verdict::Dropped {
                record.top_level_xid()?;
                figures.dropped += 1;
            }
        }
        if reader.zeros_from().is_some() {
            break;
        }
    }
    figures.took = started.elapsed();
    figures.bytes = reader.zeros_from().unwrap_or(reader.position()).bytes_since(start);
    Ok(figures)
}
