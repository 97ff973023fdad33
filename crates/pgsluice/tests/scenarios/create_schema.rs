//! `--create-schema`: the source's whole schema on an empty target, whatever interrupts it.

use std::path::PathBuf;
use std::time::Duration;

use testkit::{Cluster, Major, Pair, pg_dump_for, pg_dump_pinned, wait_for};

use crate::support::{BOUND, FOLDED, Scenario, Session, scenario_alone, scenario_with};

/// Everything that a schema is made of and that a dump could get wrong.
const SCHEMA: &str = r#"
CREATE SCHEMA sales; CREATE SCHEMA "Odd ""Schema; --";
CREATE TYPE sales.mood AS ENUM ('bad', 'it''s; fine', 'good');
CREATE DOMAIN sales.positive AS int CONSTRAINT is_positive CHECK (VALUE > 0);
CREATE TYPE sales.place AS (street text, number sales.positive);
CREATE FUNCTION sales.half(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $body$
BEGIN
    -- Name: t; Type: TABLE; Schema: public; Owner: nobody
    RETURN n / 2; /* ; */
END;
$body$;
CREATE FUNCTION sales.twice(n int) RETURNS int LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT CASE WHEN n > 0 THEN n * 2 ELSE 0 END;
END;
CREATE FUNCTION sales.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.note := 'trigger; $1'; RETURN NEW; END $$;
CREATE PROCEDURE sales.nothing() LANGUAGE sql AS 'SELECT 1; SELECT 2';
CREATE TABLE sales.customer (
    id bigint GENERATED ALWAYS AS IDENTITY (START 100) PRIMARY KEY,
    name text NOT NULL COLLATE "C", feeling sales.mood DEFAULT 'good', home sales.place, note text,
    size sales.positive, doubled int GENERATED ALWAYS AS (size * 2) STORED,
    CONSTRAINT named CHECK (name <> ''));
CREATE UNIQUE INDEX customer_name ON sales.customer (lower(name), (sales.half(size)));
CREATE INDEX customer_partly ON sales.customer USING hash (name) WHERE feeling <> 'bad';
CREATE INDEX customer_covering ON sales.customer (size DESC NULLS LAST) INCLUDE (note) WITH (fillfactor = 70);
CREATE STATISTICS sales.customer_statistics ON name, size FROM sales.customer;
CREATE TRIGGER customer_note BEFORE INSERT OR UPDATE ON sales.customer FOR EACH ROW
    WHEN (NEW.name <> 'x;y') EXECUTE FUNCTION sales.note();
CREATE TRIGGER customer_off AFTER DELETE ON sales.customer FOR EACH STATEMENT EXECUTE FUNCTION sales.note();
ALTER TABLE sales.customer DISABLE TRIGGER customer_off;
COMMENT ON TABLE sales.customer IS 'it''s; a comment';
COMMENT ON COLUMN sales.customer.name IS 'of a column';
COMMENT ON INDEX sales.customer_name IS 'of an index';
CREATE TABLE sales.item (
    customer bigint, line int, what text, during int4range,
    EXCLUDE USING gist (during WITH &&) WHERE (line > 1000000) DEFERRABLE);
ALTER TABLE sales.item ADD UNIQUE (customer, line) DEFERRABLE INITIALLY DEFERRED;
CREATE UNIQUE INDEX item_identity ON sales.item (line, customer);
ALTER TABLE sales.item ALTER line SET NOT NULL, ALTER customer SET NOT NULL;
ALTER TABLE sales.item REPLICA IDENTITY USING INDEX item_identity;
ALTER TABLE sales.item CLUSTER ON item_identity;
ALTER TABLE sales.item ADD CONSTRAINT item_customer FOREIGN KEY (customer) REFERENCES sales.customer ON DELETE CASCADE DEFERRABLE;
COMMENT ON CONSTRAINT item_customer ON sales.item IS 'of a foreign key';
ALTER TABLE sales.item ADD CONSTRAINT old_rows CHECK (what <> 'old') NOT VALID;
CREATE TABLE "Odd ""Schema; --"."Table ; $$" ("Column '1'" int PRIMARY KEY, "select" text DEFAULT 'a;b');
CREATE INDEX "Index ""; --" ON "Odd ""Schema; --"."Table ; $$" ("select");
CREATE TABLE whole (a int, b text);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE INDEX whole_brin ON whole USING brin (a);
CREATE TABLE measured (at int NOT NULL, kind int NOT NULL, v text, PRIMARY KEY (at, kind)) PARTITION BY RANGE (at);
CREATE TABLE measured_1 PARTITION OF measured FOR VALUES FROM (0) TO (100);
CREATE TABLE measured_2 PARTITION OF measured FOR VALUES FROM (100) TO (MAXVALUE) PARTITION BY LIST (kind);
CREATE TABLE measured_2a PARTITION OF measured_2 FOR VALUES IN (1);
CREATE TABLE measured_2b PARTITION OF measured_2 DEFAULT;
CREATE INDEX measured_v ON measured (v);
CREATE INDEX measured_own ON measured_1 (kind);
CREATE TABLE alarm (id int PRIMARY KEY, at int, kind int, FOREIGN KEY (at, kind) REFERENCES measured);
CREATE TABLE parent (id serial PRIMARY KEY, v int CHECK (v > 0) NO INHERIT);
CREATE TABLE child (w int UNIQUE) INHERITS (parent);
CREATE SEQUENCE counter INCREMENT 7 MAXVALUE 1000 CYCLE;
CREATE VIEW by_key AS SELECT c.id, c.name, count(*) FROM sales.customer c JOIN sales.item i ON i.customer = c.id GROUP BY c.id;
CREATE MATERIALIZED VIEW kept AS SELECT id, name FROM by_key WITH NO DATA;
CREATE UNIQUE INDEX kept_id ON kept (id);
CREATE FUNCTION names() RETURNS SETOF text LANGUAGE sql BEGIN ATOMIC SELECT name FROM sales.customer GROUP BY id; END;
CREATE RULE silent AS ON UPDATE TO by_key DO INSTEAD (SELECT 1; SELECT ';');
CREATE POLICY own_rows ON sales.customer FOR SELECT USING (name <> 'secret;');
ALTER TABLE sales.customer ENABLE ROW LEVEL SECURITY;
CREATE AGGREGATE sales.total(int) (SFUNC = int4pl, STYPE = int);
CREATE UNLOGGED TABLE scratch (a int);
"#;

/// What must be alike on both ends, as queries over the catalogs.
const CATALOGS: [(&str, &str); 12] = [
    (
        "relations",
        "SELECT c.oid::regclass, c.relkind, c.relpersistence, c.relreplident, c.relrowsecurity, c.reloptions, am.amname,
                pg_get_expr(c.relpartbound, c.oid), pg_get_partkeydef(c.oid), pg_get_userbyid(c.relowner),
                CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) END, c.relispopulated
           FROM pg_class c LEFT JOIN pg_am am ON am.oid = c.relam WHERE ours(c.relnamespace)",
    ),
    (
        "columns",
        "SELECT a.attrelid::regclass, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
                a.attgenerated, a.attcollation::regcollation, a.attstorage, pg_get_expr(d.adbin, d.adrelid), a.attinhcount
           FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
           LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
          WHERE ours(c.relnamespace) AND a.attnum > 0 AND NOT a.attisdropped",
    ),
    (
        "indexes",
        "SELECT pg_get_indexdef(i.indexrelid), i.indisunique, i.indisprimary, i.indisexclusion, i.indimmediate, i.indisvalid,
                i.indisready, i.indisreplident, i.indisclustered,
                (SELECT inhparent::regclass FROM pg_inherits WHERE inhrelid = i.indexrelid)
           FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid WHERE ours(c.relnamespace)",
    ),
    (
        "constraints",
        "SELECT conrelid::regclass, contypid::regtype, conname, contype, pg_get_constraintdef(oid), convalidated, condeferrable,
                condeferred, coninhcount FROM pg_constraint WHERE ours(connamespace)",
    ),
    (
        "triggers",
        "SELECT pg_get_triggerdef(t.oid), t.tgenabled FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
          WHERE ours(c.relnamespace) AND NOT t.tgisinternal",
    ),
    (
        "functions",
        "SELECT p.oid::regprocedure, p.prokind, CASE WHEN p.prokind <> 'a' THEN pg_get_functiondef(p.oid) END
           FROM pg_proc p WHERE ours(p.pronamespace)",
    ),
    (
        "types",
        "SELECT t.oid::regtype, t.typtype, array(SELECT enumlabel::text FROM pg_enum WHERE enumtypid = t.oid ORDER BY enumsortorder)
           FROM pg_type t WHERE ours(t.typnamespace)",
    ),
    (
        "sequences",
        "SELECT s.seqrelid::regclass, s.seqtypid, s.seqstart, s.seqincrement, s.seqmax, s.seqmin, s.seqcache, s.seqcycle
           FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid WHERE ours(c.relnamespace)",
    ),
    ("rules", "SELECT pg_get_ruledef(r.oid) FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class WHERE ours(c.relnamespace)"),
    ("policies", "SELECT * FROM pg_policies"),
    ("statistics", "SELECT pg_get_statisticsobjdef(oid) FROM pg_statistic_ext WHERE ours(stxnamespace)"),
    (
        "comments",
        "SELECT pg_describe_object(classoid, objoid, objsubid), description FROM pg_description
          WHERE objoid >= 16384 AND pg_describe_object(classoid, objoid, objsubid) NOT LIKE '%pgsluice%'",
    ),
];

/// Rows of one of [`CATALOGS`], as texts in an order.
fn catalog(session: &mut Session, sql: &str) -> Vec<String> {
    session.run(
        "SET search_path TO ''; CREATE OR REPLACE FUNCTION pg_temp.ours(oid) RETURNS bool LANGUAGE sql AS
         $$ SELECT nspname !~ '^(pg_|information_schema$|pgsluice$)' FROM pg_catalog.pg_namespace WHERE oid = $1 $$",
    );
    let sql = sql.replace("ours(", "pg_temp.ours(");
    let rows = session.query(&format!("SELECT q::text FROM ({sql}) q ORDER BY q::text COLLATE \"C\""));
    let rows = rows.unwrap_or_else(|error| panic!("{error}"));
    rows.into_iter().flatten().flatten().collect()
}

/// Both databases have the same schema, but what `leave_out` finds; which catalogs had nothing to compare.
#[track_caller]
fn assert_same_schema(source: &str, target: &str, leave_out: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let mut empty = Vec::new();
    let (mut source, mut target) = (Session::to(source), Session::to(target));
    for (name, sql) in CATALOGS {
        let [expected, found] = [&mut source, &mut target].map(|session| {
            catalog(session, sql).into_iter().filter(|row| !leave_out(row)).collect::<Vec<_>>()
        });
        if expected.is_empty() {
            empty.push(name);
        }
        let lacking: Vec<_> = expected.iter().filter(|row| !found.contains(row)).collect();
        let extra: Vec<_> = found.iter().filter(|row| !expected.contains(row)).collect();
        assert!(lacking.is_empty() && extra.is_empty(), "{name}: lacks {lacking:#?}, has {extra:#?}");
    }
    empty
}

/// A pg_dump for the servers of `s`, or the printed reason why there is none.
fn pg_dump(s: &Scenario) -> Option<PathBuf> {
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

/// Also what waits for the stream.
fn wait_until_done(s: &Scenario) {
    let done = "SELECT bool_and(done) FROM pgsluice.schema_step";
    wait_for("the whole schema", BOUND, || Ok(s.target_one(done) == "t")).unwrap();
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

/// A copy and indexes that can be made to take their time, so that a kill finds the phase that is meant.
const PACED: &str = "
CREATE FUNCTION in_copy(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN n; END';
CREATE FUNCTION in_build(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN n; END';
CREATE TABLE a (id int PRIMARY KEY, v int);
CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a, v int CHECK (in_copy(v) >= 0));";

/// `function` as it is to be from now on.
fn pace(function: &str, slow: bool) -> String {
    let sleep = if slow { "PERFORM pg_catalog.pg_sleep(0.002);" } else { "" };
    format!(
        "CREATE OR REPLACE FUNCTION {function}(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN {sleep} RETURN n; END'"
    )
}

#[test]
fn killed_while_it_copies_and_while_it_builds_it_ends_complete() {
    on_an_empty_target(|s, pg_dump| {
        s.source(PACED);
        s.source("INSERT INTO a SELECT i, i FROM generate_series(1, 3000) i");
        s.source("INSERT INTO b SELECT i, i, 1 FROM generate_series(1, 3000) i");
        s.source("CREATE INDEX a_slow ON a (in_build(v)); CREATE UNIQUE INDEX b_slow ON b (in_build(id))");
        s.source(&[pace("in_copy", true), pace("in_build", true)].join(";"));
        // While pg_dump runs, and as soon as the tables are there.
        start(s, pg_dump);
        s.wait_for_log("reads the source's schema");
        s.kill();
        start(s, pg_dump);
        let there = "SELECT to_regclass('pgsluice.schema_step') IS NOT NULL";
        wait_for("the tables", BOUND, || Ok(s.target_one(there) == "t")).unwrap();
        s.kill();
        start(s, pg_dump);
        let copying = "SELECT to_regclass('pgsluice.copied_table') IS NOT NULL AND EXISTS (SELECT FROM pg_stat_activity
                        WHERE datname = current_database() AND state = 'active' AND query LIKE 'COPY %\"b\"%')";
        wait_for("the copy of b", BOUND, || Ok(s.target_one(copying) == "t")).unwrap();
        s.kill();
        // Rows that only the second snapshot of b can see, with their keys in a.
        s.source("INSERT INTO a VALUES (9001, 1); INSERT INTO b VALUES (9001, 9001, 1)");
        s.both(&pace("in_copy", false));
        for (index, killed) in [("b_slow", true), ("a_slow", true), ("a_slow", false)] {
            start(s, pg_dump);
            // Told by the process itself: its predecessor's backend may still be building, too.
            let object = format!("INDEX public.{index}");
            let is_told = |s: &Scenario| {
                let status = s.status(0);
                let building = status["schema"]["building"].as_array();
                status["phase"] == "indexing"
                    && building.is_some_and(|all| all.iter().any(|own| own["object"] == *object))
            };
            wait_for(index, BOUND, || Ok(is_told(s))).unwrap_or_else(|error| panic!("{error}\n{}", s.log(0)));
            if killed {
                s.kill();
            } else {
                s.stop();
            }
        }
        s.both(&pace("in_build", false));
        // Without the flag as well: what was begun is ended.
        s.follow();
        s.same();
        wait_until_done(s);
        assert_same_schema(&s.source_url(), &s.target_url(0), |_| false);
        assert!(s.log(0).matches("created 3 tables").count() <= 1, "{}", s.log(0));
    });
}

/// Tables copied under different snapshots: a foreign key holds only when the stream has caught up.
#[test]
fn a_foreign_key_over_half_arrived_rows_is_validated_later() {
    on_an_empty_target(|s, pg_dump| {
        s.source(PACED);
        s.source(
            "CREATE TABLE parts (id int, a int REFERENCES a, v int CHECK (in_copy(v) >= 0)) PARTITION BY RANGE (id);
             CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10000);
             COMMENT ON CONSTRAINT parts_a_fkey ON parts IS 'of a key that comes later'",
        );
        s.source("INSERT INTO a SELECT i, i FROM generate_series(1, 10) i");
        s.source(
            "INSERT INTO b SELECT i, i % 10 + 1, 1 FROM generate_series(1, 3000) i;
             INSERT INTO parts SELECT i, i % 10 + 1, 1 FROM generate_series(1, 3000) i",
        );
        s.source(&pace("in_copy", true));
        start(s, pg_dump);
        let finished = |table: &str| {
            format!(
                "coalesce((SELECT finished FROM pgsluice.copied_table WHERE table_name = '{table}'), false)"
            )
        };
        let there = "SELECT to_regclass('pgsluice.copied_table') IS NOT NULL";
        wait_for("the schema", BOUND, || Ok(s.target_one(there) == "t")).unwrap();
        let half =
            format!("SELECT {} AND NOT {} AND NOT {}", finished("a"), finished("b"), finished("parts_1"));
        wait_for("a and nothing else", BOUND, || Ok(s.target_one(&half) == "t")).unwrap();
        s.kill();
        // b and parts will be copied with these, a only gets them from the stream.
        s.source("INSERT INTO a VALUES (9001, 1); INSERT INTO b VALUES (9001, 9001, 1); INSERT INTO parts VALUES (9001, 9001, 1)");
        s.both(&pace("in_copy", false));
        s.follow();
        s.same();
        assert!(s.log(0).contains("does not hold yet"), "{}", s.log(0));
        let valid = "SELECT count(*) || ' ' || bool_and(convalidated) FROM pg_constraint WHERE contype = 'f' AND conparentid = 0
                        AND conrelid::regclass::text IN ('b', 'parts')";
        wait_for("the keys to be validated", BOUND, || Ok(s.target_one(valid) == "2 true")).unwrap();
        wait_until_done(s);
        assert_same_schema(&s.source_url(), &s.target_url(0), |row| {
            row.contains("of a key that comes later")
        });
    });
}

/// Rows that nobody publishes cannot be referred to: said, and no reason to stop.
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

/// Objects of the target's own database, and what a subscription leaves on either server.
fn left_behind(s: &Scenario) -> Vec<String> {
    let sql =
        "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$|public$)' UNION ALL
               SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace UNION ALL
               SELECT typname FROM pg_type WHERE typnamespace = 'public'::regnamespace ORDER BY 1";
    let rows = s.target_one(&format!("SELECT coalesce(string_agg(n, ','), '') FROM ({sql}) AS o (n)"));
    s.left_behind().into_iter().chain((!rows.is_empty()).then_some(rows)).collect()
}

/// A program that answers `answer` to everything.
fn program(dir: &tempfile::TempDir, name: &str, answer: &str) -> String {
    program_of(dir, name, &format!("#!/bin/sh\necho '{answer}'\n"))
}

/// Written by another process: one that this process holds open for writing could not be run by its children.
fn program_of(dir: &tempfile::TempDir, name: &str, script: &str) -> String {
    let path = dir.path().join(name).to_str().unwrap().to_owned();
    let write = ["-c", "printf %s \"$2\" > \"$1\" && chmod 755 \"$1\"", "sh", &path, script];
    assert!(std::process::Command::new("sh").args(write).status().unwrap().success());
    path
}

#[test]
fn a_pg_dump_that_will_not_do_is_refused_before_anything_is_made() {
    on_an_empty_target(|s, _| {
        s.source("CREATE TABLE t (id int PRIMARY KEY)");
        s.publish("FOR ALL TABLES");
        let dir = tempfile::tempdir().unwrap();
        let older = s.major() - 1;
        let old = program(&dir, "old", &format!("pg_dump (PostgreSQL) {older}.3"));
        let other = program(&dir, "other", "ls (GNU coreutils) 9.1");
        let absent = dir.path().join("absent").to_str().unwrap().to_owned();
        let data = dir.path().join("data").to_str().unwrap().to_owned();
        std::fs::write(&data, "no program").unwrap();
        let (version, needed) = (format!("{older}.3"), format!("{} or newer", s.major()));
        for (path, words) in [
            (&old, [version.as_str(), "older than the server", needed.as_str()]),
            (&other, ["it is no pg_dump", "ls (GNU coreutils)", needed.as_str()]),
            (&absent, ["absent", "No such file", needed.as_str()]),
            (&data, ["data", "ermission denied", needed.as_str()]),
        ] {
            for command in ["run", "check"] {
                let args = [command, "--publication", "p", "--create-schema", "--pg-dump", path];
                let output = s.call(0, &args);
                let text = output.stdout.clone() + &output.stderr;
                assert!(!output.status.success(), "{command}: {text}");
                assert!(words.iter().all(|word| text.contains(word)), "{words:?} in: {text}");
                assert_eq!(left_behind(s), [""; 0], "{text}");
            }
        }
        // It says that it is one, and is not.
        let liar = program(&dir, "liar", "pg_dump (PostgreSQL) 99.1");
        let refused = s.call(0, &["run", "--publication", "p", "--create-schema", "--pg-dump", &liar]);
        assert!(
            !refused.status.success() && refused.stderr.contains("middle of a statement"),
            "{}",
            refused.stderr
        );
        assert_eq!(left_behind(s), [""; 0]);
    });
}

/// What the target refuses is named with the statement, and rolled back whole.
#[test]
fn what_the_target_does_not_take_is_named_and_nothing_is_left() {
    let absent = "SET allow_system_table_mods = on; INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)
                  VALUES (99999, 'absent', 10, 2200, false, '1.0')";
    let cases: &[(&str, &str, &[&str])] = &[
        (absent, "", &["extension absent", "is not available on the target", "install its package"]),
        (
            "CREATE TYPE mood AS ENUM ('a')",
            "CREATE TYPE mood AS ENUM ('b')",
            &[
                "TYPE public.mood",
                "already exists",
                "CREATE TYPE public.mood",
                "--create-schema wants a target without",
            ],
        ),
        (
            "CREATE TABLE u (id int)",
            "CREATE TABLE u (id int)",
            &["--create-schema creates all published tables or none", "public.u", "public.t"],
        ),
    ];
    for (source, target, words) in cases {
        on_an_empty_target(|s, pg_dump| {
            s.source("CREATE TABLE t (id int PRIMARY KEY)");
            s.source(source);
            s.publish("FOR ALL TABLES");
            s.target(target);
            let before = left_behind(s);
            let refused = s.call(0, &["run", "--publication", "p", "--create-schema", "--pg-dump", pg_dump]);
            assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
            assert!(
                words.iter().all(|word| refused.stderr.contains(word)),
                "{words:?} in: {}",
                refused.stderr
            );
            assert_eq!(left_behind(s), before, "{}", refused.stderr);
        });
    }
}

/// Roles that may not enough, on either end.
#[test]
fn rights_that_are_missing_are_named_and_nothing_is_left() {
    on_an_empty_target(|s, pg_dump| {
        let role = format!("{}_weak", s.name(0));
        s.source(&format!("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE secret (id int); CREATE ROLE {role} LOGIN REPLICATION; GRANT SELECT ON t, mark TO {role}"));
        s.source("CREATE SCHEMA other; CREATE TABLE other.t (id int PRIMARY KEY)");
        s.source(&format!("GRANT USAGE ON SCHEMA other TO {role}; GRANT SELECT ON other.t TO {role}"));
        s.publish("FOR TABLE t, mark, other.t");
        s.target(&format!("CREATE ROLE {role} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC"));
        let weak = |url: String| url.replace("postgres@", &format!("{role}@"));
        let flags = ["--publication", "p", "--create-schema", "--pg-dump", pg_dump, "--allow-triggers"];
        let (source, target) = (weak(s.source_url()), weak(s.target_url(0)));
        let words: [(&str, &str, &[&str]); 2] = [
            (
                "--target",
                &target,
                &[
                    "schema public: tables cannot be created",
                    "GRANT CREATE ON SCHEMA \"public\"",
                    "schema other cannot be created",
                    "GRANT CREATE ON DATABASE",
                ],
            ),
            ("--source", &source, &["permission denied", "secret", "pg_read_all_data"]),
        ];
        for (end, url, words) in words {
            let args = [&["run", end, url], flags.as_slice()].concat();
            let refused = s.call(0, &args);
            assert!(!refused.status.success(), "{}", refused.stderr);
            assert!(
                words.iter().all(|word| refused.stderr.contains(word)),
                "{words:?} in: {}",
                refused.stderr
            );
            assert_eq!(left_behind(s), [""; 0], "{}", refused.stderr);
        }
        // A role that may create owns everything, which is said.
        s.target(&format!("GRANT CREATE ON SCHEMA public TO {role}"));
        s.target(&format!(
            "DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {role}', current_database()); END $$"
        ));
        s.target(&format!(
            "GRANT EXECUTE ON FUNCTION pg_replication_origin_create(text), pg_replication_origin_drop(text),
               pg_replication_origin_session_setup(text), pg_replication_origin_xact_setup(pg_lsn, timestamptz),
               pg_replication_origin_progress(text, boolean) TO {role}"
        ));
        s.run_with(|command| {
            command.args(["--target", &target]).args(&flags[2..]);
        });
        s.catch_up();
        let owner = "SELECT string_agg(DISTINCT pg_get_userbyid(relowner), ',') FROM pg_class WHERE relname IN ('t', 'secret', 'mark')";
        assert_eq!(s.target_one(owner), role);
        let log = s.log(0);
        assert!(
            log.contains("owners and privileges are left out") && log.contains("is no superuser"),
            "{log}"
        );
        s.stop();
        s.target(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
        s.source(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
    });
}

/// Roles that both servers have keep what is theirs; one that is missing is named.
#[test]
fn owners_and_privileges_are_kept_if_the_target_has_the_roles() {
    for there in [true, false] {
        on_an_empty_target(|s, pg_dump| {
            let (owner, reader) = (format!("{} owner", s.name(0)), format!("{}_reader", s.name(0)));
            let roles = format!("CREATE ROLE \"{owner}\"; CREATE ROLE {reader}");
            s.source(&roles);
            s.source(&format!(
                "CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t OWNER TO \"{owner}\"; GRANT SELECT (id) ON t TO {reader};
                 CREATE TABLE u (id int PRIMARY KEY); GRANT SELECT, UPDATE ON u TO {reader} WITH GRANT OPTION;
                 ALTER DEFAULT PRIVILEGES FOR ROLE \"{owner}\" GRANT SELECT ON TABLES TO {reader}"
            ));
            let missing = reader.clone();
            s.target(if there { &roles } else { "SELECT 1" });
            start(s, pg_dump);
            s.catch_up();
            s.live(&["INSERT INTO t VALUES (1); INSERT INTO u VALUES (1)"]);
            let acl = "SELECT string_agg(o, ' ' ORDER BY o) FROM (SELECT relname || pg_get_userbyid(relowner) || coalesce(relacl::text, '') ||
                       coalesce((SELECT string_agg(attacl::text, '') FROM pg_attribute WHERE attrelid = c.oid), '')
                       FROM pg_class c WHERE relname IN ('t', 'u') AND relkind = 'r' UNION ALL SELECT defaclacl::text FROM pg_default_acl) AS o (o)";
            let (source, target) = (s.source_one(acl), s.target_one(acl));
            let warned = s.log(0).contains(&format!("the target has no role {owner}, {missing}"));
            assert_eq!((source == target, warned), (there, !there), "{source}\n{target}\n{}", s.log(0));
            s.stop();
            for role in [owner, reader] {
                let drop = format!("DROP OWNED BY \"{role}\"; DROP ROLE \"{role}\"");
                s.source(&drop);
                s.target(if there { &drop } else { "SELECT 1" });
            }
        });
    }
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

/// A pg_dump that is newer than both servers says what an old target does not know; an old source into a new target.
#[test]
fn versions_may_differ() {
    let pg_dump = match pg_dump_pinned() {
        Ok(path) => path,
        Err(error) => return println!("skipped, for want of a newer pg_dump: {error:#}"),
    };
    for (source, target) in [(Major::V15, Major::V15), (Major::V15, Major::V18)] {
        let pair = Pair::with(Cluster::builder(source), Cluster::builder(target)).unwrap();
        let mut s = Scenario::alone(pair, &[FOLDED]);
        s.target("DROP TABLE mark");
        s.source(SCHEMA);
        s.source(ROWS);
        start(&mut s, pg_dump.to_str().unwrap());
        s.catch_up();
        s.live(&["UPDATE sales.customer SET size = size + 1", "DELETE FROM alarm WHERE id % 2 = 0"]);
        if source == target {
            assert_same_schema(&s.source_url(), &s.target_url(0), |_| false);
        }
        let indexes = "SELECT string_agg(pg_get_indexdef(indexrelid) || indisvalid, ' ' ORDER BY indexrelid::regclass::text COLLATE \"C\")
                         FROM pg_index WHERE indrelid >= 16384 AND indrelid::regclass::text !~ '^pg'";
        assert_eq!(s.target_one(indexes), s.source_one(indexes));
        s.stop();
    }
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
