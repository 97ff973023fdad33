//! A publisher's place taken for its subscribers.
//!
//! | file | has |
//! | --- | --- |
//! | `passthrough`, `cancel` | ordinary connections, which are the publisher's |
//! | `decoding`, `feed` | one pass for all forms, each into its track |
//! | `server` | the whole: WAL comes, clients come |
//! | `session` | a replication connection: commands, and SQL that is passed on |
//! | `databases` | what is decoded of each database, and for which forms |
//! | `anchors` | places from which decoding can begin again |
//! | `receiver` | the publisher's WAL, received once and kept |
//! | `slots` | replication slots, and what survives of them |
//! | `walsender` | a form's track, sent to one subscriber |
//! | `create` | the options of `CREATE_REPLICATION_SLOT` |
//! | `form` | the options of `START_REPLICATION`: what a subscriber asks for |
//! | `told` | errors as the server words them |
//!
//! A subscriber must not see a difference. So what is refused, and with which words, follows the
//! publisher's major; `tests/wording.rs` compares with servers of every major.

mod anchors;
mod cancel;
mod create;
mod databases;
mod decoding;
mod feed;
mod form;
mod passthrough;
mod receiver;
mod server;
mod session;
mod slots;
mod told;
mod walsender;

pub use anchors::Anchors;
pub use cancel::{Cancellable, Cancels};
pub use create::{SlotOptions, SnapshotWish, check_name};
pub use databases::{Databases, FormKey, TrackLimits};
pub use decoding::{Decoding, DecodingFigures, FormId, SharedAnchors};
pub use feed::{FormEnd, FormHandle, FormPosition};
pub use form::{Form, Streams};
pub use passthrough::{Passed, serve};
pub use receiver::{Received, Receiver, ReceiverError, ReceiverSettings};
pub use server::{Relay, RelayError, RelaySettings, Timeouts};
pub use session::{Context, serve_replication};
pub use slots::{ActiveSlot, SlotShown, SlotState, Slots};
pub use told::Told;
pub use walsender::{Ended, RestartOf, Sent, SentShown, Walsender};
