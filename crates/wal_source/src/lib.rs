//! A source that ships WAL, which is decoded here: everything between a walsender, or an archive,
//! and messages of pgoutput.
//!
//! ```text
//! walsender --Shipping--> wait_for_standbys --WAL--> Decoding, alone --messages--> the applier's queue
//! archive   ---'                                 '-> pass, with others ---'
//! ```
//! | module | does |
//! | --- | --- |
//! | `beginning` | makes or finds the slot, looks at the catalogs, and decides where decoding begins |
//! | `restart`, `keeper` | keep the catalogs in a file, from which a start goes on decoding |
//! | `new_look` | looks at the catalogs anew where they cannot be followed, and surveys the WAL before |
//! | `following` | [`WalSource`]: ships and decodes, alone or with others, until it is stopped |
//! | `shipping`, `archive` | hand over WAL as it stands, from a stream or from files |
//! | `wait_for_standbys` | holds WAL back until the named standbys have it |
//! | `decoding`, `gather` | decode for one subscription, and hand over messages |
//! | `sharing`, `pass` | find the subscriptions that follow the same server, and decode for all in one pass |
//! | `compare`, `identity`, `left_out` | ask beside the stream: are the catalogs, the server, the tables still as they were? |
//!
//! Handed are a [`Context`] and the progress of whatever takes the messages. A target is no part of
//! it: what is durable there is known by a position alone. So a receiver may as well pass the
//! messages on.
//!
//! What a start does about an error, and which tables take part, does not belong here.

mod archive;
mod beginning;
mod compare;
mod decoded;
mod decoding;
mod error;
mod error_reference;
mod following;
mod gather;
mod identity;
mod keeper;
mod left_out;
mod new_look;
mod pass;
mod restart;
mod settings;
mod sharing;
mod shipping;
mod unfit;
mod wait_for_standbys;

use std::io;
use std::sync::Arc;

use base::Lsn;
use client::Session;
use source::end::SourceEnd;
use txn::Spool;

pub use self::beginning::Begun;
pub use self::compare::compare_catalogs;
pub use self::decoded::{Decoded, DecodedSnapshot};
pub use self::decoding::Ask;
pub use self::error::{Error, Foreign, OtherSource};
pub use self::error_reference::error_reference;
pub use self::following::{Beside, WalSource};
pub use self::identity::{drop_left_slot, watch_identity};
pub use self::keeper::Keeper;
pub use self::left_out::Judge;
pub use self::new_look::NewLook;
pub use self::restart::Restart;
pub use self::settings::Settings;
pub use self::sharing::Passes;
use self::wait_for_standbys::Standbys;

/// Opens the spool for open transactions that are being decoded.
pub type OpenSpool = Arc<dyn Fn() -> io::Result<Box<dyn Spool>> + Send + Sync>;

/// What a start needs to know: the subscription, and the source as the attempt found it.
#[derive(Clone)]
pub struct Context<'a> {
    /// What the subscription asks for.
    pub settings: &'a Arc<Settings>,
    /// The figures to keep up to date.
    pub figures: &'a Arc<Decoded>,
    /// Where open transactions wait.
    pub open_spool: OpenSpool,
    /// The passes of this process.
    pub passes: &'a Passes,
    /// The source.
    pub source: &'a SourceEnd,
}

/// Returns when the configured standbys have flushed everything before `lsn`, a position in the WAL
/// of `source`.
///
/// # Errors
/// Another server answers for the source by now.
pub async fn wait_for_standbys(
    settings: &Arc<Settings>,
    figures: &Arc<Decoded>,
    source: &Session,
    lsn: Lsn,
) -> Result<(), Error> {
    if settings.synchronized_standby_slots.is_empty() {
        return Ok(());
    }
    let identity = identity::of(source).await?;
    Standbys::new(settings, figures, identity).wait_for(lsn).await
}
