//! After the copy: the steps, over several connections.
//!
//! A worker is one session, which takes step after step. The first error ends
//! the attempt: the other workers are dropped in the middle of what they do,
//! and the target rolls back. What was done stays done.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use client::{Session, SqlState};
use state::schema_steps;
use tokio::task::JoinSet;

use crate::build::Build;
use crate::plan::{Stage, Step};
use crate::progress::SchemaProgress;
use crate::refusal::refused;
use crate::schedule::Schedule;
use crate::{Error, session, steps, validate};

/// Time between two questions how far indexes are.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Carries out every step that is not done, except those that wait for the
/// stream. `look` is a session on the target that has nothing else to do.
/// Returns how many were done, and whether some wait for the stream.
///
/// # Errors
/// The target refused a step, which is named, or a session was lost; what was
/// done is kept.
pub async fn finish(build: &Build, look: &Session) -> Result<(usize, bool), Error> {
    let (pending, done) = steps::pending(look, &build.subscription).await?;
    build.progress.announce(pending.len() + done, done);
    let (late, mut now): (Vec<Step>, Vec<Step>) =
        pending.into_iter().partition(|step| step.stage == Stage::Late);
    if now.is_empty() {
        return Ok((0, !late.is_empty()));
    }
    let count = now.len();
    let sizes = steps::sizes(look, &now).await?;
    let largest = |step: &Step| {
        let bytes = step.relations.first().and_then(|name| sizes.get(name)).copied().unwrap_or(0);
        std::cmp::Reverse(bytes)
    };
    let mut take = |wanted: &[Stage]| -> Vec<Step> {
        let (taken, rest) =
            std::mem::take(&mut now).into_iter().partition(|step| wanted.contains(&step.stage));
        now = rest;
        taken
    };
    let mut built = take(&[Stage::Key, Stage::Index]);
    built.sort_by_key(|step| (step.stage, largest(step), step.number));
    let attached = take(&[Stage::Attach]);
    let mut keys = take(&[Stage::ForeignKey]);
    let mut rest = take(&[Stage::Rest]);
    keys.sort_by_key(|step| (largest(step), step.number));
    let work = async {
        rest.extend(run(build, built, build.connections, Unfound::WaitsForTheRest).await?);
        run(build, attached, 1, Unfound::IsAnError).await?;
        rest.extend(run(build, keys, build.connections, Unfound::WaitsForTheRest).await?);
        // In the dump's order everything finds what it needs.
        rest.sort_by_key(|step| step.number);
        run(build, rest, 1, Unfound::IsAnError).await
    };
    tokio::select! {
        result = work => drop(result?),
        () = watch(look, &build.progress) => {}
    }
    let (left, _) = steps::pending(look, &build.subscription).await?;
    Ok((count - left.len().min(count), !left.is_empty()))
}

/// What it means that a step does not find something that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unfound {
    /// pg_dump has postponed it: the step is left for the dump's order.
    WaitsForTheRest,
    IsAnError,
}

struct Group {
    build: Build,
    schedule: Schedule,
    unfound: Unfound,
    waiting: Mutex<Vec<Step>>,
}

/// Carries out `group` over several sessions; those that wait are returned.
async fn run(
    build: &Build,
    group: Vec<Step>,
    connections: usize,
    unfound: Unfound,
) -> Result<Vec<Step>, Error> {
    let count = connections.clamp(1, group.len().max(1));
    if group.is_empty() {
        return Ok(group);
    }
    let group = Arc::new(Group {
        build: build.clone(),
        schedule: Schedule::new(group),
        unfound,
        waiting: Mutex::default(),
    });
    let mut workers = JoinSet::new();
    let first = build.connect().await?;
    workers.spawn(work(Arc::clone(&group), first));
    for _ in 1..count {
        workers.spawn(further_worker(Arc::clone(&group)));
    }
    // Dropped with an error, the set ends the other workers.
    while let Some(ended) = workers.join_next().await {
        ended.map_err(|error| Error::broken(error.to_string()))??;
    }
    Ok(std::mem::take(&mut *group.waiting.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// A further worker only makes it faster: where the server has no connection
/// left for it, the others do its part.
async fn further_worker(group: Arc<Group>) -> Result<(), Error> {
    match group.build.connect().await {
        Ok(session) => work(group, session).await,
        Err(error) if error.sqlstate() == Some(SqlState::TOO_MANY_CONNECTIONS.code()) => {
            tracing::warn!(%error, "the creation of the schema continues with fewer connections");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

async fn work(group: Arc<Group>, session: Session) -> Result<(), Error> {
    while let Some(index) = group.schedule.claim().await {
        let step = group.schedule.step(index);
        group.build.progress.begin(step.number, &step.object, session.pid());
        let result = persist(&group, step, &session).await;
        group.build.progress.end(step.number, matches!(result, Ok(true)));
        if !result? {
            group.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(step.clone());
        }
        group.schedule.done(index);
    }
    Ok(())
}

/// Other sessions may lock the relations of a step in another order than ours does: a reader of a
/// partitioned table, or autovacuum. A deadlock is then no reason to lose what the other workers
/// are building, so the step is tried again.
async fn persist(group: &Group, step: &Step, session: &Session) -> Result<bool, Error> {
    const TRIES_MAX: usize = 5;
    for _ in 1..TRIES_MAX {
        match carry_out(group, step, session).await {
            Err(error) if error.sqlstate() == Some(SqlState::T_R_DEADLOCK_DETECTED.code()) => {
                tracing::debug!("{error}; trying again");
                let failed = |error| refused(session, &step.object, "ROLLBACK", error);
                session.batch_execute("ROLLBACK").await.map_err(failed)?;
            }
            result => return result,
        }
    }
    carry_out(group, step, session).await
}

/// Carries out one step; false if it is left for the dump's order.
async fn carry_out(group: &Group, step: &Step, session: &Session) -> Result<bool, Error> {
    const UNFOUND: [SqlState; 3] =
        [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_FUNCTION, SqlState::UNDEFINED_OBJECT];
    let build = &group.build;
    let failed = |error| refused(session, &step.object, "", error);
    if !build.begin(session, step).await.map_err(failed)? {
        return Ok(true);
    }
    let Err((statement, error)) = session::run_all(session, &step.statements).await else {
        schema_steps::mark_done(&**session, &build.subscription, step.number).await.map_err(failed)?;
        session.batch_execute("COMMIT").await.map_err(failed)?;
        return Ok(true);
    };
    let is_unfound = error.code().is_some_and(|code| UNFOUND.contains(code));
    let does_not_hold = error.code() == Some(&SqlState::FOREIGN_KEY_VIOLATION);
    let is_comment = step.object.starts_with("COMMENT ");
    if !(does_not_hold || is_unfound) {
        return Err(refused(session, &step.object, &statement, error));
    }
    session.batch_execute("ROLLBACK").await.map_err(failed)?;
    if does_not_hold && step.stage == Stage::ForeignKey {
        validate::put_off(build, step, session).await?;
        return Ok(true);
    }
    if is_unfound && group.unfound == Unfound::WaitsForTheRest {
        return Ok(false);
    }
    if is_unfound && is_comment {
        // On a foreign key that waits for the stream; not worth waiting with it.
        tracing::warn!("left out {}: {}", step.object, session.error(error));
        schema_steps::mark_done(&**session, &build.subscription, step.number).await.map_err(failed)?;
        return Ok(true);
    }
    Err(refused(session, &step.object, &statement, error))
}

/// Asks the server again and again how far its indexes are, and never returns. The answers are only
/// shown: the workers notice a server that does not answer.
async fn watch(look: &Session, progress: &SchemaProgress) {
    let sql = "SELECT pid, phase, blocks_done, blocks_total, tuples_done, tuples_total \
                 FROM pg_catalog.pg_stat_progress_create_index WHERE pid = ANY ($1)";
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let Ok(rows) = look.query(sql, &[&progress.pids()]).await else { continue };
        for row in rows {
            let of = |done: usize, total: usize| {
                let total = row.get::<_, Option<i64>>(total).filter(|total| *total > 0)?;
                Some(row.get::<_, Option<i64>>(done).unwrap_or(0) as f64 / total as f64)
            };
            let fraction = of(4, 5).or(of(2, 3)).map(|fraction| fraction.min(1.0));
            progress.note(row.get(0), row.get(1), fraction);
        }
    }
}
