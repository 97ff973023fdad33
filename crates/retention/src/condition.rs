//! Whether capture runs; if not, why, and what a person can do about it.
//!
//! ```text
//!             connected, no catalogs kept        looked
//! Starting ------------------------------> Looking ---> Capturing
//!   ^  |  '--------------- catalogs kept ------------------^  |
//!   |  '--> Unfit: the target cannot be captured              |
//!   |         |                                               |
//!   '---------+------- tried again after a pause ---- Failed <'
//! ```

use std::fmt;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// It has not found out where to begin.
    Starting,
    /// It looks at the target's catalogs, and waits for transactions that run there.
    Looking,
    /// It follows the target's WAL.
    Capturing,
    /// Somebody must change the target first.
    Unfit(Unfit),
    /// An attempt ended with this error. The next one comes soon.
    Failed(String),
}

/// Why the deletions of a target cannot be captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// `wal_level` is below `logical`: WAL does not say which row was deleted.
    WalLevel(String),
    /// The target is in recovery.
    Standby,
    /// This role may not use replication.
    NoReplication(String),
    /// All replication slots are in use, as many as `max_replication_slots`.
    NoSlot(i64),
    /// `max_wal_senders` of them are in use.
    NoSender(i64),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::WalLevel(found) => write!(
                f,
                "deletions cannot be captured: wal_level of the target is {found}, and its WAL does not name deleted rows; \
                 run `ALTER SYSTEM SET wal_level = logical` on the target, then restart it"
            ),
            Unfit::Standby => f.write_str(
                "deletions cannot be captured: the target is in recovery; promote it, or connect to its primary \
                 (target_session_attrs=read-write finds that among several hosts)",
            ),
            Unfit::NoReplication(role) => write!(
                f,
                "deletions cannot be captured: role {role} may not replicate from the target; \
                 run `ALTER ROLE {} REPLICATION` there",
                base::quote_ident(role)
            ),
            Unfit::NoSlot(max) => write!(
                f,
                "deletions cannot be captured: the replication slots of the target are in use, all {max} of them; \
                 drop one, or run `ALTER SYSTEM SET max_replication_slots = {}` there, then restart it",
                max + 1
            ),
            Unfit::NoSender(max) => write!(
                f,
                "deletions cannot be captured: the walsenders of the target are in use, all {max} of them; \
                 end one, or run `ALTER SYSTEM SET max_wal_senders = {}` there, then restart it",
                max + 1
            ),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::Starting => f.write_str("starting"),
            Condition::Looking => {
                f.write_str("waiting for transactions of the target, to look at its catalogs")
            }
            Condition::Capturing => f.write_str("capturing"),
            Condition::Unfit(unfit) => unfit.fmt(f),
            Condition::Failed(why) => f.write_str(why),
        }
    }
}
