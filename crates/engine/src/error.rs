//! Why a pipeline, or one of its attempts, ended.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use base::{Lsn, SubscriptionName};
use wal_source::Foreign;

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
    /// The WAL of a source that is decoded here.
    Wal(wal_source::Error),
    Spool(std::io::Error),
    /// The spool's disk has no room for what an earlier attempt needed.
    NoRoom {
        dir: PathBuf,
        free: u64,
        needed: u64,
    },
    /// The source's clock is ahead of the target's, and rows are to be copied.
    ClockSkew {
        ahead: Duration,
        max: Duration,
    },
    /// The source is a standby. The WAL alone does not say where pgsluice may go on.
    SourceIsStandby,
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
            Kind::Wal(error) => error.lost(),
            _ => None,
        }
    }

    /// A table that takes part and cannot be decoded from here on.
    pub(crate) fn undecodable(&self) -> Option<&output::RefusedTable> {
        match &*self.0 {
            Kind::Wal(error) => error.undecodable(),
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
            Kind::Wal(error) => error.fmt(f),
            Kind::Spool(error) => {
                write!(f, "{error}; make room there, or give another --state-dir")
            }
            Kind::NoRoom { dir, free, needed } => write!(
                f,
                "spool directory {} has room for {}, but open transactions needed {} when it was full: pgsluice \
                 receives nothing before there is room; make room there, or give another --state-dir",
                dir.display(),
                ByteSize(*free),
                ByteSize(*needed)
            ),
            Kind::ClockSkew { ahead, max } => write!(
                f,
                "the source's clock is {:.1} s ahead of the target's, a conflict rule compares commit times, and \
                 clock_skew_max is {} s: nothing is copied; correct the clocks of both servers: pgsluice then goes on \
                 by itself; to let the copy wait that long: --clock-skew-max {}s",
                ahead.as_secs_f64(),
                max.as_secs_f64(),
                ahead.as_secs_f64().ceil()
            ),
            Kind::SourceIsStandby => f.write_str(
                "the source is a standby, and --source-mode wal follows primaries only; pgsluice waits for one: \
                 promote it, or give a --source that leads to the primary",
            ),
            Kind::Silent(silence) => write!(
                f,
                "nothing has come from the target for {} s, although its backend {} waits for us or is gone: \
                 pgsluice takes the connection for lost; see wal_receiver_timeout, and check the firewalls and \
                 proxies between",
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
            Kind::Wal(error) => error.source(),
            Kind::Spool(_)
            | Kind::NoRoom { .. }
            | Kind::ClockSkew { .. }
            | Kind::SourceIsStandby
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

impl From<wal_source::Error> for Error {
    fn from(error: wal_source::Error) -> Self {
        match error.into_foreign() {
            Ok(Foreign::Client(error)) => error.into(),
            Ok(Foreign::Source(error)) => error.into(),
            Ok(Foreign::Spool(error)) => Kind::Spool(error).into(),
            Ok(Foreign::OtherSource(other)) => Error::refused(Refusal::OtherSource(other)),
            Err(error) => Kind::Wal(error).into(),
        }
    }
}

impl From<output::Error> for Error {
    fn from(error: output::Error) -> Self {
        Kind::Wal(error.into()).into()
    }
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Self {
        Kind::Client(error).into()
    }
}
