//! WAL of real servers of every major, record by record. The output is what was done on the server,
//! at any memory limit.
//!
//! `xtask/src/corpus/wal.rs` has the work. The catalogs are not here, so tables are recognized by
//! the number of columns in their rows. Their files keep the numbers of the relations that they
//! were made for.

#[path = "../../../wal/tests/damage/recorded.rs"]
#[allow(dead_code, reason = "the tests of `wal` use the rest")]
mod corpus;

use std::collections::HashMap;

use base::{Lsn, Oid, RelFileLocator, Xid};
use corpus::{Recorded, cases, damage, random, recorded};
use decode::{NewTuple, RawTuple, What, decode};
use rand::Rng;
use txn::reorder::{Boundary, Chunks, Options, RawAction, ReorderBuffer, ReorderedEvent, Resolve, Target};
use types::{Align, Attribute, Generated, HeapTuple, Value, Varlena};
use wal::Record;

use crate::spools::{Files, MemorySpool};

/// The tables by the number of their first files, which is the number of the relation.
#[derive(Clone, Default)]
struct Tables {
    database: Oid,
    names: HashMap<u32, Target<&'static str>>,
}

impl Tables {
    fn find(recording: &Recorded) -> Tables {
        let mut tables = Tables::default();
        recording.each(|record| {
            let (locator, is_toast, attributes) = match decode(record).unwrap().what {
                What::Insert(insert) if insert.is_logical => {
                    let NewTuple::Whole(tuple) = insert.tuple else { panic!("a row is whole") };
                    (insert.place.locator, insert.is_toast, tuple.attributes())
                }
                _ => return,
            };
            let name = match (is_toast, attributes) {
                (true, _) => Target::Toast,
                (false, 2) => Target::Relation("whole"),
                (false, 3) => Target::Relation("t"),
                other => panic!("{other:?} is no table of ours"),
            };
            tables.database = locator.database;
            tables.names.insert(locator.relfilenumber, name);
        });
        assert_eq!(tables.names.len(), 3, "two tables and a TOAST relation");
        tables
    }
}

impl Resolve<&'static str> for Tables {
    fn files(&mut self, _xid: Xid, locator: RelFileLocator) -> Target<&'static str> {
        self.names.get(&locator.relfilenumber).cloned().unwrap_or(Target::Unwanted)
    }

    fn relation(&mut self, _xid: Xid, relation: Oid) -> Target<&'static str> {
        self.names.get(&relation.0).cloned().unwrap_or(Target::Unwanted)
    }
}

fn text(tuple: &RawTuple<'_>, chunks: &Chunks, table: &str) -> String {
    let column = |len, align| Attribute {
        type_oid: Oid(0),
        len,
        align,
        dropped: false,
        generated: Generated::No,
        missing: None,
    };
    let varlena = column(-1, Align::Int);
    let columns = match table {
        "t" => vec![column(4, Align::Int), varlena.clone(), varlena],
        _ => vec![column(8, Align::Double), varlena],
    };
    let mut values = Vec::new();
    let tuple = HeapTuple::new(tuple.infomask2, tuple.infomask, tuple.hoff, tuple.bytes).unwrap();
    tuple.deform(&columns, &mut values).unwrap();
    let value = |value: &Value<'_>| match value {
        Value::Null => "null".to_owned(),
        Value::Fixed(bytes) => bytes[0].to_string(),
        Value::Varlena(Varlena::External(pointer)) => match chunks.value(pointer).unwrap() {
            None => "unchanged".to_owned(),
            Some(value) => words(&value.payload().unwrap()),
        },
        Value::Varlena(value) => words(&value.payload().unwrap()),
    };
    values.iter().map(value).collect::<Vec<_>>().join(" ")
}

/// Long text, shortened to its length and its first byte.
fn words(bytes: &[u8]) -> String {
    match bytes {
        [first, .., last] if bytes.len() > 100 => {
            assert!(bytes.iter().all(|byte| byte.is_ascii_lowercase()));
            format!("{}..{}*{}", char::from(*first), char::from(*last), bytes.len())
        }
        _ => format!("'{}'", String::from_utf8_lossy(bytes)),
    }
}

fn line(event: &ReorderedEvent<'_, &'static str>) -> Option<String> {
    Some(match event {
        ReorderedEvent::Boundary(Boundary::Begin(_)) => "BEGIN".to_owned(),
        ReorderedEvent::Boundary(Boundary::Commit(commit)) => match commit.origin {
            None => "COMMIT".to_owned(),
            Some(origin) => format!("COMMIT of {} {} at {}", origin.id, origin.lsn, commit.commit_time.0),
        },
        ReorderedEvent::Boundary(Boundary::BeginPrepare(_)) => "BEGIN PREPARE".to_owned(),
        ReorderedEvent::Boundary(Boundary::Prepare(prepared)) => {
            format!("PREPARE {}", String::from_utf8_lossy(&prepared.gid))
        }
        ReorderedEvent::Boundary(Boundary::CommitPrepared { gid, .. }) => {
            format!("COMMIT PREPARED {}", String::from_utf8_lossy(gid))
        }
        ReorderedEvent::Boundary(Boundary::RollbackPrepared { prepared, .. }) => {
            format!("ROLLBACK PREPARED {}", String::from_utf8_lossy(&prepared.gid))
        }
        ReorderedEvent::Boundary(other) => panic!("{other:?} without streaming"),
        ReorderedEvent::Row(row) => {
            let text = |tuple| text(tuple, row.chunks, row.relation);
            match &row.action {
                RawAction::Insert(new) => format!("INSERT {} {}", row.relation, text(new)),
                RawAction::Update { old: None, new } => format!("UPDATE {} {}", row.relation, text(new)),
                RawAction::Update { old: Some(old), new } => {
                    format!("UPDATE {} {} to {}", row.relation, text(&old.tuple), text(new))
                }
                RawAction::Delete(old) => format!("DELETE {} {}", row.relation, text(&old.unwrap().tuple)),
            }
        }
        ReorderedEvent::Truncate(truncate) => {
            let (cascade, restart) = (truncate.cascade, truncate.restart_identity);
            format!(
                "TRUNCATE {} cascade {cascade} restart {restart}",
                truncate.relations.iter().map(|name| **name).collect::<Vec<_>>().join(" ")
            )
        }
        // The messages that end and begin the recording.
        ReorderedEvent::Message(message) if message.prefix != b"ours" => return None,
        ReorderedEvent::Message(message) => {
            format!("message {} {}", message.transactional, words(message.content))
        }
    })
}

fn lines(recording: &Recorded, tables: &Tables, options: Options) -> Vec<String> {
    let mut tables = tables.clone();
    let files = Files::default();
    let mut buffer = ReorderBuffer::new(options, Box::new(MemorySpool::new(files.clone())));
    let mut lines = Vec::new();
    recording.each(|record| {
        buffer.record((record.lsn(), record.end()), &decode(record).unwrap(), &mut tables).unwrap();
        while let Some(event) = buffer.next().unwrap() {
            lines.extend(line(&event));
        }
    });
    assert_eq!((buffer.memory_bytes(), files.count()), (0, 0), "{}", recording.name);
    // Removes transactions that have only other messages.
    let mut kept: Vec<String> = Vec::new();
    for line in lines {
        if line == "COMMIT" && kept.last().is_some_and(|last| last == "BEGIN") {
            kept.pop();
        } else {
            kept.push(line);
        }
    }
    kept
}

fn expected(two_phase: bool) -> Vec<String> {
    let copied: Vec<String> = (100..=140).map(|id| format!("INSERT t {id} null null")).collect();
    let (prepared, ended) = match two_phase {
        true => (
            "BEGIN PREPARE; INSERT t 30 'prepared' null; PREPARE one; \
             BEGIN PREPARE; INSERT t 31 'prepared' null; PREPARE two",
            "COMMIT PREPARED one; ROLLBACK PREPARED two",
        ),
        false => ("", "BEGIN; INSERT t 30 'prepared' null; COMMIT"),
    };
    let all = [
        "BEGIN; INSERT t 1 'one' b..b*2500; INSERT t 2 null ''; INSERT t 3 'three' null; COMMIT",
        "BEGIN; UPDATE t 1 'two' unchanged; UPDATE t 2 null null to 20 null ''; DELETE t 3 null null; COMMIT",
        "BEGIN; INSERT whole 1 'x'; INSERT whole 1 'x'; UPDATE whole 1 'x' to 2 'x'; UPDATE whole 1 'x' to 2 'x'; \
         DELETE whole 2 'x'; DELETE whole 2 'x'; COMMIT",
        &format!("BEGIN; {}; COMMIT", copied.join("; ")),
        "BEGIN; UPDATE t 1 'upserted' unchanged; COMMIT",
        "BEGIN; INSERT t 5 'speculative' null; COMMIT",
        "BEGIN; INSERT t 10 null null; DELETE t 10 null null; COMMIT",
        "message false ''",
        "BEGIN; message true i..e*18000; COMMIT",
        prepared,
        ended,
        // The seconds from 2000 to 2020 are twenty years with five leap days.
        &format!("BEGIN; INSERT whole 9 'from elsewhere'; COMMIT of 1 0/AB at {}", 7305_i64 * 86_400_000_000),
        "BEGIN; TRUNCATE t whole cascade true restart true; COMMIT",
    ];
    all.iter().filter(|part| !part.is_empty()).flat_map(|part| part.split("; ")).map(str::to_owned).collect()
}

#[test]
fn recorded_wal_says_what_was_done_on_every_major() {
    for recording in recorded() {
        let tables = Tables::find(&recording);
        for limit in [0, 3_000, usize::MAX] {
            for two_phase in [false, true] {
                let options = Options {
                    work_mem_bytes: limit,
                    two_phase_at: two_phase.then_some(Lsn::new(1)),
                    ..Options::new(tables.database, Lsn::INVALID)
                };
                let of = format!("{}, limit {limit}, two-phase {two_phase}", recording.name);
                assert_eq!(lines(&recording, &tables, options), expected(two_phase), "{of}");
            }
        }
    }
}

#[test]
fn with_local_changes_only_nothing_of_an_origin_comes_out() {
    for recording in recorded() {
        let tables = Tables::find(&recording);
        let options = Options { local_only: true, ..Options::new(tables.database, Lsn::INVALID) };
        let without: Vec<String> = lines(&recording, &tables, options);
        let mut all = expected(false);
        let at = all.iter().position(|line| line.contains("elsewhere")).unwrap();
        all.drain(at - 1..=at + 1);
        assert_eq!(without, all, "{}", recording.name);
    }
}

#[test]
fn messages_and_prepared_transactions_of_other_databases_do_not_count() {
    let recording = recorded().remove(0);
    let tables = Tables::find(&recording);
    let elsewhere = Options { two_phase_at: Some(Lsn::new(1)), ..Options::new(Oid(1), Lsn::INVALID) };
    let nothing: Vec<String> = lines(&recording, &tables, elsewhere);
    assert_eq!(nothing, [] as [&str; 0]);
    let silent = Options { messages: false, ..Options::new(tables.database, Lsn::INVALID) };
    assert!(!lines(&recording, &tables, silent).iter().any(|line| line.starts_with("message")));
}

/// Records that are wrong under a right checksum: other transactions, other subtransactions, chunks
/// of nothing, rows cut short. The result is an error or other rows, and never a panic.
#[test]
fn damaged_records_are_errors_or_what_they_say() {
    let (mut errors, mut whole) = (0, 0);
    for recording in recorded() {
        let tables = Tables::find(&recording);
        let layout = recording.each(|record| record.layout())[0];
        let records = recording.records();
        for seed in 0..cases(60) {
            let mut random = random(seed);
            let options = Options {
                work_mem_bytes: random.random_range(0..4_000),
                streaming: random.random(),
                two_phase_at: random.random::<bool>().then_some(Lsn::new(1)),
                ..Options::new(tables.database, Lsn::INVALID)
            };
            let chosen: Vec<usize> =
                (0..random.random_range(1..8)).map(|_| random.random_range(0..records.len())).collect();
            let files = Files::default();
            let mut tables = tables.clone();
            let mut feed = || {
                let spool = Box::new(MemorySpool::new(files.clone()));
                let mut buffer = ReorderBuffer::new(options.clone(), spool);
                for (index, record) in records.iter().enumerate() {
                    let bytes = match chosen.contains(&index) {
                        true => damage(&record.bytes, &mut random),
                        false => record.bytes.clone(),
                    };
                    let Ok(record) = Record::read(&bytes, record.lsn, record.end, layout) else { continue };
                    let Ok(decoded) = decode(&record) else { continue };
                    buffer.record((record.lsn(), record.end()), &decoded, &mut tables)?;
                    while buffer.next()?.is_some() {}
                }
                Ok::<(), txn::reorder::Error>(())
            };
            let fed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut feed));
            match fed.unwrap_or_else(|_| panic!("{}: seed {seed}", recording.name)) {
                Ok(()) => whole += 1,
                Err(error) => {
                    assert!(!error.is_disk(), "{}: seed {seed}: {error}", recording.name);
                    errors += 1;
                }
            }
        }
    }
    assert!(errors > 5 && whole > 100, "{errors} errors, {whole} without");
}
