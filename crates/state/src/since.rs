//! Which transactions of the stream the copy of a table lacks (rules C1 and C2).

use std::collections::HashMap;
use std::sync::Arc;

use base::{Lsn, PgSnapshot, Xid};

/// A table, by its unquoted schema and name.
pub type TableKey = (String, String);

/// The tables that take part, each with the transactions that its copy lacks.
pub type JoinedTables = HashMap<TableKey, Since>;

/// Which transactions of the stream the copy of a table lacks (rules C1 and C2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Since {
    /// The copy lacks every transaction that committed at this position or later.
    pub lsn: Lsn,
    /// Of earlier transactions, the copy lacks those that this snapshot does not see; without a
    /// snapshot it lacks none.
    pub snapshot: Option<Arc<PgSnapshot>>,
}

impl From<Lsn> for Since {
    /// The snapshot of a logical slot sees exactly the transactions that committed before its
    /// position.
    fn from(lsn: Lsn) -> Since {
        Since { lsn, snapshot: None }
    }
}

impl Since {
    /// The assignments for it in the table's row of `pgsluice.copied_table`. The column for the
    /// snapshot exists once [`crate::State::keep_snapshots`] was called.
    #[must_use]
    pub fn columns(&self) -> String {
        let seen = self.snapshot.as_ref().map(|snapshot| format!(", snapshot = '{snapshot}'"));
        format!("consistent_point = '{}'{}", self.lsn, seen.unwrap_or_default())
    }

    /// Whether the stream applies to the table the changes of the transaction that committed at
    /// `final_lsn`.
    #[must_use]
    pub fn includes(&self, final_lsn: Lsn, xid: Xid) -> bool {
        // `>=`: a commit at the consistent point starts there.
        final_lsn >= self.lsn || self.snapshot.as_ref().is_some_and(|snapshot| !snapshot.sees(xid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_snapshot_of_the_copy_saw_is_not_applied_again() {
        let lsn = |at| Lsn::new(at);
        let slot = Since::from(lsn(50));
        assert!(!slot.includes(lsn(49), Xid(7)) && slot.includes(lsn(50), Xid(7)));
        let snapshot = "10:20:10,15".parse().unwrap();
        let seen = Since { lsn: lsn(50), snapshot: Some(Arc::new(snapshot)) };
        assert!(seen.includes(lsn(49), Xid(15)), "its commit was in WAL, but it was not seen");
        assert!(!seen.includes(lsn(49), Xid(16)) && !seen.includes(lsn(1), Xid(9)));
        assert!(seen.includes(lsn(49), Xid(20)) && seen.includes(lsn(50), Xid(16)));
    }
}
