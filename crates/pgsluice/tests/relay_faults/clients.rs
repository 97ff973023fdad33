//! Clients that are idle, slow, wrong or too long. None of them holds up a subscriber.
//!
//! The same is tried with a door alone in the tests of `listener`. Here it is the program, with a
//! subscriber beside it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use client::{ConnInfo, RawSession, Replication, Wire};
use testkit::{Cluster, query};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

use crate::stage::{BOUND, DB, Stage, conninfo, newest, subscriber, wait};

/// A startup packet of protocol 3.0 whose body is this.
fn startup(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 8).to_be_bytes()[..], &[0, 3, 0, 0], body].concat()
}

const HONEST: &[u8] = b"user\0sub\0database\0postgres\0\0";

fn connect(stage: &Stage) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", stage.port)).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    stream
}

/// What comes until the connection is closed.
fn rest(mut stream: &TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut all);
    all
}

/// Whether the relay has closed the connection. Does not wait.
fn is_closed(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    match stream.read(&mut [0; 256]) {
        Ok(0) => true,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        Ok(_) => false,
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn log_in(stage: &Stage) -> Result<Wire, client::Error> {
    let info = ConnInfo::parse(&conninfo(stage.port, DB)).unwrap();
    Wire::connect(&info, "a test", Replication::Database, &[]).await
}

fn follows(stage: &Stage, cluster: &Cluster) {
    stage.source("INSERT INTO ledger VALUES (9, 1, 1)");
    stage.level(&[cluster]);
}

/// Two hundred connections that say nothing, and some that are logged in and idle. Those that say
/// nothing are ended after `authentication_timeout`, and so is a client that trickles.
///
/// Fails if the door does not bound the time before authentication, or if a place among the
/// connections is not given back.
#[test]
fn idle_and_trickling_clients_are_ended_and_hold_up_nobody() {
    let settings = "authentication_timeout = '4s'\nmax_connections = 240\nmax_connections_per_address = 1000";
    let stage = Stage::new(newest(), settings);
    let cluster = subscriber(newest());
    stage.subscribe(&cluster, "s", "");
    let runtime = runtime();
    let mut idle: Vec<Wire> =
        (0..20).map(|_| runtime.block_on(log_in(&stage)).unwrap_or_else(|error| panic!("{error}"))).collect();
    let begun = Instant::now();
    let silent: Vec<TcpStream> = (0..200).map(|_| connect(&stage)).collect();
    follows(&stage, &cluster);
    // A byte a second, which is never enough.
    let mut trickle = connect(&stage);
    for byte in startup(HONEST) {
        if trickle.write_all(&[byte]).is_err() || is_closed(&trickle) || begun.elapsed() > BOUND {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "it trickled for {:?}", begun.elapsed());
    wait("silent clients to be ended", || silent.iter().all(is_closed));
    assert!(stage.relay.stderr().contains("it was not authenticated in time"), "{}", stage.relay.stderr());
    for wire in &mut idle {
        let told = runtime.block_on(wire.query("IDENTIFY_SYSTEM"));
        assert_eq!(told.unwrap_or_else(|error| panic!("{error}")).len(), 1, "it was logged in");
    }
    // All places are taken, and come back.
    let many: Vec<TcpStream> = (0..240).map(|_| connect(&stage)).collect();
    let refused = runtime.block_on(log_in(&stage)).err().map(|error| base::with_causes(&error));
    let refused = refused.unwrap_or_default();
    assert!(refused.contains("sorry, too many clients already"), "{refused}");
    drop(many);
    wait("a place", || runtime.block_on(log_in(&stage)).is_ok());
    follows(&stage, &cluster);
}

/// Messages that are longer than anybody needs are refused before memory is used for them. Then
/// wrong passwords: each is told as a server tells it, and after ten the address is turned away.
/// The subscriber that is there goes on.
///
/// Fails if a length is believed before it is checked, if a refused stream keeps its slot, or if
/// failed logins are not counted.
#[test]
fn long_messages_and_wrong_passwords_are_refused() {
    let stage = Stage::new(newest(), "");
    let cluster = subscriber(newest());
    stage.subscribe(&cluster, "s", "");
    let memory = stage.relay.resident_bytes_max();
    for length in [0x7fff_ffff_u32, 10_009, 7] {
        let mut stream = connect(&stage);
        stream.write_all(&[&length.to_be_bytes()[..], &[0, 3, 0, 0]].concat()).unwrap();
        assert_eq!(rest(&stream), b"", "a startup packet of {length} bytes");
    }
    let runtime = runtime();
    for length in [(64 << 20) + 5, 0x3fff_ffff, u32::MAX, 3] {
        runtime.block_on(is_cut_off(&stage, &[&b"Q"[..], &u32::to_be_bytes(length)].concat()));
    }
    let create = "CREATE_REPLICATION_SLOT long LOGICAL pgoutput NOEXPORT_SNAPSHOT";
    runtime.block_on(async { log_in(&stage).await.unwrap().query(create).await.unwrap() });
    for _ in 0..3 {
        runtime.block_on(stream_with_long_answers(&stage));
    }
    let grown = stage.relay.resident_bytes_max().saturating_sub(memory);
    assert!(grown < 64 << 20, "{grown} bytes of memory for messages that were refused");
    follows(&stage, &cluster);

    for attempt in 0..10 {
        let (user, password) = if attempt % 2 == 0 { ("sub", "wrong") } else { ("nobody", "geheim") };
        let url = format!("postgres://{user}:{password}@127.0.0.1:{}/{DB}", stage.port);
        let said = format!("{:#}", query(&url, "SELECT 1").unwrap_err());
        let expected = format!("password authentication failed for user \"{user}\"");
        assert!(said.contains(&expected), "attempt {attempt}: {said}");
    }
    let url = format!("postgres://sub:geheim@127.0.0.1:{}/{DB}", stage.port);
    let said = format!("{:#}", query(&url, "SELECT 1").unwrap_err());
    assert!(said.contains("too many failed logins from this address"), "{said}");
    follows(&stage, &cluster);
}

/// Sends bytes behind a login, and waits until the relay closes the connection.
async fn is_cut_off(stage: &Stage, bytes: &[u8]) {
    let info = ConnInfo::parse(&conninfo(stage.port, DB)).unwrap();
    let session = RawSession::connect(&info, "a test", Replication::Database, &[]).await.unwrap();
    let (mut stream, _) = session.into_parts();
    stream.write_all(bytes).await.unwrap();
    stream.flush().await.unwrap();
    let mut all = Vec::new();
    let ended = tokio::time::timeout(BOUND, stream.read_to_end(&mut all)).await;
    assert!(ended.is_ok(), "{bytes:?} was waited for");
}

/// Streams from the slot `long`, and answers with a message that no subscriber sends.
async fn stream_with_long_answers(stage: &Stage) {
    let mut wire = log_in(stage).await.unwrap();
    let start = "START_REPLICATION SLOT long LOGICAL 0/0 (proto_version '1', publication_names 'p')";
    let begun = Instant::now();
    // The stream before may still be ending.
    while let Err(error) = wire.copy_both(start).await {
        assert!(begun.elapsed() < BOUND, "{error}");
        wire = log_in(stage).await.unwrap();
    }
    wire.send_copy_data(&[b'r'; 4_000]).await.unwrap();
    let ended = async { while wire.read_frame().await.is_ok() {} };
    assert!(tokio::time::timeout(BOUND, ended).await.is_ok(), "a long answer was taken");
}
