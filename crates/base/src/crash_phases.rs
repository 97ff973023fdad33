//! The phases a pipeline passes through, told to whoever watches.
//!
//! A crash test has to know what a process was doing when it was killed.
//! Stages say here what they enter and leave; the program may install one
//! observer, which writes it where it survives the process. Does no I/O and
//! keeps nothing: without an observer a call is one atomic load.
//!
//! Phases overlap: while the executor waits for an answer, another task may
//! be spooling. Each is therefore entered and left by itself, several times
//! at once where several workers do the same.

use std::sync::OnceLock;

/// What a kill may hit. The names are those of the crash test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A worker of the first copy has a table or a range in hand.
    Copy,
    /// A block of an open transaction is being received into the spool.
    Spool,
    /// Statements of a batch are sent and not all answered.
    Batch,
    /// COMMIT is sent and unanswered.
    Commit,
    /// Changes are applied one at a time.
    Replay,
    /// Something is committed on the target and not reported to the source.
    Unreported,
    /// Catalogs are looked at, and kept, for changes that are decoded here.
    Look,
    /// What a restart of decoding needs is being written to its file.
    Keep,
}

impl Phase {
    /// All phases; the position of each is its number.
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

/// Told of a phase that it was entered (true) or left.
pub type Observer = fn(Phase, bool);

static OBSERVER: OnceLock<Observer> = OnceLock::new();

/// Installs the process's observer; false if there is one already.
pub fn observe(observer: Observer) -> bool {
    OBSERVER.set(observer).is_ok()
}

/// Enters `phase` until the result is dropped, by whichever way its owner
/// ends.
pub fn inside(phase: Phase) -> Inside {
    note(phase, true);
    Inside(phase)
}

/// Enters or leaves a phase that nobody owns; entering it twice is the same
/// as once.
pub fn set(phase: Phase, entered: bool) {
    note(phase, entered);
}

fn note(phase: Phase, entered: bool) {
    if let Some(observer) = OBSERVER.get() {
        observer(phase, entered);
    }
}

/// A phase that was entered; dropping it leaves.
#[derive(Debug)]
#[must_use = "the phase is left when this is dropped"]
pub struct Inside(Phase);

impl Drop for Inside {
    fn drop(&mut self) {
        note(self.0, false);
    }
}
