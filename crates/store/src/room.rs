//! How much room counts as enough in a leaf, and what an attempt to make some is handed and reports.
//!
//! `tree` decides when room is made, `neighbours` moves cells between leaves.

use crate::page::{Page, ROOM_BYTES};
use crate::removal::{View, removable};

/// Room that must be there after bottom-up deletion for the leaf not to be split when a new version of a known
/// key comes, if the entry itself does not take more: a twenty-fourth of the page, as nbtree asks after its
/// pass. It is the room that counts, not what was freed: a leaf that has little beyond one version per key
/// can free only that little, and must not split over it. Neighbours that share must both have it, too: with
/// less they would share again at the next entry, with more (a sixteenth) leaves end up less full.
pub(crate) const ROOM_MIN_BYTES: usize = ROOM_BYTES / 24;

/// The same when a new key comes: the leaf holds more keys than before, so a split is due anyway, and putting
/// it off must win more.
pub(crate) const ROOM_MIN_NEW_KEY_BYTES: usize = ROOM_BYTES / 16;

/// Under this a leaf or an inner page looks for a neighbour to merge with.
pub(crate) const MERGE_BELOW_BYTES: usize = ROOM_BYTES / 4;

/// What bottom-up deletion may look at when a leaf is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BottomUp {
    /// The whole leaf: versions, horizon and fences stand in it, so no other page is visited.
    #[default]
    Full,
    /// Half the entries of the leaf, from the incoming key on: the message's restricted variant.
    Restricted,
    /// Never: a full leaf splits.
    Off,
}

impl BottomUp {
    /// Cells of `leaf` to be looked at in one attempt.
    pub(crate) fn examined_max(self, leaf: &Page) -> usize {
        match self {
            BottomUp::Full => usize::MAX,
            BottomUp::Restricted => leaf.count().div_ceil(2),
            BottomUp::Off => 0,
        }
    }
}

/// A cell that room is looked for, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) lsn: u64,
    pub(crate) payload_len: usize,
    pub(crate) bottom_up: BottomUp,
    pub(crate) view: &'a View,
}

/// What a version written brings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Versions that some horizon will make removable: this one, or its elder.
    pub(crate) debt: u64,
    /// Versions removed to make room.
    pub(crate) removed: u64,
    /// Attempts at bottom-up deletion.
    pub(crate) attempts: u64,
    /// Pages that were split.
    pub(crate) splits: u64,
    /// A leaf was split behind which older versions of the key stand in leaves of their own.
    pub(crate) has_history: bool,
    /// Neighbouring leaves that shared their room.
    pub(crate) shares: u64,
}

/// `leaf` without what nobody needs; `None` if that is nothing.
///
/// One comparison tells whether there can be anything: the leaf knows from which LSN on.
pub(crate) fn without_old(
    leaf: &Page,
    first: usize,
    examined_max: usize,
    view: &View,
    written: &mut Written,
) -> Option<Page> {
    if leaf.removable_from() > view.horizon {
        return None;
    }
    written.attempts += 1;
    let marks = removable(leaf, view, first, examined_max);
    marks.contains(&true).then(|| leaf.without(|index| marks[index]))
}
