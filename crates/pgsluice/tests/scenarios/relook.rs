//! An event that ends the following of catalogs for good has a way back that loses nothing (rule
//! W1).
//!
//! Such events are `full_page_writes` switched off, `wal_level` lowered, the database moved, and
//! catalogs that differ from the source's. Tables that were written where pgsluice could not follow
//! are copied again, once an operator has allowed it. The others are not touched. All of it is
//! about `source_mode = wal`: a logical slot is not in this position.

use testkit::{StopMode, wait_for};

use crate::decoded::path_of;
use crate::support::{BOUND, Scenario, scenario_alone};

const ONE: &[&[&str]] = &[&[
    "--source-mode",
    "wal",
    "--wal-stream",
    "on",
    "--refresh-interval",
    "200ms",
    "--catalog-check-interval",
    "0",
]];
/// What a start says that has found no way on without a person.
/// Before the commands, which are completed.
const ASKS: &str = "It removes their rows on the target first. To allow that: ";
const ANEW: &str = "read the catalogs again at";

/// `t` and `o` will be written, `u` will not.
fn begin(s: &mut Scenario) {
    for table in ["t", "o", "u"] {
        s.both(&format!("CREATE TABLE {table} (id int PRIMARY KEY, v text)"));
        s.source(&format!("INSERT INTO {table} SELECT i, 'before' FROM generate_series(1, 1000) i"));
    }
    s.publish("FOR TABLE t, o, u, mark");
    s.follow();
    s.source("INSERT INTO u VALUES (0, 'streamed')");
    s.catch_up();
}

/// Every kind of change.
fn write(s: &Scenario, table: &str, round: u32) {
    s.source(&format!(
        "INSERT INTO {table} VALUES ({round} * 10000, 'unseen'); UPDATE {table} SET v = v || {round} WHERE id % 7 = 0; \
         UPDATE {table} SET id = -id WHERE id = {round}; DELETE FROM {table} WHERE id = {round} + 500"
    ));
}

/// Which versions of rows the target has: others, if a table was copied again.
fn versions(s: &Scenario, table: &str) -> String {
    s.target_one(&format!(
        "SELECT md5(string_agg(t.xmin::text || t.ctid, ' ' ORDER BY t.ctid)) FROM {table} t"
    ))
}

fn switch(s: &Scenario, setting: &str) {
    s.pair().source.sql("postgres", &format!("ALTER SYSTEM SET {setting}")).unwrap();
    s.pair().source.sql("postgres", "SELECT pg_reload_conf()").unwrap();
}

/// Waits until it has logged `words`. A checkpoint may begin before the server has heard of a
/// setting.
#[track_caller]
fn checkpoint_until(s: &Scenario, words: &str) {
    let seen = wait_for(words, BOUND, || {
        s.source("CHECKPOINT");
        Ok(s.log(0).contains(words))
    });
    assert!(seen.is_ok(), "{seen:?}: {}", s.log(0));
}

/// Once more as it was; nothing is copied that was not written.
#[track_caller]
fn goes_on(s: &mut Scenario, untouched: &str) {
    s.run();
    s.wait_for_copy();
    s.catch_up();
    s.same();
    assert_eq!(versions(s, "u"), untouched, "u was copied again: {}", s.log(0));
}

/// It ends by itself and names the tables, at each start, until it is allowed.
#[track_caller]
fn asks_for(s: &mut Scenario, named: &[&str], others: &[&str]) {
    let asked = |s: &mut Scenario| {
        let (code, log) = s.ended().remove(0);
        let line = log
            .lines()
            .rfind(|line| line.contains(ASKS))
            .unwrap_or_else(|| panic!("{code}: {log}"))
            .to_owned();
        assert_eq!(code, 1, "{log}");
        for table in named {
            assert!(line.contains(&format!("public.{table}")), "{table}: {line}");
        }
        for table in others {
            assert!(!line.contains(&format!("public.{table}")), "{table}: {line}");
        }
    };
    asked(s);
    s.run();
    asked(s);
    let allowed = s.call(0, &["relook"]);
    assert!(allowed.status.success() && allowed.stdout.contains("allowed"), "{allowed:?}");
}

#[test]
fn w1_full_page_writes_off_for_a_moment_costs_no_table_that_nobody_wrote() {
    scenario_alone(
        ONE,
        |source| source.setting("allow_in_place_tablespaces", "on"),
        |target| target,
        |s| {
            begin(s);
            let nothing = s.call(0, &["relook"]);
            assert!(
                nothing.status.success() && nothing.stdout.contains("has asked for nothing"),
                "{nothing:?}"
            );
            let versions_before = ["t", "o", "u"].map(|table| versions(s, table));
            // A transaction that is open meanwhile and takes no part delays nothing.
            s.source("CREATE TABLE other (id int)");
            s.source_in("open", "BEGIN; INSERT INTO other VALUES (1)");
            switch(s, "full_page_writes = off");
            s.wait_for_log("full_page_writes was switched off");
            s.source_in("open", "COMMIT");
            checkpoint_until(s, "cannot read the source's catalogs again yet: full_page_writes is off");
            switch(s, "full_page_writes = on");
            checkpoint_until(s, "nothing that is replicated was written since");
            s.catch_up();
            s.both("ALTER TABLE t ADD COLUMN w int DEFAULT 7");
            write(s, "t", 1);
            s.catch_up();
            s.same();
            assert_eq!(["o", "u"].map(|table| versions(s, table)), versions_before[1..], "{}", s.log(0));
            // The database has other files, and nothing else is new.
            s.stop();
            let untouched = versions(s, "u");
            move_database(s);
            s.run();
            let words = "nothing that is replicated was written since";
            let again = wait_for(words, BOUND, || Ok(s.log(0).matches(words).count() == 2));
            assert!(again.is_ok(), "{}", s.log(0));
            write(s, "t", 2);
            goes_on(s, &untouched);
            s.kill();
            write(s, "o", 2);
            goes_on(s, &untouched);
        },
    );
}

/// Into a tablespace of its own. Nobody may be connected.
fn move_database(s: &mut Scenario) {
    let database = s.source_one("SELECT current_database()");
    let source = &s.pair_mut().source;
    source
        .sql("postgres", "CREATE TABLESPACE elsewhere LOCATION ''")
        .unwrap_or_else(|error| panic!("{error:#}"));
    let sql = format!("ALTER DATABASE {database} SET TABLESPACE elsewhere");
    wait_for("the database to be moved", BOUND, || Ok(source.sql("postgres", &sql).is_ok())).unwrap();
}

#[test]
fn w1_tables_that_were_written_meanwhile_are_copied_again_once_allowed() {
    scenario_alone(
        ONE,
        |source| source.setting("allow_in_place_tablespaces", "on"),
        |target| target,
        |s| {
            begin(s);
            let untouched = versions(s, "u");
            // Its first change is where the catalogs can be followed, its commit where they cannot.
            s.source_in("open", "BEGIN; INSERT INTO o VALUES (-1, 'open'); SAVEPOINT s; DELETE FROM o WHERE id = 77; RELEASE s");
            write(s, "t", 1);
            switch(s, "full_page_writes = off");
            s.wait_for_log("full_page_writes was switched off");
            s.source_in("open", "COMMIT");
            s.source("BEGIN; DELETE FROM u; ROLLBACK");
            write(s, "t", 2);
            switch(s, "full_page_writes = on");
            checkpoint_until(s, ASKS);
            asks_for(s, &["t", "o"], &["u", "mark"]);
            // Killed before, in, and behind the look.
            for (round, words) in (3..).zip(["reading the source's catalogs again", ANEW, "copying 2 "]) {
                // The copy may have begun before the second kill.
                let seen = if round < 5 { s.log(0).matches(words).count() } else { 0 };
                s.run();
                let again = wait_for(words, BOUND, || Ok(s.log(0).matches(words).count() > seen));
                again.unwrap_or_else(|error| panic!("{error:#}: {}", s.log(0)));
                s.kill();
                write(s, "t", round);
            }
            goes_on(s, &untouched);

            // Rows of which less is logged.
            switch(s, "wal_level = replica");
            s.pair_mut().source.restart(StopMode::Fast).unwrap();
            s.wait_for_log("wal_level is lower than logical");
            write(s, "t", 20);
            s.source("TRUNCATE o; INSERT INTO o VALUES (1, 'anew')");
            switch(s, "wal_level = logical");
            s.pair_mut().source.restart(StopMode::Fast).unwrap();
            asks_for(s, &["t", "o"], &["u", "mark"]);
            goes_on(s, &untouched);

            s.stop();
            write(s, "t", 30);
            // What was before that record is applied first; `o` was not written since.
            write(s, "o", 31);
            move_database(s);
            write(s, "t", 32);
            s.run();
            asks_for(s, &["t"], &["o", "u", "mark"]);
            goes_on(s, &untouched);
        },
    );
}

/// Somebody altered the source's catalogs underneath the server, or following them went wrong. The
/// target's rows may be wrong.
#[test]
fn w1_after_catalogs_that_differ_all_tables_are_copied_again() {
    scenario_alone(
        &[&[
            "--source-mode",
            "wal",
            "--wal-stream",
            "on",
            "--catalog-check-interval",
            "300ms",
            "--refresh-interval",
            "200ms",
        ]],
        |source| source.setting("ignore_checksum_failure", "on"),
        |target| target,
        |s| {
            begin(s);
            s.source("CREATE TABLE right_name (id int); CHECKPOINT");
            s.wait_for_log("the catalogs that pgsluice follows are the source's");
            let path = path_of(s, "pg_class");
            s.pair_mut().source.stop(StopMode::Fast).unwrap();
            let mut bytes = std::fs::read(&path).unwrap();
            let places: Vec<usize> =
                (0..bytes.len() - 10).filter(|&at| &bytes[at..at + 10] == b"right_name").collect();
            assert!(!places.is_empty());
            places.into_iter().for_each(|at| bytes[at..at + 5].copy_from_slice(b"wrong"));
            std::fs::write(&path, bytes).unwrap();
            s.pair_mut().source.start_again().unwrap();
            asks_for(s, &["t", "o", "u", "mark"], &[]);
            // As if something had been decoded wrongly.
            s.target("UPDATE u SET v = 'wrong' WHERE id = 5; DELETE FROM t WHERE id = 9");
            s.run();
            s.wait_for_log(ANEW);
            s.wait_for_copy();
            s.catch_up();
            s.same();
        },
    );
}

/// With `copy_data = off`, the message asks the operator to allow the copy, by the setting that it
/// names.
#[test]
fn w1_tables_are_copied_again_with_copy_data_on_where_it_was_off() {
    scenario_alone(
        ONE,
        |source| source,
        |target| target,
        |s| {
            for table in ["t", "u"] {
                s.both(&format!("CREATE TABLE {table} (id int PRIMARY KEY, v text)"));
                s.both(&format!("INSERT INTO {table} SELECT i, 'before' FROM generate_series(1, 1000) i"));
            }
            s.publish("FOR TABLE t, u, mark");
            s.run_with(|command| {
                command.env("PGSLUICE_COPY_DATA", "off");
            });
            s.wait_for_copy();
            s.source("INSERT INTO u VALUES (0, 'streamed')");
            s.catch_up();
            let untouched = versions(s, "u");
            switch(s, "full_page_writes = off");
            s.wait_for_log("full_page_writes was switched off");
            write(s, "t", 1);
            switch(s, "full_page_writes = on");
            checkpoint_until(s, " --copy-data on");
            asks_for(s, &["t"], &["u", "mark"]);
            goes_on(s, &untouched);
        },
    );
}
