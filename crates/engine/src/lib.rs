//! The only crate that knows every stage: wiring, supervision, retry policy, figures.

pub mod adoption;
mod catalogue;
mod decoding;
mod error;
mod history;
mod left_out;
pub mod monitor;
mod partitions;
mod pipeline;
mod preflight;
mod record;
mod refresh;
mod refusal;
mod repeated;
mod retry;
mod settings;
mod shared;
mod spooling;
mod statistics;
mod status;
mod target_schema;

pub use apply::{CommitOrder, PrefetchMode};
pub use catalogue::catalogue;
pub use check::{End, Finding, Report, Severity};
pub use error::Error;
pub use pipeline::run;
pub use preflight::check;
pub use retry::Verdict;
pub use settings::{
    Binary, OnTableReplaced, Origin, Settings, SourceMode, SynchronousCommit, decoding_dir, restart_file,
    spool_dir,
};
pub use shared::Passes;
pub use status::{
    AwaitedTable, Blocked, BuildingSnapshot, CatchingUp, CopySnapshot, Decoded, DecodedSnapshot,
    DifferingPartition, Failing, Lag, LagFigures, LastError, Phase, PrefetchSnapshot, Refresh,
    SchemaSnapshot, Snapshot, Status, TableSnapshot, Totals, ValuesSnapshot, WaitingTable, WaitsFor,
};
