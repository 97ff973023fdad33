//! The kind: a commit time of the source that the target's clock has not reached, because the
//! source's clock is ahead.
//!
//! A session with an origin writes commits with any time that it likes, as a replicated commit has
//! the time of another server. So most of these scenarios need no server with a wrong clock.

use std::time::Duration;

use testkit::{Builder, wait_for};

use crate::both_ways::drop_both;
use crate::support::{BOUND, DECODED, FOLDED, ONE_BY_ONE, Scenario, Session, scenario_alone};
use crate::two_way::{WayBack, wait_until_both};

const TABLE: &str = "CREATE TABLE t (id int PRIMARY KEY, v text)";
const RULES: [&str; 4] =
    ["--conflict", "insert_exists=last_update_wins", "--conflict", "update_origin_differs=last_update_wins"];

/// Runs the scenario with sets, one change at a time, several workers, and WAL decoded here.
fn with_rules(rules: &[&str], more: &[&str], run: impl Fn(&mut Scenario) + Sync) {
    const RELAXED: &[&str] =
        &["--commit-order", "relaxed", "--max-parallel-apply-workers-per-subscription", "3"];
    let strategies = [FOLDED, ONE_BY_ONE, RELAXED, DECODED].map(|strategy| [rules, more, strategy].concat());
    scenario_alone(&strategies.each_ref().map(Vec::as_slice), track, track, run);
}

fn track(builder: Builder) -> Builder {
    builder.setting("track_commit_timestamp", "on")
}

fn with_clock(builder: Builder) -> Builder {
    track(builder).own_clock()
}

/// A session of the source whose commits get the times that it gives them.
fn ahead(s: &Scenario) -> Session {
    let mut session = Session::to(&s.source_url());
    session.run(
        "SELECT pg_replication_origin_create('ahead'); SELECT pg_replication_origin_session_setup('ahead')",
    );
    session
}

/// Commits `sql` with a time that is `seconds` from now.
fn commit_at(session: &mut Session, seconds: u32, sql: &str) {
    session.run(&format!(
        "BEGIN; {sql}; \
         SELECT pg_replication_origin_xact_setup('0/1', clock_timestamp() + interval '{seconds} s'); COMMIT"
    ));
}

fn begin(s: &mut Scenario) {
    s.both(TABLE);
    s.source("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 9) i");
    s.follow();
}

/// Waits until `status` of each follower says that it waits for the clock.
fn wait_until_held(s: &Scenario) {
    for number in 0..s.followers() {
        let is_held = || Ok(s.status(number)["waits_for"]["stage"] == "clock");
        wait_for("a transaction that is held", BOUND, is_held).unwrap();
    }
}

/// Whether row 1 is what the source made of it; if so, asserts that the clock has passed its time.
fn has_come(s: &Scenario, number: usize, value: &str) -> bool {
    let seen = s.target_one_of(
        number,
        &format!(
            "SELECT (v = '{value}')::text || ' ' || (clock_timestamp() > pg_xact_commit_timestamp(xmin))::text \
               FROM t WHERE id = 1"
        ),
    );
    assert!(seen != "true false", "it is visible before its time, in strategy {number}");
    seen.starts_with("true")
}

#[test]
fn d3_a_transaction_is_held_until_the_targets_clock_has_passed_its_commit_time() {
    with_rules(&RULES, &[], |s| {
        begin(s);
        let mut source = ahead(s);
        commit_at(&mut source, 6, "UPDATE t SET v = 'ahead' WHERE id = 1");
        commit_at(&mut source, 6, "UPDATE t SET v = 'behind it' WHERE id = 2");
        wait_until_held(s);
        // Nobody waits for a transaction that is held.
        s.target("SET lock_timeout = '1s'; UPDATE t SET v = 'meanwhile' WHERE id = 1; RESET lock_timeout");
        for number in 0..s.followers() {
            wait_for("the row", BOUND, || Ok(has_come(s, number, "ahead"))).unwrap();
        }
        s.catch_up();
        s.same_table("t");
        for number in 0..s.followers() {
            let status = s.status(number);
            assert!(status["totals"]["clock_held"].as_u64().unwrap() >= 1, "{status:#}");
            assert!(status["totals"]["clock_held_ms"].as_u64().unwrap() >= 1_000, "{status:#}");
            assert!(status["clock_ahead_seconds"].is_null(), "{status:#}");
            assert!(s.log(number).contains("ahead of the target's clock"), "{}", s.log(number));
        }
        let checked = s.call(0, &[&["check", "--json", "--publication", "p"], &RULES[..]].concat());
        assert!(!checked.stdout.contains("conflict rules compare commit times"), "{}", checked.stdout);
    });
}

/// A local update of a row that came from a clock that is ahead is later than that row on both
/// sides.
#[test]
fn d3_two_sides_with_skewed_clocks_end_equal() {
    for mode in ["logical", "wal"] {
        let own = [&RULES[..], &["--source-mode", mode]].concat();
        scenario_alone(&[&own], track, track, |s| {
            begin(s);
            let mut back = WayBack::start(s, &[&own[..], &["--origin", "none"]].concat());
            commit_at(&mut ahead(s), 5, "UPDATE t SET v = 'ahead' WHERE id = 1");
            wait_for("the row", BOUND, || Ok(has_come(s, 0, "ahead"))).unwrap();
            s.target("UPDATE t SET v = 'local' WHERE id = 1");
            wait_until_both(s, &back, "SELECT v = 'local' FROM t WHERE id = 1");
            s.catch_up();
            s.same_table("t");
            back.met_nothing();
            back.end(s);
        });
    }
}

/// A copied row has the time of the copy on the target and its own on the source. A client of the
/// target that changes it writes the version that is later on both.
#[test]
fn d3_nothing_is_copied_before_the_targets_clock_has_passed_its_commit_time() {
    for mode in ["logical", "wal"] {
        let own = [&RULES[..], &["--both-ways", "--source-mode", mode]].concat();
        scenario_alone(&[&own], with_clock, track, |s| {
            s.both(TABLE);
            s.pair().source.set_clock_ahead(Duration::from_secs(3));
            s.source("INSERT INTO t VALUES (1, 'copied')");
            s.publish("FOR ALL TABLES");
            s.target("CREATE PUBLICATION p FOR ALL TABLES");
            s.run();
            wait_for("the copy", BOUND, || Ok(s.target_one("SELECT count(*) FROM t") == "1")).unwrap();
            s.target("UPDATE t SET v = 'local' WHERE id = 1; INSERT INTO t VALUES (2, 'behind it')");
            let is_back = || Ok(s.source_one("SELECT count(*) FROM t WHERE id = 2") == "1");
            wait_for("the way back", BOUND, is_back).unwrap();
            assert_eq!(s.source_one("SELECT v FROM t WHERE id = 1"), "local");
            s.catch_up();
            s.same_table("t");
            drop_both(s);
        });
    }
}

#[test]
fn nothing_is_copied_from_a_source_whose_clock_is_far_ahead_until_the_clocks_agree() {
    let own = [&RULES[..], &["--clock-skew-max", "1s"]].concat();
    scenario_alone(&[&own], with_clock, with_clock, |s| {
        const HOUR: Duration = Duration::from_secs(3_600);
        s.both(TABLE);
        s.source("INSERT INTO t VALUES (1, 'v')");
        s.pair().source.set_clock_ahead(HOUR);
        s.run();
        s.wait_for_log("clock_skew_max is 1 s: nothing is copied; correct the clocks of both servers");
        assert_eq!(s.target_one("SELECT count(*) FROM t"), "0");
        s.pair().target.set_clock_ahead(HOUR);
        s.wait_for_copy();
        s.catch_up();
        s.same_table("t");
    });
}

/// What was executed while it was open is let go: its rows are free while it is held.
#[test]
fn an_open_transaction_that_is_held_keeps_no_lock() {
    let strategy = [&RULES[..], &["--source-mode", "logical"]].concat();
    let little = |builder: Builder| track(builder).setting("logical_decoding_work_mem", "64kB");
    scenario_alone(&[&strategy], little, track, |s| {
        s.both("CREATE TABLE large (id int PRIMARY KEY, v text)");
        s.source("INSERT INTO large SELECT i, 'v' FROM generate_series(1, 5000) i");
        begin(s);
        let mut source = ahead(s);
        source.run("BEGIN; UPDATE large SET v = repeat('w', 100)");
        let locked = "SELECT count(*) > 0 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation \
                      WHERE c.relname = 'large' AND l.mode = 'RowExclusiveLock'";
        wait_for("a part of it to be executed", BOUND, || Ok(s.target_one(locked) == "t")).unwrap();
        source.run(
            "UPDATE t SET v = 'ahead' WHERE id = 1; \
             SELECT pg_replication_origin_xact_setup('0/1', clock_timestamp() + interval '6 s'); COMMIT",
        );
        wait_until_held(s);
        let mut target = Session::to(&s.target_url(0));
        target.run("SET lock_timeout = '1s'; UPDATE large SET v = 'meanwhile' WHERE id = 1");
        assert_eq!(s.target_one("SELECT v FROM large WHERE id = 1"), "meanwhile");
        wait_for("the row", BOUND, || Ok(has_come(s, 0, "ahead"))).unwrap();
        s.catch_up();
        s.same();
    });
}

#[test]
fn nothing_is_held_without_a_rule_that_compares_commit_times() {
    let rules = ["--conflict", "update_origin_differs=apply_remote"];
    with_rules(&rules, &[], |s| {
        begin(s);
        commit_at(&mut ahead(s), 36_000, "UPDATE t SET v = 'ahead' WHERE id = 1");
        s.catch_up();
        s.same_table("t");
        assert_eq!(s.status(0)["totals"]["clock_held"], 0);
    });
}

#[test]
fn a_commit_time_far_ahead_is_an_error_until_the_clocks_agree() {
    with_rules(&RULES, &["--clock-skew-max", "2s", "--disable-on-error"], |s| {
        begin(s);
        let mut source = ahead(s);
        commit_at(&mut source, 9, "UPDATE t SET v = 'ahead' WHERE id = 1");
        s.wait_for_log("s ahead of the target's clock, and clock_skew_max is 2 s; correct the clocks");
        // Time brings them together, as a correction of a clock would.
        for number in 0..s.followers() {
            wait_for("the row", BOUND, || Ok(has_come(s, number, "ahead"))).unwrap();
        }
        s.catch_up();
        s.same_table("t");
        // What will not be corrected in time can be skipped, as the message says.
        commit_at(&mut source, 36_000, "UPDATE t SET v = 'skipped' WHERE id = 2");
        s.wait_for_log("to let it wait that long: --clock-skew-max 3");
        for number in 0..s.followers() {
            let log = s.log(number);
            let (_, skipped) = log.rsplit_once("pgsluice skip --lsn ").unwrap();
            let skipped: String =
                skipped.chars().take_while(|c| c.is_ascii_hexdigit() || *c == '/').collect();
            let done = s.call(number, &["skip", "--lsn", &skipped]);
            assert!(done.status.success(), "{done:?}");
        }
        s.catch_up();
        assert_eq!(s.target_one("SELECT v FROM t WHERE id = 2"), "v");
    });
}
