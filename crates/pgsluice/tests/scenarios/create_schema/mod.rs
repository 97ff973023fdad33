//! `--create-schema`: the source's whole schema on an empty target, whatever interrupts it.

mod catalogs;
mod interrupted;
mod refused;
mod rights;
mod versions;

use std::path::PathBuf;
use std::time::Duration;

use testkit::pg_dump_for;

use crate::support::{FOLDED, Scenario, Session, scenario_alone, scenario_with};
use catalogs::{SCHEMA, assert_same_schema};

/// A pg_dump for the servers of `s`, or the printed reason why there is none.
pub(crate) fn pg_dump(s: &Scenario) -> Option<PathBuf> {
    let major = s.pair().source.major();
    pg_dump_for(major).map_err(|error| println!("skipped on {major}, which needs a pg_dump: {error:#}")).ok()
}

/// A scenario whose target is empty; it is told the pg_dump to use.
fn on_an_empty_target(scenario: impl Fn(&mut Scenario, &str) + Sync) {
    scenario_with(&[FOLDED], |s| {
        let Some(path) = pg_dump(s) else { return };
        s.target("DROP TABLE mark");
        scenario(s, path.to_str().unwrap());
    });
}

fn start(s: &mut Scenario, pg_dump: &str) {
    s.run_with(|command| {
        command.args(["--create-schema", "--pg-dump", pg_dump]);
    });
}

/// Objects of the target's own database, and what a subscription leaves on either server.
fn left_behind(s: &Scenario) -> Vec<String> {
    let sql =
        "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$|public$)' UNION ALL
               SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace UNION ALL
               SELECT typname FROM pg_type WHERE typnamespace = 'public'::regnamespace ORDER BY 1";
    let rows = s.target_one(&format!("SELECT coalesce(string_agg(n, ','), '') FROM ({sql}) AS o (n)"));
    s.left_behind().into_iter().chain((!rows.is_empty()).then_some(rows)).collect()
}

/// Another process writes the program: one that this process holds open for writing could not be
/// run by its children.
fn program_of(dir: &tempfile::TempDir, name: &str, script: &str) -> String {
    let path = dir.path().join(name).to_str().unwrap().to_owned();
    let write = ["-c", "printf %s \"$2\" > \"$1\" && chmod 755 \"$1\"", "sh", &path, script];
    assert!(std::process::Command::new("sh").args(write).status().unwrap().success());
    path
}

/// Writes into the tables of [`SCHEMA`] until told to stop.
fn load(s: &Scenario) -> (std::sync::mpsc::Sender<()>, std::thread::JoinHandle<usize>) {
    let (stop, stopped) = std::sync::mpsc::channel();
    let url = s.source_url();
    let writer = std::thread::spawn(move || {
        let mut session = Session::to(&url);
        let mut n = 0;
        while stopped.try_recv().is_err() {
            n += 1;
            session.run(&format!(
                "WITH c AS (INSERT INTO sales.customer (name, size) VALUES ('load {n}', {n}) RETURNING id)
                 INSERT INTO sales.item SELECT id, {n}, 'load' FROM c;
                 UPDATE sales.customer SET size = size + 1 WHERE name = 'load {}';
                 DELETE FROM sales.customer WHERE name = 'load {}';
                 INSERT INTO measured VALUES ({n}, {n} % 3, 'load');
                 INSERT INTO alarm VALUES ({n}, {n}, {n} % 3); UPDATE whole SET b = '{n}' WHERE a = {n} % 50;
                 DELETE FROM alarm WHERE id = {n} - 10; DELETE FROM measured WHERE at = {n} - 20",
                n - n % 3,
                n - n % 7
            ));
            // The pace of a load; no test waits for it.
            std::thread::sleep(Duration::from_millis(5));
        }
        n
    });
    (stop, writer)
}

const ROWS: &str = r#"
INSERT INTO sales.customer (name, size, home) SELECT 'name ' || i, i, ROW('street', i)::sales.place FROM generate_series(1, 500) i;
INSERT INTO sales.item SELECT id, id, 'thing', NULL FROM sales.customer;
INSERT INTO "Odd ""Schema; --"."Table ; $$" SELECT i, i::text FROM generate_series(1, 50) i;
INSERT INTO whole SELECT i, i::text FROM generate_series(1, 50) i;
INSERT INTO measured SELECT i, i % 3, 'm' FROM generate_series(100000, 100300) i;
INSERT INTO alarm SELECT i, i, i % 3 FROM generate_series(100000, 100300) i;
INSERT INTO parent (v) SELECT i FROM generate_series(1, 9) i; INSERT INTO child (v, w) SELECT i, i FROM generate_series(1, 9) i"#;

#[test]
fn a_whole_schema_arrives_while_it_is_written_to() {
    on_an_empty_target(|s, pg_dump| {
        s.source(SCHEMA);
        if s.major() >= 18 {
            s.source("ALTER TABLE alarm ADD v int GENERATED ALWAYS AS (at * 2) VIRTUAL; ALTER TABLE whole ADD CONSTRAINT here NOT NULL b NOT VALID");
        }
        s.source(ROWS);
        s.publish("FOR ALL TABLES");
        let (stop, writer) = load(s);
        start(s, pg_dump);
        s.wait_for_copy();
        s.catch_up();
        stop.send(()).unwrap();
        assert!(writer.join().unwrap() > 0);
        s.catch_up();
        s.same();
        let empty = assert_same_schema(&s.source_url(), &s.target_url(0), |_| false);
        assert_eq!(empty, [""; 0], "looked into in vain");
        // Nothing that would replicate from the target.
        assert_eq!(s.target_one("SELECT count(*) FROM pg_publication"), "0");
        // A later start has nothing to create, with the flag and without.
        s.stop();
        start(s, pg_dump);
        s.catch_up();
        s.stop();
        s.backlog(&["UPDATE sales.customer SET size = size + 1"]);
        let dropped = s.log(0);
        assert!(dropped.matches("reads the source's schema").count() == 1, "{dropped}");
        s.stop();
        s.call(0, &["drop"]).expect_success();
        assert_eq!(s.target_one("SELECT count(*) FROM pg_namespace WHERE nspname = 'pgsluice'"), "0");
    });
}

/// A foreign key cannot refer to rows that are not published: pgsluice reports it and continues.
#[test]
fn a_foreign_key_to_unpublished_rows_is_left_unvalidated() {
    on_an_empty_target(|s, pg_dump| {
        s.source("CREATE TABLE country (id int PRIMARY KEY); CREATE TABLE city (id int PRIMARY KEY, country int REFERENCES country)");
        s.source("INSERT INTO country VALUES (1); INSERT INTO city VALUES (1, 1)");
        s.publish("FOR TABLE city, mark");
        start(s, pg_dump);
        s.catch_up();
        s.wait_for_log("rows that it refers to are not published");
        let key = "SELECT convalidated FROM pg_constraint WHERE conname = 'city_country_fkey'";
        assert_eq!(s.target_one(key), "f");
        s.live(&["INSERT INTO country VALUES (2); INSERT INTO city VALUES (2, 2)"]);
    });
}

/// `check` says the same as `run`, before.
#[test]
fn check_asks_for_a_pg_dump_instead_of_tables() {
    on_an_empty_target(|s, pg_dump| {
        s.source("CREATE TABLE t (id int PRIMARY KEY)");
        s.publish("FOR ALL TABLES");
        let check = |more: &[&str]| s.call(0, &[&["check", "--publication", "p"], more].concat());
        let without = check(&[]);
        assert!(
            without.status.code() == Some(2) && without.stdout.contains("does not exist on the target"),
            "{without:?}"
        );
        let with = check(&["--create-schema", "--pg-dump", pg_dump]);
        assert!(with.status.code() != Some(2) && with.stdout.contains("will read the schema"), "{with:?}");
        assert!(!with.stdout.contains("does not exist on the target"), "{with:?}");
        s.target("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE mark (id int PRIMARY KEY)");
        let with = check(&["--create-schema", "--pg-dump", pg_dump]);
        assert!(with.stdout.contains("nothing to create"), "{with:?}");
        // Tables that are there are used as they are.
        start(s, pg_dump);
        s.follow();
        s.live(&["INSERT INTO t VALUES (1)"]);
        assert!(!s.log(0).contains("reads the source's schema"), "{}", s.log(0));
    });
}

/// pg_dump connects as pgsluice does, with a password that no command line shows.
#[test]
fn a_password_in_the_connection_string_reaches_pg_dump() {
    let locked = "host all locked 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust";
    scenario_alone(
        &[FOLDED],
        |source| source.hba(locked),
        |target| target,
        |s| {
            let Some(path) = pg_dump(s) else { return };
            s.target("DROP TABLE mark");
            s.source("CREATE ROLE locked SUPERUSER LOGIN PASSWORD 'it''s \\ \"secret\"'; CREATE TABLE t (id int PRIMARY KEY)");
            s.publish("FOR ALL TABLES");
            let source = s.source_url().replace("postgres@", "locked:it's%20%5C%20%22secret%22@");
            // Before it goes on to the real one it shows what others can read of it.
            let dir = tempfile::tempdir().unwrap();
            let seen = dir.path().join("seen");
            let script = format!(
                "#!/bin/sh\ntr '\\0' ' ' < /proc/$$/cmdline >> {}\nexec {} \"$@\"\n",
                seen.display(),
                path.display()
            );
            let program = program_of(&dir, "pg_dump", &script);
            s.run_with(|command| {
                command.args(["--source", &source, "--create-schema", "--pg-dump", &program]);
            });
            s.catch_up();
            s.live(&["INSERT INTO t VALUES (1)"]);
            let seen = std::fs::read_to_string(seen).unwrap();
            assert!(seen.contains("dbname=") && !seen.contains("secret"), "{seen}");
            assert!(!s.log(0).contains("secret"), "{}", s.log(0));
        },
    );
}
