//! The planner's side of a transaction that is executed while it is open
//! ([`crate::open_transaction`]).
//!
//! It starts a worker for one streamed transaction at a time and tells it what has arrived. When
//! the commit comes, it says whether the execution still holds. A transaction that it gives up
//! takes the normal path.

use std::sync::Arc;

use base::{Lsn, Xid};
use proto::pgoutput::Relation;
use tokio::sync::mpsc;
use txn::{Assembler, Begin, Notice};

use crate::error::Error;
use crate::join::Role;
use crate::mapping::Mappings;
use crate::open_transaction::{Mapped, StreamedEnd, StreamedHandle, StreamedStart};

/// See the module.
pub(crate) struct StreamedExecution {
    /// `None` where no session is free for streamed transactions.
    starts: Option<mpsc::UnboundedSender<StreamedStart>>,
    /// The streamed transaction that is executed while it is open.
    told: Option<StreamedHandle>,
    /// A streamed transaction that is no longer executed while it is open.
    given_up: Option<Xid>,
    /// The end of the streamed transaction; it is handed over behind everything before it.
    ended: Option<Box<StreamedEnd>>,
}

impl StreamedExecution {
    /// Starts transactions by `starts`, if a session is free for them.
    pub(crate) fn new(starts: Option<mpsc::UnboundedSender<StreamedStart>>) -> StreamedExecution {
        StreamedExecution { starts, told: None, given_up: None, ended: None }
    }

    /// Whether the end of a streamed transaction waits to be handed over.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    pub(super) fn set_ended(&mut self, ended: Box<StreamedEnd>) {
        self.ended = Some(ended);
    }

    pub(super) fn take_ended(&mut self) -> Option<Box<StreamedEnd>> {
        self.ended.take()
    }

    /// Takes the transaction if it is `xid`; if it is dropped, it gets no turn.
    pub(super) fn take(&mut self, xid: Xid) -> Option<StreamedHandle> {
        self.told.take_if(|told| told.xid == xid)
    }

    /// Stops the execution, because tables may be mapped otherwise from now on.
    pub(super) fn stop(&mut self) {
        self.told = None;
    }

    /// Gives up executing it while it is open: it takes the normal path.
    pub(super) fn give_up(&mut self, xid: Xid) {
        self.take(xid);
        self.given_up = Some(xid);
    }

    /// Whether `xid` is executed while it is open, or may begin to be.
    pub(super) fn wants(&self, xid: Xid) -> bool {
        let is_other = self.told.as_ref().is_some_and(|told| told.xid != xid);
        self.starts.is_some() && self.given_up != Some(xid) && !is_other
    }

    /// Lets a worker execute the changes of `notice`, once the target has everything before
    /// `after`.
    pub(super) async fn grow(
        &mut self,
        notice: Notice,
        after: Lsn,
        mappings: &mut Mappings,
        assembler: &mut Assembler,
    ) -> Result<(), Error> {
        let Notice::Grown { xid, bytes, relations } = notice else { return Ok(()) };
        let described = relations.len();
        let Some(tables) = map_new(self.told.as_ref(), xid, relations, mappings).await? else {
            self.give_up(xid);
            return Ok(());
        };
        if let (None, Some(starts)) = (&self.told, &self.starts) {
            let Ok(streamed) = assembler.streamed(xid) else { return Ok(()) };
            let (told, start) = StreamedHandle::new(streamed);
            if starts.send(start).is_ok() {
                self.told = Some(told);
            }
        }
        if let Some(told) = &mut self.told {
            told.grown(bytes, after, tables, described);
        }
        Ok(())
    }
}

/// Maps the relations that `told` does not know yet; `None` if the transaction cannot be
/// executed while it is open.
async fn map_new(
    told: Option<&StreamedHandle>,
    xid: Xid,
    relations: Vec<Arc<Relation>>,
    mappings: &mut Mappings,
) -> Result<Option<Vec<Mapped>>, Error> {
    let (told, known) = match told {
        Some(told) => (told.tables.as_slice(), told.described),
        None => (&[][..], 0),
    };
    let mut tables: Vec<Mapped> = Vec::new();
    for relation in relations.into_iter().skip(known) {
        // A relation was described twice. Only a change's place in the stream would tell which
        // description it goes by.
        let same_relation = |(other, _): &&Mapped| other.id == relation.id;
        match told.iter().chain(&tables).find(same_relation) {
            None => {}
            Some((other, _)) if *other == relation => continue,
            Some(_) => return Ok(None),
        }
        // The transaction will commit behind everything known so far. Its commit checks again
        // whether this still holds.
        match mappings.resolve(&relation, (Lsn::new(u64::MAX), xid)).await {
            Ok(Role::Joined(table)) => tables.push((relation, Some(table))),
            Ok(Role::None) => tables.push((relation, None)),
            // If the transaction commits, the normal path looks at the relation again.
            Ok(Role::Joining(..) | Role::Replaced(_)) => return Ok(None),
            Err(error) if error.is_data() => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(tables))
}

/// Whether the tables of `told` are still mapped as they were when its changes were executed.
pub(super) async fn is_mapped_as_told(
    told: &StreamedHandle,
    begin: Begin,
    mappings: &mut Mappings,
) -> Result<bool, Error> {
    for (relation, then) in &told.tables {
        let same = match (mappings.resolve(relation, (begin.final_lsn, begin.xid)).await, then) {
            (Ok(Role::Joined(now)), Some(then)) => now.is_as(then),
            (Ok(Role::None), None) => true,
            _ => false,
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}
