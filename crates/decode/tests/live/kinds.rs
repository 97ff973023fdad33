//! Comparison with pg_walinspect: the kind of each record, and the numbers in its description.

use std::collections::BTreeMap;

use base::{Lsn, Xid};
use decode::{Decoded, What, decode};
use testkit::{Cluster, Major};

use crate::server::Stretch;

/// What both say of a record.
#[derive(Debug, PartialEq, Default)]
struct Facts {
    kind: String,
    offsets: Vec<u16>,
    flags: Option<u8>,
    tuples: Option<u16>,
    subxacts: Vec<Xid>,
    invalidations: usize,
    running: Option<[Xid; 3]>,
    redo: Option<Lsn>,
}

fn ours(decoded: &Decoded<'_>) -> Facts {
    let mut facts = Facts { kind: decoded.name.to_owned(), ..Facts::default() };
    match &decoded.what {
        What::Insert(insert) => {
            facts.offsets = vec![insert.place.offset];
            facts.flags = Some(insert.flags);
        }
        What::MultiInsert(insert) => {
            facts.tuples = Some(insert.count());
            facts.flags = Some(insert.flags);
            assert_eq!(insert.rows().count(), usize::from(insert.count()));
        }
        What::Update(update) => {
            facts.offsets = vec![update.old_place.offset, update.place.offset];
            facts.flags = Some(update.flags);
        }
        What::Delete(delete) => {
            facts.offsets = vec![delete.place.offset];
            facts.flags = Some(delete.flags);
        }
        What::Confirm(confirm) => facts.offsets = vec![confirm.place.offset],
        What::InPlace(in_place) => {
            facts.offsets = vec![in_place.place.offset];
            facts.invalidations = in_place.invalidations.len();
        }
        What::Commit(ended) | What::Abort(ended) => {
            facts.subxacts = ended.subxacts.iter().collect();
            facts.invalidations = ended.invalidations.len();
        }
        What::Prepare(prepared) => {
            facts.subxacts = prepared.subxacts.iter().collect();
            facts.invalidations = prepared.invalidations.len();
        }
        What::Invalidations(invalidations) | What::CommittedInvalidations { invalidations, .. } => {
            facts.invalidations = invalidations.len();
        }
        What::RunningXacts(running) => {
            facts.running = Some([running.next, running.latest_completed, running.oldest]);
        }
        What::Checkpoint(checkpoint) => facts.redo = Some(checkpoint.redo),
        _ => {}
    }
    facts
}

/// Parses the record's type and description. The description's form differs between majors, so only
/// words and numbers count.
fn theirs(kind: &str, description: &str) -> Facts {
    let kind = kind.strip_suffix("+INIT").unwrap_or(kind);
    let words: Vec<&str> =
        description.split([' ', ',', ';', ':', '[', ']']).filter(|word| !word.is_empty()).collect();
    let after = |name: &str| words.iter().position(|word| *word == name).map(|at| &words[at + 1..]);
    let offsets = words.windows(2).filter(|pair| ["off", "old_off", "new_off"].contains(&pair[0]));
    let mut facts = Facts { kind: kind.to_owned(), ..Facts::default() };
    let number = |text: &str| text.parse::<u32>().unwrap_or_else(|_| panic!("{description}"));
    let flags = || {
        let word = after("flags").unwrap_or_else(|| panic!("{description}"))[0];
        Some(u8::from_str_radix(word.trim_start_matches("0x"), 16).unwrap())
    };
    match kind {
        "INSERT" | "UPDATE" | "HOT_UPDATE" | "DELETE" | "HEAP_CONFIRM" | "INPLACE" => {
            facts.offsets = offsets.map(|pair| pair[1].parse().unwrap()).collect();
            if !["HEAP_CONFIRM", "INPLACE"].contains(&kind) {
                facts.flags = flags();
            }
        }
        "MULTI_INSERT" => {
            let count = after("ntuples").map_or(words[0], |words| words[0]);
            facts.tuples = Some(number(count) as u16);
            facts.flags = flags();
        }
        "RUNNING_XACTS" => {
            let xid = |name| Xid(number(after(name).unwrap()[0]));
            facts.running = Some([xid("nextXid"), xid("latestCompletedXid"), xid("oldestRunningXid")]);
        }
        "CHECKPOINT_ONLINE" | "CHECKPOINT_SHUTDOWN" => facts.redo = after("redo").unwrap()[0].parse().ok(),
        _ => {}
    }
    if kind == "INPLACE" || kind.contains("COMMIT") || kind.contains("INVAL") || kind.contains("PREPARE") {
        let messages = after("inval").unwrap_or_default();
        let known = ["catcache", "catalog", "relcache", "smgr", "relmap", "snapshot", "relsync"];
        facts.invalidations = messages.iter().filter(|word| known.contains(word)).count();
    }
    if ["COMMIT", "COMMIT_PREPARED", "ABORT", "ABORT_PREPARED", "PREPARE"].contains(&kind) {
        let subxacts = after("subxacts").unwrap_or_default();
        facts.subxacts = subxacts.iter().map_while(|word| word.parse().ok().map(Xid)).collect();
    }
    facts
}

/// The work must have made these kinds, or the comparison shows nothing.
const SEEN: [&str; 23] = [
    "INSERT",
    "MULTI_INSERT",
    "UPDATE",
    "HOT_UPDATE",
    "DELETE",
    "TRUNCATE",
    "INPLACE",
    "NEW_CID",
    "COMMIT",
    "ABORT",
    "PREPARE",
    "COMMIT_PREPARED",
    "INVALIDATION",
    "RUNNING_XACTS",
    "MESSAGE",
    "CREATE",
    "FPI",
    "CHECKPOINT_ONLINE",
    "SWITCH",
    "LOCK",
    "VISIBLE",
    "LOG",
    "index",
];

#[test]
fn every_record_is_of_the_kind_that_the_server_says() {
    for major in Major::under_test().into_iter().filter(|major| *major > Major::V14) {
        let stretch = Stretch::of_work(Cluster::builder(major));
        let sql = format!(
            "SELECT start_lsn, record_type, description FROM pg_get_wal_records_info('{}', '{}')",
            stretch.from, stretch.to
        );
        let rows = stretch.cluster.sql("postgres", &sql).unwrap();
        let theirs: BTreeMap<Lsn, (String, String)> = rows
            .into_iter()
            .map(|row| {
                let text = |column: usize| row[column].clone().unwrap_or_default();
                (text(0).parse().unwrap(), (text(1), text(2)))
            })
            .collect();
        let mut seen = BTreeMap::<String, usize>::new();
        let mut compared = 0;
        stretch.read(usize::MAX, |record| {
            let decoded = decode(record).unwrap();
            *seen.entry(decoded.name.to_owned()).or_default() += 1;
            let ours = ours(&decoded);
            // Up to 15, the server does not return the last record.
            let Some((kind, description)) = theirs.get(&record.lsn()) else { return };
            if decoded.name != "index" {
                assert_eq!(ours, self::theirs(kind, description), "{major}: {} {description}", record.lsn());
                compared += 1;
            }
        });
        assert!(compared + 1 >= theirs.len() - seen["index"] && compared > 1000, "{major}: {compared}");
        for kind in SEEN {
            assert!(seen.contains_key(kind), "{major}: no {kind}");
        }
    }
}
