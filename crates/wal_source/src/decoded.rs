//! The figures of a source whose WAL is decoded here.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::{Lsn, PgTimestamp};
use cpu_time::CpuTime;
use serde::{Deserialize, Serialize};
use source::segments;

/// Figures of the source mode `wal`; the stages update them.
#[derive(Debug, Default)]
pub struct Decoded {
    told: Mutex<Figures>,
    /// Subscriptions in the pass that this one takes part in; 0 while it decodes alone. Kept
    /// outside the mutex, because it is set all the time.
    in_pass: AtomicUsize,
    /// Also outside the mutex; 0 before it is known.
    needed_from: AtomicU64,
    /// A look at the source's catalogs is under way, which waits for transactions.
    looking: AtomicBool,
    /// CPU time of decoding, and this subscription's share of it in a pass with others.
    pub cpu: CpuTime,
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

/// A reading of these figures.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DecodedSnapshot {
    /// The last position at which a comparison showed that the followed catalogs are the source's;
    /// null before the first.
    pub catalogs_compared_lsn: Option<String>,
    /// When that was.
    pub catalogs_compared_at_unix_ms: Option<i64>,
    /// The number of subscriptions of this process for which one pass decodes; 1 if this one
    /// decodes alone.
    pub subscriptions_in_pass: usize,
    /// A restart would read WAL from here on, so an archive must keep it.
    pub needed_from_lsn: Option<String>,
    /// The segment that holds this position, as `pg_archivecleanup` wants it.
    pub needed_from_segment: Option<String>,
    /// What decoding waits for: a segment of the archive, or standbys that must have WAL first.
    pub awaited: Option<String>,
}

impl Decoded {
    fn told(&self) -> MutexGuard<'_, Figures> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a look at the source's catalogs begins or ends.
    pub fn set_looking(&self, looking: bool) {
        self.looking.store(looking, Ordering::Relaxed);
    }

    /// Whether such a look is under way.
    #[must_use]
    pub fn is_looking(&self) -> bool {
        self.looking.load(Ordering::Relaxed)
    }

    /// Begins an attempt that decodes, alone at first. The WAL has this timeline and segments of
    /// `segment_size` bytes.
    pub fn begins(&self, timeline: u32, segment_size: u64) {
        self.is_in_pass_of(0);
        let mut told = self.told();
        (told.decodes, told.awaited) = (true, None);
        (told.timeline, told.segment_size) = (timeline, segment_size);
    }

    /// Notes that WAL before `lsn` is not needed any more, whatever happens.
    pub(crate) fn needs_from(&self, lsn: Lsn) {
        self.needed_from.store(lsn.as_u64(), Ordering::Relaxed);
    }

    /// Notes that the followed catalogs are the source's at `lsn`.
    pub(crate) fn compared(&self, lsn: Lsn) {
        self.told().compared = Some((lsn, PgTimestamp::now()));
    }

    /// Notes what decoding waits for, in the archive or of standbys; `None` when it goes on.
    pub(crate) fn awaits(&self, what: Option<String>) {
        self.told().awaited = what;
    }

    /// What decoding waits for.
    pub(crate) fn awaited(&self) -> Option<String> {
        self.told().awaited.clone()
    }

    /// Notes the number of subscriptions in the pass; 0 when this subscription has left it.
    pub(crate) fn is_in_pass_of(&self, subscriptions: usize) {
        self.in_pass.store(subscriptions, Ordering::Relaxed);
    }

    /// A reading of the figures; `None` where no WAL is decoded here.
    #[must_use]
    pub fn snapshot(&self) -> Option<DecodedSnapshot> {
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
