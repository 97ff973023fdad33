//! Work that is under way and does not move, and the known causes.
//!
//! `monitor` compares two readings of [`Motion`], and asks the servers if they are the same. This
//! module keeps the answers for `status`. It also tells the pipeline about a connection that
//! `monitor` takes for lost.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use apply::Backends;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::Status;
use super::look::BackendLook;
use super::phase::Phase;
use crate::error::Silence;

/// A session of ours that waits for a lock, mostly on the target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Blocked {
    /// The backend of ours that waits.
    pub pid: i32,
    /// How long it has waited.
    pub seconds: f64,
    /// The table. Null if the server does not name it, as for a key that another transaction has
    /// just inserted.
    pub table: Option<String>,
    /// The processes that it waits for; 0 stands for prepared transactions.
    pub blocking_pids: Vec<i32>,
    /// The same in words: programs, users, and what they are doing.
    pub held_by: String,
    /// The server: `target` or `source`.
    #[serde(default = "on_target")]
    pub end: String,
}

fn on_target() -> String {
    "target".to_owned()
}

impl Blocked {
    /// What can be done about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        let end = |pid: &i32| match pid {
            0 => "COMMIT PREPARED or ROLLBACK PREPARED what pg_prepared_xacts shows".to_owned(),
            pid => format!("SELECT pg_terminate_backend({pid})"),
        };
        let steps: Vec<String> = self.blocking_pids.iter().map(end).collect();
        format!(
            "it goes on when the lock is released; to end a holder that was forgotten: {}",
            steps.join("; ")
        )
    }
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.table {
            Some(table) => write!(f, "waiting for a lock on table {table} of the {}", self.end)?,
            None => write!(f, "waiting for another transaction on the {}", self.end)?,
        }
        write!(f, ", held by {}", self.held_by)
    }
}

/// Everything that moves while work is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Motion {
    applied: u64,
    copied_bytes: u64,
    traffic: u64,
    connects: u64,
    /// There is work that should move.
    pub(crate) under_way: bool,
    /// No stream has begun, so the source is asked, too.
    pub(crate) is_before_stream: bool,
    /// The backend whose answer the pipeline waits for.
    pub(crate) awaited: Option<i32>,
}

#[derive(Debug, Default)]
pub(crate) struct Standstill {
    /// The backends of the present attempt.
    backends: Mutex<Option<Backends>>,
    /// The target's lock, and the source's.
    blocked: Mutex<[Option<Blocked>; 2]>,
    /// The answers of both servers, each with its time.
    pub(super) looked: Mutex<[Option<(BackendLook, Instant)>; 2]>,
    silent: watch::Sender<Option<Silence>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Status {
    /// Notes the backends through which an attempt applies.
    pub(crate) fn set_backends(&self, backends: Backends) {
        *lock(&self.standstill.backends) = Some(backends);
        self.standstill.silent.send_replace(None);
    }

    pub(crate) fn set_blocked(&self, end: usize, blocked: Option<Blocked>) {
        lock(&self.standstill.blocked)[end] = blocked;
    }

    /// The lock that a session waits for.
    pub(crate) fn blocked(&self) -> Option<Blocked> {
        lock(&self.standstill.blocked).iter().flatten().next().cloned()
    }

    /// Notes that the backend `pid` has heard nothing from us for `lasted`.
    pub(crate) fn give_up_target(&self, pid: i32, lasted: Duration) {
        self.standstill.silent.send_replace(Some(Silence { pid, lasted }));
    }

    /// Waits until the connection to the target is taken for lost.
    pub(crate) async fn target_silent(&self) -> Silence {
        let mut silent = self.standstill.silent.subscribe();
        loop {
            if let Some(silence) = *silent.borrow_and_update() {
                return silence;
            }
            // The sender lives in this struct.
            let _ = silent.changed().await;
        }
    }

    /// The backend that applies, if there is one.
    pub(crate) fn applying(&self) -> Option<i32> {
        let backends = lock(&self.standstill.backends);
        backends.as_ref().map(|own| own.applying.load(Ordering::Relaxed)).filter(|pid| *pid != 0)
    }

    pub(crate) fn motion(&self) -> Motion {
        let counters = self.counters();
        let executing = counters.executing.load(Ordering::Relaxed);
        let queued = counters.queued_bytes.load(Ordering::Relaxed);
        let phase = self.phase();
        let backends = lock(&self.standstill.backends).clone();
        let streaming = matches!(phase, Phase::CatchingUp | Phase::Streaming);
        let asked = backends.as_ref().map_or(0, |own| own.asked.load(Ordering::Relaxed));
        let awaited = match &backends {
            Some(own) if streaming && executing => Some(own.applying.load(Ordering::Relaxed)),
            Some(_) if streaming && asked != 0 => Some(asked),
            _ => None,
        };
        Motion {
            applied: self.progress().snapshot().applied.as_u64(),
            copied_bytes: self.copy().tables().iter().map(|table| table.bytes()).sum(),
            traffic: backends
                .iter()
                .flat_map(|own| &own.traffic)
                .map(|bytes| bytes.load(Ordering::Relaxed))
                .sum(),
            connects: self.connects.load(Ordering::Relaxed),
            under_way: match phase {
                Phase::Starting | Phase::Copying => true,
                Phase::CatchingUp | Phase::Streaming => awaited.is_some() || queued > 0,
                // An index is built without progress figures, for as long as it takes.
                Phase::Indexing | Phase::Waiting | Phase::Stopping | Phase::Stopped => false,
            },
            is_before_stream: matches!(phase, Phase::Starting | Phase::Copying),
            awaited,
        }
    }
}
