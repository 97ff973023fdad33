//! Findings about the servers: their settings and limits, their workload, and their kind.

use serde_json::Value;
use testkit::{Cluster, Major, Pair, StopMode, query, wait_for};

use crate::{BOUND, Ends, cured, each_major, told};

/// Settings that a server reads at its start, all of them wrong at once. The test runs their
/// remedies and restarts the servers.
#[test]
fn limits_and_settings() {
    each_major(|major| {
        let mut source = Cluster::builder(major)
            .setting("wal_level", "replica")
            .setting("max_wal_senders", "1")
            .setting("max_replication_slots", "1")
            .setting("max_connections", "8")
            .setting("max_slot_wal_keep_size", "64MB")
            .setting("wal_sender_timeout", "0");
        let mut target = Cluster::builder(major)
            .setting("max_connections", "7")
            .setting("track_commit_timestamp", "on")
            .setting("max_wal_senders", "0");
        if major >= Major::V18 {
            source = source.setting("idle_replication_slot_timeout", "1h");
            target = target.setting("max_active_replication_origins", "0");
        } else {
            target = target.setting("max_replication_slots", "0");
        }
        let mut pair = Pair::with(source, target).unwrap();
        pair.both("postgres", "CREATE TABLE t (id int PRIMARY KEY)").unwrap();
        pair.source.sql("postgres", "SELECT pg_create_physical_replication_slot('standby')").unwrap();
        pair.source.sql("postgres", "CREATE PUBLICATION p FOR TABLE t").unwrap();
        let origins =
            if major >= Major::V18 { "max_active_replication_origins" } else { "max_replication_slots" };
        let mut expected = vec![
            cured("cannot", "source", "wal_level", "is replica"),
            cured(
                "cannot",
                "source",
                "max_replication_slots",
                "is 1: 1 in use, 0 left, 1 replication slots needed",
            ),
            cured("cannot", "source", "max_wal_senders", "is 1: 0 in use, 1 left, 2 walsenders needed"),
            cured(
                "warning",
                "source",
                "max_connections",
                "leaves 8 connections to this role; 3 to 12 are needed",
            ),
            cured(
                "warning",
                "target",
                "max_connections",
                "leaves 7 connections to this role; 3 to 11 are needed",
            ),
            told("note", "source", "max_slot_wal_keep_size", "is 64 MB"),
            told("note", "source", "wal_sender_timeout", "is 0"),
            told("note", "target", "track_commit_timestamp", "is on"),
            cured("cannot", "target", origins, "is 0: 0 replication origins in use, 0 left, 2 needed"),
        ];
        if major >= Major::V18 {
            expected.push(cured("warning", "source", "idle_replication_slot_timeout", "is 3600 s"));
        }
        let args = ["--max-sync-workers-per-subscription", "10", "--subscription", "s"];
        let ends = Ends { pair: &pair, db: "postgres".to_owned(), role: None };
        let said = ends.check(&args);
        let found: Vec<Value> = expected.iter().map(|expected| said.expect(expected).clone()).collect();
        for (found, _) in found.iter().zip(&expected).filter(|(_, expected)| expected.cured) {
            ends.apply(found);
        }
        pair.source.restart(StopMode::Fast).unwrap();
        pair.target.restart(StopMode::Fast).unwrap();
        let ends = Ends { pair: &pair, db: "postgres".to_owned(), role: None };
        let said = ends.check(&args);
        assert_eq!((said.code, said.worse_than_a_note().len()), (0, 0), "{:#}", said.report);
        transactions_in_the_way(&ends);
        kept_wal(&ends);
        service(&ends);
        standbys(&mut pair);
    });
}

/// All used origins of the server count, for any user. Unused ones take nothing, and one of ours
/// counts once.
#[test]
fn p5_origins_needed_and_left_are_counted() {
    each_major(|major| {
        let setting =
            if major >= Major::V18 { "max_active_replication_origins" } else { "max_replication_slots" };
        let target = Cluster::builder(major).setting(setting, "2");
        let pair = Pair::with(Cluster::builder(major), target).unwrap();
        let mut ends = Ends::new(&pair, "app");
        pair.both("app", "CREATE TABLE t (id int PRIMARY KEY)").unwrap();
        pair.source.sql("app", "CREATE PUBLICATION p FOR TABLE t").unwrap();
        pair.target.sql("app", "SELECT pg_replication_origin_create('idle')").unwrap();
        assert_eq!(ends.check(&[]).code, 0);
        // Another one's, in another database.
        pair.target
            .sql(
                "postgres",
                "SELECT pg_replication_origin_create(n), pg_replication_origin_advance(n, '0/1') \
                 FROM unnest(ARRAY['busy', 'other']) n",
            )
            .unwrap();
        let expected =
            cured("cannot", "target", setting, "is 2: 2 replication origins in use, 0 left, 2 needed");
        let said = ends.check(&[]);
        ends.apply(said.expect(&expected));
        // Who may not see them is told so.
        pair.both("app", "CREATE ROLE weak LOGIN").unwrap();
        ends.role = Some("weak".to_owned());
        ends.check(&[]).expect(&told(
            "warning",
            "target",
            setting,
            "3 replication origins in use, 0 left, 2 needed, if all",
        ));
        ends.role = None;
        let mut pair = pair;
        pair.target.restart(StopMode::Fast).unwrap();
        let ends = Ends { pair: &pair, db: "app".to_owned(), role: None };
        assert_eq!(ends.check(&[]).code, 0);
        let mut running = ends.start(&["run"]);
        wait_for("the stream", BOUND, || Ok(running.stderr().contains("streaming from"))).unwrap();
        assert_eq!(ends.check(&[]).code, 0);
        assert!(running.terminate(BOUND).unwrap().success(), "{}", running.stderr());
    });
}

/// A new slot waits for them.
fn transactions_in_the_way(ends: &Ends<'_>) {
    let url = ends.pair.source.url("postgres");
    ends.pair.source.sql("postgres", "BEGIN; INSERT INTO t VALUES (-1); PREPARE TRANSACTION 'left'").unwrap();
    std::thread::scope(|scope| {
        let open = scope.spawn(|| query(&url, "BEGIN; INSERT INTO t VALUES (-2); SELECT pg_sleep(60)"));
        let pid = "SELECT coalesce(min(pid), 0) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        wait_for("the transaction", BOUND, || Ok(ends.pair.source.one("postgres", pid) != "0")).unwrap();
        let pid = ends.pair.source.one("postgres", pid);
        let said = ends.check(&[]);
        ends.pair.source.sql("postgres", &format!("SELECT pg_terminate_backend({pid})")).unwrap();
        assert!(open.join().unwrap().is_err());
        said.expect(&told("warning", "source", "prepared transactions", "'left' in database postgres"));
        let running = said.expect(&told("note", "source", "running transactions", "postgres, "));
        assert!(running["what"].as_str().unwrap().contains(&format!("pid {pid} ")), "{running:#}");
    });
    ends.pair.source.sql("postgres", "ROLLBACK PREPARED 'left'").unwrap();
}

/// Less WAL than is written while what is there is copied.
fn kept_wal(ends: &Ends<'_>) {
    let source = &ends.pair.source;
    let set = |value: &str| {
        source.sql("postgres", &format!("ALTER SYSTEM SET max_slot_wal_keep_size = '{value}'")).unwrap();
        source.sql("postgres", "SELECT pg_reload_conf()").unwrap();
        let shown = || Ok(source.one("postgres", "SHOW max_slot_wal_keep_size") == value);
        wait_for("the setting", BOUND, shown).unwrap();
    };
    let table = "CREATE TABLE big (id int PRIMARY KEY, v text); ALTER TABLE big ALTER v SET STORAGE EXTERNAL";
    ends.pair.both("postgres", table).unwrap();
    source
        .sql("postgres", "INSERT INTO big SELECT i, repeat('x', 8000) FROM generate_series(1, 400) i; ALTER PUBLICATION p ADD TABLE big")
        .unwrap();
    set("1MB");
    let expected =
        cured("warning", "source", "max_slot_wal_keep_size", "the slot stands still while 3 MB are copied");
    let said = ends.check(&[]);
    ends.apply(said.expect(&expected));
    source.sql("postgres", "SELECT pg_reload_conf()").unwrap();
    let shown = || Ok(source.one("postgres", "SHOW max_slot_wal_keep_size") == "6MB");
    wait_for("the remedy", BOUND, shown).unwrap();
    let said = ends.check(&[]);
    assert!(said.find(&expected).is_none(), "{:#}", said.report);
    said.expect(&told(
        "note",
        "source",
        "max_slot_wal_keep_size",
        "is 6 MB: a slot that falls further behind is lost",
    ));
    set("-1");
    ends.check(&[]).expect(&told("note", "source", "max_slot_wal_keep_size", "keeps all WAL it writes"));
    source.sql("postgres", "ALTER PUBLICATION p DROP TABLE big").unwrap();
}

/// Roles by which a managed service is known.
fn service(ends: &Ends<'_>) {
    ends.pair
        .source
        .sql("postgres", "CREATE ROLE rds_replication; CREATE ROLE app LOGIN; GRANT SELECT ON t TO app")
        .unwrap();
    ends.pair.target.sql("postgres", "CREATE ROLE cloudsqlsuperuser; CREATE ROLE app LOGIN").unwrap();
    let ends = Ends { pair: ends.pair, db: "postgres".to_owned(), role: Some("app".to_owned()) };
    let said = ends.check(&[]);
    said.expect(&told("note", "source", "service", "Amazon RDS"));
    said.expect(&told("note", "target", "service", "cloudsql.logical_decoding"));
    let expected = cured("cannot", "source", "role app", "may not replicate");
    let found = said.expect(&expected);
    assert_eq!(found["sql"][0], "GRANT rds_replication TO \"app\"");
    ends.apply(found);
    assert!(ends.check(&[]).find(&expected).is_none());
    ends.pair.source.sql("postgres", "DROP OWNED BY app; DROP ROLE app, rds_replication").unwrap();
    ends.pair.target.sql("postgres", "DROP ROLE app, cloudsqlsuperuser").unwrap();
}

/// Both servers in recovery.
fn standbys(pair: &mut Pair) {
    for cluster in [&mut pair.source, &mut pair.target] {
        cluster.stop(StopMode::Fast).unwrap();
        std::fs::write(cluster.data_dir().join("standby.signal"), "").unwrap();
        cluster.start_again().unwrap();
    }
    let ends = Ends { pair, db: "postgres".to_owned(), role: None };
    let said = ends.check(&[]);
    said.expect(&told("cannot", "target", "server", "is a standby"));
    let severity = if pair.source.major() >= Major::V16 { "warning" } else { "cannot" };
    said.expect(&told(severity, "source", "server", "is a standby"));
}
