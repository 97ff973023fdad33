//! What the horizon asks of the publisher: who is in commit.
//!
//! A transaction takes its commit time first, then writes its commit record, then lets go of the
//! lock on its own id. So a transaction that has taken a time and not written its record holds that
//! lock, which every role may see in `pg_locks`. A snapshot does not show it: a transaction that
//! runs may have an id at or above the snapshot's `xmax`.
//!
//! What a session does is in `pg_stat_activity`, for roles with `pg_read_all_stats`. Without that
//! right it is [`Doing::Unknown`], and its transaction is waited for until it ends.
//!
//! Apply workers of the publisher's own subscriptions are not waited for. Their transactions keep
//! the times of the server that they come from, and are commits forwarded from there. Workers that
//! copy a new table are waited for: what they write, and their triggers, has the publisher's time.
//!
//! ```sql
//! SELECT clock_timestamp();   -- a statement of its own, and before the other one
//! SELECT l.transactionid, l.pid, a.state, a.query_start, a.wait_event, ...
//!   FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
//!  WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted;
//! ```
//!
//! Locks and sessions need not be of one moment, as long as both are read after the clock.

use base::{PgTimestamp, Xid};

/// Which server answered, and in which role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publisher {
    /// Of its cluster.
    pub system_id: u64,
    /// The timeline that it is on.
    pub timeline: u32,
    /// It is not in recovery.
    pub is_primary: bool,
}

/// What happens on the publisher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Activity {
    /// Who says so.
    pub publisher: Publisher,
    /// `clock_timestamp()`, read before the rest.
    pub clock: PgTimestamp,
    /// Everyone who holds an exclusive lock on a transaction id.
    pub holders: Vec<Holder>,
    /// Sessions that may be executing COMMIT PREPARED: by their statement, or because its text
    /// cannot be seen.
    pub finishers: Vec<Session>,
}

/// A transaction that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The transaction, or one of its subtransactions.
    pub xid: Xid,
    /// The session that runs it, if there is one.
    pub by: By,
}

/// What holds the lock of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// A session.
    Session(Session),
    /// The transaction itself: it is prepared.
    Prepared,
}

/// A session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// Its process.
    pub pid: u32,
    /// What it does.
    pub doing: Doing,
}

/// What a session does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// It executes a statement that began then (state `active`, `query_start`).
    Statement {
        /// By the publisher's clock.
        begun: PgTimestamp,
    },
    /// It waits for its client inside of a transaction (`idle in transaction`, also when aborted).
    BetweenStatements,
    /// It applies transactions of another server (`logical replication apply worker`). The clock of
    /// that server gave them their times.
    Applying,
    /// It waits for a synchronous standby (wait event `SyncRep`): its commit record is in WAL.
    WaitingForStandby,
    /// That cannot be seen, or says nothing.
    Unknown,
}

impl Doing {
    /// Whether the session may have taken a commit time up to `time`, and not written its record.
    /// It was seen when the clock was past `time`.
    fn may_be_in_commit(self, time: PgTimestamp) -> bool {
        match self {
            // The statement that commits takes its time after it has begun.
            Doing::Statement { begun } => begun <= time,
            Doing::BetweenStatements | Doing::WaitingForStandby | Doing::Applying => false,
            Doing::Unknown => true,
        }
    }
}

/// The transactions that may be in commit with a time up to some time: those that were when this
/// was made, less those that have left since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InCommit {
    time: PgTimestamp,
    /// Of sessions.
    running: Vec<Xid>,
    /// Prepared transactions, while one of `finishers` may commit them.
    prepared: Vec<Xid>,
    finishers: Vec<Session>,
}

impl InCommit {
    /// Everyone who may be in commit. The clock that `activity` has is past `time`.
    pub(crate) fn new(activity: &Activity, time: PgTimestamp) -> InCommit {
        let finishers = activity.finishers.iter().filter(|session| session.doing.may_be_in_commit(time));
        let mut in_commit = InCommit {
            time,
            running: Vec::new(),
            prepared: Vec::new(),
            finishers: finishers.copied().collect(),
        };
        for holder in &activity.holders {
            match holder.by {
                By::Session(session) if session.doing.may_be_in_commit(time) => {
                    in_commit.running.push(holder.xid)
                }
                // A COMMIT PREPARED that begins later takes a later time.
                By::Prepared if !in_commit.finishers.is_empty() => in_commit.prepared.push(holder.xid),
                By::Session(_) | By::Prepared => {}
            }
        }
        in_commit
    }

    /// Lets those go that `activity` shows to have left.
    pub(crate) fn leave(&mut self, activity: &Activity) {
        let (time, holders) = (self.time, &activity.holders);
        self.running.retain(|xid| {
            let holder = holders.iter().find(|holder| holder.xid == *xid);
            // One that was prepared meanwhile will be committed by a later statement.
            holder.is_some_and(|holder| match holder.by {
                By::Session(session) => session.doing.may_be_in_commit(time),
                By::Prepared => false,
            })
        });
        // Who executes another statement has finished the one before.
        let is_at_it = |session: &Session| activity.finishers.contains(session);
        self.finishers.retain(is_at_it);
        let is_prepared = |xid: &Xid| holders.contains(&Holder { xid: *xid, by: By::Prepared });
        let has_finishers = !self.finishers.is_empty();
        self.prepared.retain(|xid| has_finishers && is_prepared(xid));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.prepared.is_empty()
    }

    /// Those that are waited for.
    pub(crate) fn xids(&self) -> impl Iterator<Item = Xid> {
        self.running.iter().chain(&self.prepared).copied()
    }
}
