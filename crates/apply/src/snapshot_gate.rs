//! A gate before the planner. It holds the stream between two transactions, and lets exactly those
//! pass that a snapshot of the source sees (rule V1).
//!
//! To compare both ends, `verify` takes a [`GateHold`], then a snapshot of the source, and asks the
//! gate to [`GateHold::advance`] to that snapshot. When that succeeds, the target holds exactly the
//! transactions that the snapshot sees, until the hold is dropped.
//!
//! ```text
//!   open --hold--> held --advance--> passing what is seen --first unseen--> looking ahead
//!    ^               ^                                                          |
//!    |               +---- not a prefix: a new snapshot, please <---------------+
//!    +-- dropped; the stream ended                       exact: a position <----+
//! ```
//!
//! A transaction becomes visible some time after its commit record was written, and not in the
//! order of those records. So a snapshot may see a transaction behind one that it does not see.
//! Then no prefix of the stream equals the snapshot.
//!
//! The end of WAL is read after the snapshot was taken, so everything that the snapshot sees
//! committed before that end. Once the stream has passed it, the gate knows whether a prefix fits.
//! Until then the gate puts aside the transactions that may not pass. When that is too much, the
//! stream waits; a later snapshot will see more of it.
//!
//! The opposite can happen too: the stream has brought a transaction that the snapshot does not see
//! yet. So the gate remembers the transactions that passed for a while.
//!
//! Not here: how long a hold may last, and who may have one.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Lsn, PgSnapshot, Xid};
use tokio::sync::watch;
use txn::{Begin, Event};

/// Limit of the events put aside, in bytes. That is far more than commits between a snapshot and
/// its end of WAL, and as much as a batch.
const HELD_BYTES_MAX: usize = 16 << 20;
/// Memory of an event beside its row data; rounded up.
const EVENT_OVERHEAD: usize = 160;
/// How many transactions that passed are remembered. A commit record is flushed before its
/// transaction becomes visible. This many others commit in between only if the transaction waits
/// for a synchronous standby, and then they wait too.
const PASSED_MAX: usize = 65_536;

/// Where the stream must stop.
#[derive(Debug, Clone)]
struct Cut {
    snapshot: PgSnapshot,
    /// Everything that the snapshot sees committed before this position.
    end: Lsn,
}

/// The result of [`GateHold::advance`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advance {
    /// All transactions that the snapshot sees have passed. The target has them once it has applied
    /// up to this position.
    Exact(Lsn),
    /// No prefix of the stream equals the snapshot: take another snapshot.
    NotPrefix,
    /// The stream ended, which opened the gate.
    Lost,
}

/// Why a gate cannot be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateHoldError {
    /// No stream is running.
    NotStreaming,
    /// The gate is held already.
    Busy,
}

impl fmt::Display for GateHoldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GateHoldError::NotStreaming => "the subscription does not stream at present",
            GateHoldError::Busy => "another verify holds the subscription at present",
        })
    }
}

impl std::error::Error for GateHoldError {}

#[derive(Debug, Default)]
struct Inner {
    attached: bool,
    /// Number of the present hold; 0 for an open gate.
    holder: u64,
    holds: u64,
    cut: Option<Cut>,
    verdict: Option<Advance>,
    passed: VecDeque<Xid>,
    /// End of the last transaction that was passed on to the target.
    handed: Lsn,
}

impl Inner {
    fn open(&mut self, verdict: Advance) {
        self.holder = 0;
        self.cut = None;
        self.verdict = Some(verdict);
    }

    fn sees(&self, xid: Xid) -> bool {
        self.cut.as_ref().is_some_and(|cut| cut.snapshot.sees(xid))
    }
}

/// The gate of one subscription, across all its streams; the module explains it.
#[derive(Debug, Default)]
pub struct SnapshotGate {
    inner: Mutex<Inner>,
    changed: watch::Sender<()>,
}

impl SnapshotGate {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops further transactions until the hold is dropped.
    ///
    /// # Errors
    /// No stream is running, or the gate is held already.
    pub fn hold(self: &Arc<Self>) -> Result<GateHold, GateHoldError> {
        let mut inner = self.lock();
        match () {
            () if !inner.attached => Err(GateHoldError::NotStreaming),
            () if inner.holder != 0 => Err(GateHoldError::Busy),
            () => {
                inner.holds += 1;
                inner.holder = inner.holds;
                Ok(GateHold { gate: Arc::clone(self), number: inner.holds })
            }
        }
    }

    /// Whether the gate is held and lets nothing pass until it is given a snapshot.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let inner = self.lock();
        inner.holder != 0 && (inner.cut.is_none() || inner.verdict.is_some())
    }

    /// Whether the transaction may pass.
    fn admits(&self, begin: &Begin) -> bool {
        let mut inner = self.lock();
        let admitted = inner.holder == 0 || inner.sees(begin.xid);
        if admitted {
            if inner.passed.len() == PASSED_MAX {
                inner.passed.pop_front();
            }
            inner.passed.push_back(begin.xid);
        }
        admitted
    }
}

/// Keeps the gate held while it lives.
#[derive(Debug)]
pub struct GateHold {
    gate: Arc<SnapshotGate>,
    number: u64,
}

impl GateHold {
    /// Whether the gate is still held. The end of the stream opens it.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.gate.lock().holder == self.number
    }

    fn verdict(&self) -> Option<Advance> {
        let inner = self.gate.lock();
        if inner.holder == self.number { inner.verdict } else { Some(Advance::Lost) }
    }

    /// Lets exactly the transactions pass that `snapshot` sees. `end` is the end of WAL, read after
    /// the snapshot was taken. May be called again with a later snapshot.
    pub async fn advance(&self, snapshot: PgSnapshot, end: Lsn) -> Advance {
        let mut changed = self.gate.changed.subscribe();
        {
            let mut inner = self.gate.lock();
            if inner.holder != self.number {
                return Advance::Lost;
            }
            if inner.passed.iter().any(|xid| !snapshot.sees(*xid)) {
                return Advance::NotPrefix;
            }
            inner.cut = Some(Cut { snapshot, end });
            inner.verdict = None;
        }
        self.gate.changed.send_replace(());
        loop {
            changed.borrow_and_update();
            if let Some(verdict) = self.verdict() {
                return verdict;
            }
            // The sender is the gate, which this hold keeps alive.
            let _ = changed.changed().await;
        }
    }
}

impl Drop for GateHold {
    fn drop(&mut self) {
        let mut inner = self.gate.lock();
        if inner.holder == self.number {
            inner.open(Advance::Lost);
        }
        drop(inner);
        self.gate.changed.send_replace(());
    }
}

/// Put aside, in the order of the stream.
enum Held {
    Event(Event),
    CaughtUp(Lsn),
}

/// Passed through the gate.
pub(crate) enum Passed {
    Event(Event),
    CaughtUp(Lsn),
}

fn size(event: &Event) -> usize {
    let data = if let Event::Change(change) = event { change.op.byte_len() } else { 0 };
    EVENT_OVERHEAD + data
}

/// The planner's side of the gate.
pub(crate) struct Passage {
    gate: Arc<SnapshotGate>,
    changed: watch::Receiver<()>,
    held: VecDeque<Held>,
    held_bytes: usize,
    /// The transactions that were put aside.
    begins: VecDeque<Xid>,
    /// The stream is inside a transaction that is put aside.
    inside: bool,
    /// The stream has brought every transaction that commits before this position.
    position: Lsn,
}

impl Passage {
    /// Begins a new stream.
    pub(crate) fn new(gate: Arc<SnapshotGate>) -> Self {
        let changed = gate.changed.subscribe();
        let mut inner = gate.lock();
        inner.attached = true;
        inner.passed.clear();
        inner.handed = Lsn::INVALID;
        drop(inner);
        Passage {
            gate,
            changed,
            held: VecDeque::new(),
            held_bytes: 0,
            begins: VecDeque::new(),
            inside: false,
            position: Lsn::INVALID,
        }
    }

    /// Waits until the gate was held, moved or opened. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        // The sender is the gate, which this intake keeps alive.
        let _ = self.changed.changed().await;
    }

    /// Records that a transaction that ends here was passed on to the target.
    pub(crate) fn handed(&self, end: Lsn) {
        self.gate.lock().handed = end;
    }

    /// The next item put aside that may pass now.
    pub(crate) fn release(&mut self) -> Option<Passed> {
        if let Held::Event(Event::Begin(begin)) = self.held.front()? {
            if !self.gate.admits(begin) {
                return None;
            }
            self.begins.pop_front();
        }
        let held = self.held.pop_front()?;
        if self.held.is_empty() {
            self.inside = false;
        }
        Some(match held {
            Held::Event(event) => {
                self.held_bytes -= size(&event);
                Passed::Event(event)
            }
            Held::CaughtUp(lsn) => Passed::CaughtUp(lsn),
        })
    }

    /// Returns the event if it may pass; otherwise puts it aside.
    pub(crate) fn admit(&mut self, event: Event) -> Option<Event> {
        match &event {
            // The stream has brought all transactions before this one.
            Event::Begin(begin) => self.position = self.position.max(begin.final_lsn),
            Event::Commit(commit) => self.position = self.position.max(commit.end_lsn),
            _ => {}
        }
        let passes = match &event {
            _ if !self.held.is_empty() => false,
            Event::Begin(begin) => self.gate.admits(begin),
            _ => true,
        };
        if passes {
            return Some(event);
        }
        self.held_bytes += size(&event);
        match &event {
            Event::Begin(begin) => {
                self.begins.push_back(begin.xid);
                self.inside = true;
            }
            Event::Commit(_) => self.inside = false,
            Event::Origin(_) | Event::Change(_) | Event::Truncate(_) => {}
        }
        self.held.push_back(Held::Event(event));
        None
    }

    /// Whether nothing is put aside.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether no more may be put aside, so that the planner must not read the stream.
    pub(crate) fn is_full(&self) -> bool {
        self.held_bytes > HELD_BYTES_MAX
    }

    /// Notes that the stream has caught up to `lsn`; returns true if the passed part has too.
    pub(crate) fn caught_up(&mut self, lsn: Lsn) -> bool {
        // Inside a transaction the position may lie behind its commit.
        if self.inside {
            return false;
        }
        self.position = self.position.max(lsn);
        if self.held.is_empty() {
            return true;
        }
        match self.held.back_mut() {
            Some(Held::CaughtUp(last)) => *last = lsn,
            _ => self.held.push_back(Held::CaughtUp(lsn)),
        }
        false
    }

    /// Decides whether the cut was reached. The caller has released everything that may pass;
    /// `inside` tells whether a transaction is passing.
    pub(crate) fn judge(&mut self, inside: bool) {
        let mut inner = self.gate.lock();
        let Some(cut) = inner.cut.as_ref().filter(|_| inner.verdict.is_none()) else { return };
        // The snapshot does not see the first of them, or it would have passed.
        let verdict = if self.is_full() || self.begins.iter().any(|xid| cut.snapshot.sees(*xid)) {
            Advance::NotPrefix
        } else if self.position >= cut.end && !inside {
            Advance::Exact(inner.handed)
        } else {
            return;
        };
        inner.verdict = Some(verdict);
        drop(inner);
        self.gate.changed.send_replace(());
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        let mut inner = self.gate.lock();
        inner.attached = false;
        inner.open(Advance::Lost);
        drop(inner);
        self.gate.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use base::PgTimestamp;
    use proto::pgoutput::CommitInfo;

    use super::*;

    fn snapshot(text: &str) -> PgSnapshot {
        text.parse().unwrap()
    }

    /// A transaction of two events, whose commit record is at `lsn` and two bytes long.
    fn transaction(xid: u32, lsn: u64) -> [Event; 2] {
        let (commit_lsn, commit_time) = (Lsn::new(lsn), PgTimestamp(0));
        let begin = Begin { xid: Xid(xid), final_lsn: commit_lsn, commit_time, origin: None };
        let commit = CommitInfo { commit_lsn, end_lsn: Lsn::new(lsn + 2), commit_time };
        [Event::Begin(begin), Event::Commit(commit)]
    }

    /// Feeds the stream and returns the ids that pass.
    fn feed(intake: &mut Passage, events: impl IntoIterator<Item = Event>) -> Vec<u32> {
        let mut passed = Vec::new();
        let mut note = |event: Event| {
            if let Event::Begin(begin) = event {
                passed.push(begin.xid.0);
            }
        };
        while let Some(released) = intake.release() {
            if let Passed::Event(event) = released {
                note(event);
            }
        }
        for event in events {
            if let Some(event) = intake.admit(event) {
                note(event);
            }
        }
        intake.judge(false);
        passed
    }

    #[tokio::test]
    async fn exactly_what_the_snapshot_sees_passes() {
        let gate = Arc::new(SnapshotGate::default());
        assert_eq!(gate.hold().unwrap_err(), GateHoldError::NotStreaming);
        let mut intake = Passage::new(Arc::clone(&gate));
        assert_eq!(feed(&mut intake, transaction(7, 100)), [7]);
        let hold = gate.hold().unwrap();
        assert_eq!(gate.hold().unwrap_err(), GateHoldError::Busy);
        assert!(feed(&mut intake, [transaction(8, 110), transaction(9, 120)].concat()).is_empty());

        {
            let advancing = hold.advance(snapshot("9:12:9,10"), Lsn::new(140));
            tokio::pin!(advancing);
            // The cut is made at the first poll.
            assert!(futures_util::poll!(&mut advancing).is_pending());
            assert_eq!(feed(&mut intake, []), [8]);
            assert!(futures_util::poll!(&mut advancing).is_pending(), "11 may still come");
            assert!(feed(&mut intake, transaction(12, 150)).is_empty());
            assert!(matches!(advancing.await, Advance::Exact(_)));
        }
        drop(hold);
        assert_eq!(feed(&mut intake, transaction(11, 160)), [9, 12, 11]);
    }

    #[tokio::test]
    async fn a_snapshot_that_is_no_prefix_is_refused_and_a_later_one_is_not() {
        let gate = Arc::new(SnapshotGate::default());
        let mut intake = Passage::new(Arc::clone(&gate));
        let hold = gate.hold().unwrap();
        feed(&mut intake, [transaction(8, 110), transaction(9, 120)].concat());
        {
            let advancing = hold.advance(snapshot("8:10:8"), Lsn::new(130));
            tokio::pin!(advancing);
            assert!(futures_util::poll!(&mut advancing).is_pending());
            assert!(feed(&mut intake, []).is_empty());
            assert_eq!(advancing.await, Advance::NotPrefix);
        }
        let advancing = hold.advance(snapshot("10:10:"), Lsn::new(130));
        tokio::pin!(advancing);
        assert!(futures_util::poll!(&mut advancing).is_pending());
        assert_eq!(feed(&mut intake, []), [8, 9]);
        assert!(intake.caught_up(Lsn::new(130)));
        intake.judge(false);
        assert!(matches!(advancing.await, Advance::Exact(_)));
    }

    #[tokio::test]
    async fn what_passed_before_it_was_visible_is_no_prefix() {
        let gate = Arc::new(SnapshotGate::default());
        let mut intake = Passage::new(Arc::clone(&gate));
        feed(&mut intake, transaction(8, 110));
        let hold = gate.hold().unwrap();
        assert_eq!(hold.advance(snapshot("8:10:8"), Lsn::new(130)).await, Advance::NotPrefix);
    }

    #[tokio::test]
    async fn too_much_wants_a_later_snapshot_and_the_end_of_the_stream_opens_the_gate() {
        let gate = Arc::new(SnapshotGate::default());
        let mut intake = Passage::new(Arc::clone(&gate));
        let hold = gate.hold().unwrap();
        let count = u32::try_from(HELD_BYTES_MAX / EVENT_OVERHEAD / 2 + 1).unwrap();
        let passed = feed(&mut intake, (0..count).flat_map(|n| transaction(n, 100 + u64::from(n) * 4)));
        assert!(passed.is_empty() && intake.is_full());
        {
            let advancing = hold.advance(snapshot("0:1:0"), Lsn::new(u64::MAX));
            tokio::pin!(advancing);
            assert!(futures_util::poll!(&mut advancing).is_pending());
            assert!(feed(&mut intake, []).is_empty());
            assert_eq!(advancing.await, Advance::NotPrefix);
        }
        drop(hold);
        assert_eq!(feed(&mut intake, []).len(), count as usize);
        assert!(!intake.is_full());

        let hold = gate.hold().unwrap();
        drop(intake);
        assert_eq!(hold.advance(snapshot("8:10:8"), Lsn::new(130)).await, Advance::Lost);
        assert_eq!(gate.hold().unwrap_err(), GateHoldError::NotStreaming);
    }
}
