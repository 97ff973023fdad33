//! A publisher's place taken for its subscribers.
//!
//! | file | has |
//! | --- | --- |
//! | `passthrough`, `proxy`, `cancel` | ordinary connections, which are the publisher's |
//! | `upstream` | how clients log in there |
//! | `views`, `shadow` | what clients see of slots and streams, put into their statements |
//! | `decoding`, `feed` | one pass for all forms, each into its track |
//! | `server` | the whole: WAL comes, clients come |
//! | `rights` | who may replicate from a database |
//! | `session` | a replication connection: commands, and SQL that is passed on |
//! | `databases` | what is decoded of each database, and for which forms |
//! | `anchors` | places from which decoding can begin again |
//! | `receiver`, `fork` | the publisher's WAL, received once and kept; what a failover takes back |
//! | `archive`, `fill` | WAL that the publisher does not have any more, copied from an archive |
//! | `trim` | WAL that goes here because the archive has it |
//! | `slots` | replication slots, and what survives of them |
//! | `standbys` | WAL waits for those that may take the publisher's place |
//! | `tidy` | what nobody needs goes: WAL, anchors, slots that are given up |
//! | `walsender`, `lag` | a form's track, sent to one subscriber, and how late that is |
//! | `senders` | the streams that run |
//! | `together` | sessions that make slots at the same time share a point and its snapshot |
//! | `create` | the options of `CREATE_REPLICATION_SLOT` |
//! | `form` | the options of `START_REPLICATION`: what a subscriber asks for |
//! | `forewarning` | tables that will end a stream, named before it begins |
//! | `told` | errors as the server words them |
//! | `error_reference` | errors as docs/errors.md explains them |
//!
//! A subscriber must not see a difference. So what is refused, and with which words, follows the
//! publisher's major; `tests/wording.rs` compares with servers of every major.

mod anchors;
mod archive;
mod cancel;
mod create;
mod databases;
mod decoding;
mod error_reference;
mod feed;
mod fill;
mod forewarning;
mod fork;
mod form;
mod lag;
mod passthrough;
mod proxy;
mod receiver;
mod rights;
mod senders;
mod server;
mod session;
mod shadow;
mod slots;
mod standbys;
mod tidy;
mod together;
mod told;
mod trim;
mod upstream;
mod views;
mod walsender;

pub use anchors::Anchors;
pub use archive::WalArchive;
pub use cancel::{Cancellable, Cancels};
pub use create::{SlotOptions, SnapshotWish, check_name};
pub use databases::{Databases, FormKey, TrackLimits};
pub use decoding::{Decoding, DecodingFigures, SharedAnchors, Starting};
pub use error_reference::error_reference;
pub use feed::{FormEnd, FormHandle, FormId, FormPosition};
pub use form::{Form, Streams};
pub use passthrough::{Passed, serve};
pub use receiver::{Received, Receiver, ReceiverError, ReceiverSettings};
pub use senders::{Listed, Senders, Stream};
pub use server::{ArchiveSettings, Relay, RelayAccess, RelayError, RelaySettings, Timeouts};
pub use session::{Context, serve_replication};
pub use slots::{ActiveSlot, Retention, SlotShown, SlotState, Slots};
pub use told::Told;
pub use trim::WalKeep;
pub use upstream::Upstream;
pub use views::Views;
pub use walsender::{Ended, EnterAlone, RestartOf, Sent, SentShown, Walsender};
