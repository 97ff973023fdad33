//! `pgsluice verify`: finds every difference, and reports none that is not there (rule V1).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::{Sluice, wait_for};

use crate::support::{BOUND, FOLDED, Scenario, Session, scenario_alone, scenario_with};

const ONE: &[&[&str]] = &[FOLDED];

/// Exit code and report of `verify --json`.
#[track_caller]
fn verify(told: &Scenario, args: &[&str]) -> (i32, Value) {
    let all = [&["verify", "--publication", "p", "--json"], args].concat();
    let output = told.call(0, &all);
    let report = serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output.status.code().unwrap(), report)
}

#[track_caller]
fn assert_equal(told: &Scenario, args: &[&str]) -> Value {
    let (code, report) = verify(told, args);
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(report["equal"], true, "{report:#}");
    report
}

/// What `verify` names in words, sorted.
#[track_caller]
fn named(told: &Scenario, args: &[&str]) -> Vec<String> {
    let all = [&["verify", "--publication", "p"], args].concat();
    let output = told.call(0, &all);
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    let mut lines: Vec<String> = output.stdout.lines().map(str::to_owned).collect();
    lines.pop();
    lines.retain(|line| !line.contains(": differs: "));
    lines.sort();
    lines
}

fn table<'a>(report: &'a Value, name: &str) -> &'a Value {
    let found = report["tables"].as_array().unwrap().iter().find(|table| table["table"] == name);
    found.unwrap_or_else(|| panic!("{name}: {report:#}"))
}

/// Small chunks, so that a small table has many of them and many snapshots.
const SMALL: &[&str] = &["--chunk-bytes", "64kB", "--snapshot-max", "50ms", "--workers", "2"];

#[test]
fn every_difference_is_found_and_named() {
    scenario_with(ONE, |told| {
        told.both(
            "CREATE TABLE keyed (id int PRIMARY KEY, a text, b text, n numeric);
             CREATE TABLE pairs (a int, b text, v int, PRIMARY KEY (b, a));
             CREATE TABLE bag (x int, y text);
             ALTER TABLE bag REPLICA IDENTITY FULL",
        );
        told.source(
            "INSERT INTO keyed SELECT i, 'a' || i, 'b' || i, i / 7.0 FROM generate_series(1, 20000) i;
             INSERT INTO pairs SELECT i, 'it''s \"' || i, i FROM generate_series(1, 500) i;
             INSERT INTO bag SELECT i % 100, 'y' FROM generate_series(1, 1000) i",
        );
        told.follow();
        for args in [&[][..], SMALL] {
            let report = assert_equal(told, args);
            assert_eq!(report["pinned"], true);
            assert_eq!(table(&report, "public.keyed")["source_rows"], 20000);
        }
        told.target(
            "DELETE FROM keyed WHERE id = 17;
             INSERT INTO keyed VALUES (-5, 'extra', '', 0);
             UPDATE keyed SET a = 'other', n = n + 0.0 WHERE id = 4711;
             UPDATE keyed k SET b = o.b FROM keyed o WHERE (k.id, o.id) IN ((100, 15000), (15000, 100));
             UPDATE keyed SET a = NULL WHERE id = 19999;
             UPDATE keyed SET a = '' WHERE id = 20000;
             UPDATE pairs SET v = -1 WHERE a = 250;
             DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE x = 7);
             INSERT INTO bag VALUES (7, NULL)",
        );
        told.source("UPDATE keyed SET a = NULL WHERE id = 20000");
        told.catch_up();
        told.target("UPDATE keyed SET a = '' WHERE id = 20000");
        let expected = [
            "public.bag: row (7,): 0 on the source, 1 on the target",
            "public.bag: row (7,y): 10 on the source, 9 on the target",
            "public.keyed: id=-5: only on the target",
            "public.keyed: id=100: column \"b\": source 'b100', target 'b15000'",
            "public.keyed: id=15000: column \"b\": source 'b15000', target 'b100'",
            "public.keyed: id=17: missing on the target",
            "public.keyed: id=19999: column \"a\": source 'a19999', target NULL",
            "public.keyed: id=20000: column \"a\": source NULL, target ''",
            "public.keyed: id=4711: column \"a\": source 'a4711', target 'other'",
            "public.pairs: b=it's \"250, a=250: column \"v\": source '250', target '-1'",
        ];
        // n + 0.0 has more digits after the point: another text, the same number.
        let also = "public.keyed: id=4711: column \"n\":";
        for args in [&[][..], SMALL, &["--workers", "1"]] {
            let mut found = named(told, args);
            found.retain(|line| !line.starts_with(also));
            assert_eq!(found, expected);
        }
        let found = named(told, &["--hide-values"]);
        assert!(found.contains(&"public.keyed: id=20000: column \"a\" differs".to_owned()), "{found:#?}");

        let (code, report) = verify(told, &["--limit", "2"]);
        let keyed = table(&report, "public.keyed");
        assert_eq!((code, keyed["differences"].as_array().unwrap().len()), (6, 2), "{report:#}");
        assert_eq!((&keyed["more"], &keyed["source_rows"]), (&true.into(), &20000.into()), "{report:#}");
        assert_eq!(table(&report, "public.mark")["equal"], true);
    });
}

#[test]
fn tables_that_look_otherwise_on_the_target_are_compared_by_name() {
    scenario_with(ONE, |told| {
        told.source(
            r#"CREATE SCHEMA "Odd ""schema";
             CREATE TYPE mood AS ENUM ('sad', 'happy');
             CREATE TABLE "Odd ""schema"."Table 'x'" ("Key; col" text COLLATE "en-x-icu" PRIMARY KEY, "b""c" int[], m mood);
             CREATE TABLE listed (id int PRIMARY KEY, secret text, shown text);
             CREATE TABLE filtered (id int, region text, v int, PRIMARY KEY (id, region));
             CREATE TABLE types (id int PRIMARY KEY, c char(5), t text, d numeric, f float8, ts timestamp, j json);
             CREATE TABLE none ();
             CREATE TABLE parent (id int PRIMARY KEY, v text);
             CREATE TABLE child (extra int) INHERITS (parent)"#,
        );
        told.target(
            r#"CREATE SCHEMA "Odd ""schema";
             CREATE TYPE mood AS ENUM ('sad', 'happy');
             CREATE TABLE "Odd ""schema"."Table 'x'" (more int DEFAULT 5, m mood, "b""c" int[], "Key; col" text PRIMARY KEY);
             CREATE TABLE listed (shown text, id int PRIMARY KEY);
             CREATE TABLE filtered (id int, region text, v int, PRIMARY KEY (id, region));
             CREATE TABLE types (id bigint PRIMARY KEY, c text, t char(7), d numeric(12,3), f numeric, ts timestamptz, j jsonb);
             CREATE TABLE none ();
             CREATE TABLE parent (id int PRIMARY KEY, v text);
             CREATE TABLE child (extra int) INHERITS (parent)"#,
        );
        let partitioned = "CREATE TABLE ROOT (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
             CREATE TABLE ROOT_1 PARTITION OF ROOT FOR VALUES FROM (0) TO (500);
             CREATE TABLE ROOT_2 PARTITION OF ROOT FOR VALUES FROM (500) TO (100000)";
        told.both(&partitioned.replace("ROOT", "as_root"));
        told.both(&partitioned.replace("ROOT", "as_leaves"));
        let late = told.major() >= 15;
        told.source(
            r#"INSERT INTO "Odd ""schema"."Table 'x'" SELECT 'ä ' || i, ARRAY[i, NULL], 'happy' FROM generate_series(1, 300) i;
             INSERT INTO listed SELECT i, 's' || i, 'v' || i FROM generate_series(1, 100) i;
             INSERT INTO filtered SELECT i, CASE i % 2 WHEN 0 THEN 'EU' ELSE 'US' END, i FROM generate_series(1, 1000) i;
             INSERT INTO types SELECT i, 'x' || i, 'y' || i, i / 4.0, i, '2020-01-01'::timestamp, '{"b": 1,  "a": 2}'
                FROM generate_series(1, 50) i;
             INSERT INTO types (id) VALUES (-1);
             INSERT INTO none DEFAULT VALUES; INSERT INTO none DEFAULT VALUES;
             INSERT INTO as_root SELECT i, 'v' FROM generate_series(1, 1000) i;
             INSERT INTO as_leaves SELECT i, 'v' FROM generate_series(1, 1000) i;
             INSERT INTO parent VALUES (1, 'p'); INSERT INTO child VALUES (2, 'c', 3)"#,
        );
        let (columns, filter) = if late { ("(id, shown)", "WHERE (region = 'EU')") } else { ("", "") };
        let others = r#""Odd ""schema"."Table 'x'", types, none, as_leaves, parent, child, mark"#;
        if late {
            told.source(&format!("CREATE PUBLICATION q FOR TABLE listed {columns}, filtered {filter}"));
            told.source("CREATE PUBLICATION r FOR TABLE as_root WITH (publish_via_partition_root = true)");
        } else {
            told.source("ALTER TABLE listed DROP COLUMN secret");
            told.source("CREATE PUBLICATION q FOR TABLE listed, filtered");
            told.source("CREATE PUBLICATION r FOR TABLE as_root WITH (publish_via_partition_root = true)");
        }
        told.publish(&format!("FOR TABLE {others}"));
        told.run_with(|command| {
            command.args(["--publication", "q", "--publication", "r"]);
        });
        told.wait_for_copy();
        told.catch_up();
        let all = ["--publication", "q", "--publication", "r"];
        let report = assert_equal(told, &all);
        let rows = |name: &str| table(&report, name)["source_rows"].as_u64().unwrap();
        assert_eq!((rows("public.as_root"), rows("public.as_leaves_1"), rows("public.none")), (1000, 499, 2));
        assert_eq!((rows("public.parent"), rows("public.child")), (1, 1));
        assert_eq!(rows("public.filtered"), if late { 500 } else { 1000 });
        // What the subscription publishes is what the target remembers.
        let stored = told.call(0, &["verify"]).expect_success();
        assert!(stored.contains(": equal"), "{stored}");

        told.target(
            r#"UPDATE "Odd ""schema"."Table 'x'" SET "b""c" = '{}', more = 0 WHERE "Key; col" = 'ä 77';
             UPDATE listed SET shown = 'w' WHERE id = 7;
             UPDATE types SET t = 'z', j = '{"a": 2}' WHERE id = 9;
             UPDATE as_root SET v = 'w' WHERE id = 777;
             DELETE FROM as_leaves WHERE id = 777;
             DELETE FROM none WHERE ctid = '(0,1)';
             UPDATE child SET v = 'd'"#,
        );
        let mut expected = vec![
            r#"Odd "schema.Table 'x': Key; col=ä 77: column "b"c": source '{77,NULL}', target '{}'"#,
            "public.as_leaves_2: id=777: missing on the target",
            "public.as_root: id=777: column \"v\": source 'v', target 'w'",
            "public.child: row (2,c,3): 1 on the source, 0 on the target",
            "public.child: row (2,d,3): 0 on the source, 1 on the target",
            "public.listed: id=7: column \"shown\": source 'v7', target 'w'",
            "public.none: row (): 2 on the source, 1 on the target",
            r#"public.types: id=9: column "j": source '{"a": 2, "b": 1}', target '{"a": 2}'"#,
            "public.types: id=9: column \"t\": source 'y9     ', target 'z      '",
        ];
        if late {
            // A row that came from elsewhere is none of ours; one that left the filter is.
            told.target("INSERT INTO filtered VALUES (5000, 'ASIA', 1)");
            told.target(
                "UPDATE filtered SET region = 'US' WHERE id = 10; UPDATE filtered SET v = 0 WHERE id = 20",
            );
            expected.push("public.filtered: id=10, region=EU: missing on the target");
            expected.push("public.filtered: id=20, region=EU: column \"v\": source '20', target '0'");
        }
        expected.sort_unstable();
        assert_eq!(named(told, &all), expected);

        told.target("ALTER TABLE listed DROP COLUMN shown; DROP TABLE none");
        let found = named(told, &["--publication", "q", "--publication", "r"]);
        assert!(
            found.contains(&"public.listed: the target's table has no column \"shown\"".to_owned()),
            "{found:#?}"
        );
        assert!(
            found.contains(&"public.none: the target has no table of this name".to_owned()),
            "{found:#?}"
        );
    });
}

#[test]
fn text_is_the_same_whatever_the_encodings_are() {
    scenario_with(ONE, |told| {
        let name = format!("{}_latin", told.name(0));
        let create = format!(
            "CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        );
        told.pair().source.sql("postgres", &create).unwrap();
        let sql = "CREATE TABLE t (id text PRIMARY KEY, v text);
             INSERT INTO t SELECT i || 'ä', 'ß' || i FROM generate_series(1, 5000) i";
        told.pair().source.sql(&name, sql).unwrap();
        told.pair().source.sql(&name, "CREATE PUBLICATION p FOR ALL TABLES").unwrap();
        told.target(sql);
        let url = told.pair().source.url(&name);
        let call = |args: &[&str]| {
            told.call(0, &[&["verify", "--publication", "p", "--source", &url], args].concat())
        };
        let output = call(&["--chunk-bytes", "16kB"]);
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.contains("no subscription of this name"), "{output:?}");
        told.target("UPDATE t SET v = 'ẞ' WHERE id = '77ä'");
        let output = call(&[]);
        assert!(output.stdout.contains("id=77ä: column \"v\": source 'ß77', target 'ẞ'"), "{output:?}");
        assert_eq!(output.status.code(), Some(6));
        told.pair().source.sql("postgres", &format!("DROP DATABASE {name} WITH (FORCE)")).unwrap();
    });
}

/// Transactions of several sessions: transfers within a table, rows that come and go, a key-less
/// table, TRUNCATE now and then. No statement waits for a lock longer than the longest time that
/// snapshots are held.
fn load(url: &str, number: u32, stop: &AtomicBool) -> u32 {
    let mut session = Session::to(url);
    let mut seed = number;
    let mut next = |bound: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) % bound
    };
    session.run("SET lock_timeout = '10s'");
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let (a, b, n) = (next(2000), next(2000), next(1000));
        let (low, high) = (a.min(b), a.max(b));
        let sql = match next(20) {
            0 if number == 0 => {
                "BEGIN; TRUNCATE log; INSERT INTO log VALUES (-1, 'begun anew'); COMMIT".to_owned()
            }
            0..=3 => format!("INSERT INTO log SELECT i, 'l' FROM generate_series(1, {}) i", n % 20),
            4..=6 => format!("INSERT INTO account VALUES ({}, 0) ON CONFLICT DO NOTHING", 10_000 + n),
            7..=9 => format!("DELETE FROM account WHERE id = {}", 10_000 + n),
            10 => format!("DELETE FROM log WHERE id = {}", n % 20),
            11 => "SET LOCAL synchronous_commit = off; UPDATE account SET amount = amount + 1 WHERE id = 5"
                .to_owned(),
            _ => format!(
                "BEGIN; UPDATE account SET amount = amount - {n} WHERE id = {low};
                 UPDATE account SET amount = amount + {n} WHERE id = {high}; COMMIT"
            ),
        };
        match session.query(&sql) {
            Ok(_) => count += 1,
            // A deadlock of the load's own.
            Err(error) if error.contains("40P01") => session.run("ROLLBACK"),
            Err(error) => panic!("{error}"),
        }
    }
    count
}

#[test]
fn v1_no_difference_is_reported_that_is_not_there() {
    scenario_with(ONE, |told| {
        told.both(
            "CREATE TABLE account (id int PRIMARY KEY, amount int);
             CREATE TABLE log (id int, v text);
             ALTER TABLE log REPLICA IDENTITY FULL",
        );
        told.source("INSERT INTO account SELECT i, 0 FROM generate_series(1, 20000) i");
        told.follow();
        let (url, stop) = (told.source_url(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let load: Vec<_> = (0..4)
                .map(|number| {
                    let (url, stop) = (&url, &stop);
                    scope.spawn(move || load(url, number, stop))
                })
                .collect();
            let deadline = Instant::now() + Duration::from_secs(5);
            let (mut rounds, mut snapshots) = (0, 0);
            while Instant::now() < deadline || rounds < 3 {
                let verified =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| assert_equal(told, SMALL)));
                let Ok(report) = verified else {
                    stop.store(true, Ordering::Relaxed);
                    panic!("after {rounds} rounds");
                };
                assert_eq!(report["pinned"], true);
                snapshots += report["snapshots"].as_u64().unwrap();
                rounds += 1;
            }
            // Ends that are not pinned differ under this load: the check can fail.
            let elsewhere = [SMALL, &["--state-dir", "/nonexistent"]].concat();
            let tries = (0..50).take_while(|_| verify(told, &elsewhere).0 == 0).count();
            stop.store(true, Ordering::Relaxed);
            assert!(tries < 50, "unpinned ends never differ");
            let transactions: u32 = load.into_iter().map(|thread| thread.join().unwrap()).sum();
            println!("{rounds} rounds, {snapshots} snapshots, {transactions} transactions");
            assert!(transactions > 100 && snapshots > rounds);
        });
        told.catch_up();
        told.same();
        // The load stands still, the ends do not differ by chance.
        told.target("UPDATE account SET amount = amount + 1 WHERE id = 1234");
        assert_eq!(named(told, SMALL).len(), 1);
    });
}

#[test]
fn v1_a_snapshot_that_is_no_prefix_of_the_commits_is_not_used() {
    scenario_alone(
        ONE,
        |source| source,
        |target| target,
        |told| {
            told.both("CREATE TABLE t (id int PRIMARY KEY)");
            told.follow();
            // A commit that waits for a standby is in WAL, and so in the stream, but no snapshot
            // sees it.
            told.pair().source.set_synchronous_standby_names("nobody").unwrap();
            let url = told.source_url();
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| Session::to(&url).run("INSERT INTO t VALUES (1)"));
                let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
                wait_for("a commit that waits", BOUND, || Ok(told.source_one(waits) == "1")).unwrap();
                told.source("SET synchronous_commit = local");
                told.source("INSERT INTO t VALUES (0)");
                let args = ["verify", "--publication", "p", "--json"];
                let mut verifying = Sluice::start(told.command(0, &args)).unwrap();
                // It asks again and again: its messages in WAL are transactions.
                let xid = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8";
                let before: u64 = told.source_one(xid).parse().unwrap();
                wait_for("some tries", BOUND, || {
                    Ok(told.source_one(xid).parse::<u64>()? > before + 3 || !verifying.is_running())
                })
                .unwrap();
                assert!(verifying.is_running(), "{}{}", verifying.stdout(), verifying.stderr());
                told.pair().source.set_synchronous_standby_names("").unwrap();
                waiting.join().unwrap();
                let status = verifying.wait(BOUND).unwrap().expect("it ends");
                let report: Value = serde_json::from_str(&verifying.stdout()).unwrap();
                assert!(status.success(), "{report:#}");
                assert!(report["not_a_prefix"].as_u64().unwrap() > 0, "{report:#}");
                assert_eq!(table(&report, "public.t")["source_rows"], 2);
            });
        },
    );
}

#[test]
fn a_verify_that_dies_does_not_stall_the_stream() {
    scenario_with(ONE, |told| {
        told.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        told.source("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 20000) i");
        told.follow();
        // Held by a client that then goes away without closing.
        let path = told.pair().state_dir().join(format!("{}.sock", told.name(0)));
        let mut socket = UnixStream::connect(path).unwrap();
        let mut answers = BufReader::new(socket.try_clone().unwrap());
        let mut ask = |request: &str| {
            writeln!(socket, "{request}").unwrap();
            let mut line = String::new();
            answers.read_line(&mut line).unwrap();
            serde_json::from_str::<Value>(&line).unwrap()
        };
        assert_eq!(ask(r#"{"command":"hold"}"#)["ok"], true);
        let mark = told.mark();
        let written = told.source_one("SELECT pg_current_wal_flush_lsn()");
        let received = || {
            let sql = format!(
                "SELECT coalesce('{}'::pg_lsn >= '{written}'::pg_lsn, false)",
                told.status(0)["received"].as_str().unwrap_or("0/0")
            );
            Ok(told.source_one(&sql) == "t")
        };
        wait_for("the mark to be received", BOUND, received).unwrap();
        assert_eq!(told.target_one(&format!("SELECT count(*) FROM mark WHERE id = {mark}")), "0");
        // Nobody else can have it meanwhile, nor with a snapshot that is none.
        let path = told.pair().state_dir().join(format!("{}.sock", told.name(0)));
        let mut other = UnixStream::connect(path).unwrap();
        writeln!(other, r#"{{"command":"hold"}}"#).unwrap();
        let mut line = String::new();
        BufReader::new(&other).read_line(&mut line).unwrap();
        assert!(line.contains("another verify"), "{line}");
        assert_eq!(ask(r#"{"command":"advance","snapshot":"x","lsn":"0/1"}"#)["ok"], false);
        drop((socket, answers));
        told.wait_for_mark(mark);
        // And whatever a real one was doing when it was killed.
        for round in 0..6 {
            let args = [&["verify", "--publication", "p"], SMALL].concat();
            let mut verifying = Sluice::start(told.command(0, &args)).unwrap();
            let sessions =
                "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgsluice % verify'";
            let begun = wait_for("its sessions", BOUND, || {
                Ok(told.source_one(sessions) != "0" || !verifying.is_running())
            });
            begun.unwrap();
            told.source(&format!("UPDATE t SET v = v || {round} WHERE id = {round}"));
            verifying.kill9();
            told.catch_up();
        }
        assert_equal(told, &[]);
    });
}

#[test]
fn snapshots_are_renewed_and_memory_is_bounded() {
    scenario_with(ONE, |told| {
        // 48 MB of rows that all differ, without and with a key.
        let rows = "INSERT INTO wide SELECT i, repeat(md5(i::text), 25), i FROM generate_series(1, 40000) i;
             INSERT INTO bag SELECT i, repeat(md5(i::text), 25) FROM generate_series(1, 20000) i;
             ANALYZE";
        told.both("CREATE TABLE wide (id int PRIMARY KEY, v text, n int); CREATE TABLE bag (x int, v text)");
        told.source(rows);
        told.target(&rows.replace("i::text", "(-i)::text"));
        told.publish("FOR TABLE wide, bag");
        let args =
            ["verify", "--publication", "p", "--json", "--chunk-bytes", "1MB", "--snapshot-max", "20ms"];
        let mut verifying = Sluice::start(told.command(0, &args)).unwrap();
        let mut resident = 0;
        wait_for("verify", BOUND, || {
            resident = resident.max(verifying.resident_bytes_max());
            Ok(!verifying.is_running())
        })
        .unwrap();
        let report: Value = serde_json::from_str(&verifying.stdout()).unwrap();
        assert!(resident > 1 << 20 && resident < 40 << 20, "{} MB", resident >> 20);
        assert!(report["snapshots"].as_u64().unwrap() > 5, "{report:#}");
        for (name, rows) in [("public.wide", 40000), ("public.bag", 20000)] {
            let table = table(&report, name);
            assert_eq!((&table["source_rows"], &table["more"]), (&rows.into(), &true.into()), "{report:#}");
            assert_eq!(table["differences"].as_array().unwrap().len(), 20);
        }
    });
}
