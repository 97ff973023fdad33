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
    /// The role may not use replication.
    NoReplication,
    /// All replication slots are in use.
    NoSlot,
    /// `max_wal_senders` is reached.
    NoSender,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::WalLevel(found) => write!(
                f,
                "deletions cannot be captured: wal_level of the target is {found}, and its WAL does not name deleted rows; \
                 set wal_level = logical on the target and restart it"
            ),
            Unfit::Standby => {
                f.write_str("deletions cannot be captured: the target is in recovery; connect to its primary")
            }
            Unfit::NoReplication => f.write_str(
                "deletions cannot be captured: the role may not replicate from the target; \
                 ALTER ROLE ... REPLICATION, and allow it in pg_hba.conf",
            ),
            Unfit::NoSlot => f.write_str(
                "deletions cannot be captured: all replication slots of the target are in use; \
                 drop one, or set max_replication_slots higher and restart the target",
            ),
            Unfit::NoSender => f.write_str(
                "deletions cannot be captured: all walsenders of the target are in use; \
                 set max_wal_senders higher and restart the target",
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
