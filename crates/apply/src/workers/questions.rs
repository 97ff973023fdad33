//! Questions to the lock watch: whether a session waits for another one (rule A3).

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::command::{Report, WorkerAnswer};
use crate::error::Error;
use crate::lock_watch::{LockWatch, Wait};

/// Delay before the first question to the lock watch. A head that runs this long can spare one.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// Maximum interval between lock checks.
const LOOKS_APART_MAX: Duration = Duration::from_millis(250);

/// A question to the lock watch.
pub(super) enum Question {
    /// Does the head's backend wait for one of our sessions, for another, or for none?
    Head { head: u64, pid: i32, ours: Vec<i32> },
    /// Does any session wait for this backend, which holds the open transaction?
    Open { pid: i32 },
}

/// The head, as the lock watch saw it.
pub(super) struct Watched {
    pub(super) head: u64,
    pub(super) next: Instant,
    pause: Duration,
    /// When it was first seen waiting for sessions that are not ours.
    waits_since: Option<Instant>,
}

impl Watched {
    pub(super) fn new(head: u64) -> Watched {
        let pause = FIRST_LOOK;
        Watched { head, next: Instant::now() + pause, pause, waits_since: None }
    }

    /// Whether the chunks behind it must be let go (rule A3).
    pub(super) fn saw(&mut self, wait: Wait, patience: Duration) -> bool {
        let now = Instant::now();
        self.pause = (self.pause * 2).min(LOOKS_APART_MAX);
        self.next = now + self.pause;
        match wait {
            Wait::None => self.waits_since = None,
            Wait::Ours => return true,
            // They may wait for us in a way that no server sees, for example when one client has
            // two sessions.
            Wait::Others | Wait::Unknown => {
                let until = *self.waits_since.get_or_insert(now) + patience;
                self.next = self.next.min(until);
                return now >= until;
            }
        }
        false
    }
}

pub(super) async fn watch(
    mut locks: LockWatch,
    mut questions: mpsc::UnboundedReceiver<Question>,
    reporter: mpsc::UnboundedSender<Report>,
) -> Result<(), Error> {
    while let Some(question) = questions.recv().await {
        let report = match question {
            Question::Head { head, pid, ours } => (head, WorkerAnswer::Waits(locks.look(pid, &ours).await)),
            Question::Open { pid } => (0, WorkerAnswer::OpenWait(locks.waits_for(pid).await)),
        };
        let _ = reporter.send((report.0, Ok(report.1)));
    }
    Ok(())
}
