//! Stock subscribers of the relay, beside a subscription to the publisher itself.

#![allow(clippy::unwrap_used, reason = "tests, with functions of their own")]

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use client::ConnInfo;
use listener::{AccessTable, CertificateMaps, Limits, Rules, UserMap, Users};
use proto::scram::Verifier;
use relay::{Relay, RelaySettings, Retention, Timeouts, TrackLimits};
use testkit::{Cluster, Major, assert_same_rows, wait_for};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

const HBA: &str = "\
local all all trust
host all,replication postgres 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
";
const PATIENCE: Duration = Duration::from_secs(60);
const DB: &str = "postgres";

fn publisher(major: Major) -> Cluster {
    let cluster = Cluster::builder(major).hba(HBA).setting("wal_level", "logical").start().unwrap();
    cluster
        .sql(
            DB,
            "SET password_encryption = 'scram-sha-256';
             CREATE ROLE sub LOGIN REPLICATION PASSWORD 'geheim';
             CREATE TABLE t (id serial PRIMARY KEY, v text);
             CREATE TABLE wide (id int PRIMARY KEY, v text, n numeric);
             GRANT SELECT ON ALL TABLES IN SCHEMA public TO sub;
             INSERT INTO t (v) SELECT 'before ' || n FROM generate_series(1, 1000) n;
             CREATE PUBLICATION p FOR ALL TABLES",
        )
        .unwrap();
    cluster
}

struct Running {
    port: u16,
    runtime: Runtime,
    stop: CancellationToken,
}

fn relay(publisher: &Cluster, dir: &Path) -> Running {
    let mut users = Users::default();
    let verifier = publisher.one(DB, "SELECT rolpassword FROM pg_authid WHERE rolname = 'sub'");
    users.add("sub", Verifier::parse(&verifier).unwrap()).unwrap();
    let settings = RelaySettings {
        source: ConnInfo::parse(&publisher.url(DB)).unwrap(),
        name: "relay".to_owned(),
        data_dir: dir.to_owned(),
        rules: Rules { access: AccessTable::default(), users, maps: CertificateMaps::default() },
        user_map: UserMap::default(),
        tls: None,
        limits: Limits::default(),
        tracks: TrackLimits::default(),
        timeouts: Timeouts::default(),
        retention: Retention::default(),
        archive: None,
        synchronized_standby_slots: Vec::new(),
    };
    let runtime = Runtime::new().unwrap();
    let stop = CancellationToken::new();
    let port = runtime.block_on(async {
        let socket = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = socket.local_addr().unwrap().port();
        let relay = Relay::open(settings, stop.clone()).await.unwrap_or_else(|error| panic!("{error}"));
        tokio::spawn(async move {
            if let Err(error) = relay.run(socket).await {
                eprintln!("the relay ended: {error}");
            }
        });
        port
    });
    Running { port, runtime, stop }
}

fn subscriber(major: Major) -> Cluster {
    let cluster = Cluster::start(major).unwrap();
    cluster
        .sql(DB, "CREATE TABLE t (id serial PRIMARY KEY, v text); CREATE TABLE wide (id int PRIMARY KEY, v text, n numeric)")
        .unwrap();
    cluster
}

fn level(publisher: &Cluster, subscribers: &[&Cluster]) {
    publisher.sql(DB, "INSERT INTO t (v) VALUES ('the end')").unwrap();
    let count = publisher.one(DB, "SELECT count(*) || ' ' || coalesce(max(id), 0) FROM t");
    for subscriber in subscribers {
        wait_for("a subscriber to be level", PATIENCE, || {
            Ok(subscriber.one(DB, "SELECT count(*) || ' ' || coalesce(max(id), 0) FROM t") == count)
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", subscriber.log()));
        assert_same_rows(publisher, subscriber, DB, "t");
        assert_same_rows(publisher, subscriber, DB, "wide");
    }
}

fn work(publisher: &Cluster) {
    for round in 0..20 {
        let sql = format!(
            "INSERT INTO t (v) SELECT 'round {round} ' || n FROM generate_series(1, 50) n;
             UPDATE t SET v = v || '!' WHERE id % 13 = {round} % 13; DELETE FROM t WHERE id % 101 = {round};
             INSERT INTO wide SELECT {round} * 100 + n, repeat('w', 3000), n / 7.0 FROM generate_series(1, 20) n
             ON CONFLICT (id) DO UPDATE SET n = wide.n + 1"
        );
        publisher.sql(DB, &sql).unwrap();
    }
}

#[test]
fn a_stock_subscription_copies_and_follows() {
    for major in Major::under_test() {
        let (publisher, dir) = (publisher(major), tempfile::tempdir().unwrap());
        let relay = relay(&publisher, dir.path());
        let subscribers: Vec<Cluster> = (0..2).map(|_| subscriber(major)).collect();
        for (number, subscriber) in subscribers.iter().enumerate() {
            let sql = format!(
                "CREATE SUBSCRIPTION s{number} CONNECTION 'host=127.0.0.1 port={} user=sub password=geheim dbname={DB}' \
                 PUBLICATION p",
                relay.port
            );
            subscriber.sql(DB, &sql).unwrap_or_else(|error| panic!("{major}: {error}"));
        }
        work(&publisher);
        let all: Vec<&Cluster> = subscribers.iter().collect();
        level(&publisher, &all);
        // The publisher has one physical slot, and no logical one.
        let slots = publisher
            .one(DB, "SELECT string_agg(slot_name || ' ' || slot_type, ',') FROM pg_replication_slots");
        assert_eq!(slots, "relay physical", "{major}");
        // A break, and no row is lost or comes twice.
        subscribers[0].sql(DB, "ALTER SUBSCRIPTION s0 DISABLE").unwrap();
        work(&publisher);
        subscribers[0].sql(DB, "ALTER SUBSCRIPTION s0 ENABLE").unwrap();
        level(&publisher, &all);
        for (number, subscriber) in subscribers.iter().enumerate() {
            subscriber.sql(DB, &format!("DROP SUBSCRIPTION s{number}")).unwrap();
        }
        relay.stop.cancel();
        relay.runtime.shutdown_timeout(Duration::from_secs(10));
    }
}
