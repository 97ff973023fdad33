//! Which transactions a snapshot of a server sees.

use std::fmt;
use std::str::FromStr;

use crate::Xid;

/// The transactions that a snapshot of a server sees, in the form of `pg_current_snapshot()`:
/// `xmin:xmax:xip,xip`. It names only top-level transactions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PgSnapshot {
    /// All older transactions have ended.
    pub xmin: u64,
    /// This transaction and all later ones have not ended.
    pub xmax: u64,
    /// The running transactions between the two, sorted.
    pub running: Vec<u64>,
}

/// The text is no snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseSnapshotError;

impl fmt::Display for ParseSnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a snapshot is written as xmin:xmax:xid,xid")
    }
}

impl std::error::Error for ParseSnapshotError {}

impl FromStr for PgSnapshot {
    type Err = ParseSnapshotError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.parse::<u64>().map_err(|_| ParseSnapshotError);
        let mut parts = text.splitn(3, ':');
        let mut part = || parts.next().ok_or(ParseSnapshotError);
        let (xmin, xmax, list) = (number(part()?)?, number(part()?)?, part()?);
        let list = list.split(',').filter(|xid| !xid.is_empty());
        let mut running = list.map(number).collect::<Result<Vec<_>, _>>()?;
        running.sort_unstable();
        Ok(PgSnapshot { xmin, xmax, running })
    }
}

impl fmt::Display for PgSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let running: Vec<String> = self.running.iter().map(u64::to_string).collect();
        write!(f, "{}:{}:{}", self.xmin, self.xmax, running.join(","))
    }
}

impl PgSnapshot {
    /// Whether it sees the top-level transaction with this id, if that has committed. WAL and
    /// streams have the lower half of ids. The nearest whole id is meant, because no two relevant
    /// ids are 2^31 apart.
    #[must_use]
    pub fn sees(&self, top: Xid) -> bool {
        let from_xmax = i64::from(top.0.wrapping_sub(self.xmax as u32).cast_signed());
        let xid = self.xmax.wrapping_add_signed(from_xmax);
        let is_older = from_xmax < self.xmin.wrapping_sub(self.xmax).cast_signed();
        is_older || (from_xmax < 0 && self.running.binary_search(&xid).is_err())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> PgSnapshot {
        text.parse().unwrap()
    }

    #[test]
    fn what_was_running_is_not_seen_also_where_ids_wrap_around() {
        let seen = snapshot("10:20:15,10");
        let cases = [(3, true), (9, true), (10, false), (11, true), (15, false), (19, true), (20, false)];
        for (xid, sees) in cases {
            assert_eq!(seen.sees(Xid(xid)), sees, "{xid}");
        }
        let epoch = 1_u64 << 32;
        let seen = snapshot(&format!("{}:{}:{}", epoch - 5, epoch + 5, epoch + 3));
        for (xid, sees) in [(u32::MAX - 10, true), (u32::MAX, true), (3, false), (4, true), (5, false)] {
            assert_eq!(seen.sees(Xid(xid)), sees, "{xid}");
        }
        // A server that has come this far for the first time has no older ids. If the epoch is
        // unknown, there are some.
        assert!(snapshot("800:900:850").sees(Xid(u32::MAX - 10)));
        let idle = snapshot("800:800:");
        assert!(idle.sees(Xid(799)) && !idle.sees(Xid(800)) && !idle.sees(Xid(900)));
    }

    #[test]
    fn what_is_written_is_read_again() {
        for text in ["10:20:10,15", "800:800:", "21474836475:21474836490:21474836475,21474836480"] {
            assert_eq!(snapshot(text).to_string(), text);
        }
        for text in ["", "1:2", "1:x:", "a:2:", "1:2:3,,x"] {
            assert_eq!(text.parse::<PgSnapshot>(), Err(ParseSnapshotError), "{text}");
        }
    }
}
