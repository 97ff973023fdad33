//! Engines that break one rule of D2 each, and that must be caught.

/// What is done wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// Locks and sessions are read before the clock.
    LocksBeforeClock,
    /// What sessions do is read before the clock, locks after it.
    SessionsBeforeClock,
    /// The list of a snapshot is taken for that of the locks.
    SnapshotForLocks,
    /// Where WAL ends is read together with the clock, before the others have left.
    PositionEarly,
    /// What is applied counts as flushed.
    AppliedForFlushed,
    /// The publisher's clock is not waited for.
    ClockNotAwaited,
    /// COMMIT PREPARED is overlooked.
    FinishersIgnored,
    /// Statements count as begun since, whenever they began.
    StatementsAreNew,
    /// A standby is asked in the primary's place.
    StandbyAsked,
    /// A table is copied, and nobody says so.
    JoiningNotTold,
    /// A pipeline is added, and nobody says so.
    PipelineNotTold,
    /// The publisher crashes or fails over, and nobody says so.
    LossNotTold,
    /// The end of WAL is not reduced to where the last record ends.
    PositionNotNormal,
    /// A session that waits for a standby counts as in commit.
    StandbyWaitsAreCommits,
    /// A session that is idle in its transaction counts as in commit.
    SleepersAreCommits,
    /// Dormant prepared transactions count as in commit.
    DormantAreCommits,
}

impl Sabotage {
    /// Those that forget too early.
    pub(crate) const UNSAFE: [Sabotage; 11] = [
        Sabotage::LocksBeforeClock,
        Sabotage::SessionsBeforeClock,
        Sabotage::SnapshotForLocks,
        Sabotage::PositionEarly,
        Sabotage::AppliedForFlushed,
        Sabotage::ClockNotAwaited,
        Sabotage::FinishersIgnored,
        Sabotage::StatementsAreNew,
        Sabotage::StandbyAsked,
        Sabotage::JoiningNotTold,
        Sabotage::PipelineNotTold,
    ];

    /// Those that never forget again.
    pub(crate) const STALLING: [Sabotage; 5] = [
        Sabotage::LossNotTold,
        Sabotage::PositionNotNormal,
        Sabotage::StandbyWaitsAreCommits,
        Sabotage::SleepersAreCommits,
        Sabotage::DormantAreCommits,
    ];
}
