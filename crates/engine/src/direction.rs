//! The two directions of a pair of databases that follow each other, while they are set up.
//!
//! Database *a* has the rows and *b* gets them: *forth* replicates from a to b with a first copy,
//! *back* from b to a without one. Each is a pipeline of its own. Clients may write to both
//! databases meanwhile, as soon as back has its slot, so the two wait for each other:
//!
//! ```text
//!   forth                                     back
//!   check both ends                           check both ends
//!         <-------------- Checked --------------
//!   create the schema on b
//!         --------------- Ready --------------->
//!                                             make the slot on b; refuse if b has rows
//!         <--------------- Begun ---------------
//!   make the slot on a, copy the rows to b
//!         --------------- Copied -------------->
//!   stream                                    stream
//! ```
//!
//! | hazard | remedy |
//! | --- | --- |
//! | a client writes to b during the copy | back's slot is older than the first copied row |
//! | a row of b reaches a, is in the snapshot of the copy, and comes to b twice | back applies nothing until the copy is over |
//! | a copy is interrupted, and its repetition empties a table with rows of clients | each table is copied as one transaction |
//! | b has rows from before its slot, which would never reach a | a look under the snapshot of the slot refuses them |
//! | a copied row is sent back | the copy has an origin of forth |
//!
//! Afterwards they have one thing in common: each keeps the WAL of its source in a slot, and may
//! keep it for the other's capture of deletions, too ([`Direction::shared_slot`]).
//!
//! A direction whose set-up is over waits for nothing. If the other ends before that, this one
//! ends with a refusal.

use std::sync::Arc;

use base::{SubscriptionName, quote_ident};
use client::Session;
use retention::SharedSlot;
use source::publication::{PublishedTable, TableName};
use source::restart_lsn::KeptBeside;
use tokio::sync::watch;

use crate::Error;
use crate::refusal::Refusal;

/// How far a direction is. Forth becomes `Ready` and `Copied`, back becomes `Checked` and `Begun`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Started,
    Checked,
    Ready {
        /// Forth has not begun, so that rows of b are no copied ones.
        is_new: bool,
    },
    Begun,
    Copied,
}

/// What a direction must know of both.
#[derive(Debug, Clone)]
pub struct Way {
    /// The subscription.
    pub name: SubscriptionName,
    /// It has a physical slot on its source.
    pub has_physical_slot: bool,
    /// It remembers the deletions of its target, which is the source of the other.
    pub remembers_deletions: bool,
}

/// One direction of a pair.
#[derive(Debug)]
pub struct Direction {
    is_forth: bool,
    /// What the slot of this direction keeps WAL for beside it.
    kept_beside: Option<Arc<KeptBeside>>,
    shared_slot: Option<SharedSlot>,
    own: watch::Sender<Stage>,
    other: watch::Receiver<Stage>,
    other_name: SubscriptionName,
}

impl Direction {
    /// The directions of two subscriptions: forth, which makes the first copy, and back.
    #[must_use]
    pub fn pair(forth: &Way, back: &Way) -> (Direction, Direction) {
        let (forth_stage, seen_by_back) = watch::channel(Stage::Started);
        let (back_stage, seen_by_forth) = watch::channel(Stage::Started);
        let (slot_of_back, slot_of_forth) = (shared(back, forth), shared(forth, back));
        let kept = |slot: &Option<SharedSlot>| slot.as_ref().map(|slot| Arc::clone(&slot.kept));
        let forth_direction = Direction {
            is_forth: true,
            kept_beside: kept(&slot_of_forth),
            shared_slot: slot_of_back.clone(),
            own: forth_stage,
            other: seen_by_forth,
            other_name: back.name.clone(),
        };
        let back_direction = Direction {
            is_forth: false,
            kept_beside: kept(&slot_of_back),
            shared_slot: slot_of_forth,
            own: back_stage,
            other: seen_by_back,
            other_name: forth.name.clone(),
        };
        (forth_direction, back_direction)
    }

    /// What the slot of this direction keeps WAL for beside its own stream.
    pub(crate) fn kept_beside(&self) -> Option<Arc<KeptBeside>> {
        self.kept_beside.clone()
    }

    /// The slot of the other direction that keeps WAL for the capture of deletions in this
    /// direction.
    pub(crate) fn shared_slot(&self) -> Option<SharedSlot> {
        self.shared_slot.clone()
    }

    /// Whether this direction makes the first copy.
    pub(crate) fn is_forth(&self) -> bool {
        self.is_forth
    }

    /// The subscription of the other direction.
    pub(crate) fn other_name(&self) -> &SubscriptionName {
        &self.other_name
    }

    /// The check of both ends has found nothing that refuses a start.
    pub(crate) fn say_checked(&self) {
        if !self.is_forth {
            self.say(Stage::Checked);
        }
    }

    /// The tables of b are there. `is_new`: forth has not begun.
    pub(crate) fn say_ready(&self, is_new: bool) {
        if self.is_forth {
            self.say(Stage::Ready { is_new });
        }
    }

    /// The tables are complete on b, or, for back, its slot is there.
    pub(crate) fn say_set_up(&self) {
        self.say(if self.is_forth { Stage::Copied } else { Stage::Begun });
    }

    fn say(&self, stage: Stage) {
        self.own.send_if_modified(|own| {
            let is_further = stage > *own;
            *own = stage.max(*own);
            is_further
        });
    }

    /// Waits, as forth, until back has checked both ends.
    pub(crate) async fn other_checked(&self) -> Result<(), Error> {
        match self.is_forth {
            true => self.wait(Stage::Checked).await.map(drop),
            false => Ok(()),
        }
    }

    /// Waits, as back, until forth is ready. Returns whether b must have no rows.
    pub(crate) async fn other_ready(&self) -> Result<bool, Error> {
        let stage = self.wait(Stage::Ready { is_new: false }).await?;
        Ok(matches!(stage, Stage::Ready { is_new: true }))
    }

    /// Waits until the other direction has made its slot, or its copy.
    pub(crate) async fn other_set_up(&self) -> Result<(), Error> {
        self.wait(if self.is_forth { Stage::Begun } else { Stage::Copied }).await.map(drop)
    }

    /// Whether [`Direction::other_set_up`] would not wait.
    pub(crate) fn is_other_set_up(&self) -> bool {
        *self.other.borrow() >= if self.is_forth { Stage::Begun } else { Stage::Copied }
    }

    async fn wait(&self, stage: Stage) -> Result<Stage, Error> {
        let mut other = self.other.clone();
        let reached = other.wait_for(|other| *other >= stage).await.map(|stage| *stage);
        reached.map_err(|_| Error::refused(Refusal::OtherDirection { name: self.other_name.clone() }))
    }
}

/// The slot of `owner`, if the other direction can capture deletions behind it.
fn shared(owner: &Way, other: &Way) -> Option<SharedSlot> {
    let is_shared = owner.has_physical_slot && other.remembers_deletions;
    is_shared.then(|| SharedSlot { name: owner.name.slot(), kept: Arc::default() })
}

/// The first of the tables that has rows, as a snapshot sees them; without one, as they are now.
pub(crate) async fn first_with_rows(
    session: &Session,
    tables: &[PublishedTable],
    snapshot: Option<&str>,
) -> Result<Option<TableName>, Error> {
    let failed = |error| session.error(error);
    session.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.map_err(failed)?;
    if let Some(name) = snapshot {
        let import = format!("SET TRANSACTION SNAPSHOT {}", base::quote_literal(name));
        session.batch_execute(&import).await.map_err(failed)?;
    }
    let mut found = None;
    for TableName { schema, name } in tables.iter().map(|table| &table.name) {
        let sql = format!("SELECT EXISTS (SELECT FROM {}.{})", quote_ident(schema), quote_ident(name));
        if session.query_one(&sql, &[]).await.map_err(failed)?.get(0) {
            found = Some(TableName::new(schema, name));
            break;
        }
    }
    session.batch_execute("ROLLBACK").await.map_err(failed)?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(name: &str, has_physical_slot: bool, remembers_deletions: bool) -> Way {
        Way { name: name.parse().unwrap(), has_physical_slot, remembers_deletions }
    }

    fn pair() -> (Direction, Direction) {
        Direction::pair(&way("a_to_b", true, true), &way("b_to_a", true, true))
    }

    #[test]
    fn a_slot_keeps_wal_for_the_capture_of_the_other_direction() {
        let (forth, back) = pair();
        assert_eq!(forth.shared_slot().unwrap().name, "pgsluice_b_to_a");
        assert_eq!(back.shared_slot().unwrap().name, "pgsluice_a_to_b");
        let of_back = forth.shared_slot().unwrap().kept;
        assert!(Arc::ptr_eq(&of_back, &back.kept_beside().unwrap()));
        // Only forth captures, and only forth has a physical slot.
        let (forth, back) = Direction::pair(&way("a_to_b", true, true), &way("b_to_a", false, false));
        assert!(forth.shared_slot().is_none() && back.shared_slot().is_none());
        assert!(forth.kept_beside().is_none() && back.kept_beside().is_none());
    }

    #[tokio::test]
    async fn each_waits_until_the_other_is_as_far() {
        let (forth, back) = pair();
        back.say_checked();
        forth.other_checked().await.unwrap();
        forth.say_ready(true);
        assert!(back.other_ready().await.unwrap());
        back.say_set_up();
        // Attempts that follow say less than this direction has reached already.
        back.say_checked();
        forth.other_set_up().await.unwrap();
        forth.say_set_up();
        forth.say_ready(false);
        back.other_set_up().await.unwrap();
    }

    #[tokio::test]
    async fn what_was_begun_in_one_direction_may_have_rows() {
        let (forth, back) = pair();
        forth.say_ready(false);
        assert!(!back.other_ready().await.unwrap());
    }

    #[tokio::test]
    async fn nobody_waits_for_a_direction_that_has_ended() {
        let (forth, back) = pair();
        back.say_checked();
        drop(back);
        forth.other_checked().await.unwrap();
        let error = forth.other_set_up().await.unwrap_err();
        assert!(error.is_refused() && error.to_string().contains("\"b_to_a\""), "{error}");
    }
}
