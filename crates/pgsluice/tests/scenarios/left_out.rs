//! A published table that cannot be decoded outside the server is left out, and no other table is
//! affected.
//!
//! With `source_mode = wal`, each start names and leaves out such a table. It joins by a copy once
//! it can be decoded. A follower with a logical slot, whose server renders everything, runs at the
//! same time.

use serde_json::Value;
use testkit::wait_for;

use crate::support::{BOUND, Scenario, scenario_with};

const WAL: usize = 0;
const LOGICAL: usize = 1;
const BOTH: &[&[&str]] = &[
    &["--source-mode", "wal", "--refresh-interval", "200ms"],
    &["--source-mode", "logical", "--refresh-interval", "200ms"],
];

/// The reason in `status` for which `table` waits.
fn waits(s: &Scenario, table: &str) -> Option<String> {
    let status = s.status(WAL);
    let waiting = status["refresh"]["waiting"].as_array()?.iter();
    let own =
        |waiting: &&Value| waiting["table"].as_str().is_some_and(|name| name == format!("public.{table}"));
    Some(waiting.clone().find(own)?["reason"].as_str()?.to_owned())
}

/// Waits until `status` says that `table` waits for a reason with these words.
#[track_caller]
fn wait_until_waiting(s: &Scenario, table: &str, words: &str) {
    let named = wait_for("the table to be named", BOUND, || {
        Ok(waits(s, table).is_some_and(|reason| reason.contains(words)))
    });
    assert!(named.is_ok(), "{named:?}: {:?}\n{}", waits(s, table), s.log(WAL));
}

#[track_caller]
fn wait_until_joined(s: &Scenario, number: usize, table: &str) {
    let sql = format!("SELECT finished FROM pgsluice.copied_table WHERE table_name = '{table}'");
    let joined = wait_for("the table to join", BOUND, || {
        let rows = testkit::query(&s.target_url(number), &sql)?;
        Ok(rows.first().is_some_and(|row| row[0].as_deref() == Some("t")))
    });
    assert!(joined.is_ok(), "{joined:?}\n{}", s.log(number));
}

/// Checks that the other tables continue, and that no follower ends.
#[track_caller]
fn others_go_on(s: &mut Scenario, id: u32) {
    s.source(&format!("INSERT INTO t (id, v) VALUES ({id}, 'goes on')"));
    s.catch_up();
    s.same_table("t");
}

#[test]
fn w1_a_new_table_that_only_the_server_can_render_costs_itself() {
    scenario_with(BOTH, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.publish("FOR TABLE t, mark");
        s.follow();
        s.both("CREATE TABLE names (id int PRIMARY KEY, name regclass)");
        s.source("INSERT INTO names VALUES (1, 'pg_class')");
        s.source("ALTER PUBLICATION p ADD TABLE names");
        s.source("INSERT INTO names VALUES (2, 'pg_type')");
        wait_until_joined(s, LOGICAL, "names");
        wait_until_waiting(s, "names", "column \"name\"");
        others_go_on(s, 1);
        // WAL that is read again after a start is left out again.
        s.stop();
        s.source(
            "BEGIN; INSERT INTO names VALUES (3, 'pg_proc'); INSERT INTO t VALUES (2, 'with it'); COMMIT",
        );
        s.run();
        wait_until_waiting(s, "names", "regclass");
        others_go_on(s, 3);
        s.kill();
        s.run();
        others_go_on(s, 4);
        let count = "SELECT count(*) FROM names";
        assert_eq!([WAL, LOGICAL].map(|number| s.target_one_of(number, count)), ["0", "3"]);
        // A table that is dropped while it waits.
        s.both("CREATE TABLE passing (id int PRIMARY KEY, name regtype)");
        s.source("ALTER PUBLICATION p ADD TABLE passing; INSERT INTO passing VALUES (1, 'int4')");
        wait_until_waiting(s, "passing", "regtype");
        s.source("DROP TABLE passing");
        others_go_on(s, 5);
        let gone = wait_for("the table to be forgotten", BOUND, || Ok(waits(s, "passing").is_none()));
        assert!(gone.is_ok(), "{}", s.log(WAL));
        s.stop();
        s.run();
        others_go_on(s, 6);
        // The table joins with all its rows.
        s.both("ALTER TABLE names ALTER name TYPE text USING name::text");
        wait_until_joined(s, WAL, "names");
        s.source("INSERT INTO names VALUES (4, 'as text'); UPDATE names SET name = 'changed' WHERE id = 2");
        s.catch_up();
        s.same();
        s.kill();
        s.source("DELETE FROM names WHERE id = 1");
        s.run();
        s.catch_up();
        s.same();
    });
}

#[test]
fn w1_a_column_that_only_the_server_can_render_costs_its_table() {
    scenario_with(BOTH, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE w (id int PRIMARY KEY, v text)");
        s.source("INSERT INTO w VALUES (1, 'first')");
        s.publish("FOR TABLE t, w, mark");
        s.follow();
        s.both("ALTER TABLE w ADD COLUMN name regclass");
        // One transaction writes to it and to a replicated table before pgsluice notices the
        // change.
        s.source("BEGIN; INSERT INTO t VALUES (1, 'with it'); INSERT INTO w VALUES (2, 'lost?', 'pg_class'); COMMIT");
        others_go_on(s, 2);
        wait_until_waiting(s, "w", "column \"name\"");
        s.source("UPDATE w SET v = 'meanwhile' WHERE id = 1");
        s.kill();
        s.run();
        others_go_on(s, 3);
        let told = "SELECT string_agg(id || v, ' ' ORDER BY id) FROM w";
        assert_eq!(
            [WAL, LOGICAL].map(|number| s.target_one_of(number, told)),
            ["1first", "1meanwhile 2lost?"]
        );
        if has_no_column_lists(s) {
            return;
        }
        // Its rows are not removed without permission.
        s.source("ALTER PUBLICATION p SET TABLE t, mark, w (id, v)");
        wait_until_waiting(s, "w", "TRUNCATE");
        others_go_on(s, 4);
        testkit::query(&s.target_url(WAL), "TRUNCATE w").unwrap();
        wait_until_joined(s, WAL, "w");
        s.source("INSERT INTO w VALUES (3, 'after', 'pg_proc')");
        others_go_on(s, 5);
        assert_eq!(s.target_one(told), "1meanwhile 2lost? 3after");
    });
}

/// Without a column list, a copy cannot leave out the column because of which a table was left out.
fn has_no_column_lists(s: &Scenario) -> bool {
    let has_none = s.major() < 15;
    if has_none {
        println!("the end is not tested: PostgreSQL {} has no column lists", s.major());
    }
    has_none
}

/// A process that is killed right after it has left tables out, before anything else is confirmed,
/// finds a state that resembles an unfinished first copy. The rows of those tables are theirs: they
/// must not be copied again beside themselves.
#[test]
fn w1_a_kill_after_a_table_was_left_out_does_not_copy_it_onto_its_rows() {
    scenario_with(BOTH, |s| {
        s.both(
            "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE w (id int PRIMARY KEY, v text); \
             CREATE TABLE without (id int, v text); ALTER TABLE without REPLICA IDENTITY FULL",
        );
        s.source("INSERT INTO w VALUES (1, 'first'); INSERT INTO without VALUES (1, 'first'), (1, 'first')");
        s.publish("FOR TABLE t, w, without, mark");
        s.follow();
        s.both("ALTER TABLE w ADD COLUMN name regclass; ALTER TABLE without ADD COLUMN name regclass");
        s.source("INSERT INTO w VALUES (2, 'lost?', 'pg_class'); INSERT INTO without VALUES (2, 'lost?', 'pg_class')");
        wait_until_waiting(s, "w", "column \"name\"");
        wait_until_waiting(s, "without", "column \"name\"");
        s.kill();
        // The state at the instant after the tables were left out.
        let target = s.target_url(WAL);
        testkit::query(&target, "UPDATE pgsluice.subscription SET confirmed_lsn = consistent_point").unwrap();
        let begun = "SELECT count(*) FROM pgsluice.copied_table WHERE NOT finished AND NOT begun";
        assert_eq!(s.target_one_of(WAL, begun), "2", "{}", s.log(WAL));
        if has_no_column_lists(s) {
            return;
        }
        // Published so that a copy could carry them.
        s.source("ALTER PUBLICATION p SET TABLE t, mark, w (id, v), without (id, v)");
        s.source("ALTER TABLE without REPLICA IDENTITY NOTHING");
        s.run();
        wait_until_waiting(s, "w", "TRUNCATE");
        wait_until_waiting(s, "without", "TRUNCATE");
        others_go_on(s, 1);
        let rows = |table: &str| format!("SELECT string_agg(id || v, ' ' ORDER BY id, v) FROM {table}");
        assert_eq!(s.target_one_of(WAL, &rows("w")), "1first");
        assert_eq!(s.target_one_of(WAL, &rows("without")), "1first 1first");
        testkit::query(&target, "TRUNCATE w, without").unwrap();
        wait_until_joined(s, WAL, "w");
        wait_until_joined(s, WAL, "without");
        s.source("INSERT INTO without VALUES (3, 'after', 'pg_proc')");
        others_go_on(s, 2);
        assert_eq!(s.target_one_of(WAL, &rows("w")), "1first 2lost?");
        assert_eq!(s.target_one_of(WAL, &rows("without")), "1first 1first 2lost? 3after");
    });
}
