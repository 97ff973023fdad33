//! The recorded streams, and seeded damage to them. Shared by the tests of `proto` and `txn` and by
//! the fuzz targets.

use std::path::Path;

use bytes::{Buf, Bytes, BytesMut};
use proto::frame;
use proto::pgoutput::Message;
use proto::replication::WalsenderMessage;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The bytes of a replication session from a socket.
pub(crate) struct Recorded {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// Every recording, by name.
pub(crate) fn recorded() -> Vec<Recorded> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/tests/corpus");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("a directory entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        Recorded { name, bytes: std::fs::read(path).expect("a recording") }
    };
    let mut all: Vec<Recorded> = std::fs::read_dir(dir).expect("the corpus").map(read).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

impl Recorded {
    pub(crate) fn is_binary(&self) -> bool {
        self.name.contains("binary")
    }

    pub(crate) fn is_two_phase(&self) -> bool {
        self.name.contains("two-phase")
    }

    /// The messages of pgoutput, each with whether it is in a stream block.
    pub(crate) fn messages(&self) -> Vec<(Bytes, bool)> {
        let mut buffer = BytesMut::from(&self.bytes[..]);
        let mut messages = Vec::new();
        let mut in_stream = false;
        while let Some(frame) = frame::next(&mut buffer).expect("a recording is whole") {
            let keepalive_or_data =
                (frame.tag == frame::COPY_DATA).then(|| WalsenderMessage::decode(frame.body));
            let Some(Ok(WalsenderMessage::XLogData { data, .. })) = keepalive_or_data else { continue };
            let stops = data.first() == Some(&b'E');
            let starts = data.first() == Some(&b'S');
            messages.push((data, in_stream && !stops));
            in_stream = (in_stream || starts) && !stops;
        }
        assert!(!buffer.has_remaining(), "{}: the recording ends in the middle of a message", self.name);
        messages
    }
}

/// The random numbers for a case. Its seed is printed when the case fails.
pub(crate) fn random(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// Makes one to three edits: bytes changed, cut out, inserted, doubled, or overwritten with a wrong
/// length.
pub(crate) fn damage(bytes: &[u8], random: &mut StdRng) -> Vec<u8> {
    let mut damaged = bytes.to_vec();
    for _ in 0..random.random_range(1..=3) {
        let length = damaged.len();
        if length == 0 {
            break;
        }
        let at = random.random_range(0..length);
        let end = (at + random.random_range(1..=8)).min(length);
        match random.random_range(0..7) {
            0 => damaged[at] ^= 1 << random.random_range(0..8),
            1 => damaged[at] = random.random(),
            2 => damaged.truncate(at),
            3 => drop(damaged.drain(at..end)),
            4 => drop(damaged.splice(at..at, (0..end - at).map(|n| n as u8).collect::<Vec<_>>())),
            5 => {
                let piece = damaged[at..end].to_vec();
                damaged.splice(at..at, piece);
            }
            _ => {
                let odd =
                    [0, 1, 2, 0xff, 0x7fff_ffff, 0x8000_0000, u32::MAX, length as u32, length as u32 + 1];
                let odd = odd[random.random_range(0..odd.len())].to_be_bytes();
                let size = end.min(at + 4) - at;
                damaged[at..at + size].copy_from_slice(&odd[4 - size..]);
            }
        }
    }
    damaged
}

/// The number of cases for each message or stream: `PGSLUICE_MUTATIONS`, or `usual`.
pub(crate) fn cases(usual: u64) -> u64 {
    let text = std::env::var("PGSLUICE_MUTATIONS").unwrap_or_default();
    if text.is_empty() { usual } else { text.parse().expect("PGSLUICE_MUTATIONS is a number") }
}

/// The first byte of a message.
pub(crate) fn kind(message: &Message) -> u8 {
    match message {
        Message::Begin { .. } => b'B',
        Message::Commit(_) => b'C',
        Message::Origin { .. } => b'O',
        Message::Relation(_) => b'R',
        Message::Type { .. } => b'Y',
        Message::Insert { .. } => b'I',
        Message::Update { .. } => b'U',
        Message::Delete { .. } => b'D',
        Message::Truncate { .. } => b'T',
        Message::Logical { .. } => b'M',
        Message::StreamStart { .. } => b'S',
        Message::StreamStop => b'E',
        Message::StreamCommit { .. } => b'c',
        Message::StreamAbort { .. } => b'A',
        Message::TwoPhase { kind } => *kind,
    }
}
