//! Applies chunks to the target: as sets while the target is as the source had it, one change at a
//! time where it is not.
//!
//! ```text
//!            plan holds: every statement reports the rows it must
//!   chunk ------------------------------------------------------> commit, or next part
//!     |  an error, another count, or no plan
//!     +---> roll back (to the chunk's savepoint) ---> sets with exceptions ------> commit, or next part
//!             |  not possible: see `exceptions`
//!             +---> roll back ---> pieces ---> exact replay ---> commit, or next part
//!                                                 | a conflict that is an error
//!                                                 +---> roll back, stop
//! ```
//!
//! A chunk is one of two things. It is either several whole source transactions, which become one
//! target transaction, or a part of one source transaction that is too large. The parts of that one
//! also become one target transaction. Exact replay of whole source transactions makes each a
//! target transaction of its own, so that everything before a conflict is kept.
//!
//! Invariants:
//!
//! - Every target transaction stores the end of its last source transaction as its progress. Where
//!   transactions commit out of order, it stores the range of the stream that it holds
//!   ([`schedule::CommittedRanges`]).
//! - A count or an error that a set meets is never reported; only what exact replay finds is.
//! - The next transaction is sent after the last COMMIT was answered (rule P1), or to the same
//!   session behind that COMMIT ([`pipelined`]).

mod ahead;
mod calling;
mod conflicts;
mod deleted;
mod exceptions;
mod foreign;
mod idle;
mod insisting;
mod looking;
mod met;
mod missing;
mod pipelined;
mod prepared;
mod procedure;
mod replay;
pub(crate) mod resolved;
mod sending;
mod sent;
pub(crate) mod span;

use std::sync::Arc;

use self::insisting::Insisting;
use self::prepared::{Prepared, Setback};
use self::procedure::{PG_LSN, Procedure};
use self::sending::{Sending, run};
use self::span::Span;
use base::Lsn;
use base::crash_phases::{self, Phase};
use bytes::{BufMut, BytesMut};
use client::{PipelineResult, SqlState, Wire};
use plan::{
    Batch, Change, Digest, End, Parameters, Path, Plan, Statement, Table, Tally, plain_statement,
    sql::{Shape, plain},
};
use prefetch::{explain, whole_scan};
use proto::frame::ServerError;
use rustc_hash::FxHashMap;
use state::{ABORT_MOVES_ORIGIN, statements};
use txn::{Begin, Op};

use crate::activity::{self, Doing};
use crate::chunk::{Chunk, Originals};
use crate::counters::add;
use crate::error::{Error, Kind};
use crate::join::Join;
use crate::large::Large;
use crate::runaway::{self, Cancelled};
use crate::set_size::EXACT;
use crate::shared_progress::SharedProgress;
use crate::sizes::Sizes;
use crate::write::{Writer, Writing, truncate};

/// How often a transaction that met a deadlock or a serialization failure is tried again before the
/// pipeline starts anew.
const TRANSIENT_RETRIES: u32 = 5;

/// The subscription that applies, for the statement that clears `skip_lsn`.
pub(crate) struct Identity {
    pub(crate) subscription: String,
    pub(crate) conflicts: resolved::Settings,
}

/// The number of statements of parts after which their answers are read together.
const ANSWERS_MAX: usize = 10_000;

/// Changes that were put aside are read back in batches of this many bytes.
const REPLAY_BYTES: usize = 8 * 1024 * 1024;

/// Parts of a transaction that is executed ahead.
pub(crate) trait ComingParts {
    /// The next part; `None` at the end, or where execution must not go on.
    async fn next(&mut self) -> Option<Plan>;
}

pub(crate) struct Executor {
    wire: Wire,
    subscription: String,
    prepared: Prepared,
    writer: Writer,
    begin: Statement,
    commit: Statement,
    savepoint: Statement,
    release: Statement,
    rollback_to: Statement,
    rollback: Statement,
    change_savepoint: Statement,
    change_release: Statement,
    change_rollback: Statement,
    clear_skip: Statement,
    check_deferred: Statement,
    /// Stores progress where the origin's cannot be trusted.
    write_progress: Arc<Shape>,
    /// Stores a range, where transactions commit out of order.
    write_range: Arc<Shape>,
    /// Records resolved conflicts.
    record_conflicts: Arc<Shape>,
    /// Where the range of the next target transaction begins.
    since: Lsn,
    pub(crate) shared: Arc<SharedProgress>,
    /// Counts of the parts of an open target transaction.
    open: Tally,
    insisting: Insisting,
    span: Span,
    procedure: Procedure,
    /// How large the tables look to the planner.
    sizes: Sizes,
    /// How many rows the planner assumed for each table, by its id, when the plans of the table's
    /// statements were last looked at.
    planned_at: FxHashMap<u64, f64>,
    /// Receives each statement that ran away and was cancelled.
    cancelled: Arc<Cancelled>,
    away: Option<runaway::Statement>,
    away_from: Vec<Arc<Table>>,
    /// Plans were made anew since a set was tried.
    healed: bool,
    /// Shows what the session waits for.
    activity: activity::Session,
    conflicts: resolved::Conflicts,
    /// The number, within its batch, of the change that is replayed by itself.
    replaying: usize,
}

impl Executor {
    pub(crate) fn new(wire: Wire, writer: Writer, identity: &Identity, shared: Arc<SharedProgress>) -> Self {
        let statement = |name: &str, sql: &str| plain_statement(Arc::new(plain(name, sql)));
        let subscription = identity.subscription.as_str();
        let mut write_progress = plain("progress", &statements::write_progress(subscription, "$1"));
        write_progress.parameter_types = vec![PG_LSN];
        let mut write_range = plain("stretch", &statements::write_range(subscription));
        write_range.parameter_types = vec![PG_LSN, PG_LSN];
        Executor {
            wire,
            subscription: identity.subscription.clone(),
            prepared: Prepared::default(),
            writer,
            begin: statement("begin", "BEGIN"),
            commit: statement("commit", "COMMIT"),
            savepoint: statement("savepoint", "SAVEPOINT pgsluice_chunk"),
            release: statement("release", "RELEASE SAVEPOINT pgsluice_chunk"),
            rollback_to: statement("rollback_to", "ROLLBACK TO SAVEPOINT pgsluice_chunk"),
            rollback: statement("rollback", "ROLLBACK"),
            change_savepoint: statement("change_savepoint", "SAVEPOINT pgsluice_change"),
            change_release: statement("change_release", "RELEASE SAVEPOINT pgsluice_change"),
            change_rollback: statement("change_rollback", "ROLLBACK TO SAVEPOINT pgsluice_change"),
            clear_skip: statement("clear_skip", &statements::clear_skip(subscription)),
            check_deferred: statement("check_deferred", "SET CONSTRAINTS ALL IMMEDIATE"),
            write_progress: Arc::new(write_progress),
            write_range: Arc::new(write_range),
            record_conflicts: Arc::new(resolved::recording(subscription)),
            since: Lsn::INVALID,
            activity: shared.counters.activity.session(),
            shared,
            open: Tally::default(),
            insisting: Insisting::default(),
            span: Span::default(),
            procedure: Procedure::default(),
            sizes: Sizes::default(),
            planned_at: FxHashMap::default(),
            cancelled: Arc::default(),
            away: None,
            away_from: Vec::new(),
            healed: false,
            conflicts: resolved::Conflicts::new(identity.conflicts.clone()),
            replaying: 0,
        }
    }

    /// Where the executor learns that its own statements were cancelled because they ran away.
    pub(crate) fn cancelled(&self) -> Arc<Cancelled> {
        Arc::clone(&self.cancelled)
    }

    /// Shows what the session is executing.
    pub(crate) fn hand(&self) -> crate::activity::Watch {
        self.activity.watch()
    }

    /// Sets where the next range begins. Without this call it continues after the last range.
    pub(crate) fn begins_at(&mut self, since: Lsn) {
        self.since = since;
    }

    /// Applies a transaction part by part from its file. It is head, so the conflicts and errors
    /// that it meets may be reported.
    pub(crate) async fn apply_large(&mut self, large: Large) -> Result<(), Error> {
        let Large { changes, begin, digest, part } = large;
        let mut reader = changes.read().map_err(Kind::PutAside)?;
        let mut first = true;
        while let Some(batch) = self.disk(|| reader.part(begin, part, REPLAY_BYTES))? {
            self.apply_part(Chunk::new(batch, first, self.writer.binary())).await?;
            first = false;
        }
        self.shared.done(digest.bytes);
        Ok(())
    }

    /// Applies one chunk.
    pub(crate) async fn apply(&mut self, chunk: Chunk) -> Result<(), Error> {
        let bytes = chunk.digest.bytes;
        if let (true, Originals::Memory(_)) = (chunk.each, &chunk.originals) {
            let Originals::Memory(batch) = chunk.originals else { return Err(Kind::LostTask.into()) };
            self.apply_each(batch).await?;
        } else if chunk.first && chunk.last {
            self.apply_transactions(chunk).await?;
        } else {
            self.apply_part(chunk).await?;
        }
        self.shared.done(bytes);
        Ok(())
    }

    /// Applies whole transactions, as a set if they may fit as one.
    pub(crate) async fn apply_transactions(&mut self, chunk: Chunk) -> Result<(), Error> {
        let Chunk { originals, digest, plan, .. } = chunk;
        if plan.as_ref().is_some_and(|plan| self.begins_telling(plan)) {
            return self.apply_again(originals).await;
        }
        if digest.transactions <= self.shared.set_size().transactions() {
            if self.apply_whole(plan, &digest).await? {
                self.shared.fitted(digest.transactions);
                return Ok(());
            }
            if !self.healed {
                self.shared.set_size().failed(digest.transactions);
            }
        }
        self.replay(originals).await
    }

    /// Applies what failed as one set.
    pub(crate) async fn replay(&mut self, originals: Originals) -> Result<(), Error> {
        tracing::debug!("a batch does not fit the target");
        add(&self.shared.counters.replays, 1);
        self.apply_again(originals).await
    }

    /// Applies what does not hold as one set, or is not expected to.
    async fn apply_again(&mut self, originals: Originals) -> Result<(), Error> {
        match originals {
            Originals::Memory(batch) => self.apply_unfit(batch).await,
            Originals::Disk(spilled) => {
                let mut reader = spilled.read().map_err(Kind::PutAside)?;
                while let Some(batch) = self.disk(|| reader.next(REPLAY_BYTES))? {
                    self.apply_unfit(batch).await?;
                }
                Ok(())
            }
        }
    }

    /// The same for one batch: with exceptions if that is possible, otherwise in pieces.
    async fn apply_unfit(&mut self, batch: Batch) -> Result<(), Error> {
        if !self.healed && self.apply_excepting(&batch).await? {
            return Ok(());
        }
        self.apply_in_pieces(batch).await
    }

    /// Applies a part of a transaction that is too large for one chunk.
    pub(crate) async fn apply_part(&mut self, chunk: Chunk) -> Result<(), Error> {
        // Parts are never put aside: the planner hands them over as soon as they are full.
        let Originals::Memory(batch) = chunk.originals else { return Err(Kind::LostTask.into()) };
        let mut tally = chunk.digest.tally;
        self.activity.part(batch.changes.len());
        if chunk.plan.as_ref().is_some_and(|plan| self.begins_telling(plan)) {
            let begin: &[&Which] = if chunk.first { &[&Which::Begin] } else { &[] };
            self.one(&[begin, &[&Which::Savepoint]].concat()).await?;
            tally.written = self.apply_part_again(&batch).await?;
        } else {
            match self.apply_set(chunk.plan, None, chunk.first, false).await {
                Ok(written) => {
                    tally.written = written;
                    self.shared.expecting.met(false);
                }
                Err(Setback::Broken(error)) => return Err(error),
                Err(Setback::Unexpected | Setback::Failed(_)) => {
                    self.one(&[&Which::RollbackTo]).await?;
                    add(&self.shared.counters.replays, 1);
                    tally.written = self.apply_part_again(&batch).await?;
                }
            }
        }
        self.open += tally;
        if let (true, Some(end)) = (chunk.last, &chunk.digest.last) {
            self.commit(end, end.skipped).await?;
            self.committed(&chunk.digest);
        }
        Ok(())
    }

    /// Applies a part behind its savepoint: as a set again if a statement of it ran away, otherwise
    /// with exceptions, or one change at a time. Returns the number of rows written.
    async fn apply_part_again(&mut self, batch: &Batch) -> Result<u64, Error> {
        // Each cancel doubles the time that the next try has.
        while self.away.is_some() {
            self.heal().await?;
            let mut plan = Plan::new(self.writer.binary());
            if plan.add_all(&batch.changes).is_ok() {
                match self.apply_set(Some(plan), None, false, false).await {
                    Ok(written) => return Ok(written),
                    Err(Setback::Broken(error)) => return Err(error),
                    Err(Setback::Unexpected | Setback::Failed(_)) => self.one(&[&Which::RollbackTo]).await?,
                }
            }
        }
        if let Some(written) = self.apply_part_excepting(batch).await? {
            return Ok(written);
        }
        tracing::debug!(changes = batch.changes.len(), "applying a part one change at a time");
        self.replay_part(batch).await?;
        Ok(batch.changes.len() as u64)
    }

    /// Applies whole transactions as sets and commits. Returns false, with everything rolled back,
    /// if the target was not as the source had it.
    pub(crate) async fn apply_whole(&mut self, plan: Option<Plan>, digest: &Digest) -> Result<bool, Error> {
        self.complete(plan, true, digest).await
    }

    /// [`Executor::apply_whole`], in a transaction that is already open unless `first`.
    pub(crate) async fn complete(
        &mut self,
        plan: Option<Plan>,
        first: bool,
        digest: &Digest,
    ) -> Result<bool, Error> {
        let Some(end) = &digest.last else { return Ok(true) };
        match self.apply_set(plan, Some(end.commit.commit_lsn), first, true).await {
            Ok(written) => {
                self.open += digest.tally;
                self.open.written += written;
                match self.commit(end, digest.skipped > 0).await {
                    Ok(()) => {
                        self.committed(digest);
                        self.look_at_plans().await?;
                        return Ok(true);
                    }
                    // A deferred constraint fails only now.
                    Err(_) if self.wire_is_alive() => {}
                    Err(error) => return Err(error),
                }
            }
            Err(Setback::Unexpected | Setback::Failed(_)) => {}
            Err(Setback::Broken(error)) => return Err(error),
        }
        self.roll_back().await?;
        Ok(false)
    }

    /// Rolls back, whatever the state of the transaction.
    pub(crate) async fn roll_back(&mut self) -> Result<(), Error> {
        self.open = Tally::default();
        self.conflicts.back_to(0);
        self.activity.closed();
        loop {
            match self.one(&[&Which::Rollback]).await {
                // A cancel that came too late for its statement.
                Err(error)
                    if error.sqlstate() == Some(SqlState::QUERY_CANCELED.code()) && self.wire_is_alive() => {}
                Ok(()) => return self.heal().await,
                ended => return ended,
            }
        }
    }

    /// Executes a plan before its turn to commit, in a transaction that it begins and leaves open.
    /// Returns false, with everything rolled back, if it met an error or an unexpected count.
    pub(crate) async fn execute_ahead(&mut self, plan: Plan) -> Result<bool, Error> {
        let written = self.apply_set(Some(plan), None, true, true).await;
        self.executed_ahead(written).await
    }

    /// The same with parts that come one after another. The next part is made while the server
    /// executes the one before it. Unless `first`, the transaction is already open.
    pub(crate) async fn execute_parts_ahead(
        &mut self,
        parts: &mut impl ComingParts,
        first: bool,
    ) -> Result<bool, Error> {
        let mut first = first;
        loop {
            let began = match self.apply_parts(parts, first).await {
                Ok(None) => return Ok(true),
                Ok(Some(written)) => self.executed_ahead(Ok(written)).await?,
                Err(setback) => self.executed_ahead(Err(setback)).await?,
            };
            if !began {
                return Ok(false);
            }
            first = false;
        }
    }

    async fn executed_ahead(&mut self, written: Result<u64, Setback>) -> Result<bool, Error> {
        match written {
            Ok(written) => {
                self.open.written += written;
                Ok(true)
            }
            Err(Setback::Broken(error)) if !self.wire_is_alive() => Err(error),
            // The cancelled statement may have been BEGIN.
            Err(setback) => {
                tracing::debug!(?setback, "a chunk does not hold so early: it is executed again in its turn");
                self.roll_back().await.map(|()| false)
            }
        }
    }

    /// Executes some of the parts and returns the number of rows written; `None` when there are no
    /// more.
    async fn apply_parts(
        &mut self,
        parts: &mut impl ComingParts,
        first: bool,
    ) -> Result<Option<u64>, Setback> {
        let Some(mut plan) = parts.next().await else { return Ok(None) };
        let _sending = (crash_phases::inside(Phase::Batch), self.activity.enter(Doing::Sets));
        let broken = |error: client::Error| Setback::Broken(error.into());
        let tables: Vec<Arc<Table>> = plan.tables().cloned().collect();
        self.look_at_sizes(tables.iter(), first).await.map_err(Setback::Broken)?;
        let mut sending = Sending::start(&mut self.wire, &mut self.prepared).await.map_err(broken)?;
        if first {
            sending.push(&self.begin);
        }
        let prologue = sending.expected.len();
        // Dropped with the part: it keeps the part's pages being read ahead.
        let mut _before = None;
        let fits = loop {
            let mut writing = Writing::new(plan);
            if !sending.send(&mut self.writer, &mut writing).await.map_err(broken)? {
                break false;
            }
            // The answers stay in memory until the end, so their number is bounded.
            if !sending.keep_up_as_expected().await.map_err(broken)? || sending.expected.len() >= ANSWERS_MAX
            {
                break true;
            }
            _before = writing.into_hand();
            match parts.next().await {
                Some(next) => {
                    plan = next;
                    self.activity.next_set();
                }
                None => break true,
            }
        };
        match sending.written(prologue, fits).await {
            Err(Setback::Failed(code)) => Err(self.failed_set(&code, tables)),
            written => written.map(Some),
        }
    }

    /// Turns the error of a set into a setback, and notes the tables if a statement ran away.
    fn failed_set(&mut self, code: &str, tables: Vec<Arc<Table>>) -> Setback {
        if self.ran_away(code) {
            self.away_from = tables;
        }
        Setback::Unexpected
    }

    /// Applies what does not fit as a whole in pieces that may (rule F4).
    async fn apply_in_pieces(&mut self, batch: Batch) -> Result<(), Error> {
        let whole = batch.ends.len();
        let mut rest = vec![batch];
        while let Some(batch) = rest.pop() {
            let transactions = batch.ends.len();
            let (fits, cut) = {
                let fit = self.shared.set_size();
                (fit.transactions(), fit.cut(transactions))
            };
            // A set that ran away was no misfit: with new plans it is tried again whole. Each
            // cancel doubles the time it has.
            let again = std::mem::take(&mut self.healed);
            if transactions > fits && !again {
                let (earlier, later) = batch.split(cut);
                rest.extend([later, earlier]);
            } else if transactions <= EXACT && !again {
                self.replay_transactions(&batch).await?;
                self.shared.set_size().replayed();
            } else {
                let Chunk { plan, digest, originals, .. } = Chunk::whole(batch, self.writer.binary());
                if self.apply_whole(plan, &digest).await? {
                    self.shared.fitted(transactions);
                } else {
                    if !self.healed {
                        self.shared.set_size().failed(transactions);
                    }
                    let Originals::Memory(batch) = originals else { return Err(Kind::LostTask.into()) };
                    let tried = transactions == whole || self.healed;
                    if tried || !self.apply_excepting(&batch).await? {
                        rest.push(batch);
                    }
                }
            }
        }
        Ok(())
    }

    /// Lets a table join. One transaction holds the changes that came during its copy, the note
    /// that it has joined, and the position that this leads to.
    pub(crate) async fn join(&mut self, join: Join) -> Result<(), Error> {
        let Join { table, since, changes, position, done } = join;
        self.one(&[&Which::Begin]).await?;
        if let Some(spilled) = changes {
            let mut reader = spilled.read().map_err(Kind::PutAside)?;
            while let Some(batch) = self.disk(|| reader.next(REPLAY_BYTES))? {
                let batch = batch.only(|begin| since.includes(begin.final_lsn, begin.xid));
                if batch.ends.is_empty() {
                    continue;
                }
                let chunk = Chunk { last: false, ..Chunk::new(batch, false, self.writer.binary()) };
                self.apply_part(chunk).await?;
            }
        }
        let sql = statements::join_table(&self.subscription, &table, &since);
        let joined = plain_statement(Arc::new(plain("", &sql)));
        // The last target transaction may have stored the same position. No other transaction is in
        // flight.
        self.since = self.shared.stored();
        let moves = position.filter(|end| end.commit.end_lsn > self.since);
        let result = run(&mut self.wire, &mut self.prepared, &[&joined]).await?;
        if result.error.is_none() && result.rows == [1] {
            match &moves {
                Some(end) => {
                    self.commit(end, false).await?;
                    self.committed(&Digest { last: Some(*end), ..Digest::default() });
                }
                None => {
                    self.one(&[&Which::Commit]).await?;
                    self.committed(&Digest::default());
                }
            }
            let _ = done.send(Ok(()));
            return Ok(());
        }
        // The table was forgotten meanwhile, so its later changes must not be applied either: begin
        // anew.
        let error = result.error.map_or_else(
            || Kind::Forgotten { table: format!("{}.{}", table.0, table.1) }.into(),
            |error| Kind::Statement { what: "recording a table as joined", error }.into(),
        );
        Err(error)
    }

    pub(crate) fn wire_is_alive(&self) -> bool {
        !self.wire.is_broken()
    }

    /// Sends the plan's sets, checks the counts that they report, and returns the number of rows
    /// written. `first` begins the transaction. Unless `alone`, the sets stand behind a savepoint.
    /// `up_to`, if given, says that the plan holds everything up to that commit record.
    async fn apply_set(
        &mut self,
        plan: Option<Plan>,
        up_to: Option<Lsn>,
        first: bool,
        alone: bool,
    ) -> Result<u64, Setback> {
        if !first && alone && plan.as_ref().is_some_and(Plan::is_empty) {
            return Ok(0);
        }
        let _sending = (crash_phases::inside(Phase::Batch), self.activity.enter(Doing::Sets));
        let broken = |error: client::Error| Setback::Broken(error.into());
        let tables: Vec<Arc<Table>> = plan.iter().flat_map(Plan::tables).cloned().collect();
        self.look_at_sizes(tables.iter(), first).await.map_err(Setback::Broken)?;
        let mut sending = Sending::start(&mut self.wire, &mut self.prepared).await.map_err(broken)?;
        if first {
            sending.push(&self.begin);
        }
        if !alone {
            sending.push(&self.savepoint);
        }
        let prologue = sending.expected.len();
        // Dropped with the set: it keeps the set's pages being read ahead.
        let mut writing = plan.map(|plan| Writing::new(plan).up_to(up_to));
        let fits = match &mut writing {
            Some(writing) => sending.send(&mut self.writer, writing).await.map_err(broken)?,
            None => false,
        };
        let written = match sending.written(prologue, fits).await {
            Err(Setback::Failed(code)) => return Err(self.failed_set(&code, tables)),
            written => written?,
        };
        // Only now: a rollback to a released savepoint is impossible.
        if !alone {
            self.one(&[&Which::Release]).await.map_err(Setback::Broken)?;
        }
        Ok(written)
    }

    /// Commits, with progress at `end`.
    ///
    /// From 16 on, a transaction that aborts after its origin was told moves the origin as a commit
    /// does. So the errors that COMMIT could meet, which are those of deferred constraints, are
    /// provoked before the origin is told. A shutdown may still end the backend between the two
    /// messages, so progress is a row there. The origin is told nevertheless: it marks the
    /// transaction as replicated and gives it the source's commit time.
    async fn commit(&mut self, end: &End, clear_skip: bool) -> Result<(), Error> {
        self.commit_with(Vec::new(), end, clear_skip).await
    }

    /// Executes `last` and commits, in one round trip.
    async fn commit_with(&mut self, last: Vec<Statement>, end: &End, clear_skip: bool) -> Result<(), Error> {
        let relaxed = self.shared.is_relaxed();
        // On 14 and 15 a restart begins at the origin's position, which must never pass a gap.
        let told = if relaxed { self.shared.stored() } else { end.commit.end_lsn };
        let setup = origin_setup(told, end);
        let mut statements: Vec<&Statement> = last.iter().collect();
        if clear_skip {
            statements.push(&self.clear_skip);
        }
        let row = match relaxed {
            true => Some(row_of(&self.write_range, &[self.since, end.commit.end_lsn])),
            false if self.wire.version().major() >= ABORT_MOVES_ORIGIN => {
                Some(row_of(&self.write_progress, &[end.commit.end_lsn]))
            }
            false => None,
        };
        statements.extend(row.as_ref());
        statements.extend([&self.check_deferred, &setup, &self.commit]);
        let _committing = (crash_phases::inside(Phase::Commit), self.activity.enter(Doing::Commit));
        let result = run(&mut self.wire, &mut self.prepared, &statements).await?;
        match result.error {
            Some(error) => {
                let (xid, finished_at) = (end.begin.xid, end.begin.final_lsn);
                Err(Kind::Commit { xid, finished_at, error }.into())
            }
            None => {
                self.shared.store(self.since, end);
                self.since = end.commit.end_lsn;
                Ok(())
            }
        }
    }

    fn committed(&mut self, digest: &Digest) {
        // What ran away is over; what fails next has failed by itself.
        self.healed = false;
        self.activity.closed();
        self.tell_resolved();
        self.shared.committed(std::mem::take(&mut self.open), digest);
    }

    /// Runs statements of ours that must succeed.
    async fn one(&mut self, which: &[&Which]) -> Result<(), Error> {
        let statements: Vec<&Statement> = which
            .iter()
            .map(|which| match which {
                Which::Begin => &self.begin,
                Which::Commit => &self.commit,
                Which::Savepoint => &self.savepoint,
                Which::Release => &self.release,
                Which::Rollback => &self.rollback,
                Which::RollbackTo => &self.rollback_to,
            })
            .collect();
        let result = run(&mut self.wire, &mut self.prepared, &statements).await?;
        match result.error {
            Some(error) => Err(Kind::Statement { what: "transaction control", error }.into()),
            None => Ok(()),
        }
    }

    /// Whether values come in binary form.
    pub(crate) fn binary(&self) -> bool {
        self.writer.binary()
    }

    /// Ends the session in order.
    pub(crate) async fn close(self) {
        self.wire.close().await;
    }
}

enum Which {
    Begin,
    Commit,
    Savepoint,
    Release,
    Rollback,
    RollbackTo,
}

fn operation(op: &Op) -> &'static str {
    match op {
        Op::Insert(_) => "INSERT",
        Op::Update { .. } => "UPDATE",
        Op::Delete(_) => "DELETE",
    }
}

fn change_error(table: String, operation: &'static str, begin: Begin, error: ServerError) -> Error {
    Kind::Change { table, operation, xid: begin.xid, finished_at: begin.final_lsn, error }.into()
}

/// Writes where transactions ended on the source; see [`ABORT_MOVES_ORIGIN`].
fn row_of(shape: &Arc<Shape>, positions: &[Lsn]) -> Statement {
    let mut parameters = BytesMut::with_capacity(32);
    parameters.put_u16(1);
    parameters.put_u16(1);
    parameters.put_u16(u16::try_from(positions.len()).expect("one or two"));
    for position in positions {
        parameters.put_u32(8);
        parameters.put_u64(position.as_u64());
    }
    Statement { shape: Arc::clone(shape), parameters: Parameters::Values(parameters), rows_expected: 1 }
}

/// Sets what the next COMMIT of this session records: the origin's position, and the commit time on
/// the source.
fn origin_setup(position: Lsn, end: &End) -> Statement {
    const TIMESTAMPTZ: base::Oid = base::Oid(1184);
    let mut shape = plain("origin", "SELECT pg_catalog.pg_replication_origin_xact_setup($1, $2)");
    shape.parameter_types = vec![PG_LSN, TIMESTAMPTZ];
    let mut parameters = BytesMut::with_capacity(32);
    parameters.put_u16(1);
    parameters.put_u16(1);
    parameters.put_u16(2);
    parameters.put_u32(8);
    parameters.put_u64(position.as_u64());
    parameters.put_u32(8);
    parameters.put_i64(end.commit.commit_time.0);
    Statement { shape: Arc::new(shape), parameters: Parameters::Values(parameters), rows_expected: 1 }
}
