//! Tables that are to join the stream, as the planner sees them ([`crate::join`]).
//!
//! It takes up requests, puts the changes of joining tables aside, and makes the work with which a
//! table joins. When that work is handed over is not decided here.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;

use base::SubscriptionName;
use plan::End;
use state::{Parting, Since, TableKey};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::error::Error;
use crate::join::{Asides, Join, JoinRequests, Request};
use crate::mapping::Mappings;

/// See the module.
pub(super) struct JoiningTables {
    requests: mpsc::Receiver<Request>,
    /// Notified when a table was left out.
    left_out: Arc<Notify>,
    /// Tables that join between two transactions.
    finishing: VecDeque<Finishing>,
    pub(super) asides: Asides,
}

/// A table whose copy is complete.
struct Finishing {
    table: TableKey,
    since: Since,
    done: oneshot::Sender<Result<(), String>>,
}

impl JoiningTables {
    pub(super) fn new(JoinRequests(requests, left_out): JoinRequests) -> JoiningTables {
        JoiningTables { requests, left_out, finishing: VecDeque::new(), asides: Asides::default() }
    }

    /// The next request that is already here.
    pub(super) fn request_at_hand(&mut self) -> Option<Request> {
        self.requests.try_recv().ok()
    }

    /// Waits for the next request.
    pub(super) async fn request(&mut self) -> Option<Request> {
        self.requests.recv().await
    }

    /// Takes up a request.
    pub(super) fn take(&mut self, request: Request, mappings: &mut Mappings) {
        match request {
            Request::Begin { tables, done } => {
                for (table, oid) in tables {
                    mappings.begin_join(table.clone(), oid);
                    self.asides.begin(table);
                }
                let _ = done.send(());
            }
            Request::Forget { table } => {
                mappings.forget(&table);
                self.asides.remove(&table);
            }
            Request::Finish { table, since, done } => {
                self.finishing.push_back(Finishing { table, since, done });
            }
        }
    }

    /// Whether a table waits for the end of the transaction at hand.
    pub(super) fn is_waiting(&self) -> bool {
        !self.finishing.is_empty()
    }

    /// Leaves tables out before passing over a change that would be theirs by name or by relation.
    /// First the target records that durably, because later the change counts as done.
    pub(super) async fn leave_out(
        &self,
        parted: Vec<(TableKey, Parting)>,
        mappings: &mut Mappings,
        subscription: &SubscriptionName,
    ) -> Result<(), Error> {
        for (table, why) in parted {
            mappings.leave_out(subscription, &table, &why).await?;
        }
        self.left_out.notify_one();
        Ok(())
    }

    /// Makes the next table join behind the transaction that ends with `position`. `scratch` makes
    /// files.
    pub(super) fn next(
        &mut self,
        mappings: &mut Mappings,
        position: Option<End>,
        scratch: &mut dyn FnMut() -> io::Result<File>,
    ) -> Option<Join> {
        while let Some(Finishing { table, since, done }) = self.finishing.pop_front() {
            let Some(aside) = self.asides.remove(&table) else { continue };
            match aside.into_work(scratch) {
                Ok(changes) => {
                    mappings.join(table.clone(), since.clone());
                    return Some(Join { table, since, changes, position, done });
                }
                Err(why) => {
                    mappings.forget(&table);
                    let _ = done.send(Err(why));
                }
            }
        }
        None
    }
}
