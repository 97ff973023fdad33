//! A sender and a subscriber that is played here, byte by byte.

#![allow(clippy::unwrap_used, reason = "tests, with functions of their own")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use base::{Lsn, Oid, PgTimestamp, Xid};
use bytes::{Bytes, BytesMut};
use listener::Link;
use proto::frame::{self, Frame, copy_data_header};
use proto::pgoutput::CommitInfo;
use proto::pgoutput::encode;
use proto::replication::{StandbyStatus, WalsenderMessage};
use relay::{
    Ended, EnterAlone, FormEnd, FormHandle, FormId, FormPosition, RestartOf, Sent, SlotState, Slots, Told,
    Walsender,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use track::{Limits, Track, TrackMemory};

const NO_TIME: PgTimestamp = PgTimestamp(0);
const START: Lsn = Lsn::new(1000);

struct Stage {
    runtime: Runtime,
    track: Track,
    position: FormPosition,
    slots: Slots,
    figures: Arc<Sent>,
    lsn: u64,
    _dir: TempDir,
}

/// A subscriber's end of the connection.
struct Subscriber {
    stream: TcpStream,
    inbox: BytesMut,
}

type Running = JoinHandle<(Ended, Link)>;

impl Stage {
    fn new(memory_bytes: usize, file_bytes: u64) -> Stage {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits {
            memory: TrackMemory::new(memory_bytes),
            file_bytes,
            chapter_bytes: 1 << 16,
            dir: dir.path().to_owned(),
        };
        Stage {
            runtime: Runtime::new().unwrap(),
            track: Track::new(START, limits),
            position: FormPosition::default(),
            slots: Slots::open(&dir.path().join("slots"), 18).unwrap(),
            figures: Arc::default(),
            lsn: START.as_u64(),
            _dir: dir,
        }
    }

    fn start(&self, timeout: Duration) -> (Subscriber, Running) {
        let state = SlotState {
            name: "s".to_owned(),
            database: 5,
            database_name: "d".to_owned(),
            confirmed: START,
            restart: Lsn::new(900),
            two_phase_at: None,
            failover: false,
            invalidated: None,
            left_at: None,
        };
        let slot = match self.slots.create(state, false, 7) {
            Ok(slot) => slot,
            Err(_) => self.slots.acquire("s", Oid(5), 7, START).unwrap(),
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        accepted.set_nonblocking(true).unwrap();
        let cursor = self.track.enter(START).unwrap();
        let form = FormHandle {
            id: FormId::default(),
            entrance: self.track.entrance(),
            position: self.position.clone(),
            end: FormEnd::default(),
        };
        let figures = Arc::clone(&self.figures);
        let running = self.runtime.spawn(async move {
            let link = Link::over(tokio::net::TcpStream::from_std(accepted).unwrap());
            // A tenth is behind what was confirmed.
            let restart_of = |confirmed: Lsn| Lsn::new(confirmed.as_u64() - 100);
            let enter_alone = || -> Result<_, Told> { panic!("the form has failed") };
            let form = (form, &restart_of as RestartOf<'_>, &enter_alone as EnterAlone<'_>);
            let sender = Walsender::new(link, (cursor, slot, START), form, timeout, figures);
            // The slot is free again.
            let (ended, link, _) = sender.run(&CancellationToken::new()).await;
            (ended, link)
        });
        let mut subscriber = Subscriber { stream, inbox: BytesMut::new() };
        assert_eq!(subscriber.frame().tag, b'W');
        (subscriber, running)
    }

    /// A transaction with a message of this size. Returns where it ends.
    fn transaction(&mut self, size: usize) -> Lsn {
        let end_lsn = self.transaction_alone(size);
        self.position.came_to(end_lsn);
        end_lsn
    }

    /// The same, and the form does not yet say that it has come there.
    fn transaction_alone(&mut self, size: usize) -> Lsn {
        let (commit_lsn, end_lsn) = (Lsn::new(self.lsn + 8), Lsn::new(self.lsn + 16));
        self.lsn += 16;
        let commit = CommitInfo { commit_lsn, end_lsn, commit_time: NO_TIME };
        let mut push = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut message = Vec::new();
            write(&mut message);
            self.track.push(end_lsn, NO_TIME, &message).unwrap();
        };
        push(&|out| encode::begin(out, commit_lsn, NO_TIME, Xid(7)));
        push(&|out| encode::message(out, None, true, commit_lsn, (b"p", &vec![b'x'; size])));
        push(&|out| encode::commit(out, &commit));
        self.track.flush().unwrap();
        end_lsn
    }

    fn ended(&self, running: Running) -> (Ended, Link) {
        let bounded = async { tokio::time::timeout(Duration::from_secs(30), running).await };
        self.runtime.block_on(bounded).expect("the sender ends").unwrap()
    }
}

impl Subscriber {
    fn frame(&mut self) -> Frame {
        self.frame_in_time().expect("a message in time")
    }

    /// `None` if nothing comes within the stream's time limit.
    fn frame_in_time(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = frame::next(&mut self.inbox).unwrap() {
                return Some(frame);
            }
            let mut bytes = [0; 1 << 16];
            let size = self.stream.read(&mut bytes).ok()?;
            assert!(size > 0, "the connection was closed");
            self.inbox.extend_from_slice(&bytes[..size]);
        }
    }

    fn message(&mut self) -> WalsenderMessage {
        let frame = self.frame();
        assert_eq!(frame.tag, b'd');
        WalsenderMessage::decode(frame.body).unwrap()
    }

    /// Reads until a keepalive says at least this position. Returns the ends of the transactions.
    /// None of them may be announced by a keepalive before it has come (rule L3).
    fn read_to(&mut self, lsn: Lsn) -> Vec<Lsn> {
        let mut ends = Vec::new();
        let mut said = Lsn::INVALID;
        loop {
            match self.message() {
                WalsenderMessage::XLogData { data, .. } if data[0] == b'C' => {
                    let end = Lsn::new(u64::from_be_bytes(data[10..18].try_into().unwrap()));
                    assert!(end > said, "{end} comes behind a keepalive that said {said}");
                    ends.push(end);
                }
                WalsenderMessage::XLogData { .. } => {}
                WalsenderMessage::Keepalive { wal_end, .. } => {
                    said = said.max(wal_end);
                    if said >= lsn {
                        return ends;
                    }
                }
            }
        }
    }

    fn say(&mut self, tag: u8, body: &[u8]) {
        let mut header = copy_data_header(body.len()).unwrap();
        header[0] = tag;
        self.stream.write_all(&[&header[..], body].concat()).unwrap();
    }

    fn status(&mut self, flushed: Lsn, reply_requested: bool) {
        let status =
            StandbyStatus { written: flushed, flushed, applied: Lsn::INVALID, at: NO_TIME, reply_requested };
        self.say(b'd', &status.encode());
    }
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn what_is_confirmed_moves_the_slot() {
    let mut stage = Stage::new(1 << 20, 0);
    let (mut subscriber, running) = stage.start(LONG);
    let ends: Vec<Lsn> = (0..10).map(|_| stage.transaction(100)).collect();
    assert_eq!(subscriber.read_to(ends[9]), ends);
    subscriber.status(ends[4], true);
    // The answer comes behind the update.
    let WalsenderMessage::Keepalive { wal_end, reply_requested, .. } = subscriber.message() else {
        panic!("no answer")
    };
    assert!(wal_end == ends[9] && !reply_requested);
    let state = stage.slots.shown()[0].state.clone();
    assert_eq!((state.confirmed, state.restart), (ends[4], Lsn::new(ends[4].as_u64() - 100)));
    // A position that was never sent is not believed.
    subscriber.status(Lsn::new(1 << 40), true);
    subscriber.message();
    assert_eq!(stage.slots.shown()[0].state.confirmed, ends[9]);
    // The stream ends in order.
    subscriber.say(b'c', b"");
    let (ended, link) = stage.ended(running);
    assert!(matches!(ended, Ended::Done));
    stage.runtime.block_on(async move { link.close().await });
    let tags: Vec<(u8, Bytes)> =
        (0..3).map(|_| subscriber.frame()).map(|frame| (frame.tag, frame.body)).collect();
    assert_eq!(tags[0].0, b'c');
    assert_eq!(tags[1], (b'C', Bytes::from_static(b"COPY 0\0")));
    assert_eq!(tags[2], (b'C', Bytes::from_static(b"START_REPLICATION\0")));
    let shown = stage.figures.shown();
    assert_eq!(shown.sent, ends[9]);
}

/// A message can be read before the form says where it is. A subscriber may confirm it and go in
/// that moment, as pg_recvlogical does at `--endpos`. It got everything a second time then.
#[test]
fn what_was_sent_can_be_confirmed_before_the_form_has_come_there() {
    let mut stage = Stage::new(1 << 20, 0);
    let (mut subscriber, _running) = stage.start(LONG);
    let end = stage.transaction_alone(100);
    while !matches!(subscriber.message(), WalsenderMessage::XLogData { data, .. } if data[0] == b'C') {}
    subscriber.status(end, true);
    while !matches!(subscriber.message(), WalsenderMessage::Keepalive { .. }) {}
    assert_eq!(stage.slots.shown()[0].state.confirmed, end);
}

#[test]
fn l3_a_keepalive_never_passes_what_was_sent() {
    let mut stage = Stage::new(1 << 16, 1 << 30);
    let (mut subscriber, _running) = stage.start(Duration::from_millis(600));
    // More than the socket takes, and the subscriber does not read.
    let ends: Vec<Lsn> = (0..400).map(|_| stage.transaction(50_000)).collect();
    let last = *ends.last().unwrap();
    // A reply in time, so that the sender wants to say something meanwhile.
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(250));
        subscriber.status(START, true);
    }
    let mut seen = Vec::new();
    while seen.last() != Some(&last) {
        seen.extend(
            subscriber.read_to(seen.last().copied().unwrap_or(START).max(Lsn::new(START.as_u64() + 16))),
        );
        subscriber.status(START, false);
    }
    assert_eq!(seen, ends);
}

#[test]
fn a_subscriber_that_is_silent_is_asked_and_then_left() {
    let mut stage = Stage::new(1 << 20, 0);
    let (mut subscriber, running) = stage.start(Duration::from_millis(800));
    stage.transaction(10);
    subscriber.stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut asked = false;
    while !running.is_finished() {
        if let Some(frame) = subscriber.frame_in_time()
            && let Ok(WalsenderMessage::Keepalive { reply_requested, .. }) =
                WalsenderMessage::decode(frame.body)
        {
            asked |= reply_requested;
        }
    }
    let (ended, _) = stage.ended(running);
    assert!(asked && matches!(ended, Ended::Silent), "{asked} {ended:?}");
}

#[test]
fn what_is_no_answer_is_refused() {
    for (tag, body, part) in [
        (b'Q', &b"SELECT 1\0"[..], "unexpected message type 0x51"),
        (b'd', b"x", "unexpected message type \"x\""),
        (b'd', b"r", "insufficient data left in message"),
    ] {
        let stage = Stage::new(1 << 20, 0);
        let (mut subscriber, running) = stage.start(LONG);
        subscriber.say(tag, body);
        let Ended::Refused(told) = stage.ended(running).0 else { panic!("not refused") };
        assert!(told.0.code == "08P01" && told.0.message.contains(part), "{told}");
    }
}

#[test]
fn a_subscriber_that_is_too_late_is_evicted_and_the_slot_is_free() {
    let mut stage = Stage::new(1 << 16, 1 << 17);
    let (mut subscriber, running) = stage.start(LONG);
    let ends: Vec<Lsn> = (0..800).map(|_| stage.transaction(50_000)).collect();
    let mut seen = 0;
    while !running.is_finished() {
        let frame = subscriber.frame();
        seen += usize::from(frame.body.get(25) == Some(&b'C'));
        if seen == ends.len() {
            break;
        }
    }
    assert!(matches!(stage.ended(running).0, Ended::Evicted), "{seen} of {}", ends.len());
    assert_eq!(stage.slots.user("s"), None);
}
