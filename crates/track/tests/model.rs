//! Cursors that enter anywhere, beside a plain list of what each must get.

#![allow(clippy::unwrap_used, reason = "tests, with functions of their own")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use base::{Lsn, Oid, PgTimestamp, Xid};
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use proto::frame;
use proto::pgoutput::encode::{self, Marker};
use proto::pgoutput::{CommitInfo, Message, ReplicaIdentity, decode};
use proto::replication::WalsenderMessage;
use track::{Cursor, Limits, Next, Pushed, Track, TrackMemory};

const RELATIONS: u32 = 3;
const NO_TIME: PgTimestamp = PgTimestamp(0);

/// What happens next in the stream.
#[derive(Debug, Clone)]
enum Event {
    /// A whole transaction with rows of these relations.
    Whole(Vec<u32>),
    /// A block of the open transaction with this number.
    Block(u32, Vec<u32>),
    /// It ends with a commit, or not.
    End(u32, bool),
    PartAborts(u32),
    /// A message without a transaction.
    Alone,
    /// The relation changes: it must be described again.
    Alter(u32),
    Flush,
    /// A reader enters, with this part of the stream confirmed; above 1: with more than there is.
    Enter(f64),
    /// The reader with this number reads this often.
    Read(usize, usize),
}

fn event() -> impl Strategy<Value = Event> {
    let rows = || prop::collection::vec(0..RELATIONS, 1..6);
    prop_oneof![
        4 => rows().prop_map(Event::Whole),
        4 => (0..3_u32, rows()).prop_map(|(xid, rows)| Event::Block(xid, rows)),
        2 => (0..3_u32, prop::bool::weighted(0.7)).prop_map(|(xid, commits)| Event::End(xid, commits)),
        1 => (0..3_u32).prop_map(Event::PartAborts),
        1 => Just(Event::Alone),
        1 => (0..RELATIONS).prop_map(Event::Alter),
        3 => Just(Event::Flush),
        2 => (0.0..1.2).prop_map(Event::Enter),
        3 => (0..4_usize, 1..4_usize).prop_map(|(reader, times)| Event::Read(reader, times)),
    ]
}

/// Writes as pgoutput does, into a track and into a list.
struct Stream {
    track: Track,
    lsn: u64,
    /// The version of each relation.
    versions: HashMap<u32, u32>,
    described: HashMap<u32, u32>,
    in_streams: HashMap<(u32, u32), u32>,
    /// By number, the id of the open transaction.
    open: HashMap<u32, u32>,
    next_xid: u32,
    /// All messages but descriptions, each with the transaction that it is a part of.
    list: Vec<(Of, Vec<u8>)>,
    /// How many of them, and what ends before which position, can be read.
    flushed: (usize, u64),
}

/// What a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Of {
    /// A transaction or message that comes as a whole, and ends there.
    Whole(u64),
    /// A streamed one; with its end, if this message is the commit.
    Stream(u32, Option<u64>),
}

impl Stream {
    fn new(limits: Limits) -> Stream {
        Stream {
            track: Track::new(Lsn::new(1), limits),
            lsn: 1,
            versions: HashMap::new(),
            described: HashMap::new(),
            in_streams: HashMap::new(),
            open: HashMap::new(),
            next_xid: 700,
            list: Vec::new(),
            flushed: (0, 1),
        }
    }

    fn advance(&mut self) -> u64 {
        self.lsn += 8;
        self.lsn
    }

    fn push(&mut self, of: Of, message: Vec<u8>) {
        let is_description = message[0] == b'R';
        if self.track.push(Lsn::new(self.lsn), NO_TIME, &message).unwrap() == Pushed::ChapterBegins {
            self.described.clear();
        }
        if !is_description {
            self.list.push((of, message));
        }
    }

    fn message(&mut self, of: Of, write: impl FnOnce(&mut Vec<u8>)) {
        let mut message = Vec::new();
        write(&mut message);
        self.push(of, message);
    }

    /// A row says which version of its relation it has.
    fn row(&mut self, of: Of, relation: u32, xid: Option<u32>) {
        let version = *self.versions.entry(relation).or_default();
        let known = match xid {
            Some(xid) => self.in_streams.insert((xid, relation), version),
            None => self.described.insert(relation, version),
        };
        let named = xid.map(Xid);
        if known != Some(version) {
            self.message(of, |out| {
                let name = version.to_string();
                encode::relation(out, named, Oid(relation), ("public", &name), ReplicaIdentity::Default, 0);
            });
        }
        self.message(of, |out| {
            encode::row(out, b'I', named, Oid(relation));
            encode::marker(out, Marker::New);
            encode::tuple(out, 1);
            let value = version.to_string();
            let written: Result<(), ()> = encode::value(out, false, |out| {
                out.extend_from_slice(value.as_bytes());
                Ok(())
            });
            written.unwrap();
        });
    }

    fn commit(&mut self) -> CommitInfo {
        let at = self.advance();
        CommitInfo { commit_lsn: Lsn::new(at), end_lsn: Lsn::new(at + 8), commit_time: NO_TIME }
    }

    fn play(&mut self, event: &Event) {
        match event {
            Event::Whole(rows) => {
                let commit = self.commit();
                let of = Of::Whole(commit.commit_lsn.as_u64());
                self.message(of, |out| encode::begin(out, commit.commit_lsn, NO_TIME, Xid(1)));
                for relation in rows {
                    self.row(of, *relation, None);
                }
                self.message(of, |out| encode::commit(out, &commit));
            }
            Event::Block(number, rows) => {
                let is_first = !self.open.contains_key(number);
                let next = self.next_xid;
                let xid = *self.open.entry(*number).or_insert(next);
                self.next_xid += u32::from(is_first);
                self.advance();
                let of = Of::Stream(xid, None);
                self.message(of, |out| encode::stream_start(out, Xid(xid), is_first));
                for relation in rows {
                    self.row(of, *relation, Some(xid));
                }
                self.message(of, encode::stream_stop);
            }
            Event::PartAborts(number) => {
                let Some(&xid) = self.open.get(number) else { return };
                self.advance();
                let of = Of::Stream(xid, None);
                self.message(of, |out| encode::stream_abort(out, Xid(xid), Xid(xid + 5_000), None));
            }
            Event::End(number, commits) => {
                let Some(xid) = self.open.remove(number) else { return };
                if *commits {
                    let commit = self.commit();
                    let of = Of::Stream(xid, Some(commit.commit_lsn.as_u64()));
                    self.message(of, |out| encode::stream_commit(out, Xid(xid), &commit));
                } else {
                    self.advance();
                    let of = Of::Stream(xid, None);
                    self.message(of, |out| encode::stream_abort(out, Xid(xid), Xid(xid), None));
                }
            }
            Event::Alone => {
                let at = Lsn::new(self.advance());
                let of = Of::Whole(at.as_u64());
                self.message(of, |out| encode::message(out, None, false, at, (b"p", b"c")));
            }
            Event::Alter(relation) => *self.versions.entry(*relation).or_default() += 1,
            Event::Flush | Event::Enter(_) | Event::Read(..) => self.flush(),
        }
    }

    fn flush(&mut self) {
        self.track.flush().unwrap();
        self.flushed = (self.list.len(), self.lsn + 8);
    }

    /// The first message of what ends at or behind `from`.
    fn first(&self, from: u64) -> Option<usize> {
        self.list.iter().position(|(of, _)| match of {
            Of::Whole(end) | Of::Stream(_, Some(end)) => *end >= from,
            Of::Stream(_, None) => false,
        })
    }

    /// What somebody gets who has confirmed everything before `from`, without descriptions.
    fn expected(&self, from: u64) -> Vec<Vec<u8>> {
        self.expected_by(from, None)
    }

    /// The same of somebody who knew, when this number of messages could be read, that all before
    /// `from` had come.
    fn expected_by(&self, from: u64, told: Option<usize>) -> Vec<Vec<u8>> {
        let Some(first) = self.first(from).into_iter().chain(told).min() else { return Vec::new() };
        let is_abort = |xid: u32, message: &[u8]| {
            message[0] == b'A' && message[1..5] == message[5..9] && message[1..5] == xid.to_be_bytes()
        };
        let ends = |xid: u32, (of, message): &(Of, Vec<u8>)| {
            matches!(of, Of::Stream(own, Some(_)) if *own == xid) || is_abort(xid, message)
        };
        let ended: HashSet<u32> =
            (700..self.next_xid).filter(|xid| self.list[..first].iter().any(|one| ends(*xid, one))).collect();
        let early = self.list[..first].iter().filter(|(of, _)| match of {
            Of::Stream(xid, _) => !ended.contains(xid),
            Of::Whole(_) => false,
        });
        early.chain(&self.list[first..]).map(|(_, message)| message.clone()).collect()
    }
}

/// Reads frames, and checks that every row was described.
struct Reader {
    cursor: Cursor,
    from: u64,
    bytes: BytesMut,
    got: Vec<Vec<u8>>,
    known: BTreeMap<u32, String>,
    in_streams: HashMap<(u32, u32), String>,
    block: Option<u32>,
    is_evicted: bool,
    /// How many messages could be read when something was open, and it was told that everything
    /// before `from` had come.
    told: Option<usize>,
}

impl Reader {
    fn new(cursor: Cursor, from: u64) -> Reader {
        Reader {
            cursor,
            from,
            bytes: BytesMut::new(),
            got: Vec::new(),
            known: BTreeMap::new(),
            in_streams: HashMap::new(),
            block: None,
            is_evicted: false,
            told: None,
        }
    }

    /// As [`Reader::read`], and says how far the stream is complete.
    fn read_told(&mut self, times: usize, stream: &Stream) {
        let (count, complete_to) = stream.flushed;
        self.cursor.came_to(Lsn::new(complete_to));
        let was_dry = self.read(times);
        if self.told.is_some() || stream.first(self.from).is_some_and(|first| first < count) {
            return;
        }
        let is_told = complete_to >= self.from;
        assert!(is_told || self.got.is_empty(), "before it is known what is needed");
        if !self.got.is_empty() || (was_dry && is_told && !stream.open.is_empty()) {
            self.told = Some(count);
        }
    }

    /// Reads so often, or until nothing more is there; returns whether that is so.
    fn read(&mut self, times: usize) -> bool {
        let mut was_dry = false;
        for _ in 0..times {
            match self.cursor.next().unwrap() {
                Next::Frames(portion) => self.bytes.extend_from_slice(&portion.bytes),
                Next::Dry => {
                    was_dry = true;
                    break;
                }
                Next::Evicted => {
                    self.is_evicted = true;
                    break;
                }
            }
        }
        while let Some(frame) = frame::next(&mut self.bytes).unwrap() {
            let WalsenderMessage::XLogData { data, .. } = WalsenderMessage::decode(frame.body).unwrap()
            else {
                panic!("no message")
            };
            self.take(data);
        }
        was_dry
    }

    fn take(&mut self, data: Bytes) {
        let (xid, message) = decode(data.clone(), self.block.is_some()).unwrap();
        let xid = xid.map(|xid| xid.0);
        match message {
            Message::StreamStart { xid, .. } => self.block = Some(xid.0),
            Message::StreamStop => self.block = None,
            Message::Relation(relation) => {
                match xid {
                    Some(xid) => self.in_streams.insert((xid, relation.id.0), relation.name),
                    None => self.known.insert(relation.id.0, relation.name),
                };
                return;
            }
            Message::Insert { relation, new } => {
                let known = match xid {
                    Some(xid) => self.in_streams.get(&(xid, relation.0)),
                    None => self.known.get(&relation.0),
                };
                let proto::pgoutput::Column::Text(value) = new.columns().next().unwrap() else {
                    panic!("no text")
                };
                assert_eq!(known.map(|name| name.as_bytes()), Some(value), "a row in the wrong form");
            }
            _ => {}
        }
        self.got.push(data.to_vec());
    }
}

fn play(events: &[Event], limits: Limits) {
    let mut stream = Stream::new(limits);
    let mut readers: Vec<Reader> = Vec::new();
    for event in events {
        stream.play(event);
        match event {
            Event::Enter(part) => {
                let from = 1 + (stream.lsn as f64 * part) as u64;
                if let Ok(cursor) = stream.track.enter(Lsn::new(from)) {
                    readers.push(Reader::new(cursor, from));
                }
            }
            Event::Read(number, times) => {
                if let Some(reader) = readers.get_mut(*number) {
                    reader.read_told(*times, &stream);
                }
            }
            _ => {}
        }
    }
    stream.flush();
    for reader in &mut readers {
        reader.read_told(usize::MAX, &stream);
        let expected = stream.expected_by(reader.from, reader.told);
        if reader.is_evicted {
            assert!(expected.starts_with(&reader.got), "what came before the eviction");
        } else {
            assert_eq!(reader.got, expected, "from {}", reader.from);
        }
    }
    drop(readers);
    assert_eq!(stream.track.entrance().cursors(), 0);
}

fn limits(memory_bytes: usize, file_bytes: u64, chapter_bytes: u64) -> Limits {
    Limits { memory: TrackMemory::new(memory_bytes), file_bytes, chapter_bytes, dir: std::env::temp_dir() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn l4_everybody_gets_what_they_need(
        events in prop::collection::vec(event(), 1..120),
        chapter in prop_oneof![Just(1_u64), Just(500), Just(1 << 20)],
    ) {
        play(&events, limits(1 << 20, 1 << 30, chapter));
    }

    #[test]
    fn the_same_through_files(
        events in prop::collection::vec(event(), 1..120),
        chapter in prop_oneof![Just(1_u64), Just(500)],
        memory in prop_oneof![Just(1_usize), Just(600)],
    ) {
        play(&events, limits(memory, 1 << 30, chapter));
    }

    #[test]
    fn nothing_wrong_comes_before_an_eviction(events in prop::collection::vec(event(), 1..120)) {
        play(&events, limits(600, 0, 300));
    }
}

#[test]
fn l4_a_late_reader_costs_files_and_nobody_else() {
    let mut stream = Stream::new(limits(4_000, 1 << 30, 1_000));
    let late = stream.track.enter(Lsn::new(1)).unwrap();
    let mut early = Reader::new(stream.track.enter(Lsn::new(1)).unwrap(), 1);
    for _ in 0..200 {
        stream.play(&Event::Whole(vec![0, 1, 2]));
        stream.play(&Event::Flush);
        early.read(usize::MAX);
    }
    let (memory, files) = stream.track.kept_bytes();
    assert!(memory <= 4_000 + 1_000 && files > 20_000, "{memory} {files}");
    assert_eq!(early.got, stream.expected(1));
    let mut late = Reader::new(late, 1);
    late.read(usize::MAX);
    assert_eq!(late.got, early.got);
    stream.play(&Event::Whole(vec![0]));
    stream.play(&Event::Flush);
    assert_eq!(stream.track.kept_bytes().1, 0, "nobody needs the files any more");
}

#[test]
fn l4_who_is_too_late_enters_elsewhere() {
    let mut stream = Stream::new(limits(1_000, 0, 300));
    let mut cursor = stream.track.enter(Lsn::new(1)).unwrap();
    for _ in 0..100 {
        stream.play(&Event::Whole(vec![0]));
        stream.play(&Event::Flush);
    }
    assert_eq!(cursor.next().unwrap(), Next::Evicted);
    stream.track.enter(Lsn::new(9)).unwrap_err();
    let level = stream.lsn + 8;
    let mut reader = Reader::new(stream.track.enter(Lsn::new(level)).unwrap(), level);
    stream.play(&Event::Whole(vec![1]));
    stream.play(&Event::Flush);
    reader.read(usize::MAX);
    assert_eq!(reader.got, stream.expected(level));
    assert_eq!(reader.got.len(), 3);
}

#[test]
fn nobody_is_woken_for_nothing() {
    let mut stream = Stream::new(limits(1 << 20, 0, 1 << 20));
    let mut cursor = stream.track.enter(Lsn::new(1)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let short = std::time::Duration::from_millis(20);
        stream.track.flush().unwrap();
        assert!(tokio::time::timeout(short, cursor.more()).await.is_err(), "nothing was pushed");
        stream.play(&Event::Whole(vec![0]));
        assert!(tokio::time::timeout(short, cursor.more()).await.is_err(), "nothing is visible");
        stream.track.flush().unwrap();
        cursor.more().await;
    });
    assert!(matches!(cursor.next().unwrap(), Next::Frames(_)));
    assert_eq!(cursor.next().unwrap(), Next::Dry);
    assert_eq!(cursor.looks(), 1);
    assert!(cursor.is_level());
}

#[test]
fn l4_a_writer_waits_for_the_reader_that_is_furthest_along() {
    let some = Duration::from_millis(20);
    let mut stream = Stream::new(limits(4_000, 1 << 30, 1_000));
    let write = |stream: &mut Stream, events: &[Event]| {
        events.iter().chain([&Event::Flush]).for_each(|event| stream.play(event));
    };
    let whole = vec![Event::Whole(vec![0, 1, 2]); 30];
    write(&mut stream, &whole);
    assert!(stream.track.wait_for_readers(some), "nobody reads it");
    let mut late = stream.track.enter(Lsn::new(stream.lsn)).unwrap();
    write(&mut stream, &whole);
    assert!(!stream.track.wait_for_readers(some), "the only reader is far behind");
    let mut first = stream.track.enter(Lsn::new(stream.lsn)).unwrap();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            std::thread::sleep(some);
            while !matches!(first.next().unwrap(), Next::Dry) {}
        });
        let begun = Instant::now();
        assert!(stream.track.wait_for_readers(Duration::from_secs(60)));
        assert!(begun.elapsed() < Duration::from_secs(30), "it was told");
        reading.join().unwrap();
    });
    // A reader that cannot hand out a long transaction yet has read it nevertheless.
    write(&mut stream, &vec![Event::Block(0, vec![0, 1, 2]); 30]);
    let mut waits = stream.track.enter(Lsn::new(stream.lsn + 1_000)).unwrap();
    drop(first);
    while !matches!(waits.next().unwrap(), Next::Dry) {}
    assert!(stream.track.wait_for_readers(some));
    drop(waits);
    assert!(!stream.track.wait_for_readers(some));
    while !matches!(late.next().unwrap(), Next::Dry) {}
    assert!(stream.track.wait_for_readers(some));
}
