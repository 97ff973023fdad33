//! A publisher fails over to a standby: with `synchronized_standby_slots` every subscriber follows;
//! without, those that were sent more than the standby has are refused (rules W3 and L2, point 8).

use std::path::{Path, PathBuf};

use testkit::{Cluster, Major, StopMode, assert_same_rows, wait_for};

use crate::views::through;
use crate::{BOUND, DB, Relaying, call, free_port, level, publisher, start};

/// The first major whose slots can survive a failover.
const FAILOVER_SINCE: Major = Major::V17;

/// The publisher, its standby, and a relay that looks for whichever is the primary.
struct Stage {
    publisher: Cluster,
    standby: Cluster,
    subscriber: Cluster,
    relaying: Relaying,
    config: PathBuf,
}

impl Stage {
    fn new(major: Major, dir: &Path, more: &str) -> Stage {
        let mut publisher = publisher(major);
        let standby = publisher.standby("standby").unwrap();
        let port = free_port();
        let (first, second) = (publisher.port(), standby.port());
        let source = format!(
            "host=127.0.0.1,127.0.0.1 port={first},{second} user=postgres dbname={DB} target_session_attrs=read-write"
        );
        let config = crate::configure(dir, &source, port);
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, format!("{text}{more}")).unwrap();
        let path = config.to_str().unwrap();
        call(&["user", "add", "sub", "--from-source", "--config", path], "").expect_success();
        let relaying = start(&config, port);
        let subscriber =
            Cluster::builder(major).setting("wal_retrieve_retry_interval", "200ms").start().unwrap();
        subscriber.sql(DB, "CREATE TABLE t (id serial PRIMARY KEY, v text)").unwrap();
        let place = format!("host=127.0.0.1 port={port} user=sub password=geheim dbname={DB}");
        let subscribe = format!("CREATE SUBSCRIPTION s CONNECTION '{place}' PUBLICATION p");
        subscriber
            .sql(DB, &subscribe)
            .unwrap_or_else(|error| panic!("{error}\n{}", relaying.sluice.stderr()));
        level(&publisher, &subscriber);
        Stage { publisher, standby, subscriber, relaying, config }
    }

    /// Waits until the standby has received everything.
    fn standby_is_level(&self) {
        let written = self.publisher.one(DB, "SELECT pg_current_wal_flush_lsn()");
        let sql = format!("SELECT coalesce(pg_last_wal_receive_lsn(), '0/0') >= '{written}'");
        wait_for("the standby to have everything", BOUND, || Ok(self.standby.one(DB, &sql) == "t")).unwrap();
    }

    fn waits_for(&self, said: &str) {
        wait_for(said, BOUND, || Ok(self.relaying.sluice.stderr().contains(said)))
            .unwrap_or_else(|error| panic!("{error}\n{}", self.relaying.sluice.stderr()));
    }

    /// A slot that survives a failover of its server can be had only if nothing is sent that the
    /// standbys lack.
    fn failover_slots_are(&self, possible: bool) {
        if self.subscriber.major() < FAILOVER_SINCE {
            eprintln!("failover slots are not tested: {} has none", self.subscriber.major());
            return;
        }
        let port = self.relaying.port;
        let place = format!("host=127.0.0.1 port={port} user=sub password=geheim dbname={DB}");
        let subscribe = |failover: &str| {
            let sql = format!(
                "CREATE SUBSCRIPTION f CONNECTION '{place}' PUBLICATION p \
                 WITH (enabled = false, copy_data = false, failover = {failover})"
            );
            self.subscriber.sql(DB, &sql)
        };
        let alter = |failover: &str| {
            self.subscriber.sql(DB, &format!("ALTER SUBSCRIPTION f SET (failover = {failover})"))
        };
        let is_set =
            || through(port, "sub", "SELECT failover FROM pg_replication_slots WHERE slot_name = 'f'");
        let refusal = "the relay has failover slots only if synchronized_standby_slots is set";
        if possible {
            subscribe("true").unwrap();
            assert_eq!(is_set(), "t");
            alter("false").unwrap();
            assert_eq!(is_set(), "f");
            alter("true").unwrap();
            assert_eq!(is_set(), "t");
        } else {
            let refused = subscribe("true").unwrap_err();
            assert!(format!("{refused:#}").contains(refusal), "{refused:#}");
            subscribe("false").unwrap();
            let refused = alter("true").unwrap_err();
            assert!(format!("{refused:#}").contains(refusal), "{refused:#}");
            assert_eq!(is_set(), "f");
        }
        self.subscriber.sql(DB, "DROP SUBSCRIPTION f").unwrap();
    }

    /// The publisher is gone, and the standby takes its place.
    fn fail_over(&mut self) {
        self.publisher.kill9();
        self.standby.start_again().unwrap();
        self.standby.sql(DB, "SELECT pg_promote()").unwrap();
        wait_for("the promotion", BOUND, || Ok(self.standby.one(DB, "SELECT pg_is_in_recovery()") == "f"))
            .unwrap();
        std::mem::swap(&mut self.publisher, &mut self.standby);
    }
}

#[test]
fn w3_what_the_standby_lacks_is_sent_to_nobody_and_every_subscriber_follows() {
    let major = Major::in_turn()[0];
    let dir = tempfile::tempdir().unwrap();
    let mut stage = Stage::new(major, dir.path(), "synchronized_standby_slots = ['standby']\n");
    stage.failover_slots_are(true);
    stage.standby_is_level();
    stage.standby.stop(StopMode::Immediate).unwrap();
    stage.publisher.sql(DB, "INSERT INTO t (v) VALUES ('only here'); SELECT pg_switch_wal()").unwrap();
    stage.publisher.sql(DB, "INSERT INTO t (v) VALUES ('and here')").unwrap();
    stage.waits_for("before the standbys have it: slot \"standby\" is at");
    assert_eq!(stage.subscriber.one(DB, "SELECT count(*) FROM t WHERE v LIKE '%here'"), "0", "it was sent");
    stage.fail_over();
    // The slot of the next standby.
    stage.publisher.sql(DB, "SELECT pg_create_physical_replication_slot('standby', true)").unwrap();
    stage.waits_for("the relay takes it back");
    let forward = "SELECT pg_replication_slot_advance('standby', pg_current_wal_flush_lsn())";
    let sql = "INSERT INTO t (v) VALUES ('after')";
    stage.publisher.sql(DB, sql).unwrap();
    let expected = stage.publisher.one(DB, "SELECT count(*) || ' ' || max(id) FROM t");
    wait_for("the subscriber to follow", BOUND, || {
        stage.publisher.sql(DB, forward).unwrap();
        Ok(stage.subscriber.one(DB, "SELECT count(*) || ' ' || max(id) FROM t") == expected)
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", stage.relaying.sluice.stderr()));
    assert_same_rows(&stage.publisher, &stage.subscriber, DB, "t");
    assert!(stage.relaying.sluice.terminate(BOUND).unwrap().success());
}

#[test]
fn l2_a_subscriber_that_has_more_than_the_standby_is_refused_and_others_follow() {
    let major = Major::in_turn()[0];
    let dir = tempfile::tempdir().unwrap();
    let mut stage = Stage::new(major, dir.path(), "");
    let place = format!("host=127.0.0.1 port={} user=sub password=geheim dbname={DB}", stage.relaying.port);
    let slots = |args: &[&str]| call(&[&["slots"], args, &["--relay", &place]].concat(), "").expect_success();
    stage.failover_slots_are(false);
    // One that has seen nothing of it.
    slots(&["create", "waits"]);
    stage.standby_is_level();
    stage.standby.stop(StopMode::Immediate).unwrap();
    level(&stage.publisher, &stage.subscriber);
    stage.fail_over();
    stage.waits_for("the relay takes it back");
    stage.waits_for("replication slot \"s\" was invalidated: the publisher left its timeline at");
    let shown = slots(&["list"]);
    // Before 17, the view has no reason.
    assert!(shown.contains("s (postgres): cannot be used any more ("), "{shown}");
    assert!(shown.contains("waits (postgres): nobody reads it"), "{shown}");
    stage.publisher.sql(DB, "INSERT INTO t (v) VALUES ('after')").unwrap();
    wait_for("the subscriber to be told", BOUND, || {
        Ok(stage.subscriber.log().contains("replication slot \"s\""))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", stage.subscriber.log()));
    // The other slot goes on; also after a restart of the relay.
    for _ in 0..2 {
        let major = stage.subscriber.major();
        let next = Cluster::start(major).unwrap();
        next.sql(DB, "CREATE TABLE t (id serial PRIMARY KEY, v text)").unwrap();
        let subscribe = format!("CREATE SUBSCRIPTION next CONNECTION '{place}' PUBLICATION p");
        next.sql(DB, &subscribe)
            .unwrap_or_else(|error| panic!("{error}\n{}", stage.relaying.sluice.stderr()));
        level(&stage.publisher, &next);
        next.sql(DB, "DROP SUBSCRIPTION next").unwrap();
        assert!(stage.relaying.sluice.terminate(BOUND).unwrap().success());
        let port = stage.relaying.port;
        stage.relaying = start(&stage.config, port);
    }
    stage.subscriber.sql(DB, "ALTER SUBSCRIPTION s DISABLE").unwrap();
}

/// A subscriber that is away when its publisher fails over has applied what the standby lacks. It
/// may have confirmed that or not. The relay knows what it sent, or has been started since: then it
/// receives the last segment again, and has nothing itself that the standby lacks.
#[test]
fn l2_a_subscriber_that_was_away_during_the_failover_is_refused_too() {
    let major = Major::in_turn()[0];
    for (confirms, relay_forgets) in [(false, false), (false, true), (true, true)] {
        let dir = tempfile::tempdir().unwrap();
        let mut stage = Stage::new(major, dir.path(), "");
        let port = stage.relaying.port;
        if !confirms {
            // The subscription does not wait for its disk: it has rows that it has not confirmed.
            stage.subscriber.sql(DB, "ALTER SYSTEM SET wal_writer_delay = '10s'").unwrap();
            stage.subscriber.sql(DB, "SELECT pg_reload_conf()").unwrap();
        }
        stage.standby_is_level();
        stage.standby.stop(StopMode::Immediate).unwrap();
        level(&stage.publisher, &stage.subscriber);
        stage.publisher.sql(DB, "INSERT INTO t (v) VALUES ('only here')").unwrap();
        let has = "SELECT count(*) FROM t WHERE v = 'only here'";
        wait_for("the row", BOUND, || Ok(stage.subscriber.one(DB, has) == "1")).unwrap();
        if confirms {
            let end = stage.publisher.one(DB, "SELECT pg_current_wal_flush_lsn()");
            let sql = format!(
                "SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = 's'"
            );
            wait_for("the row to be confirmed", BOUND, || Ok(through(port, "sub", &sql) == "t")).unwrap();
        }
        stage.subscriber.sql(DB, "ALTER SUBSCRIPTION s DISABLE").unwrap();
        let inactive = "SELECT active FROM pg_replication_slots WHERE slot_name = 's'";
        wait_for("the stream to end", BOUND, || Ok(through(port, "sub", inactive) == "f")).unwrap();
        if relay_forgets {
            assert!(stage.relaying.sluice.terminate(BOUND).unwrap().success());
            stage.fail_over();
            stage.relaying = start(&stage.config, port);
        } else {
            stage.fail_over();
        }
        if confirms || !relay_forgets {
            stage.waits_for("replication slot \"s\" was invalidated: the publisher left its timeline at");
        }
        stage.publisher.sql(DB, "INSERT INTO t (v) SELECT 'after' FROM generate_series(1, 100)").unwrap();
        stage.subscriber.sql(DB, "ALTER SUBSCRIPTION s ENABLE").unwrap();
        wait_for("the subscriber to be told", BOUND, || {
            Ok(stage.subscriber.log().contains("replication slot \"s\""))
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", stage.subscriber.log()));
        assert_eq!(stage.subscriber.one(DB, "SELECT count(*) FROM t WHERE v = 'after'"), "0");
        let status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 's'";
        assert_eq!(through(port, "sub", status), "lost");
        stage.subscriber.sql(DB, "ALTER SUBSCRIPTION s DISABLE").unwrap();
    }
}

/// A subscriber that has nothing of what the standby lacks goes on, although it was away and the
/// relay was started since. Later it may be away as often as it likes.
#[test]
fn l2_a_subscriber_that_has_no_more_than_the_standby_follows_although_it_was_away() {
    let major = Major::in_turn()[0];
    let dir = tempfile::tempdir().unwrap();
    let mut stage = Stage::new(major, dir.path(), "");
    let port = stage.relaying.port;
    stage.standby_is_level();
    stage.subscriber.sql(DB, "ALTER SUBSCRIPTION s DISABLE").unwrap();
    stage.publisher.sql(DB, "INSERT INTO t (v) VALUES ('on both')").unwrap();
    stage.standby_is_level();
    assert!(stage.relaying.sluice.terminate(BOUND).unwrap().success());
    stage.fail_over();
    stage.relaying = start(&stage.config, port);
    stage.waits_for("the publisher went on at");
    for _ in 0..2 {
        stage.subscriber.sql(DB, "ALTER SUBSCRIPTION s ENABLE").unwrap();
        stage.publisher.sql(DB, "INSERT INTO t (v) VALUES ('after')").unwrap();
        level(&stage.publisher, &stage.subscriber);
        assert_same_rows(&stage.publisher, &stage.subscriber, DB, "t");
        stage.subscriber.sql(DB, "ALTER SUBSCRIPTION s DISABLE").unwrap();
    }
    assert!(stage.relaying.sluice.terminate(BOUND).unwrap().success());
}
