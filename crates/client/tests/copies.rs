//! COPY from one connection into another, without looking inside.

#![allow(clippy::unwrap_used, reason = "tests, with functions of their own")]

use base::Oid;
use bytes::BufMut;
use client::{ConnInfo, Replication, Wire};
use testkit::{Cluster, Major, assert_same_rows};

mod support;
use support::{over_tcp, run};

const ROWS: u64 = 200_000;

async fn wire(info: &ConnInfo) -> Wire {
    Wire::connect(info, "", Replication::Off, &[]).await.unwrap()
}

/// Copies through; the rows the server took in and the messages we saw.
async fn copy(from: &mut Wire, out: &str, to: &mut Wire, into: &str) -> (u64, u64) {
    from.copy_out(out).await.unwrap();
    to.copy_in(into).await.unwrap();
    let mut messages = 0;
    while let Some(block) = from.copy_out_block().await.unwrap() {
        messages += block.messages;
        to.copy_in_block(&block.bytes).await.unwrap();
    }
    (to.copy_in_finish().await.unwrap(), messages)
}

#[test]
fn two_hundred_thousand_rows_arrive_as_they_were() {
    for major in Major::under_test() {
        let source = Cluster::start(major).unwrap();
        let target = Cluster::start(major).unwrap();
        let table = "CREATE TABLE t (a int PRIMARY KEY, b text, c numeric, d bytea)";
        target.sql("postgres", table).unwrap();
        // Most rows are short, some longer than every buffer on the way.
        let rows = format!(
            "{table}; INSERT INTO t SELECT i, CASE WHEN i % 20000 = 0 THEN repeat(md5(i::text), 40000) \
             WHEN i % 7 > 0 THEN md5(i::text) END, i / 3.0, decode(md5(i::text), 'hex') \
             FROM generate_series(1, {ROWS}) i"
        );
        source.sql("postgres", &rows).unwrap();
        for format in ["text", "binary"] {
            target.sql("postgres", "TRUNCATE t").unwrap();
            run("copy", async {
                let mut from = wire(&over_tcp(&source, "user=postgres")).await;
                let mut to = wire(&over_tcp(&target, "user=postgres")).await;
                let (taken, messages) = copy(
                    &mut from,
                    &format!("COPY t TO STDOUT (FORMAT {format})"),
                    &mut to,
                    &format!("COPY t FROM STDIN (FORMAT {format})"),
                )
                .await;
                assert_eq!(taken, ROWS);
                assert!(messages >= ROWS, "{messages}");
                // Both are free again.
                assert_eq!(from.query("SELECT 1").await.unwrap().len(), 1);
                assert_eq!(to.query("SELECT 1").await.unwrap().len(), 1);
            });
            assert_same_rows(&source, &target, "postgres", "t");
        }
    }
}

/// One text row as a `CopyData` message.
fn row(text: &str) -> Vec<u8> {
    let mut message = proto::frame::copy_data_header(text.len() + 1).unwrap().to_vec();
    message.extend_from_slice(text.as_bytes());
    message.push(b'\n');
    message
}

#[test]
fn an_error_in_the_middle_ends_the_copy_at_once() {
    for major in Major::under_test() {
        let cluster = Cluster::start(major).unwrap();
        cluster.sql("postgres", "CREATE TABLE t (a int PRIMARY KEY, b text)").unwrap();
        run("error", async {
            let mut wire = wire(&over_tcp(&cluster, "user=postgres")).await;
            wire.copy_in("COPY t FROM STDIN").await.unwrap();
            wire.copy_in_block(&row("1\tgood")).await.unwrap();
            wire.copy_in_block(&row("wrong\tbad")).await.unwrap();
            // Without reading the server's answer, this loop would not end.
            let filler: Vec<u8> = (2..5000).flat_map(|i| row(&format!("{i}\t{}", "x".repeat(100)))).collect();
            let error = loop {
                if let Err(error) = wire.copy_in_block(&filler).await {
                    break error;
                }
            };
            assert_eq!(error.sqlstate(), Some("22P02"), "{error}");
            let place = format!("127.0.0.1:{}/postgres as postgres", cluster.port());
            assert!(error.to_string().starts_with(&place), "{error}");
            assert!(error.server().unwrap().context.as_deref().unwrap().contains("COPY t, line 2"));
            // The connection has survived.
            assert_eq!(wire.query("SELECT count(*) FROM t").await.unwrap(), [[Some("0".to_owned())]]);

            // The same when the error comes with the end.
            wire.copy_in("COPY t FROM STDIN").await.unwrap();
            wire.copy_in_block(&row("1\ta")).await.unwrap();
            wire.copy_in_block(&row("1\tb")).await.unwrap();
            let error = wire.copy_in_finish().await.unwrap_err();
            assert_eq!(error.sqlstate(), Some("23505"), "{error}");
            assert!(!error.to_string().contains("(1)"), "row values are not shown: {error}");

            // And when it is us who give up.
            wire.copy_in("COPY t FROM STDIN").await.unwrap();
            wire.copy_in_block(&row("1\ta")).await.unwrap();
            wire.copy_in_fail("changed our mind").await.unwrap();
            assert_eq!(wire.query("SELECT count(*) FROM t").await.unwrap(), [[Some("0".to_owned())]]);
        });
    }
}

#[test]
fn a_server_that_talks_while_we_write_blocks_nobody() {
    let cluster = Cluster::start(Major::V15).unwrap();
    cluster
        .sql(
            "postgres",
            "CREATE TABLE t (a int);
             CREATE FUNCTION say(a int) RETURNS int LANGUAGE plpgsql AS
               $$BEGIN IF a % 10 = 0 THEN RAISE NOTICE 'at %', a; END IF; RETURN a; END$$;
             CREATE FUNCTION talk() RETURNS trigger LANGUAGE plpgsql AS
               $$BEGIN RAISE NOTICE '%', repeat('x', 2000); RETURN NEW; END$$;
             CREATE TRIGGER talk BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION talk();",
        )
        .unwrap();
    run("notices", async {
        let mut wire = wire(&over_tcp(&cluster, "user=postgres")).await;
        wire.copy_in("COPY t FROM STDIN").await.unwrap();
        // One call larger than all buffers between us and the server, answered by a hundred times
        // as much.
        let rows: Vec<u8> = (0..50_000).flat_map(|i| row(&i.to_string())).collect();
        wire.copy_in_block(&rows).await.unwrap();
        assert_eq!(wire.copy_in_finish().await.unwrap(), 50_000);
        // The other way they stand between the rows.
        wire.copy_out("COPY (SELECT say(a) FROM t) TO STDOUT").await.unwrap();
        let mut rows = 0;
        while let Some(block) = wire.copy_out_block().await.unwrap() {
            rows += block.messages;
        }
        assert_eq!(rows, 50_000);
        assert_eq!(wire.query("SELECT 1").await.unwrap().len(), 1);
    });
}

#[test]
fn a_copy_whose_server_dies_is_a_lost_connection() {
    let mut cluster = Cluster::start(Major::V15).unwrap();
    cluster.sql("postgres", "CREATE TABLE t (a int, b text)").unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let info = over_tcp(&cluster, "user=postgres");
    let (mut out, mut into) = runtime.block_on(async {
        let (mut out, mut into) = (wire(&info).await, wire(&info).await);
        out.copy_out("COPY (SELECT repeat('x', 1000) FROM generate_series(1, 10000000)) TO STDOUT")
            .await
            .unwrap();
        into.copy_in("COPY t FROM STDIN").await.unwrap();
        (out, into)
    });
    cluster.kill9();
    run("death", async {
        let error = loop {
            match out.copy_out_block().await {
                Ok(block) => assert!(block.is_some(), "the copy did not end in order"),
                Err(error) => break error,
            }
        };
        assert!(error.is_connection_lost(), "{error}");
        let filler = row(&format!("1\t{}", "x".repeat(100_000)));
        let error = loop {
            if let Err(error) = into.copy_in_block(&filler).await {
                break error;
            }
        };
        assert!(error.is_connection_lost(), "{error}");
    });
}

/// The server ends while we write, and resets the connection because it has not read everything.
/// Its last words still arrive.
#[test]
fn a_server_that_goes_while_we_write_is_heard() {
    let cluster = Cluster::start(Major::V15).unwrap();
    cluster.sql("postgres", "CREATE TABLE t (a int, b text)").unwrap();
    for round in 0..20 {
        run("last words", async {
            let info = over_tcp(&cluster, "user=postgres");
            let (mut killer, mut wire) = (wire(&info).await, wire(&info).await);
            let terminate = format!("SELECT pg_terminate_backend({})", wire.pid());
            let killing = tokio::spawn(async move { killer.query(&terminate).await });
            let mut pipeline = wire.pipeline().await.unwrap();
            pipeline.prepare("fill", "INSERT INTO t VALUES (1, $1)", &[Oid(25)]);
            let value = "x".repeat(1 << 20);
            let error = loop {
                pipeline.execute("fill", value.len() + 16, |out| {
                    out.put_u32(1);
                    out.put_u32(u32::try_from(value.len()).unwrap());
                    out.put_slice(value.as_bytes());
                });
                if let Err(error) = pipeline.flush().await {
                    break error;
                }
            };
            assert_eq!(error.sqlstate(), Some("57P01"), "round {round}: {error}");
            killing.await.unwrap().unwrap();
        });
    }
}
