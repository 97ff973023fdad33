//! The streams that run, as `pg_stat_replication` shows them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::PgTimestamp;
use listener::Place;

use crate::walsender::Sent;

/// One stream to a subscriber.
#[derive(Debug, Clone)]
pub struct Stream {
    /// The connection's process, as its client was told.
    pub pid: u32,
    /// The role, and its OID at the publisher.
    pub user: (String, u32),
    /// What the subscriber calls itself.
    pub application_name: String,
    /// Where it is.
    pub place: Place,
    /// When it connected.
    pub since: PgTimestamp,
    /// The slot that it reads.
    pub slot: String,
    /// What it was sent.
    pub sent: Arc<Sent>,
}

/// All streams of a relay. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Senders {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    running: BTreeMap<u32, Stream>,
    /// Bytes that each slot's streams have sent, which have ended.
    ended: BTreeMap<String, u64>,
}

/// A stream among the others, until this is dropped.
#[derive(Debug)]
pub struct Listed {
    senders: Senders,
    pid: u32,
}

impl Senders {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows a stream.
    #[must_use]
    pub fn list(&self, stream: Stream) -> Listed {
        let pid = stream.pid;
        self.inner().running.insert(pid, stream);
        Listed { senders: self.clone(), pid }
    }

    /// Those that run, by process.
    #[must_use]
    pub fn running(&self) -> Vec<Stream> {
        self.inner().running.values().cloned().collect()
    }

    /// Bytes that were sent of a slot since the relay started.
    #[must_use]
    pub fn bytes_of(&self, slot: &str) -> u64 {
        let inner = self.inner();
        let running = inner.running.values().filter(|stream| stream.slot == slot);
        let running: u64 = running.map(|stream| stream.sent.shown().bytes).sum();
        running + inner.ended.get(slot).copied().unwrap_or_default()
    }

    /// Forgets what was sent of a slot, which is gone.
    pub fn forget(&self, slot: &str) {
        self.inner().ended.remove(slot);
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut inner = self.senders.inner();
        if let Some(stream) = inner.running.remove(&self.pid) {
            *inner.ended.entry(stream.slot).or_default() += stream.sent.shown().bytes;
        }
    }
}
