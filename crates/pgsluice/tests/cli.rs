//! The operator's commands against real servers.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use testkit::{Major, Output, Pair, Sluice};

/// What `run` makes on the target, as the applier's `state` module has it.
const STATE: &str = "
CREATE SCHEMA pgsluice;
CREATE TABLE pgsluice.subscription (
    name text PRIMARY KEY, slot text NOT NULL, publications text[] NOT NULL, source_sysid text NOT NULL,
    source_timeline int8 NOT NULL, source_dbname text NOT NULL, consistent_point pg_lsn, confirmed_lsn pg_lsn,
    enabled bool NOT NULL DEFAULT true, skip_lsn pg_lsn, last_error text,
    created_at timestamptz NOT NULL DEFAULT pg_catalog.now());
CREATE TABLE pgsluice.progress (
    subscription text NOT NULL REFERENCES pgsluice.subscription ON DELETE CASCADE, applied_lsn pg_lsn NOT NULL,
    PRIMARY KEY (subscription, applied_lsn));
CREATE TABLE pgsluice.copied_table (
    subscription text NOT NULL REFERENCES pgsluice.subscription ON DELETE CASCADE, schema_name text NOT NULL,
    table_name text NOT NULL, consistent_point pg_lsn, begun bool NOT NULL DEFAULT false,
    finished bool NOT NULL DEFAULT false, rows int8, PRIMARY KEY (subscription, schema_name, table_name));";

/// What `run` adds there for the subscription `name`.
fn pretend(pair: &Pair, name: &str) {
    let sql = format!(
        "INSERT INTO pgsluice.subscription (name, slot, publications, source_sysid, source_timeline, source_dbname)
         VALUES ('{name}', 'pgsluice_{name}', '{{p}}', '1', 1, 'postgres');
         INSERT INTO pgsluice.copied_table VALUES ('{name}', 'public', 't', '0/1', true, true, 10),
                                                  ('{name}', 'public', 'u', '0/1', true, false, NULL);
         SELECT pg_replication_origin_create('pgsluice_{name}_0');
         SELECT pg_replication_origin_advance('pgsluice_{name}_0', '0/ABCDEF');"
    );
    pair.target.sql("postgres", &sql).unwrap();
    let sql = format!("SELECT pg_create_logical_replication_slot('pgsluice_{name}', 'pgoutput')");
    pair.source.sql("postgres", &sql).unwrap();
}

fn on_every_major(test: impl Fn(&Pair)) {
    for major in Major::under_test() {
        test(&Pair::start(major, major).unwrap());
    }
}

fn pgsluice(pair: &Pair, args: &[&str]) -> Output {
    Sluice::call_of(Path::new(env!("CARGO_BIN_EXE_pgsluice")), pair, args).unwrap()
}

/// Everything of ours on both servers, in words.
fn left_behind(pair: &Pair) -> Vec<String> {
    let mut found = Vec::new();
    for cluster in [&pair.source, &pair.target] {
        let sql = "SELECT 'slot ' || slot_name FROM pg_replication_slots
                   UNION ALL SELECT 'origin ' || roname FROM pg_replication_origin
                   UNION ALL SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname = 'pgsluice' ORDER BY 1";
        found.extend(cluster.sql("postgres", sql).unwrap().into_iter().map(|mut row| row.remove(0).unwrap()));
    }
    found
}

#[test]
fn drop_leaves_nothing_and_may_be_repeated() {
    on_every_major(|pair| {
        pair.target.sql("postgres", STATE).unwrap();
        pretend(pair, "a");
        pretend(pair, "a_0");
        let spool = pair.state_dir().join("a.spool");
        std::fs::create_dir(&spool).unwrap();
        std::fs::write(spool.join("1"), "x").unwrap();

        let said = pgsluice(pair, &["drop", "--subscription", "a"]).expect_success();
        for part in
            ["slot \"pgsluice_a\"", "origin \"pgsluice_a_0\"", "2 rows of pgsluice.copied_table", "a.spool"]
        {
            assert!(said.contains(part), "{said}");
        }
        assert!(!said.contains("schema \"pgsluice\""), "{said}");
        assert_eq!(left_behind(pair), ["slot pgsluice_a_0", "origin pgsluice_a_0_0", "schema pgsluice"]);

        let said = pgsluice(pair, &["drop", "--subscription", "a_0"]).expect_success();
        assert!(said.contains("schema \"pgsluice\""), "{said}");
        assert_eq!(left_behind(pair), [""; 0]);
        let said = pgsluice(pair, &["drop", "--subscription", "a_0"]).expect_success();
        assert_eq!(said, "a_0: there was nothing to remove\n");
        assert_eq!(std::fs::read_dir(pair.state_dir()).unwrap().count(), 0);
    });
}

#[test]
fn drop_keeps_what_is_not_its_own() {
    on_every_major(|pair| {
        pair.target.sql("postgres", STATE).unwrap();
        pretend(pair, "s");
        pair.target
            .sql("postgres", "CREATE VIEW pgsluice.mine AS SELECT name FROM pgsluice.subscription")
            .unwrap();
        pgsluice(pair, &["drop", "--subscription", "s"]).expect_success();
        assert_eq!(left_behind(pair), ["schema pgsluice"]);

        // A slot of another database, origins without a row.
        pair.source.sql("postgres", "CREATE DATABASE other").unwrap();
        pair.source
            .sql("other", "SELECT pg_create_logical_replication_slot('pgsluice_s', 'pgoutput')")
            .unwrap();
        let output = pgsluice(pair, &["drop", "--subscription", "s"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            output.stderr.contains("\"other\"") && output.stderr.contains("--force"),
            "{}",
            output.stderr
        );
        pair.source.sql("other", "SELECT pg_drop_replication_slot('pgsluice_s')").unwrap();
        pair.target.sql("postgres", "SELECT pg_replication_origin_create('pgsluice_s_0')").unwrap();
        let output = pgsluice(pair, &["drop", "--subscription", "s"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            output.stderr.contains("pgsluice_s_0") && output.stderr.contains("--force"),
            "{}",
            output.stderr
        );
        pgsluice(pair, &["drop", "--subscription", "s", "--force"]).expect_success();
        assert_eq!(left_behind(pair), ["schema pgsluice"]);
    });
}

#[test]
fn drop_with_one_end_gone_wants_force() {
    on_every_major(|pair| {
        pair.target.sql("postgres", STATE).unwrap();
        pretend(pair, "s");
        let nowhere = "host=127.0.0.1 port=1 user=postgres dbname=postgres connect_timeout=2";
        let args = ["drop", "--subscription", "s", "--source", nowhere];
        let output = pgsluice(pair, &args);
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stderr.contains("source") && output.stderr.contains("--force"), "{}", output.stderr);
        assert_eq!(left_behind(pair).len(), 3);
        let output = pgsluice(pair, &[&args[..], &["--force"]].concat());
        assert!(output.stderr.contains("pg_drop_replication_slot('pgsluice_s')"), "{}", output.stderr);
        output.expect_success();
        assert_eq!(left_behind(pair), ["slot pgsluice_s"]);
    });
}

#[test]
fn drop_refuses_what_a_session_holds() {
    on_every_major(|pair| {
        pair.target.sql("postgres", STATE).unwrap();
        pretend(pair, "s");
        let url = format!("{}?application_name=pgsluice%20s%20apply", pair.target.url("postgres"));
        std::thread::scope(|scope| {
            let busy = scope.spawn(|| testkit::query(&url, "SELECT pg_sleep(30)"));
            testkit::wait_for("the session", std::time::Duration::from_secs(10), || {
                Ok(pair
                    .target
                    .one("postgres", "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
                    == "1")
            })
            .unwrap();
            let output = pgsluice(pair, &["drop", "--subscription", "s"]);
            assert_eq!(output.status.code(), Some(3), "{}", output.stderr);
            assert!(output.stderr.contains("pgsluice s apply"), "{}", output.stderr);
            pair.target
                .sql(
                    "postgres",
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'",
                )
                .unwrap();
            assert!(busy.join().unwrap().is_err());
        });
        pgsluice(pair, &["drop", "--subscription", "s"]).expect_success();
        assert_eq!(left_behind(pair), [""; 0]);
    });
}

#[test]
fn skip_enable_and_disable_reach_the_target() {
    on_every_major(|pair| {
        let missing = pgsluice(pair, &["skip", "--lsn", "0/1", "--subscription", "s"]);
        assert_eq!(missing.status.code(), Some(5), "{}", missing.stderr);
        pair.target.sql("postgres", STATE).unwrap();
        pretend(pair, "s");
        let row = || {
            pair.target.one("postgres", "SELECT concat(enabled, ' ', skip_lsn) FROM pgsluice.subscription")
        };
        let call =
            |args: &[&str]| pgsluice(pair, &[args, &["--subscription", "s"]].concat()).expect_success();
        call(&["skip", "--lsn", "16/B374D848"]);
        call(&["disable"]);
        assert_eq!(row(), "f 16/B374D848");
        call(&["skip", "--lsn", "none"]);
        call(&["enable"]);
        assert_eq!(row(), "t ");
    });
}

#[test]
fn status_of_what_does_not_run_comes_from_the_servers() {
    on_every_major(|pair| {
        let args = ["status", "--subscription", "s"];
        assert!(pgsluice(pair, &args).stdout.contains("nothing stored"));
        pair.target.sql("postgres", STATE).unwrap();
        pretend(pair, "s");
        let output = pgsluice(pair, &args);
        assert_eq!(output.status.code(), Some(5), "{}", output.stderr);
        for part in
            ["not running, enabled", "1 tables finished, 1 unfinished", "0/ABCDEF", "pgsluice_s, inactive"]
        {
            assert!(output.stdout.contains(part), "{}", output.stdout);
        }
        let output = pgsluice(pair, &["status", "--json", "--subscription", "s"]);
        let json: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
        assert_eq!(json["stored"]["publications"][0], "p");
        assert_eq!(json["slot"]["wal_status"], "reserved");
        assert!(json["slot"]["retained_bytes"].is_u64(), "{json}");
    });
}

const SEQUENCES: &str = r#"
CREATE TABLE t (id serial PRIMARY KEY, other int GENERATED ALWAYS AS IDENTITY);
CREATE SEQUENCE used; CREATE TABLE u (id int PRIMARY KEY DEFAULT nextval('used'));
CREATE SEQUENCE down INCREMENT -1; ALTER TABLE u ADD COLUMN d int DEFAULT nextval('down');
CREATE TABLE part (id bigserial, k int) PARTITION BY RANGE (k);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10);
CREATE SCHEMA "It's"; CREATE SEQUENCE "It's"."a ""seq\"; ALTER TABLE u ADD COLUMN q int DEFAULT nextval('"It''s"."a ""seq\"');
CREATE SEQUENCE unpublished;"#;

#[test]
fn sequences_are_compared_and_brought_level() {
    on_every_major(|pair| {
        pair.both("postgres", SEQUENCES).unwrap();
        let source = "CREATE PUBLICATION p FOR TABLE t, u, part_1;
            SELECT nextval('t_id_seq') FROM generate_series(1, 5); SELECT nextval('used') FROM generate_series(1, 1000);
            SELECT nextval('down') FROM generate_series(1, 7); SELECT nextval('part_id_seq');
            SELECT setval('\"It''s\".\"a \"\"seq\\\"', 9, false); SELECT nextval('unpublished');
            CREATE SEQUENCE only_here; ALTER TABLE u ADD COLUMN h int DEFAULT nextval('only_here')";
        pair.source.sql("postgres", source).unwrap();
        // Ahead in the direction of the increment: must not be moved back.
        pair.target.sql("postgres", "SELECT nextval('down') FROM generate_series(1, 9)").unwrap();
        let call = |args: &[&str]| pgsluice(pair, &[&["sequences", "--publication", "p"], args].concat());
        let before = call(&[]);
        assert_eq!(before.status.code(), Some(6), "{}", before.stderr);
        let verdict = |output: &Output, name: &str| {
            let line = output.stdout.lines().find(|line| line.starts_with(name)).map(str::to_owned);
            line.unwrap_or_else(|| panic!("{name} in\n{}", output.stdout))
        };
        for name in ["public.t_id_seq", "public.used", "public.part_id_seq", "It's.a \"seq\\"] {
            assert!(verdict(&before, name).ends_with("behind on the target"), "{}", before.stdout);
        }
        assert!(verdict(&before, "public.down").contains("ahead"), "{}", before.stdout);
        assert!(verdict(&before, "public.t_other_seq").ends_with("level"), "{}", before.stdout);
        assert!(verdict(&before, "public.only_here").contains("missing"), "{}", before.stdout);
        assert!(!before.stdout.contains("unpublished"), "{}", before.stdout);

        let applied = call(&["--apply"]);
        assert_eq!(applied.status.code(), Some(6), "one is missing: {}", applied.stderr);
        let next = |sequence: &str| pair.target.one("postgres", &format!("SELECT nextval('{sequence}')"));
        assert_eq!(next("used"), "1001");
        assert_eq!(next("t_id_seq"), "6");
        assert_eq!(next("part_id_seq"), "2");
        assert_eq!(next("\"It''s\".\"a \"\"seq\\\""), "9");
        assert_eq!(next("down"), "-10");
        assert_eq!(next("unpublished"), "1");

        call(&["--apply", "--force"]);
        assert_eq!(next("down"), "-8");
        let all = call(&["--all"]);
        assert!(verdict(&all, "public.unpublished").contains("level"), "{}", all.stdout);
    });
}

#[test]
fn a_role_that_may_only_update_can_set_sequences() {
    on_every_major(|pair| {
        pair.both("postgres", SEQUENCES).unwrap();
        pair.source
            .sql(
                "postgres",
                "CREATE PUBLICATION p FOR TABLE t; SELECT nextval('t_id_seq') FROM generate_series(1, 5)",
            )
            .unwrap();
        pair.target
            .sql("postgres", "CREATE ROLE sue LOGIN; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO sue")
            .unwrap();
        let target = pair.target.url("postgres").replace("postgres@", "sue@");
        pgsluice(pair, &["sequences", "--publication", "p", "--apply", "--target", &target]).expect_success();
        assert_eq!(pair.target.one("postgres", "SELECT nextval('t_id_seq')"), "6");
    });
}
