//! Rules for conflicts, and tables that join: whose the copied rows are, and when each change
//! was made that came during the copy.

use testkit::wait_for;

use crate::support::{BOUND, DECODED, FOLDED, ONE_BY_ONE, Scenario, Session, scenario_alone};

const LAST_WINS: [&str; 6] = [
    "--conflict",
    "update_origin_differs=last_update_wins",
    "--conflict",
    "delete_origin_differs=last_update_wins",
    "--refresh-interval",
    "200ms",
];

/// Each strategy on servers of which the target keeps commit times.
fn last_wins(run: impl Fn(&mut Scenario) + Sync) {
    let strategies = [FOLDED, ONE_BY_ONE, DECODED].map(|strategy| [&LAST_WINS, strategy].concat());
    let strategies = strategies.each_ref().map(Vec::as_slice);
    scenario_alone(
        &strategies,
        |builder| builder,
        |builder| builder.setting("track_commit_timestamp", "on"),
        run,
    );
}

/// Locks a table on every target, so that its copy waits. Each lock goes with its session.
fn lock(s: &Scenario, table: &str) -> Vec<Session> {
    let locked = |number| {
        let mut session = Session::to(&s.target_url(number));
        session.run(&format!("BEGIN; LOCK TABLE {table} IN SHARE MODE"));
        session
    };
    (0..s.followers()).map(locked).collect()
}

/// Waits until a session on every target waits for a table.
#[track_caller]
fn wait_until_copied_to(s: &Scenario, table: &str) {
    let sql =
        format!("SELECT count(*) > 0 FROM pg_locks WHERE relation = '{table}'::regclass AND NOT granted");
    for number in 0..s.followers() {
        let waits = || Ok(s.target_one_of(number, &sql) == "t");
        wait_for("a copy that waits", BOUND, waits)
            .unwrap_or_else(|error| panic!("{error}\n{}", s.log(number)));
    }
}

fn joins(s: &mut Scenario, table: &str) {
    s.wait_for_log(&format!("table=public.{table}"));
    s.catch_up();
}

/// Changes that were made during the copy are older than its commit. They are the source's all the
/// same, and no client has written the rows.
///
/// Fails if the copy's origin is made after the table was described to the rules.
#[test]
fn copied_rows_are_the_subscriptions_own_where_rules_compare_times() {
    last_wins(|s| {
        s.both("CREATE TABLE old (id int PRIMARY KEY)");
        s.both("CREATE TABLE late (id int PRIMARY KEY, u int UNIQUE, v text)");
        s.source("INSERT INTO late SELECT i, i, 'copied' FROM generate_series(1, 300) i");
        s.publish("FOR TABLE old, mark");
        s.follow();
        let locks = lock(s, "late");
        s.source("ALTER PUBLICATION p ADD TABLE late");
        wait_until_copied_to(s, "late");
        s.source("UPDATE late SET v = 'later' WHERE id <= 200");
        s.source("UPDATE late SET id = id + 1000 WHERE id BETWEEN 150 AND 160");
        s.source("DELETE FROM late WHERE id BETWEEN 250 AND 260");
        s.source("INSERT INTO late VALUES (400, 400, 'inserted')");
        drop(locks);
        joins(s, "late");
        s.same();
        for kind in ["update_origin_differs", "delete_origin_differs"] {
            assert_eq!(s.conflicts(kind), 0, "{kind}\n{}", s.log(0));
        }
    });
}

/// While another table is copied, the rows of the first one are there already, and a client writes
/// one. What the source wrote before is older, what it wrote afterwards is newer.
///
/// Fails if all changes that came during the copy count as made by the last of their transactions.
#[test]
fn each_change_that_came_during_the_copy_has_its_own_time() {
    last_wins(|s| {
        s.both("CREATE TABLE old (id int PRIMARY KEY)");
        s.both("CREATE TABLE late (id int PRIMARY KEY, u int UNIQUE, v text)");
        s.both("CREATE TABLE slow (id int PRIMARY KEY)");
        s.source("INSERT INTO late SELECT i, i, 'copied' FROM generate_series(1, 9) i");
        s.source("INSERT INTO slow VALUES (1)");
        s.publish("FOR TABLE old, mark");
        s.follow();
        let locks = lock(s, "slow");
        s.source("ALTER PUBLICATION p ADD TABLE late, slow");
        wait_until_copied_to(s, "slow");
        for number in 0..s.followers() {
            let is_copied = || Ok(s.target_one_of(number, "SELECT count(*) FROM late") == "9");
            wait_for("the first table's rows", BOUND, is_copied).unwrap();
        }
        s.source("UPDATE late SET v = 'older' WHERE id IN (1, 2)");
        s.target("UPDATE late SET v = 'local' WHERE id IN (1, 2, 3)");
        s.source("UPDATE late SET v = 'newer' WHERE id IN (2, 3); UPDATE late SET id = 10 WHERE id = 9");
        drop(locks);
        joins(s, "slow");
        let rows = "SELECT string_agg(concat_ws(' ', id, v), ', ' ORDER BY id) FROM late WHERE id NOT BETWEEN 4 AND 8";
        assert_eq!(s.target_one(rows), "1 local, 2 newer, 3 newer, 10 copied");
    });
}

/// All places of the target are taken. Copied rows would look as if somebody else had written them
/// when the copy ended.
#[test]
fn without_a_place_for_the_copys_origin_nothing_is_copied_under_such_rules() {
    scenario_alone(
        &[&LAST_WINS],
        |source| source,
        |target| {
            let name = if target.major().number() >= 18 {
                "max_active_replication_origins"
            } else {
                "max_replication_slots"
            };
            target.setting("track_commit_timestamp", "on").setting(name, "1")
        },
        |s| {
            s.both("CREATE TABLE old (id int PRIMARY KEY)");
            s.both("CREATE TABLE late (id int PRIMARY KEY, v text)");
            s.source("INSERT INTO late VALUES (1, 'copied')");
            s.publish("FOR TABLE old, mark");
            s.follow();
            s.source("ALTER PUBLICATION p ADD TABLE late");
            s.wait_for_log("the target has no place for another replication origin");
            s.catch_up();
            assert_eq!(s.target_one("SELECT count(*) FROM late"), "0");
        },
    );
}
