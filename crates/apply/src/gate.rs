//! A gate before the planner: holds the stream between two transactions, and
//! lets exactly those pass that a snapshot of the source sees (rule V1).
//!
//! Whoever compares both ends takes a [`Hold`], then a snapshot of the source,
//! and asks to [`Hold::advance`] to it; when that succeeds the target holds
//! what the snapshot sees, no transaction more and none less, until the hold
//! is dropped.
//!
//! ```text
//!   open --hold--> held --advance--> passing what is seen --first unseen--> looking ahead
//!    ^               ^                                                          |
//!    |               +---- not a prefix: a new snapshot, please <---------------+
//!    +-- dropped; the stream ended                       exact: a position <----+
//! ```
//!
//! A transaction becomes visible some time after its commit record was
//! written, and not in the order of those records. So a snapshot may see a
//! transaction behind one that it does not see: then no prefix of the stream
//! equals it. Whether that is so is known once the stream has passed the end
//! of WAL that was read after the snapshot was taken: what the snapshot sees
//! committed before it. Until then what may not pass is put aside; when that
//! is too much the stream waits, and a later snapshot will see more of it.
//!
//! The other way round, the stream may have brought a transaction that the
//! snapshot does not see yet: those that passed are remembered for a while.
//!
//! Belongs elsewhere: how long a hold may last, and who may have one.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Lsn, PgSnapshot, Xid};
use tokio::sync::watch;
use txn::{Begin, Event};

/// What may be put aside: far more than commits in the moment between a
/// snapshot and its end of WAL, and as much as a batch.
const HELD_BYTES_MAX: usize = 16 << 20;
/// What an event costs beside its row data; rounded up.
const EVENT_OVERHEAD: usize = 160;
/// Transactions that passed and are remembered. A commit record is flushed
/// before its transaction becomes visible; this many others do not commit in
/// between unless it waits for a synchronous standby, and then they wait too.
const PASSED_MAX: usize = 65_536;

/// Where the stream shall stop.
#[derive(Debug, Clone)]
struct Cut {
    snapshot: PgSnapshot,
    /// Everything the snapshot sees committed before.
    end: Lsn,
}

/// What became of an [`Hold::advance`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advance {
    /// What the snapshot sees has passed: the target has it when this is
    /// applied.
    Exact(Lsn),
    /// No prefix of the stream is what the snapshot sees: take another.
    NotPrefix,
    /// The gate is open: the stream ended.
    Lost,
}

/// Why a gate cannot be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldError {
    /// Nothing streams at present.
    NotStreaming,
    /// Somebody else holds it.
    Busy,
}

impl fmt::Display for HoldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HoldError::NotStreaming => "the subscription does not stream at present",
            HoldError::Busy => "another verify holds the subscription at present",
        })
    }
}

impl std::error::Error for HoldError {}

#[derive(Debug, Default)]
struct Inner {
    attached: bool,
    /// Number of the hold there is; 0 for an open gate.
    holder: u64,
    holds: u64,
    cut: Option<Cut>,
    verdict: Option<Advance>,
    passed: VecDeque<Xid>,
    /// End of the last transaction that was handed on to the target.
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

/// See the module. One for each subscription, whatever comes and goes.
#[derive(Debug, Default)]
pub struct Gate {
    inner: Mutex<Inner>,
    changed: watch::Sender<()>,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets no further transaction pass until the hold is dropped.
    ///
    /// # Errors
    /// Nothing streams, or it is held already.
    pub fn hold(self: &Arc<Self>) -> Result<Hold, HoldError> {
        let mut inner = self.lock();
        match () {
            () if !inner.attached => Err(HoldError::NotStreaming),
            () if inner.holder != 0 => Err(HoldError::Busy),
            () => {
                inner.holds += 1;
                inner.holder = inner.holds;
                Ok(Hold { gate: Arc::clone(self), number: inner.holds })
            }
        }
    }

    /// Whether somebody holds it, and nothing passes until a snapshot is told.
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

/// The gate is held as long as this lives.
#[derive(Debug)]
pub struct Hold {
    gate: Arc<Gate>,
    number: u64,
}

impl Hold {
    /// Whether the gate is still held: the end of the stream opens it.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.gate.lock().holder == self.number
    }

    fn verdict(&self) -> Option<Advance> {
        let inner = self.gate.lock();
        if inner.holder == self.number { inner.verdict } else { Some(Advance::Lost) }
    }

    /// Lets pass exactly what `snapshot` sees. `end` is the end of WAL, read
    /// after the snapshot was taken. May be called again with a later one.
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
            // The sender is the gate, which we hold.
            let _ = changed.changed().await;
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut inner = self.gate.lock();
        if inner.holder == self.number {
            inner.open(Advance::Lost);
        }
        drop(inner);
        self.gate.changed.send_replace(());
    }
}

/// What was put aside, in the order of the stream.
enum Held {
    Event(Event),
    CaughtUp(Lsn),
}

/// What comes through.
pub(crate) enum Passed {
    Event(Event),
    CaughtUp(Lsn),
}

fn size(event: &Event) -> usize {
    let data = if let Event::Change(change) = event { change.op.byte_len() } else { 0 };
    EVENT_OVERHEAD + data
}

/// The planner's side of the gate.
pub(crate) struct Intake {
    gate: Arc<Gate>,
    changed: watch::Receiver<()>,
    held: VecDeque<Held>,
    held_bytes: usize,
    /// The transactions among what is put aside.
    begins: VecDeque<Xid>,
    /// The stream stands inside a transaction that is put aside.
    inside: bool,
    /// Every transaction that commits before has been seen.
    position: Lsn,
}

impl Intake {
    /// The stream begins anew.
    pub(crate) fn new(gate: Arc<Gate>) -> Self {
        let changed = gate.changed.subscribe();
        let mut inner = gate.lock();
        inner.attached = true;
        inner.passed.clear();
        inner.handed = Lsn::INVALID;
        drop(inner);
        Intake {
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
        // The sender is the gate, which we hold.
        let _ = self.changed.changed().await;
    }

    /// A transaction that ends here was handed on to the target.
    pub(crate) fn handed(&self, end: Lsn) {
        self.gate.lock().handed = end;
    }

    /// What was put aside and may pass now.
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

    /// The next event of the stream, unless it is put aside.
    pub(crate) fn admit(&mut self, event: Event) -> Option<Event> {
        match &event {
            // Those before it have all been seen.
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
            Event::Change(_) | Event::Truncate(_) => {}
        }
        self.held.push_back(Held::Event(event));
        None
    }

    /// Nothing is put aside.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Nothing more may be put aside: nothing is to be asked of the stream.
    pub(crate) fn is_full(&self) -> bool {
        self.held_bytes > HELD_BYTES_MAX
    }

    /// The stream has caught up to `lsn`; true if so has what passed.
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

    /// Says whether the cut was reached. To be called when all that may pass
    /// has passed; `inside` says that a transaction is passing.
    pub(crate) fn judge(&mut self, inside: bool) {
        let mut inner = self.gate.lock();
        let Some(cut) = inner.cut.as_ref().filter(|_| inner.verdict.is_none()) else { return };
        // The first of them is not seen, or it would have passed.
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

impl Drop for Intake {
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

    /// A transaction whose commit record is at `lsn`, two bytes long.
    fn transaction(xid: u32, lsn: u64) -> [Event; 2] {
        let (commit_lsn, commit_time) = (Lsn::new(lsn), PgTimestamp(0));
        let begin = Begin { xid: Xid(xid), final_lsn: commit_lsn, commit_time };
        let commit = CommitInfo { commit_lsn, end_lsn: Lsn::new(lsn + 2), commit_time };
        [Event::Begin(begin), Event::Commit(commit)]
    }

    /// Feeds the stream and gives the ids that pass.
    fn feed(intake: &mut Intake, events: impl IntoIterator<Item = Event>) -> Vec<u32> {
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
        let gate = Arc::new(Gate::default());
        assert_eq!(gate.hold().unwrap_err(), HoldError::NotStreaming);
        let mut intake = Intake::new(Arc::clone(&gate));
        assert_eq!(feed(&mut intake, transaction(7, 100)), [7]);
        let hold = gate.hold().unwrap();
        assert_eq!(gate.hold().unwrap_err(), HoldError::Busy);
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
        let gate = Arc::new(Gate::default());
        let mut intake = Intake::new(Arc::clone(&gate));
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
        let gate = Arc::new(Gate::default());
        let mut intake = Intake::new(Arc::clone(&gate));
        feed(&mut intake, transaction(8, 110));
        let hold = gate.hold().unwrap();
        assert_eq!(hold.advance(snapshot("8:10:8"), Lsn::new(130)).await, Advance::NotPrefix);
    }

    #[tokio::test]
    async fn too_much_wants_a_later_snapshot_and_the_end_of_the_stream_opens_the_gate() {
        let gate = Arc::new(Gate::default());
        let mut intake = Intake::new(Arc::clone(&gate));
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
        assert_eq!(gate.hold().unwrap_err(), HoldError::NotStreaming);
    }
}
