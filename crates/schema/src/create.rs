//! Before the copy: all of it in one transaction.
//!
//! What is left for after the copy is tried as well, on the empty tables, and
//! taken back: a statement that the target will not take, because its version
//! is older or an extension's is, shall be known before a day of copying and
//! not after it.

use base::SubscriptionName;
use client::{ConnInfo, Session, SqlState};

use crate::build::run_all;
use crate::plan::{Schema, Step};
use crate::script::Entry;
use crate::token::words;
use crate::{Error, owners, session, steps};

/// What was created before the copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// Tables.
    pub tables: usize,
    /// Entries of the dump, tables included.
    pub objects: usize,
    /// Entries that are left for after the copy.
    pub later: usize,
    /// What was left out and why, in words.
    pub left_out: Vec<String>,
}

impl Schema {
    /// Creates what the tables need to take rows, and stores the rest as the
    /// steps of `subscription`. `None`: a predecessor has done it.
    ///
    /// # Errors
    /// The target refused a statement, which is named; nothing was created.
    pub async fn create(
        mut self,
        target: &ConnInfo,
        subscription: &SubscriptionName,
    ) -> Result<Option<Created>, Error> {
        let session = session::connect(target, &subscription.application_name("schema")).await?;
        let left_out = owners::fit(&mut self, &session).await?;
        let failed = |error| Error::client("begin to create the schema on the target", session.error(error));
        session.batch_execute("BEGIN").await.map_err(failed)?;
        session::lock(&session, subscription.as_str()).await.map_err(failed)?;
        if steps::has_steps(&session, subscription).await? {
            return Ok(None);
        }
        for entry in &self.before {
            for statement in &entry.statements {
                let created = session.batch_execute(statement).await;
                created.map_err(|error| refused(&session, &entry.describe(), statement, error))?;
            }
        }
        rehearse(&session, &self.steps).await?;
        let failed =
            |error| Error::client("store the rest of the schema on the target", session.error(error));
        steps::store(&session, subscription, &self.steps).await.map_err(failed)?;
        session.batch_execute("COMMIT").await.map_err(failed)?;
        let is_table = |entry: &&Entry| entry.kind == "TABLE";
        Ok(Some(Created {
            tables: self.before.iter().filter(is_table).count(),
            objects: self.before.len(),
            later: self.steps.len(),
            left_out,
        }))
    }
}

/// Runs `steps` in the dump's order in the open transaction and takes them
/// back. Each needs locks until then, which may be more than the target has
/// room for: then it is not known whether it takes them all.
async fn rehearse(session: &Session, steps: &[Step]) -> Result<(), Error> {
    let failed = |error| Error::client("try the rest of the schema on the target", session.error(error));
    session.batch_execute("SAVEPOINT rehearsal").await.map_err(failed)?;
    for step in steps {
        match run_all(session, &step.statements).await {
            Ok(()) => {}
            // The lock table is full.
            Err((_, error)) if error.code() == Some(&SqlState::OUT_OF_MEMORY) => {
                tracing::info!(
                    "the target's lock table has no room to try all indexes and constraints before the copy \
                     (max_locks_per_transaction): the first {} were tried",
                    step.number - 1
                );
                break;
            }
            Err((statement, error)) => return Err(refused(session, &step.object, &statement, error)),
        }
    }
    let back = "ROLLBACK TO SAVEPOINT rehearsal; RELEASE SAVEPOINT rehearsal";
    session.batch_execute(back).await.map_err(failed)
}

/// More of a statement is no help.
const STATEMENT_SHOWN_MAX: usize = 200;

/// A statement that the target did not take, with what to do about it.
pub(crate) fn refused(
    session: &Session,
    object: &str,
    statement: &str,
    error: tokio_postgres::Error,
) -> Error {
    let error = session.error(error);
    let remedy = error.sqlstate().and_then(|code| remedy(code, object));
    let shown = shown(statement);
    let object = if object.trim().is_empty() { "the schema" } else { object };
    Error::client(format!("create {object} on the target ({shown})"), error).with_remedy(remedy)
}

/// The beginning of a statement, on one line and without options: those of a
/// user mapping have passwords.
fn shown(statement: &str) -> String {
    let options = words(statement).into_iter().find(|word| word.is("options"));
    let end = options.map_or(statement.len(), |options| options.start);
    let one_line = statement[..end].split_whitespace().collect::<Vec<_>>().join(" ");
    let mut shown: String = one_line.chars().take(STATEMENT_SHOWN_MAX).collect();
    if shown.len() < one_line.len() || end < statement.len() {
        shown.push_str(" ...");
    }
    shown
}

pub(crate) fn remedy(code: &str, object: &str) -> Option<String> {
    let text = match SqlState::from_code(code) {
        SqlState::UNDEFINED_FILE | SqlState::FEATURE_NOT_SUPPORTED if object.starts_with("EXTENSION ") => {
            "install the extension's package on the target's machine, or drop the extension on the source if nothing needs it"
        }
        SqlState::INSUFFICIENT_PRIVILEGE => {
            "let a role that may create it run this start, a superuser for some; or GRANT CREATE ON the target's \
             DATABASE and SCHEMA to this one"
        }
        SqlState::DUPLICATE_SCHEMA
        | SqlState::DUPLICATE_TABLE
        | SqlState::DUPLICATE_OBJECT
        | SqlState::DUPLICATE_FUNCTION => {
            "--create-schema wants a target without the source's objects: drop it there, or use an empty database"
        }
        SqlState::SYNTAX_ERROR => {
            "the target's version may be too old for it: use a newer target, or change it on the source"
        }
        _ => return None,
    };
    Some(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_shown_in_short_and_without_options() {
        assert_eq!(shown("CREATE  TABLE t (\n    a int)"), "CREATE TABLE t ( a int)");
        let mapping = "CREATE USER MAPPING FOR me SERVER s OPTIONS (\n    password 'secret'\n)";
        assert_eq!(shown(mapping), "CREATE USER MAPPING FOR me SERVER s ...");
        let long = shown(&format!("SELECT '{}'", "é".repeat(300)));
        assert_eq!(long.chars().count(), STATEMENT_SHOWN_MAX + 4);
    }
}
