//! How much room counts as enough in a leaf, and what an attempt to make some is handed and
//! reports.
//!
//! `tree` decides when room is made, `neighbours` moves cells between leaves.

use crate::page::{Page, ROOM_BYTES};
use crate::removal::{View, removable};

/// Room that a leaf must have after bottom-up deletion so that it is not split for a new version of
/// a known key, unless the entry itself takes more. It is a twenty-fourth of the page, the room
/// that nbtree asks for after its pass. Only the room counts, not what was freed: a leaf that has
/// little beside one version of each key can free only that little, and must not be split for it.
/// Neighbours that share must both have it. With less, they would share again at the next entry;
/// with more (a sixteenth), leaves end up less full.
pub(crate) const ROOM_MIN_BYTES: usize = ROOM_BYTES / 24;

/// The same for a new key. The leaf then holds more keys than before, so a split is due anyway, and
/// putting it off must gain more.
pub(crate) const ROOM_MIN_NEW_KEY_BYTES: usize = ROOM_BYTES / 16;

/// A leaf or an inner page with fewer bytes than this looks for a neighbour to merge with.
pub(crate) const MERGE_BELOW_BYTES: usize = ROOM_BYTES / 4;

/// What bottom-up deletion may look at when a leaf is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BottomUp {
    /// The whole leaf. It has the versions and fences, and the horizon is in memory, so no other
    /// page is visited.
    #[default]
    Full,
    /// Half of the leaf's entries, from the incoming key on: the reviewer's restricted variant in
    /// the thread that the README names.
    Restricted,
    /// Never: a full leaf splits.
    Off,
}

impl BottomUp {
    /// The most cells of `leaf` that one attempt examines.
    pub(crate) fn examined_max(self, leaf: &Page) -> usize {
        match self {
            BottomUp::Full => usize::MAX,
            BottomUp::Restricted => leaf.count().div_ceil(2),
            BottomUp::Off => 0,
        }
    }
}

/// A cell that needs room, and how to look for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) lsn: u64,
    pub(crate) payload_len: usize,
    pub(crate) bottom_up: BottomUp,
    pub(crate) view: &'a View,
}

/// What writing a version did.
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
    /// A leaf was split, and older versions of the key stand in leaves of their own behind it.
    pub(crate) has_history: bool,
    /// Neighbouring leaves that shared their room.
    pub(crate) shares: u64,
}

/// `leaf` without the versions that no reader can need; `None` if there are none.
///
/// One comparison decides whether there can be any: the leaf knows the earliest LSN.
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
