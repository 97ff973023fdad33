//! Before the copy: everything in one transaction.
//!
//! The statements for after the copy are tried too, on the empty tables, and rolled back. The
//! target may reject one because its version, or that of an extension, is older. That must be known
//! before a day of copying and not after it.

use base::SubscriptionName;
use client::{ConnInfo, Session, SqlState};

use crate::plan::{Schema, Step};
use crate::refusal::refused;
use crate::script::Entry;
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
        match session::run_all(session, &step.statements).await {
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
