//! The settings, in one table.
//!
//! Every setting is one field here. The file key is the field's name. The flag is the same name
//! with dashes. The environment variable is the name in capitals after `PGSLUICE_`. The doc comment
//! is the documentation. `--help`, the man page, completions and the configuration reference all
//! come from this table. `config` fills the table from flags, environment, file and defaults.
//!
//! A setting that exists in PostgreSQL keeps PostgreSQL's name, unit and default. The type of a
//! field has the unit of a bare number (`units`).
//!
//! Two things do not belong here: where a value comes from (`config`), and what a setting does
//! (`engine::Settings` receives the result).

mod relay;

use std::any::TypeId;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Args, Command, FromArgMatches, ValueEnum};

use crate::conflict_rule::ConflictRule;
use crate::units::{Bytes, MegabytesMax, Milliseconds, OnOff, Seconds};

pub(crate) use relay::{RelayPlace, RelayTable};

/// All settings.
#[derive(Debug, Clone, Args)]
pub(crate) struct SettingsTable {
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
    pub(crate) conflicts: Conflicts,
    #[command(flatten)]
    pub(crate) process: Process,
}

/// Which subscription a command is about. Every command has these.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Subscription")]
pub(crate) struct Which {
    /// Configuration file, in TOML
    ///
    /// Top-level keys are settings for every subscription. Each `[[subscription]]` table describes
    /// one subscription, with its `name` and any setting. A flag overrides the environment, and the
    /// environment overrides the file.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Name of the subscription (default: the first publication's name)
    ///
    /// The slot on the source is `pgsluice_NAME`. The replication origins on the target are
    /// `pgsluice_NAME_0` and so on. A name has lower-case letters, digits and underscores. If the
    /// file has several subscriptions, this chooses one of them. Inside a `[[subscription]]` table
    /// the key is `name`.
    #[arg(long, value_name = "NAME")]
    pub(crate) subscription: Option<String>,

    /// Directory for locks, control sockets and spooled transactions (default:
    /// $XDG_STATE_HOME/pgsluice, or ~/.local/state/pgsluice)
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// The two servers. Commands that read them have these.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Servers")]
pub(crate) struct Ends {
    /// Source database: a connection string or URI as libpq reads it
    ///
    /// Options that it leaves out come from the PG* variables, the service file and ~/.pgpass. Keep
    /// the password in one of these: other users of this machine can read command lines and, on
    /// some systems, environments.
    #[arg(long, value_name = "CONNINFO")]
    pub(crate) source: Option<String>,

    /// Target database: a connection string or URI as libpq reads it
    ///
    /// Keep its password in ~/.pgpass too.
    #[arg(long, value_name = "CONNINFO")]
    pub(crate) target: Option<String>,
}

/// What pgsluice reads from the source, and how.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Stream")]
pub(crate) struct Stream {
    /// Publication on the source to subscribe to; may be given more than once
    ///
    /// In the file it is a list. In the environment, commas separate the names.
    #[arg(long, value_name = "NAME")]
    pub(crate) publication: Vec<String>,

    /// How to read changes: `logical` from a slot with pgoutput, `wal` by decoding physical WAL
    ///
    /// With `wal` the source only sends bytes from a physical slot, for all its databases. `wal`
    /// needs a primary, full_page_writes and a database in UTF8. The state directory then holds the
    /// catalogs as they were, so it must not get lost.
    #[arg(long, value_enum, default_value = "logical", value_name = "MODE")]
    pub(crate) source_mode: SourceMode,

    /// Ask for values in binary form
    ///
    /// `auto` asks for it if every published column has the same built-in type on both ends; arrays
    /// and ranges of such types count as built-in. The form of a user-defined type may mean nothing
    /// on another server; `status` names the column that prevents binary. The first copy decides
    /// for each table.
    #[arg(long, value_enum, default_value = "auto", value_name = "MODE")]
    pub(crate) binary: Binary,

    /// Receive large transactions while they are still open
    ///
    /// pgsluice keeps them in a spool on disk until the source commits or aborts them. Otherwise
    /// the source spills them to its own disk.
    #[arg(long, default_value = "on", default_missing_value = "on", num_args = 0..=1, value_name = "on|off")]
    pub(crate) streaming: OnOff,

    /// Which changes to apply by their origin: `any` for all, or `none` for only those that did not
    /// come to the source by replication
    ///
    /// `none` keeps changes from going round between two databases that follow each other.
    #[arg(long, value_enum, default_value = "any", value_name = "ORIGIN")]
    pub(crate) origin: Origin,

    /// Longest time between two reports of pgsluice's position to the source
    ///
    /// With 0, pgsluice reports only when the source asks.
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    pub(crate) wal_receiver_status_interval: Seconds,

    /// Give up a connection to the source that has been silent for this long
    ///
    /// This also holds for a connection to the target whose backend waits for pgsluice. A backend
    /// that waits for a lock may take any time. With `wal_stream = off`, a segment of the archive
    /// may stay damaged or incomplete for this long although later ones are there. 0 waits without
    /// limit.
    #[arg(long, default_value = "60s", value_name = "DURATION")]
    pub(crate) wal_receiver_timeout: Milliseconds,

    /// Wait this long before trying again after an error
    #[arg(long, default_value = "5s", value_name = "DURATION")]
    pub(crate) wal_retrieve_retry_interval: Milliseconds,

    /// Look this often for tables added to the publication or dropped from it
    ///
    /// pgsluice copies an added table while the others continue, if the target has an empty table
    /// with its name. With 0, it looks only when `pgsluice refresh` asks.
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    pub(crate) refresh_interval: Milliseconds,

    /// What to do with a table when the source has another table with its name: `leave_out` or
    /// `copy`
    ///
    /// The source's table was dropped and created again, or another was renamed to its name.
    /// pgsluice applies no change of the new table to the rows of the old one. `leave_out` reports
    /// it, continues with the other tables, and waits until somebody has removed the target's rows.
    /// `copy` removes the rows and copies the table again, even with `copy_data = off`.
    #[arg(long, value_enum, default_value = "leave_out", value_name = "WHAT")]
    pub(crate) on_table_replaced: OnTableReplaced,

    /// With source_mode = wal, read WAL that the source has removed from this directory
    ///
    /// The source's archive_command or pg_receivewal fills it. Files may be uncompressed, or
    /// compressed with gzip, lz4 or zstd. If the setting is given and the slot has lost WAL
    /// (max_slot_wal_keep_size), pgsluice creates the slot again and reads the missing WAL here.
    #[arg(long, value_name = "DIR")]
    pub(crate) wal_archive: Option<PathBuf>,

    /// With source_mode = wal, have the source send its WAL, through a slot
    ///
    /// With `off`, all WAL comes from wal_archive. pgsluice follows the archive as it grows,
    /// including the files that pg_receivewal is still writing (.partial). The source then has no
    /// slot, and after the start no walsender. The setting may change at any start.
    #[arg(long, default_value = "on", default_missing_value = "on", num_args = 0..=1, value_name = "on|off")]
    pub(crate) wal_stream: OnOff,

    /// With source_mode = wal, decode WAL only once these standbys have it
    ///
    /// These are physical replication slots on the source, of the standbys that may replace it; may
    /// be given more than once. pgsluice applies and copies only what all of them have flushed, so
    /// it can follow a failover to any of them. With `logical`, use the source's own setting with
    /// this name (17 and later).
    #[arg(long, value_name = "SLOT", value_delimiter = ',')]
    pub(crate) synchronized_standby_slots: Vec<String>,

    /// With source_mode = wal, compare the catalogs this often with the source's
    ///
    /// pgsluice follows the catalogs through the WAL. It compares them row by row with the source's
    /// at each start, and then at this interval. A difference stops the subscription. Each
    /// comparison makes the source read its catalogs. With 0, pgsluice compares at starts only.
    #[arg(long, default_value = "1h", value_name = "DURATION")]
    pub(crate) catalog_check_interval: Milliseconds,
}

/// The first copy.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "First copy")]
pub(crate) struct FirstCopy {
    /// Copy the rows that are in the published tables at the start
    ///
    /// `off` starts with the changes after the slot's creation.
    #[arg(long, default_value = "on", default_missing_value = "on", num_args = 0..=1, value_name = "on|off")]
    pub(crate) copy_data: OnOff,

    /// Create the source's schema on a target that has none of the published tables
    ///
    /// `pg_dump` reads the whole schema of the source's database, except publications and
    /// subscriptions. pgsluice creates tables before the copy, and indexes, constraints and
    /// triggers after it, over as many connections as copy tables. It keeps owners and privileges
    /// if the target has all their roles.
    #[arg(long, default_value = "off", default_missing_value = "on", num_args = 0..=1, value_name = "on|off")]
    pub(crate) create_schema: OnOff,

    /// The `pg_dump` that reads the schema (default: the first in PATH or below /usr/lib/postgresql
    /// that is not older than the source)
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) pg_dump: Option<PathBuf>,

    /// Connections that copy tables at the same time
    #[arg(long, default_value = "4", value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) max_sync_workers_per_subscription: u16,

    /// Copy tables larger than this in ranges of about this size, over several connections
    #[arg(long, default_value = "256MB", value_name = "SIZE")]
    pub(crate) copy_split_bytes: Bytes,
}

/// Writing to the target.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Apply")]
pub(crate) struct Apply {
    /// `synchronous_commit` of the sessions that write to the target
    ///
    /// `off` loses nothing: pgsluice confirms to the source only what the target has flushed.
    #[arg(long, value_enum, default_value = "off", value_name = "LEVEL")]
    pub(crate) synchronous_commit: SynchronousCommit,

    /// Disable the subscription when a transaction cannot be applied, instead of trying again
    #[arg(long, default_value = "off", default_missing_value = "on", num_args = 0..=1, value_name = "on|off")]
    pub(crate) disable_on_error: OnOff,

    /// Largest number of rows to write as one batch
    ///
    /// While the target keeps up, pgsluice writes each transaction by itself, whatever this value
    /// is. While the target is behind, pgsluice folds changes as they come: a row that changes a
    /// hundred times is one row to write.
    #[arg(long, default_value = "100000", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch_rows_max: u32,

    /// Largest number of bytes to write as one batch
    ///
    /// A batch takes about two and a half times as much memory. The changes as they came wait in
    /// the spool directory until the batch is committed, at most 1 GB.
    #[arg(long, default_value = "64MB", value_name = "SIZE")]
    pub(crate) batch_bytes_max: Bytes,

    /// Which pages of the target to read before changes are applied (default: off)
    ///
    /// `identity` reads the replica identity's index pages and heap pages of rows that are updated
    /// or deleted. `all` also reads the leaf page of every B-tree that a change enters. Reading
    /// pauses by itself while those pages are in memory.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) prefetch: Option<Prefetch>,

    /// Another way to set `prefetch`: `on` for `identity`, `off` for `all`
    #[arg(long, default_missing_value = "on", num_args = 0..=1, value_name = "on|off")]
    pub(crate) prefetch_replica_identity_only: Option<OnOff>,

    /// Connections that read pages of the target ahead (default: 8, or a quarter of the target's
    /// free connections if that is less)
    ///
    /// With 0, pgsluice reads nothing ahead.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) max_parallel_prefetch_workers_per_subscription: Option<u16>,

    /// Sessions that apply to the target at the same time
    ///
    /// More than one helps only while the target is behind, and where it waits for its storage or
    /// has free cores. Transactions that depend on no earlier one then execute early, and the
    /// others wait. Commits keep the source's order. Each session has a replication origin, which
    /// takes one of the target's `max_replication_slots` (from 18 on
    /// `max_active_replication_origins`) until the subscription is dropped. If the target has no
    /// room for all sessions, fewer apply.
    ///
    /// Without a value, there is one; with `commit_order = relaxed`, there are two.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) max_parallel_apply_workers_per_subscription: Option<u16>,

    /// Whether transactions become visible on the target in the source's order
    ///
    /// With `relaxed`, a transaction that depends on no earlier one may commit before them, so a
    /// large transaction does not delay those after it. A transaction that depends on an earlier
    /// one still commits after it. Readers of the target may then see states that the source was
    /// never in. `relaxed` needs more than one apply worker, and has two unless you ask for more. A
    /// transaction larger than a batch waits as a whole in a file of the spool directory.
    #[arg(long, value_enum, default_value = "preserve", value_name = "ORDER")]
    pub(crate) commit_order: CommitOrder,

    /// Keep the commit time of each transaction on the target, by committing each of the source's
    /// transactions by itself
    ///
    /// `auto` does so while the target has `track_commit_timestamp = on`. Otherwise pgsluice writes
    /// waiting transactions as one, which is several times as fast. Their rows then have the commit
    /// time of the last transaction.
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN")]
    pub(crate) keep_commit_timestamps: KeepCommitTimestamps,

    /// Run even if the target's role may not set session_replication_role
    ///
    /// The target's ordinary triggers and foreign keys then fire for replicated rows, as they do
    /// for an application's rows.
    #[arg(long, default_value = "off", default_missing_value = "on", num_args = 0..=1, value_name = "on|off")]
    pub(crate) allow_triggers: OnOff,
}

/// What becomes of conflicts.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Conflicts")]
pub(crate) struct Conflicts {
    /// What to do about one type of conflict; may be given more than once
    ///
    /// `TYPE=RESOLUTION` holds for every table, `TYPE=RESOLUTION:SCHEMA.TABLE` for one. Types are
    /// PostgreSQL's, such as `insert_exists`. Resolutions are `error`, `skip`, `apply_remote`,
    /// `keep_local`, `last_update_wins` and `first_update_wins`. A type without a rule is treated
    /// as native apply treats it. In the file, each rule may also be a table
    /// `[[subscription.conflict]]` with `type`, `resolution` and perhaps `table`. A rule that
    /// compares commit times, or is about rows that another origin wrote, needs
    /// `track_commit_timestamp = on` on the target.
    #[arg(long, value_name = "TYPE=RESOLUTION", value_delimiter = ',')]
    pub(crate) conflict: Vec<ConflictRule>,

    /// Report rows that somebody else wrote last as update_origin_differs and delete_origin_differs
    ///
    /// Like native apply, pgsluice finds such rows only while the target has
    /// `track_commit_timestamp = on`. With `off`, it looks for them only if a rule for conflicts
    /// needs to know who wrote a row.
    #[arg(long, default_value = "on", default_missing_value = "on", num_args = 0..=1, value_name = "on|off")]
    pub(crate) detect_origin_differs: OnOff,

    /// Hold a transaction at most this long for the target's clock to pass its commit time
    ///
    /// Only where a conflict rule compares commit times. A commit time that is further ahead of the
    /// target's clock is an error, which is tried again. A copy waits as long for the source's
    /// clock. With 0, there is no limit.
    #[arg(long, default_value = "30s", value_name = "DURATION")]
    pub(crate) clock_skew_max: Milliseconds,

    /// Remove conflicts from the history on the target when they are older than this
    #[arg(long, default_value = "30d", value_name = "DURATION")]
    pub(crate) conflict_history_age: Seconds,

    /// Largest number of conflicts that the history on the target keeps; the oldest go first
    ///
    /// 0 keeps none.
    #[arg(long, default_value = "1000000", value_name = "COUNT")]
    pub(crate) conflict_history_rows: u64,

    /// Record and log the key and the rows of each conflict
    ///
    /// The history on the target, the log and `status` then show values of rows: the key, the
    /// target's row, the source's row and the replica identity. `pgsluice conflicts` needs them to
    /// print the SQL that undoes what was decided. While it is off, they show no value, not even of
    /// a key.
    #[arg(long, default_value = "off", default_missing_value = "on", num_args = 0..=1, value_name = "on|off")]
    pub(crate) conflict_log_values: OnOff,

    /// Remember which rows the target lost, and report an UPDATE of one of them as update_deleted
    ///
    /// Deletions are captured from the target's own WAL, through a replication slot there. That
    /// needs `wal_level = logical` on the target and a role that may replicate. Nothing is kept in
    /// the target's tables. `detect_update_deleted` is another name of the setting, as a flag, as a
    /// variable and in the file.
    #[arg(
        long,
        alias = "detect-update-deleted",
        default_value = "off",
        default_missing_value = "on",
        num_args = 0..=1,
        value_name = "on|off"
    )]
    pub(crate) retain_dead_tuples: OnOff,

    /// Forget deletions that were captured longer ago than this, even if an UPDATE may need them
    ///
    /// With 0, only retention_size_max limits how long they are remembered.
    #[arg(long, default_value = "0", value_name = "DURATION")]
    pub(crate) max_retention_duration: Milliseconds,

    /// Look for deletions that no UPDATE needs any more each time this has passed
    ///
    /// 0 looks every 100 ms while rows are deleted, and ever less often while none are, up to
    /// wal_receiver_status_interval. No interval is longer than max_retention_duration. The target
    /// keeps no dead rows in any case, so a long interval costs memory and disk of pgsluice only.
    #[arg(long, default_value = "0", value_name = "DURATION")]
    pub(crate) retention_interval: Milliseconds,

    /// Largest size of the file that remembers deletions
    ///
    /// Half of it is for deletions, about 45 bytes each; the oldest are forgotten first. The file
    /// may be 16 MB in any case.
    #[arg(long, default_value = "1GB", value_name = "SIZE")]
    pub(crate) retention_size_max: Bytes,
}

/// The process as a whole; in the file these stand at the top level only.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Process")]
pub(crate) struct Process {
    /// Serve Prometheus metrics at http://ADDRESS/metrics
    ///
    /// ADDRESS is an IP address and a port: 127.0.0.1:9187, or 0.0.0.0:9187 for every address. Off
    /// unless set.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<SocketAddr>,

    #[command(flatten)]
    pub(crate) log: Log,
}

/// What a process tells of itself.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Process")]
pub(crate) struct Log {
    /// Form of the log on stderr
    #[arg(long, value_enum, default_value = "text", value_name = "FORM")]
    pub(crate) log_format: LogFormat,

    /// Least severe messages to log: error, warn, info, debug or trace, also per module as in
    /// `info,apply=debug`
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

/// See [`Log::log_format`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

impl SettingsTable {
    /// The table as a command line of its own.
    fn command() -> Command {
        SettingsTable::augment_args(Command::new("settings").no_binary_name(true).disable_help_flag(true))
    }

    /// Reads `words`, flags and their values, filling in the defaults.
    pub(crate) fn read(words: impl IntoIterator<Item = OsString>) -> Result<SettingsTable, clap::Error> {
        SettingsTable::from_arg_matches(&SettingsTable::command().try_get_matches_from(words)?)
    }
}

/// One row of the table, as clap has it.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// The field's name, which is also the file key.
    pub(crate) key: String,
    /// Other names of it, as file keys.
    pub(crate) aliases: Vec<String>,
    /// Heading of its group.
    pub(crate) group: String,
    /// The value's placeholder in help.
    pub(crate) value_name: String,
    /// Default as written, if there is a fixed one.
    pub(crate) default: Option<String>,
    /// Unit of a bare number.
    pub(crate) unit: Option<&'static str>,
    /// Allowed words, if the value must be one of them.
    pub(crate) words: Vec<String>,
    /// Whether more than one value may be given.
    pub(crate) many: bool,
    /// The doc comment.
    pub(crate) meaning: String,
}

impl Setting {
    /// The whole table in its order.
    pub(crate) fn all() -> Vec<Setting> {
        SettingsTable::command().get_arguments().map(Setting::from_arg).collect()
    }

    /// The table of a relay, which has a file of its own.
    pub(crate) fn of_relay() -> Vec<Setting> {
        RelayTable::command().get_arguments().map(Setting::from_arg).collect()
    }

    fn from_arg(arg: &Arg) -> Setting {
        let parser = arg.get_value_parser().type_id();
        let unit = if parser == TypeId::of::<Seconds>() {
            Some("s")
        } else if parser == TypeId::of::<Milliseconds>() {
            Some("ms")
        } else if parser == TypeId::of::<Bytes>() {
            Some("B")
        } else if parser == TypeId::of::<MegabytesMax>() {
            Some("MB")
        } else {
            None
        };
        Setting {
            key: arg.get_id().to_string(),
            aliases: arg
                .get_all_aliases()
                .unwrap_or_default()
                .iter()
                .map(|own| own.replace('-', "_"))
                .collect(),
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
        flag_of(&self.key)
    }

    /// `PGSLUICE_WAL_RECEIVER_TIMEOUT`
    pub(crate) fn variable(&self) -> String {
        variable_of(&self.key)
    }

    /// The variable, and those of the other names.
    pub(crate) fn variables(&self) -> Vec<String> {
        std::iter::once(&self.key).chain(&self.aliases).map(|name| variable_of(name)).collect()
    }

    /// Where in the file the setting may stand.
    pub(crate) fn place(&self) -> Place {
        match self.key.as_str() {
            "config" => Place::Nowhere,
            "state_dir" | "metrics" | "log_format" | "log_level" => Place::TopLevel,
            "subscription" => Place::Name,
            _ => Place::Anywhere,
        }
    }
}

fn flag_of(name: &str) -> String {
    format!("--{}", name.replace('_', "-"))
}

fn variable_of(name: &str) -> String {
    format!("PGSLUICE_{}", name.to_ascii_uppercase())
}

/// Where in the configuration file a setting may stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// It names the file itself.
    Nowhere,
    /// The setting belongs to the process, not to a subscription.
    TopLevel,
    /// `name` inside a `[[subscription]]` table, or `subscription` at the top
    /// level of a file without such tables.
    Name,
    /// At the top level for every subscription, or in the table of one.
    Anywhere,
}

/// Adds the file key and the variable to the long help of every setting in `command` and its
/// subcommands.
pub(crate) fn with_other_names(command: Command) -> Command {
    let (table, of_relay) = (Setting::all(), Setting::of_relay());
    command.mut_subcommands(|command| match command.get_name() {
        "relay" | "user" => annotated(command, &of_relay),
        _ => annotated(command, &table),
    })
}

/// The error about a flag that was given twice. If the flag has two names, the user may not know
/// that both are one setting, so the error says it.
pub(crate) fn with_both_names(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(twice)) = error.get(ContextKind::InvalidArg) else { return error };
    let is_it = |setting: &Setting| twice.split(' ').next() == Some(setting.flag().as_str());
    let found = Setting::all().into_iter().find(|setting| !setting.aliases.is_empty() && is_it(setting));
    if let Some(setting) = found.filter(|_| error.kind() == ErrorKind::ArgumentConflict) {
        let others: Vec<String> = setting.aliases.iter().map(|name| flag_of(name)).collect();
        let tip = format!("{} and {} are one setting: give it once", setting.flag(), others.join(", "));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// How to write a duration and a size, below the options of each command that takes one.
const UNITS: &str = "\
DURATION  a number with us, ms, s, min, h or d, such as 90s or 1.5min
SIZE      a number with B, kB, MB, GB or TB, such as 64MB; a kB has 1024 bytes

A number without a unit counts what `pgsluice config-reference` says for the setting;
--timeout and --snapshot-max then count seconds, --chunk-bytes counts bytes.";

fn annotated(command: Command, table: &[Setting]) -> Command {
    let has_unit = command
        .get_arguments()
        .filter_map(clap::Arg::get_value_names)
        .flatten()
        .any(|name| matches!(name.as_str(), "DURATION" | "SIZE"));
    let command = if has_unit { command.after_help(UNITS) } else { command };
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
