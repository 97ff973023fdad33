//! Recorded WAL of every major, decoded as it is and with damage that no checksum shows: an error,
//! or what the bytes say.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod look;
#[path = "../../../wal/tests/damage/recorded.rs"]
#[allow(dead_code, reason = "the tests of `wal` use the rest")]
mod recorded;

use std::collections::BTreeSet;

use decode::decode;
use look::look;
use recorded::{cases, damage, random, recorded, seal};
use wal::{Layout, Record};

#[test]
fn every_record_of_the_recordings_is_known() {
    for recording in recorded() {
        let mut seen = BTreeSet::new();
        recording.each(|record| {
            let decoded = decode(record).unwrap_or_else(|error| panic!("{}: {error}", recording.name));
            look(&decoded.what);
            seen.insert(decoded.name);
        });
        for kind in [
            "INSERT",
            "MULTI_INSERT",
            "UPDATE",
            "DELETE",
            "TRUNCATE",
            "HEAP_CONFIRM",
            "COMMIT",
            "ABORT",
            "PREPARE",
            "COMMIT_PREPARED",
            "ABORT_PREPARED",
            "INVALIDATION",
            "MESSAGE",
            "NEW_CID",
        ] {
            assert!(seen.contains(kind), "{}: no {kind}", recording.name);
        }
    }
}

#[test]
fn sealed_damage_is_an_error_with_its_lsn_or_what_it_says() {
    let (mut errors, mut values) = (0, 0);
    for recording in recorded() {
        let major = recording.each(|record| record.layout().major())[0];
        let layout = Layout::of_major(major).unwrap();
        for (number, record) in recording.records().iter().enumerate() {
            for case in 0..cases(60) {
                let seed = (number as u64) << 32 | case;
                let damaged = damage(&record.bytes, &mut random(seed));
                let Ok(damaged) = Record::read(&damaged, record.lsn, record.end, layout) else { continue };
                let read = std::panic::catch_unwind(|| match decode(&damaged) {
                    Ok(decoded) => {
                        look(&decoded.what);
                        true
                    }
                    Err(error) => {
                        assert_eq!(error.lsn(), record.lsn);
                        assert!(error.to_string().contains(&record.lsn.to_string()));
                        false
                    }
                });
                match read {
                    Ok(true) => values += 1,
                    Ok(false) => errors += 1,
                    Err(_) => panic!("{}: seed {seed}", recording.name),
                }
            }
        }
    }
    assert!(errors > 10_000 && values > 10_000, "{errors} errors, {values} values");
}

/// Every operation of every resource manager that is in no table.
#[test]
fn an_unknown_kind_of_record_is_an_error_that_names_it() {
    for major in [14, 15, 16, 17, 18] {
        let layout = Layout::of_major(major).unwrap();
        let mut unknown = 0;
        for (rmid, info) in (0..=21_u8).flat_map(|rmid| (0..16_u8).map(move |op| (rmid, op << 4))) {
            let mut bytes = vec![0; 24];
            (bytes[16], bytes[17]) = (info, rmid);
            seal(&mut bytes);
            let lsn = base::Lsn::new(0x0123_4567_89a0);
            let record = Record::read(&bytes, lsn, lsn, layout).unwrap();
            if let Err(error) = decode(&record)
                && error.is_unknown_kind()
            {
                let text = error.to_string();
                assert!(text.contains("123/456789A0") && text.contains(&record.rmgr().to_string()), "{text}");
                unknown += 1;
            }
        }
        assert!(unknown > 100, "{major}: {unknown}");
    }
}
