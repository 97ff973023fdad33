//! The command line: one subcommand, one file in `command`.

use base::Lsn;
use clap::{Args, Parser, Subcommand};
use conflict::{ConflictType, Resolution};

use crate::both_ways::{BothWays, BothWaysPublished};
use crate::conflict_rule::table_name;
use crate::exit;
use crate::settings::{Ends, RelayPlace, RelayTable, SettingsTable, Which};
use crate::units::{Bytes, Seconds};

/// Logical replication for stock PostgreSQL: copy, stream, apply
///
/// Copies the tables of a publication from one PostgreSQL server to another, and keeps the copy up
/// to date. It needs no extension and no patch on either server.
#[derive(Debug, Parser)]
#[command(name = "pgsluice", version, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands of pgsluice.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Copy, then stream and apply changes until stopped
    ///
    /// SIGTERM or SIGINT makes it finish or roll back the current batch and end within 5 seconds. A
    /// second signal ends it at once. If the configuration file has several subscriptions, all of
    /// them run in this process, each on its own.
    Run(Box<RunArgs>),
    /// Take over a native subscription of the target, and continue as run does
    ///
    /// For a target that already has a CREATE SUBSCRIPTION, even one that is far behind. adopt
    /// disables it, takes over its slot and position, copies nothing, and continues from there as
    /// run does. It uses the native subscription's publications and options unless others are
    /// given. It also uses its source, if the target's role may read the connection string. After
    /// an interruption, repeat the command; later starts use run. release hands everything back.
    Adopt(Box<AdoptArgs>),
    /// Hand an adopted subscription back to native replication, and enable it there
    ///
    /// Stops the process that runs it on this machine. Moves the native subscription's position to
    /// exactly the place that pgsluice reached, gives it its slot again, and enables it. Removes
    /// what pgsluice stored on the target.
    Release(ReleaseArgs),
    /// List every reason why source and target would not work together
    ///
    /// Reads both servers and changes nothing: settings, limits, rights, publications, every
    /// published table. Each finding names its object and the remedy, as SQL where SQL can do it.
    /// check takes the settings of run, which starts with the same check. The exit code is 0 if
    /// there is nothing to do, 1 if there are warnings, 2 if replication cannot work.
    Check(Box<CheckArgs>),
    /// Show what a subscription is doing and how far behind it is
    ///
    /// Asks the running process. If none runs on this machine, reads the state on the target and
    /// the slot on the source. The exit code is 0 if the subscription runs here, and 5 if not.
    Status(StatusArgs),
    /// List the conflicts that were recorded on the target, or explain one
    ///
    /// Reads the target, whether the subscription runs or not. Lists the newest first. --id
    /// explains one conflict: who wrote what and when, what pgsluice did and why, and the SQL that
    /// would undo it. The SQL needs the rows' values, which pgsluice records only with
    /// --conflict-log-values.
    Conflicts(ConflictsArgs),
    /// Ask the running process to end, and wait until it has ended
    Stop(StopAllArgs),
    /// Add tables that were added to the publication, and leave out those that were dropped from it
    ///
    /// A running subscription looks at the publication every refresh_interval; refresh makes it
    /// look now. The command prints which tables are replicated, which are being copied while the
    /// others continue, and which cannot be replicated, with the reason. The exit code is 6 if
    /// there are any of these.
    Refresh(RefreshArgs),
    /// Skip one transaction that cannot be applied
    ///
    /// Like ALTER SUBSCRIPTION ... SKIP: skips the whole transaction, whatever else it changed. The
    /// error in the log names the transaction's commit LSN.
    Skip(SkipArgs),
    /// Allow run to empty tables and copy them again, after decoding of the source's WAL failed
    ///
    /// With source_mode = wal. Decoding fails if full_page_writes or wal_level was lowered, the
    /// database was moved, or the catalogs could not be followed. run then reads the catalogs again
    /// and continues by itself if no table was written meanwhile. If some were, it names them and
    /// stops. Once relook has allowed it, the next run copies these tables again, and the others
    /// continue.
    Relook(EndsArgs),
    /// Allow the subscription to run again
    Enable(EndsArgs),
    /// Stop the subscription and refuse to run it until it is enabled
    Disable(EndsArgs),
    /// Remove a subscription: its slot, replication origins and state on both servers
    ///
    /// The tables on the target and their rows stay. The command may be repeated: an object that is
    /// gone already is not an error. It refuses an adopted subscription, which release hands back.
    /// With --force it drops that subscription's slot too, and the native subscription stays
    /// disabled and without a slot.
    Drop(DropArgs),
    /// Compare sequences on both ends; with --apply set the target's to the source's
    ///
    /// Logical replication does not carry sequences. Run this with --apply after the source has
    /// stopped writing, before the target takes over.
    Sequences(SequencesArgs),
    /// Compare every published row on both ends
    ///
    /// Compares table by table, in chunks of the key, while replication continues. If pgsluice runs
    /// the subscription on this machine, verify asks it to pause for a moment. Both ends are then
    /// read in the same state, and every reported difference is real. Otherwise verify compares
    /// both ends as they are. It names differences by table, key and column. The exit code is 0 if
    /// the ends are equal, 6 if they differ, 1 if it cannot tell.
    Verify(VerifyArgs),
    /// Print what a range of WAL changed, without a slot or a server's help
    ///
    /// Reads segments from directories and files, plain or compressed with gzip, lz4 or zstd.
    /// Prints what committed: every change of every table, or the changes that publications
    /// publish. text has one line per change, with LSN, transaction, operation, table and columns.
    /// json has one object per line, with values as text. pgoutput has the messages that a slot
    /// would send, each after its length (4 bytes), LSN (8) and transaction ID (4), all big-endian.
    /// The catalogs come from the source, or from a file of `pgsluice catalog export`,
    /// and decode follows them through the WAL from then on. So it needs the WAL from the place
    /// that the export names. It leaves out transactions that ended before the catalogs were read.
    Decode(DecodeArgs),
    /// Save the catalogs that decoding of WAL starts with
    Catalog(CatalogArgs),
    /// Serve subscribers in the publisher's place, from one stream of its WAL
    Relay(Box<RelayArgs>),
    /// Write the file of users of a relay
    User(UserArgs),
    /// List, make and drop the replication slots of a relay
    Slots(SlotsArgs),
    /// Print a manual page in roff
    Man(ManArgs),
    /// Print a completion script
    Completions(CompletionsArgs),
    /// Print the reference of all settings in Markdown
    ConfigReference,
    /// Print every error with its cause, its remedy and what pgsluice does, in Markdown
    ErrorReference,
}

impl Command {
    /// Whether the command is about both directions, and their names.
    pub(crate) fn both_ways(&self) -> BothWaysPublished {
        let only_names =
            |names: &BothWays| BothWaysPublished { names: names.clone(), back_publication: Vec::new() };
        match self {
            Command::Run(args) => args.both_ways.clone(),
            Command::Check(args) => args.both_ways.clone(),
            Command::Status(args) => only_names(&args.both_ways),
            Command::Stop(args) => only_names(&args.both_ways),
            Command::Drop(args) => only_names(&args.both_ways),
            _ => BothWaysPublished::default(),
        }
    }
}

/// `run`
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) both_ways: BothWaysPublished,
    #[command(flatten)]
    pub(crate) settings: SettingsTable,
}

/// `check`
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Print one JSON object per subscription and line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) both_ways: BothWaysPublished,
    #[command(flatten)]
    pub(crate) settings: SettingsTable,
}

/// `adopt`
#[derive(Debug, Args)]
pub(crate) struct AdoptArgs {
    /// Name of the native subscription (default: that of --subscription)
    #[arg(long, value_name = "NAME")]
    pub(crate) native: Option<String>,
    /// Take over and end; pgsluice run continues
    #[arg(long)]
    pub(crate) prepare_only: bool,
    #[command(flatten)]
    pub(crate) settings: SettingsTable,
}

/// `release`
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// How long to wait for the running process to end
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    pub(crate) timeout: Seconds,
    #[command(flatten)]
    pub(crate) settings: EndsArgs,
}

/// `status`
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Print one JSON object per subscription and line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) both_ways: BothWays,
    #[command(flatten)]
    pub(crate) settings: EndsArgs,
}

/// `conflicts`
#[derive(Debug, Args)]
pub(crate) struct ConflictsArgs {
    /// Explain the conflict of this number, and print the SQL that would undo what was done
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["type", "table", "key", "since", "until", "resolution", "limit"])]
    pub(crate) id: Option<i64>,
    /// Only conflicts of this type, such as insert_exists
    #[arg(long, value_name = "TYPE")]
    pub(crate) r#type: Option<ConflictType>,
    /// Only conflicts of this table of the target
    #[arg(long, value_name = "SCHEMA.TABLE", value_parser = table_name)]
    pub(crate) table: Option<(String, String)>,
    /// Only conflicts whose recorded key has this value; give it once for each column of the key
    ///
    /// The value is written as PostgreSQL writes it. Keys are recorded with --conflict-log-values
    /// only.
    #[arg(long, value_name = "COLUMN=VALUE", value_parser = parse_key)]
    pub(crate) key: Vec<(String, String)>,
    /// Only conflicts that pgsluice met at this time or later
    ///
    /// Times are as PostgreSQL reads them, in UTC unless they name a time zone.
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// Only conflicts that pgsluice met before this time
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<String>,
    /// Only conflicts that this rule decided, such as keep_local
    #[arg(long, value_name = "RESOLUTION")]
    pub(crate) resolution: Option<Resolution>,
    /// Largest number of conflicts to list
    #[arg(long, default_value = "20", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Print one JSON object per conflict and line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: EndsArgs,
}

/// `stop`
#[derive(Debug, Args)]
pub(crate) struct StopAllArgs {
    #[command(flatten)]
    pub(crate) both_ways: BothWays,
    #[command(flatten)]
    pub(crate) one: StopArgs,
}

/// `refresh`
#[derive(Debug, Args)]
pub(crate) struct RefreshArgs {
    /// How long to wait until the process has looked
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    pub(crate) timeout: Seconds,
    #[command(flatten)]
    pub(crate) which: Which,
}

/// `stop`, but for its directions
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// How long to wait for the process to end
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    pub(crate) timeout: Seconds,
    #[command(flatten)]
    pub(crate) which: Which,
}

/// `skip`
#[derive(Debug, Args)]
pub(crate) struct SkipArgs {
    /// Commit LSN of the transaction, as the log has it; `none` withdraws an earlier request
    #[arg(long, value_parser = parse_skip)]
    pub(crate) lsn: Lsn,
    #[command(flatten)]
    pub(crate) settings: EndsArgs,
}

/// `drop`
#[derive(Debug, Args)]
pub(crate) struct DropArgs {
    /// Continue if one end is unreachable, or an object is not known to belong to this subscription
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) both_ways: BothWays,
    #[command(flatten)]
    pub(crate) settings: EndsArgs,
}

/// `sequences`
#[derive(Debug, Args)]
pub(crate) struct SequencesArgs {
    /// Set the target's sequences to the source's values
    #[arg(long)]
    pub(crate) apply: bool,
    /// All sequences of the database, not only those that published tables
    /// own or use in a default
    #[arg(long)]
    pub(crate) all: bool,
    /// Also move back sequences that are ahead on the target
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) settings: EndsArgs,
    /// Publications whose tables' sequences to compare
    #[arg(long, value_name = "NAME", help_heading = "Stream")]
    pub(crate) publication: Vec<String>,
}

/// `verify`
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Name at most this many differences per table
    #[arg(long, default_value = "20", value_name = "COUNT")]
    pub(crate) limit: usize,
    /// Name table, key and column, but print no other value
    #[arg(long)]
    pub(crate) hide_values: bool,
    /// Pairs of connections that compare at the same time (default: one per
    /// processor of this machine, at most 8)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: Option<u16>,
    /// Compare tables larger than this in ranges of their key of about this
    /// size
    #[arg(long, default_value = "256MB", value_name = "SIZE")]
    pub(crate) chunk_bytes: Bytes,
    /// Hold a pair of snapshots about this long, then take a new one
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    pub(crate) snapshot_max: Seconds,
    #[command(flatten)]
    pub(crate) settings: EndsArgs,
    /// Publications to compare (default: those of the subscription as the
    /// target has stored them)
    #[arg(long, value_name = "NAME", help_heading = "Stream")]
    pub(crate) publication: Vec<String>,
}

/// `decode`
#[derive(Debug, Args)]
pub(crate) struct DecodeArgs {
    /// Directories with segments of WAL, or segments
    #[arg(long, value_name = "DIR|FILE", num_args = 1.., required = true)]
    pub(crate) wal: Vec<std::path::PathBuf>,
    /// Print transactions that committed from this position on
    #[arg(long, value_name = "LSN")]
    pub(crate) from: Option<Lsn>,
    /// Read WAL up to this position (default: to the end of what is there)
    #[arg(long, value_name = "LSN")]
    pub(crate) to: Option<Lsn>,
    /// Form of the output
    #[arg(long, value_enum, default_value = "text", value_name = "FORM")]
    pub(crate) format: DecodeFormat,
    /// File with exported catalogs, to use instead of the source's
    #[arg(long, value_name = "FILE", conflicts_with = "source")]
    pub(crate) catalog: Option<std::path::PathBuf>,
    /// Which database of the catalogs (default: the only one)
    #[arg(long, value_name = "NAME")]
    pub(crate) database: Option<String>,
    /// Leave out tables that cannot be decoded, and name them at the end, instead of stopping at
    /// their first change
    #[arg(long)]
    pub(crate) skip_refused: bool,
    /// How long to wait for transactions that run while decode reads the source's catalogs
    #[arg(long, default_value = "60s", value_name = "DURATION")]
    pub(crate) timeout: Seconds,
    /// Take apart records that no output needs: for the benchmark of the filter
    #[arg(long, hide = true)]
    pub(crate) no_early_filter: bool,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Publication whose changes to print (default: every table); may be given more than once
    #[arg(long, value_name = "NAME", help_heading = "Stream")]
    pub(crate) publication: Vec<String>,
}

/// See [`DecodeArgs::format`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DecodeFormat {
    Text,
    Json,
    Pgoutput,
}

/// `catalog`
#[derive(Debug, Args)]
pub(crate) struct CatalogArgs {
    #[command(subcommand)]
    pub(crate) command: CatalogCommand,
}

/// The commands about catalogs.
#[derive(Debug, Subcommand)]
pub(crate) enum CatalogCommand {
    /// Write the source's catalogs, as they are now, to a file
    ///
    /// For `pgsluice decode --catalog`. The role needs LOGIN and the rights that every role has;
    /// the server needs `wal_level = logical`. The command waits until the running transactions
    /// have ended. Nothing on the source keeps the WAL that decoding needs from then on: archive
    /// it, or let a physical slot keep it.
    Export(CatalogExportArgs),
}

/// `catalog export`
#[derive(Debug, Args)]
pub(crate) struct CatalogExportArgs {
    /// The file to write; an existing one is replaced
    #[arg(long, value_name = "FILE")]
    pub(crate) file: std::path::PathBuf,
    /// How long to wait for running transactions to end
    #[arg(long, default_value = "60s", value_name = "DURATION")]
    pub(crate) timeout: Seconds,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

/// One server to read from.
#[derive(Debug, Args)]
pub(crate) struct SourceArgs {
    /// Configuration file, in TOML
    #[arg(long, value_name = "FILE", help_heading = "Servers")]
    pub(crate) config: Option<std::path::PathBuf>,
    /// Subscription in the file whose source to use
    #[arg(long, value_name = "NAME", help_heading = "Servers")]
    pub(crate) subscription: Option<String>,
    /// Source database: a connection string or URI as libpq reads it
    #[arg(long, value_name = "CONNINFO", help_heading = "Servers")]
    pub(crate) source: Option<String>,
}

/// `relay`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct RelayArgs {
    #[command(subcommand)]
    pub(crate) command: Option<RelayCommand>,
    #[command(flatten)]
    pub(crate) settings: RelayTable,
}

/// The commands about relays.
#[derive(Debug, Subcommand)]
pub(crate) enum RelayCommand {
    /// Move a native subscription to a relay, or back to the publisher
    ///
    /// Makes the subscription's slot at the new place, waits until the subscription has everything
    /// before the new slot's point, and prints the statements that move it. With --execute, runs
    /// them and drops the old slot. If anything fails before the subscription has moved, it stays
    /// where it is and the new slot is dropped.
    Move(MoveArgs),
}

/// `relay move`
#[derive(Debug, Args)]
pub(crate) struct MoveArgs {
    /// Subscriber: a connection string or URI as libpq reads it
    #[arg(long, value_name = "CONNINFO")]
    pub(crate) subscriber: String,
    /// Name of the subscription
    #[arg(long, value_name = "NAME")]
    pub(crate) subscription: String,
    /// Where it is to be connected, as the subscriber is to have it
    ///
    /// pgsluice connects there, too.
    #[arg(long, value_name = "CONNINFO")]
    pub(crate) to: String,
    /// The same as it is reached from here (default: --to)
    #[arg(long, value_name = "CONNINFO")]
    pub(crate) to_from_here: Option<String>,
    /// Where it is connected now (default: what the subscriber says)
    #[arg(long, value_name = "CONNINFO")]
    pub(crate) from: Option<String>,
    /// Run the statements on the subscriber, and drop the old slot
    #[arg(long)]
    pub(crate) execute: bool,
    /// Longest wait for each step
    #[arg(long, default_value = "5min", value_name = "DURATION")]
    pub(crate) timeout: Seconds,
}

/// `slots`
#[derive(Debug, Args)]
pub(crate) struct SlotsArgs {
    #[command(subcommand)]
    pub(crate) command: SlotsCommand,
}

/// The commands about slots.
#[derive(Debug, Subcommand)]
pub(crate) enum SlotsCommand {
    /// List the slots: who reads them, what they hold, and why
    List(SlotsListArgs),
    /// Make a logical slot of pgoutput
    Create(SlotsCreateArgs),
    /// Drop a slot
    Drop(SlotsDropArgs),
}

/// Where slots are.
#[derive(Debug, Args)]
pub(crate) struct SlotsPlace {
    /// Relay or server: a connection string or URI as libpq reads it
    ///
    /// To make and drop slots, the role needs REPLICATION.
    #[arg(long, value_name = "CONNINFO")]
    pub(crate) relay: String,
}

/// `slots list`
#[derive(Debug, Args)]
pub(crate) struct SlotsListArgs {
    #[command(flatten)]
    pub(crate) place: SlotsPlace,
    /// Print JSON: one object for each slot
    #[arg(long)]
    pub(crate) json: bool,
}

/// `slots create`
#[derive(Debug, Args)]
pub(crate) struct SlotsCreateArgs {
    /// The slot's name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) place: SlotsPlace,
    /// Send prepared transactions when they are prepared
    #[arg(long)]
    pub(crate) two_phase: bool,
}

/// `slots drop`
#[derive(Debug, Args)]
pub(crate) struct SlotsDropArgs {
    /// The slot's name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) place: SlotsPlace,
    /// Wait until nobody reads it
    #[arg(long)]
    pub(crate) wait: bool,
}

/// `user`
#[derive(Debug, Args)]
pub(crate) struct UserArgs {
    #[command(subcommand)]
    pub(crate) command: UserCommand,
}

/// The commands about users of a relay.
#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// Add a user, or give it another password
    ///
    /// Asks for the password, or reads it from standard input if that is no terminal. With
    /// --from-source, takes over the verifier that the publisher has for the role of this name.
    /// Such a user has the rights of its role on the publisher, and none here besides.
    Add(UserAddArgs),
    /// Remove a user
    Drop(UserDropArgs),
    /// List the users
    List(UserListArgs),
}

/// `user add`
#[derive(Debug, Args)]
pub(crate) struct UserAddArgs {
    /// The user's name
    pub(crate) name: String,
    /// Take the verifier from the publisher, which superusers may read
    #[arg(long)]
    pub(crate) from_source: bool,
    #[command(flatten)]
    pub(crate) place: RelayPlace,
}

/// `user drop`
#[derive(Debug, Args)]
pub(crate) struct UserDropArgs {
    /// The user's name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) place: RelayPlace,
}

/// `user list`
#[derive(Debug, Args)]
pub(crate) struct UserListArgs {
    #[command(flatten)]
    pub(crate) place: RelayPlace,
}

/// `man`
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The page of this command instead of the program's
    pub(crate) command: Option<String>,
    /// Write the pages of the program and every command into this directory
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "command")]
    pub(crate) dir: Option<std::path::PathBuf>,
}

/// `completions`
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// Which subscription, between which servers.
#[derive(Debug, Args)]
pub(crate) struct EndsArgs {
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) ends: Ends,
}

/// A column of a key and its value.
fn parse_key(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((column, value)) if !column.is_empty() => Ok((column.to_owned(), value.to_owned())),
        _ => Err(format!("\"{text}\" is no column with a value: write COLUMN=VALUE, such as id=7")),
    }
}

/// An LSN, or none.
fn parse_skip(text: &str) -> Result<Lsn, String> {
    match text {
        // As ALTER SUBSCRIPTION ... SKIP (lsn = NONE).
        "none" | "NONE" => Ok(Lsn::INVALID),
        text => match text.parse() {
            Ok(Lsn::INVALID) => {
                Err("0/0 is not the LSN of a transaction; none takes a request back".to_owned())
            }
            Ok(lsn) => Ok(lsn),
            Err(error) => Err(base::ParseLsnError::to_string(&error)),
        },
    }
}
