//! Foreign keys that do not hold when they are made.
//!
//! See the crate's first hazard. They are made NOT VALID, so that what the
//! target's own users write is checked at once, and validated when the stream
//! has passed the snapshots of all tables. A partitioned table takes no key
//! that is NOT VALID before 18: there all of it waits.

use std::time::Duration;

use client::{Session, SqlState};
use sql_tokens::words;
use state::schema_steps;

use crate::build::Build;
use crate::plan::{Stage, Step, setting};
use crate::refusal::refused;
use crate::{Error, session, steps};

/// Before the same again, where a lock or a connection was not to be had.
const RETRY: Duration = Duration::from_secs(2);

/// A change that is being applied holds its locks no longer than this; the
/// key must not stand in the way of the others behind it.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '5s'";

/// Makes the key of `step` NOT VALID, and leaves the rest for later.
pub(crate) async fn put_off(build: &Build, step: &Step, session: &Session) -> Result<(), Error> {
    /// It is a partitioned table.
    const NOT_TAKEN: [SqlState; 2] = [SqlState::FEATURE_NOT_SUPPORTED, SqlState::WRONG_OBJECT_TYPE];
    let failed = |error| refused(session, &step.object, "", error);
    if !build.begin(session, step).await.map_err(failed)? {
        return Ok(());
    }
    let mut statements = step.statements.clone();
    let definition = statements.iter_mut().find(|statement| setting(statement).is_none());
    let later = definition.and_then(|definition| {
        let later = validation(definition)?;
        definition.push_str(" NOT VALID");
        Some(later)
    });
    let made = session::run_all(session, &statements).await;
    let (later, how) = match (made, later) {
        (Ok(()), Some(later)) => (vec![later], "made NOT VALID"),
        (Ok(()), None) => (Vec::new(), "made"),
        (Err((_, error)), _) if error.code().is_some_and(|code| NOT_TAKEN.contains(code)) => {
            session.batch_execute("ROLLBACK").await.map_err(failed)?;
            if !build.begin(session, step).await.map_err(failed)? {
                return Ok(());
            }
            (step.statements.clone(), "left out")
        }
        (Err((statement, error)), _) => return Err(refused(session, &step.object, &statement, error)),
    };
    let (name, late) = (&build.subscription, Stage::Late.as_str());
    schema_steps::put_off(&**session, name, step.number, late, &later).await.map_err(failed)?;
    session.batch_execute("COMMIT").await.map_err(failed)?;
    tracing::info!(
        subscription = %build.subscription,
        "{} does not hold yet: {how}, and validated when the stream has caught up with the copy", step.object
    );
    Ok(())
}

/// `ALTER TABLE name VALIDATE CONSTRAINT name` for the statement that adds it.
fn validation(definition: &str) -> Option<String> {
    let tokens = words(definition);
    let at = tokens.iter().position(|word| word.is("add"))?;
    let constraint =
        tokens.get(at + 2).filter(|_| tokens.get(at + 1).is_some_and(|word| word.is("constraint")))?;
    let table = definition[..tokens[at].start].trim_end();
    Some(format!("{table} VALIDATE CONSTRAINT {}", constraint.text))
}

/// Carries out the steps that waited for the stream. Call it when the target has passed the
/// snapshot of every table. It returns when no step waits any more. A key that still does not hold
/// stays as it is, and is reported.
///
/// # Errors
/// The target refused a statement for another reason.
pub async fn validate(build: &Build) -> Result<(), Error> {
    loop {
        match validate_all(build).await {
            Err(error) if error.is_retryable() => {
                tracing::debug!("{error}; trying again");
                tokio::time::sleep(RETRY).await;
            }
            result => return result,
        }
    }
}

async fn validate_all(build: &Build) -> Result<(), Error> {
    let session = build.connect().await?;
    let (pending, _) = steps::pending(&session, &build.subscription).await?;
    for step in pending.iter().filter(|step| step.stage == Stage::Late) {
        validate_one(build, step, &session).await?;
    }
    Ok(())
}

async fn validate_one(build: &Build, step: &Step, session: &Session) -> Result<(), Error> {
    let failed = |error| refused(session, &step.object, "", error);
    if !build.begin(session, step).await.map_err(failed)? {
        return Ok(());
    }
    session.batch_execute(LOCK_TIMEOUT).await.map_err(failed)?;
    match session::run_all(session, &step.statements).await {
        Ok(()) => tracing::info!(subscription = %build.subscription, "{} holds: validated", step.object),
        Err((_, error)) if error.code() == Some(&SqlState::FOREIGN_KEY_VIOLATION) => {
            session.batch_execute("ROLLBACK").await.map_err(failed)?;
            if !build.begin(session, step).await.map_err(failed)? {
                return Ok(());
            }
            tracing::warn!(
                subscription = %build.subscription,
                "{} does not hold on the target, because rows that it refers to are not published: pgsluice leaves \
                 it as it is; once they are there: {}",
                step.object,
                step.statements.last().map_or("", String::as_str)
            );
        }
        Err((statement, error)) => return Err(refused(session, &step.object, &statement, error)),
    }
    schema_steps::mark_done(&**session, &build.subscription, step.number).await.map_err(failed)?;
    session.batch_execute("COMMIT").await.map_err(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_validates_names_table_and_constraint_as_they_were() {
        let definition =
            "ALTER TABLE ONLY s.\"T add\"\n    ADD CONSTRAINT \"k y\" FOREIGN KEY (a) REFERENCES s.u(a)";
        let expected = "ALTER TABLE ONLY s.\"T add\" VALIDATE CONSTRAINT \"k y\"";
        assert_eq!(validation(definition).as_deref(), Some(expected));
        assert_eq!(validation("CREATE INDEX i ON t (a)"), None);
    }
}
