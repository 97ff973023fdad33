//! What psql, a library and `pgsluice slots` show of slots and streams, and the user map.

use std::os::unix::fs::PermissionsExt as _;

use testkit::{Cluster, Major, assert_same_rows, wait_for};

use crate::{BOUND, DB, Served, call, configure, free_port, level, publisher, signal, start};
use rustix::process::Signal;

/// One value through the relay.
pub(crate) fn through(port: u16, user: &str, sql: &str) -> String {
    let url = format!("postgres://{user}:geheim@127.0.0.1:{port}/{DB}");
    let rows = testkit::query(&url, sql).unwrap_or_else(|error| panic!("{sql}: {error:#}"));
    rows[0][0].clone().unwrap_or_default()
}

#[test]
fn views_show_the_relays_slots_and_streams() {
    Major::each(1, |major| {
        let Served { publisher, mut relaying, port, _dir } = Served::on(major);
        publisher.sql(DB, "GRANT pg_read_all_stats TO sub").unwrap();
        let place = format!("host=127.0.0.1 port={port} user=sub password=geheim dbname={DB}");
        let slots = |args: &[&str]| call(&[&["slots"], args, &["--relay", &place]].concat(), "");
        assert_eq!(slots(&["list"]).expect_success(), "");
        let made = slots(&["create", "idle"]).expect_success();
        assert!(made.starts_with("idle: made at "), "{made}");
        let again = slots(&["create", "idle"]);
        assert!(again.stderr.contains("replication slot \"idle\" already exists"), "{again:?}");
        let subscriber = Cluster::start(major).unwrap();
        subscriber.sql(DB, "CREATE TABLE t (id serial PRIMARY KEY, v text)").unwrap();
        subscriber
            .sql(DB, &format!("CREATE SUBSCRIPTION s CONNECTION '{place}' PUBLICATION p"))
            .unwrap_or_else(|error| panic!("{error}\n{}", relaying.sluice.stderr()));
        level(&publisher, &subscriber);
        let all = "SELECT string_agg(slot_name || ' ' || plugin || ' ' || database || ' ' || active, ', ' \
                   ORDER BY slot_name) FROM pg_catalog.pg_replication_slots";
        let (idle, busy) = ("idle pgoutput postgres false", "s pgoutput postgres true");
        assert_eq!(through(port, "sub", all), format!("{idle}, {busy}"));
        // The publisher itself has the relay's slot only.
        assert_eq!(
            publisher.one(DB, "SELECT string_agg(slot_name, ',') FROM pg_replication_slots"),
            "pgsluice_relay"
        );
        let stream = "SELECT r.usename || ' ' || r.application_name || ' ' || r.state || ' ' || r.sync_state || ' ' || \
                      (r.sent_lsn >= s.confirmed_flush_lsn) FROM pg_stat_replication r \
                      JOIN pg_replication_slots s ON s.active_pid = r.pid";
        wait_for("the stream to be shown", BOUND, || {
            Ok(through(port, "sub", &format!("SELECT coalesce(({stream}), '')"))
                == "sub s streaming async true")
        })
        .unwrap();
        // Own replication connections see them, too, and statistics name each slot.
        let counted = "SELECT count(*) FROM pg_stat_replication_slots WHERE stats_reset IS NOT NULL";
        assert_eq!(through(port, "sub", counted), "2");
        let shown = slots(&["list"]).expect_success();
        assert!(shown.contains("idle (postgres): nobody reads it"), "{shown}");
        assert!(shown.contains("s (postgres): is level"), "{shown}");
        assert!(shown.contains(": s as sub from 127.0.0.1"), "{shown}");
        let json = slots(&["list", "--json"]).expect_success();
        assert_eq!(json.lines().count(), 2, "{json}");
        assert!(json.contains("\"name\":\"idle\"") && json.contains("\"holds_most\":true"), "{json}");
        let busy = slots(&["drop", "s"]);
        assert!(busy.stderr.contains("replication slot \"s\" is active for PID"), "{busy:?}");
        assert_eq!(slots(&["drop", "idle"]).expect_success(), "idle: dropped\n");
        subscriber.sql(DB, "DROP SUBSCRIPTION s").unwrap();
        assert_eq!(through(port, "sub", "SELECT count(*) FROM pg_replication_slots"), "0");
        // The same commands work at a server.
        let server = call(&["slots", "list", "--relay", &publisher.url(DB)], "").expect_success();
        assert!(
            server.contains("pgsluice_relay (no database): streaming") || server.contains("pgsluice_relay"),
            "{server}"
        );
        assert!(relaying.sluice.terminate(BOUND).unwrap().success());
    });
}

/// A statement that is prepared once shows what is true whenever it is executed.
#[test]
fn a_prepared_statement_shows_what_is_there_when_it_is_executed() {
    let major = *Major::under_test().last().unwrap();
    let Served { publisher: _publisher, relaying: _relaying, port, _dir } = Served::on(major);
    let place = format!("host=127.0.0.1 port={port} user=sub password=geheim dbname={DB}");
    let slots = |args: &[&str]| call(&[&["slots"], args, &["--relay", &place]].concat(), "").expect_success();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (session, connection) = tokio_postgres::connect(&place, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let sql = "SELECT count(*) FROM pg_replication_slots WHERE slot_name ~ $1::text";
        let statement = session.prepare(sql).await.unwrap();
        let other = session.prepare("SELECT $1::int + 1").await.unwrap();
        let count = async || session.query_one(&statement, &[&"^s"]).await.unwrap().get::<_, i64>(0);
        for expected in 0..3 {
            assert_eq!(count().await, expected);
            assert_eq!(session.query_one(&other, &[&1]).await.unwrap().get::<_, i32>(0), 2);
            tokio::task::block_in_place(|| slots(&["create", &format!("s{expected}")]));
        }
        // Several at a time, and one that fails between them.
        let failing = session.prepare("SELECT 1 / ($1::int - 1)").await.unwrap();
        let (first, fails, last) = tokio::join!(count(), session.query_one(&failing, &[&1]), count());
        assert_eq!((first, last), (3, 3));
        assert_eq!(fails.unwrap_err().code().unwrap().code(), "22012");
        session.batch_execute("BEGIN").await.unwrap();
        session.batch_execute("SELECT 1 / 0").await.unwrap_err();
        let aborted = session.query_one(&statement, &[&"^s"]).await.unwrap_err();
        assert_eq!(aborted.code().unwrap().code(), "25P02");
        session.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(count().await, 3);
        drop(statement);
        assert_eq!(session.query_one(sql, &[&"."]).await.unwrap().get::<_, i64>(0), 3);
    });
}

#[test]
fn details_of_streams_are_for_those_who_may_read_statistics() {
    let major = *Major::under_test().first().unwrap();
    let Served { publisher, relaying, port, _dir } = Served::on(major);
    let place = format!("host=127.0.0.1 port={port} user=sub password=geheim dbname={DB}");
    let subscriber = Cluster::start(major).unwrap();
    subscriber.sql(DB, "CREATE TABLE t (id serial PRIMARY KEY, v text)").unwrap();
    let subscribe = format!("CREATE SUBSCRIPTION s CONNECTION '{place}' PUBLICATION p");
    subscriber.sql(DB, &subscribe).unwrap_or_else(|error| panic!("{error}\n{}", relaying.sluice.stderr()));
    level(&publisher, &subscriber);
    let sql = "SELECT count(pid) || ' ' || count(application_name) || ' ' || count(sent_lsn) FROM pg_stat_replication";
    wait_for("the stream to be shown", BOUND, || Ok(through(port, "sub", sql) == "1 0 0")).unwrap();
    publisher.sql(DB, "GRANT pg_read_all_stats TO sub").unwrap();
    assert_eq!(through(port, "sub", sql), "1 1 1");
    subscriber.sql(DB, "DROP SUBSCRIPTION s").unwrap();
}

/// A user who is known here only logs in at the publisher as the map says.
#[test]
fn l1_a_user_of_the_map_has_the_rights_of_another_role() {
    let major = *Major::under_test().last().unwrap();
    let (publisher, dir) = (publisher(major), tempfile::tempdir().unwrap());
    let port = free_port();
    let config = configure(dir.path(), &publisher.url(DB), port);
    let path = config.to_str().unwrap();
    call(&["user", "add", "outside", "--config", path], "other\n").expect_success();
    let map = dir.path().join("map");
    std::fs::write(&map, "outside sub geheim\n").unwrap();
    std::fs::set_permissions(&map, std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut text = std::fs::read_to_string(&config).unwrap();
    text.push_str(&format!("user_map_file = '{}'\n", map.display()));
    std::fs::write(&config, text).unwrap();
    let open = call(&["relay", "--config", path], "");
    assert!(open.status.code() == Some(2) && open.stderr.contains("others may read it"), "{open:?}");
    std::fs::set_permissions(&map, std::fs::Permissions::from_mode(0o600)).unwrap();
    let relaying = start(&config, port);
    let place = format!("host=127.0.0.1 port={port} user=outside password=other dbname={DB}");
    let url = format!("postgres://outside:other@127.0.0.1:{port}/{DB}");
    assert_eq!(testkit::query(&url, "SELECT current_user").unwrap()[0][0].as_deref(), Some("sub"));
    let subscriber = Cluster::start(major).unwrap();
    subscriber.sql(DB, "CREATE TABLE t (id serial PRIMARY KEY, v text)").unwrap();
    let subscribe = format!("CREATE SUBSCRIPTION s CONNECTION '{place}' PUBLICATION p");
    subscriber.sql(DB, &subscribe).unwrap_or_else(|error| panic!("{error}\n{}", relaying.sluice.stderr()));
    level(&publisher, &subscriber);
    assert_same_rows(&publisher, &subscriber, DB, "t");
    subscriber.sql(DB, "DROP SUBSCRIPTION s").unwrap();
    // The map is read again with the rest.
    std::fs::write(&map, "outside nobody geheim\n").unwrap();
    let read_again = || relaying.sluice.stderr().contains("were read again");
    signal(&relaying, Signal::HUP);
    wait_for("the map to be read again", BOUND, || Ok(read_again())).unwrap();
    let refused = testkit::query(&url, "SELECT 1").unwrap_err();
    assert!(format!("{refused:#}").contains("\"nobody\""), "{refused:#}");
}
