//! The same messages as the server's, for many kinds of work and options.

use std::collections::HashSet;

use output::{OnRefused, OriginFilter, Pass, Publications, Step, Streaming};
use testkit::Major;

use crate::compare::{assert_same, lines, type_names, unstreamed};
use crate::stage::{DB, Message, Stage, decode};
use crate::themes;

/// The options of both sides.
struct Way {
    name: &'static str,
    slot: usize,
    publications: &'static [&'static str],
    proto_version: u32,
    binary: bool,
    messages: bool,
    streaming: Streaming,
    origin_none: bool,
    since: u32,
}

const WAY: Way = Way {
    name: "",
    slot: 0,
    publications: &["p_main"],
    proto_version: 1,
    binary: false,
    messages: false,
    streaming: Streaming::Off,
    origin_none: false,
    since: 15,
};

const WAYS: &[Way] = &[
    Way { name: "text", publications: &["p_main", "p_root"], ..WAY },
    Way {
        name: "binary",
        publications: &["p_main", "p_leaf", "p_schema"],
        binary: true,
        messages: true,
        ..WAY
    },
    Way { name: "all tables", publications: &["p_all"], messages: true, ..WAY },
    Way { name: "a filter and a list over partitions", publications: &["p_filteredroot"], ..WAY },
    Way {
        name: "partitions by themselves and as their root",
        publications: &["p_leaf", "p_root", "p_schema"],
        ..WAY
    },
    Way { name: "insertions", publications: &["p_insert"], ..WAY },
    Way { name: "truncations", publications: &["p_truncate", "p_rootfilter"], ..WAY },
    Way { name: "insertions and truncations", publications: &["p_truncate", "p_insert"], ..WAY },
    Way {
        name: "streaming",
        publications: &["p_main", "p_root"],
        proto_version: 2,
        messages: true,
        streaming: Streaming::On,
        ..WAY
    },
    Way { name: "two phases", slot: 1, publications: &["p_all"], proto_version: 3, messages: true, ..WAY },
    Way {
        name: "two phases, streaming, binary",
        slot: 1,
        publications: &["p_main", "p_leaf"],
        proto_version: 3,
        binary: true,
        streaming: Streaming::On,
        ..WAY
    },
    Way {
        name: "in parallel, without other origins",
        publications: &["p_all"],
        proto_version: 4,
        messages: true,
        streaming: Streaming::Parallel,
        origin_none: true,
        since: 16,
        ..WAY
    },
    Way { name: "generated columns", publications: &["p_generated"], since: 18, ..WAY },
    Way { name: "a publication that is not there", publications: &["p_nowhere", "p_main"], since: 18, ..WAY },
];

impl Way {
    fn options_of(&self, stage: &Stage) -> output::Options {
        let mut options = stage.options(self.slot, self.publications);
        options.proto_version = self.proto_version;
        options.binary = self.binary;
        options.messages = self.messages;
        options.streaming = self.streaming;
        options.origin = if self.origin_none { OriginFilter::None } else { OriginFilter::Any };
        options.work_mem_bytes = if self.streaming == Streaming::Off { 64 << 20 } else { 64 << 10 };
        options
    }

    fn ours(&self, stage: &Stage, wal: &[u8]) -> Vec<Message> {
        stage.ours(self.options_of(stage), wal, usize::MAX)
    }

    fn theirs(&self, stage: &Stage) -> Vec<Message> {
        let mut options = format!(
            "'proto_version', '{}', 'publication_names', '{}', 'binary', '{}', 'messages', '{}'",
            self.proto_version,
            self.publications.join(","),
            self.binary,
            self.messages
        );
        match self.streaming {
            Streaming::Off => {}
            Streaming::On => options.push_str(", 'streaming', 'on'"),
            Streaming::Parallel => options.push_str(", 'streaming', 'parallel'"),
        }
        if self.origin_none {
            options.push_str(", 'origin', 'none'");
        }
        let work_mem = if self.streaming == Streaming::Off { "64MB" } else { "64kB" };
        stage.theirs(self.slot, &options, work_mem)
    }
}

fn count(messages: &[Message], kind: u8) -> usize {
    messages.iter().filter(|message| message.data[0] == kind).count()
}

fn work(stage: &Stage) {
    let talk = stage.talk();
    for theme in [
        themes::ROWS,
        themes::FILTERS,
        themes::PARTITIONS,
        themes::DEFINITIONS,
        themes::TRANSACTIONS,
        themes::TWO_PHASES,
    ] {
        talk.all(theme);
    }
    let talks = [talk, stage.talk()];
    for (session, statement) in themes::LARGE {
        talks[*session].sql(statement);
    }
}

fn stage(major: Major) -> Stage {
    let mut prepare = themes::PREPARE.to_vec();
    if major.number() >= 18 {
        prepare
            .push("CREATE PUBLICATION p_generated FOR ALL TABLES WITH (publish_generated_columns = stored)");
        prepare.push(
            "CREATE TABLE computed (id int PRIMARY KEY, a int, v int GENERATED ALWAYS AS (a + 1) VIRTUAL)",
        );
    }
    Stage::start(major, &prepare)
}

#[test]
fn messages_are_the_servers_own() {
    for major in Major::under_test().into_iter().filter(|major| *major > Major::V14) {
        let stage = stage(major);
        if major.number() >= 18 {
            stage.talk().sql("INSERT INTO computed VALUES (1, 2)");
        }
        work(&stage);
        let wal = stage.wal();
        let mut seen = std::collections::BTreeSet::new();
        for way in WAYS.iter().filter(|way| way.since <= major.number()) {
            let what = format!("{major}, {}", way.name);
            let (ours, theirs) = (way.ours(&stage, &wal), way.theirs(&stage));
            seen.extend(ours.iter().map(|message| char::from(message.data[0])));
            if way.streaming == Streaming::Off {
                assert_same(&what, &lines(&ours), &lines(&theirs));
            } else {
                assert!(count(&ours, b'S') > 2 && count(&theirs, b'S') > 2, "{what}: nothing was streamed");
                assert_same(&what, &unstreamed(lines(&ours)), &unstreamed(lines(&theirs)));
            }
            assert!(type_names(&theirs).is_subset(&type_names(&ours)), "{what}: names of types");
            assert!(count(&ours, b'R') <= 2 * count(&theirs, b'R') + 2, "{what}: relations again and again");
        }
        let all = "BCORYIUDTMSEcAbPKrp";
        let lacks: String = all.chars().filter(|kind| !seen.contains(kind)).collect();
        assert_eq!(lacks, "", "{major}: every kind of message is there");
    }
}

/// The same messages come out, however the bytes are cut and whatever is spilled.
#[test]
fn pieces_and_memory_change_nothing() {
    let major = *Major::under_test().last().unwrap();
    let stage = stage(major);
    let talk = stage.talk();
    talk.all(&themes::ROWS[..8]);
    talk.all(themes::DEFINITIONS);
    talk.all(themes::TRANSACTIONS);
    let wal = stage.wal();
    let options = || stage.options(0, &["p_main", "p_root"]);
    let whole = stage.ours(options(), &wal, usize::MAX);
    assert!(whole.len() > 100);
    for piece in [1, 4099, 100_000] {
        assert!(stage.ours(options(), &wal, piece) == whole, "pieces of {piece}");
    }
    let mut small = options();
    small.work_mem_bytes = 1;
    let (mut decoder, _dir) = stage.decoder(small);
    let messages = decode(&mut decoder, &wal, usize::MAX).unwrap();
    assert!(messages == whole, "spilled");
    assert!(decoder.counters().reorder.spill_txns > 10);
    // A receiver is told again what it was told before the restart.
    assert_same("with restarts", &lines(&stage.restarted(options(), &wal)), &lines(&whole));
    let unpublished: u32 = stage.cluster.one(DB, "SELECT 'unpublished'::regclass::oid").parse().unwrap();
    talk.sql("INSERT INTO unpublished SELECT n FROM generate_series(5001, 6000) n");
    let (mut decoder, _dir) = stage.decoder(options());
    decode(&mut decoder, &stage.wal(), usize::MAX).unwrap();
    let (_, dropped) = *decoder.dropped().iter().find(|(oid, _)| oid.0 == unpublished).unwrap();
    assert!(dropped.records >= 1000 && dropped.bytes > 50_000, "{dropped:?}");
}

/// Work in another database is passed over. What it changes for all databases counts, also if the
/// record that says whose subtransaction it is was about that database's files.
#[test]
fn work_in_another_database_is_passed_over() {
    let major = *Major::under_test().last().unwrap();
    let stage = stage(major);
    let here = stage.talk();
    here.sql("CREATE DATABASE elsewhere");
    let there = stage.talk_to("elsewhere");
    there.all(&[
        "CREATE TABLE t (id int PRIMARY KEY, v text, w int[])",
        "CREATE INDEX ON t USING hash (v); CREATE INDEX ON t USING gin (w); CREATE SEQUENCE s",
    ]);
    here.all(&["BEGIN", "INSERT INTO t VALUES (1, 'before'), (2, 'before')"]);
    there.sql(
        "BEGIN; SAVEPOINT a; INSERT INTO t SELECT n, n::text, ARRAY[n] FROM generate_series(1, 2000) n; \
         SELECT pg_replication_origin_create('made_there'); RELEASE a; SAVEPOINT b; DELETE FROM t; ROLLBACK TO b; COMMIT",
    );
    here.all(&["UPDATE t SET v = 'after' WHERE id = 1", "COMMIT"]);
    there.all(&[
        "BEGIN; UPDATE t SET v = 'prepared'; PREPARE TRANSACTION 'there'",
        "CREATE TABLE u AS SELECT * FROM t; TRUNCATE u; SELECT nextval('s');",
        "COMMIT PREPARED 'there'",
    ]);
    here.all(&[
        "SELECT pg_replication_origin_session_setup('made_there')",
        "INSERT INTO t VALUES (3, 'with an origin')",
        "SELECT pg_replication_origin_session_reset()",
    ]);
    let wal = stage.wal();
    for way in WAYS.iter().filter(|way| matches!(way.name, "text" | "two phases")) {
        let (ours, theirs) = (way.ours(&stage, &wal), way.theirs(&stage));
        assert_same(way.name, &lines(&ours), &lines(&theirs));
        assert_eq!((count(&ours, b'O'), count(&ours, b'I')), (1, 3), "{}", way.name);
    }
}

/// Readers who enter between two transactions are told every relation again.
#[test]
fn relations_are_described_again_for_readers_who_enter() {
    let major = *Major::under_test().last().unwrap();
    let stage = stage(major);
    work(&stage);
    let wal = stage.wal();
    let mut options = stage.options(0, &["p_main", "p_root"]);
    options.proto_version = 2;
    options.streaming = Streaming::On;
    options.work_mem_bytes = 64 << 10;
    options.read_by_many = true;
    let (decoder, _dir) = stage.decoder(options);
    let (mut pass, id) = Pass::new(decoder);
    let mut steps = pass.push(&wal).unwrap();
    // What was described since the last place where readers may enter.
    let (mut described, mut block, mut rows, mut blocks) = (HashSet::new(), None, 0, 0);
    while let Some(step) = steps.next().unwrap() {
        let Step::Output(_, output) = step else { panic!("the member has failed") };
        let number = |at: usize| u32::from_be_bytes(output.data[at..at + 4].try_into().unwrap());
        // In a block, the transaction stands before the relation.
        let at = if block.is_some() { 5 } else { 1 };
        let mut ends = false;
        match output.data[0] {
            b'S' => (block, blocks) = (Some(number(1)), blocks + 1),
            b'E' => (block, ends) = (None, true),
            b'R' => drop(described.insert((block, number(at)))),
            b'I' | b'U' | b'D' => {
                rows += 1;
                let relation = number(at);
                assert!(described.contains(&(block, relation)), "{relation} in {block:?} was not described");
            }
            b'C' | b'c' => ends = true,
            _ => {}
        }
        if ends {
            // A transaction that is still open keeps what it has described.
            described.retain(|(of, _)| of.is_some());
            steps.describe_again(id);
        }
    }
    assert!(rows > 100 && blocks > 2, "{rows} rows, {blocks} blocks");
}

/// A table that cannot be rendered is named. The others go on if the options say so.
#[test]
fn what_cannot_be_rendered_is_refused_by_name() {
    let major = *Major::under_test().last().unwrap();
    let prepare = [
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE odd (id int PRIMARY KEY, c regclass)",
        "CREATE TABLE asked (id int PRIMARY KEY)",
        "CREATE PUBLICATION p FOR TABLE t, odd, asked WHERE (id + 1 > 2)",
    ];
    let stage = Stage::start(major, &prepare);
    stage.talk().all(&[
        "BEGIN; INSERT INTO odd VALUES (1, 't'); ROLLBACK",
        "TRUNCATE odd",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO asked VALUES (1)",
        "INSERT INTO odd VALUES (1, 't')",
        "INSERT INTO t VALUES (2)",
    ]);
    let wal = stage.wal();
    let (mut decoder, _dir) = stage.decoder(stage.options(0, &["p"]));
    let mut refused = decoder.refused().unwrap();
    refused.sort_by(|left, right| left.table.cmp(&right.table));
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert_eq!((refused[0].table.as_str(), &refused[0].column), ("asked", &None));
    assert_eq!((refused[1].table.as_str(), refused[1].column.as_deref()), ("odd", Some("c")));
    let error = decode(&mut decoder, &wal, usize::MAX).unwrap_err();
    assert_eq!(error.refused(), Some(&refused[0]), "{error}");
    assert!(decoder.push(&[]).is_err() && decoder.finish().is_err());
    let mut options = stage.options(0, &["p"]);
    options.refused = OnRefused::LeaveOut;
    let messages = stage.ours(options, &wal, usize::MAX);
    let kinds: String = messages.iter().map(|message| char::from(message.data[0])).collect();
    assert_eq!(kinds, "BRTCBRICBIC");
    // Without publications, every table is decoded and no filter applies.
    let mut options = stage.options(0, &[]);
    options.publications = Publications::EveryTable;
    options.refused = OnRefused::LeaveOut;
    let messages = stage.ours(options, &wal, usize::MAX);
    assert_eq!(count(&messages, b'I'), 3);
}

/// Up to 17, the server stops if a publication is missing, and names it.
#[test]
fn a_publication_that_is_missing_stops_both_sides() {
    let Some(major) = Major::under_test().into_iter().find(|major| (Major::V15..=Major::V17).contains(major))
    else {
        println!("only on 15 to 17: later ones leave it out with a warning");
        return;
    };
    let stage = Stage::start(major, &["CREATE TABLE t (id int PRIMARY KEY)"]);
    stage.talk().all(&["INSERT INTO t VALUES (1)", "CREATE PUBLICATION late FOR TABLE t"]);
    let behind = stage.cluster.one(DB, "SELECT pg_current_wal_insert_lsn()").parse().unwrap();
    stage.talk().sql("INSERT INTO t VALUES (2)");
    let wal = stage.wal();
    let sql = "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('plain', NULL, NULL, 'proto_version', '1', \
        'publication_names', 'late')";
    let theirs = format!("{:#}", stage.cluster.sql(DB, sql).unwrap_err());
    assert!(theirs.contains("publication \"late\" does not exist"), "{theirs}");
    let (mut decoder, _dir) = stage.decoder(stage.options(0, &["late"]));
    let ours = decode(&mut decoder, &wal, usize::MAX).unwrap_err();
    assert!(ours.to_string().ends_with("publication \"late\" does not exist"), "{ours}");
    assert!(ours.lsn().is_some() && ours.refused().is_none());
    // A decoder that begins behind the gap goes on, like a slot that is made then.
    let mut options = stage.options(0, &["late"]);
    options.start = behind;
    assert_eq!(count(&stage.ours(options, &wal, usize::MAX), b'I'), 1);
}
