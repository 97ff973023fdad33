//! The subscription whose partitions are compared, and how far its target is.

use std::time::Duration;

use base::Lsn;
use tokio::time::Instant;

use crate::{Settings, Status};

/// The subscription whose partitions are looked at.
#[derive(Clone, Copy)]
pub(crate) struct Subscription<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) status: &'a Status,
}

impl Subscription<'_> {
    /// Waits briefly; returns whether the target has applied everything before `lsn`.
    pub(super) async fn has_applied(self, lsn: Lsn) -> bool {
        const PATIENCE: Duration = Duration::from_secs(1);
        const POLL: Duration = Duration::from_millis(20);
        let deadline = Instant::now() + PATIENCE;
        while self.status.progress().snapshot().applied < lsn {
            if Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(POLL).await;
        }
        true
    }
}
