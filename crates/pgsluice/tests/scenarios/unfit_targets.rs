//! The kind: the target's deletions cannot be captured before somebody changes the target. `status`
//! says why and what to do, changes flow on, and no miss is answered. Each test does what `status`
//! says, as it is written, and capture goes on by itself.

use testkit::{Builder, Major, StopMode, wait_for};

use crate::support::{BOUND, Scenario, scenario_alone};
use crate::update_deleted::{LOGICAL, RETAIN, TABLE, wait_for_capture};
use crate::update_deleted_faults::{assert_known_again, counted, plain, wait_until};

/// Runs the scenario with deletions remembered on a target with these settings.
fn on(strategies: &[&[&str]], settings: &[(&str, &str)], run: impl Fn(&mut Scenario) + Sync) {
    let strategies: Vec<Vec<&str>> = strategies.iter().map(|strategy| [RETAIN, strategy].concat()).collect();
    let strategies: Vec<&[&str]> = strategies.iter().map(Vec::as_slice).collect();
    let with =
        |target: Builder| settings.iter().fold(target, |target, (name, value)| target.setting(name, value));
    scenario_alone(&strategies, plain, with, run);
}

/// Follows before deletions are captured, with row 1 deleted and then updated. `why` is what
/// `status` says in one line, up to its remedy, which is returned.
fn uncaptured(s: &mut Scenario, state: &str, why: &str) -> String {
    s.both(TABLE);
    s.source("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 9) i");
    s.follow();
    missed(s, state, why)
}

fn missed(s: &mut Scenario, state: &str, why: &str) -> String {
    wait_until(s, why, |own| own["state"] == state && own["trouble"].to_string().contains(why));
    s.target("DELETE FROM t WHERE id = 1");
    s.source("UPDATE t SET v = 'w' WHERE id IN (1, 2)");
    s.catch_up();
    assert_eq!(s.target_one("SELECT string_agg(id::text, ',') FROM t WHERE v = 'w'"), "2");
    assert_eq!(counted(s), (0, 1, 1));
    let text = s.call(0, &["status"]).stdout;
    let line = text.lines().find(|line| line.contains(why)).unwrap_or_else(|| panic!("{text}"));
    let remedy = line.split_once(why).unwrap().1.to_owned();
    assert!(text.contains(&format!("{state}, ")), "{text}");
    remedy
}

/// Runs the statement of a remedy.
fn carry_out(s: &Scenario, remedy: &str) {
    let statement = remedy.split('`').nth(1).unwrap_or_else(|| panic!("no statement: {remedy}"));
    let done = s.pair().target.sql("postgres", statement);
    done.unwrap_or_else(|error| panic!("{error:#}: {remedy}"));
}

/// Runs the statement of a remedy that asks for a restart.
fn carry_out_and_restart(s: &mut Scenario, remedy: &str) {
    assert!(remedy.ends_with("then restart it"), "{remedy}");
    carry_out(s, remedy);
    s.pair_mut().target.restart(StopMode::Fast).unwrap();
}

fn goes_on(s: &mut Scenario) {
    goes_on_with(s, 3);
}

fn goes_on_with(s: &mut Scenario, id: u32) {
    wait_for_capture(s);
    assert_known_again(s, id);
}

#[test]
fn d4_a_target_whose_wal_names_no_row() {
    on(&[LOGICAL], &[("wal_level", "replica")], |s| {
        let why = "wal_level of the target is replica, and its WAL does not name deleted rows; ";
        let remedy = uncaptured(s, "unfit", why);
        carry_out_and_restart(s, &remedy);
        goes_on(s);
        // WAL from while it was lowered does not name rows, either.
        s.target("ALTER SYSTEM SET wal_level = replica");
        s.pair_mut().target.restart(StopMode::Fast).unwrap();
        wait_until(s, "what it lacks to be named", |own| own["state"] == "unfit");
        let (deleted, missing, exceeded) = counted(s);
        s.target("DELETE FROM t WHERE id = 4");
        s.source("UPDATE t SET v = 'w' WHERE id = 4");
        s.catch_up();
        assert_eq!(counted(s), (deleted, missing + 1, exceeded + 1));
        s.target("ALTER SYSTEM SET wal_level = logical");
        s.pair_mut().target.restart(StopMode::Fast).unwrap();
        goes_on_with(s, 5);
    });
}

/// Filled by somebody else.
const FILLED: &str =
    "SELECT pg_create_physical_replication_slot(n) FROM unnest(ARRAY['one', 'two', 'three']) n";

#[test]
fn d4_a_target_without_a_free_slot() {
    let why = "the replication slots of the target are in use, all 3 of them; ";
    for is_raised in [true, false] {
        on(&[LOGICAL], &[("max_replication_slots", "3")], |s| {
            s.target(FILLED);
            let remedy = uncaptured(s, "unfit", why);
            if is_raised {
                carry_out_and_restart(s, &remedy);
            } else {
                assert!(remedy.starts_with("drop one, or run "), "{remedy}");
                s.target("SELECT pg_drop_replication_slot('two')");
            }
            goes_on(s);
        });
    }
}

/// From 18 on, a target that applies needs no slots. The server has another error where none is
/// allowed.
#[test]
fn d4_a_target_that_allows_no_slot() {
    if !Major::under_test().contains(&Major::V18) {
        return println!("not run: before 18, a target without slots has no replication origins either");
    }
    Major::each_of(&[Major::V18], 1, |major| {
        let target = testkit::Cluster::builder(major).setting("max_replication_slots", "0");
        let pair = testkit::Pair::with(testkit::Cluster::builder(major), target).unwrap();
        let mut s = Scenario::alone(pair, &[&[RETAIN, LOGICAL].concat()]);
        let remedy = uncaptured(&mut s, "unfit", "in use, all 0 of them; ");
        carry_out_and_restart(&mut s, &remedy);
        goes_on(&mut s);
        s.stop();
    });
}

#[test]
fn d4_a_target_without_a_free_walsender() {
    on(&[LOGICAL], &[("max_wal_senders", "0")], |s| {
        let remedy = uncaptured(s, "unfit", "the walsenders of the target are in use, all 0 of them; ");
        carry_out_and_restart(s, &remedy);
        goes_on(s);
    });
    on(&[LOGICAL], &[("max_wal_senders", "1")], |s| {
        let mut standby = s.pair_mut().target.standby("standby").unwrap();
        let streams = || Ok(s.target_one("SELECT count(*) FROM pg_stat_replication") == "1");
        wait_for("the standby to stream", BOUND, streams).unwrap();
        let remedy = uncaptured(s, "unfit", "the walsenders of the target are in use, all 1 of them; ");
        assert!(remedy.starts_with("end one, or run "), "{remedy}");
        standby.stop(StopMode::Fast).unwrap();
        goes_on(s);
    });
}

/// The role has what docs/operations/roles.md grants on the target, and no more.
#[test]
fn d4_a_role_that_may_not_replicate() {
    const RIGHTS: &str = "\
        CREATE ROLE \"the applier\" LOGIN; GRANT USAGE ON SCHEMA public TO \"the applier\"; \
        GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA public TO \"the applier\"; \
        GRANT EXECUTE ON FUNCTION pg_replication_origin_create(text), pg_replication_origin_drop(text), \
          pg_replication_origin_session_setup(text), pg_replication_origin_xact_setup(pg_lsn, timestamptz), \
          pg_replication_origin_session_reset(), pg_replication_origin_progress(text, boolean) TO \"the applier\"; \
        DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO \"the applier\"', current_database()); END $$";
    on(&[LOGICAL], &[], |s| {
        s.both(TABLE);
        s.source("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 9) i");
        s.target(RIGHTS);
        let url = s.target_url(0).replace("postgres://postgres@", "postgres://the%20applier@");
        // Only a superuser of 14 can keep triggers from firing.
        s.run_with(|command| {
            command.env("PGSLUICE_TARGET", &url).env("PGSLUICE_ALLOW_TRIGGERS", "on");
        });
        s.wait_for_copy();
        s.catch_up();
        let remedy = missed(s, "unfit", "role the applier may not replicate from the target; ");
        assert_eq!(remedy, "run `ALTER ROLE \"the applier\" REPLICATION` there");
        carry_out(s, &remedy);
        goes_on(s);
    });
}

/// Nothing of the server is missing, but its WAL does not have what the catalogs are followed by.
#[test]
fn d4_a_target_without_images_of_pages() {
    on(&[LOGICAL], &[("full_page_writes", "off")], |s| {
        let why = "full_page_writes is off, or was at the latest checkpoint: ";
        let remedy = uncaptured(s, "failed", why);
        assert!(remedy.starts_with("switch it on, and CHECKPOINT"), "{remedy}");
        s.target("ALTER SYSTEM SET full_page_writes = on");
        s.target("SELECT pg_reload_conf()");
        // A checkpoint that begins before the server has read the file has the old value.
        wait_for("a checkpoint with images", BOUND, || {
            s.target("CHECKPOINT");
            Ok(s.target_one("SELECT full_page_writes FROM pg_control_checkpoint()") == "t")
        })
        .unwrap();
        goes_on(s);
    });
}
