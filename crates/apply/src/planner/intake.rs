//! From messages to the changes that are for this target.
//!
//! Handed blocks of the stream, it assembles transactions, lets them pass the snapshot gate, maps
//! their relations onto the target, and adds their changes to the backlog. It passes over what the
//! target has already, what is to be skipped, and what belongs to no table here. Changes of tables
//! that join are put aside ([`super::joining`]), and a streamed transaction may be executed while
//! it is open ([`super::streaming`]).
//!
//! It takes in nothing that must stay behind work that is not handed over yet: it stops at the end
//! of a transaction where tables join, and at the end of a streamed one.

use std::fs::File;
use std::io;
use std::sync::Arc;

use base::{Lsn, SubscriptionName};
use plan::{Change, End};
use prefetch::Prefetch;
use proto::pgoutput::{CommitInfo, Relation};
use schedule::CommittedRanges;
use state::{Parting, TableKey};
use tokio::time::Instant;
use txn::{Assembler, Begin, Block, Event, Input, Notice, Spool, TruncateChange};

use super::backlog::Backlog;
use super::clock_hold::{ClockHold, LOCKS_KEPT_MAX};
use super::joining::JoiningTables;
use super::streaming::{StreamedExecution, is_mapped_as_told};
use crate::applier::Options;
use crate::error::{Error, Kind};
use crate::join::{Join, JoinRequests, Request, Role};
use crate::mapping::Mappings;
use crate::snapshot_gate::{Passage, Passed};

/// The transaction whose changes are arriving.
#[derive(Clone, Copy)]
struct Current {
    begin: Begin,
    skipped: bool,
}

/// See the module.
pub(crate) struct Intake {
    assembler: Assembler,
    pub(super) passage: Passage,
    mappings: Mappings,
    prefetch: Prefetch,
    pub(super) joining: JoiningTables,
    pub(super) streaming: StreamedExecution,
    pub(super) hold: ClockHold,
    /// Inputs of the block at hand that were not assembled yet.
    inputs: std::vec::IntoIter<Input>,
    /// The block's room in the queue. Released once all of the block is in the batch, which has its
    /// own limit: the next block may need all of the room.
    room: Option<Box<dyn Send>>,
    transaction: Option<Current>,
    /// No change before this position is left for this target, and the sessions do not know yet.
    pub(super) caught_up: Option<Lsn>,
    /// End of the last transaction that has changes for this target.
    taken: Lsn,
    /// The last transaction that was passed, with or without changes for this target.
    passed: Option<End>,
    /// The committed ranges of the target at the start.
    done: CommittedRanges,
    /// Commit LSN of the transaction to skip.
    skip_lsn: Option<Lsn>,
    subscription: SubscriptionName,
}

impl Intake {
    /// Begins a stream into a target that has `done` and maps relations by `mappings`. Files are
    /// made by `spool`.
    pub(crate) fn new(
        options: &Options,
        (spool, joins): (Box<dyn Spool>, JoinRequests),
        (mappings, done): (Mappings, CommittedRanges),
        prefetch: Prefetch,
        (streaming, hold): (StreamedExecution, ClockHold),
    ) -> Intake {
        let assembler = Assembler::new(spool).with_binary(options.binary).with_local_only(options.local_only);
        Intake {
            assembler,
            passage: Passage::new(Arc::clone(&options.gate)),
            mappings,
            prefetch,
            joining: JoiningTables::new(joins),
            streaming,
            hold,
            inputs: Vec::new().into_iter(),
            room: None,
            transaction: None,
            caught_up: None,
            taken: Lsn::INVALID,
            passed: None,
            done,
            skip_lsn: options.skip_lsn,
            subscription: options.subscription.clone(),
        }
    }

    /// Makes a file that is deleted with its last handle.
    pub(super) fn scratch(&mut self) -> io::Result<File> {
        self.assembler.scratch()
    }

    /// Whether all of the block at hand was assembled, and what follows may be taken in.
    pub(super) fn wants_block(&self) -> bool {
        self.inputs.as_slice().is_empty() && !self.hold.is_holding()
    }

    /// Takes the next block.
    pub(super) fn begin_block(&mut self, block: Block) {
        (self.inputs, self.room) = (block.inputs.into_iter(), block.room);
    }

    /// Takes up the requests of tables that are here.
    pub(super) fn take_requests(&mut self) {
        while let Some(request) = self.joining.request_at_hand() {
            self.take_request(request);
        }
    }

    pub(super) fn take_request(&mut self, request: Request) {
        if !matches!(request, Request::Finish { .. }) {
            self.streaming.stop();
        }
        self.joining.take(request, &mut self.mappings);
    }

    /// Whether there is work that goes between two transactions: the end of a streamed one, or
    /// tables that join.
    pub(super) fn has_work(&self) -> bool {
        self.streaming.has_ended() || self.transaction.is_none() && self.joining.is_waiting()
    }

    /// Makes the next table join here, behind everything that was passed.
    pub(super) fn next_join(&mut self) -> Option<Join> {
        self.joining.next(&mut self.mappings, self.passed, &mut || self.assembler.scratch())
    }

    /// Absorbs the input at hand until the backlog is closed or other work comes first; returns
    /// true if some input is left.
    pub(super) async fn absorb(&mut self, backlog: &mut Backlog) -> Result<bool, Error> {
        loop {
            while let Some(event) = self.next_event()? {
                if let Event::Begin(begin) = &event
                    && self.is_wanted(begin)
                    && !self.hold.admits(*begin, Instant::now())
                {
                    return Ok(false);
                }
                self.caught_up = None;
                self.take(event, backlog).await?;
                if self.has_work() || backlog.is_closed() {
                    return Ok(true);
                }
            }
            if self.hold.is_holding() {
                return Ok(false);
            }
            // The gate holds back a limited number of events; the rest waits in the queue.
            let input = if self.passage.is_full() { None } else { self.inputs.next() };
            match input {
                Some(Input::Bytes(data)) => {
                    self.assembler.push(data)?;
                    if let Some(notice) = self.assembler.notice() {
                        self.heed(notice).await?;
                    }
                }
                // Within a transaction, the position may lie behind the transaction's commit, which
                // is not applied yet.
                Some(Input::CaughtUp(lsn)) if self.transaction.is_none() => {
                    if self.passage.caught_up(lsn) {
                        self.caught_up = Some(lsn);
                    }
                }
                Some(Input::CaughtUp(_)) => {}
                None => {
                    self.passage.judge(self.transaction.is_some());
                    self.room = None;
                    return Ok(false);
                }
            }
        }
    }

    /// The next event that passes the gate, if the input at hand completes one.
    fn next_event(&mut self) -> Result<Option<Event>, Error> {
        if self.hold.is_holding() {
            return Ok(self.hold.release(Instant::now()).map(Event::Begin));
        }
        while let Some(passed) = self.passage.release() {
            match passed {
                Passed::Event(event) => return Ok(Some(event)),
                Passed::CaughtUp(lsn) => self.caught_up = Some(lsn),
            }
        }
        while !self.passage.is_full() {
            let Some(event) = self.assembler.next()? else { break };
            if let Some(event) = self.passage.admit(event) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Asks the target's clock whether it has passed the commit time of the transaction that is
    /// held.
    pub(super) async fn ask_clock(&mut self) -> Result<(), Error> {
        let clock = self.mappings.clock().await?;
        if self.hold.answered(clock, Instant::now())? > LOCKS_KEPT_MAX {
            // It takes the normal path when it goes on.
            self.streaming.stop();
        }
        Ok(())
    }

    async fn take(&mut self, event: Event, backlog: &mut Backlog) -> Result<(), Error> {
        match event {
            Event::Begin(begin) if self.ends_early(begin).await? => {}
            Event::Begin(begin) => {
                let skipped = self.skip_lsn == Some(begin.final_lsn);
                if skipped {
                    tracing::warn!(xid = %begin.xid, "logical replication starts skipping transaction at LSN {}",
                        begin.final_lsn);
                }
                self.transaction = Some(Current { begin, skipped });
                backlog.begin(begin);
            }
            Event::Origin(origin) => {
                if let Some(current) = &mut self.transaction {
                    current.begin.origin = Some(origin);
                    backlog.begin(current.begin);
                }
            }
            Event::Change(change) => {
                let Some(begin) = self.applicable() else { return Ok(()) };
                match self.resolve(&change.relation, begin).await? {
                    Role::Joined(table) => {
                        self.prefetch.coming(&table, &change.op, begin.final_lsn);
                        backlog.push(Change::Row { table, op: change.op });
                    }
                    Role::Joining(key, Ok(table)) => {
                        // The change is kept for long, so it must not keep its message alive.
                        let op = change.op.detached();
                        self.joining.asides.push(&key, Change::Row { table, op });
                    }
                    Role::Joining(key, Err(why)) => self.joining.asides.fail(&key, &why),
                    Role::Replaced(parted) => self.leave_out(parted).await?,
                    Role::None => {}
                }
            }
            Event::Truncate(truncate) => self.truncate(&truncate, backlog).await?,
            Event::Commit(commit) => self.commit(commit, backlog),
        }
        Ok(())
    }

    async fn truncate(&mut self, truncate: &TruncateChange, backlog: &mut Backlog) -> Result<(), Error> {
        let Some(begin) = self.applicable() else { return Ok(()) };
        let mut tables = Vec::new();
        let restart_identity = truncate.restart_identity;
        for relation in &truncate.relations {
            match self.resolve(relation, begin).await? {
                Role::Joined(table) => tables.push(table),
                Role::Joining(key, Ok(table)) => {
                    let tables = vec![table];
                    self.joining.asides.push(&key, Change::Truncate { tables, restart_identity });
                }
                Role::Joining(key, Err(why)) => self.joining.asides.fail(&key, &why),
                Role::Replaced(parted) => self.leave_out(parted).await?,
                Role::None => {}
            }
        }
        if !tables.is_empty() {
            backlog.push(Change::Truncate { tables, restart_identity });
        }
        Ok(())
    }

    /// Finds the part that the relation plays: its target table, if it has one.
    async fn resolve(&mut self, relation: &Arc<Relation>, begin: Begin) -> Result<Role, Error> {
        self.mappings
            .resolve(relation, (begin.final_lsn, begin.xid))
            .await
            .map_err(|error| error.met_by(begin))
    }

    async fn leave_out(&mut self, parted: Vec<(TableKey, Parting)>) -> Result<(), Error> {
        self.streaming.stop();
        self.joining.leave_out(parted, &mut self.mappings, &self.subscription).await
    }

    /// The current transaction, if its changes are to be applied.
    fn applicable(&self) -> Option<Begin> {
        let applied = |current: &Current| !current.skipped && !self.done.has(current.begin.final_lsn);
        self.transaction.filter(applied).map(|current| current.begin)
    }

    /// Whether the changes of a transaction that begins are to be applied.
    fn is_wanted(&self, begin: &Begin) -> bool {
        self.skip_lsn != Some(begin.final_lsn) && !self.done.has(begin.final_lsn)
    }

    fn commit(&mut self, commit: CommitInfo, backlog: &mut Backlog) {
        let Some(Current { begin, skipped }) = self.transaction.take() else { return };
        if skipped {
            self.skip_lsn = None;
        }
        let done = self.done.has(begin.final_lsn);
        if !done {
            self.pass(End { changes_end: 0, begin, commit, skipped: false });
        }
        if backlog.end(commit, skipped && !done) {
            self.taken = commit.end_lsn;
            self.passage.handed(commit.end_lsn);
        } else if !backlog.is_ready() {
            // Nothing of the transaction is for this target. If an earlier transaction still waits
            // for its commit, progress follows with the successor of that one.
            self.caught_up = Some(commit.end_lsn);
        }
    }

    /// Notes that a transaction was passed.
    fn pass(&mut self, end: End) {
        self.joining.asides.end(end.begin, end.commit, &mut || self.assembler.scratch());
        self.passed = Some(end);
    }

    /// Heeds what the last message said of a streamed transaction.
    async fn heed(&mut self, notice: Notice) -> Result<(), Error> {
        let xid = match notice {
            Notice::Grown { xid, .. } => xid,
            Notice::Aborted(xid) => {
                self.streaming.take(xid);
                return Ok(());
            }
        };
        if !self.streaming.wants(xid) {
            return Ok(());
        }
        // Events that the gate put aside come before it and were not taken yet.
        if !self.passage.is_empty() {
            self.streaming.give_up(xid);
            return Ok(());
        }
        self.streaming.grow(notice, self.taken, &mut self.mappings, &mut self.assembler).await
    }

    /// Whether a committed transaction was executed while open and gets its turn. If not, it takes
    /// the normal path.
    async fn ends_early(&mut self, begin: Begin) -> Result<bool, Error> {
        let Some(told) = self.streaming.take(begin.xid) else { return Ok(false) };
        if !self.is_wanted(&begin) || !self.passage.is_empty() {
            return Ok(false);
        }
        if !is_mapped_as_told(&told, begin, &mut self.mappings).await? {
            return Ok(false);
        }
        let Some(taken) = self.assembler.take_over()? else { return Ok(false) };
        let ended = Box::new(told.ended(begin, taken).ok_or(Kind::LostTask)?);
        self.pass(ended.end());
        let commit = ended.commit;
        self.taken = commit.end_lsn;
        let _ = self.passage.admit(Event::Commit(commit));
        self.passage.handed(commit.end_lsn);
        self.streaming.set_ended(ended);
        Ok(true)
    }
}
