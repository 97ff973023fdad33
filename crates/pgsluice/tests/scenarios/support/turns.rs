//! The majors that a scenario is told on: all under test, or one of them in its turn if it takes
//! long ([`Major::in_turn`]). `cargo x test` has slow scenarios take turns, unless it is told which
//! majors to test.

use testkit::{Major, test_name};

/// Modules that take long. On two majors they were three quarters of all scenarios' time.
const SLOW: &[&str] = &[
    "adopt::",
    "archived::",
    "bags::",
    "binary::",
    "both_ways::",
    "errors::",
    "every_rule::",
    "exceptions::",
    "failures::",
    "folds::",
    "identity::",
    "observed::",
    "parallel::",
    "prefetch::",
    "progress::",
    "refresh::",
    "replaced::",
    "shared::",
    "tables::",
    "transactions::",
    "two_way::",
    "types::",
    "update_deleted_faults::",
    "verify::",
];

/// The majors for the test of this thread.
pub(super) fn majors() -> Vec<Major> {
    let test = test_name();
    // A golden theme stands in no module, and has six strategies.
    if !test.contains("::") || SLOW.iter().any(|slow| test.starts_with(slow)) {
        return Major::in_turn();
    }
    Major::under_test()
}
