//! The only crate that knows every stage: wiring, supervision, retry policy, metrics.

pub mod admin;
pub mod adopt;
mod catalogue;
pub mod control;
mod decoding;
mod error;
mod history;
mod left_out;
pub mod metrics;
pub mod monitor;
mod partitions;
pub mod pin;
mod pipeline;
mod preflight;
mod record;
mod refresh;
mod refusal;
mod repeated;
mod retry;
pub mod sequences;
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
    AwaitedTable, Blocked, BuildingSnapshot, CatchingUp, CopySnapshot, DecodedSnapshot, DifferingPartition,
    Failing, Lag, LagFigures, LastError, Phase, PrefetchSnapshot, Refresh, SchemaSnapshot, Snapshot, Status,
    TableSnapshot, Totals, ValuesSnapshot, WaitingTable, WaitsFor,
};
