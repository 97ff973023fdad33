//! `cargo x corpus`: records what real servers of every major send and write, for the tests that
//! mutate it.
//!
//! `wal` has the WAL. Of the streams there is one file per major and per way of asking: the bytes
//! of a whole replication session, as they come from the socket. They are written to
//! `crates/proto/tests/corpus` and checked in; tests and fuzzers read them without a server.
//! Positions, ids and times differ from one recording to the next, and nothing depends on them.

pub(crate) mod wal;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use testkit::{Cluster, Major};

/// A server that has nothing more to say for this long is broken.
const SILENCE: Duration = Duration::from_secs(30);

/// A way of asking for the stream.
struct Way {
    name: &'static str,
    /// The first major that knows it.
    since: Major,
    two_phase: bool,
    options: &'static str,
}

const WAYS: [Way; 5] = [
    Way {
        name: "v1-text",
        since: Major::V14,
        two_phase: false,
        options: "proto_version '1', messages 'true'",
    },
    Way {
        name: "v2-binary-streaming",
        since: Major::V14,
        two_phase: false,
        options: "proto_version '2', binary 'true', streaming 'on', messages 'true'",
    },
    Way {
        name: "v2-text-streaming",
        since: Major::V14,
        two_phase: false,
        options: "proto_version '2', streaming 'on'",
    },
    Way {
        name: "v3-two-phase",
        since: Major::V15,
        two_phase: true,
        options: "proto_version '3', two_phase 'on', streaming 'on'",
    },
    Way {
        name: "v4-binary-parallel",
        since: Major::V16,
        two_phase: false,
        options: "proto_version '4', binary 'true', streaming 'parallel', origin 'any'",
    },
];

/// What both kinds of table have, and one that fills the source's memory without being published.
const SCHEMA: &str = "CREATE SCHEMA \"S p\"; CREATE TYPE mood AS ENUM ('sad', 'ok'); \
    CREATE TABLE t (id int PRIMARY KEY, v text, n numeric, m mood, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL; \
    CREATE TABLE \"S p\".\"Whole\" (a int8, b bytea); ALTER TABLE \"S p\".\"Whole\" REPLICA IDENTITY FULL; \
    CREATE TABLE by_index (a int, u uuid NOT NULL UNIQUE); ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_u_key; \
    CREATE TABLE keyless (v varchar(20)); CREATE TABLE unpublished (id serial, v text); \
    CREATE PUBLICATION p FOR TABLE t, \"S p\".\"Whole\", by_index, keyless";

/// Larger than 64 kB, so that the open transaction is streamed, and not published, so that little
/// is sent.
const FILL: &str = "INSERT INTO unpublished (v) SELECT repeat('x', 100) FROM generate_series(1, 600)";

/// Each line is one query.
const WORK: [&str; 15] = [
    "INSERT INTO t VALUES (1, 'one', 1.10, 'ok', repeat('b', 2500)), (2, NULL, 'NaN', NULL, ''), (3, E'\\u00fc\\n', 0, 'sad', NULL)",
    "UPDATE t SET v = 'two' WHERE id = 1; UPDATE t SET id = 20 WHERE id = 2; DELETE FROM t WHERE id = 3",
    "INSERT INTO \"S p\".\"Whole\" VALUES (1, '\\x00ff'), (1, '\\x00ff'), (NULL, NULL); UPDATE \"S p\".\"Whole\" SET a = 2 WHERE a = 1; \
     DELETE FROM \"S p\".\"Whole\" WHERE a IS NULL",
    "INSERT INTO by_index VALUES (1, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'); UPDATE by_index SET a = 2; \
     UPDATE by_index SET u = 'b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'; DELETE FROM by_index",
    "INSERT INTO keyless VALUES ('a'), ('a'), (NULL); SELECT pg_logical_emit_message(true, 'ours', 'inside')",
    "SELECT pg_logical_emit_message(false, 'ours', 'outside')",
    "TRUNCATE t, keyless RESTART IDENTITY CASCADE; INSERT INTO t (id) VALUES (4)",
    "SELECT pg_replication_origin_create('elsewhere'); SELECT pg_replication_origin_session_setup('elsewhere'); \
     SELECT pg_replication_origin_xact_setup('0/AB', '2020-01-01'); INSERT INTO keyless VALUES ('from elsewhere')",
    "BEGIN; INSERT INTO t (id, v) VALUES (10, 'streamed'); SAVEPOINT a; INSERT INTO t (id, v) VALUES (11, 'undone'); FILL; \
     ROLLBACK TO a; UPDATE t SET v = 'still' WHERE id = 10; SAVEPOINT b; DELETE FROM t WHERE id = 4; FILL; COMMIT",
    "BEGIN; INSERT INTO t (id) VALUES (12); FILL; TRUNCATE keyless; INSERT INTO keyless VALUES ('never'); ROLLBACK",
    "ALTER TABLE t DROP n, ADD z int DEFAULT 7; UPDATE t SET z = 8",
    "BEGIN; INSERT INTO t (id, v) VALUES (30, 'prepared'); FILL; PREPARE TRANSACTION 'large'",
    "BEGIN; INSERT INTO t (id, v) VALUES (31, 'prepared'); PREPARE TRANSACTION 'small'",
    "COMMIT PREPARED 'large'",
    "ROLLBACK PREPARED 'small'",
];

/// Records everything, or only the streams, or only the WAL.
pub(crate) fn run(what: Option<&str>) -> Result<()> {
    match what {
        None => streams().and_then(|()| wal::run()),
        Some("streams") => streams(),
        Some("wal") => wal::run(),
        Some(other) => bail!("{other} is neither streams nor wal"),
    }
}

fn streams() -> Result<()> {
    let dir = directory();
    std::fs::create_dir_all(&dir)?;
    for major in Major::ALL {
        let cluster = Cluster::builder(major).setting("logical_decoding_work_mem", "64kB").start()?;
        let ways: Vec<&Way> = WAYS.iter().filter(|way| way.since <= major).collect();
        cluster.sql("postgres", SCHEMA)?;
        for (number, way) in ways.iter().enumerate() {
            let two_phase = if way.two_phase { ", false, true" } else { "" };
            cluster.sql(
                "postgres",
                &format!("SELECT pg_create_logical_replication_slot('s{number}', 'pgoutput'{two_phase})"),
            )?;
        }
        for query in WORK {
            cluster.sql("postgres", &query.replace("FILL", FILL))?;
        }
        for (number, way) in ways.iter().enumerate() {
            let end = cluster.one("postgres", "SELECT pg_current_wal_flush_lsn()");
            let bytes = record(&cluster, &format!("s{number}"), way.options, &end)
                .with_context(|| format!("recording {} from PostgreSQL {major}", way.name))?;
            let path = dir.join(format!("{major}-{}.stream", way.name));
            std::fs::write(&path, &bytes)?;
            println!("{}: {} bytes", path.display(), bytes.len());
        }
    }
    Ok(())
}

/// Where the recordings are.
pub(crate) fn directory() -> PathBuf {
    testkit::workspace_dir().join("crates/proto/tests/corpus")
}

/// A replication session: an error, then the stream until the server has said that it is at `end`.
fn record(cluster: &Cluster, slot: &str, options: &str, end: &str) -> Result<Vec<u8>> {
    let mut session =
        Session { socket: TcpStream::connect(("127.0.0.1", cluster.port()))?, bytes: Vec::new(), at: 0 };
    session.socket.set_read_timeout(Some(SILENCE))?;
    let start =
        b"\0\x03\0\0user\0postgres\0database\0postgres\0replication\0database\0client_encoding\0UTF8\0\0";
    session.send(&[], start)?;
    session.until(|tag, _| tag == b'Z')?;
    session.send(b"Q", b"SELECT 1 / 0\0")?;
    session.until(|tag, _| tag == b'Z')?;
    let command = format!("START_REPLICATION SLOT {slot} LOGICAL 0/0 ({options}, publication_names 'p')\0");
    session.send(b"Q", command.as_bytes())?;
    let (high, low) = end.split_once('/').context("an LSN")?;
    let end = u64::from_str_radix(high, 16)? << 32 | u64::from_str_radix(low, 16)?;
    session.until(|tag, body| {
        let keepalive = tag == b'd' && body.first() == Some(&b'k');
        keepalive && u64::from_be_bytes(body[1..9].try_into().expect("eight bytes")) >= end
    })?;
    Ok(session.bytes)
}

/// A connection that keeps everything the server says.
struct Session {
    socket: TcpStream,
    bytes: Vec<u8>,
    /// Where the next message starts.
    at: usize,
}

impl Session {
    /// One message: its tag, if it has one, its length and its body.
    fn send(&mut self, tag: &[u8], body: &[u8]) -> Result<()> {
        let length = u32::try_from(body.len() + 4)?.to_be_bytes();
        Ok(self.socket.write_all(&[tag, &length, body].concat())?)
    }

    /// Reads up to the message that `is_last` recognises by tag and body.
    fn until(&mut self, is_last: impl Fn(u8, &[u8]) -> bool) -> Result<()> {
        loop {
            while let Some(length) = self.bytes.get(self.at + 1..self.at + 5) {
                let length = u32::from_be_bytes(length.try_into()?) as usize;
                let Some(body) = self.bytes.get(self.at + 5..self.at + 1 + length) else { break };
                let tag = self.bytes[self.at];
                let last = is_last(tag, body);
                // The error that is asked for is not fatal and comes before the stream.
                ensure!(
                    tag != b'E' || body.windows(5).any(|code| code == b"22012"),
                    "{}",
                    String::from_utf8_lossy(body)
                );
                self.at += 1 + length;
                if last {
                    self.bytes.truncate(self.at);
                    return Ok(());
                }
            }
            let mut chunk = [0; 65536];
            match self.socket.read(&mut chunk)? {
                0 => bail!("the server closed the connection"),
                size => self.bytes.extend_from_slice(&chunk[..size]),
            }
        }
    }
}
