//! Which sessions can be cancelled, by the process and key that their clients were told.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use client::Canceller;
use rand::RngCore;

/// The length of a key before protocol 3.2.
const KEY_SIZE: usize = 4;
/// From protocol 3.2 on, as a server's.
const LONG_KEY_SIZE: usize = 32;
const LONG_SINCE: u16 = 2;

/// All sessions of a relay. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Cancels {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last: AtomicU32,
    known: Mutex<HashMap<u32, Known>>,
}

#[derive(Debug)]
struct Known {
    key: Vec<u8>,
    /// `None` while the session has nobody upstream.
    upstream: Option<Canceller>,
}

/// One session's number and key. Dropping this ends both.
#[derive(Debug)]
pub struct Cancellable {
    cancels: Cancels,
    /// The process that the client is told.
    pub pid: u32,
    /// The key that the client is told.
    pub key: Vec<u8>,
}

impl Cancels {
    fn known(&self) -> MutexGuard<'_, HashMap<u32, Known>> {
        self.inner.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number and a key for a session that speaks this minor version of protocol 3.
    #[must_use]
    pub fn session(&self, minor: u16) -> Cancellable {
        let mut key = vec![0; if minor >= LONG_SINCE { LONG_KEY_SIZE } else { KEY_SIZE }];
        rand::rng().fill_bytes(&mut key);
        let mut known = self.known();
        let pid = loop {
            // Positive as a number of 32 bits, as processes are.
            let pid = self.inner.last.fetch_add(1, Ordering::Relaxed) % i32::MAX.unsigned_abs() + 1;
            if !known.contains_key(&pid) {
                break pid;
            }
        };
        known.insert(pid, Known { key: key.clone(), upstream: None });
        Cancellable { cancels: self.clone(), pid, key }
    }

    /// What cancels the statement of that session. `None` if there is no such session, the key is
    /// another, or nothing runs upstream.
    #[must_use]
    pub fn find(&self, pid: u32, key: &[u8]) -> Option<Canceller> {
        let known = self.known();
        known.get(&pid).filter(|known| known.key == key)?.upstream.clone()
    }
}

impl Cancellable {
    /// Says what cancels the session's statements.
    pub fn runs_at(&self, upstream: Canceller) {
        if let Some(known) = self.cancels.known().get_mut(&self.pid) {
            known.upstream = Some(upstream);
        }
    }
}

impl Drop for Cancellable {
    fn drop(&mut self) {
        self.cancels.known().remove(&self.pid);
    }
}
