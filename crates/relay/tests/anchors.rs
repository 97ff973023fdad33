//! What comes out is the same from every anchor (rule L2, points 2, 5 and 6).

#![allow(clippy::unwrap_used, reason = "tests, with functions of their own")]

use std::time::Duration;

use base::{Lsn, PgVersion};
use catalog::{Catalog, Look};
use client::{ConnInfo, Session, connect};
use output::{Decoder, Options, Publications};
use relay::Anchors;
use testkit::{Cluster, Major, wait_for};
use tokio::runtime::Runtime;
use txn::DirSpool;
use types::Settings;

const DB: &str = "postgres";
const SEGMENT: u64 = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
const DISTANCE: u64 = 200 << 10;

struct Stage {
    cluster: Cluster,
    catalog: Catalog,
    runtime: Runtime,
}

impl Stage {
    fn start(major: Major) -> Stage {
        let cluster = Cluster::builder(major)
            .setting("wal_level", "logical")
            .setting("wal_keep_size", "1GB")
            .setting("autovacuum", "off")
            .start()
            .unwrap();
        cluster.sql(DB, "CREATE TABLE t (id serial PRIMARY KEY, v text); CREATE TABLE long (id serial PRIMARY KEY, v text); CREATE PUBLICATION p FOR ALL TABLES").unwrap();
        let runtime = Runtime::new().unwrap();
        let catalog = runtime.block_on(async {
            let session = session(&cluster).await;
            Catalog::look(&[session], &Look { redo: None, wait_max: PATIENCE }).await.unwrap()
        });
        Stage { cluster, catalog, runtime }
    }

    /// Transactions of all lengths beside one another, and tables that change.
    fn work(&self) {
        let sql = |sql: &str| self.cluster.sql(DB, sql).unwrap();
        self.runtime.block_on(async {
            let mut open: Option<Session> = None;
            for round in 0..60 {
                if round % 7 == 0 {
                    if let Some(long) = open.take() {
                        long.batch_execute(if round % 2 == 0 { "COMMIT" } else { "ROLLBACK" }).await.unwrap();
                    }
                    let long = session(&self.cluster).await;
                    long.batch_execute("BEGIN; INSERT INTO long (v) VALUES ('long begins')").await.unwrap();
                    open = Some(long);
                }
                if let Some(long) = &open {
                    long.batch_execute("SAVEPOINT s; INSERT INTO long (v) SELECT repeat('l', 400) FROM generate_series(1, 20)")
                        .await
                        .unwrap();
                }
                sql("INSERT INTO t (v) SELECT repeat('x', 300) FROM generate_series(1, 100)");
                match round % 5 {
                    0 => drop(sql(&format!("ALTER TABLE t ADD c{round} int DEFAULT {round}"))),
                    1 => drop(sql(&format!("CREATE TABLE t{round} AS SELECT {round} AS n"))),
                    2 => drop(sql("UPDATE t SET v = v || 'y' WHERE id % 50 = 0")),
                    3 => drop(sql("CHECKPOINT")),
                    _ => drop(sql("DELETE FROM t WHERE id % 97 = 0")),
                }
            }
            if let Some(long) = open {
                long.batch_execute("COMMIT").await.unwrap();
            }
        });
    }

    /// WAL from this place to its end, which is on disk.
    fn wal(&self, from: Lsn) -> Vec<u8> {
        let mut end = Lsn::INVALID;
        self.cluster.sql(DB, "SELECT pg_logical_emit_message(true, 'flush', '')").unwrap();
        wait_for("all WAL on disk", PATIENCE, || {
            let row = self
                .cluster
                .one(DB, "SELECT pg_current_wal_insert_lsn() || ' ' || pg_current_wal_flush_lsn()");
            let (insert, flush) = row.split_once(' ').unwrap();
            end = flush.parse().unwrap();
            Ok(insert == flush)
        })
        .unwrap();
        let start = from.as_u64() / 8192 * 8192;
        let mut bytes = Vec::new();
        for segment in start / SEGMENT..=(end.as_u64() - 1) / SEGMENT {
            let name = format!("pg_wal/00000001{:08X}{:08X}", segment / 256, segment % 256);
            let file = std::fs::read(self.cluster.data_dir().join(name)).unwrap();
            let first = start.saturating_sub(segment * SEGMENT) as usize;
            let last = (end.as_u64() - segment * SEGMENT).min(SEGMENT) as usize;
            bytes.extend_from_slice(&file[first..last]);
        }
        bytes
    }

    fn decoder(&self, catalog: Catalog, start: Lsn) -> (Decoder, tempfile::TempDir) {
        let version = PgVersion::from_num(self.cluster.major().number() * 10_000);
        let publications = Publications::Named(vec!["p".to_owned()]);
        let database = catalog.databases()[0].0;
        let options = Options::new(database, publications, start, Settings::new(version));
        let dir = tempfile::tempdir().unwrap();
        let spool = DirSpool::open(dir.path().join("spool")).unwrap();
        (Decoder::new(catalog, options, Box::new(spool)).unwrap(), dir)
    }
}

async fn session(cluster: &Cluster) -> Session {
    let info = ConnInfo::parse(&cluster.url(DB)).unwrap();
    connect(&info, "a test", &[]).await.unwrap()
}

/// A transaction: where its commit record begins and ends, and its messages without descriptions.
type Transaction = (Lsn, Lsn, Vec<Vec<u8>>);

/// Decodes everything, and looks for anchors on the way.
fn decode(decoder: &mut Decoder, wal: &[u8], mut anchors: Option<&mut Anchors>) -> Vec<Transaction> {
    let (mut all, mut current) = (Vec::new(), Vec::new());
    for piece in wal.chunks(4096) {
        let mut outputs = decoder.push(piece).unwrap();
        while let Some(output) = outputs.next().unwrap() {
            if matches!(output.data[0], b'R' | b'Y') {
                continue;
            }
            current.push(output.data.to_vec());
            if output.data[0] == b'C' {
                let lsn =
                    |at: usize| Lsn::new(u64::from_be_bytes(output.data[at..at + 8].try_into().unwrap()));
                all.push((lsn(2), lsn(10), std::mem::take(&mut current)));
            }
        }
        if let Some(anchors) = &mut anchors {
            anchors.look(decoder.place()).unwrap();
        }
    }
    all
}

#[test]
fn l2_the_same_comes_out_from_every_anchor() {
    for major in Major::under_test().into_iter().filter(|major| *major >= Major::V15) {
        let stage = Stage::start(major);
        let begins: Lsn = stage.cluster.one(DB, "SELECT pg_current_wal_flush_lsn()").parse().unwrap();
        stage.work();
        let from = stage.catalog.start();
        let wal = stage.wal(from);
        let dir = tempfile::tempdir().unwrap();
        let mut anchors = Anchors::open(dir.path(), DISTANCE).unwrap();
        let first = anchors.add(&stage.catalog, begins).unwrap();
        assert_eq!(first, stage.catalog.needs_from());
        let (mut decoder, _spool) = stage.decoder(stage.catalog.clone(), begins);
        let whole = decode(&mut decoder, &wal, Some(&mut anchors));
        assert!(whole.len() > 100, "{} transactions", whole.len());
        // What a process finds that begins anew.
        let anchors = Anchors::open(dir.path(), DISTANCE).unwrap();
        let mut used = std::collections::BTreeSet::new();
        for (_, confirmed, _) in whole.iter().step_by(5) {
            let at = anchors.restart_of(*confirmed).expect("the first anchor at least");
            if !used.insert(at) {
                continue;
            }
            let (mut decoder, _spool) = stage.decoder(anchors.load(at).unwrap(), *confirmed);
            let begin = (decoder.position().as_u64() - from.as_u64() / 8192 * 8192) as usize;
            let again = decode(&mut decoder, &wal[begin..], None);
            let expected: Vec<&Transaction> = whole.iter().filter(|(lsn, ..)| lsn >= confirmed).collect();
            assert_eq!(
                again.iter().collect::<Vec<_>>(),
                expected,
                "{major}: from {at}, confirmed {confirmed}"
            );
        }
        assert!(used.len() >= 3, "{major}: only {} anchors were used", used.len());
    }
}

#[test]
fn l2_no_anchor_goes_that_a_slot_names() {
    let stage = Stage::start(*Major::under_test().last().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let mut anchors = Anchors::open(dir.path(), DISTANCE).unwrap();
    let at = anchors.add(&stage.catalog, Lsn::new(1000)).unwrap();
    assert_eq!(anchors.restart_of(Lsn::new(999)), None, "what was before has not ended");
    assert_eq!(anchors.restart_of(Lsn::new(1000)), Some(at));
    anchors.remove_before(Lsn::new(u64::MAX)).unwrap();
    assert_eq!(anchors.least(), Some(at), "the last one stays");
    let error = base::with_causes(&anchors.load(Lsn::new(1)).err().unwrap());
    assert!(error.contains("no catalogs are kept of 0/1"), "{error}");
}
