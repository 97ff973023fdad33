//! A table's name passes to another relation of the source.
//!
//! Changes of the new relation never reach the rows that were copied from the old one. pgsluice
//! reports the table with a remedy that works as printed. With `on_table_replaced = copy` it copies
//! the table again.
//!
//! The name can pass in these ways:
//! - The table is dropped and created again: in one transaction, in two, or while no process runs.
//! - Another table is renamed over it, or two are swapped.
//! - It gets another name or schema, and returns.
//! - It is attached to a root, and detached.
//! - An older version wrote the state, which then knows no OIDs.

use serde_json::Value;
use testkit::{Sluice, wait_for};

use crate::refresh::wait_until_joined;
use crate::support::{BOUND, STOP, Scenario, Session, scenario_alone, scenario_with};

/// Both sources with each answer.
const EACH: &[&[&str]] = &[
    &["--refresh-interval", "200ms", "--source-mode", "logical"],
    &["--refresh-interval", "200ms", "--source-mode", "wal"],
    &["--refresh-interval", "200ms", "--source-mode", "logical", "--on-table-replaced", "copy"],
    &["--refresh-interval", "200ms", "--source-mode", "wal", "--on-table-replaced", "copy"],
];
/// Of [`EACH`]: those that leave such a table out.
const LEAVING: [usize; 2] = [0, 1];
/// Both sources, leaving it out.
const LEAVE_OUT: &[&[&str]] = &[EACH[0], EACH[1]];
/// Both sources, copying it again; one without the first copy.
const COPY: &[&[&str]] = &[
    EACH[2],
    &[
        "--refresh-interval",
        "200ms",
        "--source-mode",
        "wal",
        "--on-table-replaced",
        "copy",
        "--copy-data",
        "off",
    ],
];

/// Tables with three old rows each, followed.
fn begin(s: &mut Scenario, tables: &[&str]) {
    for table in tables {
        s.both(&format!("CREATE TABLE {table} (id int PRIMARY KEY, v text)"));
        s.source(&format!("INSERT INTO {table} SELECT i, 'old' FROM generate_series(1, 3) i"));
    }
    s.follow();
    s.same();
}

fn waiting(s: &Scenario, number: usize, table: &str) -> Option<String> {
    let status = s.status(number);
    let waiting = status["refresh"]["waiting"].as_array()?.iter().find(|it| it["table"] == table)?.clone();
    waiting["reason"].as_str().map(str::to_owned)
}

/// Waits until `status` says that `table` waits, with `words`; all that it says.
#[track_caller]
fn wait_until_told(s: &Scenario, number: usize, table: &str, words: &str) -> String {
    let mut told = None;
    let seen = wait_for(words, BOUND, || {
        told = waiting(s, number, table);
        Ok(told.as_ref().is_some_and(|told| told.contains(words)))
    });
    assert!(seen.is_ok(), "{seen:?}: {told:?}\n{}", s.log(number));
    told.unwrap_or_default()
}

/// Does on target `number` what `told` says, as it is printed.
fn obey(s: &Scenario, number: usize, told: &str, lead: &str) {
    let sql = told.split_once(lead).unwrap_or_else(|| panic!("{lead} in {told}")).1;
    Session::to(&s.target_url(number)).run(sql);
}

const AGAIN: &str = "copies it again: ";

/// Those that leave `table` out say so, and what they say helps.
#[track_caller]
fn obeyed(s: &Scenario, table: &str) {
    for number in LEAVING {
        let told = wait_until_told(s, number, &format!("public.{table}"), AGAIN);
        obey(s, number, &told, AGAIN);
    }
}

/// Waits until every follower holds the source's rows of `table`, by whatever way they come.
#[track_caller]
fn wait_until_same(s: &mut Scenario, table: &str) {
    let sql = format!("SELECT string_agg(t::text, ' ' ORDER BY id) FROM {table} t");
    for number in 0..s.followers() {
        let same = wait_for("the table to be copied again", BOUND, || {
            Ok(s.target_one_of(number, &sql) == s.source_one(&sql))
        });
        assert!(same.is_ok(), "{same:?}\n{}", s.log(number));
    }
    wait_until_joined(s, table.rsplit('.').next().unwrap_or(table).trim_matches('"'));
    s.source(&format!("INSERT INTO {table} VALUES (77, 'last'); UPDATE {table} SET v = v || '.'"));
    s.catch_up();
    s.same_table(table);
}

/// What a follower by name would meet: inserts of what is there, changes of what is not.
fn no_conflicts(s: &Scenario) {
    for kind in ["insert_exists", "update_missing", "delete_missing"] {
        assert_eq!(s.conflicts(kind), 0, "{kind}");
    }
}

#[test]
fn dropped_and_made_again_in_one_transaction() {
    scenario_with(EACH, |s| {
        begin(s, &["t", "other"]);
        s.source("UPDATE t SET v = 'last of the old' WHERE id = 1");
        s.source(
            "BEGIN; UPDATE t SET v = 'in the same' WHERE id = 2; DROP TABLE t; \
             CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'new'), (10, 'new'); COMMIT",
        );
        s.source("UPDATE t SET v = 'newer' WHERE id = 1; INSERT INTO t VALUES (2, 'new'); INSERT INTO other VALUES (4)");
        s.catch_up();
        s.same_table("other");
        s.wait_for_log("table \"public.t\" is left out");
        for number in LEAVING {
            let rows = "SELECT string_agg(v, ', ' ORDER BY id) FROM t";
            assert_eq!(s.target_one_of(number, rows), "last of the old, in the same, old");
        }
        // It is known after a kill, too.
        s.kill();
        s.source("DELETE FROM t WHERE id = 10; TRUNCATE t; INSERT INTO t VALUES (3, 'again')");
        s.run();
        obeyed(s, "t");
        wait_until_same(s, "t");
        s.same();
        no_conflicts(s);
    });
}

/// Nothing is written to the new table: only a look at the catalogs shows it.
#[test]
fn another_is_renamed_to_its_name_and_never_changes() {
    scenario_with(EACH, |s| {
        begin(s, &["live", "staging"]);
        s.source("UPDATE staging SET v = 'fresh'; INSERT INTO staging VALUES (9, 'fresh')");
        s.source("BEGIN; DROP TABLE live; ALTER TABLE staging RENAME TO live; COMMIT");
        obeyed(s, "live");
        wait_until_same(s, "live");
        no_conflicts(s);
        // The rows that were copied as the other table belong to no table now, and no row of the
        // state stands in the way.
        for number in 0..s.followers() {
            let left = "SELECT count(*) FROM pgsluice.copied_table WHERE table_name = 'staging'";
            wait_for("the old name to be forgotten", BOUND, || Ok(s.target_one_of(number, left) == "0"))
                .unwrap();
        }
        assert_eq!(s.target_one("SELECT count(*) FROM staging"), "4");
    });
}

#[test]
fn two_swap_their_names() {
    scenario_with(EACH, |s| {
        begin(s, &["a", "b"]);
        // Which rows are whose shows; and the target's foreign key forbids TRUNCATE.
        s.source("UPDATE a SET v = 'a'; UPDATE b SET v = 'b', id = id + 10");
        s.target("CREATE TABLE child (id int REFERENCES a); INSERT INTO child SELECT 1 WHERE false");
        s.catch_up();
        s.source(
            "BEGIN; ALTER TABLE a RENAME TO c; ALTER TABLE b RENAME TO a; ALTER TABLE c RENAME TO b; COMMIT",
        );
        s.source(
            "UPDATE a SET v = 'b now a'; UPDATE b SET v = 'a now b'; INSERT INTO a VALUES (1, 'b now a')",
        );
        for table in ["a", "b"] {
            s.wait_for_log(&format!("table \"public.{table}\" is left out"));
            for number in LEAVING {
                assert_eq!(
                    s.target_one_of(number, &format!("SELECT string_agg(DISTINCT v, ' ') FROM {table}")),
                    table
                );
            }
        }
        obeyed(s, "a");
        obeyed(s, "b");
        wait_until_same(s, "a");
        wait_until_same(s, "b");
        no_conflicts(s);
    });
}

#[test]
fn another_name_or_schema() {
    scenario_with(EACH, |s| {
        begin(s, &["t", "u"]);
        s.source(
            "ALTER TABLE t RENAME TO \"T2\"; CREATE SCHEMA elsewhere; ALTER TABLE u SET SCHEMA elsewhere",
        );
        s.source("UPDATE \"T2\" SET v = 'new'; UPDATE elsewhere.u SET v = 'new'");
        for number in 0..s.followers() {
            // The target's tables are renamed by who owns them, whatever the setting.
            for table in ["public.T2", "elsewhere.u"] {
                let told = wait_until_told(s, number, table, AGAIN);
                obey(s, number, &told, AGAIN);
            }
        }
        wait_until_same(s, "\"T2\"");
        wait_until_same(s, "elsewhere.u");
        no_conflicts(s);
    });
}

/// Its changes were skipped while it had another name. With its own name back, it is not the table
/// that was copied.
#[test]
fn another_name_and_back_with_a_kill_between() {
    scenario_with(EACH, |s| {
        begin(s, &["t"]);
        s.source("ALTER TABLE t RENAME TO away");
        s.source("UPDATE away SET v = 'missed' WHERE id = 1");
        s.wait_for_log("table \"public.t\" is left out");
        s.kill();
        s.source("ALTER TABLE away RENAME TO t");
        s.source("UPDATE t SET v = 'back' WHERE id = 2");
        s.run();
        obeyed(s, "t");
        wait_until_same(s, "t");
        no_conflicts(s);
    });
}

/// A replacement that is rolled back never happened, although the stream may have brought the new
/// table's rows already.
#[test]
fn a_replacement_that_is_rolled_back() {
    scenario_with(LEAVE_OUT, |s| {
        s.source(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET logical_decoding_work_mem = %L', \
             current_database(), '64kB'); END $$",
        );
        begin(s, &["t"]);
        s.source(
            "BEGIN; DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text); \
             INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 10000) i; ROLLBACK",
        );
        s.source("UPDATE t SET v = 'stays'");
        s.catch_up();
        s.same();
        assert!((0..s.followers()).all(|number| !s.log(number).contains("left out")));
    });
}

/// A look at the publication is ahead of the stream: it reports the new table while changes of the
/// old one still come.
#[test]
fn what_was_written_before_still_comes() {
    scenario_with(LEAVE_OUT, |s| {
        begin(s, &["t"]);
        let mut locks: Vec<Session> =
            (0..s.followers()).map(|number| Session::to(&s.target_url(number))).collect();
        locks.iter_mut().for_each(|lock| lock.run("BEGIN; LOCK TABLE t IN EXCLUSIVE MODE"));
        s.source("UPDATE t SET v = 'last'");
        s.source("BEGIN; DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text); COMMIT");
        for number in 0..s.followers() {
            wait_until_told(s, number, "public.t", "leaves it out when the stream");
        }
        locks.iter_mut().for_each(|lock| lock.run("COMMIT"));
        for number in 0..s.followers() {
            wait_until_told(s, number, "public.t", AGAIN);
        }
        assert_eq!(s.target_one("SELECT string_agg(v, ' ') FROM t"), "last last last");
        obeyed(s, "t");
        wait_until_same(s, "t");
        no_conflicts(s);
    });
}

#[test]
fn dropped_and_made_again_in_two_transactions() {
    scenario_with(EACH, |s| {
        begin(s, &["t"]);
        s.source("DROP TABLE t");
        s.wait_for_log("because it was dropped");
        s.kill();
        s.run();
        s.source("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'new')");
        obeyed(s, "t");
        wait_until_same(s, "t");
        no_conflicts(s);
    });
}

/// A replacement while no process runs, and one where an older version wrote the state without
/// OIDs.
#[test]
fn made_again_while_it_is_stopped_and_by_a_state_without_oids() {
    const OLDER: &str = "ALTER TABLE pgsluice.copied_table DROP COLUMN source_oid, DROP COLUMN replaced";
    const MAKE: &str = "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'new')";
    scenario_with(LEAVE_OUT, |s| {
        begin(s, &["t"]);
        s.stop();
        // Nothing happened meanwhile: it is the same table, and goes on.
        s.target(OLDER);
        s.source("UPDATE t SET v = 'still'");
        s.follow();
        s.same();
        let known = "SELECT count(*) FROM pgsluice.copied_table WHERE source_oid IS NULL";
        assert_eq!(s.target_one(known), "0");
        s.stop();
        s.source(&format!("DROP TABLE t; {MAKE}"));
        s.run();
        obeyed(s, "t");
        wait_until_same(s, "t");
        // Both: a change of the old one is in the stream.
        s.stop();
        s.target(OLDER);
        s.source("UPDATE t SET v = 'old'");
        s.source(&format!("DROP TABLE t; {MAKE}"));
        s.run();
        obeyed(s, "t");
        wait_until_same(s, "t");
        no_conflicts(s);
        // No row of the old table may be there. pgsluice cannot know that, and says so.
        s.stop();
        s.target(OLDER);
        s.source(&format!("DROP TABLE t; {MAKE}"));
        s.run();
        s.wait_for_log("\"public.t\" may have been dropped and made again on the source unseen");
    });
}

#[test]
fn killed_between_the_notice_and_the_copy() {
    scenario_with(COPY, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.follow();
        s.source("INSERT INTO t SELECT i, 'old' FROM generate_series(1, 1000) i");
        s.catch_up();
        let mut readers: Vec<Session> = (0..s.followers())
            .map(|number| {
                let mut reader = Session::to(&s.target_url(number));
                reader.run("BEGIN; LOCK TABLE t IN ACCESS SHARE MODE");
                reader
            })
            .collect();
        s.source("BEGIN; DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'new'); COMMIT");
        // pgsluice must empty the table, and waits for its readers.
        s.wait_for_log("copying 1 tables");
        s.kill();
        // Others would have to wait behind who is to empty it.
        for reader in &mut readers {
            let rows = reader.query("SELECT count(*) FROM t WHERE v = 'old'").unwrap();
            assert_eq!(rows[0][0].as_deref(), Some("1000"));
        }
        s.source("INSERT INTO t VALUES (2, 'new')");
        readers.iter_mut().for_each(|reader| reader.run("COMMIT"));
        s.run();
        wait_until_same(s, "t");
        no_conflicts(s);
    });
}

#[test]
fn attached_to_a_root_and_detached() {
    scenario_with(LEAVE_OUT, |s| {
        s.both("CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)");
        s.both("CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (100)");
        s.both("CREATE TABLE solo (id int PRIMARY KEY, v text)");
        s.source("INSERT INTO root VALUES (1, 'low'); INSERT INTO solo VALUES (101, 'alone')");
        s.publish("FOR ALL TABLES WITH (publish_via_partition_root)");
        s.follow();
        s.source("ALTER TABLE root ATTACH PARTITION solo FOR VALUES FROM (100) TO (200)");
        s.wait_for_log("because it is a partition of public.root now");
        for number in 0..s.followers() {
            let log = s.log(number);
            let line = log.lines().find(|line| line.contains("because it is a partition")).unwrap();
            let sql = line.split_once("Do the same on the target: ").unwrap().1;
            let sql = sql.split(" subscription=").next().unwrap();
            Session::to(&s.target_url(number)).run(sql);
        }
        s.source("INSERT INTO root VALUES (102, 'through the root'); UPDATE root SET v = v || '!'");
        s.catch_up();
        s.same();
        s.source("ALTER TABLE root DETACH PARTITION solo");
        s.source("UPDATE solo SET v = 'alone again'");
        for number in 0..s.followers() {
            let told = wait_until_told(s, number, "public.solo", "empty it: ");
            obey(s, number, &told, "empty it: ");
        }
        wait_until_same(s, "solo");
        s.same();
    });
}

/// An adopted native subscription: its tables are known from the adoption on.
#[test]
fn a_native_subscription_is_adopted_and_its_table_replaced() {
    scenario_alone(
        &[EACH[0]],
        |source| source,
        |target| target,
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
            s.source("INSERT INTO t VALUES (1, 'old')");
            s.publish("FOR ALL TABLES");
            let name = s.name(0).to_owned();
            s.target(&format!("CREATE SUBSCRIPTION {name} CONNECTION '{}' PUBLICATION p", s.source_url()));
            let ready = "SELECT (count(*) = 2 AND bool_and(srsubstate = 'r'))::text FROM pg_subscription_rel";
            wait_for("the native copy", BOUND, || Ok(s.target_one(ready) == "true")).unwrap();
            let adopted = s.call(0, &["adopt", "--prepare-only"]);
            assert!(adopted.status.success(), "{adopted:?}");
            let oid = "SELECT source_oid FROM pgsluice.copied_table WHERE table_name = 't'";
            assert_eq!(s.target_one(oid), s.source_one("SELECT 't'::regclass::oid"));
            s.source("BEGIN; DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'new'); COMMIT");
            let mut command = s.command(0, &["run", "--refresh-interval", "200ms"]);
            command.env_remove("PGSLUICE_SOURCE");
            let mut sluice = Sluice::start(command).unwrap();
            wait_for("a control socket", BOUND, || {
                let output = s.call(0, &["status", "--json"]);
                let status: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
                Ok(status["refresh"].is_object())
            })
            .unwrap();
            let told = wait_until_told(s, 0, "public.t", AGAIN);
            obey(s, 0, &told, AGAIN);
            let rows = "SELECT string_agg(v, ' ') FROM t";
            let seen = wait_for("the table to be copied again", BOUND, || Ok(s.target_one(rows) == "new"));
            assert!(seen.is_ok(), "{seen:?}\n{}", sluice.stderr());
            assert!(sluice.terminate(STOP).unwrap().success(), "{}", sluice.stderr());
        },
    );
}
