//! The settings of `pgsluice relay` and of its commands, one field each, as in the table of
//! subscriptions.
//!
//! A setting that exists in PostgreSQL keeps PostgreSQL's name, unit and default.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Command, FromArgMatches};

use super::Log;
use crate::units::{MegabytesMax, Milliseconds, Seconds};

/// All settings of a relay.
#[derive(Debug, Clone, Args)]
pub(crate) struct RelayTable {
    #[command(flatten)]
    pub(crate) place: RelayPlace,
    #[command(flatten)]
    pub(crate) network: Network,
    #[command(flatten)]
    pub(crate) access: Access,
    #[command(flatten)]
    pub(crate) wal: Wal,
    #[command(flatten)]
    pub(crate) log: Log,
}

/// Which relay a command is about.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Relay")]
pub(crate) struct RelayPlace {
    /// Configuration file of the relay, in TOML
    ///
    /// Its keys are the settings of the relay. A flag overrides the environment, and the
    /// environment overrides the file.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Publisher: a connection string or URI as libpq reads it
    ///
    /// The role needs REPLICATION, and the rights to read the catalogs of each database that
    /// subscribers ask for. Keep the password in ~/.pgpass or the service file.
    #[arg(long, value_name = "CONNINFO")]
    pub(crate) source: Option<String>,

    /// Directory for WAL, slots, and everything else that the relay keeps
    ///
    /// It must not get lost: what subscribers have confirmed is known only here.
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) data_dir: Option<PathBuf>,

    /// File of users and their SCRAM verifiers, which `pgsluice user` writes (default: users in the
    /// data directory)
    #[arg(long, value_name = "FILE")]
    pub(crate) users_file: Option<PathBuf>,
}

impl RelayPlace {
    /// The file of users, if its place is known.
    pub(crate) fn users(&self) -> Option<PathBuf> {
        let beside = || self.data_dir.as_ref().map(|dir| dir.join("users"));
        self.users_file.clone().or_else(beside)
    }
}

/// Where subscribers connect.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Network")]
pub(crate) struct Network {
    /// Listen at this IP address and port, such as 127.0.0.1:5433 or 0.0.0.0:5432
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,

    /// Certificate of the relay, with those between it and its root, in PEM
    ///
    /// Without it, connections cannot be encrypted.
    #[arg(long, value_name = "FILE", requires = "ssl_key_file")]
    pub(crate) ssl_cert_file: Option<PathBuf>,

    /// Key of the relay's certificate, in PEM and without a password
    ///
    /// Nobody but its owner may have rights to the file.
    #[arg(long, value_name = "FILE", requires = "ssl_cert_file")]
    pub(crate) ssl_key_file: Option<PathBuf>,

    /// Root certificates of clients' certificates, for the method cert
    #[arg(long, value_name = "FILE", requires = "ssl_cert_file")]
    pub(crate) ssl_ca_file: Option<PathBuf>,

    /// Largest number of connections
    #[arg(long, default_value = "1000", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_connections: u32,

    /// Largest number of connections of one user (default: that of all connections)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_connections_per_user: Option<u32>,

    /// Largest number of connections from one address (default: that of all connections)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_connections_per_address: Option<u32>,

    /// Longest time from a client's first byte to the end of its authentication
    #[arg(long, default_value = "60s", value_name = "DURATION")]
    pub(crate) authentication_timeout: Seconds,
}

/// Who may connect.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Access")]
pub(crate) struct Access {
    /// Table of who may connect, in the form of pg_hba.conf (default: everybody who has a password)
    ///
    /// The first line that matches decides. SIGHUP reads the files of rules, users, maps and
    /// certificates again; if one of them has a mistake, the old rules stay.
    #[arg(long, value_name = "FILE")]
    pub(crate) hba_file: Option<PathBuf>,

    /// Maps from names in certificates to users, in the form of pg_ident.conf
    #[arg(long, value_name = "FILE")]
    pub(crate) ident_file: Option<PathBuf>,

    /// Logins of users who have another name or password at the publisher
    ///
    /// A line is `USER ROLE PASSWORD`. Others log in at the publisher as themselves: with the key
    /// that their login here gave, if both have the same verifier, or without a password. Nobody
    /// but its owner may have rights to the file. SIGHUP reads it again.
    #[arg(long, value_name = "FILE")]
    pub(crate) user_map_file: Option<PathBuf>,
}

/// How WAL comes, and how changes go.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Streams")]
pub(crate) struct Wal {
    /// Name of the physical slot on the publisher, and of the connection that receives WAL
    ///
    /// `synchronous_standby_names` on the publisher may have this name.
    #[arg(long, default_value = "pgsluice_relay", value_name = "NAME")]
    pub(crate) primary_slot_name: String,

    /// Send changes only once these standbys have them
    ///
    /// These are physical replication slots on the publisher, of the standbys that may take its
    /// place; may be given more than once. Subscribers can then follow a failover to any of them,
    /// and slots may have the option FAILOVER.
    #[arg(long, value_name = "SLOT", value_delimiter = ',')]
    pub(crate) synchronized_standby_slots: Vec<String>,

    /// Longest time between two reports of the relay's position to the publisher
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    pub(crate) wal_receiver_status_interval: Seconds,

    /// Give up a connection to the publisher that has been silent for this long
    #[arg(long, default_value = "60s", value_name = "DURATION")]
    pub(crate) wal_receiver_timeout: Milliseconds,

    /// Give up a connection of a subscriber that has been silent for this long
    #[arg(long, default_value = "60s", value_name = "DURATION")]
    pub(crate) wal_sender_timeout: Milliseconds,

    /// Invalidate a slot that is further behind than this; -1 means no limit
    ///
    /// WAL for slots is kept in the data directory, never on the publisher. A subscriber whose slot
    /// was invalidated must be set up again.
    #[arg(long, default_value = "-1", value_name = "SIZE", allow_negative_numbers = true)]
    pub(crate) max_slot_wal_keep_size: MegabytesMax,

    /// Invalidate a slot that nobody has read for this long; 0 means no limit
    #[arg(long, default_value = "0", value_name = "DURATION")]
    pub(crate) idle_replication_slot_timeout: Seconds,

    /// Read WAL that the publisher or the data directory does not have any more from this directory
    ///
    /// The publisher's archive_command or pg_receivewal fills it. Files may be uncompressed, or
    /// compressed with gzip, lz4 or zstd. If the publisher has removed WAL that the relay needs,
    /// the relay makes its slot anew and copies the missing segments from here.
    #[arg(long, value_name = "DIR")]
    pub(crate) wal_archive: Option<PathBuf>,

    /// Keep at most this much WAL in the data directory if wal_archive has the rest; -1 means no
    /// limit
    ///
    /// WAL that slots still need goes once wal_archive has the same bytes, and is read there when
    /// it is needed. A segment that wal_archive does not have stays. Slots are not invalidated.
    #[arg(
        long,
        default_value = "-1",
        value_name = "SIZE",
        allow_negative_numbers = true,
        requires = "wal_archive"
    )]
    pub(crate) wal_keep_size: MegabytesMax,

    /// Keep WAL at most this long in the data directory if wal_archive has it; 0 means no limit
    ///
    /// As wal_keep_size, for segments that were received longer ago than this.
    #[arg(long, default_value = "0", value_name = "DURATION", requires = "wal_archive")]
    pub(crate) wal_keep_time: Seconds,
}

impl RelayTable {
    /// The table as a command line of its own.
    pub(super) fn command() -> Command {
        RelayTable::augment_args(Command::new("relay").no_binary_name(true).disable_help_flag(true))
    }

    /// Reads `words`, flags and their values, filling in the defaults.
    pub(crate) fn read(words: Vec<OsString>) -> Result<RelayTable, clap::Error> {
        RelayTable::from_arg_matches(&RelayTable::command().try_get_matches_from(words)?)
    }
}
