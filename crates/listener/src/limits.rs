//! How many connections there may be, and how often somebody may fail to log in.
//!
//! What a client does before it is authenticated costs little, and is bounded by the number of
//! connections of its address. An address that failed too often is turned away for a while, before
//! it costs a key derivation again.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// With more addresses than this, those are forgotten that have not failed lately.
const FAILING_KEPT: usize = 1_000;

/// The most of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections in all.
    pub connections: usize,
    /// Connections of one user.
    pub per_user: usize,
    /// Connections from one address, authenticated or not.
    pub per_address: usize,
    /// Failed attempts to log in from one address within [`Limits::failures_within`].
    pub failures: usize,
    /// See [`Limits::failures`].
    pub failures_within: Duration,
    /// From the first byte to the end of authentication (`authentication_timeout`).
    pub time_to_authenticate: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 1_000,
            per_user: 1_000,
            per_address: 1_000,
            failures: 10,
            failures_within: Duration::from_secs(60),
            time_to_authenticate: Duration::from_secs(60),
        }
    }
}

/// Which limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reached {
    /// [`Limits::connections`]
    Connections,
    /// [`Limits::per_user`]
    User,
    /// [`Limits::per_address`]
    Address,
    /// [`Limits::failures`]
    Failures,
}

/// Counts what there is. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct Counts {
    limits: Limits,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    connections: usize,
    by_user: HashMap<String, usize>,
    by_address: HashMap<IpAddr, usize>,
    /// When each address failed; the oldest first.
    failures: HashMap<IpAddr, Vec<Instant>>,
}

/// A place among the connections, which is given back when this is dropped.
#[derive(Debug)]
pub struct Seat {
    counts: Counts,
    address: Option<IpAddr>,
    user: Option<String>,
}

impl Counts {
    pub(crate) fn new(limits: Limits) -> Counts {
        Counts { limits, inner: Arc::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a connection from `address`; `None` for a Unix socket.
    pub(crate) fn sit(&self, address: Option<IpAddr>, now: Instant) -> Result<Seat, Reached> {
        let mut inner = self.inner();
        if let Some(address) = address {
            inner.forget_old(address, now, self.limits.failures_within);
            if inner.failures.get(&address).is_some_and(|failures| failures.len() >= self.limits.failures) {
                return Err(Reached::Failures);
            }
            if inner.by_address.get(&address).is_some_and(|&count| count >= self.limits.per_address) {
                return Err(Reached::Address);
            }
        }
        if inner.connections >= self.limits.connections {
            return Err(Reached::Connections);
        }
        inner.connections += 1;
        if let Some(address) = address {
            *inner.by_address.entry(address).or_default() += 1;
        }
        Ok(Seat { counts: self.clone(), address, user: None })
    }
}

impl Inner {
    fn forget_old(&mut self, address: IpAddr, now: Instant, within: Duration) {
        if let Some(failures) = self.failures.get_mut(&address) {
            failures.retain(|at| now.duration_since(*at) < within);
            if failures.is_empty() {
                self.failures.remove(&address);
            }
        }
    }
}

impl Seat {
    /// Notes who sits here.
    pub(crate) fn belongs_to(&mut self, user: &str) -> Result<(), Reached> {
        let mut inner = self.counts.inner();
        let count = inner.by_user.entry(user.to_owned()).or_default();
        if *count >= self.counts.limits.per_user {
            return Err(Reached::User);
        }
        *count += 1;
        drop(inner);
        self.user = Some(user.to_owned());
        Ok(())
    }

    /// Notes that it was not possible to log in.
    pub(crate) fn failed(&self, now: Instant) {
        let Some(address) = self.address else { return };
        let mut inner = self.counts.inner();
        if inner.failures.len() >= FAILING_KEPT {
            let within = self.counts.limits.failures_within;
            inner.failures.retain(|_, all| all.last().is_some_and(|at| now.duration_since(*at) < within));
        }
        inner.failures.entry(address).or_default().push(now);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut inner = self.counts.inner();
        inner.connections -= 1;
        if let Some(address) = self.address {
            give_back(&mut inner.by_address, &address);
        }
        if let Some(user) = self.user.take() {
            give_back(&mut inner.by_user, &user);
        }
    }
}

fn give_back<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> Counts {
        Counts::new(Limits { connections: 4, per_user: 1, per_address: 2, failures: 2, ..Limits::default() })
    }

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    #[test]
    fn places_are_given_back() {
        let (counts, now) = (counts(), Instant::now());
        let mut first = counts.sit(address(1), now).unwrap();
        let mut second = counts.sit(address(1), now).unwrap();
        assert_eq!(counts.sit(address(1), now).unwrap_err(), Reached::Address);
        let third = counts.sit(address(2), now).unwrap();
        let local = counts.sit(None, now).unwrap();
        assert_eq!(counts.sit(address(3), now).unwrap_err(), Reached::Connections);
        first.belongs_to("u").unwrap();
        assert_eq!(second.belongs_to("u"), Err(Reached::User));
        drop((first, third, local));
        second.belongs_to("u").unwrap();
        drop(second);
        let inner = counts.inner();
        assert!(inner.connections == 0 && inner.by_user.is_empty() && inner.by_address.is_empty());
    }

    #[test]
    fn failures_turn_an_address_away_for_a_while() {
        let (counts, now) = (counts(), Instant::now());
        for _ in 0..2 {
            counts.sit(address(1), now).unwrap().failed(now);
        }
        let later = now + Duration::from_secs(59);
        assert_eq!(counts.sit(address(1), later).unwrap_err(), Reached::Failures);
        counts.sit(address(2), later).unwrap();
        counts.sit(address(1), now + Duration::from_secs(60)).unwrap();
        assert!(counts.inner().failures.is_empty(), "old failures are forgotten");
    }
}
