//! Forms that come at any time, from one pass, beside the server's own slots.

#![allow(clippy::unwrap_used, reason = "tests, with functions of their own")]

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::{Lsn, PgVersion};
use bytes::{Bytes, BytesMut};
use catalog::{Catalog, Look};
use client::{ConnInfo, connect};
use output::{Decoder, Options, Publications, Streaming};
use proto::frame;
use proto::replication::WalsenderMessage;
use relay::{
    Anchors, Databases, Decoding, Form, FormHandle, FormKey, Received, Receiver, ReceiverSettings,
    SharedAnchors, Starting, Streams, TrackLimits,
};
use testkit::{Cluster, Major, wait_for};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use track::{Cursor, Limits, Next, TrackMemory};
use txn::DirSpool;
use types::Settings;
use wal_dir::{Readers, Writer};

const DB: &str = "postgres";
const PATIENCE: Duration = Duration::from_secs(60);

/// What a subscriber asks for, here and of the server.
struct Way {
    slot: &'static str,
    binary: bool,
    messages: bool,
    streaming: bool,
}

const WAYS: [Way; 4] = [
    Way { slot: "plain", binary: false, messages: false, streaming: false },
    Way { slot: "in_binary", binary: true, messages: false, streaming: false },
    Way { slot: "with_messages", binary: false, messages: true, streaming: false },
    Way { slot: "streamed", binary: false, messages: false, streaming: true },
];

struct Stage {
    cluster: Cluster,
    runtime: Runtime,
    dir: tempfile::TempDir,
    received: Arc<Received>,
    readers: Readers,
    catalog: Catalog,
    anchors: SharedAnchors,
    /// Where each slot of the server begins.
    confirmed: BTreeMap<&'static str, Lsn>,
    _stop: tokio_util::sync::DropGuard,
}

impl Stage {
    fn start(major: Major) -> Stage {
        let cluster = Cluster::builder(major).setting("wal_level", "logical").start().unwrap();
        let sql = "CREATE TABLE t (id serial PRIMARY KEY, v text); CREATE TABLE other (id serial PRIMARY KEY, n numeric); \
                   CREATE PUBLICATION p FOR ALL TABLES";
        cluster.sql(DB, sql).unwrap();
        let (runtime, dir) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
        let info = ConnInfo::parse(&cluster.url(DB)).unwrap();
        let opened = Writer::open(&dir.path().join("wal"), 16 << 20).unwrap();
        let readers = opened.0.readers();
        let received: Arc<Received> = Arc::default();
        let settings = ReceiverSettings {
            source: info.clone(),
            slot: "relay".to_owned(),
            application_name: "relay".to_owned(),
            status_interval: Duration::from_secs(1),
            timeout: Duration::from_secs(30),
            archive: None,
        };
        let mut receiver = Receiver::new(settings, opened, None, Arc::clone(&received));
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        runtime.spawn(async move { receiver.run(&stop).await });
        wait_for("the stream of WAL", PATIENCE, || Ok(received.written().is_valid())).unwrap();
        let catalog = runtime.block_on(async {
            let session = connect(&info, "look", &[]).await.unwrap();
            Catalog::look(&[session], &Look { redo: None, wait_max: PATIENCE }).await.unwrap()
        });
        let mut confirmed = BTreeMap::new();
        for way in &WAYS {
            let sql =
                format!("SELECT lsn FROM pg_create_logical_replication_slot('{}', 'pgoutput')", way.slot);
            confirmed.insert(way.slot, cluster.one(DB, &sql).parse().unwrap());
        }
        let mut anchors = Anchors::open(&dir.path().join("anchors"), 1 << 20).unwrap();
        let least = *confirmed.values().min().unwrap();
        anchors.add(&catalog, least).unwrap();
        let anchors = Arc::new(Mutex::new(anchors));
        Stage { cluster, runtime, dir, received, readers, catalog, anchors, confirmed, _stop: guard }
    }

    /// Starts the form of `way`, decoded from the anchor for what its slot has confirmed.
    /// The end of the WAL, once everything before has been received.
    fn end(&self) -> Lsn {
        let end = self.cluster.one(DB, "SELECT pg_current_wal_flush_lsn()").parse().unwrap();
        wait_for("the WAL", PATIENCE, || Ok(self.received.written() >= end)).unwrap();
        end
    }

    /// One reader enters that reads, and one that only has everything kept.
    fn add(&self, decoding: &Decoding, way: &Way) -> (FormHandle, [Cursor; 2]) {
        let starting = self.form(decoding, way, TrackMemory::new(1 << 30));
        let enter = |_| starting.handle().entrance.enter(self.confirmed[way.slot]).unwrap();
        let readers = [0, 1].map(enter);
        (starting.start().1, readers)
    }

    fn form(&self, decoding: &Decoding, way: &Way, memory: TrackMemory) -> Starting {
        let confirmed = self.confirmed[way.slot];
        let anchors = self.anchors.lock().unwrap();
        let catalog = anchors.load(anchors.restart_of(confirmed).unwrap()).unwrap();
        drop(anchors);
        let version = PgVersion::from_num(self.cluster.major().number() * 10_000);
        let database = self.catalog.databases()[0].0;
        let publications = Publications::Named(vec!["p".to_owned()]);
        let mut options = Options::new(database, publications, confirmed, Settings::new(version));
        options.proto_version = 2;
        options.binary = way.binary;
        options.messages = way.messages;
        options.streaming = if way.streaming { Streaming::On } else { Streaming::Off };
        options.work_mem_bytes = 64 << 10;
        options.read_by_many = true;
        let spool = DirSpool::open(self.dir.path().join("spool").join(way.slot)).unwrap();
        let decoder = Decoder::new(catalog, options, Box::new(spool)).unwrap();
        let limits =
            Limits { memory, file_bytes: 1 << 30, chapter_bytes: 64 << 10, dir: self.dir.path().to_owned() };
        decoding.add(decoder, (database, Arc::clone(&self.anchors)), confirmed, limits)
    }

    /// The server's messages of a slot, without descriptions.
    fn theirs(&self, way: &Way) -> Vec<Vec<u8>> {
        let sql = format!(
            "SELECT encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('{}', NULL, NULL, 'proto_version', '2', \
             'publication_names', 'p', 'binary', '{}', 'messages', '{}')",
            way.slot, way.binary, way.messages
        );
        let rows = self.cluster.sql(DB, &sql).unwrap();
        let unhex = |text: &str| -> Vec<u8> {
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
        };
        rows.iter()
            .map(|row| unhex(row[0].as_deref().unwrap()))
            .filter(|data| !matches!(data[0], b'R' | b'Y'))
            .collect()
    }
}

/// Everything that a subscriber gets that has confirmed `from`, without descriptions.
fn ours(form: &FormHandle, from: Lsn) -> Vec<Vec<u8>> {
    let mut cursor = form.entrance.enter(from).unwrap_or_else(|error| panic!("{error:?}"));
    let mut bytes = BytesMut::new();
    while let Some(more) = next(&mut cursor) {
        bytes.extend_from_slice(&more);
    }
    messages(bytes)
}

/// What comes next, if it is there.
fn next(cursor: &mut Cursor) -> Option<Bytes> {
    match cursor.next().unwrap() {
        Next::Frames(more) => Some(more.bytes),
        Next::Dry => None,
        Next::Evicted => panic!("evicted"),
    }
}

/// Reads everything that comes until it is told to stop, and throws it away.
fn read(mut cursor: Cursor, stop: &CancellationToken) {
    while !stop.is_cancelled() {
        while next(&mut cursor).is_some() {}
        // Between two looks whether there is more.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The messages in frames, without descriptions.
fn messages(mut bytes: BytesMut) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(frame) = frame::next(&mut bytes).unwrap() {
        let WalsenderMessage::XLogData { data, .. } = WalsenderMessage::decode(frame.body).unwrap() else {
            panic!("no message")
        };
        if !matches!(data[0], b'R' | b'Y') {
            all.push(data.to_vec());
        }
    }
    all
}

/// Rows of transactions that have committed.
fn rows(messages: &[Vec<u8>]) -> usize {
    let (mut all, mut current, mut streamed, mut block) = (0, 0, BTreeMap::new(), None);
    for data in messages {
        let xid = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().unwrap());
        match data[0] {
            b'S' => block = Some(xid(1)),
            b'E' => block = None,
            b'I' | b'U' | b'D' => match block {
                Some(top) => *streamed.entry(top).or_insert(0) += 1,
                None => current += 1,
            },
            b'C' => all += std::mem::take(&mut current),
            b'c' => all += streamed.remove(&xid(1)).unwrap_or(0),
            _ => {}
        }
    }
    all
}

/// Small and large transactions, until told to stop.
fn work(cluster: &Cluster, until: &CancellationToken) -> usize {
    let mut rounds = 0;
    while !until.is_cancelled() {
        for sql in [
            "INSERT INTO t (v) VALUES ('one'); UPDATE t SET v = v || 'x' WHERE id % 10 = 0",
            "INSERT INTO other (n) SELECT i / 7.0 FROM generate_series(1, 1500) i",
            "BEGIN; INSERT INTO t (v) SELECT repeat('a', 200) FROM generate_series(1, 1000); ROLLBACK",
            "SELECT pg_logical_emit_message(true, 'p', 'c'); DELETE FROM other WHERE id % 3 = 0",
            "CHECKPOINT",
        ] {
            cluster.sql(DB, sql).unwrap();
        }
        rounds += 1;
    }
    rounds
}

#[test]
fn l4_one_pass_serves_every_form() {
    let major = *Major::under_test().last().unwrap();
    let stage = Stage::start(major);
    let entered = stage.runtime.enter();
    let decoding = Decoding::start(stage.readers.clone());
    let (until, all) = (CancellationToken::new(), CancellationToken::new());
    let (forms, _kept, end): (Vec<FormHandle>, Vec<Cursor>, Lsn) = std::thread::scope(|scope| {
        let _ends = [until.clone().drop_guard(), all.clone().drop_guard()];
        let working = scope.spawn(|| work(&stage.cluster, &until));
        // Each comes later than the one before, and has to catch up.
        let forms = WAYS.iter().map(|way| {
            std::thread::sleep(Duration::from_millis(700));
            let (form, [reader, kept]) = stage.add(&decoding, way);
            scope.spawn(|| read(reader, &all));
            (form, kept)
        });
        let (forms, kept): (Vec<FormHandle>, Vec<Cursor>) = forms.unzip();
        // The load goes on for a while with all of them.
        std::thread::sleep(Duration::from_secs(1));
        until.cancel();
        assert!(working.join().unwrap() > 3);
        stage.cluster.sql(DB, "SELECT pg_logical_emit_message(true, 'the', 'end')").unwrap();
        let end = stage.end();
        for form in &forms {
            wait_for("a form to come to the end", PATIENCE, || {
                assert_eq!(form.end.why(), None);
                Ok(form.position.get() >= end)
            })
            .unwrap();
        }
        (forms, kept, end)
    });
    drop(entered);
    let mut counts = Vec::new();
    for (way, form) in WAYS.iter().zip(&forms) {
        let ours = ours(form, stage.confirmed[way.slot]);
        counts.push(rows(&ours));
        if way.streaming {
            assert!(ours.iter().any(|data| data[0] == b'S'), "something was streamed");
            continue;
        }
        let theirs = stage.theirs(way);
        let differ = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
        assert_eq!((ours.len(), differ), (theirs.len(), None), "{}", way.slot);
    }
    assert!(counts[0] > 1000 && counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    // A subscriber that comes back in the middle gets the rest, and nothing else.
    let whole = ours(&forms[0], stage.confirmed["plain"]);
    let ends: Vec<Lsn> = whole
        .iter()
        .filter(|data| data[0] == b'C')
        .map(|data| Lsn::new(u64::from_be_bytes(data[10..18].try_into().unwrap())))
        .collect();
    for confirmed in ends.iter().step_by(ends.len() / 10 + 1) {
        let rest = ours(&forms[0], *confirmed);
        assert_eq!(rest, whole[whole.len() - rest.len()..], "from {confirmed}");
        assert_eq!(
            rest.iter().filter(|data| data[0] == b'C').count(),
            ends.iter().filter(|end| *end > confirmed).count()
        );
    }
    // Anchors were made on the way, and the pass read WAL once for all.
    let (newest, oldest) = {
        let anchors = stage.anchors.lock().unwrap();
        (anchors.restart_of(end), anchors.least())
    };
    assert!(newest > oldest, "{newest:?} {oldest:?}");
    let joined = Instant::now();
    while decoding.figures().joined.load(Ordering::Relaxed) < 4 {
        assert!(joined.elapsed() < PATIENCE, "{:?}", decoding.figures());
        // Between two looks at a condition that has a bound.
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn l4_a_form_that_is_decoded_alone_waits_for_its_first_reader_and_for_no_other() {
    let major = *Major::under_test().last().unwrap();
    let stage = Stage::start(major);
    let entered = stage.runtime.enter();
    let decoding = Decoding::start(stage.readers.clone());
    let sql = "INSERT INTO t (v) SELECT repeat(i::text, 100) FROM generate_series(1, 300) i";
    (0..100).for_each(|_| drop(stage.cluster.sql(DB, sql).unwrap()));
    let end = stage.end();
    let way = &WAYS[0];
    let starting = stage.form(&decoding, way, TrackMemory::new(1 << 20));
    let enter = || starting.handle().entrance.enter(stage.confirmed[way.slot]).unwrap();
    let (mut first, mut last) = (enter(), enter());
    let form = starting.start().1;
    let mut before = Lsn::INVALID;
    wait_for("the form to stand", PATIENCE, || {
        // Only time can show that nothing is decoded.
        std::thread::sleep(Duration::from_millis(300));
        let at = form.position.get();
        Ok(at.is_valid() && std::mem::replace(&mut before, at) == at)
    })
    .unwrap();
    assert!(before < end, "both readers have all before them, and memory has no room for it");
    let mut read = BytesMut::new();
    wait_for("the first reader to have everything", PATIENCE, || {
        while let Some(more) = next(&mut first) {
            read.extend_from_slice(&more);
        }
        Ok(form.position.get() >= end && first.is_level())
    })
    .unwrap();
    drop(entered);
    let read = messages(read);
    assert_eq!(rows(&read), 30_000);
    // The other one has it from files.
    let mut late = BytesMut::new();
    while let Some(more) = next(&mut last) {
        late.extend_from_slice(&more);
    }
    assert_eq!(messages(late), read);
}

/// The databases of a relay beside `stage`, whose tracks have a megabyte of memory, and the form of
/// a subscriber with plain options.
fn databases(stage: &Stage, decoding: Decoding) -> (Databases, FormKey) {
    let info = ConnInfo::parse(&stage.cluster.url(DB)).unwrap();
    let server = (PgVersion::from_num(stage.cluster.major().number() * 10_000), 16 << 20);
    let limits = TrackLimits { memory_bytes: 1 << 20, file_bytes: 1 << 30 };
    let databases = Databases::open(&stage.dir.path().join("relay"), info, server, decoding, limits).unwrap();
    let database = stage.catalog.databases()[0].0;
    stage.runtime.block_on(databases.prepare(database, DB, &stage.readers)).unwrap();
    let form = Form {
        proto_version: 1,
        publications: vec!["p".to_owned()],
        binary: false,
        streaming: Streams::Off,
        two_phase: false,
        messages: false,
        origin_none: false,
    };
    (databases, FormKey { database, form, two_phase_at: None })
}

/// Of two subscribers with the same options, one is far behind and reads nothing.
#[test]
fn l4_who_is_level_does_not_wait_for_one_that_is_far_behind() {
    let major = *Major::under_test().last().unwrap();
    let stage = Stage::start(major);
    let entered = stage.runtime.enter();
    let (databases, key) = databases(&stage, Decoding::start(stage.readers.clone()));
    let begins: Lsn = stage.cluster.one(DB, "SELECT pg_current_wal_insert_lsn()").parse().unwrap();
    let restart = databases.restart_of(key.database, begins).unwrap();
    let (mut first, form) = databases.enter(&key, begins, (begins, restart)).unwrap();
    let level = |cursor: &mut Cursor, form: &FormHandle| {
        let end = stage.end();
        wait_for("a reader to be level", PATIENCE, || {
            while next(cursor).is_some() {}
            Ok(form.position.get() >= end && cursor.is_level())
        })
        .unwrap();
        end
    };
    level(&mut first, &form);
    // More than is decoded for others that are near, with places where an anchor can be.
    let sql = "INSERT INTO t (v) SELECT repeat(i::text, 100) FROM generate_series(1, 50000) i";
    for _ in 0..5 {
        stage.cluster.sql(DB, sql).unwrap();
        // The catalogs are taken at the first, and are sure at the second.
        (0..2).for_each(|_| drop(stage.cluster.sql(DB, "CHECKPOINT").unwrap()));
        level(&mut first, &form);
    }
    let end = level(&mut first, &form);
    let (late, behind) = databases.enter(&key, begins, (begins, restart)).unwrap();
    let near = databases.restart_of(key.database, end).unwrap();
    assert!(near > restart, "anchors were made on the way");
    let (mut again, same) = databases.enter(&key, end, (end, near)).unwrap();
    level(&mut again, &same);
    assert!(behind.position.get() < end, "nobody reads it");
    // The relay is started again, and the late one comes first.
    drop((first, again));
    databases.tidy(|_| Some(restart)).unwrap();
    assert!(form.end.why().is_some() && behind.end.why().is_none());
    let (mut again, own) = databases.enter(&key, end, (end, near)).unwrap();
    level(&mut again, &own);
    assert!(behind.position.get() < end, "nobody reads it");
    drop((late, entered));
}

#[test]
fn l4_a_form_ends_with_its_last_reader_also_while_it_is_decoded_alone() {
    let major = *Major::under_test().last().unwrap();
    let stage = Stage::start(major);
    let entered = stage.runtime.enter();
    let (databases, key) = databases(&stage, Decoding::start(stage.readers.clone()));
    let begins: Lsn = stage.cluster.one(DB, "SELECT pg_current_wal_insert_lsn()").parse().unwrap();
    // More than the memory holds, so that the form stands before it has joined the pass.
    let sql = "INSERT INTO t (v) SELECT repeat(i::text, 100) FROM generate_series(1, 30000) i";
    stage.cluster.sql(DB, sql).unwrap();
    stage.end();
    let restart = databases.restart_of(key.database, begins).unwrap();
    let (cursor, handle) = databases.enter(&key, begins, (begins, restart)).unwrap();
    databases.tidy(|_| Some(restart)).unwrap();
    assert_eq!(handle.end.why(), None, "it has a reader");
    drop(cursor);
    databases.tidy(|_| Some(restart)).unwrap();
    assert!(handle.end.why().is_some(), "it would be decoded for nobody, for ever");
    drop(entered);
}
