//! Real clusters of every major for tests and benchmarks.
//!
//! A scenario reads like prose: start a [`Pair`], write on its source, run the program with [`Sluice::run`], wait
//! for a condition with [`wait_for`], compare both ends with [`assert_same_rows`].
//!
//! Promises:
//! - A server that was there before is never touched: binaries come from pinned packages ([`server_dir`]), every
//!   cluster has its own directory, its own port on 127.0.0.1 and its own socket directory.
//! - Nothing stays behind: a cluster stops and is removed when its value is dropped, and its server is told to stop
//!   by the kernel when the process that started it is killed.
//! - `initdb` runs once per major; a cluster is a copy of that template.
//!
//! The environment: `PGSLUICE_TEST_MAJORS` (`all`, or `15,18`), `PGSLUICE_PG_DIR` (where server binaries are kept),
//! `PGSLUICE_BIN` (the program under test), `PGSLUICE_TEST_WORKERS` (apply workers where a test does not say how many),
//! `PGSLUICE_TEST_SOURCE_MODE` (how changes are read where a test does not say: `logical`, `wal`,
//! or `archive`, which is `wal` without a slot),
//! `PGSLUICE_TEST_KEEP` (leave the clusters' directories behind, to look at).
//!
//! Does not belong here: anything that knows what pgsluice does with the rows. Checkers stay apart from what they
//! check, so this crate depends on none of the product's.

mod archive;
mod cluster;
mod identity;
mod major;
pub mod matrix;
mod pair;
mod patience;
mod pg_dump;
pub mod process;
mod proxy;
mod rows;
mod server;
mod sluice;
mod sql;
mod template;
mod user;
mod wait;

pub use archive::Archive;
pub use cluster::{Builder, Cluster, StopMode};
pub use major::{Major, test_name};
pub use pair::Pair;
pub use patience::{Patience, at_this_load};
pub use pg_dump::{pg_dump_for, pg_dump_pinned};
pub use proxy::{Proxy, Then};
pub use rows::{RowsCompared, assert_same_rows, same_rows};
pub use server::{cache_dir, server_dir, workspace_dir};
pub use sluice::{Output, Sluice, SourceMode, apply_workers, pgsluice_path, source_mode};
pub use sql::{Rows, query};
pub use wait::{wait_for, wait_while_it_moves};
