//! The version store: values by (key, LSN) whose size follows what is still needed, not how often it changed.
//!
//! A paged B-tree that removes versions nobody can need when a leaf is full, before it would split the page.
//! It is handed bytes and LSNs and knows nothing of PostgreSQL. One writer ([`Store`]), any number of readers
//! ([`Reader`], [`Snapshot`]) that never block it; what is committed survives a crash, what is not does not.
//!
//! README.md explains the algorithm, its bounds and what is assumed of the medium; FORMAT.md has the bytes.
//!
//! Invariants: a version is removed only when its successor is durable, at or below the horizon, and no
//! reader lies between; nothing that the last checkpoint leads to is overwritten; every page read is checked
//! against the checksum that its reference holds.

mod cache;
mod check;
mod checkpoint;
mod compact;
mod disk;
mod error;
mod log;
mod meta;
mod neighbours;
mod page;
mod pager;
mod pages;
mod pending;
mod reader;
mod recovery;
mod removal;
mod room;
mod store;
mod tree;

pub use check::Checked;
pub use disk::{Disk, FileDisk};
pub use error::Error;
pub use meta::{Kind, TREE_NAME_BYTES_MAX, TREES_MAX};
pub use page::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use reader::{Reader, Scan, Snapshot, Tree, Version};
pub use room::BottomUp;
pub use store::{Options, Stats, Store};
