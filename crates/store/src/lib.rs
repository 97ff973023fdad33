//! The version store: values by (key, LSN). Its size follows what is still needed, not how often it
//! changed.
//!
//! It is a paged B-tree. When a leaf is full, it removes versions that no reader can need before it
//! would split the page. It is handed bytes and LSNs and knows nothing of PostgreSQL. It has one
//! writer ([`Store`]) and any number of readers ([`Reader`], [`Snapshot`]), which never block the
//! writer. A crash keeps committed changes and loses all others.
//!
//! README.md explains the algorithm, its bounds and what is assumed of the medium. FORMAT.md has
//! the bytes.
//!
//! Invariants: a version is removed only when its successor is durable and at or below the horizon,
//! and no reader lies between the two. Nothing that the last checkpoint leads to is overwritten.
//! Every page that is read is checked against the checksum in its reference.

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
