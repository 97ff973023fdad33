//! A directory of WAL segments, written as WAL comes and read at any place.
//!
//! ```text
//! stream --> Writer: 000000010000000000000007.partial --full--> 000000010000000000000007
//!              '-- end of what is written --> Reader, Reader, ...  each at its own place
//! ```
//! The directory looks as `pg_receivewal` leaves it. PostgreSQL's own tools can read it, and an
//! archive may be filled from it. Complete segments have their full length, the name of the one
//! that is being written ends with `.partial`, and `.history` files say where timelines were left.
//!
//! | promise | how |
//! | --- | --- |
//! | what [`Writer::sync`] returned survives a crash | the file and its name were synced before |
//! | bytes have no hole, and no byte changes once it can be read | bytes are taken only where the last ones ended |
//! | a reader never sees what is not written | it asks for the end, and asks only when it has read everything up to the end that it knows |
//! | after a crash, nothing is believed that was not synced | the segment that was not complete comes again, from its beginning |
//! | one process writes | a lock on the file `lock` |
//!
//! WAL may be removed here that readers still need, if something else has it ([`Older`]). They
//! notice nothing of it.
//!
//! A server that leaves a timeline copies the segment in which it does, and goes on in the copy
//! ([`Writer::follow_timeline`]). So the file of the older timeline is needed only up to there.

mod error;
mod error_reference;
mod names;
mod older;
mod reader;
mod shared;
mod writer;

pub use error::Error;
pub use error_reference::error_reference;
pub use names::forks;
pub use older::Older;
pub use reader::{Piece, Reader, Readers};
pub use shared::Fork;
pub use writer::{Opened, Writer};
