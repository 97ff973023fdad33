//! WAL bytes to checked records; push bytes, poll records. No I/O.
//!
//! [`Reader`] is handed the bytes of the WAL in order, in pieces of any size, and
//! gives back one [`Record`] after the other: its page headers, its length, its
//! place in the chain of records and its checksum are right, or there is an
//! [`Error`] with the LSN. Nothing is ever passed over. A record that lies in
//! one page of one piece is a view of that piece; only one that crosses a page
//! or a piece is put together in the reader's own memory.
//!
//! [`Record::parts`] takes a record apart (block references, page images, main
//! data) without copying. [`LocatorFilterCache`] looks at a fixed offset instead
//! and says whether anybody wants the record at all.
//!
//! Majors 14 to 18 differ in what `layout` has as a table; the magic number of a
//! page says which one it is. README.md has the formats and their invariants.
//!
//! Not here: where the bytes come from, and what a record means (`decode`).

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
