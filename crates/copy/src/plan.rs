//! The unit that one COPY reads: a table, a leaf of a partitioned table, or a range of pages of
//! either.
//!
//! Pure arithmetic over sizes the source reported. Sizes may be out of date:
//! the first range has no lower and the last no upper bound, so every row
//! belongs to exactly one range whatever the table's size really is.

use source::publication::TableName;

/// Pages `from <= page < to`; a missing bound does not limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PageRange {
    pub(crate) from: Option<u64>,
    pub(crate) to: Option<u64>,
}

/// The rows that one COPY reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopyUnit {
    /// The relation that is read: the table itself or one of its leaves.
    pub(crate) relation: TableName,
    /// Read with everything below it.
    pub(crate) is_root: bool,
    pub(crate) pages: PageRange,
    /// Estimated size, for the order of work.
    pub(crate) bytes: u64,
}

/// A relation with storage on the source.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Heap {
    pub(crate) name: TableName,
    /// Pages of its main fork.
    pub(crate) pages: u64,
    /// With TOAST.
    pub(crate) bytes: u64,
    /// Its pages are numbered as ctid shows them: access method `heap`.
    pub(crate) has_pages: bool,
    /// By the last ANALYZE or VACUUM, scaled to its present size.
    pub(crate) rows: Option<f64>,
}

/// Minimum size of a range: below it, a transaction's fixed cost shows.
const RANGE_BYTES_MIN: u64 = 4 << 20;
/// Ranges per connection, so that what is left when the first connection
/// runs out of work is a small part of the whole.
const RANGES_PER_CONNECTION: u64 = 8;
/// A page of the server, for sizes that are only estimates.
const PAGE_BYTES: u64 = 8192;

/// How many bytes one range should have, when `total_bytes` are to be read
/// over `connections`. One connection has no use for ranges.
pub(crate) fn range_bytes(total_bytes: u64, connections: usize, split_bytes_max: u64) -> u64 {
    if connections < 2 {
        return u64::MAX;
    }
    let even = total_bytes / (connections as u64 * RANGES_PER_CONNECTION);
    even.max(RANGE_BYTES_MIN).min(split_bytes_max.max(PAGE_BYTES))
}

/// The ranges that cover a relation of `pages` pages.
pub(crate) fn page_ranges(pages: u64, pages_per_range: u64) -> Vec<PageRange> {
    let size = pages_per_range.max(1);
    let count = pages.div_ceil(size).max(1);
    // Even sizes: a short last range would leave its connection idle early.
    let size = pages.div_ceil(count).max(1);
    let count = pages.div_ceil(size).max(1);
    (0..count)
        .map(|index| PageRange {
            from: (index > 0).then_some(index * size),
            to: (index + 1 < count).then_some((index + 1) * size),
        })
        .collect()
}

/// The units of one relation with storage.
pub(crate) fn heap_units(heap: &Heap, range_bytes: u64) -> Vec<CopyUnit> {
    let unit = |pages, bytes| CopyUnit { relation: heap.name.clone(), is_root: false, pages, bytes };
    // A relation not much larger than one range is not worth two.
    if !heap.has_pages || heap.pages < 2 || heap.bytes <= range_bytes.saturating_add(range_bytes / 2) {
        return vec![unit(PageRange::default(), heap.bytes)];
    }
    // TOAST counts: pages with much of it make shorter ranges.
    let bytes_per_page = (heap.bytes / heap.pages).max(1);
    let ranges = page_ranges(heap.pages, range_bytes / bytes_per_page);
    let bytes = heap.bytes / ranges.len() as u64;
    ranges.into_iter().map(|range| unit(range, bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn covers(range: &PageRange, page: u64) -> bool {
        range.from.is_none_or(|from| page >= from) && range.to.is_none_or(|to| page < to)
    }

    proptest! {
        #[test]
        fn every_page_is_in_exactly_one_range(pages in 0u64..5000, size in 0u64..700, page in 0u64..10_000) {
            let ranges = page_ranges(pages, size);
            // Also pages beyond the size that was reported.
            prop_assert_eq!(ranges.iter().filter(|range| covers(range, page)).count(), 1);
        }

        #[test]
        fn ranges_are_in_order_and_about_even(pages in 1u64..1_000_000, size in 1u64..100_000) {
            let ranges = page_ranges(pages, size);
            for pair in ranges.windows(2) {
                prop_assert_eq!(pair[0].to, pair[1].from);
            }
            let length = |r: &PageRange| r.to.unwrap_or(pages) - r.from.unwrap_or(0);
            prop_assert!(ranges.iter().all(|r| (1..=size).contains(&length(r))));
        }

        #[test]
        fn a_range_is_never_larger_than_asked(total in 0u64..1 << 50, connections in 2usize..64, max in 0u64..1 << 34) {
            prop_assert!(range_bytes(total, connections, max) <= max.max(PAGE_BYTES));
        }
    }

    #[test]
    fn toast_makes_ranges_shorter_and_small_tables_stay_whole() {
        let heap =
            |pages, bytes| Heap { name: TableName::new("s", "t"), pages, bytes, has_pages: true, rows: None };
        assert_eq!(heap_units(&heap(1000, 1000 * 8192), 16 << 20).len(), 1);
        assert_eq!(heap_units(&heap(10_000, 10_000 * 8192), 8 << 20).len(), 10);
        assert_eq!(heap_units(&heap(1000, 800 << 20), 8 << 20).len(), 100);
        let foreign = Heap { has_pages: false, ..heap(10_000, 10_000 * 8192) };
        assert_eq!(heap_units(&foreign, 8 << 20).len(), 1);
        assert_eq!(range_bytes(1 << 40, 1, 1 << 20), u64::MAX);
    }
}
