//! Connecting and authenticating: both kinds of connection, every method, and the messages of
//! failures.

#![allow(clippy::unwrap_used, reason = "tests, with functions of their own")]

use std::sync::Arc;
use std::time::Duration;

use base::Lsn;
use client::{Error, Replication, Wire, connect};
use testkit::{Cluster, Major, StopMode, wait_for};

mod support;
use support::{info, keys_of, over_tcp, run};

const HBA: &str = "\
local all all trust
host all,replication postgres 127.0.0.1/32 trust
host all plain 127.0.0.1/32 password
host all old 127.0.0.1/32 md5
host all modern 127.0.0.1/32 scram-sha-256
";

fn cluster(major: Major) -> Cluster {
    let cluster = Cluster::builder(major).hba(HBA).start().unwrap();
    let roles = "SET password_encryption = 'scram-sha-256';
         CREATE ROLE plain LOGIN PASSWORD 'geheim';
         CREATE ROLE modern LOGIN PASSWORD 'geheim';
         SET password_encryption = 'md5';
         CREATE ROLE old LOGIN PASSWORD 'geheim';";
    cluster.sql("postgres", roles).unwrap();
    cluster
}

#[test]
fn every_method_lets_both_kinds_in() {
    for major in Major::under_test() {
        let cluster = cluster(major);
        run("methods", async {
            for user in ["postgres", "plain", "old", "modern"] {
                let info = over_tcp(&cluster, &format!("user={user} password=geheim"));
                let session = connect(&info, "a test", &[("search_path", ""), ("datestyle", "ISO, DMY")])
                    .await
                    .unwrap();
                let row = session
                    .query_one(
                        "SELECT current_user::text, pg_catalog.pg_backend_pid(), current_setting('search_path'), \
                         current_setting('datestyle'), current_setting('application_name')",
                        &[],
                    )
                    .await
                    .unwrap();
                assert_eq!(row.get::<_, String>(0), user);
                assert_eq!(row.get::<_, i32>(1), session.pid());
                assert_eq!(row.get::<_, String>(2), "");
                assert_eq!(row.get::<_, String>(3), "ISO, DMY");
                assert_eq!(row.get::<_, String>(4), "a test");
                assert_eq!(session.version().major(), major.number());
                assert_eq!(session.parameter("in_hot_standby").as_deref(), Some("off"));

                let mut wire = Wire::connect(&info, "", Replication::Off, &[]).await.unwrap();
                let rows = wire.query("SELECT current_user, pg_backend_pid(), NULL").await.unwrap();
                assert_eq!(rows, [[Some(user.to_owned()), Some(wire.pid().to_string()), None]]);
                assert_eq!(wire.version(), session.version());
                wire.close().await;
            }
        });
    }
}

#[test]
fn keys_stand_in_place_of_a_password() {
    for major in Major::under_test() {
        let cluster = cluster(major);
        let keys = keys_of(&cluster, "modern", "geheim");
        run("keys", async {
            let info = over_tcp(&cluster, &format!("user=modern {keys} require_auth=scram-sha-256"));
            connect(&info, "", &[]).await.unwrap();
            Wire::connect(&info, "", Replication::Off, &[]).await.unwrap();
            // With another salt, the same password has other keys.
            cluster.sql("postgres", "ALTER ROLE modern PASSWORD 'geheim'").unwrap();
            let error = connect(&info, "", &[]).await.unwrap_err();
            assert!(error.is_authentication(), "{error}");
            let secret = keys.split(['=', ' ']).nth(1).unwrap();
            assert!(!format!("{error}{error:?}").contains(secret), "{error:?}");
        });
    }
}

#[test]
fn refusals_name_place_cause_and_remedy() {
    let cluster = cluster(Major::V15);
    let port = cluster.port();
    let failure = |text: &str| {
        let info = over_tcp(&cluster, text);
        run(text, async {
            let error = connect(&info, "", &[]).await.expect_err(text);
            let of_wire = Wire::connect(&info, "", Replication::Off, &[]).await.expect_err(text);
            assert_eq!(error.to_string(), of_wire.to_string());
            error
        })
    };
    let check = |error: Error, parts: &[&str]| {
        let message = error.to_string();
        for part in parts {
            assert!(message.contains(part), "no {part:?} in: {message}");
        }
        assert!(!format!("{message}{error:?}").contains("falsch"), "{error:?}");
        assert!(!error.is_connection_lost(), "{message}");
        error
    };
    for user in ["plain", "old", "modern"] {
        let place = format!("127.0.0.1:{port}/postgres as {user}: ");
        let wrong = check(
            failure(&format!("user={user} password=falsch")),
            &[&place, "password authentication failed", "28P01", "PGPASSWORD"],
        );
        assert!(wrong.is_authentication());
        assert_eq!(wrong.sqlstate(), Some("28P01"));
        let none =
            check(failure(&format!("user={user}")), &[&place, "asks for a password", "/nonexistent/.pgpass"]);
        assert!(none.is_authentication());
    }
    let absent = check(failure("user=nobody_here"), &["nobody_here", "28000", "pg_hba.conf"]);
    assert!(absent.is_authentication());
    check(
        failure("user=postgres dbname=nirgends"),
        &["\"nirgends\" does not exist", "3D000", "create the database"],
    );
    let refused = check(
        failure("user=plain password=falsch require_auth=scram-sha-256"),
        &["method password", "require_auth"],
    );
    assert!(refused.is_authentication());
    check(failure("user=postgres require_auth=scram-sha-256"), &["method none", "require_auth"]);
    check(
        failure("user=modern password=falsch channel_binding=require"),
        &["channel_binding=require", "TLS"],
    );
    check(failure("user=postgres options='-c no_such_thing=1'"), &["no_such_thing", "42704"]);
    check(failure("user=postgres sslmode=require"), &["does not offer it", "ssl = on"]);
}

#[test]
fn unix_sockets_and_lists_of_hosts() {
    let cluster = cluster(Major::V15);
    let directory = cluster.socket_dir();
    let directory = directory.display();
    let port = cluster.port();
    run("unix", async {
        let info = info(&format!("host={directory} port={port} user=modern dbname=postgres sslmode=require"));
        let session = connect(&info, "", &[]).await.unwrap();
        assert_eq!(session.describe(), format!("{directory}:{port}/postgres as modern"));
        let mut wire = Wire::connect(&info, "", Replication::Off, &[]).await.unwrap();
        assert_eq!(wire.query("SELECT 1").await.unwrap(), [[Some("1".to_owned())]]);
    });
    run("hosts", async {
        // A port that was free a moment ago and is not listened on.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let list = |more: &str| {
            info(&format!("host=127.0.0.1,127.0.0.1 port={free},{port} user=postgres dbname=postgres {more}"))
        };
        let session = connect(&list(""), "", &[]).await.unwrap();
        assert_eq!(session.describe(), format!("127.0.0.1:{port}/postgres as postgres"));
        connect(&list("load_balance_hosts=random target_session_attrs=primary"), "", &[]).await.unwrap();
        connect(&list("target_session_attrs=prefer-standby"), "", &[]).await.unwrap();
        let error = connect(&list("target_session_attrs=standby"), "", &[]).await.unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains(&format!("127.0.0.1:{free}/")) && message.contains("not a standby"),
            "{message}"
        );
        assert!(error.is_connection_lost());
        // A wrong password is not tried on the next host.
        let text =
            format!("host=127.0.0.1,127.0.0.1 port={port},{free} user=modern password=x dbname=postgres");
        let error = connect(&info(&text), "", &[]).await.unwrap_err();
        assert!(!error.to_string().contains(&free.to_string()), "{error}");
    });
}

#[test]
fn a_silent_server_is_left_after_the_timeout() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    run("timeout", async {
        let info = info(&format!("host=127.0.0.1 port={port} user=u connect_timeout=2"));
        let error = connect(&info, "", &[]).await.unwrap_err();
        assert!(error.to_string().contains("within 2 s (connect_timeout)"), "{error}");
        assert!(error.is_connection_lost());
    });
}

#[test]
fn a_running_query_can_be_cancelled() {
    let cluster = cluster(Major::V15);
    run("cancel", async {
        let info = over_tcp(&cluster, "user=postgres");
        let session = connect(&info, "", &[]).await.unwrap();
        let canceller = session.canceller();
        // The request may come before the query: it is repeated until it counts.
        let asking = async {
            loop {
                canceller.cancel().await.unwrap();
                // Between two requests, which are repeated until one counts.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let error = tokio::select! {
            result = session.batch_execute("SELECT pg_sleep(50)") => session.error(result.unwrap_err()),
            () = asking => unreachable!(),
        };
        assert_eq!(error.sqlstate(), Some("57014"), "{error}");
        assert!(!error.is_connection_lost());

        let mut wire = Wire::connect(&info, "", Replication::Off, &[]).await.unwrap();
        let canceller = wire.canceller();
        let asking = async {
            loop {
                canceller.cancel().await.unwrap();
                // Between two requests, which are repeated until one counts.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let error = tokio::select! {
            result = wire.query("SELECT pg_sleep(50)") => result.unwrap_err(),
            () = asking => unreachable!(),
        };
        assert_eq!(error.sqlstate(), Some("57014"), "{error}");
        // A late request may still hit; what it hits is an error of the server, not of the
        // connection.
        let after = wire.query("SELECT 1").await;
        assert!(after.is_ok() || after.is_err_and(|error| error.sqlstate() == Some("57014")));
    });
}

#[test]
fn dropping_a_session_ends_its_backend() {
    let cluster = cluster(Major::V15);
    let info = over_tcp(&cluster, "user=postgres");
    let backends = |name: &str| {
        cluster.one(
            "postgres",
            &format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'"),
        )
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (session, wire) = runtime.block_on(async {
        let session = connect(&info, "to be dropped", &[]).await.unwrap();
        let wire = Wire::connect(&info, "to be closed", Replication::Off, &[]).await.unwrap();
        (session, wire)
    });
    assert_eq!((backends("to be dropped"), backends("to be closed")), ("1".into(), "1".into()));
    drop(session);
    runtime.block_on(wire.close());
    wait_for("both backends to end", Duration::from_secs(20), || {
        Ok(backends("to be dropped") == "0" && backends("to be closed") == "0")
    })
    .unwrap();
}

#[test]
fn a_server_that_goes_away_is_a_lost_connection() {
    let mut cluster = cluster(Major::V15);
    let info = over_tcp(&cluster, "user=postgres");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let connected = runtime.block_on(async {
        let wire = Wire::connect(&info, "", Replication::Off, &[]).await.unwrap();
        (connect(&info, "", &[]).await.unwrap(), wire)
    });
    cluster.stop(StopMode::Fast).unwrap();
    runtime.block_on(async {
        let (session, mut wire) = connected;
        let error = session.error(session.batch_execute("SELECT 1").await.unwrap_err());
        assert!(error.is_connection_lost(), "{error:?}");
        let error = wire.query("SELECT 1").await.unwrap_err();
        assert!(error.is_connection_lost(), "{error:?}");
        let error = connect(&info, "", &[]).await.unwrap_err();
        assert!(error.is_connection_lost(), "{error:?}");
        assert!(error.to_string().contains("cannot connect"), "{error}");
    });
    cluster.start_again().unwrap();
    run("again", async { connect(&info, "", &[]).await.unwrap() });
}

/// A command that waits when the server dies must end.
#[test]
fn a_command_under_way_learns_that_its_server_is_gone() {
    let mut cluster = cluster(Major::V15);
    let info = over_tcp(&cluster, "user=postgres");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (session, wire) = runtime.block_on(async {
        let session = Arc::new(connect(&info, "", &[]).await.unwrap());
        let mut wire = Wire::connect(&info, "", Replication::Off, &[]).await.unwrap();
        let waiting = Arc::clone(&session);
        let session = tokio::spawn(async move {
            waiting
                .batch_execute("SELECT pg_sleep(1000)")
                .await
                .map_err(|error| waiting.error(error))
                .unwrap_err()
        });
        (session, tokio::spawn(async move { wire.query("SELECT pg_sleep(1000)").await.unwrap_err() }))
    });
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    wait_for("both to sleep", Duration::from_secs(20), || Ok(cluster.one("postgres", asleep) == "2"))
        .unwrap();
    cluster.kill9();
    runtime.block_on(async {
        for waiting in [session, wire] {
            let bound = testkit::at_this_load(Duration::from_secs(20));
            let error = tokio::time::timeout(bound, waiting).await.expect("no hang").unwrap();
            assert!(error.is_connection_lost(), "{error:?}");
        }
    });
}

#[test]
fn a_session_ended_by_the_server_says_why() {
    let cluster = cluster(Major::V15);
    let info = over_tcp(&cluster, "user=postgres");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (session, mut wire) = runtime.block_on(async {
        let wire = Wire::connect(&info, "", Replication::Off, &[]).await.unwrap();
        (connect(&info, "", &[]).await.unwrap(), wire)
    });
    let end =
        format!("SELECT pg_terminate_backend(pid) FROM unnest(ARRAY[{}, {}]) pid", session.pid(), wire.pid());
    cluster.sql("postgres", &end).unwrap();
    wait_for("the end of the session", Duration::from_secs(20), || Ok(session.is_closed())).unwrap();
    runtime.block_on(async {
        let of_session = session.error(session.batch_execute("SELECT 1").await.unwrap_err());
        let of_wire = wire.query("SELECT 1").await.unwrap_err();
        for error in [of_session, of_wire] {
            assert_eq!(error.sqlstate(), Some("57P01"), "{error:?}");
            assert!(error.is_connection_lost() && error.to_string().contains("administrator"), "{error}");
        }
    });
}

#[test]
fn queries_go_on_after_an_error() {
    let cluster = cluster(Major::V15);
    run("errors", async {
        let mut wire =
            Wire::connect(&over_tcp(&cluster, "user=postgres"), "", Replication::Off, &[]).await.unwrap();
        let error = wire.query("SELECT 1; SELECT 1/0; SELECT 2").await.unwrap_err();
        assert_eq!(error.sqlstate(), Some("22012"));
        assert!(error.to_string().contains("division by zero"), "{error}");
        let rows = wire.query("SELECT 1; ; SELECT 2 AS x WHERE false; SELECT 3, 4").await.unwrap();
        assert_eq!(rows, [vec![Some("1".to_owned())], vec![Some("3".to_owned()), Some("4".to_owned())]]);
        // A copy that was not asked for leaves an error behind, not a hang.
        let error = wire.query("COPY (SELECT 1) TO STDOUT").await.unwrap_err();
        assert!(error.to_string().contains("unexpected message 'H'"), "{error}");
        let error = wire.query("SELECT 1").await.unwrap_err();
        assert!(error.to_string().contains("open a new connection"), "{error}");
    });
}

#[test]
fn a_pipeline_can_be_followed_before_it_ends() {
    for major in Major::under_test() {
        let cluster = cluster(major);
        run("pipeline", async {
            let info = over_tcp(&cluster, "user=postgres");
            let mut wire = Wire::connect(&info, "test", Replication::Off, &[]).await.unwrap();
            let mut pipeline = wire.pipeline().await.unwrap();
            let no_parameters = |out: &mut bytes::BytesMut| out.extend_from_slice(&[0; 4]);
            pipeline.prepare("lock", "SELECT pg_advisory_lock(1)", &[]);
            pipeline.prepare("fail", "SELECT 1 / (current_setting('port')::int * 0)", &[]);
            pipeline.execute("lock", 4, no_parameters);
            assert!(pipeline.keep_up(0, |_| ()).await.unwrap());
            let free = cluster.sql("postgres", "SELECT pg_try_advisory_lock(1)").unwrap();
            assert_eq!(free[0][0].as_deref(), Some("f"), "{major}: the statement has been run");
            pipeline.execute("lock", 4, no_parameters);
            assert!(pipeline.keep_up(1, |_| ()).await.unwrap(), "{major}: one may be unfinished");
            pipeline.execute("fail", 4, no_parameters);
            assert!(!pipeline.keep_up(0, |_| ()).await.unwrap());
            pipeline.execute("lock", 4, no_parameters);
            assert!(
                !pipeline.keep_up(0, |_| ()).await.unwrap(),
                "{major}: what follows an error is not waited for"
            );
            let result = pipeline.run().await.unwrap();
            assert_eq!((result.rows.as_slice(), result.prepared), (&[1, 1][..], 2), "{major}");
            assert_eq!(result.error.unwrap().code, "22012");
            assert_eq!(wire.query("SELECT 2").await.unwrap()[0][0].as_deref(), Some("2"));
        });
    }
}

#[test]
fn a_replication_stream_starts_reads_and_ends() {
    for major in Major::under_test() {
        let cluster = cluster(major);
        cluster.sql("postgres", "CREATE TABLE t (a int); CREATE PUBLICATION p FOR TABLE t").unwrap();
        run("replication", async {
            let info = over_tcp(&cluster, "user=postgres");
            let mut physical = Wire::connect(&info, "", Replication::Physical, &[]).await.unwrap();
            let system = physical.query("IDENTIFY_SYSTEM").await.unwrap();
            assert_eq!(system[0].len(), 4);
            assert_eq!(system[0][3], None, "no database");
            physical.close().await;

            let mut wire = Wire::connect(&info, "", Replication::Database, &[]).await.unwrap();
            let slot = wire.query("CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput").await.unwrap();
            let start: Lsn = slot[0][1].as_deref().unwrap().parse().unwrap();
            let session = connect(&info, "", &[]).await.unwrap();
            session.batch_execute("INSERT INTO t SELECT generate_series(1, 1000)").await.unwrap();
            wire.copy_both(&format!(
                "START_REPLICATION SLOT s LOGICAL {start} (proto_version '1', publication_names 'p')"
            ))
            .await
            .unwrap();
            let mut inserts = 0;
            while inserts < 1000 {
                // Given up every other time before anything can have come.
                let patience = Duration::from_micros(if inserts % 2 == 0 { 1 } else { 1000 });
                let Ok(frame) = tokio::time::timeout(patience, wire.read_frame()).await else { continue };
                let frame = frame.unwrap();
                assert_eq!(frame.tag, b'd');
                // XLogData: 'w', three positions of eight bytes, then pgoutput's message.
                inserts += i32::from(frame.body[0] == b'w' && frame.body[25] == b'I');
                while let Some(frame) = wire.buffered_frame().unwrap() {
                    inserts += i32::from(frame.body[0] == b'w' && frame.body[25] == b'I');
                }
            }
            let mut status = vec![b'r'];
            for position in [start.as_u64(), start.as_u64(), start.as_u64(), 0] {
                status.extend_from_slice(&position.to_be_bytes());
            }
            status.push(1);
            wire.send_copy_data(&status).await.unwrap();
            // The answer that was asked for.
            while wire.read_frame().await.unwrap().body[0] != b'k' {}
            wire.copy_both_finish().await.unwrap();
            assert_eq!(wire.query("SELECT count(*) FROM t").await.unwrap(), [[Some("1000".to_owned())]]);
        });
    }
}
