//! The memory that capture fills and others ask.
//!
//! Capture holds the lock while it records one deletion or commits. A look-up holds it while it
//! reads. Nobody holds it while waiting for a server.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use base::{Lsn, PgTimestamp};
use deletions::{Answer, Candidate, Figures, Memory, Miss, RowKey, Waiting};
use tokio::sync::watch;

use crate::asking::Asking;
use crate::condition::Condition;
use crate::error::Error;
use crate::settings::Settings;
use crate::timings::{Quantiles, Timings};

/// How far capture has come.
#[derive(Debug, Clone, Copy, Default)]
struct Captured {
    /// When the server was started that it reads from. Positions of another one may mean other WAL.
    started: PgTimestamp,
    lsn: Lsn,
}

/// The deletions that one subscription remembers of its target.
pub struct Retention {
    settings: Settings,
    /// `None` while no attempt has opened it.
    memory: Mutex<Option<Memory>>,
    /// The memory's figures when it was last free.
    figures: Mutex<Option<Figures>>,
    condition: Mutex<Condition>,
    captured: watch::Sender<Captured>,
    /// How many deletions were recorded.
    recorded: watch::Sender<u64>,
    /// What keeps the horizon where it is; `None` before it was asked.
    waiting: Mutex<Option<Waiting>>,
    /// Since when capture has not been running, if it is not.
    away_since: Mutex<Instant>,
    asking: tokio::sync::Mutex<Asking>,
    /// Why deletions may be missing that came before this attempt.
    gap: Mutex<Option<String>>,
    /// What is remembered is not of the target's history.
    is_disproved: AtomicBool,
    /// Misses that nobody could answer in time.
    exceeded: AtomicU64,
    lookups: Timings,
    fences: Timings,
    /// Origins of the subscription that were made since the process started.
    own_origins: Mutex<Vec<u16>>,
}

impl fmt::Debug for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Retention of {}, {}", self.settings.subscription, self.condition())
    }
}

impl Retention {
    /// A handle before the first attempt.
    #[must_use]
    pub fn new(settings: Settings) -> Arc<Retention> {
        Arc::new(Retention {
            settings,
            memory: Mutex::new(None),
            figures: Mutex::new(None),
            condition: Mutex::new(Condition::Starting),
            captured: watch::channel(Captured::default()).0,
            recorded: watch::channel(0).0,
            waiting: Mutex::new(None),
            away_since: Mutex::new(Instant::now()),
            asking: tokio::sync::Mutex::default(),
            gap: Mutex::new(None),
            is_disproved: AtomicBool::new(false),
            exceeded: AtomicU64::new(0),
            lookups: Timings::default(),
            fences: Timings::default(),
            own_origins: Mutex::default(),
        })
    }

    /// Says that the subscription writes to the target under these origins. Deletions under them
    /// are its own, and not remembered. Capture may have begun before they were made.
    pub fn note_own_origins(&self, origins: &[u32]) {
        let origins: Vec<u16> = origins.iter().filter_map(|origin| u16::try_from(*origin).ok()).collect();
        self.own_origins.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&origins);
        if let Some(memory) = self.memory().as_mut() {
            memory.set_own_origins(origins);
        }
    }

    /// Those of a memory that is opened now, which has read `found`.
    pub(crate) fn open_memory(&self, mut memory: Memory, found: Vec<u32>) {
        let mut place = self.memory();
        let mut own: Vec<u16> = found.into_iter().filter_map(|origin| u16::try_from(origin).ok()).collect();
        own.extend(self.own_origins.lock().unwrap_or_else(PoisonError::into_inner).iter());
        memory.set_own_origins(own);
        *place = Some(memory);
    }

    /// What the subscription asks for.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether capture runs.
    #[must_use]
    pub fn condition(&self) -> Condition {
        self.condition.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is remembered; `None` while no attempt has opened the memory. While the memory is being
    /// written to its disk, the answer is the last one, so `status` never waits for a disk.
    #[must_use]
    pub fn figures(&self) -> Option<Figures> {
        let mut figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        match self.memory.try_lock() {
            Ok(memory) => *figures = memory.as_ref().map(Memory::figures),
            Err(TryLockError::Poisoned(memory)) => {
                *figures = memory.into_inner().as_ref().map(Memory::figures);
            }
            Err(TryLockError::WouldBlock) => {}
        }
        *figures
    }

    /// How many misses were not covered (`retention_exceeded`).
    #[must_use]
    pub fn retention_exceeded(&self) -> u64 {
        self.exceeded.load(Ordering::Relaxed)
    }

    /// How long the last look-ups took, from the question to the answer; `None` before the first.
    #[must_use]
    pub fn lookup_times(&self) -> Option<Quantiles> {
        self.lookups.quantiles()
    }

    /// How long their fences took, which every look-up begins with.
    #[must_use]
    pub fn fence_times(&self) -> Option<Quantiles> {
        self.fences.quantiles()
    }

    pub(crate) fn lookups(&self) -> &Timings {
        &self.lookups
    }

    pub(crate) fn fences(&self) -> &Timings {
        &self.fences
    }

    /// Notes that this many misses were not covered, of transactions that have committed or are
    /// refused.
    pub fn exceeded(&self, count: usize) {
        self.exceeded.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Why deletions are not covered that may still be asked for, in words; `None` if all of them
    /// are covered.
    #[must_use]
    pub fn not_covered_because(&self) -> Option<String> {
        let figures = self.figures()?;
        // While the catalogs are looked at, it is not known how far the gap will go.
        if figures.cut.is_none() && self.condition() != Condition::Looking {
            return None;
        }
        // Figures count from the beginning of the attempt.
        if figures.cuts > 0 {
            let bounds =
                "max_retention_duration or retention_size_max was reached; a larger bound covers more";
            return Some(bounds.to_owned());
        }
        self.gap()
    }

    pub(crate) fn gap(&self) -> Option<String> {
        self.gap.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_gap(&self, why: String) {
        *self.gap.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    /// WAL has shown that what is remembered is not of the target's history.
    pub(crate) fn disprove(&self) {
        self.is_disproved.store(true, Ordering::Relaxed);
    }

    /// Whether that was so since the last call.
    pub(crate) fn take_disproved(&self) -> bool {
        self.is_disproved.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn asking(&self) -> &tokio::sync::Mutex<Asking> {
        &self.asking
    }

    /// What keeps the horizon where it is; `None` before it was asked.
    #[must_use]
    pub fn waiting(&self) -> Option<Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is known about rows that were not found, each with the time of its UPDATE. All of them
    /// were missed before `fence`, a position that the target has flushed since. Waits up to
    /// `patience` until capture has passed that; what is not known by then is not covered.
    ///
    /// # Errors
    /// The memory's disk, and damage.
    pub async fn look_up(
        &self,
        rows: &[(RowKey, PgTimestamp)],
        fence: Lsn,
        patience: Duration,
    ) -> Result<Vec<Answer>, Error> {
        // The answer says whether it came in time.
        self.passes(fence, patience).await;
        self.known(rows.iter().map(|(key, time)| (key, *time)), fence)
    }

    /// The same without waiting.
    pub(crate) fn known<'k>(
        &self,
        rows: impl Iterator<Item = (&'k RowKey, PgTimestamp)>,
        fence: Lsn,
    ) -> Result<Vec<Answer>, Error> {
        let rows = rows.map(|(key, time)| (key, Miss { time, fence }));
        let mut answers = match self.memory().as_mut() {
            Some(memory) => memory.look_up_all(rows)?,
            None => rows.map(|_| Answer::NotCovered).collect(),
        };
        for answer in &mut answers {
            if *answer == Answer::NotYet {
                *answer = Answer::NotCovered;
            }
        }
        Ok(answers)
    }

    /// Waits up to `patience` until capture has passed `fence`. Returns whether it has.
    pub(crate) async fn passes(&self, fence: Lsn, patience: Duration) -> bool {
        let mut captured = self.captured.subscribe();
        let passed = captured.wait_for(|captured| captured.lsn >= fence);
        tokio::time::timeout(patience, passed).await.is_ok_and(|passed| passed.is_ok())
    }

    pub(crate) fn memory(&self) -> MutexGuard<'_, Option<Memory>> {
        // A panic in the middle of a change leaves a store that refuses everything else.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_condition(&self, condition: Condition) {
        let mut before = self.condition.lock().unwrap_or_else(PoisonError::into_inner);
        if *before == Condition::Capturing {
            *self.away_since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
        *before = condition;
    }

    /// How long capture has not been running, if it is not.
    pub(crate) fn away_for(&self) -> Duration {
        self.away_since.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// When the server was started that capture reads from, or has read from last.
    #[must_use]
    pub fn captures_from(&self) -> PgTimestamp {
        self.captured.borrow().started
    }

    /// Waits until capture reads from the server that was started then.
    pub(crate) async fn reads_from(&self, started: PgTimestamp) {
        // The sender is this handle's.
        let _ = self.captured.subscribe().wait_for(|captured| captured.started == started).await;
    }

    /// Capture has begun to read from the server that was started then.
    pub(crate) fn tell_begun(&self, started: PgTimestamp) {
        self.captured.send_replace(Captured { started, lsn: Lsn::INVALID });
    }

    /// Says how far capture has come.
    pub(crate) fn tell_captured(&self, lsn: Lsn) {
        self.captured.send_modify(|captured| captured.lsn = lsn);
    }

    /// Says that deletions were recorded.
    pub(crate) fn tell_recorded(&self, count: u64) {
        self.recorded.send_modify(|recorded| *recorded += count);
    }

    pub(crate) fn recorded(&self) -> watch::Receiver<u64> {
        self.recorded.subscribe()
    }

    pub(crate) fn set_waiting(&self, waiting: Waiting) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(waiting);
    }

    /// Nobody will ask any more for what was deleted up to `candidate`. A memory that was opened
    /// anew meanwhile may not have come there again; then it is a later candidate's turn.
    pub(crate) fn forget(&self, candidate: Candidate) {
        if let Some(memory) = self.memory().as_mut()
            && candidate.lsn <= memory.captured()
        {
            memory.advance(candidate);
        }
    }

    /// Closes the memory, so that the next attempt or process opens it.
    pub(crate) fn close(&self) -> Result<(), Error> {
        match self.memory().take() {
            Some(memory) => Ok(memory.close(PgTimestamp::now())?),
            None => Ok(()),
        }
    }
}
