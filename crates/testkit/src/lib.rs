//! Real clusters of every major for tests and benchmarks.
//!
//! A scenario reads like prose: start a [`Pair`], write on its source, run the program with
//! [`Sluice::run`], wait for a condition with [`wait_for`], and compare both ends with
//! [`assert_same_rows`].
//!
//! Promises:
//! - A server that was there before is never touched. Binaries come from pinned packages
//!   ([`server_dir`]). Every cluster has its own directory, its own port on 127.0.0.1 and its own
//!   socket directory.
//! - Nothing stays behind. A cluster stops and is removed when its value is dropped. The kernel
//!   stops its server when the process that started it is killed.
//! - `initdb` runs once per major; a cluster is a copy of that template.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `PGSLUICE_TEST_MAJORS` | majors to test: `all`, or `15,18` |
//! | `PGSLUICE_TEST_TURNS` | a seed: scenarios and other slow tests take one of the majors, each in its turn |
//! | `PGSLUICE_PG_DIR` | where server binaries are kept |
//! | `PGSLUICE_BIN` | the program under test |
//! | `PGSLUICE_TEST_WORKERS` | apply workers, where a test does not set them |
//! | `PGSLUICE_TEST_SOURCE_MODE` | source mode, where a test does not set it: `logical`, `wal`, or `archive` (`wal` without a slot) |
//! | `PGSLUICE_TEST_KEEP` | leave the clusters' directories behind, to look at |
//!
//! Code that knows what pgsluice does with the rows does not belong here. Checkers stay apart from
//! what they check, so this crate depends on none of the product's.

mod archive;
mod clients;
mod clock;
mod cluster;
mod identity;
mod major;
pub mod matrix;
mod pair;
mod patience;
mod pg_dump;
mod pip;
pub mod process;
mod proxy;
mod rows;
mod server;
mod slow_reads;
mod sluice;
mod small_disk;
mod sql;
mod template;
mod user;
mod wait;

pub use archive::Archive;
pub use clients::client_dir;
pub use cluster::{Builder, Cluster, StopMode};
pub use major::{Major, TURNS, test_name};
pub use pair::Pair;
pub use patience::{Patience, at_this_load};
pub use pg_dump::{pg_dump_for, pg_dump_pinned};
pub use pip::pip_packages;
pub use proxy::{Proxy, Then};
pub use rows::{RowsCompared, assert_same_rows, same_rows};
pub use server::{cache_dir, server_dir, workspace_dir};
pub use slow_reads::SlowReads;
pub use sluice::{Output, Sluice, SourceMode, apply_workers, pgsluice_path, source_mode};
pub use small_disk::SmallDisk;
pub use sql::{Rows, query};
pub use wait::{wait_for, wait_while_it_moves};
