//! What is told of a source whose WAL is decoded here.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::{Lsn, PgTimestamp};
use serde::{Deserialize, Serialize};
use source::segments;

/// Of the source `wal`; the stages move it.
#[derive(Debug, Default)]
pub struct Decoded {
    told: Mutex<Figures>,
    /// Subscriptions in the pass that this one takes part in, 0 while it decodes alone. Apart, as it is told all the time.
    in_pass: AtomicUsize,
    /// Likewise; 0 before it is known.
    needed_from: AtomicU64,
}

#[derive(Debug, Default)]
struct Figures {
    /// WAL is decoded here.
    decodes: bool,
    timeline: u32,
    segment_size: u64,
    compared: Option<(Lsn, PgTimestamp)>,
    awaited: Option<String>,
}

/// What is told of WAL that is decoded here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DecodedSnapshot {
    /// Up to here the catalogs that are followed were seen to be the source's; nothing before the first time.
    pub catalogs_compared_lsn: Option<String>,
    /// When that was.
    pub catalogs_compared_at_unix_ms: Option<i64>,
    /// How many subscriptions of this process WAL is read and decoded for in one pass; 1 for this one alone.
    pub subscriptions_in_pass: usize,
    /// A restart would read WAL from here on, so an archive must keep it.
    pub needed_from_lsn: Option<String>,
    /// The segment that has it, as `pg_archivecleanup` wants it.
    pub needed_from_segment: Option<String>,
    /// What is waited for, and so cannot be decoded yet: a segment of the archive, or WAL that standbys must have first.
    pub awaited: Option<String>,
}

impl Decoded {
    fn told(&self) -> MutexGuard<'_, Figures> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An attempt begins that decodes, alone at first: WAL of this timeline, in segments of so many bytes.
    pub fn begins(&self, timeline: u32, segment_size: u64) {
        self.is_in_pass_of(0);
        let mut told = self.told();
        (told.decodes, told.awaited) = (true, None);
        (told.timeline, told.segment_size) = (timeline, segment_size);
    }

    /// Nothing before `lsn` is needed any more, whenever it ends.
    pub(crate) fn needs_from(&self, lsn: Lsn) {
        self.needed_from.store(lsn.as_u64(), Ordering::Relaxed);
    }

    /// The catalogs that are followed are the source's at `lsn`.
    pub(crate) fn compared(&self, lsn: Lsn) {
        self.told().compared = Some((lsn, PgTimestamp::now()));
    }

    /// What of the archive, or of standbys, is waited for; `None` when it goes on.
    pub(crate) fn awaits(&self, what: Option<String>) {
        self.told().awaited = what;
    }

    pub(crate) fn awaited(&self) -> Option<String> {
        self.told().awaited.clone()
    }

    /// So many subscriptions are decoded for in the pass that this one takes part in; 0 when it has left.
    pub(crate) fn is_in_pass_of(&self, subscriptions: usize) {
        self.in_pass.store(subscriptions, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> Option<DecodedSnapshot> {
        let told = self.told();
        let needed = Some(Lsn::new(self.needed_from.load(Ordering::Relaxed))).filter(|lsn| lsn.is_valid());
        told.decodes.then(|| DecodedSnapshot {
            needed_from_lsn: needed.map(|lsn| lsn.to_string()),
            needed_from_segment: needed.map(|lsn| segments::name(told.timeline, lsn, told.segment_size)),
            catalogs_compared_lsn: told.compared.map(|(lsn, _)| lsn.to_string()),
            catalogs_compared_at_unix_ms: told.compared.map(|(_, at)| at.unix_micros() / 1_000),
            subscriptions_in_pass: self.in_pass.load(Ordering::Relaxed).max(1),
            awaited: told.awaited.clone(),
        })
    }
}
