//! Tables that join while others are being applied (rule C1).
//!
//! A table that was added to the publication is copied under a snapshot of its own while the stream
//! goes on. Its changes arrive in the same stream and cannot be applied before its rows are there.
//! So they are put aside:
//!
//! ```text
//!   begin       snapshot at C        copied           finish
//!     |--------------+------------------+---------------|------> stream
//!     |        changes of the table are put aside       | applied as they come
//!                                                       |
//!              one target transaction: what was put aside from C on,
//!              the table recorded as joined, the stream's position
//! ```
//! Transactions that committed before C are in the copy, so their changes are passed over. All that
//! commit at C or later arrive after `begin`, because `begin` is answered before the snapshot is
//! requested.
//!
//! A snapshot that no slot made has no place in WAL; it is a list of transactions ([`Since`]). It
//! is taken when all transactions that were running after `begin` have ended. So it sees everything
//! that the stream had already passed.
//!
//! Until the table joins, readers see its copy grow. If the stream lags, the table is ahead of the
//! others until the stream has passed C; the engine reports that meanwhile. Once both have
//! happened, it changes together with the others, commit by commit.
//!
//! A process that ends before that leaves the table unfinished: the next run copies it anew.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;

use base::Oid;
use plan::{Batch, Change, End};
use proto::pgoutput::CommitInfo;
use state::{Parting, Since, TableKey};
use tokio::sync::{Notify, mpsc, oneshot};
use txn::Begin;

use crate::spill::{Spill, Spilled};

/// A table's changes that wait in memory, in bytes; more go to the file.
const MEMORY_MAX: usize = 1024 * 1024;

/// A request to the applier about a table.
#[derive(Debug)]
pub(crate) enum Request {
    Begin { tables: Vec<(TableKey, Oid)>, done: oneshot::Sender<()> },
    Finish { table: TableKey, since: Since, done: oneshot::Sender<Result<(), String>> },
    Forget { table: TableKey },
}

/// The applier has ended.
#[derive(Debug)]
pub struct ApplierEnded;

/// The handle by which tables join a running stream.
#[derive(Debug, Clone)]
pub struct Joins(mpsc::Sender<Request>, Arc<Notify>);

/// The receiving end, for [`crate::apply`].
#[derive(Debug)]
pub struct JoinRequests(pub(crate) mpsc::Receiver<Request>, pub(crate) Arc<Notify>);

/// Makes both ends.
#[must_use]
pub fn joins() -> (Joins, JoinRequests) {
    let (sender, receiver) = mpsc::channel(16);
    let left_out = Arc::<Notify>::default();
    (Joins(sender, Arc::clone(&left_out)), JoinRequests(receiver, left_out))
}

impl Joins {
    /// From now on, the applier puts aside the changes of `tables`, which are these relations of
    /// the source, whatever names they arrive under. This returns once that is in force: the
    /// snapshot for the copy may be made then.
    ///
    /// # Errors
    /// The applier has ended.
    pub async fn begin(&self, tables: Vec<(TableKey, Oid)>) -> Result<(), ApplierEnded> {
        let (done, answer) = oneshot::channel();
        self.0.send(Request::Begin { tables, done }).await.map_err(|_| ApplierEnded)?;
        answer.await.map_err(|_| ApplierEnded)
    }

    /// Lets `table` join: its copy has everything except changes that came `since`. This returns
    /// once the target records the table as joined. The inner error says why the table cannot join;
    /// nothing of the attempt is kept then.
    ///
    /// # Errors
    /// The applier has ended.
    pub async fn finish(&self, table: TableKey, since: Since) -> Result<Result<(), String>, ApplierEnded> {
        let (done, answer) = oneshot::channel();
        self.0.send(Request::Finish { table, since, done }).await.map_err(|_| ApplierEnded)?;
        answer.await.map_err(|_| ApplierEnded)
    }

    /// Stops `table` from taking part, or keeps it out.
    ///
    /// # Errors
    /// The applier has ended.
    pub async fn forget(&self, table: TableKey) -> Result<(), ApplierEnded> {
        self.0.send(Request::Forget { table }).await.map_err(|_| ApplierEnded)
    }

    /// Returns when the applier left a table out because of something in the stream.
    pub async fn left_out(&self) {
        self.1.notified().await;
    }
}

/// The changes of one table that were put aside.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    batch: Batch,
    spill: Option<Spill>,
    failed: Option<String>,
}

/// All tables that are joining.
#[derive(Debug, Default)]
pub(crate) struct Asides(HashMap<TableKey, Aside>);

impl Asides {
    pub(crate) fn begin(&mut self, table: TableKey) {
        self.0.insert(table, Aside::default());
    }

    pub(crate) fn remove(&mut self, table: &TableKey) -> Option<Aside> {
        self.0.remove(table)
    }

    /// Puts aside one change of a transaction that has not ended.
    pub(crate) fn push(&mut self, table: &TableKey, change: Change) {
        if let Some(aside) = self.0.get_mut(table)
            && aside.failed.is_none()
        {
            aside.batch.push(change);
        }
    }

    /// Marks the table as unable to join.
    pub(crate) fn fail(&mut self, table: &TableKey, why: &str) {
        if let Some(aside) = self.0.get_mut(table) {
            *aside = Aside { failed: Some(why.to_owned()), ..Aside::default() };
        }
    }

    /// Ends the transaction of the latest changes. `scratch` makes files.
    pub(crate) fn end(
        &mut self,
        begin: Begin,
        commit: CommitInfo,
        scratch: &mut dyn FnMut() -> io::Result<File>,
    ) {
        for aside in self.0.values_mut() {
            let ended = aside.batch.ends.last().map_or(0, |end| end.changes_end);
            if aside.batch.changes.len() > ended {
                aside.batch.end(begin, commit, false);
                if aside.batch.bytes >= MEMORY_MAX
                    && let Err(error) = aside.write(scratch)
                {
                    let why = format!("its changes cannot be put aside in the spool directory: {error}");
                    *aside = Aside { failed: Some(why), ..Aside::default() };
                }
            }
        }
    }
}

impl Aside {
    fn write(&mut self, scratch: &mut dyn FnMut() -> io::Result<File>) -> io::Result<()> {
        let whole = self.batch.take_whole();
        let spill = match &mut self.spill {
            Some(spill) => spill,
            None => self.spill.insert(Spill::new(scratch()?)),
        };
        spill.add(&whole)
    }

    /// Makes the work that applies the changes put aside, between two transactions.
    pub(crate) fn into_work(
        mut self,
        scratch: &mut dyn FnMut() -> io::Result<File>,
    ) -> Result<Option<Spilled>, String> {
        if let Some(why) = self.failed {
            return Err(why);
        }
        if !self.batch.ends.is_empty() {
            self.write(scratch).map_err(|error| error.to_string())?;
        }
        Ok(self.spill.map(Spill::into_spilled))
    }
}

/// A table that joins, as the executor sees it.
#[derive(Debug)]
pub(crate) struct Join {
    pub(crate) table: TableKey,
    /// The changes that its copy does not have.
    pub(crate) since: Since,
    /// The changes that came meanwhile.
    pub(crate) changes: Option<Spilled>,
    /// The last transaction that the planner has passed; with this join the target is up to it.
    pub(crate) position: Option<End>,
    pub(crate) done: oneshot::Sender<Result<(), String>>,
}

/// The part that a relation of the stream plays for the applier.
#[derive(Debug, Clone)]
pub(crate) enum Role {
    /// The table takes part.
    Joined(Arc<plan::Table>),
    /// The table is joining; its changes wait.
    Joining(TableKey, Result<Arc<plan::Table>, String>),
    /// The relation no longer matches its name, so these tables are to be left out.
    Replaced(Vec<(TableKey, Parting)>),
    /// Its changes are not applied.
    None,
}
