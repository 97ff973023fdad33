//! The settings: one table.
//!
//! Every setting is one field here. Its name is the file key; the flag is the
//! same with dashes, the environment variable the same in capitals behind
//! `PGSLUICE_`; its doc comment is its documentation. `--help`, the man page,
//! completions and the configuration reference are all made from this table,
//! and `config` fills it from flags, environment, file and defaults.
//!
//! A setting that exists in PostgreSQL keeps PostgreSQL's name, unit and
//! default. The unit of a bare number is in the field's type (`units`).
//!
//! What does not belong here: where a value comes from (`config`), and what a
//! setting does (`engine::Settings` is handed the result).

use std::any::TypeId;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Arg, ArgAction, Args, Command, FromArgMatches, ValueEnum};

use crate::units::{Bytes, Milliseconds, OnOff, Seconds};

/// All settings.
#[derive(Debug, Clone, Args)]
pub(crate) struct Table {
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) ends: Ends,
    #[command(flatten)]
    pub(crate) stream: Stream,
    #[command(flatten)]
    pub(crate) copy: FirstCopy,
    #[command(flatten)]
    pub(crate) apply: Apply,
    #[command(flatten)]
    pub(crate) process: Process,
}

/// Which subscription a command is about; every command has these.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Subscription")]
pub(crate) struct Which {
    /// Configuration file, in TOML
    ///
    /// Top-level keys are settings for every subscription; each
    /// `[[subscription]]` table describes one, with its `name` and any
    /// setting. A flag is stronger than the environment, the environment
    /// stronger than the file.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Name of the subscription (default: the first publication's name)
    ///
    /// Slot and replication origins are named after it: `pgsluice_NAME` on
    /// the source, `pgsluice_NAME_0` and so on on the target. Lower-case
    /// letters, digits and underscores. With several subscriptions in the
    /// file it chooses one of them. Inside a `[[subscription]]` table the key
    /// is `name`.
    #[arg(long, value_name = "NAME")]
    pub(crate) subscription: Option<String>,

    /// Directory of locks, control sockets and spooled transactions
    /// (default: $XDG_STATE_HOME/pgsluice, or ~/.local/state/pgsluice)
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// The two servers; commands that look at them have these.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Servers")]
pub(crate) struct Ends {
    /// Source database: a connection string or URI as libpq reads it
    ///
    /// What it leaves out comes from the PG* variables, the service file and
    /// ~/.pgpass. Keep the password there: other users of this machine can
    /// read command lines and, on some systems, environments.
    #[arg(long, value_name = "CONNINFO")]
    pub(crate) source: Option<String>,

    /// Target database: a connection string or URI as libpq reads it
    ///
    /// The same advice about passwords holds: use ~/.pgpass.
    #[arg(long, value_name = "CONNINFO")]
    pub(crate) target: Option<String>,
}

/// What is read from the source, and how.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Stream")]
pub(crate) struct Stream {
    /// Publication on the source to subscribe to; may be given more than once
    ///
    /// A list in the file; separated by commas in the environment.
    #[arg(long, value_name = "NAME")]
    pub(crate) publication: Vec<String>,

    /// How changes are read: `logical` from a slot with pgoutput, `wal` by
    /// decoding physical WAL
    ///
    /// With `wal` the source only ships bytes, of all databases, from a physical
    /// slot; it needs a primary, full_page_writes and a database in UTF8, and
    /// keeps what the catalogs were in the state directory, which must not get lost.
    #[arg(long, value_enum, default_value = "logical", value_name = "MODE")]
    pub(crate) source_mode: SourceMode,

    /// Ask for values in binary form
    ///
    /// `auto` asks for it if every published column has the same built-in type
    /// on both ends, arrays and ranges of such types included. The form of a
    /// user-defined type may mean nothing on another server; `status` names the
    /// column that is in the way. The first copy decides table by table.
    #[arg(long, value_enum, default_value = "auto", value_name = "MODE")]
    pub(crate) binary: Binary,

    /// Receive large transactions while they are still open
    ///
    /// They are kept in a spool on disk until the source commits or aborts
    /// them, instead of the source spilling them to its own disk.
    #[arg(long, default_value = "on", default_missing_value = "on", num_args = 0..=1, value_name = "on|off")]
    pub(crate) streaming: OnOff,

    /// Which changes to apply by their origin: `any`, or `none` for only
    /// those that did not come to the source by replication
    ///
    /// `none` keeps two databases that follow each other from looping.
    #[arg(long, value_enum, default_value = "any", value_name = "ORIGIN")]
    pub(crate) origin: Origin,

    /// Longest time between two reports of our position to the source
    ///
    /// 0 sends a report only when the source asks for one.
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    pub(crate) wal_receiver_status_interval: Seconds,

    /// Give up a connection to the source that has been silent for this long
    ///
    /// Also one to the target, if its backend waits for us meanwhile; one that
    /// waits for a lock is waited for. With `wal_stream = off`: so long a
    /// segment of the archive may be wrong although others follow. 0 waits for
    /// ever.
    #[arg(long, default_value = "60s", value_name = "DURATION")]
    pub(crate) wal_receiver_timeout: Milliseconds,

    /// Wait this long before trying again after an error
    #[arg(long, default_value = "5s", value_name = "DURATION")]
    pub(crate) wal_retrieve_retry_interval: Milliseconds,

    /// Look this often for tables added to the publication or dropped from it
    ///
    /// A table that was added is copied while the others go on, if the target
    /// has an empty table of its name. 0 looks only when `pgsluice refresh`
    /// asks for it.
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    pub(crate) refresh_interval: Milliseconds,

    /// What becomes of a table when the source has another of its name: `leave_out`
    /// or `copy`
    ///
    /// It was dropped and made again, or another was renamed to its name. Nothing
    /// of that one is applied to the old one's rows. `leave_out` says so, goes on
    /// with the other tables, and waits until somebody has removed the target's
    /// rows; `copy` removes them and copies the table again, whatever `copy_data`
    /// says.
    #[arg(long, value_enum, default_value = "leave_out", value_name = "WHAT")]
    pub(crate) on_table_replaced: OnTableReplaced,

    /// With source_mode = wal, read WAL that the source has removed from here
    ///
    /// A directory that the source's archive_command or pg_receivewal fills,
    /// compressed by gzip, lz4 or zstd or not at all. Where it is given, a slot
    /// that has lost WAL (max_slot_wal_keep_size) is made anew, and what is
    /// missing comes from the archive.
    #[arg(long, value_name = "DIR")]
    pub(crate) wal_archive: Option<PathBuf>,

    /// With source_mode = wal, have the source send its WAL, through a slot
    ///
    /// `off`: all WAL comes from wal_archive, which is followed as it grows,
    /// with files that pg_receivewal is still writing (.partial). The source
    /// has then no slot, and no walsender once it has begun. It can be set and
    /// unset at any start.
    #[arg(long, default_value = "on", default_missing_value = "on", num_args = 0..=1, value_name = "on|off")]
    pub(crate) wal_stream: OnOff,

    /// With source_mode = wal, decode WAL only once these standbys have it
    ///
    /// Physical replication slots on the source, of the standbys that may take
    /// its place; may be given more than once. Nothing is applied, or copied,
    /// that one of them has not flushed, so that a failover to it can be
    /// followed. With `logical` it is the source's own setting of that name
    /// (17 and later).
    #[arg(long, value_name = "SLOT", value_delimiter = ',')]
    pub(crate) synchronized_standby_slots: Vec<String>,

    /// With source_mode = wal, compare the catalogs this often with the source's
    ///
    /// They are followed through the WAL and compared, row by row, at each
    /// start and then this often; what differs stops the subscription. It
    /// costs the source a read of its catalogs. 0 compares at starts only.
    #[arg(long, default_value = "1h", value_name = "DURATION")]
    pub(crate) catalog_check_interval: Milliseconds,
}

/// The first copy.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "First copy")]
pub(crate) struct FirstCopy {
    /// Copy the rows that are in the published tables at the start
    ///
    /// `off` starts with the changes that come after the slot's creation.
    #[arg(long, default_value = "on", default_missing_value = "on", num_args = 0..=1, value_name = "on|off")]
    pub(crate) copy_data: OnOff,

    /// Create the source's schema on a target that has none of the published
    /// tables
    ///
    /// By `pg_dump`: the whole schema of the source's database but its
    /// publications and subscriptions. Tables come before the copy; indexes,
    /// constraints and triggers after it, over as many connections as copy
    /// tables. Owners and privileges are kept if the target has all their
    /// roles.
    #[arg(long, default_value = "off", default_missing_value = "on", num_args = 0..=1, value_name = "on|off")]
    pub(crate) create_schema: OnOff,

    /// The `pg_dump` that reads the schema (default: the first in PATH or
    /// below /usr/lib/postgresql that is not older than the source)
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) pg_dump: Option<PathBuf>,

    /// Connections that copy tables at the same time
    #[arg(long, default_value = "4", value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) max_sync_workers_per_subscription: u16,

    /// Tables larger than this are copied in ranges of about this size by
    /// several connections
    #[arg(long, default_value = "256MB", value_name = "SIZE")]
    pub(crate) copy_split_bytes: Bytes,
}

/// Writing to the target.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Apply")]
pub(crate) struct Apply {
    /// `synchronous_commit` of the sessions that write to the target
    ///
    /// `off` loses nothing: only what the target has flushed is confirmed to
    /// the source.
    #[arg(long, value_enum, default_value = "off", value_name = "LEVEL")]
    pub(crate) synchronous_commit: SynchronousCommit,

    /// Disable the subscription when a transaction cannot be applied, instead
    /// of trying again
    #[arg(long, default_value = "off", default_missing_value = "on", num_args = 0..=1, value_name = "on|off")]
    pub(crate) disable_on_error: OnOff,

    /// Most rows to write as one batch
    ///
    /// While the target keeps up, each transaction is written by itself,
    /// whatever this is. While it is behind, changes are folded as they come:
    /// a row that changes a hundred times is one row to write.
    #[arg(long, default_value = "100000", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch_rows_max: u32,

    /// Most bytes to write as one batch
    ///
    /// Memory holds about two and a half times as much; the changes as they
    /// came wait in `spool_dir` until the batch is committed, at most 1 GB.
    #[arg(long, default_value = "64MB", value_name = "SIZE")]
    pub(crate) batch_bytes_max: Bytes,

    /// Which pages of the target are read before changes are applied (default:
    /// off)
    ///
    /// `identity` reads the replica identity's index and heap pages of rows
    /// that are updated or deleted; `all` besides them the leaf page of every
    /// B-tree that a change enters. It pauses by itself while what it would
    /// read is in memory.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) prefetch: Option<Prefetch>,

    /// Another way to say `prefetch`: `on` for `identity`, `off` for `all`
    #[arg(long, default_missing_value = "on", num_args = 0..=1, value_name = "on|off")]
    pub(crate) prefetch_replica_identity_only: Option<OnOff>,

    /// Connections that read pages of the target ahead (default: 8, or a
    /// quarter of the connections that are left on the target if that is less)
    ///
    /// 0 reads nothing ahead.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) max_parallel_prefetch_workers_per_subscription: Option<u16>,

    /// Sessions that apply to the target at the same time
    ///
    /// More than one helps where the target waits for its storage or has
    /// cores to spare, and only while it is behind: what is independent of all
    /// before it is executed early, what is not waits, and commits keep the
    /// source's order. Each has a replication origin of its own, which takes
    /// one of the target's `max_replication_slots` (from 18 on
    /// `max_active_replication_origins`) until the subscription is dropped.
    /// If the target has no room for all, fewer apply.
    #[arg(long, default_value = "1", value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) max_parallel_apply_workers_per_subscription: u16,

    /// Whether transactions become visible on the target in the source's order
    ///
    /// `relaxed` lets one that is independent of all before it commit before
    /// them, so that a large one does not delay those behind it; what depends
    /// on an earlier one still comes after it. Readers of the target may then
    /// see states that the source was never in. It needs more than one apply
    /// worker; a transaction larger than a batch waits whole in a file of the
    /// spool directory.
    #[arg(long, value_enum, default_value = "preserve", value_name = "ORDER")]
    pub(crate) commit_order: CommitOrder,

    /// Keep the commit time of each transaction on the target, for which each
    /// of the source becomes one of the target
    ///
    /// `auto` does so while the target has `track_commit_timestamp = on`.
    /// Without it transactions that wait are written as one, which is several
    /// times as fast; their rows then have the commit time of the last.
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN")]
    pub(crate) keep_commit_timestamps: KeepCommitTimestamps,

    /// Run even if the target's role may not set session_replication_role
    ///
    /// Then the target's ordinary triggers and foreign keys act on replicated
    /// rows as they act on an application's.
    #[arg(long, default_value = "off", default_missing_value = "on", num_args = 0..=1, value_name = "on|off")]
    pub(crate) allow_triggers: OnOff,
}

/// The process as a whole; in the file these stand at the top level only.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Process")]
pub(crate) struct Process {
    /// Serve Prometheus metrics at http://ADDRESS/metrics
    ///
    /// An IP address and a port: 127.0.0.1:9187, or 0.0.0.0:9187 for every
    /// address. Off unless set.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<SocketAddr>,

    /// Form of the log on stderr
    #[arg(long, value_enum, default_value = "text", value_name = "FORM")]
    pub(crate) log_format: LogFormat,

    /// Least severe messages logged: error, warn, info, debug or trace, also
    /// per module as in `info,apply=debug`
    #[arg(long, default_value = "info", value_name = "LEVEL")]
    pub(crate) log_level: String,
}

/// See [`Stream::source_mode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SourceMode {
    Logical,
    Wal,
}

/// See [`Stream::binary`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Binary {
    Auto,
    On,
    Off,
}

/// See [`Stream::origin`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Origin {
    Any,
    None,
}

/// See [`Stream::on_table_replaced`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum OnTableReplaced {
    LeaveOut,
    Copy,
}

/// See [`Apply::synchronous_commit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum SynchronousCommit {
    Off,
    Local,
    RemoteWrite,
    On,
    RemoteApply,
}

/// See [`Apply::keep_commit_timestamps`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeepCommitTimestamps {
    Auto,
    On,
    Off,
}

/// See [`Apply::prefetch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Prefetch {
    Off,
    Identity,
    All,
}

/// See [`Apply::commit_order`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CommitOrder {
    Preserve,
    Relaxed,
}

/// See [`Process::log_format`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

impl Table {
    /// The table as a command line of its own.
    fn command() -> Command {
        Table::augment_args(Command::new("settings").no_binary_name(true).disable_help_flag(true))
    }

    /// Reads `words`, flags and their values, filling in the defaults.
    pub(crate) fn read(words: impl IntoIterator<Item = OsString>) -> Result<Table, clap::Error> {
        Table::from_arg_matches(&Table::command().try_get_matches_from(words)?)
    }
}

/// One row of the table, read back from clap.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// The field's name, which is also the file key.
    pub(crate) key: String,
    /// Heading of its group.
    pub(crate) group: String,
    /// The value's placeholder in help.
    pub(crate) value_name: String,
    /// Default as written, if there is a fixed one.
    pub(crate) default: Option<String>,
    /// Unit of a bare number.
    pub(crate) unit: Option<&'static str>,
    /// Allowed words, if the value is one of a few.
    pub(crate) words: Vec<String>,
    /// More than one value may be given.
    pub(crate) many: bool,
    /// The doc comment.
    pub(crate) meaning: String,
}

impl Setting {
    /// The whole table in its order.
    pub(crate) fn all() -> Vec<Setting> {
        Table::command().get_arguments().map(Setting::from_arg).collect()
    }

    fn from_arg(arg: &Arg) -> Setting {
        let parser = arg.get_value_parser().type_id();
        let unit = if parser == TypeId::of::<Seconds>() {
            Some("s")
        } else if parser == TypeId::of::<Milliseconds>() {
            Some("ms")
        } else if parser == TypeId::of::<Bytes>() {
            Some("B")
        } else {
            None
        };
        Setting {
            key: arg.get_id().to_string(),
            group: arg.get_help_heading().unwrap_or_default().to_owned(),
            value_name: arg.get_value_names().map(|names| names.concat()).unwrap_or_default(),
            default: arg.get_default_values().first().map(|value| value.to_string_lossy().into_owned()),
            unit,
            words: arg.get_possible_values().iter().map(|word| word.get_name().to_owned()).collect(),
            many: matches!(arg.get_action(), ArgAction::Append),
            meaning: arg
                .get_long_help()
                .or_else(|| arg.get_help())
                .map(ToString::to_string)
                .unwrap_or_default(),
        }
    }

    /// `--wal-receiver-timeout`
    pub(crate) fn flag(&self) -> String {
        format!("--{}", self.key.replace('_', "-"))
    }

    /// `PGSLUICE_WAL_RECEIVER_TIMEOUT`
    pub(crate) fn variable(&self) -> String {
        format!("PGSLUICE_{}", self.key.to_ascii_uppercase())
    }

    /// Where in the file it may stand.
    pub(crate) fn place(&self) -> Place {
        match self.key.as_str() {
            "config" => Place::Nowhere,
            "state_dir" | "metrics" | "log_format" | "log_level" => Place::TopLevel,
            "subscription" => Place::Name,
            _ => Place::Anywhere,
        }
    }
}

/// Where in the configuration file a setting may stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// It names the file itself.
    Nowhere,
    /// It is the process's, not a subscription's.
    TopLevel,
    /// `name` inside a `[[subscription]]` table, or `subscription` at the top
    /// level of a file without such tables.
    Name,
    /// At the top level for every subscription, or in one's table.
    Anywhere,
}

/// Adds the names of file key and variable to the long help of every setting
/// in `command` and its subcommands.
pub(crate) fn with_other_names(command: Command) -> Command {
    let table = Setting::all();
    command.mut_subcommands(|command| annotated(command, &table))
}

fn annotated(command: Command, table: &[Setting]) -> Command {
    command
        .mut_args(|arg| match table.iter().find(|setting| setting.key == arg.get_id().as_str()) {
            Some(setting) if arg.get_long() == Some(&setting.flag()[2..]) => {
                let key = match setting.place() {
                    Place::Nowhere => String::new(),
                    _ => format!(" [file: {}]", setting.key),
                };
                arg.long_help(format!("{}\n\n[env: {}]{key}", setting.meaning, setting.variable()))
            }
            _ => arg,
        })
        .mut_subcommands(|command| annotated(command, table))
}
