//! A late follower: a test that waits for it in vain names it, its settings and its state.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::support::{FOLDED, ONE_BY_ONE, Session, scenario_with};

/// One of two followers waits for a lock on its target and makes no progress; the other is level.
#[test]
fn a_follower_that_stands_still_is_named_with_its_settings_and_its_status() {
    scenario_with(&[FOLDED, ONE_BY_ONE], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.follow();
        let mut holder = Session::to(&s.target_url(1));
        holder.run("BEGIN; LOCK t");
        s.source("INSERT INTO t VALUES (1)");
        let mark = s.mark();
        s.wait_for_mark_of(0, mark);
        let there = format!("SELECT count(*) FROM mark WHERE id = {mark}");
        let waited = catch_unwind(AssertUnwindSafe(|| {
            let bound = Duration::from_millis(600);
            s.wait_for_follower_within(bound, 1, "the other mark", |s| Ok(s.target_one_of(1, &there) == "1"));
        }));
        let report = waited.unwrap_err().downcast::<String>().expect("words");
        for words in [
            "for the other mark, in vain",
            "follower 1 of 2",
            "--batch-rows-max 2",
            "--- its status:\n",
            "streaming",
            "Lock/relation",
            "INSERT INTO",
            s.slot(1).as_str(),
            "replicating from",
        ] {
            assert!(report.contains(words), "{words} is not in {report}");
        }
        holder.run("COMMIT");
        s.catch_up();
        s.same();
    });
}
