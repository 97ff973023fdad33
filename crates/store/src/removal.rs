//! Decides which versions no reader can need any more. It is handed a leaf and the readers, and
//! returns the cells that may be removed.
//!
//! Let `H` be the horizon in force, which is never above the last durable commit. A reader sees the
//! state as of its LSN `S`, and `F` is the horizon at the time it began. `w` is the next newer
//! version of the key after `v`:
//!
//! | tree | version | goes when | and no reader with |
//! | --- | --- | --- | --- |
//! | history | `v`, superseded by `w` | `w <= H` | `v <= S < w` |
//! | history | `v`, a deletion, no older version left | `v <= H` | `F < v <= S` |
//! | window | any `v` | `v < H` | `F <= v <= S` |
//!
//! `w <= H` implies that `w` is durable: a crash cannot take `w` back after `v` is gone (rule S3).
//! [`hidden`] is the other side: it says which versions a reader no longer sees, whether or not
//! they are still there. So an answer never depends on when a leaf was last full.

use crate::page::Page;

/// Whether a reader at `floor` does not see a version, although it may still be there.
pub(crate) fn hidden(window: bool, floor: u64, lsn: u64, delete: bool) -> bool {
    if window { lsn < floor } else { delete && lsn <= floor }
}

/// The horizon in force, and the readers.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    pub(crate) horizon: u64,
    /// Each reader's floor and LSN.
    pub(crate) readers: Vec<(u64, u64)>,
}

impl View {
    fn is_superseded(&self, lsn: u64, newer: u64) -> bool {
        newer <= self.horizon && !self.readers.iter().any(|&(_, at)| lsn <= at && at < newer)
    }

    fn is_forgotten_deletion(&self, lsn: u64) -> bool {
        lsn <= self.horizon && !self.readers.iter().any(|&(floor, at)| floor < lsn && lsn <= at)
    }

    fn is_out_of_window(&self, lsn: u64) -> bool {
        lsn < self.horizon && !self.readers.iter().any(|&(floor, at)| floor <= lsn && lsn <= at)
    }
}

/// Marks the cells of `leaf` that may be removed. It looks at whole keys, beginning with the key at
/// `first` and going on at the leaf's beginning, until it has examined `examined_max` cells.
pub(crate) fn removable(leaf: &Page, view: &View, first: usize, examined_max: usize) -> Vec<bool> {
    let count = leaf.count();
    let mut marks = vec![false; count];
    let mut begin = first.min(count);
    while begin > 0 && begin < count && leaf.is_one_key(begin - 1, begin) {
        begin -= 1;
    }
    let mut examined = 0;
    for (from, to) in [(begin, count), (0, begin)] {
        let mut start = from;
        while start < to && examined < examined_max {
            let mut end = start + 1;
            while end < to && leaf.is_one_key(end - 1, end) {
                end += 1;
            }
            judge_key(leaf, view, start, end, &mut marks);
            examined += end - start;
            start = end;
        }
    }
    marks
}

/// Judges the versions of one key, newest first, in cells `start..end`.
fn judge_key(leaf: &Page, view: &View, start: usize, end: usize, marks: &mut [bool]) {
    if leaf.is_window() {
        (start..end).for_each(|index| marks[index] = view.is_out_of_window(leaf.lsn(index)));
        return;
    }
    let mut newer = if start == 0 { leaf.fence_successor(leaf.cell(0).suffix) } else { None };
    for (index, mark) in marks.iter_mut().enumerate().take(end).skip(start) {
        let lsn = leaf.lsn(index);
        *mark = newer.is_some_and(|newer| view.is_superseded(lsn, newer));
        newer = Some(lsn);
    }
    if end == leaf.count() && leaf.goes_on_right(&leaf.key(end - 1)) {
        // Without the deletion, an older version in the next leaf would become visible again.
        return;
    }
    for index in (start..end).rev() {
        if marks[index] {
            continue;
        }
        if !leaf.is_delete(index) || !view.is_forgotten_deletion(leaf.lsn(index)) {
            return;
        }
        marks[index] = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Builder, Cell, CellFlags, Fence, NEWEST, NodeHead};

    /// A leaf with versions of key "k"; a negative LSN is a deletion.
    fn leaf(window: bool, low: Option<u64>, high: Option<u64>, versions: &[i64]) -> Page {
        let head = NodeHead { id: 1, tree: 0, level: 0, window, fence_void: false };
        let fence = |lsn| Fence { key: b"k".to_vec(), lsn };
        let low = low.map_or(Fence::start(), fence);
        let mut builder = Builder::new(head, &low, high.map(fence).as_ref());
        let suffix = if low.key.is_empty() || high.is_none() { &b"k"[..] } else { b"" };
        for lsn in versions {
            let flags = CellFlags { delete: *lsn < 0, overflow: false };
            assert!(builder.push(
                &b"k"[..1 - suffix.len()],
                Cell { suffix, lsn: lsn.unsigned_abs(), flags, payload: b"" }
            ));
        }
        builder.finish()
    }

    /// The LSNs that are removed.
    fn gone(leaf: &Page, horizon: u64, readers: &[(u64, u64)]) -> Vec<u64> {
        let view = View { horizon, readers: readers.to_vec() };
        let marks = removable(leaf, &view, 0, usize::MAX);
        leaf.cells().zip(marks).filter(|(_, mark)| *mark).map(|(cell, _)| cell.lsn).collect()
    }

    #[test]
    fn s1_history_keeps_what_the_horizon_sees_and_all_above() {
        let leaf = leaf(false, None, None, &[50, 40, 30, 20, 10]);
        assert_eq!(gone(&leaf, 35, &[]), [20, 10]);
        assert_eq!(gone(&leaf, 40, &[]), [30, 20, 10]);
        assert_eq!(gone(&leaf, 9, &[]), [0; 0]);
    }

    #[test]
    fn s1_a_window_forgets_everything_below_the_horizon() {
        let leaf = leaf(true, None, None, &[50, -40, 30, 20]);
        assert_eq!(gone(&leaf, 40, &[]), [30, 20]);
        assert_eq!(gone(&leaf, 99, &[]), [50, 40, 30, 20], "the newest and deletions too");
        assert_eq!(gone(&leaf, 99, &[(25, 45)]), [50, 20], "what a reader sees stays");
    }

    #[test]
    fn s3_a_version_stays_while_a_reader_lies_before_its_successor() {
        let leaf = leaf(false, None, None, &[50, 40, 30, 20, 10]);
        assert_eq!(gone(&leaf, 50, &[(0, 25)]), [40, 30, 10]);
        assert_eq!(gone(&leaf, 50, &[(0, 29), (0, 30)]), [40, 10]);
    }

    #[test]
    fn a_deletion_goes_last_and_only_when_nothing_older_is_left() {
        let leaf = leaf(false, None, None, &[-30, 20]);
        assert_eq!(gone(&leaf, 30, &[]), [30, 20]);
        assert_eq!(gone(&leaf, 30, &[(0, 25)]), [0; 0], "20 is read, so 30 must hide it from the others");
        assert_eq!(
            gone(&leaf, 30, &[(10, 35)]),
            [20],
            "a reader from before the horizon still sees the deletion"
        );
        assert_eq!(gone(&leaf, 29, &[]), [0; 0]);
    }

    #[test]
    fn a_deletion_stays_where_its_key_goes_on_in_the_next_leaf() {
        assert_eq!(gone(&leaf(false, None, Some(29), &[-30]), 99, &[]), [0; 0]);
        assert_eq!(gone(&leaf(false, None, Some(NEWEST), &[]), 99, &[]), [0; 0]);
    }

    #[test]
    fn the_fence_names_the_successor_in_the_leaf_before() {
        let leaf = leaf(false, Some(29), None, &[20, 10]);
        assert_eq!(gone(&leaf, 30, &[]), [20, 10], "30 stands in the leaf before");
        assert_eq!(gone(&leaf, 29, &[]), [10]);
    }

    #[test]
    fn examination_starts_at_the_key_that_grows_and_ends_at_its_bound() {
        let head = NodeHead { id: 1, tree: 0, level: 0, window: false, fence_void: false };
        let mut page = Builder::new(head, &Fence::start(), None).finish();
        for key in [b"a", b"b", b"c"] {
            for lsn in [1, 2] {
                let index = page.search(key, lsn).unwrap_err();
                page.insert(index, key, lsn, CellFlags::default(), b"");
            }
        }
        let view = View { horizon: 9, readers: Vec::new() };
        assert_eq!(removable(&page, &view, 3, 2), [false, false, false, true, false, false]);
        assert_eq!(removable(&page, &view, 3, 4), [false, false, false, true, false, true]);
        assert_eq!(removable(&page, &view, 5, 4), [false, true, false, false, false, true], "around the end");
    }
}
