//! Every version of pgoutput's protocol with its options, message by message.
//!
//! A client reads the same transactions from the publisher's walsender and from the relay. Both
//! decode the same WAL, so positions, times and transaction ids must be equal, too. What may differ
//! is what `compare` lists, and these:
//!
//! | what | why |
//! | --- | --- |
//! | whether a transaction is streamed, and where its blocks are cut | the publisher begins at 64 kB here, the relay at 16 MB |
//! | which of its aborts are reported | only what was streamed is taken back |
//! | on 14, empty transactions and the position of BEGIN | 14 begins with the first record, and later majors and the relay with the first change |
//! | the position of a BEGIN that an origin follows | a walsender gives it to the origin's message only, the relay to both |
//!
//! A form without streaming has no such freedom: its messages are equal byte by byte, but for
//! descriptions that come again.
//!
//! One form is read while the transactions are open. The others are read afterwards, when 18 knows
//! what was rolled back and does not stream it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Lsn, PgTimestamp};
use bytes::Bytes;
use client::{ConnInfo, Replication, Wire};
use proto::replication::{StandbyStatus, WalsenderMessage};
use testkit::Major;
use tokio_postgres::NoTls;

use crate::compare::{compare, compare_sides};
use crate::load;
use crate::message::{Sent, tell};
use crate::stage::{BOUND, End, Stage};
use crate::stream::{assert_same_rows, without_empty};
use crate::told::Side;

const DB: &str = "protocol";
/// Without prepared transactions, and with them.
const SLOTS: [&str; 2] = ["protocol_whole", "protocol_prepared"];
/// How often a client asks how far the stream has come, when nothing comes.
const PACE: Duration = Duration::from_millis(50);

/// What a client asks for.
#[derive(Debug, Clone, Copy)]
struct Form {
    version: u32,
    streaming: &'static str,
    two_phase: bool,
    more: &'static str,
}

impl Form {
    /// Every combination that a major has, and values in binary form.
    fn all(major: Major) -> Vec<Form> {
        let most = match major.number() {
            14 => 2,
            15 => 3,
            _ => 4,
        };
        let mut forms = Vec::new();
        for version in 1..=most {
            let streaming: &[&str] = match version {
                1 => &["off"],
                2 | 3 => &["off", "on"],
                _ => &["off", "on", "parallel"],
            };
            for &streaming in streaming {
                let two_phase: &[bool] = if version >= 3 { &[false, true] } else { &[false] };
                forms.extend(two_phase.iter().map(|&two_phase| Form {
                    version,
                    streaming,
                    two_phase,
                    more: "messages 'true'",
                }));
            }
        }
        let more = if most == 4 { "binary 'true', origin 'none'" } else { "binary 'true', messages 'false'" };
        let last = *forms.last().unwrap();
        forms.push(Form { more, ..last });
        forms
    }

    fn slot(&self) -> &'static str {
        SLOTS[usize::from(self.two_phase)]
    }

    fn start(&self) -> String {
        let Form { version, streaming, two_phase, more } = self;
        let two_phase = if *two_phase { ", two_phase 'on'" } else { "" };
        format!(
            "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '{version}', publication_names 'p', \
             streaming '{streaming}', {more}{two_phase})",
            self.slot()
        )
    }

    /// Everything from the slot's beginning on, none of which is confirmed.
    async fn read(&self, stage: &Stage, end: End, reading: &Reading) -> Vec<Sent> {
        let mut wire = connect(stage, end).await;
        wire.copy_both(&self.start()).await.unwrap();
        let mut sent = Vec::new();
        let all = async {
            loop {
                let Ok(frame) = tokio::time::timeout(PACE, wire.read_frame()).await else {
                    ask(&mut wire).await;
                    continue;
                };
                match WalsenderMessage::decode(frame.unwrap().body).unwrap() {
                    WalsenderMessage::XLogData { start, data, .. } => {
                        reading.came(end, &data);
                        sent.push(Sent { lsn: start.as_u64(), xid: 0, data: data.to_vec() });
                    }
                    WalsenderMessage::Keepalive { wal_end, .. } if reading.is_over(wal_end) => break,
                    WalsenderMessage::Keepalive { .. } => {}
                }
            }
        };
        let all = tokio::time::timeout(BOUND, all).await;
        assert!(all.is_ok(), "{}: {} messages have come in time", self.start(), sent.len());
        // It is ended in order, so that the next one finds the slot free.
        wire.copy_both_finish().await.unwrap();
        wire.close().await;
        sent
    }

    async fn read_both(&self, stage: &Stage, reading: &Reading) -> [Vec<Sent>; 2] {
        let [publisher, relay] = End::BOTH.map(|end| self.read(stage, end, reading));
        let (publisher, relay) = tokio::join!(publisher, relay);
        [publisher, relay]
    }
}

/// How far clients are to read, and what they have read.
struct Reading {
    until: AtomicU64,
    /// Rows that were inserted, at each end.
    inserted: [AtomicU64; 2],
}

impl Reading {
    fn until(lsn: Lsn) -> Reading {
        Reading { until: AtomicU64::new(lsn.as_u64()), inserted: Default::default() }
    }

    fn is_over(&self, at: Lsn) -> bool {
        at.as_u64() >= self.until.load(Ordering::Relaxed)
    }

    fn came(&self, end: End, data: &[u8]) {
        let is_insert = data.first() == Some(&b'I');
        self.inserted[end as usize].fetch_add(u64::from(is_insert), Ordering::Relaxed);
    }

    fn inserted(&self) -> [u64; 2] {
        self.inserted.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Waits until each end has this number of rows more than `before`.
    async fn more(&self, stage: &Stage, before: [u64; 2], rows: u64) {
        let has = || self.inserted().iter().zip(before).all(|(now, before)| *now >= before + rows);
        let come = async {
            while !has() {
                // What is written in an open transaction may not be flushed yet.
                stage.end();
                tokio::time::sleep(PACE).await;
            }
        };
        let come = tokio::time::timeout(BOUND, come).await;
        assert!(come.is_ok(), "{rows} rows more than {before:?} are wanted, {:?} are there", self.inserted());
    }
}

async fn connect(stage: &Stage, end: End) -> Wire {
    let info = ConnInfo::parse(&stage.conninfo(end, DB)).unwrap();
    // The relay has no such setting, and passes it on.
    let settings = [("logical_decoding_work_mem", "64kB")];
    Wire::connect(&info, "protocol", Replication::Database, &settings).await.unwrap()
}

/// Asks for a keepalive, and confirms nothing.
async fn ask(wire: &mut Wire) {
    let [written, flushed, applied] = [Lsn::INVALID; 3];
    let status = StandbyStatus { written, flushed, applied, at: PgTimestamp::now(), reply_requested: true };
    wire.send_copy_data(&status.encode()).await.unwrap();
}

/// Rows of [`large`].
const ROWS: u64 = 2_300;

/// 18 MB of rows that stay in the table as they are, which is more than either end keeps in memory.
fn large(from: u64) -> String {
    let to = from + ROWS - 1;
    format!("INSERT INTO plain SELECT n, repeat(md5(n::text), 243) FROM generate_series({from}, {to}) n")
}

/// What a session does while nobody waits for it.
const SMALL: [&str; 3] = [
    "BEGIN; INSERT INTO plain VALUES (-1, 'first'); SAVEPOINT a; INSERT INTO plain VALUES (-2, 'not kept');
     ROLLBACK TO a; SAVEPOINT b; UPDATE plain SET v = 'changed' WHERE id = -1; SAVEPOINT c;
     DELETE FROM plain WHERE id = -1; ROLLBACK TO c; INSERT INTO plain VALUES (-3, 'kept'); COMMIT",
    "BEGIN; SELECT pg_replication_origin_session_setup('protocol'),
            pg_replication_origin_xact_setup('AB/CD', '2026-11-28 12:00+00');
     INSERT INTO plain VALUES (-4, 'of an origin'); COMMIT",
    "SELECT pg_replication_origin_session_reset()",
];

/// Behind a part that was streamed and is rolled back.
const REST: [&str; 3] = [
    "SELECT pg_logical_emit_message(true, 'test', 'not kept'); ROLLBACK TO a;
     SELECT pg_logical_emit_message(true, 'test', 'kept'), pg_logical_emit_message(false, 'test', 'at once')",
    "UPDATE plain SET id = -id WHERE id < 10010; SAVEPOINT c; TRUNCATE whole; RELEASE c; COMMIT",
    "TRUNCATE plain, whole RESTART IDENTITY CASCADE",
];

const PREPARED: [&str; 5] = [
    "BEGIN; INSERT INTO plain VALUES (1, 'prepared'); SAVEPOINT a; DELETE FROM whole; PREPARE TRANSACTION 'protocol_one'",
    "BEGIN; INSERT INTO plain VALUES (2, 'not kept'); PREPARE TRANSACTION 'protocol_two'",
    "COMMIT PREPARED 'protocol_one'",
    "ROLLBACK PREPARED 'protocol_two'",
    "COMMIT PREPARED 'protocol_large'",
];

/// Writes, with large transactions of which parts have come before they end.
async fn write(stage: &Stage, major: Major, reading: &Reading) {
    let (session, connection) = tokio_postgres::connect(&stage.publisher.url(DB), NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let run = async |sql: &str| {
        session.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    };
    for sql in SMALL {
        run(sql).await;
    }
    let before = reading.inserted();
    run(&format!("BEGIN; {}; SAVEPOINT a; {}; SAVEPOINT b", large(10_000), large(20_000))).await;
    // Rows of the subtransaction are among them.
    reading.more(stage, before, ROWS + ROWS / 2).await;
    for sql in REST {
        run(sql).await;
    }
    let before = reading.inserted();
    run(&format!("BEGIN; {}; SAVEPOINT a", large(30_000))).await;
    // More than what may still be under way of the one before.
    reading.more(stage, before, ROWS * 2 / 3).await;
    run("ROLLBACK").await;
    if major >= Major::V15 {
        let parts = [large(40_000), large(50_000)];
        run(&format!("BEGIN; {}; SAVEPOINT a; {}; ROLLBACK TO a", parts[0], parts[1])).await;
        run("PREPARE TRANSACTION 'protocol_large'").await;
        for sql in PREPARED {
            run(sql).await;
        }
    }
    drop(session);
    connection.await.unwrap().unwrap();
}

/// Compares what both sent; see the module.
fn same(major: Major, form: &Form, is_live: bool, [publisher, relay]: [Vec<Sent>; 2]) {
    let what = format!("{major}, {form:?}");
    let (mut ours, mut theirs) = (Side::default(), Side::server());
    ours.read(&relay).unwrap_or_else(|error| panic!("{what}: what the relay sends: {error}"));
    theirs.read(&publisher).unwrap_or_else(|error| panic!("{what}: what the publisher sends: {error}"));
    let mut told = [ours.take(), theirs.take()];
    // Also removes the position of BEGIN, see above.
    told.iter_mut().for_each(|told| told.as_begun_by_14());
    let compared = compare(&told[0], &told[1]).unwrap_or_else(|difference| {
        panic!(
            "{what}: {difference}\nwhat the relay sent begins with\n{}",
            tell(&relay[..relay.len().min(30)])
        )
    });
    let aborts = compare_sides(&mut ours, &mut theirs, &compared.aside)
        .unwrap_or_else(|difference| panic!("{what}: {difference}"));
    let [relay_aborts, publisher_aborts] = [&ours, &theirs].map(|side| &side.aborts);
    assert!(!is_live || aborts >= 2, "{what}: aborts {publisher_aborts:?}, {relay_aborts:?}");
    // The load has 50 rows, and a large transaction commits.
    let tally = compared.tally;
    assert!(tally.rows > ROWS + 50 && tally.transactions > 10, "{what}: {tally:?}");
    println!("{what}: {tally:?}, {aborts} aborts");
    if form.streaming == "off" {
        let [publisher, relay] = [publisher, relay].map(|sent| {
            let sent = sent.into_iter().map(|Sent { lsn, data, .. }| (Bytes::from(data), lsn));
            without_empty(sent).into_iter().unzip::<_, _, Vec<_>, Vec<_>>().0
        });
        assert_same_rows(&what, &publisher, &relay);
    } else {
        for (end, sent) in [("publisher", &publisher), ("relay", &relay)] {
            let has = |kind: &u8| sent.iter().any(|sent| sent.data.first() == Some(kind));
            let expected: &[u8] = if is_live { b"SEAc" } else { b"SEc" };
            assert!(expected.iter().all(has), "{what}: the {end} streams");
            assert_eq!(has(&b'p'), form.two_phase, "{what}: the {end}");
        }
    }
}

/// Both slots at both ends, by this command in front of their names.
async fn slots(stage: &Stage, major: Major, command: impl Fn(&str) -> String) {
    for end in End::BOTH {
        let mut wire = connect(stage, end).await;
        for slot in &SLOTS[..if major >= Major::V15 { 2 } else { 1 }] {
            wire.query(&command(slot)).await.unwrap();
        }
        wire.close().await;
    }
}

#[test]
fn every_version_of_the_protocol_says_what_the_publisher_says() {
    Major::each(1, |major| {
        let stage = Stage::of(major);
        let tables =
            "CREATE TABLE plain (id int PRIMARY KEY, v text); ALTER TABLE plain ALTER v SET STORAGE PLAIN;
             ALTER PUBLICATION p ADD TABLE plain; SELECT pg_replication_origin_create('protocol')";
        stage.database(DB, &format!("{}; {tables}", load::TABLES));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            slots(&stage, major, |slot| {
                let two_phase = if slot == SLOTS[1] { " TWO_PHASE" } else { "" };
                format!("CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput NOEXPORT_SNAPSHOT{two_phase}")
            })
            .await;
            let forms = Form::all(major);
            let live = forms.iter().rfind(|form| form.more.starts_with("messages")).unwrap();
            let reading = Reading::until(Lsn::new(u64::MAX));
            let writing = async {
                load::write(&stage.publisher, DB, 0);
                write(&stage, major, &reading).await;
                let end = stage.end();
                reading.until.store(end.as_u64(), Ordering::Relaxed);
                end
            };
            let (end, sent) = tokio::join!(writing, live.read_both(&stage, &reading));
            same(major, live, true, sent);
            for form in &forms {
                let sent = form.read_both(&stage, &Reading::until(end)).await;
                same(major, form, false, sent);
            }
            slots(&stage, major, |slot| format!("DROP_REPLICATION_SLOT {slot} WAIT")).await;
        });
        stage.publisher.sql(DB, "SELECT pg_replication_origin_drop('protocol')").unwrap();
    });
}
