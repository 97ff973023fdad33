//! The source mode of a scenario that does not name one: `logical` on one of the majors under test,
//! `wal` on the next.
//!
//! The first major's mode differs from test to test and from run to run. A printed seed repeats it,
//! and a seed that is greater by one gives the other half. A test that cannot hold over WAL stands
//! in [`LOGICAL`] with the reason.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write as _};
use std::sync::{LazyLock, Mutex};

use rand::Rng;
use testkit::{Major, source_mode, test_name};

const SEED: &str = "PGSLUICE_TEST_SOURCE_SEED";

const NATIVE: &str = "a native subscription has a logical slot";
const FAILOVER: &str = "`failover` tells it of WAL";
const EXTENSION: &str = "what types of extensions look like only their server knows";
const NAMES: &str = "regclass and the like are names, which only their server knows";

/// Tests that read a logical slot on every major, by how their names begin, and why.
const LOGICAL: &[(&str, &str)] = &[
    ("adopt::", NATIVE),
    ("errors::a_publication_dropped_and_made_again", "it is told over both, because walsenders differ in it"),
    ("errors::a_slot_made_again_under_the_same_name", "it makes logical slots"),
    ("errors::a_standby_promoted_under_the_stream", FAILOVER),
    ("errors::a_stream_that_is_altered_or_cut", "it alters messages of pgoutput"),
    ("faults::a_full_disk_under_the_spool", "its disk has no room for the catalogs that are kept"),
    ("identity::a2_keys_that_are_not_compared_byte_by_byte", EXTENSION),
    ("progress::p4_a_restored_target", "WAL is kept from before what the target lost, and comes again"),
    ("relaxed::p1_what_was_committed_ahead_is_not_released", NATIVE),
    ("types::arrays_of_built_in_types", NAMES),
    ("types::built_in_types_in_text", NAMES),
    ("types::types_without_input", "what only catalogs hold is refused"),
    ("types::user_defined_types", EXTENSION),
];

/// The mode for this test on `major`; `None` where it is not chosen here, because of [`LOGICAL`] or
/// because one was chosen for all tests.
pub(super) fn chosen(major: Major) -> Option<&'static str> {
    static CHOSEN: LazyLock<u64> = LazyLock::new(|| {
        let seed = std::env::var(SEED).ok().filter(|seed| !seed.is_empty());
        let seed = seed.map(|seed| seed.parse().unwrap_or_else(|_| panic!("{SEED}: {seed:?}")));
        let seed = seed.unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
        // Not captured: it belongs to the results.
        let _ = writeln!(io::stderr(), "{SEED}={seed}");
        seed
    });
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let test = test_name();
    if source_mode().is_some() || test.is_empty() {
        return None;
    }
    if let Some((_, why)) = LOGICAL.iter().find(|(names, _)| test.starts_with(*names)) {
        if TOLD.lock().unwrap().insert(test.clone()) {
            let _ = writeln!(io::stderr(), "{test} is not told over WAL: {why}");
        }
        return None;
    }
    let mut first = DefaultHasher::new();
    test.hash(&mut first);
    let place = Major::under_test().iter().position(|other| *other == major).unwrap_or_default();
    Some(["logical", "wal"][((first.finish() ^ *CHOSEN) as usize % 2 + place) % 2])
}
