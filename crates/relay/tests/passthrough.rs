//! psql and a library through the relay, to a real publisher, with the rights of the role.

#![allow(clippy::unwrap_used, reason = "tests, with functions of their own")]

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::ConnInfo;
use listener::{AccessTable, Arrival, CertificateMaps, Door, Limits, Rules, Socket, UserMap, Users};
use proto::scram::Verifier;
use relay::{Cancels, Senders, Slots, Upstream, Views, serve};
use testkit::{Cluster, Major, server_dir};
use tokio::runtime::Runtime;
use tokio_postgres::NoTls;

const HBA: &str = "\
local all all trust
host all postgres 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
";
const PASSWORD: &str = "geheim";

struct Relay {
    port: u16,
    runtime: Runtime,
}

/// A relay that knows the verifiers that the publisher has.
fn relay(cluster: &Cluster) -> Relay {
    let mut users = Users::default();
    let rows = cluster.sql("postgres", "SELECT rolname, rolpassword FROM pg_authid WHERE rolpassword <> ''");
    for row in rows.unwrap() {
        let [name, verifier] = [0, 1].map(|at| row[at].clone().unwrap());
        users.add(&name, Verifier::parse(&verifier).unwrap()).unwrap();
    }
    let rules = Rules { access: AccessTable::default(), users, maps: CertificateMaps::default() };
    let door = Arc::new(Door::new(rules, None, Limits::default()));
    // No role and no password of the relay's own is used for clients.
    let publisher = format!("host=127.0.0.1 port={} user=nobody dbname=nowhere", cluster.port());
    let publisher = Upstream::new(ConnInfo::parse(&publisher).unwrap(), UserMap::default());
    let dir = tempfile::tempdir().unwrap();
    let slots = Slots::open(dir.path(), cluster.major().number()).unwrap();
    let views = Views::new(slots, Senders::default());
    let runtime = Runtime::new().unwrap();
    let socket = runtime.block_on(tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let port = socket.local_addr().unwrap().port();
    let cancels = Cancels::default();
    runtime.spawn(async move {
        while let Ok((stream, from)) = socket.accept().await {
            let (door, publisher) = (Arc::clone(&door), publisher.clone());
            let (cancels, views) = (cancels.clone(), views.clone());
            tokio::spawn(async move {
                match door.open(Socket::Tcp(stream, from.ip())).await {
                    Ok(Arrival::Client(client)) => {
                        serve(*client, &publisher, &cancels, &views).await;
                    }
                    Ok(Arrival::Cancel { pid, key }) => {
                        if let Some(canceller) = cancels.find(pid, &key) {
                            canceller.cancel().await.unwrap();
                        }
                    }
                    Err(_) => {}
                }
            });
        }
    });
    Relay { port, runtime }
}

fn publisher(major: Major) -> Cluster {
    let cluster = Cluster::builder(major).hba(HBA).start().unwrap();
    cluster
        .sql(
            "postgres",
            "SET password_encryption = 'scram-sha-256';
             CREATE ROLE reader LOGIN PASSWORD 'geheim'; CREATE ROLE stranger LOGIN PASSWORD 'geheim'",
        )
        .unwrap();
    cluster.sql("postgres", "CREATE DATABASE d").unwrap();
    cluster
        .sql("postgres", "REVOKE CONNECT ON DATABASE d FROM PUBLIC; GRANT CONNECT ON DATABASE d TO reader")
        .unwrap();
    cluster
        .sql(
            "d",
            "CREATE TABLE t AS SELECT n, repeat('x', 1000) AS v FROM generate_series(1, 20000) n;
             CREATE TABLE hidden (n int); GRANT SELECT ON t TO reader",
        )
        .unwrap();
    cluster
}

impl Relay {
    /// What psql with that major's libpq prints, or its error.
    fn psql(&self, major: Major, words: &str, sql: &str) -> Result<String, String> {
        let output = Command::new("psql")
            .args(["-XAt", "-c", sql])
            .arg(format!("host=127.0.0.1 port={} dbname=d connect_timeout=20 {words}", self.port))
            .env("LD_LIBRARY_PATH", server_dir(major).unwrap().join("lib"))
            .env("PGPASSWORD", PASSWORD)
            .env_remove("PGUSER")
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim().to_owned();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }
}

#[test]
fn l1_a_client_sees_what_its_role_may_see() {
    Major::each(2, |major| {
        let cluster = publisher(major);
        let relay = relay(&cluster);
        let sql = "SELECT current_user, current_database(), count(*) FROM t";
        assert_eq!(relay.psql(major, "user=reader", sql).unwrap(), "reader|d|20000");
        let error = relay.psql(major, "user=reader", "SELECT * FROM hidden").unwrap_err();
        assert!(error.contains("permission denied for table hidden"), "{error}");
        let error = relay.psql(major, "user=stranger", "SELECT 1").unwrap_err();
        assert!(error.contains("permission denied for database \"d\""), "{error}");
        let error = relay.psql(major, "user=reader password=wrong", "SELECT 1").unwrap_err();
        assert!(error.contains("password authentication failed for user \"reader\""), "{error}");
        // Settings and names of the client come through.
        let words =
            "user=reader application_name=mine options='-c datestyle=German -c search_path=\\\"$user\\\"'";
        let sql =
            "SELECT current_setting('application_name'), '2026-11-28'::date, current_setting('search_path')";
        assert_eq!(relay.psql(major, words, sql).unwrap(), "mine|28.11.2026|\"$user\"");
        // Everything of a large COPY.
        let copied = relay.psql(major, "user=reader", "COPY (SELECT v FROM t) TO STDOUT").unwrap();
        assert_eq!(copied.lines().count(), 20_000);
    });
}

#[test]
fn a_statement_can_be_cancelled_and_nobody_elses() {
    let major = *Major::under_test().last().unwrap();
    let cluster = publisher(major);
    let relay = relay(&cluster);
    let info = format!("host=127.0.0.1 port={} user=reader password={PASSWORD} dbname=d", relay.port);
    relay.runtime.block_on(async {
        let mut sessions = Vec::new();
        for _ in 0..2 {
            let (session, connection) = tokio_postgres::connect(&info, NoTls).await.unwrap();
            tokio::spawn(connection);
            sessions.push(session);
        }
        let token = sessions[0].cancel_token();
        let begun = Instant::now();
        let cancelled = sessions[0].simple_query("SELECT pg_sleep(60)");
        let other = sessions[1].simple_query("SELECT pg_sleep(1)");
        let cancel = async {
            // Time for both statements to begin; a request that comes too early cancels nothing.
            tokio::time::sleep(Duration::from_millis(300)).await;
            token.cancel_query(NoTls).await.unwrap();
        };
        let (cancelled, other, ()) = tokio::join!(cancelled, other, cancel);
        assert_eq!(cancelled.unwrap_err().code().unwrap().code(), "57014");
        other.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(30));
    });
}

#[test]
fn what_the_relay_cannot_do_is_told() {
    let major = *Major::under_test().last().unwrap();
    let mut cluster = publisher(major);
    let relay = relay(&cluster);
    let latin = relay.psql(major, "user=reader client_encoding=latin1", "SELECT 1").unwrap_err();
    assert!(latin.contains("the relay speaks UTF8 only"), "{latin}");
    cluster.stop(testkit::StopMode::Fast).unwrap();
    let gone = relay.psql(major, "user=reader", "SELECT 1").unwrap_err();
    assert!(gone.contains("the relay cannot use the publisher"), "{gone}");
}
