//! Engines that break one rule of D2 each, and that must be caught.
//!
//! | rule of D2 | broken by |
//! | --- | --- |
//! | the candidate has the greatest time of what was deleted, whatever the target's clock says | `LastTime`, `ClockOfTarget` |
//! | the publisher's clock passes that time | `ClockNotAwaited` |
//! | transactions in commit at that time are waited for | `LocksBeforeClock`, `SessionsBeforeClock`, `FinishersIgnored`, `StatementsAreNew` |
//! | they are found in `pg_locks`, not in a snapshot | `SnapshotForLocks` |
//! | the position is behind them | `PositionEarly`, and `PositionNotNormal`, which nobody reaches |
//! | the target has flushed past it: every pipeline, without a gap, every table | `AppliedForFlushed`, `PipelineNotTold`, `GapsIgnored`, `JoiningNotTold` |
//! | what waits for a synchronous standby stalls nothing | `StandbyWaitsAreCommits` |
//! | idle writers stall nothing | `SleepersAreCommits`, `WorkersAreCommits` |
//! | dormant prepared transactions stall nothing | `DormantAreCommits`, `WorkersMayFinish` |
//! | every step happens on the primary | `ClockOfStandby`, `LocksOfStandby`, `PositionOfStandby` |
//! | what was found out is dropped when the publisher is another | `LossNotTold` |
//! | the answer says that a forwarded change is not guaranteed | `ForwardedNotSaid` |
//! | a clock that steps back voids the claim, and the answer says so | `ClockNeverBack`, `SetBackNotSaid` |

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
    /// With `commit_order = relaxed`, the last position that is flushed counts, whatever is missing
    /// before it.
    GapsIgnored,
    /// The publisher's clock is not waited for.
    ClockNotAwaited,
    /// The greatest clock that the publisher ever showed is taken, after its clock was set back.
    ClockNeverBack,
    /// The candidate has the time of the last deletion. An earlier one may have a later time, from
    /// a third server or from before the target's clock was set back.
    LastTime,
    /// The candidate has the time that the target's clock shows.
    ClockOfTarget,
    /// COMMIT PREPARED is overlooked.
    FinishersIgnored,
    /// Statements count as begun since, whenever they began.
    StatementsAreNew,
    /// The clock is that of a standby.
    ClockOfStandby,
    /// The locks are those of a standby, which has none.
    LocksOfStandby,
    /// The end of WAL is that of a standby.
    PositionOfStandby,
    /// A table is copied, and nobody says so.
    JoiningNotTold,
    /// A pipeline is added, and nobody says so.
    PipelineNotTold,
    /// The answer about a forwarded update does not say that its deletion may be forgotten.
    ForwardedNotSaid,
    /// The same about an update whose publisher's clock was set back.
    SetBackNotSaid,
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
    /// A transaction that an apply worker of the publisher has open counts as in commit.
    WorkersAreCommits,
    /// An apply worker of the publisher counts as executing COMMIT PREPARED.
    WorkersMayFinish,
}

impl Sabotage {
    /// Those that forget too early, or do not say that they may have.
    pub(crate) const UNSAFE: [Sabotage; 19] = [
        Sabotage::LocksBeforeClock,
        Sabotage::SessionsBeforeClock,
        Sabotage::SnapshotForLocks,
        Sabotage::PositionEarly,
        Sabotage::AppliedForFlushed,
        Sabotage::GapsIgnored,
        Sabotage::ClockNotAwaited,
        Sabotage::ClockNeverBack,
        Sabotage::LastTime,
        Sabotage::ClockOfTarget,
        Sabotage::FinishersIgnored,
        Sabotage::StatementsAreNew,
        Sabotage::ClockOfStandby,
        Sabotage::LocksOfStandby,
        Sabotage::PositionOfStandby,
        Sabotage::JoiningNotTold,
        Sabotage::PipelineNotTold,
        Sabotage::ForwardedNotSaid,
        Sabotage::SetBackNotSaid,
    ];

    /// Those that never forget again.
    pub(crate) const STALLING: [Sabotage; 7] = [
        Sabotage::LossNotTold,
        Sabotage::PositionNotNormal,
        Sabotage::StandbyWaitsAreCommits,
        Sabotage::SleepersAreCommits,
        Sabotage::DormantAreCommits,
        Sabotage::WorkersAreCommits,
        Sabotage::WorkersMayFinish,
    ];
}
