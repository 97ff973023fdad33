//! What a pipeline does at a moment.

/// What the pipeline is doing.
///
/// ```text
/// Starting --both ends known--> Copying --a new schema--> Indexing --all tables joined--> CatchingUp <----> Streaming
///    ^                              |                        |                               |                |
///    +----- interval over ----- Waiting <---------------- an error --------------------------+----------------+
/// any --asked to stop--> Stopping --> Stopped
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Connecting and looking at both ends.
    Starting,
    /// The first copy; changes of finished tables may already flow.
    Copying,
    /// Creating the rest of a new schema after the copy.
    Indexing,
    /// Changes of all tables flow, and some tables are still ahead of others. A stream enters and
    /// leaves this phase by itself; no stage sets it.
    CatchingUp,
    /// Every state of the target is one that the source had.
    Streaming,
    /// Waiting before the next attempt after an error.
    Waiting,
    /// Asked to stop; the batch in hand is finished or rolled back.
    Stopping,
    /// Ended.
    Stopped,
}

impl Phase {
    /// Every phase, in the order of their numbers.
    pub const ALL: [Phase; 8] = [
        Phase::Starting,
        Phase::Copying,
        Phase::Indexing,
        Phase::CatchingUp,
        Phase::Streaming,
        Phase::Waiting,
        Phase::Stopping,
        Phase::Stopped,
    ];

    /// The word in status, metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::Starting => "starting",
            Phase::Copying => "copying",
            Phase::Indexing => "indexing",
            Phase::CatchingUp => "catching up to consistency",
            Phase::Streaming => "streaming",
            Phase::Waiting => "waiting",
            Phase::Stopping => "stopping",
            Phase::Stopped => "stopped",
        }
    }
}
