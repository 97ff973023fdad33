//! The command line: one subcommand, one file in `command`.

use base::Lsn;
use clap::{Args, Parser, Subcommand};

use crate::exit;
use crate::settings::{Ends, Table, Which};
use crate::units::{Bytes, Seconds};

/// Logical replication for stock PostgreSQL: copy, stream, apply
///
/// Copies the tables of a publication from one PostgreSQL server into
/// another and keeps them level. It needs no extension and no patch on
/// either server.
#[derive(Debug, Parser)]
#[command(name = "pgsluice", version, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Everything pgsluice can be told to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Copy, then stream and apply changes until stopped
    ///
    /// SIGTERM or SIGINT finishes or rolls back the batch in hand and ends
    /// within 5 seconds; the same signal once more ends at once. With
    /// several subscriptions in the configuration file all of them run in
    /// this process, each on its own.
    Run(Box<Table>),
    /// Take over a native subscription of the target, and go on as run
    ///
    /// For who has CREATE SUBSCRIPTION already, perhaps far behind: disables
    /// it, takes over its slot and position, copies nothing, and goes on from
    /// there as run does. Publications and options are the native
    /// subscription's unless given; so is the source, where the target's role
    /// may read its connection string. Interrupted, it is repeated; later
    /// starts are run's. release hands everything back.
    Adopt(Box<AdoptArgs>),
    /// Hand an adopted subscription back to its native owner and enable that
    ///
    /// Stops the process that runs it on this machine, moves the native
    /// subscription's position to exactly where pgsluice came, gives it its
    /// slot again and enables it. What pgsluice stored on the target goes.
    Release(ReleaseArgs),
    /// Say every reason why source and target would not work together
    ///
    /// Looks at both servers and changes nothing: settings, limits, rights,
    /// publications, every published table. Each finding names its object
    /// and the remedy, as SQL where SQL can do it. It takes the settings of
    /// run, which starts with the same check. The exit code is 0 if there is
    /// nothing to do, 1 if there are warnings, 2 if it cannot work.
    Check(Box<CheckArgs>),
    /// Show what a subscription is doing and how far behind it is
    ///
    /// Asks the running process; if there is none on this machine, looks at
    /// the state on the target and the slot on the source.
    Status(StatusArgs),
    /// Ask the running process to end, and wait until it has
    Stop(StopArgs),
    /// Take up tables that were added to the publication, and leave out those
    /// that were dropped from it
    ///
    /// A running subscription looks by itself every refresh_interval; this
    /// has it look now, and says which tables are replicated, which are being
    /// copied while the others go on, and which cannot be, with the reason.
    /// The exit code is 6 if there are such.
    Refresh(StopArgs),
    /// Skip one transaction that cannot be applied
    ///
    /// As ALTER SUBSCRIPTION ... SKIP: the whole transaction is skipped,
    /// whatever else it changed. The log names its LSN with the error.
    Skip(SkipArgs),
    /// Allow run to empty tables and copy them again, after the source's WAL
    /// could not be decoded any further
    ///
    /// With source_mode = wal. Where full_page_writes or wal_level was lowered,
    /// the database was moved, or the catalogs could not be followed, run
    /// looks at the catalogs anew and goes on by itself if no table was written
    /// meanwhile. If some were, it names them and stops; once this has
    /// allowed it, the next run copies these again, and the others go on.
    Relook(EndsArgs),
    /// Allow the subscription to run again
    Enable(EndsArgs),
    /// Stop the subscription and refuse to run it until it is enabled
    Disable(EndsArgs),
    /// Remove slot, replication origins and state from both servers
    ///
    /// The tables on the target and their rows stay. May be repeated: what
    /// is gone already is no error. An adopted subscription is released
    /// instead; only with --force does its slot go, and the native
    /// subscription stays behind disabled and without one.
    Drop(DropArgs),
    /// Compare sequences on both ends; with --apply bring the target's level
    ///
    /// Logical replication does not carry sequences. Run it with --apply when
    /// the source no longer writes, before the target takes over.
    Sequences(SequencesArgs),
    /// Compare every published row on both ends
    ///
    /// Table by table, in chunks of its key, while replication goes on: a
    /// pgsluice that runs the subscription on this machine is asked to stand
    /// still for a moment, so that both ends are looked at in the same state
    /// and every difference is one. Without it both ends are compared as they
    /// are. Differences are named by table, key and column. The exit code is
    /// 0 if the ends are equal, 6 if they differ, 1 if that cannot be told.
    Verify(VerifyArgs),
    /// Print what a range of WAL changed, without a slot or a server's help
    ///
    /// Reads segments from directories and files, plain or compressed by gzip,
    /// lz4 or zstd, and prints what committed: every change of every table,
    /// or what publications publish. Text has a line each with LSN,
    /// transaction, what happened, table and columns; json an object a line
    /// with values as text; pgoutput the messages that a slot would send,
    /// each behind its length (4 bytes), LSN (8) and transaction (4), all
    /// big-endian. What tables look like is taken from the source, or from
    /// a file of `pgsluice catalog export`, and followed through the WAL from
    /// then on: WAL is needed from the place that the export names, and
    /// transactions that had ended before the look are left out.
    Decode(DecodeArgs),
    /// Keep the catalogs that decoding WAL begins with
    Catalog(CatalogArgs),
    /// Print a manual page in roff
    Man(ManArgs),
    /// Print a completion script
    Completions(CompletionsArgs),
    /// Print the reference of all settings in Markdown
    ConfigReference,
    /// Print every error with cause, remedy and what becomes of it, in Markdown
    ErrorReference,
}

/// `check`
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Print one JSON object per subscription and line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: Table,
}

/// `adopt`
#[derive(Debug, Args)]
pub(crate) struct AdoptArgs {
    /// Name of the native subscription (default: that of --subscription)
    #[arg(long, value_name = "NAME")]
    pub(crate) native: Option<String>,
    /// Take over and end; pgsluice run goes on
    #[arg(long)]
    pub(crate) prepare_only: bool,
    #[command(flatten)]
    pub(crate) settings: Table,
}

/// `release`
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// How long to wait for the end of the process that runs it
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
    pub(crate) settings: EndsArgs,
}

/// `stop`
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// How long to wait for its end
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    pub(crate) timeout: Seconds,
    #[command(flatten)]
    pub(crate) which: Which,
}

/// `skip`
#[derive(Debug, Args)]
pub(crate) struct SkipArgs {
    /// Commit LSN of the transaction as the log gives it; `none` takes an
    /// earlier request back
    #[arg(long, value_parser = parse_skip)]
    pub(crate) lsn: Lsn,
    #[command(flatten)]
    pub(crate) settings: EndsArgs,
}

/// `drop`
#[derive(Debug, Args)]
pub(crate) struct DropArgs {
    /// Go on if one end cannot be reached, or is not known to be ours
    #[arg(long)]
    pub(crate) force: bool,
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
    /// Also move sequences back that are ahead on the target
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) settings: EndsArgs,
    /// Publications whose tables' sequences are meant
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
    /// Print what committed from this position on
    #[arg(long, value_name = "LSN")]
    pub(crate) from: Option<Lsn>,
    /// Read WAL up to this position (default: as far as there is any)
    #[arg(long, value_name = "LSN")]
    pub(crate) to: Option<Lsn>,
    /// Form of the output
    #[arg(long, value_enum, default_value = "text", value_name = "FORM")]
    pub(crate) format: DecodeFormat,
    /// Catalogs that were exported, instead of a look at the source
    #[arg(long, value_name = "FILE", conflicts_with = "source")]
    pub(crate) catalog: Option<std::path::PathBuf>,
    /// Which database of the catalogs (default: the only one)
    #[arg(long, value_name = "NAME")]
    pub(crate) database: Option<String>,
    /// Leave out tables that cannot be decoded, and name them in the end,
    /// instead of stopping at their first change
    #[arg(long)]
    pub(crate) skip_refused: bool,
    /// How long to wait for transactions that run while the source's catalogs
    /// are looked at
    #[arg(long, default_value = "60s", value_name = "DURATION")]
    pub(crate) timeout: Seconds,
    /// Take records apart that nobody wants: for the benchmark of the filter
    #[arg(long, hide = true)]
    pub(crate) no_early_filter: bool,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Publication whose changes are meant (default: every table); may be
    /// given more than once
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

/// What can be done with catalogs.
#[derive(Debug, Subcommand)]
pub(crate) enum CatalogCommand {
    /// Write the source's catalogs, as they are now, to a file
    ///
    /// For `pgsluice decode --catalog`. The role needs LOGIN and what
    /// everybody may read; the server `wal_level = logical`. Waits until the
    /// transactions that are running have ended. Nothing holds back the WAL
    /// that decoding needs from then on: archive it, or let a physical slot
    /// keep it.
    Export(CatalogExportArgs),
}

/// `catalog export`
#[derive(Debug, Args)]
pub(crate) struct CatalogExportArgs {
    /// The file; one that is there is replaced
    #[arg(long, value_name = "FILE")]
    pub(crate) file: std::path::PathBuf,
    /// How long to wait for transactions that are running
    #[arg(long, default_value = "60s", value_name = "DURATION")]
    pub(crate) timeout: Seconds,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

/// One server to look at.
#[derive(Debug, Args)]
pub(crate) struct SourceArgs {
    /// Configuration file, in TOML
    #[arg(long, value_name = "FILE", help_heading = "Servers")]
    pub(crate) config: Option<std::path::PathBuf>,
    /// The subscription in the file whose source is meant
    #[arg(long, value_name = "NAME", help_heading = "Servers")]
    pub(crate) subscription: Option<String>,
    /// Source database: a connection string or URI as libpq reads it
    #[arg(long, value_name = "CONNINFO", help_heading = "Servers")]
    pub(crate) source: Option<String>,
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
