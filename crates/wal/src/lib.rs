//! WAL bytes to checked records: push bytes, poll records. No I/O.
//!
//! [`Reader`] is handed the bytes of the WAL in order, in pieces of any size, and returns one
//! [`Record`] after the other. A record's page headers, its length, its place in the chain of
//! records and its checksum are right, or there is an [`Error`] with the LSN. Nothing is ever
//! skipped. A record inside one page of one piece is a view of that piece. Only a record that
//! crosses a page or a piece is put together in the reader's own memory.
//!
//! [`Record::parts`] takes a record apart (block references, page images, main data) without
//! copying. [`LocatorFilterCache`] looks at a fixed offset instead, and decides whether the record
//! is wanted at all.
//!
//! `layout` has the differences between majors 14 to 18 as a table; the magic number of a page
//! selects the major. README.md has the formats and their invariants.
//!
//! Does not belong here: where the bytes come from, and what a record means (`decode`).

mod error;
mod fields;
mod filter;
mod image;
mod layout;
mod page;
mod parts;
mod reader;
mod record;
mod rmgr;
mod whole;

pub use error::Error;
pub use fields::Fields;
pub use filter::{Actions, Dropped, Interest, LocatorFilterCache, Verdict};
pub use image::{Compression, Image, ImageError};
pub use layout::Layout;
pub use page::PAGE_SIZE;
pub use parts::{Block, Blocks, Fork, Parts};
pub use reader::{Reader, Records, Start};
pub use record::Record;
pub use rmgr::Rmgr;
pub use whole::Whole;
