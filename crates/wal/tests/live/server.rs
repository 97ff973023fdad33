//! A server, some work on it, and the WAL of that work.

use base::Lsn;
use testkit::{Builder, Cluster, Major};
use wal::{Reader, Record, Start};

/// The segments of a fresh cluster.
pub(crate) const SEGMENT: u64 = 16 << 20;

/// About one statement of each kind that writes records of its own. Each line is a query.
const WORK: [&str; 14] = [
    "CREATE TABLE t (id serial PRIMARY KEY, v text, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    "CREATE INDEX ON t USING gin (to_tsvector('english', v)); CREATE INDEX ON t USING brin (id); \
     CREATE INDEX ON t USING hash (v); CREATE INDEX ON t USING gist (point(id, id)); CREATE INDEX ON t USING spgist (v)",
    "INSERT INTO t (v, big) SELECT 'row ' || n, repeat('b', n * 60) FROM generate_series(1, 300) n",
    "COPY t (v) FROM PROGRAM 'for n in $(seq 500); do echo copied $n; done'",
    "BEGIN; UPDATE t SET v = v || '!' WHERE id % 3 = 0; SAVEPOINT a; DELETE FROM t WHERE id % 7 = 0; ROLLBACK TO a; \
     SAVEPOINT b; INSERT INTO t (v) VALUES ('sub'); COMMIT",
    "CHECKPOINT; UPDATE t SET big = NULL WHERE id < 50; DELETE FROM t WHERE id > 750",
    "INSERT INTO t (id, v) VALUES (1, 'again') ON CONFLICT (id) DO UPDATE SET v = 'upserted'",
    "SELECT pg_logical_emit_message(true, 'test', repeat('m', 30000)), pg_logical_emit_message(false, 'test', '')",
    "BEGIN; INSERT INTO t (v) VALUES ('prepared'); PREPARE TRANSACTION 'p'",
    "COMMIT PREPARED 'p'",
    "SELECT pg_switch_wal(); TRUNCATE t; INSERT INTO t (v) SELECT 'behind' FROM generate_series(1, 100)",
    "VACUUM FREEZE t",
    "VACUUM FULL t",
    "ALTER TABLE t ADD c int DEFAULT 1; DROP TABLE t; CHECKPOINT",
];

/// WAL from one position to another.
pub(crate) struct Stretch {
    pub(crate) cluster: Cluster,
    pub(crate) from: Lsn,
    pub(crate) to: Lsn,
}

impl Stretch {
    /// A server on which the usual work was done.
    pub(crate) fn of_work(builder: Builder) -> Stretch {
        let cluster = builder.setting("wal_keep_size", "1GB").start().unwrap();
        if cluster.major() > Major::V14 {
            cluster.sql("postgres", "CREATE EXTENSION pg_walinspect").unwrap();
        }
        cluster.sql("postgres", "CREATE EXTENSION pageinspect").unwrap();
        let from = position(&cluster);
        for query in WORK {
            cluster.sql("postgres", query).unwrap();
        }
        let to = position(&cluster);
        Stretch { cluster, from, to }
    }

    /// Reads the stretch in pieces of `piece` bytes, as the files have it. Returns the results of
    /// `see` for each record.
    pub(crate) fn read<T>(&self, piece: usize, mut see: impl FnMut(&Record<'_>) -> T) -> Vec<T> {
        let mut reader = Reader::new(Start::at(self.from)).unwrap();
        let bytes = bytes(&self.cluster, reader.position(), self.to, 1);
        let mut seen = Vec::new();
        for piece in bytes.chunks(piece) {
            let mut records = reader.push(reader.position(), piece).unwrap();
            while let Some(record) = records.poll().unwrap() {
                seen.push(see(&record));
            }
        }
        assert_eq!(reader.finish().unwrap(), self.to);
        let pages = reader.layout().unwrap().major();
        assert_eq!(pages.to_string(), self.cluster.major().to_string());
        let identifier = self.cluster.one("postgres", "SELECT system_identifier FROM pg_control_system()");
        if let Some(known) = reader.system_id() {
            assert_eq!(known.to_string(), identifier);
        }
        seen
    }
}

/// Where WAL ends now, on disk.
pub(crate) fn position(cluster: &Cluster) -> Lsn {
    // The record of an asynchronous commit may not be written yet.
    cluster.sql("postgres", "SELECT pg_logical_emit_message(true, 'test', 'flush')").unwrap();
    let query = "SELECT pg_current_wal_insert_lsn() = pg_current_wal_flush_lsn(), pg_current_wal_flush_lsn()";
    let quiet = || {
        let rows = cluster.sql("postgres", query).unwrap();
        (rows[0][0].as_deref() == Some("t")).then(|| rows[0][1].clone().unwrap().parse().unwrap())
    };
    let mut lsn = None;
    testkit::wait_for("all WAL on disk", std::time::Duration::from_secs(30), || {
        lsn = quiet();
        Ok(lsn.is_some())
    })
    .unwrap();
    lsn.unwrap()
}

/// The bytes of WAL from `from` to `to`, of the segments of `timeline`.
pub(crate) fn bytes(cluster: &Cluster, from: Lsn, to: Lsn, timeline: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for segment in from.as_u64() / SEGMENT..=(to.as_u64() - 1) / SEGMENT {
        let per_file = (1 << 32) / SEGMENT;
        let name = format!("pg_wal/{timeline:08X}{:08X}{:08X}", segment / per_file, segment % per_file);
        let file = std::fs::read(cluster.data_dir().join(name)).unwrap();
        let first = from.as_u64().saturating_sub(segment * SEGMENT) as usize;
        let last = (to.as_u64() - segment * SEGMENT).min(SEGMENT) as usize;
        bytes.extend_from_slice(&file[first..last]);
    }
    bytes
}
