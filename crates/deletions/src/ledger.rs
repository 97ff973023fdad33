//! What the memory knows of itself, as it stands on disk beside the tombstones.
//!
//! Each commit that has something to say writes an entry, under its LSN, into a window tree. So the
//! newest entry is always there, and entries below the horizon go by themselves. Opening reads all
//! of them: the newest one for the state, each one for its [`Mark`].
//!
//! ```text
//! u8   version of this form
//! u64 system identifier, u32 database, u32 timeline, u64 where reading must begin again
//! mark:    u64 count, u64 bytes, time newest, i64 made
//! horizon: u64 LSN, time forgotten, time greatest
//! cut:     u64 LSN (0 for none), i64 time
//! landmark, since version 2: u64 LSN (0 for none), u32 checksum
//! ```
//! A time is an i64, and the smallest one stands for none. Numbers are little-endian.

use base::{Lsn, Oid, PgTimestamp};

use crate::coverage::{Cut, Forgotten, Landmark, Server};
use crate::marks::Mark;

const VERSION: u8 = 2;
/// The version without a landmark.
const VERSION_UNMARKED: u8 = 1;
const NO_TIME: i64 = i64::MIN;

/// One entry, without its LSN, which is its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) system_id: u64,
    pub(crate) database: Oid,
    pub(crate) timeline: u32,
    pub(crate) restart: Lsn,
    pub(crate) mark: Mark,
    pub(crate) forgotten: Forgotten,
    pub(crate) landmark: Option<Landmark>,
}

impl Entry {
    pub(crate) fn new(server: &Server, restart: Lsn, mark: Mark, forgotten: Forgotten) -> Entry {
        let Server { system_id, database, timeline, .. } = *server;
        Entry { system_id, database, timeline, restart, mark, forgotten, landmark: None }
    }

    pub(crate) fn key(lsn: Lsn) -> [u8; 8] {
        lsn.as_u64().to_be_bytes()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let Forgotten { horizon, until, cut, greatest } = self.forgotten;
        let time = |time: Option<PgTimestamp>| time.map_or(NO_TIME, |time| time.0).cast_unsigned();
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.system_id.to_le_bytes());
        out.extend_from_slice(&self.database.0.to_le_bytes());
        out.extend_from_slice(&self.timeline.to_le_bytes());
        let words = [
            self.restart.as_u64(),
            self.mark.count,
            self.mark.bytes,
            time(self.mark.newest),
            self.mark.made.0.cast_unsigned(),
            horizon.as_u64(),
            time(until),
            time(greatest),
            cut.map_or(0, |cut| cut.lsn.as_u64()),
            cut.map_or(0, |cut| cut.time.0.cast_unsigned()),
            self.landmark.map_or(0, |landmark| landmark.lsn.as_u64()),
        ];
        words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        out.extend_from_slice(&self.landmark.map_or(0, |landmark| landmark.crc).to_le_bytes());
        out
    }

    /// The entry with this key; `None` if it is none, or of another version.
    pub(crate) fn decode(key: &[u8], value: &[u8]) -> Option<Entry> {
        let lsn = Lsn::new(u64::from_be_bytes(key.try_into().ok()?));
        let (version, rest) = value.split_first()?;
        let (system_id, rest) = rest.split_first_chunk()?;
        let (database, rest) = rest.split_first_chunk()?;
        let (timeline, rest) = rest.split_first_chunk()?;
        let (words, landmark) = rest.split_first_chunk::<80>()?;
        let landmark = match *version {
            VERSION => landmark_of(landmark.try_into().ok()?),
            VERSION_UNMARKED if landmark.is_empty() => None,
            _ => return None,
        };
        let word = |at: usize| {
            let word = words[at * 8..].first_chunk().copied().unwrap_or_default();
            u64::from_le_bytes(word)
        };
        let moment = |at: usize| PgTimestamp(word(at).cast_signed());
        let time = |at: usize| Some(moment(at)).filter(|time| time.0 != NO_TIME);
        let cut = Cut { lsn: Lsn::new(word(8)), time: moment(9) };
        Some(Entry {
            system_id: u64::from_le_bytes(*system_id),
            database: Oid(u32::from_le_bytes(*database)),
            timeline: u32::from_le_bytes(*timeline),
            restart: Lsn::new(word(0)),
            mark: Mark { lsn, count: word(1), bytes: word(2), newest: time(3), made: moment(4) },
            forgotten: Forgotten {
                horizon: Lsn::new(word(5)),
                until: time(6),
                greatest: time(7),
                cut: Some(cut).filter(|cut| cut.lsn.is_valid()),
            },
            landmark,
        })
    }
}

fn landmark_of(bytes: &[u8; 12]) -> Option<Landmark> {
    let (lsn, crc) = bytes.split_first_chunk()?;
    let landmark =
        Landmark { lsn: Lsn::new(u64::from_le_bytes(*lsn)), crc: u32::from_le_bytes(crc.try_into().ok()?) };
    Some(landmark).filter(|landmark| landmark.lsn.is_valid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_comes_back_as_it_was() {
        let time = |time| Some(PgTimestamp(time));
        let mark = Mark { lsn: Lsn::new(900), count: 3, bytes: 120, newest: time(-7), made: PgTimestamp(8) };
        let cut = Some(Cut { lsn: Lsn::new(500), time: PgTimestamp(-9) });
        let forgotten = Forgotten { horizon: Lsn::new(400), until: time(3), cut, greatest: time(4) };
        let entry = Entry {
            system_id: u64::MAX,
            database: Oid(5),
            timeline: 2,
            restart: Lsn::new(850),
            mark,
            forgotten,
            landmark: Some(Landmark { lsn: Lsn::new(880), crc: u32::MAX }),
        };
        let key = Entry::key(mark.lsn);
        for entry in [
            entry,
            Entry { forgotten: Forgotten::default(), mark: Mark { newest: None, ..mark }, ..entry },
            Entry { landmark: None, ..entry },
        ] {
            assert_eq!(Entry::decode(&key, &entry.encode()), Some(entry));
        }
        let mut older = entry.encode();
        older.truncate(older.len() - 12);
        assert_eq!(Entry::decode(&key, &older), None, "it says that it has a landmark");
        older[0] = VERSION_UNMARKED;
        assert_eq!(Entry::decode(&key, &older), Some(Entry { landmark: None, ..entry }));
        let mut other = entry.encode();
        other[0] += 1;
        assert_eq!(Entry::decode(&key, &other), None);
        assert_eq!(Entry::decode(&key, &entry.encode()[1..]), None);
    }
}
