//! Promises by name, for cases that a random world meets only by luck.

use base::{Lsn, Oid, PgTimestamp, RelFileLocator, Xid};
use decode::RawTuple;
use txn::reorder::{At, Boundary, End, Options, RawChange, ReorderBuffer, ReorderedEvent, Target, Unknown};

use crate::drive::Later;
use crate::spools::{Files, MemorySpool};
use crate::world::{LATER, NEVER};

const TOP: Xid = Xid(100);

struct Session {
    buffer: ReorderBuffer<u32>,
    files: Files,
    lsn: u64,
    content: Vec<u8>,
}

fn relation(number: u32) -> RelFileLocator {
    RelFileLocator { tablespace: Oid(1663), database: Oid(5), relfilenumber: number }
}

impl Session {
    fn new(change: impl FnOnce(&mut Options)) -> Session {
        let mut options = Options::new(Oid(5), Lsn::INVALID);
        change(&mut options);
        let files = Files::default();
        let buffer = ReorderBuffer::new(options, Box::new(MemorySpool::new(files.clone())));
        Session { buffer, files, lsn: 1_000, content: vec![7; 100] }
    }

    fn at(&mut self, xid: Xid) -> At {
        self.lsn += 10;
        At { lsn: Lsn::new(self.lsn), xid, origin: None }
    }

    fn insert_into(&mut self, xid: Xid, files: u32, target: Target<u32>, speculative: bool) -> Vec<String> {
        let at = self.at(xid);
        let new = RawTuple { infomask2: 1, infomask: 0, hoff: 24, bytes: &self.content };
        let change = RawChange::Insert { new, last_of_chunks: true, speculative };
        self.buffer.change(at, relation(files), target, &change).unwrap();
        self.drain().unwrap()
    }

    fn insert(&mut self, xid: Xid) -> Vec<String> {
        self.insert_into(xid, 1, Target::Relation(1), false)
    }

    fn chunk(&mut self, xid: Xid, number: u32) -> Vec<String> {
        let at = self.at(xid);
        let bytes = self.content.clone();
        self.buffer.chunk(at, relation(2), &Target::Toast, (Oid(5), number, &bytes)).unwrap();
        self.drain().unwrap()
    }

    fn assign(&mut self, sub: Xid) {
        let lsn = self.at(sub).lsn;
        self.buffer.assign(lsn, TOP, sub).unwrap();
    }

    fn commit(&mut self, xid: Xid, subxacts: &[Xid]) -> Result<Vec<String>, String> {
        let end = self.end(xid, subxacts);
        self.buffer.commit(&end, &mut Later).map_err(|error| error.to_string())?;
        self.drain()
    }

    fn abort(&mut self, xid: Xid, subxacts: &[Xid]) -> Vec<String> {
        let end = self.end(xid, subxacts);
        self.buffer.abort(&end).unwrap();
        self.drain().unwrap()
    }

    fn end<'a>(&mut self, xid: Xid, subxacts: &'a [Xid]) -> End<'a> {
        let lsn = self.at(xid).lsn;
        let end_lsn = Lsn::new(self.lsn + 5);
        End { xid, lsn, end_lsn, time: PgTimestamp(1), origin: None, subxacts, gid: None }
    }

    fn drain(&mut self) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        while let Some(event) = self.buffer.next().map_err(|error| error.to_string())? {
            lines.push(match event {
                ReorderedEvent::Boundary(Boundary::Begin(_)) => "begin".to_owned(),
                ReorderedEvent::Boundary(Boundary::Commit(_)) => "commit".to_owned(),
                ReorderedEvent::Boundary(Boundary::StreamStart { xid, first_segment, .. }) => {
                    format!("start {xid} {first_segment}")
                }
                ReorderedEvent::Boundary(Boundary::StreamStop { .. }) => "stop".to_owned(),
                ReorderedEvent::Boundary(Boundary::StreamCommit(_)) => "stream commit".to_owned(),
                ReorderedEvent::Boundary(Boundary::StreamAbort { xid, subxid, end_lsn, .. }) => {
                    format!("abort {xid} {subxid} {}", end_lsn.is_valid())
                }
                ReorderedEvent::Boundary(other) => format!("{other:?}"),
                ReorderedEvent::Row(row) => {
                    format!("row {} of {} with {}", row.xid, row.relation, row.chunks.len())
                }
                ReorderedEvent::Truncate(_) => "truncate".to_owned(),
                ReorderedEvent::Message(_) => "message".to_owned(),
            });
        }
        Ok(lines)
    }
}

#[test]
fn an_unknown_locator_is_kept_until_commit_and_then_stops_loudly() {
    let mut session = Session::new(|_| ());
    assert_eq!(session.insert_into(TOP, LATER + 3, Target::Unknown, false), [] as [&str; 0]);
    assert_eq!(session.commit(TOP, &[]).unwrap(), ["begin", "row 100 of 3 with 0", "commit"]);

    session.insert(TOP);
    session.insert_into(TOP, NEVER, Target::Unknown, false);
    let changed_at = Lsn::new(session.lsn);
    let end = session.end(TOP, &[]);
    let error = session.buffer.commit(&end, &mut Later).unwrap_err();
    assert_eq!(error.unresolved(), Some(Unknown::Files(relation(NEVER))));
    let text = error.to_string();
    for part in ["transaction 100", &changed_at.to_string(), &end.lsn.to_string(), "1663/5/4000"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(session.drain().is_err(), "not a row of it comes out");
}

#[test]
fn an_unknown_locator_of_an_aborted_subtransaction_stops_nobody() {
    for limit in [0, usize::MAX] {
        let mut session = Session::new(|options| options.work_mem_bytes = limit);
        session.insert(TOP);
        session.assign(Xid(101));
        session.insert_into(Xid(101), NEVER, Target::Unknown, false);
        session.abort(Xid(101), &[]);
        assert_eq!(session.commit(TOP, &[]).unwrap(), ["begin", "row 100 of 1 with 0", "commit"]);
    }
}

#[test]
fn a_subtransaction_of_which_the_commit_says_nothing_stops_loudly() {
    let mut session = Session::new(|_| ());
    session.assign(Xid(101));
    session.insert(Xid(101));
    let error = session.commit(TOP, &[]).unwrap_err();
    assert!(error.contains("whether its subtransaction 101 committed"), "{error}");
}

#[test]
fn an_insertion_that_is_never_confirmed_stops_loudly() {
    let mut session = Session::new(|_| ());
    session.insert_into(TOP, 1, Target::Relation(1), true);
    let error = session.commit(TOP, &[]).unwrap_err();
    assert!(error.contains("was never confirmed"), "{error}");
}

/// The filter drops the row's record. The chunks before it then belong to no row, and take no room.
#[test]
fn chunks_of_a_row_that_nobody_wants_are_forgotten() {
    for (limit, left_at_most) in [(usize::MAX, 0), (0, 0)] {
        let mut session = Session::new(|options| options.work_mem_bytes = limit);
        for _ in 0..3 {
            for number in 0..20 {
                session.chunk(TOP, number);
            }
            let at = session.at(TOP);
            session.buffer.passed_over(at.lsn, TOP, None).unwrap();
            session.drain().unwrap();
            assert!(session.buffer.memory_bytes() <= left_at_most, "{}", session.buffer.memory_bytes());
        }
        session.insert(TOP);
        assert_eq!(session.commit(TOP, &[]).unwrap(), ["begin", "row 100 of 1 with 0", "commit"]);
        assert_eq!(session.files.count(), 0);
    }
}

#[test]
fn a_chunk_that_is_missing_stops_loudly() {
    let mut session = Session::new(|_| ());
    session.chunk(TOP, 0);
    session.chunk(TOP, 2);
    session.insert(TOP);
    let error = session.commit(TOP, &[]).unwrap_err();
    assert!(error.contains("out of its order"), "{error}");
}

#[test]
fn the_largest_transaction_is_spilled_and_the_others_stay() {
    let mut session = Session::new(|options| options.work_mem_bytes = 20_000);
    for small in 200..210 {
        session.insert(Xid(small));
    }
    for _ in 0..500 {
        session.insert(TOP);
        assert!(session.buffer.memory_bytes() <= 20_000);
    }
    let mut names = Vec::new();
    session.files.change(|files| names = files.keys().copied().collect());
    assert_eq!(names, [TOP]);
    assert_eq!(session.buffer.counters().spill_txns, 1);
    assert!(session.files.bytes() > 30_000);
}

#[test]
fn savepoints_that_are_rolled_back_take_no_room() {
    let mut session = Session::new(|_| ());
    session.insert(TOP);
    let before = session.buffer.memory_bytes();
    for sub in 0..20_000 {
        let sub = Xid(1_000 + sub);
        session.assign(sub);
        session.insert(sub);
        session.abort(sub, &[]);
    }
    assert_eq!(session.buffer.memory_bytes(), before);
    assert_eq!(session.buffer.top_of(Xid(1_005)), Xid(1_005), "an aborted one is forgotten");
    assert_eq!(session.commit(TOP, &[]).unwrap().len(), 3);
}

/// A subtransaction that was streamed is taken back by name. One that was not is never mentioned.
#[test]
fn a_streamed_subtransaction_is_aborted_by_name() {
    let mut session = Session::new(|options| {
        options.work_mem_bytes = 0;
        options.streaming = true;
    });
    assert_eq!(session.insert(TOP), ["start 100 true", "row 100 of 1 with 0", "stop"]);
    session.assign(Xid(101));
    assert_eq!(session.insert(Xid(101)), ["start 100 false", "row 101 of 1 with 0", "stop"]);
    session.assign(Xid(102));
    assert_eq!(session.chunk(Xid(102), 0), [] as [&str; 0], "a block does not end before the row");
    assert_eq!(session.abort(Xid(102), &[]), [] as [&str; 0]);
    assert_eq!(session.abort(Xid(101), &[]), ["abort 100 101 true"]);
    assert_eq!(session.insert(TOP), ["start 100 false", "row 100 of 1 with 0", "stop"]);
    assert_eq!(session.commit(TOP, &[]).unwrap(), ["stream commit"]);
}

#[test]
fn a_crash_ends_what_was_streamed() {
    let mut session = Session::new(|options| {
        options.work_mem_bytes = 0;
        options.streaming = true;
    });
    session.insert(TOP);
    session.insert(Xid(90));
    let lsn = session.at(TOP).lsn;
    session.buffer.running(lsn, Xid(100)).unwrap();
    assert_eq!(session.drain().unwrap(), ["abort 90 90 false"]);
    assert_eq!(session.commit(TOP, &[]).unwrap(), ["stream commit"]);
}

#[test]
fn restart_is_at_the_first_record_of_the_oldest_open_transaction() {
    let mut session = Session::new(|_| ());
    assert_eq!(session.buffer.restart_lsn(Lsn::new(500)), Lsn::new(500));
    session.insert(TOP);
    let first = Lsn::new(session.lsn);
    session.insert(Xid(200));
    let second = Lsn::new(session.lsn);
    assert_eq!(session.buffer.restart_lsn(Lsn::new(9_999)), first);
    session.commit(TOP, &[]).unwrap();
    assert_eq!(session.buffer.restart_lsn(Lsn::new(9_999)), second);
    session.commit(Xid(200), &[]).unwrap();
    assert_eq!(session.buffer.restart_lsn(Lsn::new(9_999)), Lsn::new(9_999));
}

/// The first record of a subtransaction names its top-level transaction, even if the record is not
/// wanted.
#[test]
fn restart_covers_the_record_that_names_a_subtransaction() {
    let mut session = Session::new(|_| ());
    let first = session.at(Xid(101)).lsn;
    session.buffer.passed_over(first, Xid(101), Some(TOP)).unwrap();
    session.insert(Xid(101));
    assert_eq!(session.buffer.restart_lsn(Lsn::new(9_999)), first);
    assert_eq!(session.buffer.top_of(Xid(101)), TOP);
}

#[test]
fn what_was_streamed_of_a_transaction_that_does_not_count_is_taken_back() {
    let mut session = Session::new(|options| {
        options.work_mem_bytes = 0;
        options.streaming = true;
    });
    session.insert(TOP);
    let end = session.end(TOP, &[]);
    session.buffer.forget(&end).unwrap();
    assert_eq!(session.drain().unwrap(), ["abort 100 100 true"]);
    assert_eq!(session.buffer.open_count(), 0);
}

/// The unknown object may turn out to be unwanted, so no block is cut before that is known.
#[test]
fn a_transaction_with_an_unknown_locator_is_not_streamed() {
    let mut session = Session::new(|options| {
        options.work_mem_bytes = 0;
        options.streaming = true;
    });
    assert_eq!(session.insert_into(TOP, LATER + 3, Target::Unknown, false), [] as [&str; 0]);
    assert_eq!(session.insert(TOP), [] as [&str; 0]);
    assert_eq!(session.files.count(), 1, "it is spilled instead");
    let lines = ["begin", "row 100 of 3 with 0", "row 100 of 1 with 0", "commit"];
    assert_eq!(session.commit(TOP, &[]).unwrap(), lines);
}

/// A transaction that ends in the middle of a row is not streamed, however large it is.
#[test]
fn the_largest_transaction_that_is_whole_is_streamed() {
    let mut session = Session::new(|options| {
        options.work_mem_bytes = 6_000;
        options.streaming = true;
    });
    for number in 0..30 {
        session.chunk(TOP, number);
    }
    let mut streamed = Vec::new();
    for _ in 0..10 {
        streamed.extend(session.insert(Xid(200)));
    }
    assert!(streamed.contains(&"start 200 true".to_owned()), "{streamed:?}");
    assert!(!streamed.iter().any(|line| line.starts_with("start 100")), "{streamed:?}");
    assert_eq!(session.commit(TOP, &[]).unwrap(), [] as [&str; 0], "it has no row");
}
