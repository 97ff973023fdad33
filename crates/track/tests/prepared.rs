//! Transactions that were prepared before two-phase commit began. They come when they commit, with
//! a PREPARE whose position is older than that of what came before.

#![allow(clippy::unwrap_used, reason = "tests, with functions of their own")]

use base::{Lsn, PgTimestamp, Xid};
use bytes::BytesMut;
use proto::frame;
use proto::pgoutput::CommitInfo;
use proto::pgoutput::encode::{self, Prepared};
use proto::replication::WalsenderMessage;
use track::{Limits, Next, Track, TrackMemory};

const NO_TIME: PgTimestamp = PgTimestamp(0);
const TWO_PHASE_AT: Lsn = Lsn::new(1_000);

/// A track with two-phase commit, and chapters as short as can be.
fn track() -> Track {
    let limits = Limits {
        memory: TrackMemory::new(1 << 20),
        file_bytes: 0,
        chapter_bytes: 1,
        dir: std::env::temp_dir(),
    };
    Track::new(TWO_PHASE_AT, limits).with_two_phase_at(TWO_PHASE_AT)
}

fn push(track: &mut Track, write: impl FnOnce(&mut Vec<u8>)) {
    let mut message = Vec::new();
    write(&mut message);
    track.push(Lsn::new(1), NO_TIME, &message).unwrap();
}

fn prepared(at: u64, track: &mut Track) {
    let transaction = Prepared {
        prepare_lsn: Lsn::new(at),
        end_lsn: Lsn::new(at + 8),
        time: NO_TIME,
        xid: Xid(7),
        gid: b"g",
    };
    push(track, |out| encode::begin_prepare(out, &transaction));
    push(track, |out| encode::prepare(out, &transaction));
}

fn commit_of(at: u64) -> CommitInfo {
    CommitInfo { commit_lsn: Lsn::new(at), end_lsn: Lsn::new(at + 8), commit_time: NO_TIME }
}

fn commit_prepared(at: u64, track: &mut Track) {
    push(track, |out| encode::commit_prepared(out, Xid(7), &commit_of(at), b"g"));
}

/// The kinds of all messages for who has confirmed everything before `from`.
fn kinds(track: &Track, from: u64) -> String {
    let mut cursor = track.enter(Lsn::new(from)).unwrap();
    let mut bytes = BytesMut::new();
    while let Next::Frames(more) = cursor.next().unwrap() {
        bytes.extend_from_slice(&more.bytes);
    }
    let mut kinds = String::new();
    while let Some(frame) = frame::next(&mut bytes).unwrap() {
        let WalsenderMessage::XLogData { data, .. } = WalsenderMessage::decode(frame.body).unwrap() else {
            panic!("no message")
        };
        kinds.push(char::from(data[0]));
    }
    kinds
}

#[test]
fn l4_who_needs_a_commit_also_needs_its_late_prepare() {
    let mut track = track();
    push(&mut track, |out| encode::begin(out, Lsn::new(1_100), NO_TIME, Xid(6)));
    push(&mut track, |out| encode::commit(out, &commit_of(1_100)));
    // Prepared before two-phase commit began, and committed behind another transaction.
    prepared(900, &mut track);
    commit_prepared(1_200, &mut track);
    // Prepared and committed after that.
    prepared(1_300, &mut track);
    commit_prepared(1_400, &mut track);
    track.flush().unwrap();
    for (from, expected) in [
        (1_000, "BCbPKbPK"),
        (1_108, "bPKbPK"),
        (1_200, "bPKbPK"),
        (1_208, "bPK"),
        (1_300, "bPK"),
        (1_308, "K"),
        (1_400, "K"),
        (1_408, ""),
    ] {
        assert_eq!(kinds(&track, from), expected, "from {from}");
    }
}
