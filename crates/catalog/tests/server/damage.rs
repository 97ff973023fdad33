//! Damaged bytes are an error or what they say, never a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

use catalog::Catalog;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use testkit::Major;
use wal::Record;

use crate::stage::{DB, Stage, Talk};

/// A damaged record with a correct checksum. The length, the previous record and the resource
/// manager stay.
fn sealed(record: &Record<'_>, at: usize, byte: u8) -> Vec<u8> {
    const HEADER: usize = 24;
    let mut bytes = record.bytes().to_vec();
    let at = HEADER + at % (bytes.len() - HEADER);
    bytes[at] ^= byte;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[HEADER..]), &bytes[..20]);
    bytes[20..24].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn damaged_records_about_catalogs() {
    let mut stage = Stage::start(Major::V18, &["CREATE TABLE t (id int PRIMARY KEY, v text)"]);
    let (runtime, url) = (Stage::runtime(), stage.cluster.url(DB));
    stage.catch_up();
    let talk = Talk::connect(&runtime, &url);
    talk.sql("CREATE TABLE u (id int); ALTER TABLE t ADD w text DEFAULT 'w'");
    stage.sql("CHECKPOINT");
    talk.sql(
        "BEGIN; CLUSTER pg_namespace USING pg_namespace_oid_index; CREATE SCHEMA s; ALTER TABLE t DROP v",
    );
    talk.sql("CREATE PUBLICATION p FOR TABLE t WHERE (id > 1); COMMIT");
    let (mut seed, mut errors, mut values) = (7_usize, 0, 0);
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    let mut before = stage.catalog.clone();
    stage
        .each(|catalog, record, _| {
            // Records that nothing is read from need no test, and copying a catalog takes time.
            let is_followed = record.first_locator().is_none_or(|locator| locator.relfilenumber < 30_000);
            if is_followed && next() % 3 == 0 {
                let bytes = sealed(record, next(), 1 + (next() % 255) as u8);
                let damaged = Record::read(&bytes, record.lsn(), record.end(), record.layout()).unwrap();
                let mut copy = before.clone();
                let read = catch_unwind(AssertUnwindSafe(|| copy.follow(&damaged).is_ok()));
                match read.unwrap_or_else(|_| panic!("{} {bytes:02x?}", record.lsn())) {
                    true => values += 1,
                    false => errors += 1,
                }
            }
            before.clone_from(catalog);
        })
        .unwrap();
    println!("{errors} errors, {values} values");
    assert!(errors > 5 && values > 15, "{errors} {values}");
}

#[test]
fn damaged_files() {
    let stage = Stage::start(Major::V15, &["CREATE TABLE t (id int PRIMARY KEY, v text)"]);
    let bytes = stage.catalog.to_bytes();
    let reseal = |bytes: &mut Vec<u8>| {
        let end = bytes.len() - 4;
        let crc = crc32c::crc32c(&bytes[..end]);
        bytes[end..].copy_from_slice(&crc.to_le_bytes());
    };
    for length in (0..200).chain((200..bytes.len()).step_by(20_011)) {
        assert!(Catalog::from_bytes(&bytes[..length]).unwrap_err().is_file(), "{length} bytes");
    }
    let mut other = bytes.clone();
    other[16] = 2;
    reseal(&mut other);
    assert!(Catalog::from_bytes(&other).unwrap_err().to_string().contains("version is 2"));
    let mut runner = TestRunner::new(Config { cases: 60, failure_persistence: None, ..Config::default() });
    let places = prop::collection::vec((any::<prop::sample::Index>(), 1..=u8::MAX), 1..4);
    runner
        .run(&(places, any::<bool>()), |(places, is_sealed)| {
            let mut damaged = bytes.clone();
            for (place, byte) in &places {
                let at = 28 + place.index(damaged.len() - 32);
                damaged[at] ^= byte;
            }
            if is_sealed {
                reseal(&mut damaged);
            }
            let read = Catalog::from_bytes(&damaged);
            prop_assert!(is_sealed || read.is_err());
            if let Ok(read) = read {
                // Whatever it contains now, it can be asked.
                for (database, _) in read.databases() {
                    let view = read.view(database, base::Xid::INVALID).unwrap();
                    for oid in view.relations() {
                        let _ = (view.relation(oid), view.published(&["p"], oid), view.types([oid]));
                    }
                }
            }
            Ok(())
        })
        .unwrap();
}
