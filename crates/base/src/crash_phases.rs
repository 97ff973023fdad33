//! The phases that a pipeline passes through, reported to an observer.
//!
//! A crash test has to know what a process was doing when it was killed. Stages report here what
//! they enter and leave. The program may install one observer, which writes the phases to a place
//! that survives the process. This module does no I/O and keeps nothing: without an observer, a
//! call is one atomic load.
//!
//! Phases overlap: while the executor waits for an answer, another task may be spooling. So each
//! phase is entered and left by itself, and several times at once if several workers do the same.

use std::sync::OnceLock;

/// What a kill may interrupt. The names are those of the crash test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A worker of the first copy is copying a table or a range.
    Copy,
    /// A block of an open transaction is being received into the spool.
    Spool,
    /// Statements of a batch were sent, and not all were answered.
    Batch,
    /// COMMIT was sent and not answered.
    Commit,
    /// Changes are applied one at a time.
    Replay,
    /// Changes are committed on the target and not reported to the source.
    Unreported,
    /// Catalogs are looked at and kept, for changes that are decoded here.
    Look,
    /// The file that a restart of decoding needs is being written.
    Keep,
}

impl Phase {
    /// All phases. The position of each is its number.
    pub const ALL: [Phase; 8] = [
        Phase::Copy,
        Phase::Spool,
        Phase::Batch,
        Phase::Commit,
        Phase::Replay,
        Phase::Unreported,
        Phase::Look,
        Phase::Keep,
    ];
}

/// Is called with a phase that was entered (true) or left.
pub type Observer = fn(Phase, bool);

static OBSERVER: OnceLock<Observer> = OnceLock::new();

/// Installs the process's observer; false if there is one already.
pub fn observe(observer: Observer) -> bool {
    OBSERVER.set(observer).is_ok()
}

/// Enters `phase` until the result is dropped, however its owner ends.
pub fn inside(phase: Phase) -> Inside {
    note(phase, true);
    Inside(phase)
}

/// Enters or leaves a phase without an owner. Entering it twice is the same as entering it once.
pub fn set(phase: Phase, entered: bool) {
    note(phase, entered);
}

fn note(phase: Phase, entered: bool) {
    if let Some(observer) = OBSERVER.get() {
        observer(phase, entered);
    }
}

/// A phase that was entered. Dropping this leaves it.
#[derive(Debug)]
#[must_use = "the phase is left when this is dropped"]
pub struct Inside(Phase);

impl Drop for Inside {
    fn drop(&mut self) {
        note(self.0, false);
    }
}
