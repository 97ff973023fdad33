//! Makes the process that runs a subscription stand still for `verify`, through its control socket
//! (rule V1).

use std::path::PathBuf;

use async_trait::async_trait;
use base::SubscriptionName;
use verify::{Applier, ApplierError, SourceSnapshot};

use crate::control::{Advanced, Conversation, Error, Request};

/// The process that runs a subscription on this machine. Dropping this, or the end of its process,
/// closes the conversation, and the stream goes on.
#[derive(Debug)]
pub struct RunningApplier {
    state_dir: PathBuf,
    subscription: SubscriptionName,
    /// Present while the stream is held.
    conversation: Option<Conversation>,
}

impl RunningApplier {
    /// For the process that runs `subscription` with this state directory.
    #[must_use]
    pub fn new(state_dir: PathBuf, subscription: SubscriptionName) -> RunningApplier {
        RunningApplier { state_dir, subscription, conversation: None }
    }
}

/// A process that refuses may agree a moment later: it copies, reconnects, or another caller holds
/// it. A process that has ended does not come back by itself.
fn failed(error: &Error) -> ApplierError {
    let text = match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    if error.is_not_running() {
        return ApplierError::Final(format!("the process ended while the ends were compared: {text}"));
    }
    ApplierError::Passing(text)
}

#[async_trait]
impl Applier for RunningApplier {
    fn is_live(&self) -> bool {
        true
    }

    async fn hold(&mut self) -> Result<(), ApplierError> {
        let opened = Conversation::open(&self.state_dir, &self.subscription).await;
        let mut conversation = opened.map_err(|error| failed(&error))?;
        conversation.ask(&Request::Hold).await.map_err(|error| failed(&error))?;
        self.conversation = Some(conversation);
        Ok(())
    }

    async fn advance(&mut self, snapshot: &SourceSnapshot) -> Result<bool, ApplierError> {
        let Some(conversation) = &mut self.conversation else {
            return Err(ApplierError::Passing("the stream is not held".to_owned()));
        };
        let request = Request::Advance { snapshot: snapshot.snapshot.clone(), lsn: snapshot.end.clone() };
        let answer = conversation.ask(&request).await.map_err(|error| failed(&error))?;
        Ok(answer.advanced == Some(Advanced::Exact))
    }

    async fn release(&mut self) {
        if let Some(mut conversation) = self.conversation.take() {
            // Closing the conversation does the same a moment later.
            let _ = conversation.ask(&Request::Release).await;
        }
    }
}
