//! The recorded WAL, and seeded damage to it. Shared by the tests of `wal` and `decode`.

use std::path::Path;

use base::Lsn;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use wal::{Error, Reader, Record, Start};

pub(crate) const PAGE: usize = 8192;
/// Where a page has its own position, which ends the important part of its header.
const ADDRESS: std::ops::Range<usize> = 8..16;

/// A stretch of WAL with its bytes on disk.
pub(crate) struct Recorded {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) start: Lsn,
}

/// Every recording, by name.
pub(crate) fn recorded() -> Vec<Recorded> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wal/tests/corpus");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("a directory entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let bytes = std::fs::read(path).expect("a recording");
        let start = Lsn::new(u64::from_le_bytes(bytes[ADDRESS].try_into().expect("eight bytes")));
        Recorded { name, bytes, start }
    };
    let mut all: Vec<Recorded> = std::fs::read_dir(dir).expect("the corpus").map(read).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(all.len() >= 10, "only {} recordings", all.len());
    all
}

/// A copy of a record.
#[derive(Debug, PartialEq, Clone)]
pub(crate) struct Copied {
    pub(crate) lsn: Lsn,
    pub(crate) end: Lsn,
    pub(crate) bytes: Vec<u8>,
}

impl Recorded {
    /// The records, all of which must be right.
    pub(crate) fn records(&self) -> Vec<Copied> {
        let (records, end) = read(&self.bytes, self.start, usize::MAX);
        end.unwrap_or_else(|error| panic!("{}: {error}", self.name));
        records
    }

    /// The results of `see` for each record.
    #[allow(dead_code, reason = "not every test needs more than the bytes")]
    pub(crate) fn each<T>(&self, mut see: impl FnMut(&Record<'_>) -> T) -> Vec<T> {
        let mut reader = Reader::new(Start::at(self.start)).expect("a start");
        let mut records = reader.push(self.start, &self.bytes).expect("the first bytes");
        let mut seen = Vec::new();
        while let Some(record) = records.poll().unwrap_or_else(|error| panic!("{}: {error}", self.name)) {
            seen.push(see(&record));
        }
        seen
    }
}

/// The records of `bytes`, which begin at `start`, pushed in pieces. Also where they ended, or the
/// error.
pub(crate) fn read(bytes: &[u8], start: Lsn, piece: usize) -> (Vec<Copied>, Result<Lsn, Error>) {
    let mut reader = Reader::new(Start::at(start)).expect("a start");
    let mut copied = Vec::new();
    for piece in bytes.chunks(piece.min(bytes.len().max(1))) {
        let mut records = match reader.push(reader.position(), piece) {
            Ok(records) => records,
            Err(error) => return (copied, Err(error)),
        };
        loop {
            match records.poll() {
                Ok(Some(record)) => {
                    let (lsn, end, bytes) = (record.lsn(), record.end(), record.bytes().to_vec());
                    copied.push(Copied { lsn, end, bytes });
                }
                Ok(None) => break,
                Err(error) => return (copied, Err(error)),
            }
        }
    }
    let end = reader.finish();
    (copied, end)
}

/// The random numbers for a case. Its seed is printed when the case fails.
pub(crate) fn random(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// The number of cases: `PGSLUICE_MUTATIONS`, or `usual`.
pub(crate) fn cases(usual: u64) -> u64 {
    let text = std::env::var("PGSLUICE_MUTATIONS").unwrap_or_default();
    if text.is_empty() { usual } else { text.parse().expect("PGSLUICE_MUTATIONS is a number") }
}

/// The length of a record's header, and the places of its length and checksum.
pub(crate) const HEADER: usize = 24;
const LENGTH: std::ops::Range<usize> = 0..4;
const CRC: std::ops::Range<usize> = 20..24;

/// Corrects length and checksum for the bytes, so that reading goes on to the contents.
pub(crate) fn seal(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().max(HEADER), 0);
    let length = u32::try_from(bytes.len()).expect("a small record");
    bytes[LENGTH].copy_from_slice(&length.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[HEADER..]), &bytes[..CRC.start]);
    bytes[CRC].copy_from_slice(&crc.to_le_bytes());
}

/// Makes one to three edits behind the header or in its info: bytes changed, cut out, inserted, or
/// overwritten with a wrong number. Then seals the record again.
pub(crate) fn damage(bytes: &[u8], random: &mut StdRng) -> Vec<u8> {
    let mut damaged = bytes.to_vec();
    if random.random_range(0..8) == 0 {
        damaged[16] = random.random();
    }
    for _ in 0..random.random_range(1..=3) {
        if damaged.len() <= HEADER {
            break;
        }
        // Mostly at the front, where the lengths are.
        let last = if random.random() { damaged.len() } else { damaged.len().min(HEADER + 64) };
        let at = random.random_range(HEADER..last);
        let end = (at + random.random_range(1..=8)).min(damaged.len());
        match random.random_range(0..6) {
            0 => damaged[at] ^= 1 << random.random_range(0..8),
            1 => damaged[at] = random.random(),
            2 => damaged.truncate(at),
            3 => drop(damaged.drain(at..end)),
            4 => drop(damaged.splice(at..at, (0..end - at).map(|n| n as u8).collect::<Vec<_>>())),
            _ => {
                let odd = [0, 1, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, u32::MAX, damaged.len() as u32];
                let odd = odd[random.random_range(0..odd.len())].to_le_bytes();
                let size = end.min(at + 4) - at;
                damaged[at..at + size].copy_from_slice(&odd[..size]);
            }
        }
    }
    seal(&mut damaged);
    damaged
}
