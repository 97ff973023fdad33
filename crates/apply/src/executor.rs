//! Chunks into the target: set-based while everything is as the source had
//! it, one change at a time where it is not.
//!
//! ```text
//!            plan holds: every statement reports the rows it must
//!   chunk ------------------------------------------------------> commit, or next part
//!     |  an error, another count, or no plan
//!     +---> roll back (to the chunk's savepoint) ---> pieces ---> exact replay ---> commit, or next part
//!                                                                    | a conflict that is an error
//!                                                                    +---> roll back, stop
//! ```
//!
//! A chunk is either several whole source transactions, which become one
//! target transaction, or a part of one source transaction that is too large,
//! whose parts become one target transaction. In exact replay of the former
//! each source transaction is a target transaction of its own, so that what
//! precedes a conflict is kept.
//!
//! Invariants: every target transaction stores the end of its last source
//! transaction as its progress; a count or an error met by a set is never
//! reported, only what exact replay finds is; the next transaction is not sent
//! before the last COMMIT was answered (RULES P1).

use std::sync::Arc;

use base::flight::{self, Phase};
use base::{Lsn, Progress};
use bytes::{BufMut, BytesMut};
use client::{PipelineResult, Wire};
use conflict::{Conflict, ConflictType, Treatment};
use proto::frame::ServerError;
use rustc_hash::FxHashSet;
use txn::{Begin, Op};

use crate::batch::{Batch, Change, Chunk, End};
use crate::counters::{Counters, add};
use crate::error::{Error, Kind, is_transient};
use crate::fit::{EXACT, Fit};
use crate::plan::{Planner, truncate};
use crate::shape::{Shape, plain};
use crate::state::ABORT_MOVES_ORIGIN;
use crate::statement::{Statement, plain_statement};
use crate::table::{Path, Table};

/// How often a transaction that met a deadlock or a serialization failure is
/// tried again before the pipeline starts anew.
const TRANSIENT_RETRIES: u32 = 5;

/// Who applies: for the statement that clears `skip_lsn`.
pub(crate) struct Identity {
    pub(crate) subscription: String,
}

pub(crate) struct Executor {
    wire: Wire,
    /// Names of statements this session has prepared.
    prepared: FxHashSet<String>,
    /// Makes the statements of exact replay.
    exact: Planner,
    begin: Statement,
    savepoint: Statement,
    release: Statement,
    rollback_to: Statement,
    rollback: Statement,
    clear_skip: Statement,
    check_deferred: Statement,
    /// Stores progress where the origin's cannot be trusted.
    write_progress: Arc<Shape>,
    counters: Arc<Counters>,
    progress: Arc<Progress>,
    /// How large a set is tried.
    fit: Fit,
    /// Counts of the parts of an open target transaction.
    open: Tally,
}

/// What a target transaction did, counted when it has committed.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    inserts: u64,
    updates: u64,
    deletes: u64,
    truncates: u64,
    written: u64,
}

/// Why a set-based chunk was given up.
enum Setback {
    /// Something was not as the source had it.
    Unexpected,
    /// The connection or the session is of no further use.
    Broken(Error),
}

impl Executor {
    pub(crate) fn new(
        wire: Wire,
        exact: Planner,
        identity: &Identity,
        counters: Arc<Counters>,
        progress: Arc<Progress>,
    ) -> Self {
        let statement = |name: &str, sql: &str| plain_statement(Arc::new(plain(name, sql)));
        let subscription = base::quote_literal(&identity.subscription);
        let clear = format!("UPDATE pgsluice.subscription SET skip_lsn = NULL WHERE name = {subscription}");
        let write =
            format!("INSERT INTO pgsluice.progress (subscription, applied_lsn) VALUES ({subscription}, $1)");
        let mut write_progress = plain("progress", &write);
        write_progress.parameter_types = vec![PG_LSN];
        Executor {
            wire,
            prepared: FxHashSet::default(),
            exact,
            begin: statement("begin", "BEGIN"),
            savepoint: statement("savepoint", "SAVEPOINT pgsluice_chunk"),
            release: statement("release", "RELEASE SAVEPOINT pgsluice_chunk"),
            rollback_to: statement("rollback_to", "ROLLBACK TO SAVEPOINT pgsluice_chunk"),
            rollback: statement("rollback", "ROLLBACK"),
            clear_skip: statement("clear_skip", &clear),
            check_deferred: statement("check_deferred", "SET CONSTRAINTS ALL IMMEDIATE"),
            write_progress: Arc::new(write_progress),
            counters,
            progress,
            fit: Fit::new(),
            open: Tally::default(),
        }
    }

    /// Applies one chunk.
    pub(crate) async fn apply(&mut self, chunk: Chunk) -> Result<(), Error> {
        let bytes = chunk.batch.bytes as u64;
        self.apply_chunk(chunk).await?;
        self.counters.queued_bytes.fetch_sub(bytes, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    async fn apply_chunk(&mut self, chunk: Chunk) -> Result<(), Error> {
        if chunk.first && chunk.last() {
            let transactions = chunk.batch.ends.len();
            if transactions <= self.fit.transactions() {
                if self.apply_whole(&chunk).await? {
                    self.fit.fitted(transactions);
                    return Ok(());
                }
                tracing::debug!(changes = chunk.batch.changes.len(), "a batch does not fit the target");
                self.fit.failed(transactions);
            }
            add(&self.counters.replays, 1);
            return self.apply_in_pieces(chunk.batch).await;
        }
        match self.apply_set(&chunk).await {
            Ok(()) => {}
            Err(Setback::Broken(error)) => return Err(error),
            Err(Setback::Unexpected) => {
                add(&self.counters.replays, 1);
                tracing::debug!(changes = chunk.batch.changes.len(), "applying a part one change at a time");
                self.one(&[&Which::RollbackTo]).await?;
                self.replay_part(&chunk.batch).await?;
            }
        }
        self.open += Tally::of(&chunk.batch, chunk.statements.as_deref());
        if let (true, Some(end)) = (chunk.last(), chunk.batch.ends.last()) {
            self.commit(end, end.skipped).await?;
            self.committed(&chunk.batch.ends);
        }
        Ok(())
    }

    /// Applies whole transactions as sets and commits; false if something was
    /// not as the source had it, and nothing was done.
    async fn apply_whole(&mut self, chunk: &Chunk) -> Result<bool, Error> {
        let Some(end) = chunk.batch.ends.last() else { return Ok(true) };
        match self.apply_set(chunk).await {
            Ok(()) => {
                self.open += Tally::of(&chunk.batch, chunk.statements.as_deref());
                let skipped = chunk.batch.ends.iter().any(|end| end.skipped);
                match self.commit(end, skipped).await {
                    Ok(()) => {
                        self.committed(&chunk.batch.ends);
                        return Ok(true);
                    }
                    // A deferred constraint, found only now.
                    Err(_) if self.wire_is_alive() => self.open = Tally::default(),
                    Err(error) => return Err(error),
                }
            }
            Err(Setback::Unexpected) => {}
            Err(Setback::Broken(error)) => return Err(error),
        }
        self.one(&[&Which::Rollback]).await?;
        Ok(false)
    }

    /// Applies what does not fit as a whole in pieces that may (RULES F4).
    async fn apply_in_pieces(&mut self, batch: Batch) -> Result<(), Error> {
        let mut rest = vec![batch];
        while let Some(batch) = rest.pop() {
            let transactions = batch.ends.len();
            if transactions > self.fit.transactions() {
                let (earlier, later) = batch.split(self.fit.cut(transactions));
                rest.extend([later, earlier]);
            } else if transactions <= EXACT {
                self.replay_transactions(&batch).await?;
                self.fit.replayed();
            } else {
                let statements = self.exact.plan(&batch);
                let chunk = Chunk { batch, statements, first: true };
                if self.apply_whole(&chunk).await? {
                    self.fit.fitted(transactions);
                } else {
                    self.fit.failed(transactions);
                    rest.push(chunk.batch);
                }
            }
        }
        Ok(())
    }

    /// Nothing of what came before `lsn` is for this target.
    pub(crate) fn caught_up(&self, lsn: Lsn) {
        self.progress.advance_applied(lsn);
    }

    fn wire_is_alive(&self) -> bool {
        !self.wire.is_broken()
    }

    /// Sends the chunk's sets, and checks what they report.
    async fn apply_set(&mut self, chunk: &Chunk) -> Result<(), Setback> {
        let alone = chunk.first && chunk.last();
        let mut prologue = Vec::new();
        if chunk.first {
            prologue.push(&self.begin);
        }
        if !alone {
            prologue.push(&self.savepoint);
        }
        let statements = chunk.statements.as_deref().unwrap_or_default();
        let all: Vec<&Statement> = prologue.iter().copied().chain(statements).collect();
        let _sending = flight::inside(Phase::Batch);
        let result = run(&mut self.wire, &mut self.prepared, &all).await.map_err(Setback::Broken)?;
        if let Some(error) = &result.error {
            if result.rows.len() < prologue.len() {
                return Err(Setback::Broken(Kind::Statement { what: "BEGIN", error: error.clone() }.into()));
            }
            tracing::debug!(code = %error.code, "a set failed: {}", error.message);
            return Err(Setback::Unexpected);
        }
        let expected = all.iter().map(|statement| statement.rows_expected);
        if chunk.statements.is_none() || !result.rows.iter().copied().eq(expected) {
            return Err(Setback::Unexpected);
        }
        // Only now: a savepoint that was released cannot be gone back to.
        if !alone {
            self.one(&[&Which::Release]).await.map_err(Setback::Broken)?;
        }
        Ok(())
    }

    /// Exact replay of whole transactions, each a target transaction.
    async fn replay_transactions(&mut self, batch: &Batch) -> Result<(), Error> {
        let mut start = 0;
        for end in &batch.ends {
            let mut tries = 0;
            while let Err(error) = self.replay_transaction(batch, start, end).await {
                self.open = Tally::default();
                if self.wire_is_alive() {
                    self.one(&[&Which::Rollback]).await?;
                }
                tries += 1;
                if !error.is_transient() || tries > TRANSIENT_RETRIES {
                    return Err(error);
                }
                tracing::info!(xid = %end.begin.xid, "trying a transaction again: {error}");
            }
            start = end.changes_end;
        }
        Ok(())
    }

    async fn replay_transaction(&mut self, batch: &Batch, start: usize, end: &End) -> Result<(), Error> {
        let _replaying = flight::inside(Phase::Replay);
        self.one(&[&Which::Begin]).await?;
        self.replay_changes(batch, start..end.changes_end, end.begin).await?;
        for change in &batch.changes[start..end.changes_end] {
            self.open.count(change);
        }
        self.commit(end, end.skipped).await?;
        self.committed(std::slice::from_ref(end));
        Ok(())
    }

    /// Exact replay of a part of a transaction, behind the savepoint.
    async fn replay_part(&mut self, batch: &Batch) -> Result<(), Error> {
        let begin = batch.open.or(batch.ends.last().map(|end| end.begin));
        let Some(begin) = begin else { return Ok(()) };
        let _replaying = flight::inside(Phase::Replay);
        self.replay_changes(batch, 0..batch.changes.len(), begin).await?;
        self.one(&[&Which::Release]).await
    }

    async fn replay_changes(
        &mut self,
        batch: &Batch,
        range: std::ops::Range<usize>,
        begin: Begin,
    ) -> Result<(), Error> {
        for number in range {
            match &batch.changes[number] {
                Change::Row { table, op } => self.replay_row(table, op, begin).await?,
                Change::Truncate { tables, restart_identity } => {
                    let statement = truncate(tables, *restart_identity);
                    let result = run(&mut self.wire, &mut self.prepared, &[&statement]).await?;
                    if let Some(error) = result.error {
                        let table = tables.iter().map(|t| t.name.as_str()).collect::<Vec<_>>().join("\", \"");
                        return Err(change_error(table, "TRUNCATE", begin, error));
                    }
                }
            }
        }
        Ok(())
    }

    async fn replay_row(&mut self, table: &Arc<Table>, op: &Op, begin: Begin) -> Result<(), Error> {
        let operation = operation(op);
        let Ok(statement) = self.exact.row(table, op) else {
            let (xid, finished_at) = (begin.xid, begin.final_lsn);
            return Err(Kind::NoIdentity { table: table.name.clone(), operation, xid, finished_at }.into());
        };
        let missing = match op {
            // An INSERT that a BEFORE trigger swallows is no conflict.
            Op::Insert(_) => None,
            Op::Update { .. } => Some(ConflictType::UpdateMissing),
            Op::Delete(_) => Some(ConflictType::DeleteMissing),
        };
        // Twice: a row that is deleted and inserted again by another session
        // while we look may be seen by neither snapshot half (RULES F6).
        for look in 0..2 {
            let result = run(&mut self.wire, &mut self.prepared, &[&statement]).await?;
            if let Some(error) = result.error {
                return Err(self.failed(table, op, begin, error));
            }
            match missing {
                Some(kind) if result.rows.first() == Some(&0) => {
                    if look == 1 && !self.is_swallowed(table, op).await? {
                        self.report(kind, table, begin);
                    }
                }
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// Whether a BEFORE trigger returned NULL: the row is there and was left
    /// as it is, which is no conflict (RULES F6).
    async fn is_swallowed(&mut self, table: &Arc<Table>, op: &Op) -> Result<bool, Error> {
        if table.path != Path::RowsAlone {
            return Ok(false);
        }
        let Ok(statement) = self.exact.probe(table, op) else { return Ok(false) };
        let result = run(&mut self.wire, &mut self.prepared, &[&statement]).await?;
        Ok(result.error.is_none() && result.rows.first().is_some_and(|&rows| rows > 0))
    }

    /// A conflict after which native apply goes on.
    fn report(&self, kind: ConflictType, table: &Table, begin: Begin) {
        debug_assert_eq!(kind.native_treatment(), Treatment::Skip);
        self.counters.conflicts.add(kind);
        let conflict = Conflict { kind, relation: table.name.clone(), index: None };
        tracing::info!(xid = %begin.xid, finished_at = %begin.final_lsn, "{conflict}");
    }

    /// What an error of one change means.
    fn failed(&self, table: &Table, op: &Op, begin: Begin, error: ServerError) -> Error {
        // unique_violation; exclusion constraints are plain errors, as in
        // native apply.
        if error.code != "23505" {
            return change_error(table.name.clone(), operation(op), begin, error);
        }
        let kind =
            if matches!(op, Op::Insert(_)) { ConflictType::InsertExists } else { ConflictType::UpdateExists };
        self.counters.conflicts.add(kind);
        let conflict = Conflict { kind, relation: table.name.clone(), index: error.constraint };
        Kind::Conflict { conflict, xid: begin.xid, finished_at: begin.final_lsn }.into()
    }

    /// Commits, with progress at `end`.
    ///
    /// From 16 on a transaction that aborts after its origin was told moves
    /// the origin as one that commits does. So whatever COMMIT might find
    /// wrong, which is what deferred constraints find, is found before; and
    /// because a shutdown may end the backend between the two messages, the
    /// truth is a row there. The origin is told all the same: it marks the
    /// transaction for others and gives it the source's commit time.
    async fn commit(&mut self, end: &End, clear_skip: bool) -> Result<(), Error> {
        let setup = origin_setup(end);
        let commit = plain_statement(Arc::new(plain("commit", "COMMIT")));
        let mut statements: Vec<&Statement> = Vec::new();
        if clear_skip {
            statements.push(&self.clear_skip);
        }
        let row = self.wire.version().major() >= ABORT_MOVES_ORIGIN;
        let row = row.then(|| progress_row(&self.write_progress, end));
        statements.extend(row.as_ref());
        statements.extend([&self.check_deferred, &setup, &commit]);
        let _committing = flight::inside(Phase::Commit);
        let result = run(&mut self.wire, &mut self.prepared, &statements).await?;
        match result.error {
            Some(error) => {
                let (xid, finished_at) = (end.begin.xid, end.begin.final_lsn);
                Err(Kind::Commit { xid, finished_at, error }.into())
            }
            None => Ok(()),
        }
    }

    fn committed(&mut self, ends: &[End]) {
        let tally = std::mem::take(&mut self.open);
        let counters = &self.counters;
        add(&counters.inserts, tally.inserts);
        add(&counters.updates, tally.updates);
        add(&counters.deletes, tally.deletes);
        add(&counters.truncates, tally.truncates);
        add(&counters.rows_written, tally.written);
        add(&counters.batches, 1);
        let skipped = ends.iter().filter(|end| end.skipped).count() as u64;
        add(&counters.skipped_transactions, skipped);
        add(&counters.transactions, ends.len() as u64 - skipped);
        flight::set(Phase::Unreported, true);
        if let Some(end) = ends.last() {
            counters.set_last_commit_time(end.commit.commit_time);
            self.progress.advance_applied(end.commit.end_lsn);
        }
    }

    /// Runs statements of ours that must succeed.
    async fn one(&mut self, which: &[&Which]) -> Result<(), Error> {
        let statements: Vec<&Statement> = which
            .iter()
            .map(|which| match which {
                Which::Begin => &self.begin,
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

    /// Ends the session in order.
    pub(crate) async fn close(self) {
        self.wire.close().await;
    }
}

enum Which {
    Begin,
    Release,
    Rollback,
    RollbackTo,
}

impl Tally {
    fn of(batch: &Batch, statements: Option<&[Statement]>) -> Self {
        let mut tally = Tally::default();
        batch.changes.iter().for_each(|change| tally.count(change));
        tally.written = statements.map_or(batch.changes.len() as u64, |statements| {
            statements.iter().map(|statement| statement.rows_expected).sum()
        });
        tally
    }

    fn count(&mut self, change: &Change) {
        match change {
            Change::Row { op: Op::Insert(_), .. } => self.inserts += 1,
            Change::Row { op: Op::Update { .. }, .. } => self.updates += 1,
            Change::Row { op: Op::Delete(_), .. } => self.deletes += 1,
            Change::Truncate { tables, .. } => self.truncates += tables.len() as u64,
        }
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, more: Tally) {
        self.inserts += more.inserts;
        self.updates += more.updates;
        self.deletes += more.deletes;
        self.truncates += more.truncates;
        self.written += more.written;
    }
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

const PG_LSN: base::Oid = base::Oid(3220);

/// Writes where the transaction ended on the source; see
/// [`ABORT_MOVES_ORIGIN`].
fn progress_row(shape: &Arc<Shape>, end: &End) -> Statement {
    let mut parameters = BytesMut::with_capacity(18);
    parameters.put_u16(1);
    parameters.put_u16(1);
    parameters.put_u16(1);
    parameters.put_u32(8);
    parameters.put_u64(end.commit.end_lsn.as_u64());
    Statement { shape: Arc::clone(shape), parameters, rows_expected: 1 }
}

/// Sets what the next COMMIT of this session records: where the transaction
/// ended on the source, and when it committed there.
fn origin_setup(end: &End) -> Statement {
    const TIMESTAMPTZ: base::Oid = base::Oid(1184);
    let mut shape = plain("origin", "SELECT pg_catalog.pg_replication_origin_xact_setup($1, $2)");
    shape.parameter_types = vec![PG_LSN, TIMESTAMPTZ];
    let mut parameters = BytesMut::with_capacity(32);
    parameters.put_u16(1);
    parameters.put_u16(1);
    parameters.put_u16(2);
    parameters.put_u32(8);
    parameters.put_u64(end.commit.end_lsn.as_u64());
    parameters.put_u32(8);
    parameters.put_i64(end.commit.commit_time.0);
    Statement { shape: Arc::new(shape), parameters, rows_expected: 1 }
}

/// One round trip: prepares what is new, executes all.
async fn run(
    wire: &mut Wire,
    prepared: &mut FxHashSet<String>,
    statements: &[&Statement],
) -> Result<PipelineResult, Error> {
    let mut pipeline = wire.pipeline().await?;
    let mut fresh: Vec<&str> = Vec::new();
    for statement in statements {
        let shape = &statement.shape;
        let known = !shape.name.is_empty()
            && (prepared.contains(&shape.name) || fresh.contains(&shape.name.as_str()));
        if !known {
            pipeline.prepare(&shape.name, &shape.sql, &shape.parameter_types);
            fresh.push(&shape.name);
        }
        pipeline.execute(&shape.name, &statement.parameters);
    }
    let result = pipeline.run().await?;
    // Preparation goes in order and is not undone by a rollback.
    for name in fresh.into_iter().take(result.prepared).filter(|name| !name.is_empty()) {
        prepared.insert(name.to_owned());
    }
    if let Some(error) = &result.error
        && is_transient(&error.code)
    {
        tracing::debug!(code = %error.code, "{}", error.message);
    }
    Ok(result)
}
