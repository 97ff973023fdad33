//! What the program itself refuses or fails in: settings, command lines, and
//! commands that have nothing to do their work on.
//!
//! Errors of servers and of running processes are the engine's.

mod error_reference;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use base::{NameError, SubscriptionName};

pub(crate) use error_reference::error_reference;

use crate::exit::Code;

/// Why a command did not do its work.
#[derive(Debug)]
pub(crate) enum Failure {
    ConfigFile {
        path: PathBuf,
        error: io::Error,
    },
    /// The file's line is no TOML.
    Toml {
        place: String,
        message: String,
    },
    UnknownKey {
        place: String,
        key: String,
        suggestion: Option<String>,
    },
    /// A setting of the process inside of a `[[subscription]]`.
    ProcessKey {
        place: String,
        key: String,
    },
    WrongType {
        place: String,
        key: String,
        many: bool,
    },
    /// A `[[subscription.conflict]]` that is no rule.
    ConflictTable {
        place: String,
        reason: String,
    },
    Unnamed {
        path: PathBuf,
    },
    TwoForms {
        path: PathBuf,
    },
    NamedTwice {
        path: PathBuf,
        name: String,
    },
    /// One setting, given by both of its names.
    TwoNames {
        place: String,
        names: [String; 2],
    },
    NotInFile {
        path: PathBuf,
        wanted: String,
        names: Vec<String>,
    },
    Value {
        value: String,
        place: String,
        reason: String,
    },
    /// Settings that are valid one by one.
    Together(String),
    LogLevel {
        level: String,
        error: String,
    },
    NoName,
    BadName(NameError),
    Missing {
        key: &'static str,
    },
    /// The target has stored a source that this role may not read.
    HiddenSource,
    Conninfo {
        key: &'static str,
        error: client::Error,
    },
    NoStateDir,
    /// A command for one, and several are configured.
    Several(Vec<String>),
    NoPublications {
        name: SubscriptionName,
    },
    NoPage(String),
    /// `decode` of a database that the catalogs do not have.
    NoDatabase {
        wanted: String,
        names: Vec<String>,
    },
    NoNative {
        native: String,
        place: String,
    },
    /// `drop` of what was adopted.
    Adopted {
        name: SubscriptionName,
        native: String,
    },
    /// `conflicts --id` of a record that is not there.
    NoConflict {
        name: SubscriptionName,
        id: i64,
    },
    StillRuns {
        name: SubscriptionName,
        pid: u32,
        bound: Duration,
    },
    /// `refresh` was not answered.
    NotLooked {
        name: SubscriptionName,
        phase: String,
        bound: Duration,
    },
    Metrics {
        address: SocketAddr,
        error: io::Error,
    },
    /// Where a relay is to listen.
    Listen {
        address: SocketAddr,
        error: io::Error,
    },
    /// A file of rules, users or maps of a relay.
    RelayFile {
        path: PathBuf,
        why: String,
    },
    /// A user of a relay that is not there.
    NoUser {
        path: PathBuf,
        name: String,
    },
    /// The publisher has no verifier of this role.
    NoVerifier {
        name: String,
        why: String,
    },
}

impl Failure {
    /// The exit code.
    pub(crate) fn code(&self) -> Code {
        match self {
            Failure::NoNative { .. } => Code::NotRunning,
            Failure::Adopted { .. }
            | Failure::NoConflict { .. }
            | Failure::StillRuns { .. }
            | Failure::NotLooked { .. }
            | Failure::Metrics { .. }
            | Failure::Listen { .. }
            | Failure::NoUser { .. }
            | Failure::NoVerifier { .. } => Code::Failed,
            _ => Code::Usage,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::ConfigFile { .. } | Failure::Toml { .. } | Failure::UnknownKey { .. } | Failure::ProcessKey { .. } | Failure::WrongType { .. } | Failure::ConflictTable { .. } | Failure::Unnamed { .. } | Failure::TwoForms { .. } | Failure::NamedTwice { .. } | Failure::TwoNames { .. } | Failure::NotInFile { .. } => self.of_file(f),
            Failure::Value { value, place, reason } => {
                write!(f, "invalid value \"{value}\" for {place}: {reason}")
            }
            Failure::Together(message) => {
                write!(f, "settings that are valid one by one are not valid together: {message}")
            }
            Failure::LogLevel { level, error } => write!(f, "log_level \"{level}\": {error}"),
            Failure::NoName => f.write_str(
                "no subscription is named: use --publication (its name serves) or --subscription, \
                 PGSLUICE_PUBLICATION or PGSLUICE_SUBSCRIPTION, or a configuration file",
            ),
            Failure::BadName(error) => error.fmt(f),
            Failure::Missing { key } => write!(
                f,
                "no {key} is set: use --{}, PGSLUICE_{} or \"{key}\" in the configuration file",
                key.replace('_', "-"),
                key.to_ascii_uppercase()
            ),
            Failure::HiddenSource => f.write_str(
                "no source is set, and the target's role may not read the native subscription's connection string, \
                 which only superusers may: use --source",
            ),
            Failure::Conninfo { key, error } => write!(f, "{key}: {}", base::with_causes(error)),
            Failure::NoStateDir => f.write_str("neither HOME nor XDG_STATE_HOME is set: use --state-dir"),
            Failure::Several(names) => write!(f, "name one of {} with --subscription", names.join(", ")),
            Failure::NoPublications { name } => write!(
                f,
                "no publication is set, and the target knows no subscription \"{name}\": use --publication"
            ),
            Failure::NoPage(page) => write!(f, "there is no page {page}: see pgsluice --help"),
            Failure::NoDatabase { wanted, names } => {
                write!(f, "the catalogs have no database \"{wanted}\"; they have {}", names.join(", "))
            }
            Failure::NoNative { .. } | Failure::Adopted { .. } | Failure::NoConflict { .. } | Failure::StillRuns { .. } | Failure::NotLooked { .. } => self.of_subscription(f),
            Failure::Metrics { address, error } => write!(f, "could not serve metrics at {address}: {error}; give another address by --metrics"),
            Failure::Listen { .. } | Failure::RelayFile { .. } | Failure::NoUser { .. } | Failure::NoVerifier { .. } => self.of_relay(f),
        }
    }
}

/// The messages by theme. `fmt` says which variants belong to which.
impl Failure {
    /// What is wrong in the configuration file.
    fn of_file(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::ConfigFile { path, error } => {
                write!(f, "could not read configuration file {}: {error}", path.display())
            }
            Failure::Toml { place, message } => write!(f, "{place}: {message}"),
            Failure::UnknownKey { place, key, suggestion: Some(other) } => {
                write!(f, "{place}: unknown key \"{key}\"; did you mean \"{other}\"?")
            }
            Failure::UnknownKey { place, key, suggestion: None } => {
                write!(f, "{place}: unknown key \"{key}\"; see pgsluice config-reference")
            }
            Failure::ProcessKey { place, key } => {
                write!(f, "{place}: \"{key}\" belongs to the whole process: set it at the top level")
            }
            Failure::WrongType { place, key, many } => {
                let many = if *many { " or a list of them" } else { "" };
                write!(f, "{place}: \"{key}\" needs a text, a number or a boolean{many}")
            }
            Failure::ConflictTable { place, reason } => write!(f, "{place}: conflict: {reason}"),
            Failure::Unnamed { path } => {
                write!(f, "{}: every [[subscription]] needs a name", path.display())
            }
            Failure::TwoForms { path } => {
                write!(f, "{}: both a top-level subscription and [[subscription]] tables", path.display())
            }
            Failure::NamedTwice { path, name } => {
                write!(f, "{}: two subscriptions are named \"{name}\"", path.display())
            }
            Failure::TwoNames { place, names: [one, other] } => {
                write!(f, "{place}: {one} and {other} are two names of one setting: give one of them")
            }
            Failure::NotInFile { path, wanted, names } => write!(
                f,
                "{} has no subscription named \"{wanted}\"; it has {}",
                path.display(),
                names.join(", ")
            ),
            _ => unreachable!("another theme: {self:?}"),
        }
    }

    /// A relay and its users.
    fn of_relay(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Listen { address, error } => {
                write!(f, "could not listen at {address}: {error}; give another address by --listen")
            }
            Failure::RelayFile { path, why } => write!(f, "{}: {why}", path.display()),
            Failure::NoUser { path, name } => write!(
                f,
                "{} has no user \"{name}\"; each of its lines begins with the name of one that it has",
                path.display()
            ),
            Failure::NoVerifier { name, why } => {
                write!(f, "the publisher gives no SCRAM-SHA-256 verifier of role \"{name}\": {why}")
            }
            _ => unreachable!("another theme: {self:?}"),
        }
    }

    /// Subscriptions, and the processes that run them.
    fn of_subscription(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NoNative { native, place } => write!(
                f,
                "there is no native subscription \"{native}\" in {place}: give its name with --native, and as --target \
                 the database that has it (SELECT subname FROM pg_subscription)"
            ),
            Failure::Adopted { name, native } => write!(
                f,
                "subscription \"{name}\" was adopted from native subscription \"{native}\": pgsluice release hands it \
                 back; with --force it is removed with its slot, and \"{native}\" stays disabled and without a slot"
            ),
            Failure::NoConflict { name, id } => write!(
                f,
                "the history of subscription \"{name}\" has no conflict {id}: it was removed, or there never was one; \
                 to list those that are there: pgsluice conflicts"
            ),
            Failure::StillRuns { name, pid, bound } => {
                write!(
                    f,
                    "process {pid} still runs subscription \"{name}\" after {} s: see its log",
                    bound.as_secs()
                )
            }
            Failure::NotLooked { name, phase, bound } => write!(
                f,
                "the process that runs subscription \"{name}\" ({phase}) has not looked at the publication within {} \
                 s; it does so while it streams: see pgsluice status",
                bound.as_secs()
            ),
            _ => unreachable!("another theme: {self:?}"),
        }
    }
}

impl std::error::Error for Failure {}
