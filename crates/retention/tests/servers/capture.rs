//! What is deleted is known, by whom and when, whatever ends in between.

use std::time::Duration;

use base::{Lsn, PgTimestamp};
use deletions::{Answer, Equality, Identity, Kind, RowKey, Value};
use retention::{Condition, Missed, Unfit};
use testkit::{Cluster, Major, Proxy, wait_for};

use crate::support::{Capturing, DB, PATIENCE, by_id, cluster, key, oid};

const UNSEEN: Answer = Answer::NotSeen { may_be_forgotten: false };

const TABLES: &str = "
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t SELECT n, 'v' FROM generate_series(1, 100) n;
CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (100) PARTITION BY RANGE (id);
CREATE TABLE p3 PARTITION OF p2 FOR VALUES FROM (10) TO (100);
INSERT INTO p SELECT n, 'v' FROM generate_series(1, 20) n;
CREATE TABLE whole (id int, v text);
ALTER TABLE whole REPLICA IDENTITY FULL;
INSERT INTO whole VALUES (1, 'a'), (2, 'b');
CREATE TABLE nothing (id int, v text);
INSERT INTO nothing VALUES (1, 'a');
CREATE TABLE toasted (k text PRIMARY KEY, v int);
ALTER TABLE toasted ALTER k SET STORAGE EXTERNAL;
ALTER TABLE toasted DROP CONSTRAINT toasted_pkey;
ALTER TABLE toasted ALTER k SET NOT NULL;
ALTER TABLE toasted REPLICA IDENTITY FULL;
INSERT INTO toasted SELECT string_agg(md5(n::text), ''), 1 FROM generate_series(1, 300) n;";

#[test]
fn d1_each_way_to_lose_a_row_is_captured() {
    Major::each(1, |major| {
        let (cluster, dir) = (cluster(major), tempfile::tempdir().unwrap());
        cluster.sql(DB, TABLES).unwrap();
        let capturing = Capturing::start(&cluster, dir.path());
        let before = cluster.one(DB, "SELECT (EXTRACT(epoch FROM clock_timestamp() - '2000-01-01 00:00:00+00'::timestamptz) * 1000000)::int8");
        let xid: u32 = cluster.one(DB, "WITH d AS (DELETE FROM t WHERE id = 1 RETURNING 1) SELECT txid_current() % (2^32)::int8 FROM d").parse().unwrap();
        cluster.sql(DB, "UPDATE t SET id = 200 WHERE id = 2; UPDATE t SET v = 'x' WHERE id = 3").unwrap();
        let deleted = capturing.tombstone(&cluster, by_id(&cluster, "t", "1"));
        assert_eq!((deleted.kind, deleted.xid.0, deleted.origin), (Kind::Delete, xid, None));
        assert!(deleted.time > PgTimestamp(before.parse().unwrap()));
        assert_eq!(capturing.tombstone(&cluster, by_id(&cluster, "t", "2")).kind, Kind::KeyChange);
        assert_eq!(capturing.ask(&cluster, by_id(&cluster, "t", "3")), UNSEEN, "only updated");
        assert_eq!(capturing.ask(&cluster, by_id(&cluster, "t", "4")), UNSEEN);

        // Partitions: the key is the topmost table's, whatever the depth.
        cluster.sql(DB, "DELETE FROM p WHERE id IN (1, 15); UPDATE p SET id = 30 WHERE id = 2").unwrap();
        for id in ["1", "15", "2"] {
            capturing.tombstone(&cluster, by_id(&cluster, "p", id));
        }
        // Deleted in a subtransaction that was rolled back, and in one that was not.
        cluster.sql(DB, "BEGIN; SAVEPOINT a; DELETE FROM t WHERE id = 10; ROLLBACK TO a; SAVEPOINT b; DELETE FROM t WHERE id = 11; RELEASE b; COMMIT; BEGIN; DELETE FROM t WHERE id = 12; ROLLBACK").unwrap();
        assert_eq!(capturing.ask(&cluster, by_id(&cluster, "t", "10")), UNSEEN);
        capturing.tombstone(&cluster, by_id(&cluster, "t", "11"));
        assert_eq!(capturing.ask(&cluster, by_id(&cluster, "t", "12")), UNSEEN);

        // The whole row, also with a value that is too large for its page.
        cluster.sql(DB, "DELETE FROM whole WHERE id = 1; UPDATE toasted SET v = 2").unwrap();
        let whole = |table: &str, columns: Vec<Equality>, values: &[&str]| {
            let mut key = RowKey::default();
            let values = values.iter().map(|value| Value::Text(value.as_bytes()));
            Identity::new(columns, true).write(oid(&cluster, table), values, &mut key).unwrap();
            key
        };
        let row = vec![Equality::Integer(4), Equality::Text];
        capturing.tombstone(&cluster, whole("whole", row.clone(), &["1", "a"]));
        assert_eq!(capturing.ask(&cluster, whole("whole", row, &["2", "b"])), UNSEEN);
        let long = cluster.one(DB, "SELECT k FROM toasted");
        let row = vec![Equality::Text, Equality::Integer(4)];
        capturing.tombstone(&cluster, whole("toasted", row, &[&long, "1"]));
        // A table made and emptied in one transaction, and one that was rewritten.
        cluster.sql(DB, "BEGIN; CREATE TABLE made (id int PRIMARY KEY); INSERT INTO made VALUES (1); DELETE FROM made; COMMIT").unwrap();
        capturing.tombstone(&cluster, by_id(&cluster, "made", "1"));
        for n in 0..20 {
            cluster.sql(DB, &format!("BEGIN; CREATE TABLE made{n} (id int PRIMARY KEY); INSERT INTO made{n} VALUES (1); DELETE FROM made{n}; COMMIT")).unwrap();
        }
        for n in 0..20 {
            capturing.tombstone(&cluster, by_id(&cluster, &format!("made{n}"), "1"));
        }
        cluster.sql(DB, "ALTER TABLE t ALTER id TYPE int8; DELETE FROM t WHERE id = 20").unwrap();
        capturing.tombstone(&cluster, key(oid(&cluster, "t"), vec![Equality::Integer(8)], &["20"]));

        cluster.sql(DB, "TRUNCATE t, p").unwrap();
        for (table, id) in [("t", "50"), ("p", "3")] {
            assert_eq!(capturing.tombstone(&cluster, by_id(&cluster, table, id)).kind, Kind::Truncate);
        }
        capturing.end();
    });
}

#[test]
fn d1_a_row_that_cannot_be_named_is_not_covered() {
    const TABLES: &str = "
CREATE TABLE late (id int NOT NULL, v text);
CREATE TABLE kept (id int PRIMARY KEY);
CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE other (id int PRIMARY KEY, k text COLLATE blind NOT NULL UNIQUE);
ALTER TABLE other REPLICA IDENTITY USING INDEX other_k_key;
INSERT INTO late SELECT n, 'v' FROM generate_series(1, 9) n;
INSERT INTO kept SELECT n FROM generate_series(1, 9) n;
INSERT INTO p SELECT n FROM generate_series(1, 15) n;
INSERT INTO other SELECT n, n FROM generate_series(1, 9) n";
    Major::each(1, |major| {
        let (cluster, dir) = (cluster(major), tempfile::tempdir().unwrap());
        cluster.sql(DB, TABLES).unwrap();
        let capturing = Capturing::start(&cluster, dir.path());
        // Each of them is asked about by an identity that it got later.
        cluster
            .sql(DB, "DELETE FROM late WHERE id = 1; TRUNCATE p1; DELETE FROM other WHERE id = 1")
            .unwrap();
        cluster
            .sql(DB, "ALTER TABLE late ADD PRIMARY KEY (id); ALTER TABLE other REPLICA IDENTITY DEFAULT")
            .unwrap();
        for table in ["late", "p", "other"] {
            assert_eq!(capturing.ask(&cluster, by_id(&cluster, table, "1")), Answer::NotCovered, "{table}");
        }
        assert_eq!(capturing.ask(&cluster, by_id(&cluster, "kept", "1")), UNSEEN);
        // A deletion with a name that comes later is known.
        cluster.sql(DB, "DELETE FROM late WHERE id = 2; DELETE FROM other WHERE id = 2").unwrap();
        cluster.sql(DB, "DELETE FROM p WHERE id = 12").unwrap();
        for (table, id) in [("late", "2"), ("other", "2"), ("p", "12")] {
            capturing.tombstone(&cluster, by_id(&cluster, table, id));
        }
        capturing.end();
    });
}

#[test]
fn d1_a_deletion_has_the_origin_and_time_of_its_transaction_and_ours_are_left_out() {
    Major::each(1, |major| {
        let (cluster, dir) = (cluster(major), tempfile::tempdir().unwrap());
        cluster.sql(DB, TABLES).unwrap();
        cluster
            .sql(
                DB,
                "SELECT pg_replication_origin_create('pgsluice_s_0'), pg_replication_origin_create('other')",
            )
            .unwrap();
        let capturing = Capturing::start(&cluster, dir.path());
        let delete = |origin: &str, id: u32| {
            cluster.sql(DB, &format!("SELECT pg_replication_origin_session_setup('{origin}'); BEGIN; SELECT pg_replication_origin_xact_setup('0/1', '2001-01-01 00:00:00+00'); DELETE FROM t WHERE id = {id}; COMMIT; SELECT pg_replication_origin_session_reset()")).unwrap();
        };
        delete("other", 1);
        delete("pgsluice_s_0", 2);
        let number: u16 = cluster
            .one(DB, "SELECT roident FROM pg_replication_origin WHERE roname = 'other'")
            .parse()
            .unwrap();
        let deleted = capturing.tombstone(&cluster, by_id(&cluster, "t", "1"));
        assert_eq!((deleted.origin, deleted.time), (Some(number), PgTimestamp(366 * 86_400_000_000)));
        assert_eq!(capturing.ask(&cluster, by_id(&cluster, "t", "2")), UNSEEN, "our own");
        capturing.end();
    });
}

/// Why the fence forces a flush: a commit that only has a transaction id forces none, although it
/// is synchronous. A fence that relied on it would answer that the row was never there.
#[test]
fn d1_a_fence_by_a_transaction_id_alone_answers_wrongly_and_the_real_one_does_not() {
    Major::each(1, |major| {
        let lazy = Cluster::builder(major).setting("wal_level", "logical").setting("wal_writer_delay", "10s");
        let (cluster, dir) =
            (lazy.setting("synchronous_commit", "off").start().unwrap(), tempfile::tempdir().unwrap());
        cluster.sql(DB, TABLES).unwrap();
        let capturing = Capturing::start(&cluster, dir.path());
        let lsn = |sql: &str| cluster.one(DB, sql).parse::<Lsn>().unwrap();
        let mut is_shown = false;
        // The WAL writer may flush between two statements, at its own pace.
        for id in 1..=5 {
            let row = by_id(&cluster, "t", &id.to_string());
            cluster.sql(DB, &format!("DELETE FROM t WHERE id = {id}")).unwrap();
            let deleted = lsn("SELECT pg_current_wal_insert_lsn()");
            cluster.sql(DB, "SET synchronous_commit = on; SELECT pg_current_xact_id()").unwrap();
            let fence = lsn("SELECT pg_current_wal_flush_lsn()");
            let missed = [(row.clone(), PgTimestamp(i64::MAX))];
            let asked = capturing.retention.look_up(&missed, fence, PATIENCE);
            let answer = capturing.runtime.block_on(asked).unwrap()[0];
            is_shown |= fence < deleted && !matches!(answer, Answer::Deleted(_));
            capturing.tombstone(&cluster, row);
            assert!(lsn("SELECT pg_current_wal_flush_lsn()") >= deleted);
        }
        assert!(is_shown, "a transaction id has forced a flush each time");
        capturing.end();
    });
}

#[test]
fn d1_nothing_is_lost_when_capture_or_the_target_ends() {
    Major::each(1, |major| {
        let (mut cluster, dir) = (cluster(major), tempfile::tempdir().unwrap());
        cluster.sql(DB, TABLES).unwrap();
        let capturing = Capturing::start(&cluster, dir.path());
        let cut = capturing.retention.figures().unwrap().cut;
        cluster.sql(DB, "DELETE FROM t WHERE id = 1").unwrap();
        capturing.tombstone(&cluster, by_id(&cluster, "t", "1"));
        capturing.end();
        cluster.sql(DB, "DELETE FROM t WHERE id = 2").unwrap();
        let capturing = Capturing::start(&cluster, dir.path());
        cluster.sql(DB, "DELETE FROM t WHERE id = 3").unwrap();
        for id in ["1", "2", "3"] {
            capturing.tombstone(&cluster, by_id(&cluster, "t", id));
        }
        assert_eq!(capturing.retention.figures().unwrap().cut, cut, "no gap");
        // A transaction that is open when the target is killed never comes.
        cluster.sql(DB, "CHECKPOINT; DELETE FROM t WHERE id = 4").unwrap();
        cluster.kill9();
        cluster.start_again().unwrap();
        cluster.sql(DB, "DELETE FROM t WHERE id = 5").unwrap();
        capturing.wait_for(&Condition::Capturing);
        let known = || Ok(matches!(capturing.ask(&cluster, by_id(&cluster, "t", "5")), Answer::Deleted(_)));
        wait_for("capture after the kill", PATIENCE, known).unwrap();
        for id in ["1", "2", "3", "4"] {
            capturing.tombstone(&cluster, by_id(&cluster, "t", id));
        }
        assert_eq!(capturing.retention.figures().unwrap().cut, cut, "no gap");
        // Without its slot it begins anew, and says that something may be missing.
        capturing.end();
        let is_dropped = || Ok(cluster.sql(DB, "SELECT pg_drop_replication_slot('pgsluice_s_dead')").is_ok());
        wait_for("the walsender to end", PATIENCE, is_dropped).unwrap();
        cluster.sql(DB, "DELETE FROM t WHERE id = 6").unwrap();
        let capturing = Capturing::start(&cluster, dir.path());
        assert!(capturing.retention.figures().unwrap().cut.unwrap().lsn > cut.unwrap().lsn);
        cluster.sql(DB, "DELETE FROM t WHERE id = 7").unwrap();
        capturing.tombstone(&cluster, by_id(&cluster, "t", "7"));
        capturing.end();
    });
}

/// The session of the questions ends between two of them, or in the middle, or falls silent.
#[test]
fn a_deletion_is_known_although_the_session_that_asks_ends() {
    Major::each(2, |major| {
        let (cluster, dir) = (cluster(major), tempfile::tempdir().unwrap());
        cluster.sql(DB, TABLES).unwrap();
        let proxy = Proxy::to(cluster.port()).unwrap();
        let capturing = Capturing::begin_at(&proxy.url(&cluster.url(DB)), dir.path(), None);
        capturing.wait_for(&Condition::Capturing);
        let (retention, runtime) = (&capturing.retention, &capturing.runtime);
        let delete = |id: u32| {
            cluster.sql(DB, &format!("DELETE FROM t WHERE id = {id}")).unwrap();
            let row = by_id(&cluster, "t", &id.to_string());
            capturing.tombstone(&cluster, row.clone());
            [Missed { key: row, time: PgTimestamp(i64::MAX) }]
        };
        let is_known =
            |missed: &[Missed]| matches!(runtime.block_on(retention.ask(missed))[0], Answer::Deleted(_));
        let asks = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE '%fence%'";
        let first = delete(1);
        assert!(is_known(&first));
        let asking = cluster.one(DB, asks);
        assert!(is_known(&first));
        assert_eq!(cluster.one(DB, asks), asking, "one session serves all questions");
        // It is ended by the server, and by the network, each seen or not seen before the question.
        for (pause, id) in [(0, 2), (200, 3)] {
            let missed = delete(id);
            cluster.sql(DB, &format!("SELECT pg_terminate_backend(pid) FROM ({asks}) AS a(pid)")).unwrap();
            std::thread::sleep(Duration::from_millis(pause));
            assert!(is_known(&missed), "ended by the server, {pause} ms");
        }
        for (pause, id) in [(0, 4), (200, 5)] {
            let missed = delete(id);
            proxy.cut();
            std::thread::sleep(Duration::from_millis(pause));
            let (table, mapping) = (oid(&cluster, "t"), u64::from(id));
            assert!(runtime.block_on(retention.table(table, mapping)).is_some(), "cut, {pause} ms");
            capturing.wait_for(&Condition::Capturing);
            assert!(is_known(&missed), "cut, {pause} ms");
        }
        // A silent one costs the patience of one question.
        let missed = delete(6);
        let deaf = cluster.one(DB, asks);
        assert!(proxy.stall() > 0);
        assert!(!is_known(&missed), "nothing answers");
        capturing.wait_for(&Condition::Capturing);
        wait_for("an answer on a new session", PATIENCE, || Ok(is_known(&missed))).unwrap();
        let other = format!("SELECT count(*) FROM ({asks}) AS a(pid) WHERE pid <> {deaf}");
        assert_eq!(cluster.one(DB, &other), "1", "the silent session is used no more");
        capturing.end();
    });
}

#[test]
fn a_target_that_cannot_be_captured_is_named_and_tried_again() {
    Major::each(1, |major| {
        let mut cluster = Cluster::builder(major).setting("wal_level", "replica").start().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let capturing = Capturing::begin(&cluster, dir.path());
        capturing.wait_for(&Condition::Unfit(Unfit::WalLevel("replica".to_owned())));
        cluster.sql(DB, "ALTER SYSTEM SET wal_level = logical").unwrap();
        cluster.restart(testkit::StopMode::Fast).unwrap();
        capturing.wait_for(&Condition::Capturing);
        capturing.end();
    });
}

/// The stream names its database, so pg_hba.conf needs no line for replication.
#[test]
fn a_target_that_rejects_physical_replication_connections_is_captured() {
    Major::each(1, |major| {
        let hba = "host replication all all reject\nlocal replication all reject\n\
                   host postgres all 127.0.0.1/32 trust\nlocal all all trust\n";
        let cluster = Cluster::builder(major).hba(hba).start().unwrap();
        let dir = tempfile::tempdir().unwrap();
        cluster.sql(DB, TABLES).unwrap();
        let capturing = Capturing::start(&cluster, dir.path());
        cluster.sql(DB, "DELETE FROM t WHERE id = 1").unwrap();
        capturing.tombstone(&cluster, by_id(&cluster, "t", "1"));
        capturing.end();
    });
}

/// Other limits on connections have the code of that on walsenders, and other remedies.
#[test]
fn a_limit_of_the_role_is_not_taken_for_that_on_walsenders() {
    Major::each(1, |major| {
        let cluster = cluster(major);
        let dir = tempfile::tempdir().unwrap();
        cluster.sql(DB, "CREATE ROLE few LOGIN REPLICATION CONNECTION LIMIT 1").unwrap();
        let url = cluster.url(DB).replace("postgres://postgres@", "postgres://few@");
        let capturing = Capturing::begin_at(&url, dir.path(), None);
        let is_told = || {
            let condition = capturing.retention.condition();
            assert!(!matches!(condition, Condition::Unfit(_)), "{condition}");
            Ok(condition.to_string().contains("too many connections for role \"few\""))
        };
        wait_for("the limit to be told", PATIENCE, is_told).unwrap();
        cluster.sql(DB, "ALTER ROLE few CONNECTION LIMIT -1").unwrap();
        capturing.wait_for(&Condition::Capturing);
        capturing.end();
    });
}

/// Capture hangs on a server that is gone, while its address leads to one whose WAL is behind.
/// Positions of the two mean different things.
#[test]
fn d1_a_server_in_the_place_of_the_captured_one_is_not_answered_for() {
    Major::each(1, |major| {
        let (mut cluster, dir) = (cluster(major), tempfile::tempdir().unwrap());
        cluster.sql(DB, TABLES).unwrap();
        cluster.stop(testkit::StopMode::Fast).unwrap();
        let (data, older) = (cluster.data_dir(), cluster.data_dir().with_file_name("older"));
        let run = |program: &str, option: &str, paths: &[&std::path::Path]| {
            assert!(std::process::Command::new(program).arg(option).args(paths).status().unwrap().success());
        };
        run("cp", "-a", &[&data, &older]);
        cluster.start_again().unwrap();
        let proxy = Proxy::to(cluster.port()).unwrap();
        let capturing = Capturing::begin_at(&proxy.url(&cluster.url(DB)), dir.path(), None);
        capturing.wait_for(&Condition::Capturing);
        let ahead =
            "SELECT pg_logical_emit_message(false, 'noise', repeat('x', 1000000)) FROM generate_series(1, 5)";
        cluster.sql(DB, ahead).unwrap();
        cluster.sql(DB, "DELETE FROM t WHERE id = 1").unwrap();
        capturing.tombstone(&cluster, by_id(&cluster, "t", "1"));
        assert!(proxy.stall() > 0);
        cluster.stop(testkit::StopMode::Immediate).unwrap();
        run("rm", "-rf", &[&data]);
        run("cp", "-a", &[&older, &data]);
        cluster.start_again().unwrap();
        cluster.sql(DB, "DELETE FROM t WHERE id = 2").unwrap();
        let ask = |id: &str| {
            let missed = Missed { key: by_id(&cluster, "t", id), time: PgTimestamp(i64::MAX) };
            capturing.runtime.block_on(capturing.retention.ask(&[missed]))[0]
        };
        assert_eq!(capturing.retention.condition(), Condition::Capturing, "it hangs");
        assert_eq!(ask("2"), Answer::NotCovered);
        assert_eq!(capturing.retention.condition(), Condition::Capturing, "it hung until now");
        // It is noticed when the server has been silent for too long.
        let is_anew = || Ok(matches!(ask("1"), Answer::NotSeen { .. }));
        wait_for("what was remembered to be discarded", PATIENCE * 3, is_anew).unwrap();
        let why = capturing.retention.not_covered_because().unwrap();
        assert!(why.contains("failed over or was restored"), "{why}");
        capturing.end();
    });
}
