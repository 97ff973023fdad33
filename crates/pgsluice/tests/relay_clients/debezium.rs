//! Debezium's embedded engine with the relay as its server: a snapshot, a stream, and both again
//! after a restart.
//!
//! Maven fetches the engine below `target/`, some 60 MB, and `debezium/Follow.java` runs it. That
//! wants Maven and a JDK of 17 or later, which `scripts/setup` does not install: on Debian,
//! `apt-get install default-jdk-headless maven`.
//!
//! Debezium looks at `pg_replication_slots` over JDBC, so the relay must show its own slots there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testkit::{Major, Sluice, cache_dir, wait_for};

use crate::stage::{BOUND, End, PASSWORD, Stage, USER, program};

const DB: &str = "debezium";
const TABLES: &str = "
    CREATE TABLE t (id int PRIMARY KEY, v text, large text);
    ALTER TABLE t ALTER large SET STORAGE EXTERNAL;
    ALTER TABLE t REPLICA IDENTITY FULL;
    INSERT INTO t SELECT n, 'before ' || n, repeat(md5(n::text), 100) FROM generate_series(1, 500) n;
    CREATE PUBLICATION p FOR TABLE t";

/// What Debezium gives in place of a large value that was not sent.
const UNCHANGED: &str = "__debezium_unavailable_value";

/// The engine's jars and the compiled program, which are kept.
fn classes() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/relay_clients/debezium");
    let pom = std::fs::read_to_string(source.join("pom.xml")).unwrap();
    let (_, rest) = pom.split_once("<debezium.version>").unwrap();
    let version = rest.split_once('<').unwrap().0;
    let kept = cache_dir().unwrap().join(format!("debezium-{version}"));
    if !kept.join("jars").is_dir() {
        std::fs::create_dir_all(&kept).unwrap();
        let work = tempfile::Builder::new().prefix("fetch-").tempdir_in(&kept).unwrap();
        let mut maven = Command::new("mvn");
        maven.args(["--batch-mode", "--quiet", "dependency:copy-dependencies", "-DincludeScope=runtime"]);
        maven.arg(format!("-DoutputDirectory={}/jars", work.path().display()));
        call(maven.arg("--file").arg(source.join("pom.xml")));
        std::fs::rename(work.path().join("jars"), kept.join("jars")).unwrap();
    }
    let mut javac = Command::new("javac");
    javac.arg("-cp").arg(kept.join("jars/*")).arg("-d").arg(kept.join("classes"));
    call(javac.arg(source.join("Follow.java")));
    kept
}

fn call(command: &mut Command) {
    let output = command.output();
    let output = output.unwrap_or_else(|error| {
        panic!("{command:?}: {error}; `apt-get install default-jdk-headless maven` brings it")
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
}

/// The engine's settings.
fn properties(stage: &Stage, dir: &Path) -> String {
    let port = stage.port(End::Relay);
    let offsets = dir.join("offsets");
    format!(
        "name=follow
connector.class=io.debezium.connector.postgresql.PostgresConnector
offset.storage=org.apache.kafka.connect.storage.FileOffsetBackingStore
offset.storage.file.filename={}
offset.flush.interval.ms=100
database.hostname=127.0.0.1
database.port={port}
database.user={USER}
database.password={PASSWORD}
database.dbname={DB}
topic.prefix=relay
plugin.name=pgoutput
slot.name=debezium
publication.name=p
publication.autocreate.mode=disabled
snapshot.mode=initial
converter.schemas.enable=false
",
        offsets.display()
    )
}

/// What events make of a table, and how many of each kind came.
#[derive(Default)]
struct Table {
    rows: BTreeMap<i64, Value>,
    counts: BTreeMap<String, u64>,
}

impl Table {
    fn take(&mut self, event: &Value) {
        let kind = event["op"].as_str().unwrap().to_owned();
        let id = |row: &Value| row["id"].as_i64().unwrap();
        if event["before"].is_object() {
            let before = self.rows.remove(&id(&event["before"]));
            assert_eq!(before.as_ref(), Some(&event["before"]), "{event}: the row before");
        }
        if event["after"].is_object() {
            let mut after = event["after"].clone();
            // A large value that the UPDATE did not change is not in the new row.
            for (name, value) in after.as_object_mut().unwrap() {
                if *value == UNCHANGED {
                    *value = event["before"][name].clone();
                }
            }
            let known = self.rows.insert(id(&after), after);
            assert_eq!(known, None, "{event}: the row was there");
        }
        *self.counts.entry(kind).or_default() += 1;
    }
}

/// The events of a run so far. A line may still be on its way, and an event may be a tombstone.
fn events(engine: &Sluice) -> Vec<Value> {
    let text = engine.stdout();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let events = whole.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["op"].is_string()).collect()
}

fn rows_of(stage: &Stage) -> BTreeMap<i64, Value> {
    let rows = stage.publisher.sql(DB, "SELECT id, row_to_json(t) FROM t").unwrap();
    let row = |row: &Vec<Option<String>>| {
        let [id, json] = [0, 1].map(|at| row[at].clone().unwrap());
        (id.parse().unwrap(), serde_json::from_str(&json).unwrap())
    };
    rows.iter().map(row).collect()
}

/// A run of the engine that ends level.
struct Run<'a> {
    stage: &'a Stage,
    engine: Sluice,
    taken: usize,
}

impl Run<'_> {
    /// Waits for the row that was written last.
    fn level(&mut self, table: &mut Table) {
        let insert = "INSERT INTO t VALUES ((SELECT max(id) + 1 FROM t), 'the end') RETURNING id";
        let end: i64 = self.stage.publisher.one(DB, insert).parse().unwrap();
        wait_for("the last row", BOUND, || {
            assert!(self.engine.is_running(), "{}\n{}", self.engine.stderr(), self.stage.relay_log());
            let events = events(&self.engine);
            events.iter().skip(self.taken).for_each(|event| table.take(event));
            self.taken = events.len();
            Ok(table.rows.contains_key(&end))
        })
        .unwrap_or_else(|error| panic!("{error}: {}\n{}", self.engine.stderr(), self.stage.relay_log()));
        assert_eq!(table.rows, rows_of(self.stage));
    }
}

#[test]
#[ignore = "fetches 60 MB with Maven: -- --ignored debezium"]
fn debezium_takes_a_snapshot_and_follows() {
    let classes = classes();
    Major::each_of(&Major::in_turn(), 1, |major| {
        let (stage, dir) = (Stage::of(major), tempfile::tempdir().unwrap());
        stage.database(DB, TABLES);
        let file = dir.path().join("follow.properties");
        std::fs::write(&file, properties(&stage, dir.path())).unwrap();
        let start = || {
            let mut java = program("java".as_ref());
            let path = [classes.join("classes"), classes.join("jars/*")];
            java.arg("-cp").arg(std::env::join_paths(path).unwrap()).arg("Follow").arg(&file);
            Run { stage: &stage, engine: Sluice::start(java).unwrap(), taken: 0 }
        };
        let mut table = Table::default();
        let mut run = start();
        // What is written during the snapshot is in it, or comes behind it.
        run.level(&mut table);
        stage
            .publisher
            .sql(DB, "UPDATE t SET v = v || '!' WHERE id <= 50; DELETE FROM t WHERE id BETWEEN 51 AND 70")
            .unwrap();
        stage.publisher.sql(DB, "INSERT INTO t SELECT n, 'more' FROM generate_series(1001, 1030) n").unwrap();
        run.level(&mut table);
        let _ = run.engine.terminate(BOUND).unwrap();
        stage
            .publisher
            .sql(DB, "UPDATE t SET large = 'small' WHERE id = 100; DELETE FROM t WHERE id = 1")
            .unwrap();
        run = start();
        run.level(&mut table);
        let counts: Vec<(&str, u64)> = table.counts.iter().map(|(kind, count)| (&**kind, *count)).collect();
        let read = table.counts["r"];
        assert!((500..=501).contains(&read), "{major}: {counts:?}");
        assert_eq!(counts, [("c", 533 - read), ("d", 21), ("r", read), ("u", 51)], "{major}");
        assert_eq!(stage.slots_of_the_relay(DB), "", "{major}: the publisher has no logical slot");
        let _ = run.engine.terminate(BOUND).unwrap();
    });
}
