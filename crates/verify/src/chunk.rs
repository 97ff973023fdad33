//! The unit of a comparison: a range of a table's key, or the whole table.
//!
//! Bounds come from a sample of the source's pages and need not be exact. The ranges of a table
//! cover every possible key: the first has no lower and the last no upper bound. So each row of
//! either end is in exactly one range.

use client::Session;

use crate::Error;
use crate::range::KeyRange;
use crate::session;
use crate::table::ComparedTable;

/// Sampled pages for each chunk: enough for chunks whose sizes differ by about a fifth.
const SAMPLED_PAGES: f64 = 30.0;
/// PostgreSQL's usual size; only shares of a table depend on it.
const PAGE_BYTES: f64 = 8192.0;
/// A table not much larger than a chunk is not worth two.
const WORTH_SPLITTING: u64 = 3;

/// A range of one table, by its number.
#[derive(Debug, Clone)]
pub(crate) struct Chunk {
    pub(crate) table: usize,
    pub(crate) range: KeyRange,
    /// Its share of the source's table.
    pub(crate) bytes: u64,
    /// How often another session's lock was in the way.
    pub(crate) tries: u32,
}

/// The chunks of table number `number`.
pub(crate) async fn split(
    source: &Session,
    number: usize,
    table: &ComparedTable,
    chunk_bytes: u64,
) -> Result<Vec<Chunk>, Error> {
    let count = table.bytes.div_ceil(chunk_bytes.max(1));
    let mut bounds = Vec::new();
    if table.range_columns > 0 && table.bytes > chunk_bytes.saturating_mul(WORTH_SPLITTING) / 2 {
        let percent = (count as f64 * SAMPLED_PAGES * PAGE_BYTES / table.bytes as f64 * 100.0).min(100.0);
        let sql = table.source.bounds(table.range_columns, count, percent);
        let attempt = format!("look for the bounds of chunks of table \"{}\"", table.name);
        for row in session::rows(source, &attempt, &sql).await? {
            bounds.push(row.into_iter().flatten().collect());
        }
    }
    let ranges = ranges(bounds);
    let bytes = table.bytes / ranges.len() as u64;
    Ok(ranges.into_iter().map(|range| Chunk { table: number, range, bytes, tries: 0 }).collect())
}

/// Ranges between bounds that are in order, perhaps with equal ones.
fn ranges(mut bounds: Vec<Vec<String>>) -> Vec<KeyRange> {
    bounds.dedup();
    let mut ranges = Vec::with_capacity(bounds.len() + 1);
    let mut after = None;
    for bound in bounds {
        ranges.push(KeyRange { after: after.replace(bound.clone()), through: Some(bound) });
    }
    ranges.push(KeyRange { after, through: None });
    ranges
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_key_is_in_exactly_one_range(mut bounds in prop::collection::vec(0u32..50, 0..20), key in 0u32..60) {
            bounds.sort_unstable();
            let texts = bounds.iter().map(|bound| vec![bound.to_string()]).collect();
            let value = |bound: &Vec<String>| bound[0].parse::<u32>().unwrap();
            let holds = |range: &KeyRange| {
                range.after.as_ref().is_none_or(|after| key > value(after))
                    && range.through.as_ref().is_none_or(|through| key <= value(through))
            };
            prop_assert_eq!(ranges(texts).iter().filter(|range| holds(range)).count(), 1);
        }
    }

    #[test]
    fn without_bounds_there_is_one_chunk_with_everything() {
        assert_eq!(ranges(Vec::new()), [KeyRange::default()]);
        assert!(KeyRange::default().is_all());
    }
}
