//! Findings about the two databases as such: whether they fit together, and which other users they
//! have.

use std::time::Instant;

use serde_json::Value;
use testkit::{Major, Pair, StopMode, query, wait_for};

use crate::{BOUND, Ends, Said, cured, each_major, told};

#[test]
fn two_databases_that_fit_and_that_do_not() {
    each_major(|major| {
        let pair = Pair::start(major, major).unwrap();
        nothing_to_say(&pair);
        two_databases(&pair);
        other_writers(&pair);
        locked_tables(&pair);
    });
}

/// A copy of the source's files that became a server of its own. Where commit times are equal,
/// rules decide by system identifier and database.
#[test]
fn a_copy_of_the_source_is_no_other_node() {
    let major = *Major::under_test().last().unwrap();
    let mut pair = Pair::start(major, major).unwrap();
    drop(Ends::new(&pair, "copied"));
    pair.source
        .sql("copied", "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
        .unwrap();
    let mut copy = pair.source.standby("copy").unwrap();
    copy.start_again().unwrap();
    copy.sql("postgres", "SELECT pg_promote()").unwrap();
    wait_for("the promotion", BOUND, || Ok(copy.one("postgres", "SELECT pg_is_in_recovery()") == "f"))
        .unwrap();
    copy.sql("postgres", "ALTER SYSTEM SET track_commit_timestamp = on").unwrap();
    copy.restart(StopMode::Fast).unwrap();
    let ends = Ends { pair: &pair, db: "copied".to_owned(), role: None };
    let check = |target: &str, rule: &str| ends.check(&["--target", target, "--conflict", rule]);
    let same = copy.url("copied");
    let said = check(&same, "insert_exists=last_update_wins");
    said.expect(&told("cannot", "target", "database", "the server is a copy of the source's"));
    assert_eq!(said.code, 2);
    let is_told = |said: &Said| format!("{:#}", said.report).contains("a copy of the source's");
    assert!(!is_told(&check(&same, "insert_exists=apply_remote")), "it looks at no time");
    copy.sql("postgres", "ALTER DATABASE copied RENAME TO renamed").unwrap();
    assert!(!is_told(&check(&copy.url("renamed"), "insert_exists=last_update_wins")));
}

/// What a careful operator has is found to be so, and nothing else.
fn nothing_to_say(pair: &Pair) {
    let ends = Ends::new(pair, "clean");
    pair.both(
        "clean",
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (k uuid PRIMARY KEY, n numeric(9,2))",
    )
    .unwrap();
    pair.source.sql("clean", "CREATE PUBLICATION p FOR TABLE t, u; INSERT INTO t VALUES (1, 'a')").unwrap();
    let started = Instant::now();
    let said = ends.check(&[]);
    println!("check of an idle pair of {}: {} ms", pair.source.major(), started.elapsed().as_millis());
    assert_eq!((said.code, said.worse_than_a_note().len()), (0, 0), "{:#}", said.report);
    assert_eq!((&said.report["verdict"], &said.report["tables"]), (&"ok".into(), &2.into()));
    let text = ends.call(&["check"]).expect_success();
    assert!(text.starts_with("clean: ok\nsource  ") && text.contains("\nnotes\n"), "{text}");
}

/// Encodings, one server twice, a server that is not there.
fn two_databases(pair: &Pair) {
    let ends = Ends::new(pair, "ends");
    pair.both("ends", "CREATE TABLE t (id int PRIMARY KEY)").unwrap();
    pair.source.sql("ends", "CREATE PUBLICATION p FOR TABLE t").unwrap();
    pair.target.sql("postgres", "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0").unwrap();
    let latin = pair.target.url("latin");
    ends.check(&["--target", &latin]).expect(&told(
        "warning",
        "target",
        "encoding",
        "is LATIN1, the source's UTF8",
    ));
    pair.both("postgres", "CREATE DATABASE bytes ENCODING 'SQL_ASCII' TEMPLATE template0").unwrap();
    pair.source.sql("bytes", "CREATE PUBLICATION p").unwrap();
    let (source, target) = (pair.source.url("bytes"), pair.target.url("bytes"));
    let refused =
        told("warning", "target", "encoding", "is UTF8, the source's SQL_ASCII: bytes that are no UTF-8");
    ends.check(&["--source", &source]).expect(&refused);
    let unchanged = told("note", "target", "encoding", "byte by byte");
    ends.check(&["--source", &source, "--target", &target]).expect(&unchanged);
    let itself = pair.source.url("ends");
    let said = ends.check(&["--target", &itself]);
    said.expect(&told("cannot", "target", "database", "itself"));
    assert_eq!(said.code, 2);
    let beside = pair.source.url("postgres");
    ends.check(&["--target", &beside]).expect(&told("note", "target", "database", "own server"));
    let nowhere = "host=127.0.0.1 port=1 user=postgres dbname=postgres connect_timeout=2";
    let said = ends.check(&["--target", nowhere]);
    said.expect(&told("cannot", "target", "connection", "cannot connect"));
    assert_eq!((said.code, &said.report["target"]), (2, &Value::Null));
    // Every version can leave out what came by replication.
    let said = ends.check(&["--origin", "none"]);
    let findings = said.report["findings"].as_array().unwrap();
    assert!(findings.iter().all(|own| own["object"] != "--origin"), "{findings:?}");
}

/// A table that cannot be read at the moment is reported as unknown, not as missing.
fn locked_tables(pair: &Pair) {
    let ends = Ends::new(pair, "locked");
    pair.both("locked", "CREATE TABLE t (id int PRIMARY KEY)").unwrap();
    pair.source.sql("locked", "CREATE PUBLICATION p FOR TABLE t").unwrap();
    for (end, cluster) in [("target", &pair.target), ("source", &pair.source)] {
        let sleeping = "SELECT coalesce(min(pid), 0) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        let url = cluster.url("locked");
        std::thread::scope(|scope| {
            let holder = scope.spawn(|| query(&url, "BEGIN; LOCK t; SELECT pg_sleep(60)"));
            wait_for("the lock", BOUND, || Ok(cluster.one("locked", sleeping) != "0")).unwrap();
            let said = ends.check(&[]);
            cluster.sql("locked", &format!("SELECT pg_terminate_backend(({sleeping}))")).unwrap();
            assert!(holder.join().unwrap().is_err());
            assert_eq!(said.code, 1, "{:#}", said.report);
            said.expect(&told("warning", end, "", "could not be read"));
            assert!(said.findings().iter().all(|found| found["refuses"] == "never"), "{:#}", said.report);
        });
    }
    assert_eq!(ends.check(&[]).code, 0);
}

/// A native subscription into the same table.
fn other_writers(pair: &Pair) {
    let ends = Ends::new(pair, "native");
    pair.both("native", "CREATE TABLE t (id int PRIMARY KEY)").unwrap();
    pair.source.sql("native", "CREATE PUBLICATION p FOR TABLE t").unwrap();
    let source = format!("host=127.0.0.1 port={} user=postgres dbname=native", pair.source.port());
    pair.target
        .sql("native", &format!("CREATE SUBSCRIPTION other CONNECTION '{source}' PUBLICATION p"))
        .unwrap();
    let expected = cured("warning", "target", "subscription other", "public.t");
    let said = ends.check(&[]);
    ends.apply(said.expect(&expected));
    assert!(ends.check(&[]).find(&expected).is_none());
    pair.target.sql("native", "DROP SUBSCRIPTION other").unwrap();
}
