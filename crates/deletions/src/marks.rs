//! How many tombstones there are, by where they were committed: what the bounds and the horizon
//! ask.
//!
//! Each commit of the memory leaves a mark. A mark stands for the tombstones between the mark
//! before it and its own LSN. Marks are merged when there are many, which only makes a later cut
//! coarser.

use std::collections::VecDeque;

use base::{Lsn, PgTimestamp};

/// More marks are merged in pairs: at ten a second, an hour is 36,000.
const MARKS_MAX: usize = 4096;

/// The tombstones of one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The last position that it stands for.
    pub(crate) lsn: Lsn,
    /// Tombstones.
    pub(crate) count: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// The greatest time of one of them.
    pub(crate) newest: Option<PgTimestamp>,
    /// When the mark was made, by the clock of pgsluice's machine.
    pub(crate) made: PgTimestamp,
}

impl Mark {
    pub(crate) const EMPTY: Mark =
        Mark { lsn: Lsn::INVALID, count: 0, bytes: 0, newest: None, made: PgTimestamp(0) };

    pub(crate) fn add(&mut self, bytes: usize, time: PgTimestamp) {
        self.count += 1;
        self.bytes += bytes as u64;
        self.newest = self.newest.max(Some(time));
    }

    /// Both, where `later` follows.
    fn with(self, later: Mark) -> Mark {
        Mark {
            lsn: later.lsn,
            count: self.count + later.count,
            bytes: self.bytes + later.bytes,
            newest: self.newest.max(later.newest),
            // The age counts from the oldest one.
            made: self.made,
        }
    }
}

/// The marks above what is forgotten, in the order of their LSNs.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    marks: VecDeque<Mark>,
    count: u64,
    bytes: u64,
}

impl Marks {
    pub(crate) fn push(&mut self, mark: Mark) {
        if mark.count == 0 {
            return;
        }
        self.count += mark.count;
        self.bytes += mark.bytes;
        self.marks.push_back(mark);
        if self.marks.len() > MARKS_MAX {
            let mut all = std::mem::take(&mut self.marks).into_iter();
            while let Some(first) = all.next() {
                self.marks.push_back(all.next().map_or(first, |second| first.with(second)));
            }
        }
    }

    /// Drops the marks up to `lsn`.
    pub(crate) fn forget(&mut self, lsn: Lsn) {
        while let Some(mark) = self.marks.front().copied().filter(|mark| mark.lsn <= lsn) {
            self.marks.pop_front();
            self.count -= mark.count;
            self.bytes -= mark.bytes;
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When the oldest one was made.
    pub(crate) fn oldest(&self) -> Option<PgTimestamp> {
        self.marks.front().map(|mark| mark.made)
    }

    /// The greatest time of a tombstone up to `lsn`.
    pub(crate) fn newest_up_to(&self, lsn: Lsn) -> Option<PgTimestamp> {
        self.marks.iter().take_while(|mark| mark.lsn <= lsn).filter_map(|mark| mark.newest).max()
    }

    /// The greatest time of any tombstone.
    pub(crate) fn newest(&self) -> Option<PgTimestamp> {
        self.marks.iter().filter_map(|mark| mark.newest).max()
    }

    /// The last mark that was made at `time` or before.
    pub(crate) fn made_up_to(&self, time: PgTimestamp) -> Option<Lsn> {
        // The clock may have stepped back, so they need not be in order.
        self.marks.iter().rfind(|mark| mark.made <= time).map(|mark| mark.lsn)
    }

    /// Where to cut so that no more than `bytes` are left; `None` if that is so already.
    pub(crate) fn excess(&self, bytes: u64) -> Option<Lsn> {
        let mut left = self.bytes;
        let mut at = None;
        for mark in &self.marks {
            if left <= bytes {
                break;
            }
            left -= mark.bytes;
            at = Some(mark.lsn);
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(lsn: u64, bytes: u64) -> Mark {
        let time = PgTimestamp(lsn.cast_signed() * 10);
        Mark { lsn: Lsn::new(lsn), count: 1, bytes, newest: Some(time), made: time }
    }

    #[test]
    fn sums_follow_what_is_forgotten() {
        let mut marks = Marks::default();
        (1..=10).for_each(|lsn| marks.push(mark(lsn, 100)));
        marks.push(Mark { count: 0, ..mark(11, 0) });
        assert_eq!((marks.count(), marks.bytes()), (10, 1000));
        assert_eq!(marks.excess(1000), None);
        assert_eq!(marks.excess(950), Some(Lsn::new(1)));
        assert_eq!(marks.excess(0), Some(Lsn::new(10)));
        assert_eq!(marks.made_up_to(PgTimestamp(35)), Some(Lsn::new(3)));
        assert_eq!(marks.newest_up_to(Lsn::new(4)), Some(PgTimestamp(40)));
        marks.forget(Lsn::new(4));
        assert_eq!((marks.count(), marks.bytes(), marks.oldest()), (6, 600, Some(PgTimestamp(50))));
        assert_eq!(marks.newest_up_to(Lsn::new(4)), None);
        assert_eq!(marks.newest(), Some(PgTimestamp(100)));
    }

    #[test]
    fn many_marks_are_merged_and_lose_nothing() {
        let mut marks = Marks::default();
        let all = 3 * MARKS_MAX as u64;
        (1..=all).for_each(|lsn| marks.push(mark(lsn, 1)));
        assert!(marks.marks.len() <= MARKS_MAX);
        assert_eq!((marks.count(), marks.bytes(), marks.oldest()), (all, all, Some(PgTimestamp(10))));
        marks.forget(Lsn::new(all));
        assert_eq!((marks.count(), marks.bytes()), (0, 0));
    }
}
