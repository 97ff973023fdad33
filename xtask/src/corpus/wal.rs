//! What servers of every major write to their WAL.
//!
//! One file per major, and one for each compression of page images that a server here can make:
//! whole pages from a page's start on, across the end of a segment, some 150 kB. The first page
//! says its own position.
//!
//! The pinned packages cannot compress with lz4 and zstd. Where a server that can is installed,
//! make it look like one of them (`PGSLUICE_PG_DIR`) and name its major (`PGSLUICE_TEST_MAJORS`):
//! what it cannot do stays as it was.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use testkit::{Cluster, Major};

const PAGE: u64 = 8192;
/// `wal_segment_size` of a fresh cluster.
const SEGMENT: u64 = 16 << 20;
/// How far before the end of its first segment a recording starts.
const LEAD: u64 = 48 << 10;

/// Each line is one query.
const WORK: [&str; 14] = [
    "INSERT INTO t VALUES (1, 'one', repeat('b', 2500)), (2, NULL, ''), (3, 'three', NULL)",
    "UPDATE t SET v = 'two' WHERE id = 1; UPDATE t SET id = 20 WHERE id = 2; DELETE FROM t WHERE id = 3",
    "INSERT INTO whole VALUES (1, 'x'), (1, 'x'); UPDATE whole SET a = 2; DELETE FROM whole",
    "COPY t (id) FROM PROGRAM 'seq 100 140'",
    "INSERT INTO t VALUES (1, 'again') ON CONFLICT (id) DO UPDATE SET v = 'upserted'",
    "INSERT INTO t VALUES (5, 'speculative') ON CONFLICT DO NOTHING",
    "BEGIN; INSERT INTO t VALUES (10); SAVEPOINT a; INSERT INTO t VALUES (11); ROLLBACK TO a; SAVEPOINT b; \
     DELETE FROM t WHERE id = 10; COMMIT",
    "SELECT pg_logical_emit_message(true, 'ours', repeat('inside', 3000)), pg_logical_emit_message(false, 'ours', '')",
    "BEGIN; INSERT INTO t VALUES (30, 'prepared'); SAVEPOINT a; CREATE TABLE made (a int); PREPARE TRANSACTION 'one'",
    "BEGIN; INSERT INTO t VALUES (31, 'prepared'); PREPARE TRANSACTION 'two'",
    "COMMIT PREPARED 'one'",
    "ROLLBACK PREPARED 'two'",
    "SELECT pg_replication_origin_create('elsewhere'); SELECT pg_replication_origin_session_setup('elsewhere'); \
     SELECT pg_replication_origin_xact_setup('0/AB', '2020-01-01'); INSERT INTO whole VALUES (9, 'from elsewhere')",
    "TRUNCATE t, whole RESTART IDENTITY CASCADE; DROP TABLE made",
];

/// Where the recordings are.
pub(crate) fn directory() -> PathBuf {
    testkit::workspace_dir().join("crates/wal/tests/corpus")
}

/// Records everything.
pub(crate) fn run() -> Result<()> {
    let dir = directory();
    std::fs::create_dir_all(&dir)?;
    let named = std::env::var_os("PGSLUICE_TEST_MAJORS").is_some();
    for major in if named { Major::under_test() } else { Major::ALL.to_vec() } {
        for compression in ["off", "pglz", "lz4", "zstd"] {
            let cluster = Cluster::builder(major).setting("autovacuum", "off").start()?;
            let setting = if major == Major::V14 && compression == "pglz" { "on" } else { compression };
            let set = format!("ALTER DATABASE postgres SET wal_compression = '{setting}'");
            if cluster.sql("postgres", &set).is_err() {
                println!("PostgreSQL {major} of these packages has no wal_compression = {setting}");
                continue;
            }
            let bytes = record(&cluster).with_context(|| format!("recording {compression} from {major}"))?;
            write(&dir.join(format!("{major}-{compression}.wal")), &bytes)?;
        }
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes)?;
    println!("{}: {} bytes", path.display(), bytes.len());
    Ok(())
}

fn record(cluster: &Cluster) -> Result<Vec<u8>> {
    cluster.sql(
        "postgres",
        "CREATE TABLE t (id int PRIMARY KEY, v text, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL; \
         CREATE TABLE whole (a int8, b text); ALTER TABLE whole REPLICA IDENTITY FULL",
    )?;
    cluster.sql("postgres", "CHECKPOINT")?;
    let position = position(cluster)?;
    let fill = SEGMENT - position % SEGMENT - LEAD;
    cluster
        .sql("postgres", &format!("SELECT pg_logical_emit_message(false, 'fill', repeat('x', {fill}))"))?;
    let from = self::position(cluster)? / PAGE * PAGE;
    for query in WORK {
        cluster.sql("postgres", query)?;
    }
    let to = self::position(cluster)?;
    ensure!(from / SEGMENT < to / SEGMENT, "no segment ended between {from} and {to}");
    let mut bytes = Vec::new();
    for segment in from / SEGMENT..=(to - 1) / SEGMENT {
        // A fresh cluster is far from its first 4 GB, where the name's middle changes.
        let name = format!("pg_wal/00000001{segment:016X}");
        let file = std::fs::read(cluster.data_dir().join(name))?;
        let (first, last) = (from.saturating_sub(segment * SEGMENT), (to - segment * SEGMENT).min(SEGMENT));
        bytes.extend_from_slice(&file[usize::try_from(first)?..usize::try_from(last)?]);
    }
    Ok(bytes)
}

/// Where WAL ends, once it is on disk.
fn position(cluster: &Cluster) -> Result<u64> {
    cluster.sql("postgres", "SELECT pg_logical_emit_message(true, 'flush', '')")?;
    let lsn = cluster.one("postgres", "SELECT pg_current_wal_flush_lsn()");
    let (high, low) = lsn.split_once('/').context("an LSN")?;
    Ok(u64::from_str_radix(high, 16)? << 32 | u64::from_str_radix(low, 16)?)
}
