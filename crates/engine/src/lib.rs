//! Connects all stages: wiring, supervision, retry policy, figures. No other crate knows every
//! stage.

mod adoption;
mod byte_size;
mod copied_table;
mod direction;
mod error;
mod error_reference;
mod history;
mod message_source;
pub mod monitor;
mod partitions;
mod pipeline;
mod preflight;

mod refresh;
mod refusal;
mod repeated;
mod retaining;
mod retry;
mod settings;
mod spooling;
mod statistics;
mod status;
mod target_schema;

pub use adoption::adoption_refuses;
pub use apply::{CommitOrder, PrefetchMode};
pub use check::{End, Finding, Report, Severity};
pub use direction::{Direction, Way};
pub use error::Error;
pub use error_reference::error_reference;
pub use pipeline::{learn_at_adoption, run};
pub use preflight::{before_adopting, check};
pub use retention::Bounds;
pub use retry::Verdict;
pub use settings::{
    Binary, OnTableReplaced, Origin, Settings, SourceMode, SynchronousCommit, decoding_dir, deletions_dir,
    restart_file, spool_dir,
};
pub use status::{
    AwaitedTable, Blocked, BuildingSnapshot, CatchingUp, CopySnapshot, DifferingPartition, Failing, Lag,
    LagFigures, LastError, LimitedBy, Pause, Phase, PrefetchSnapshot, QuantilesSnapshot, Refresh,
    RetainedSnapshot, SchemaSnapshot, StageTimes, Status, StatusSnapshot, TableSnapshot, Totals,
    ValuesSnapshot, WaitingTable, WaitsFor,
};
pub use wal_source::{Decoded, DecodedSnapshot, Passes};
