//! Why a pipeline, or one of its attempts, ended.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use base::{Lsn, SubscriptionName};

use crate::Settings;
use crate::byte_size::ByteSize;
use crate::refusal::Refusal;

/// The error that ended a pipeline.
#[derive(Debug)]
pub struct Error(Box<Kind>);

#[derive(Debug)]
pub(crate) enum Kind {
    Source(source::Error),
    Copy(copy::Error),
    Schema(schema::Error),
    Apply(apply::Error),
    Client(client::Error),
    Decode(output::Error),
    Spool(std::io::Error),
    /// The spool's disk has no room for what an earlier attempt needed.
    NoRoom {
        dir: PathBuf,
        free: u64,
        needed: u64,
    },
    /// The files with WAL that the source does not send.
    Archive(source::segments::Error),
    /// A pass for several subscriptions failed with this error for all of them.
    Pass(String),
    /// The catalogs must be looked at anew, and the source is not fit for that, for this reason.
    NotYet(String),
    /// The source is a standby. The WAL alone does not say where pgsluice may go on.
    SourceIsStandby,
    /// The source has another timeline than when pgsluice began to follow an archive or standbys.
    LeftTimeline {
        before: u32,
        now: u32,
    },
    /// The target's backend and pgsluice waited for one another.
    Silent(Silence),
    Refused(Refusal),
    /// Disabled by an operator, or by an error of an earlier run.
    Disabled {
        name: SubscriptionName,
        after: Option<String>,
    },
    /// Disabled by this error, because of `disable_on_error`.
    DisabledNow {
        name: SubscriptionName,
        error: Box<Error>,
    },
}

/// The target's backend waited for us while we waited for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Silence {
    /// The backend.
    pub(crate) pid: i32,
    /// How long they waited.
    pub(crate) lasted: Duration,
}

impl Error {
    pub(crate) fn refused(why: impl Into<Refusal>) -> Self {
        Kind::Refused(why.into()).into()
    }

    /// The subscription is gone from the target.
    #[must_use]
    pub fn dropped() -> Error {
        Error::refused(Refusal::Dropped)
    }

    /// The slot is at `confirmed`, past `start`, the position that the target has reached.
    #[must_use]
    pub fn target_behind(slot: String, confirmed: Lsn, start: Lsn) -> Error {
        Error::refused(Refusal::TargetBehind { slot, confirmed, start })
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }

    /// The subscription is disabled, perhaps just now by this error.
    #[must_use]
    pub fn is_disabled(&self) -> bool {
        matches!(&*self.0, Kind::Disabled { .. } | Kind::DisabledNow { .. })
    }

    /// The subscription's name is in use elsewhere.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(&*self.0, Kind::Apply(error) if error.is_in_use())
    }

    /// The catalogs of a source that ships WAL cannot be followed any further; only a new look
    /// helps.
    pub(crate) fn lost(&self) -> Option<output::Lost> {
        match &*self.0 {
            Kind::Decode(error) => error.lost(),
            Kind::Refused(Refusal::OtherCatalogs(_)) => Some(output::Lost { at: None, is_proven: false }),
            _ => None,
        }
    }

    /// A table that takes part and cannot be decoded from here on.
    pub(crate) fn undecodable(&self) -> Option<&output::Refused> {
        match &*self.0 {
            Kind::Decode(error) => error.refused(),
            _ => None,
        }
    }

    /// The end whose connection was lost, if that is the error: `source` or `target`, as `settings`
    /// name them.
    pub(crate) fn lost_end(&self, settings: &Settings) -> Option<&'static str> {
        match &*self.0 {
            Kind::Source(error) if error.is_connection_lost() => Some("source"),
            Kind::Apply(error) if error.is_connection_lost() => Some("target"),
            Kind::Silent(_) => Some("target"),
            Kind::Client(error) if error.is_connection_lost() => {
                let is_of =
                    |end: &client::ConnInfo| error.place().is_some_and(|place| place == end.describe());
                match (is_of(&settings.source), is_of(&settings.target)) {
                    (true, false) => Some("source"),
                    (false, true) => Some("target"),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Values must come as text.
    pub(crate) fn needs_text(&self) -> bool {
        matches!(&*self.0, Kind::Apply(error) if error.needs_text())
    }

    /// The user asked to stop in the middle of the copy.
    pub(crate) fn is_stopped(&self) -> bool {
        matches!(&*self.0, Kind::Copy(error) if error.is_stopped())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Source(error) => error.fmt(f),
            Kind::Copy(error) => error.fmt(f),
            Kind::Schema(error) => error.fmt(f),
            Kind::Apply(error) => error.fmt(f),
            Kind::Client(error) => error.fmt(f),
            Kind::Decode(error) if error.is_publication() => write!(
                f,
                "cannot decode the source's WAL: {error}: it was dropped or altered, and perhaps made again since; what \
                 was written meanwhile cannot be decoded; drop the subscription and copy again"
            ),
            Kind::Decode(error) => write!(f, "cannot decode the source's WAL: {error}"),
            Kind::Spool(error) => {
                write!(f, "{error}; make room there, or give another --state-dir")
            }
            Kind::NoRoom { dir, free, needed } => write!(
                f,
                "spool directory {} has room for {}, and open transactions needed {} there when it was full: nothing is \
                 received before there is room; make room there, or give another --state-dir",
                dir.display(),
                ByteSize(*free),
                ByteSize(*needed)
            ),
            Kind::Archive(error) => write!(f, "cannot read the archive of the source's WAL: {error}"),
            Kind::Pass(why) => write!(
                f,
                "decoding for several subscriptions in one pass has ended: {why}; this one goes on from what it has kept"
            ),
            Kind::NotYet(why) => {
                write!(f, "the source's catalogs cannot be looked at anew yet: {why}")
            }
            Kind::LeftTimeline { before, now } => write!(
                f,
                "the source is on timeline {now} now, and its WAL was followed on timeline {before}: it is looked whether what was \
                 applied is part of both"
            ),
            Kind::SourceIsStandby => f.write_str(
                "the source is a standby, and --source-mode wal follows primaries only; it is waited for one: promote it, or \
                 give a --source that leads to the primary",
            ),
            Kind::Silent(silence) => write!(
                f,
                "nothing has come from the target for {} s, although its backend {} waits for us or is gone: the \
                 connection is taken for lost; see wal_receiver_timeout, and what stands between",
                silence.lasted.as_secs(),
                silence.pid
            ),
            Kind::Refused(why) => why.fmt(f),
            Kind::Disabled { name, after } => {
                write!(f, "subscription \"{name}\" is disabled")?;
                after.iter().try_for_each(|error| write!(f, " after: {error}"))?;
                f.write_str("; to go on: pgsluice enable")
            }
            Kind::DisabledNow { name, error } => write!(
                f,
                "{error}\nsubscription \"{name}\" has been disabled because of this error; repair the cause or skip \
                 the transaction, then: pgsluice enable"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            Kind::Source(error) => error.source(),
            Kind::Copy(error) => error.source(),
            Kind::Schema(error) => error.source(),
            Kind::Apply(error) => error.source(),
            Kind::Client(error) => error.source(),
            Kind::Decode(error) => error.source(),
            Kind::Archive(error) => error.source(),
            Kind::Spool(_)
            | Kind::NoRoom { .. }
            | Kind::Pass(_)
            | Kind::NotYet(_)
            | Kind::SourceIsStandby
            | Kind::LeftTimeline { .. }
            | Kind::Silent(_)
            | Kind::Refused(_)
            | Kind::Disabled { .. }
            | Kind::DisabledNow { .. } => None,
        }
    }
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Self {
        Error(Box::new(kind))
    }
}

impl From<source::Error> for Error {
    fn from(error: source::Error) -> Self {
        Kind::Source(error).into()
    }
}

impl From<copy::Error> for Error {
    fn from(error: copy::Error) -> Self {
        Kind::Copy(error).into()
    }
}

impl From<schema::Error> for Error {
    fn from(error: schema::Error) -> Self {
        Kind::Schema(error).into()
    }
}

impl From<apply::Error> for Error {
    fn from(error: apply::Error) -> Self {
        Kind::Apply(error).into()
    }
}

impl From<state::Error> for Error {
    fn from(error: state::Error) -> Self {
        apply::Error::from(error).into()
    }
}

impl From<output::Error> for Error {
    fn from(error: output::Error) -> Self {
        Kind::Decode(error).into()
    }
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Self {
        Kind::Client(error).into()
    }
}

/// The error for a task that panicked.
pub(crate) fn broke(error: &tokio::task::JoinError) -> Error {
    Error::refused(Refusal::ApplierBroke(error.to_string()))
}
