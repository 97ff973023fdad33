//! What a subscription asks of the WAL of its source.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::SubscriptionName;
use client::ConnInfo;
use output::OriginFilter;
use source::restart_lsn::KeptBeside;

/// One subscription's settings, as far as its WAL is concerned. Names and units are the settings'
/// own.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The subscription's name, from which sessions and the slot are named.
    pub subscription: SubscriptionName,
    /// Where the WAL comes from.
    pub source: ConnInfo,
    /// Publications on the source; at least one.
    pub publications: Vec<String>,
    /// Whether large transactions come out while they are open.
    pub streaming: bool,
    /// Which changes come out, by their origin.
    pub origin: OriginFilter,
    /// Longest time between two reports to the source; zero: only on request.
    pub wal_receiver_status_interval: Duration,
    /// Longest silence of the source; zero: no limit.
    pub wal_receiver_timeout: Duration,
    /// Interval between comparisons of the followed catalogs with the source's, besides the one at
    /// each start; zero: only at starts.
    pub catalog_check_interval: Duration,
    /// Where to find WAL that the source has removed.
    pub wal_archive: Option<PathBuf>,
    /// Whether WAL comes through a slot as a stream. Otherwise all of it comes from
    /// [`Settings::wal_archive`].
    pub wal_stream: bool,
    /// Physical slots on the source. Their standbys must have WAL before it is decoded.
    pub synchronized_standby_slots: Vec<String>,
    /// What the slot keeps WAL for beside this subscription.
    pub kept_beside: Option<Arc<KeptBeside>>,
    /// The file in which the source's catalogs are kept for a restart.
    pub restart_file: PathBuf,
}

impl Settings {
    /// The archive that is followed instead of a stream, if there is one.
    pub(crate) fn followed_archive(&self) -> Option<&std::path::Path> {
        self.wal_archive.as_deref().filter(|_| !self.wal_stream)
    }
}
