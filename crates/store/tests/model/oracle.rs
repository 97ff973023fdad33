//! The answers that the store must give, kept in the simplest way: an ordered map of versions for
//! each tree.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;

use base::Lsn;
use store::Kind;

/// The LSN, whether it is a deletion, and the value.
pub(crate) type Answer = (u64, bool, Vec<u8>);

/// By key, newest first: whether it is a deletion, and the value.
pub(crate) type Versions = BTreeMap<(Vec<u8>, Reverse<u64>), (bool, Vec<u8>)>;

#[derive(Debug, Clone, Default)]
pub(crate) struct Oracle {
    pub(crate) trees: Vec<(Kind, Versions)>,
    pub(crate) committed: u64,
    pub(crate) horizon: u64,
}

impl Oracle {
    pub(crate) fn write(&mut self, tree: usize, key: &[u8], lsn: u64, delete: bool, value: &[u8]) {
        self.trees[tree].1.insert((key.to_vec(), Reverse(lsn)), (delete, value.to_vec()));
    }

    fn is_shown(kind: Kind, floor: u64, lsn: u64, delete: bool) -> bool {
        match kind {
            Kind::History => !(delete && lsn <= floor),
            Kind::Window => lsn >= floor,
        }
    }

    pub(crate) fn get(&self, tree: usize, key: &[u8], as_of: u64, floor: u64) -> Option<Answer> {
        let (kind, versions) = &self.trees[tree];
        let from = (key.to_vec(), Reverse(as_of));
        let ((found, Reverse(lsn)), (delete, value)) = versions.range(from..).next()?;
        let shown = found == key && Oracle::is_shown(*kind, floor, *lsn, *delete);
        shown.then(|| (*lsn, *delete, value.clone()))
    }

    pub(crate) fn scan(
        &self,
        tree: usize,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        as_of: u64,
        floor: u64,
        items_max: usize,
    ) -> Vec<(Vec<u8>, Answer)> {
        let (kind, versions) = &self.trees[tree];
        let mut answers: Vec<(Vec<u8>, Answer)> = Vec::new();
        let mut judged: Option<&[u8]> = None;
        let is_inside = |key: &[u8]| {
            (match range.0 {
                Bound::Included(start) => key >= start,
                Bound::Excluded(start) => key > start,
                Bound::Unbounded => true,
            }) && (match range.1 {
                Bound::Included(end) => key <= end,
                Bound::Excluded(end) => key < end,
                Bound::Unbounded => true,
            })
        };
        let start = match range.0 {
            Bound::Included(start) | Bound::Excluded(start) => start.to_vec(),
            Bound::Unbounded => Vec::new(),
        };
        for ((key, Reverse(lsn)), (delete, value)) in versions.range((start, Reverse(u64::MAX))..) {
            if answers.len() == items_max {
                break;
            }
            if *lsn > as_of || judged == Some(key) || !is_inside(key) {
                continue;
            }
            judged = Some(key);
            if Oracle::is_shown(*kind, floor, *lsn, *delete) {
                answers.push((key.clone(), (*lsn, *delete, value.clone())));
            }
        }
        answers
    }

    /// Forgets what the horizon allows. Only while there is no snapshot.
    pub(crate) fn forget(&mut self) {
        let horizon = self.horizon;
        for (kind, versions) in &mut self.trees {
            let mut judged: Option<Vec<u8>> = None;
            let kind = *kind;
            versions.retain(|(key, Reverse(lsn)), (delete, _)| match kind {
                Kind::Window => *lsn >= horizon,
                Kind::History if *lsn > horizon => true,
                Kind::History => {
                    let is_first = judged.as_ref() != Some(key);
                    judged = Some(key.clone());
                    is_first && !*delete
                }
            });
        }
    }
}

/// A version as an answer.
pub(crate) fn answer(version: store::Version) -> Answer {
    (version.lsn.as_u64(), version.is_delete, version.value)
}

pub(crate) fn lsn(lsn: u64) -> Lsn {
    Lsn::new(lsn)
}
