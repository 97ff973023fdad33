//! The early filter on recorded WAL: what it drops, what it counts, and how much memory it needs.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "damage/recorded.rs"]
#[allow(dead_code, reason = "the tests of damage use the rest")]
mod recorded;
#[path = "../../proto/tests/mutations/weigh.rs"]
mod weigh;

use std::collections::BTreeMap;

use base::{Oid, RelFileLocator};
use recorded::recorded;
use wal::{Actions, Dropped, Interest, LocatorFilterCache, Reader, Record, Rmgr, Start, Verdict};

const TABLE: Oid = Oid(20_000);

/// Whether a record changes rows, by its operation: insert, delete, update, hot update, confirm;
/// multi-insert.
fn changes_a_row(record: &Record<'_>) -> bool {
    matches!(
        (record.rmgr(), record.info() & 0x70),
        (Rmgr::Heap, 0x00 | 0x10 | 0x20 | 0x40 | 0x50 | 0x70) | (Rmgr::Heap2, 0x50)
    )
}

/// Every file whose rows change in the recording, and how often.
fn files(recording: &recorded::Recorded) -> BTreeMap<RelFileLocator, Dropped> {
    let mut files = BTreeMap::<RelFileLocator, Dropped>::new();
    recording.each(|record| {
        if changes_a_row(record) {
            let dropped = files.entry(record.first_locator().unwrap()).or_default();
            dropped.records += 1;
            dropped.bytes += record.bytes().len() as u64;
        }
    });
    files
}

/// The database of most files.
fn database(files: &BTreeMap<RelFileLocator, Dropped>) -> Oid {
    files.keys().map(|locator| locator.database).max().unwrap()
}

#[test]
fn what_nobody_wants_is_dropped_and_counted_and_nothing_is_allocated() {
    for recording in recorded() {
        let files = files(&recording);
        let mut cache = LocatorFilterCache::new([database(&files)]);
        for (number, locator) in files.keys().enumerate() {
            cache.insert(*locator, Oid(number as u32), Interest::Rows(Actions::NONE));
        }
        let (mut other, mut dropped) = (0_u64, 0_u64);
        // In pieces, as from files. Only a record that crosses a page is put together and takes
        // memory.
        let mut reader = Reader::new(Start::at(recording.start)).unwrap();
        let longest = recording.each(|record| record.bytes().len()).into_iter().max().unwrap();
        let held = weigh::most_held(|| {
            let mut records = reader.push(recording.start, &recording.bytes).unwrap();
            while let Some(record) = records.poll().unwrap() {
                match cache.judge(&record) {
                    Verdict::Other => other += 1,
                    Verdict::Dropped => dropped += 1,
                    verdict => panic!("{}: {verdict:?} for {}", recording.name, record.lsn()),
                }
                record.top_level_xid().unwrap();
            }
        });
        assert!(held <= 4 * longest, "{}: {held} bytes, the longest record has {longest}", recording.name);
        assert!(dropped > 50 && other > 50, "{}: {dropped} dropped, {other} others", recording.name);
        let counted: Vec<Dropped> = cache.dropped().into_iter().map(|(_, dropped)| dropped).collect();
        let mut expected: Vec<_> = files.iter().enumerate().collect();
        expected.sort_by_key(|(number, (locator, _))| (locator.database, *number));
        assert_eq!(counted, expected.into_iter().map(|(_, (_, dropped))| *dropped).collect::<Vec<_>>());
        assert_eq!(cache.dropped_elsewhere(), Dropped::default());
    }
}

#[test]
fn an_action_that_is_wanted_passes_and_the_others_do_not() {
    for recording in recorded() {
        let files = files(&recording);
        for (interest, wanted) in [
            (Interest::Rows(Actions::INSERT), [true, false, true, false]),
            (Interest::Rows(Actions::UPDATE), [false, true, false, false]),
            // A speculative insertion that is taken back looks like a deletion, so it is wanted
            // with inserts.
            (Interest::Rows(Actions::DELETE), [false, false, true, false]),
            (Interest::Rows(Actions::TRUNCATE), [false, false, false, false]),
            (Interest::Catalog, [true, true, true, true]),
        ] {
            let mut cache = LocatorFilterCache::new([]);
            for locator in files.keys() {
                cache.insert(*locator, TABLE, interest);
            }
            recording.each(|record| {
                let kind = match (record.rmgr(), record.info() & 0x70) {
                    (Rmgr::Heap, 0x00 | 0x50) | (Rmgr::Heap2, 0x50) => 0,
                    (Rmgr::Heap, 0x20 | 0x40) => 1,
                    (Rmgr::Heap, 0x10) => 2,
                    (Rmgr::Heap, 0x70) => 3,
                    _ => return assert_eq!(cache.judge(record), Verdict::Other),
                };
                let expected = if wanted[kind] { Verdict::Wanted(TABLE) } else { Verdict::Dropped };
                assert_eq!(cache.judge(record), expected, "{}: {}", recording.name, record.lsn());
            });
        }
    }
}

#[test]
fn files_are_unknown_until_told_and_after_they_are_forgotten() {
    for recording in recorded() {
        let files = files(&recording);
        let database = database(&files);
        let mut cache = LocatorFilterCache::new([database]);
        let verdicts = |cache: &mut LocatorFilterCache| {
            let mut verdicts = BTreeMap::new();
            recording.each(|record| {
                if changes_a_row(record) {
                    verdicts.insert(record.first_locator().unwrap(), cache.judge(record));
                }
            });
            verdicts
        };
        let unknown = |locator: &RelFileLocator| Verdict::Unknown(*locator);
        let first = verdicts(&mut cache);
        assert!(first.iter().all(|(locator, verdict)| *verdict == unknown(locator)));

        let fill = |cache: &mut LocatorFilterCache| {
            for (number, locator) in files.keys().enumerate() {
                cache.insert(*locator, Oid(number as u32), Interest::Rows(Actions::NONE));
            }
        };
        fill(&mut cache);
        assert!(verdicts(&mut cache).values().all(|verdict| *verdict == Verdict::Dropped));
        let sum = |cache: &LocatorFilterCache| cache.dropped().iter().map(|(_, d)| d.records).sum::<u64>();
        let counted = sum(&cache);

        let (number, some) = files.keys().enumerate().find(|(_, l)| l.database == database).unwrap();
        cache.forget_relation(database, Oid(number as u32));
        let after = verdicts(&mut cache);
        assert!(after.iter().all(|(locator, verdict)| (*verdict == unknown(some)) == (locator == some)));
        assert!(sum(&cache) > counted, "what was counted stays, and counting goes on");

        fill(&mut cache);
        cache.forget(*some);
        assert_eq!(verdicts(&mut cache)[some], unknown(some));
        assert_eq!(cache.get(*some), None);

        fill(&mut cache);
        cache.forget_database(database);
        for (locator, verdict) in verdicts(&mut cache) {
            assert_eq!(verdict == Verdict::Dropped, locator.database != database, "{locator}");
        }
        fill(&mut cache);
        cache.forget_all();
        assert!(verdicts(&mut cache).iter().all(|(locator, verdict)| *verdict == unknown(locator)));

        // Files of another database are never wanted, those of shared catalogs always are.
        let mut elsewhere = LocatorFilterCache::new([Oid(1)]);
        for (locator, verdict) in verdicts(&mut elsewhere) {
            let expected = if locator.database == Oid(0) { unknown(&locator) } else { Verdict::Dropped };
            assert_eq!(verdict, expected);
        }
        assert!(elsewhere.dropped_elsewhere().records > 50);
    }
}
