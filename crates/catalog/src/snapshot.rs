//! Which transactions the one look at the catalogs has seen.

use base::Xid;

use crate::field::field_struct;

/// `pg_current_snapshot()`, its ids without their epochs as WAL has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) xmin: Xid,
    pub(crate) xmax: Xid,
    /// Top-level transactions that were running.
    pub(crate) running: Vec<Xid>,
}

field_struct!(Snapshot { xmin, xmax, running });

impl Snapshot {
    /// From `xmin:xmax:xip,xip,...`.
    pub(crate) fn parse(text: &str) -> Option<Snapshot> {
        let mut parts = text.split(':');
        let mut part = || parts.next();
        let xid = |text: &str| text.parse::<u64>().ok().map(|xid| Xid(xid as u32));
        let (xmin, xmax) = (xid(part()?)?, xid(part()?)?);
        let running = part()?.split(',').filter(|text| !text.is_empty()).map(xid).collect::<Option<_>>()?;
        Some(Snapshot { xmin, xmax, running })
    }

    /// Whether this top-level transaction had ended.
    pub(crate) fn sees(&self, top: Xid) -> bool {
        top.precedes(self.xmin) || (top.precedes(self.xmax) && !self.running.contains(&top))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_running_is_not_seen_also_where_ids_wrap_around() {
        let snapshot = Snapshot::parse("21474836475:21474836490:21474836475,21474836480").unwrap();
        let sees = |add: u32| snapshot.sees(Xid(4_294_967_291_u32.wrapping_add(add)));
        assert_eq!(snapshot.xmin, Xid(4_294_967_291));
        assert_eq!([sees(0), sees(1), sees(5), sees(14), sees(15)], [false, true, false, true, false]);
        assert!(snapshot.sees(Xid(4_294_000_000)));
        let idle = Snapshot::parse("800:800:").unwrap();
        assert!(idle.sees(Xid(799)) && !idle.sees(Xid(800)) && !idle.sees(Xid(900)));
        for text in ["", "1:2", "1:x:", "1:2:3,,x"] {
            assert_eq!(Snapshot::parse(text), None, "{text}");
        }
    }
}
