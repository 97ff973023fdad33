//! Tables that join while others are being applied (rule C1).
//!
//! A table that was added to the publication is copied under a snapshot of
//! its own while the stream goes on. Its changes come with everybody else's
//! and cannot be applied before its rows are there, so they are put aside:
//!
//! ```text
//!   begin       snapshot at C        copied           finish
//!     |--------------+------------------+---------------|------> stream
//!     |        changes of the table are put aside       | applied as they come
//!                                                       |
//!              one target transaction: what was put aside from C on,
//!              the table recorded as joined, the stream's position
//! ```
//! What committed before C is in the copy and is passed over. All that commits
//! at C or later arrives after `begin`, because `begin` is answered before the
//! snapshot is asked for. A snapshot that no slot has made is no place in WAL,
//! but a list of transactions ([`Since`]); it is taken when all that were
//! running after `begin` have ended, so that it sees what had been passed. Until it joins readers see its copy as it grows; if
//! the stream lags, the table is ahead of the others until that has passed C. The engine says so meanwhile.
//! From both on it changes with them, commit by commit.
//!
//! A process that ends before leaves the table unfinished: it is copied anew.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;

use base::Oid;
use proto::pgoutput::CommitInfo;
use state::{Parting, Since, TableKey};
use tokio::sync::{Notify, mpsc, oneshot};
use txn::Begin;

use crate::batch::{Batch, Change, End};
use crate::spill::{Spill, Spilled};

/// Changes of a table that wait in memory; more go to the file.
const MEMORY_MAX: usize = 1024 * 1024;

/// What the applier is asked to do about a table.
#[derive(Debug)]
pub(crate) enum Request {
    Begin { tables: Vec<(TableKey, Oid)>, done: oneshot::Sender<()> },
    Finish { table: TableKey, since: Since, done: oneshot::Sender<Result<(), String>> },
    Forget { table: TableKey },
}

/// The applier has ended.
#[derive(Debug)]
pub struct Ended;

/// Lets tables join a stream that is being applied.
#[derive(Debug, Clone)]
pub struct Joins(mpsc::Sender<Request>, Arc<Notify>);

/// The other end, for [`crate::apply`].
#[derive(Debug)]
pub struct JoinRequests(pub(crate) mpsc::Receiver<Request>, pub(crate) Arc<Notify>);

/// Both ends.
#[must_use]
pub fn joins() -> (Joins, JoinRequests) {
    let (sender, receiver) = mpsc::channel(16);
    let left_out = Arc::<Notify>::default();
    (Joins(sender, Arc::clone(&left_out)), JoinRequests(receiver, left_out))
}

impl Joins {
    /// From now on the changes of `tables`, which are these relations of the
    /// source, are put aside, under whatever names they come. When this returns
    /// it is so: the snapshot for the copy may be made.
    ///
    /// # Errors
    /// The applier has ended.
    pub async fn begin(&self, tables: Vec<(TableKey, Oid)>) -> Result<(), Ended> {
        let (done, answer) = oneshot::channel();
        self.0.send(Request::Begin { tables, done }).await.map_err(|_| Ended)?;
        answer.await.map_err(|_| Ended)
    }

    /// `table` was copied, and has everything but what came `since`: it joins. When this returns it has, and the target
    /// says so.
    /// The inner error says why it cannot; nothing of it is kept then.
    ///
    /// # Errors
    /// The applier has ended.
    pub async fn finish(&self, table: TableKey, since: Since) -> Result<Result<(), String>, Ended> {
        let (done, answer) = oneshot::channel();
        self.0.send(Request::Finish { table, since, done }).await.map_err(|_| Ended)?;
        answer.await.map_err(|_| Ended)
    }

    /// `table` is not to take part (any more).
    ///
    /// # Errors
    /// The applier has ended.
    pub async fn forget(&self, table: TableKey) -> Result<(), Ended> {
        self.0.send(Request::Forget { table }).await.map_err(|_| Ended)
    }

    /// Returns when a table was left out because of what came in the stream.
    pub async fn left_out(&self) {
        self.1.notified().await;
    }
}

/// What was put aside of one table.
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

    /// Puts one change aside, of a transaction that has not ended.
    pub(crate) fn push(&mut self, table: &TableKey, change: Change) {
        if let Some(aside) = self.0.get_mut(table)
            && aside.failed.is_none()
        {
            aside.batch.push(change);
        }
    }

    /// The table cannot join.
    pub(crate) fn fail(&mut self, table: &TableKey, why: &str) {
        if let Some(aside) = self.0.get_mut(table) {
            *aside = Aside { failed: Some(why.to_owned()), ..Aside::default() };
        }
    }

    /// The transaction whose changes came has ended. `scratch` makes files.
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

    /// What is to be applied, between two transactions.
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

/// A table that joins, for the executor.
#[derive(Debug)]
pub(crate) struct Join {
    pub(crate) table: TableKey,
    /// What is not in its copy.
    pub(crate) since: Since,
    /// What came meanwhile.
    pub(crate) changes: Option<Spilled>,
    /// The last transaction that the planner has passed: so far the target
    /// is with this.
    pub(crate) position: Option<End>,
    pub(crate) done: oneshot::Sender<Result<(), String>>,
}

impl Batch {
    /// Those of its transactions, all of which have ended, that came `since`.
    pub(crate) fn only(self, since: &Since) -> Batch {
        let mut kept = Batch::default();
        let mut changes = self.changes.into_iter();
        let mut start = 0;
        for end in self.ends {
            let own = changes.by_ref().take(end.changes_end - start);
            start = end.changes_end;
            if since.includes(end.begin.final_lsn, end.begin.xid) {
                own.for_each(|change| kept.push(change));
                kept.end(end.begin, end.commit, end.skipped);
            } else {
                own.for_each(drop);
            }
        }
        kept
    }
}

/// What a relation of the stream is to the applier.
#[derive(Debug, Clone)]
pub(crate) enum Part {
    /// It takes part.
    Joined(Arc<crate::table::Table>),
    /// It is joining; its changes wait.
    Joining(TableKey, Result<Arc<crate::table::Table>, String>),
    /// It is for none: names and relations have parted, and these tables are to be left out.
    Replaced(Vec<(TableKey, Parting)>),
    /// Nothing of it is applied.
    None,
}
