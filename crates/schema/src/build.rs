//! What creating the rest of a schema needs: where, whose steps, and how to begin one.

use std::sync::Arc;

use base::SubscriptionName;
use client::{ConnInfo, Session};
use state::schema_steps;

use crate::plan::Step;
use crate::progress::SchemaProgress;
use crate::{Error, session};

/// What creating the rest of a schema needs.
#[derive(Debug, Clone)]
pub struct Build {
    /// Where.
    pub target: ConnInfo,
    /// Whose steps.
    pub subscription: SubscriptionName,
    /// At least one.
    pub connections: usize,
    /// Figures to keep up to date.
    pub progress: Arc<SchemaProgress>,
}

impl Build {
    pub(crate) async fn connect(&self) -> Result<Session, Error> {
        session::connect(&self.target, &self.subscription.application_name("schema")).await
    }

    /// Begins the step's transaction and takes its lock; false if a
    /// predecessor has carried it out, and then there is no transaction.
    pub(crate) async fn begin(&self, session: &Session, step: &Step) -> Result<bool, tokio_postgres::Error> {
        session.batch_execute("BEGIN").await?;
        session::lock(session, &format!("{} {}", self.subscription, step.number)).await?;
        let (number, stage) = (step.number, step.stage.as_str());
        let over = schema_steps::is_over(&**session, &self.subscription, number, stage).await?;
        if over {
            session.batch_execute("ROLLBACK").await?;
        }
        Ok(!over)
    }
}
