//! How the planner handles a transaction that is executed while it is open
//! ([`crate::open_transaction`]).

use base::{Lsn, Xid};
use plan::Digest;
use tokio::sync::mpsc;
use txn::{Begin, Event, Notice};

use super::Planning;
use crate::error::{Error, Kind};
use crate::join::Part;
use crate::open_transaction::{Mapped, Told};
use crate::work::Work;

impl Planning {
    /// Lets a worker execute the changes that have arrived of a streamed transaction.
    pub(super) async fn heed(&mut self, notice: Notice) -> Result<(), Error> {
        let (xid, bytes, relations) = match notice {
            Notice::Grown { xid, bytes, relations } => (xid, bytes, relations),
            Notice::Aborted(xid) => {
                self.early.take_if(|early| early.xid == xid);
                return Ok(());
            }
        };
        let Some(starts) = &self.starts else { return Ok(()) };
        if self.given_up == Some(xid) || self.early.as_ref().is_some_and(|early| early.xid != xid) {
            return Ok(());
        }
        // Events that the gate put aside come before it and were not taken yet.
        if !self.intake.is_empty() {
            self.give_up(xid);
            return Ok(());
        }
        let described = relations.len();
        let (told, known) = match &self.early {
            Some(early) => (early.tables.as_slice(), early.described),
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
                Some(_) => {
                    self.give_up(xid);
                    return Ok(());
                }
            }
            // The transaction will commit behind everything known so far. Its commit checks again
            // whether this still holds.
            match self.mappings.resolve(&relation, (Lsn::new(u64::MAX), xid)).await {
                Ok(Part::Joined(table)) => tables.push((relation, Some(table))),
                Ok(Part::None) => tables.push((relation, None)),
                // If the transaction commits, the normal path looks at the relation again.
                Ok(Part::Joining(..) | Part::Replaced(_)) => {
                    self.give_up(xid);
                    return Ok(());
                }
                Err(error) if error.is_data() => {
                    self.give_up(xid);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        if self.early.is_none() {
            let Ok(streamed) = self.assembler.streamed(xid) else { return Ok(()) };
            let (told, start) = Told::new(streamed);
            if starts.send(start).is_ok() {
                self.early = Some(told);
            }
        }
        if let Some(early) = &mut self.early {
            early.grown(bytes, self.taken, tables, described);
        }
        Ok(())
    }

    /// Gives up executing it while it is open: it takes the normal path.
    fn give_up(&mut self, xid: Xid) {
        self.early.take_if(|early| early.xid == xid);
        self.given_up = Some(xid);
    }

    /// Whether a committed transaction was executed while open and gets its turn. If not, it takes
    /// the normal path.
    pub(super) async fn ends_early(&mut self, begin: Begin) -> Result<bool, Error> {
        let Some(early) = self.early.take_if(|early| early.xid == begin.xid) else { return Ok(false) };
        let applies = self.options.skip_lsn != Some(begin.final_lsn) && !self.done.has(begin.final_lsn);
        if !applies || !self.intake.is_empty() {
            return Ok(false);
        }
        for (relation, then) in &early.tables {
            let same = match (self.mappings.resolve(relation, (begin.final_lsn, begin.xid)).await, then) {
                (Ok(Part::Joined(now)), Some(then)) => now.is_as(then),
                (Ok(Part::None), None) => true,
                _ => false,
            };
            if !same {
                return Ok(false);
            }
        }
        let Some(taken) = self.assembler.take_over()? else { return Ok(false) };
        let ended = Box::new(early.ended(begin, taken).ok_or(Kind::LostTask)?);
        let commit = ended.commit;
        self.asides.end(begin, commit, &mut || self.assembler.scratch());
        self.passed = Some(ended.end());
        self.taken = commit.end_lsn;
        let _ = self.intake.admit(Event::Commit(commit));
        self.intake.handed(commit.end_lsn);
        self.ended = Some(ended);
        Ok(true)
    }

    /// Hands over the end of a transaction that was executed while open, behind everything before
    /// it.
    pub(super) async fn hand_over_ended(&mut self, work: &mpsc::Sender<Work>) -> Result<(), Error> {
        self.hand_over_whole(work).await?;
        if let Some(ended) = self.ended.take() {
            self.note_handed(&Digest::of_ends(&[ended.end()]));
            // If the executor is gone, it failed and reports the error itself.
            let _ = work.send(Work::Early(ended)).await;
        }
        Ok(())
    }
}
