//! How the planner handles tables that are to join the stream.

use state::{Parting, TableKey};
use tokio::sync::mpsc;

use super::Planning;
use crate::error::Error;
use crate::join::{Join, Request};
use crate::work::Work;

impl Planning {
    pub(super) fn take_request(&mut self, request: Request) {
        match request {
            Request::Begin { tables, done } => {
                self.early = None;
                for (table, oid) in tables {
                    self.mappings.begin_join(table.clone(), oid);
                    self.asides.begin(table);
                }
                let _ = done.send(());
            }
            Request::Forget { table } => {
                self.early = None;
                self.mappings.forget(&table);
                self.asides.remove(&table);
            }
            Request::Finish { .. } => self.finishing.push_back(request),
        }
    }

    /// Leaves tables out before passing over a change that would be theirs by name or by relation.
    /// First the target records that durably, because later the change counts as done.
    pub(super) async fn leave_out(&mut self, parted: Vec<(TableKey, Parting)>) -> Result<(), Error> {
        self.early = None;
        for (table, why) in parted {
            self.mappings.leave_out(&self.options.subscription, &table, &why).await?;
        }
        self.left_out.notify_one();
        Ok(())
    }

    /// Lets tables join here, behind everything that was passed. If the executor is gone, it failed
    /// and reports the error itself.
    pub(super) async fn finish_joins(&mut self, work: &mpsc::Sender<Work>) -> Result<(), Error> {
        self.hand_over_whole(work).await?;
        while let Some(Request::Finish { table, since, done }) = self.finishing.pop_front() {
            let Some(aside) = self.asides.remove(&table) else { continue };
            match aside.into_work(&mut || self.assembler.scratch()) {
                Ok(changes) => {
                    self.mappings.join(table.clone(), since.clone());
                    let join = Join { table, since, changes, position: self.passed, done };
                    let _ = work.send(Work::Join(join)).await;
                }
                Err(why) => {
                    self.mappings.forget(&table);
                    let _ = done.send(Err(why));
                }
            }
        }
        Ok(())
    }
}
