//! A source that ships WAL, which is decoded here: everything between a walsender, or an archive,
//! and messages of pgoutput.
//!
//! ```text
//! walsender --Shipping--> wait_for_standbys --WAL--> Decoding, alone --messages--> apply
//! archive   ---'                                 '-> pass, with others ---'
//! ```
//! | module | does |
//! | --- | --- |
//! | `beginning` | makes or finds the slot, looks at the catalogs, and decides where decoding begins |
//! | `restart` | keeps the catalogs in a file, from which a start goes on decoding |
//! | `following` | [`WalSource`]: ships and decodes, alone or with others, until it is stopped |
//! | `shipping`, `archive` | hand over WAL as it stands, from a stream or from files |
//! | `wait_for_standbys` | holds WAL back until the named standbys have it |
//! | `decoding`, `pass` | decode for one subscription, or for several in one pass |
//! | `compare`, `identity`, `left_out` | ask beside the stream: are the catalogs, the server, the tables still as they were? |
//!
//! Callers hand in a [`Context`], never the pipeline's attempt. The pipeline describes what the
//! target holds by positions. `decoding` and `pass` import each other: a subscription's decoding is
//! handed to a pass and back, so each holds the other's types.

pub(crate) mod archive;
mod beginning;
mod compare;
mod decoding;
mod following;
mod identity;
mod left_out;
mod pass;
mod restart;
mod shipping;
mod wait_for_standbys;

use std::sync::Arc;

use base::Lsn;
use client::Session;

pub(crate) use self::beginning::Begun;
pub(crate) use self::compare::compare_catalogs;
pub(crate) use self::following::{Beside, WalSource};
pub(crate) use self::identity::{drop_left_slot, watch_identity};
pub(crate) use self::left_out::Judge;
pub use self::pass::Passes;
pub(crate) use self::restart::Restart;
use self::wait_for_standbys::Standbys;
use crate::error::Error;
use crate::source_end::SourceEnd;
use crate::{Settings, Status};

/// What a start needs to know: the subscription, and the source as the attempt found it.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) settings: &'a Arc<Settings>,
    pub(crate) status: &'a Arc<Status>,
    pub(crate) passes: &'a Passes,
    pub(crate) source: &'a SourceEnd,
}

/// Returns when the configured standbys have flushed everything before `lsn`, a position in the WAL
/// of `source`.
///
/// # Errors
/// Another server answers for the source by now.
pub(crate) async fn wait_for_standbys(
    settings: &Arc<Settings>,
    status: &Status,
    source: &Session,
    lsn: Lsn,
) -> Result<(), Error> {
    if settings.synchronized_standby_slots.is_empty() {
        return Ok(());
    }
    let identity = identity::of(source).await.map_err(|error| source.error(error))?;
    Standbys::new(settings, status.decoded(), identity).wait_for(lsn).await
}
