//! The differences between majors in the records that are read, as a table.

use wal::Layout;

/// The facts of one major.
#[derive(Debug)]
pub(crate) struct Facts {
    major: u32,
    /// The length of an entry about dropped statistics in the record of a transaction's end; 0 if
    /// there are none.
    pub(crate) dropped_stats_item: usize,
    /// How many entries fit in a relation map, and its length with checksum and padding.
    pub(crate) map_entries: usize,
    pub(crate) map_length: usize,
    /// Whether a checkpoint has the `wal_level`.
    pub(crate) checkpoint_has_wal_level: bool,
}

static FACTS: [Facts; 5] = [
    Facts {
        major: 14,
        dropped_stats_item: 0,
        map_entries: 62,
        map_length: 512,
        checkpoint_has_wal_level: false,
    },
    Facts {
        major: 15,
        dropped_stats_item: 12,
        map_entries: 62,
        map_length: 512,
        checkpoint_has_wal_level: false,
    },
    Facts {
        major: 16,
        dropped_stats_item: 12,
        map_entries: 64,
        map_length: 524,
        checkpoint_has_wal_level: false,
    },
    Facts {
        major: 17,
        dropped_stats_item: 12,
        map_entries: 64,
        map_length: 524,
        checkpoint_has_wal_level: true,
    },
    Facts {
        major: 18,
        dropped_stats_item: 16,
        map_entries: 64,
        map_length: 524,
        checkpoint_has_wal_level: true,
    },
];

/// The facts of the major that wrote a record.
pub(crate) fn facts(layout: &Layout) -> &'static Facts {
    FACTS.iter().find(|facts| facts.major == layout.major()).expect("`wal` and `decode` know the same majors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_major_whose_pages_are_known_has_its_facts() {
        for major in 0..100 {
            if let Some(layout) = Layout::of_major(major) {
                assert_eq!(facts(layout).major, major);
            }
        }
    }
}
