//! `pgsluice relay move`: a stock subscription goes to a relay and comes back, under load.

use std::sync::atomic::{AtomicBool, Ordering};

use testkit::{Cluster, Major, Output};

use crate::{DB, Served, call, level};

fn subscriber(publisher: &Cluster, options: &str) -> Cluster {
    let subscriber = Cluster::builder(publisher.major())
        .setting("wal_retrieve_retry_interval", "200ms")
        .setting("max_prepared_transactions", "10")
        .start()
        .unwrap();
    subscriber.sql(DB, "CREATE TABLE t (id serial PRIMARY KEY, v text)").unwrap();
    let direct = conninfo(publisher.port());
    let subscribe = format!("CREATE SUBSCRIPTION s CONNECTION '{direct}' PUBLICATION p{options}");
    subscriber.sql(DB, &subscribe).unwrap();
    level(publisher, &subscriber);
    let ready = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel";
    testkit::wait_for("all tables to be ready", crate::BOUND, || Ok(subscriber.one(DB, ready) == "t"))
        .unwrap();
    subscriber
}

fn conninfo(port: u16) -> String {
    format!("host=127.0.0.1 port={port} user=sub password=geheim dbname={DB}")
}

fn relocate(subscriber: &Cluster, to: u16, more: &[&str]) -> Output {
    relocate_named("s", subscriber, to, more)
}

fn relocate_named(name: &str, subscriber: &Cluster, to: u16, more: &[&str]) -> Output {
    let (url, to) = (subscriber.url(DB), conninfo(to));
    let args = ["relay", "move", "--subscriber", &url, "--subscription", name, "--to", &to];
    call(&[&args, more].concat(), "")
}

fn slots(publisher: &Cluster) -> String {
    publisher.one(
        DB,
        "SELECT coalesce(string_agg(slot_name, ',' ORDER BY slot_name), 'none') FROM pg_replication_slots \
          WHERE slot_type = 'logical'",
    )
}

#[test]
fn a_subscription_goes_to_a_relay_and_comes_back_under_load() {
    Major::each(1, |major| {
        let Served { publisher, mut relaying, port, _dir } = Served::on(major);
        let subscriber = subscriber(&publisher, "");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    publisher.sql(DB, "INSERT INTO t (v) SELECT 'load' FROM generate_series(1, 10)").unwrap();
                }
            });
            let there = relocate(&subscriber, port, &["--execute"]);
            let moved = there.status.success().then(|| slots(&publisher));
            let back = relocate(&subscriber, publisher.port(), &["--execute"]);
            stop.store(true, Ordering::Relaxed);
            let told = there.expect_success();
            assert!(told.contains("s: the subscription runs at the new publisher"), "{told}");
            assert_eq!(moved.as_deref(), Some("none"), "the old slot is there: {told}");
            back.expect_success();
        });
        level(&publisher, &subscriber);
        assert_eq!(slots(&publisher), "s");
        let left = call(&["slots", "list", "--relay", &conninfo(port)], "").expect_success();
        assert_eq!(left, "");
        assert!(relaying.sluice.terminate(crate::BOUND).unwrap().success());
    });
}

#[test]
fn statements_are_printed_and_work_as_printed() {
    let major = *Major::under_test().last().unwrap();
    let Served { publisher, relaying: _relaying, port, _dir } = Served::on(major);
    let subscriber = subscriber(&publisher, "");
    let told = relocate(&subscriber, port, &[]).expect_success();
    let statements: Vec<&str> = told.lines().filter(|line| line.starts_with("    ALTER")).collect();
    assert_eq!(statements.len(), 3, "{told}");
    publisher.sql(DB, "INSERT INTO t (v) VALUES ('between')").unwrap();
    statements.iter().for_each(|statement| drop(subscriber.sql(DB, statement.trim()).unwrap()));
    level(&publisher, &subscriber);
    let drop_old = told.lines().find(|line| line.contains("pgsluice slots drop")).unwrap();
    assert!(drop_old.ends_with("pgsluice slots drop s --wait --relay OLD-CONNINFO"), "{drop_old}");
    call(&["slots", "drop", "s", "--wait", "--relay", &conninfo(publisher.port())], "").expect_success();
    assert_eq!(slots(&publisher), "none");
}

#[test]
fn what_cannot_be_moved_stays_where_it_is() {
    let major = *Major::under_test().last().unwrap();
    let publisher =
        Cluster::builder(major).hba(crate::HBA).setting("max_prepared_transactions", "10").start().unwrap();
    crate::fill(&publisher);
    let Served { publisher, relaying: _relaying, port, _dir } = Served::of(publisher);
    let subscriber = subscriber(&publisher, " WITH (two_phase = on)");
    let refused = |to: u16, more: &[&str], words: &str| {
        let output = relocate(&subscriber, to, more);
        assert!(output.status.code() == Some(1) && output.stderr.contains(words), "{words}: {output:?}");
        assert_eq!(slots(&publisher), "s");
        let left = call(&["slots", "list", "--relay", &conninfo(port)], "").expect_success();
        assert_eq!(left, "", "the new slot is still there");
    };
    publisher.sql(DB, "BEGIN; INSERT INTO t (v) VALUES ('p'); PREPARE TRANSACTION 'astride'").unwrap();
    refused(port, &["--execute"], "prepared transactions ('astride')");
    publisher.sql(DB, "COMMIT PREPARED 'astride'").unwrap();
    refused(
        subscriber.port(),
        &["--execute", "--to-from-here", &subscriber.url(DB)],
        "is not the present one",
    );
    let unknown = relocate_named("other", &subscriber, port, &[]);
    assert!(unknown.stderr.contains("there is no subscription \"other\""), "{unknown:?}");
    // Nobody applies, so the new slot's point is not reached.
    subscriber.sql(DB, "BEGIN; LOCK t; INSERT INTO t VALUES (-1, 'x'); COMMIT").unwrap();
    publisher.sql(DB, "INSERT INTO t VALUES (-1, 'meets a row of the subscriber')").unwrap();
    refused(port, &["--execute", "--timeout", "3s"], "and must come to");
    subscriber.sql(DB, "DELETE FROM t WHERE id = -1").unwrap();
    level(&publisher, &subscriber);
    subscriber.sql(DB, "ALTER SUBSCRIPTION s DISABLE").unwrap();
    refused(port, &["--execute"], "is disabled");
    subscriber.sql(DB, "ALTER SUBSCRIPTION s ENABLE").unwrap();
    let told = relocate(&subscriber, port, &["--execute"]).expect_success();
    assert!(told.contains("was dropped at the old publisher"), "{told}");
    publisher.sql(DB, "BEGIN; INSERT INTO t (v) VALUES ('q'); PREPARE TRANSACTION 'later'").unwrap();
    testkit::wait_for("the prepared transaction", crate::BOUND, || {
        Ok(subscriber.one(DB, "SELECT count(*) FROM pg_prepared_xacts") == "1")
    })
    .unwrap();
    publisher.sql(DB, "COMMIT PREPARED 'later'").unwrap();
    level(&publisher, &subscriber);
}
