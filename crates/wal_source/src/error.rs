//! Why the WAL of a source could not be had, or not be decoded.

use std::fmt;
use std::io;

use base::SubscriptionName;
use client::SqlState;

use crate::unfit::Unfit;

/// An error that ends the decoding of a source's WAL.
#[derive(Debug)]
pub struct Error(Box<Kind>);

#[derive(Debug)]
pub(crate) enum Kind {
    /// A session of the source failed.
    Client(client::Error),
    /// A request to the source failed.
    Source(source::Error),
    /// The spool of open transactions, or the restart file.
    Spool(io::Error),
    Decode(output::Error),
    /// The files with WAL that the source does not send.
    Archive(source::segments::Error),
    /// A pass for several subscriptions failed with this error for all of them.
    Pass(String),
    /// The catalogs must be looked at anew, and the source is not fit for that, for this reason.
    NotYet(String),
    /// The source has another timeline than when pgsluice began to follow an archive or standbys.
    LeftTimeline {
        before: u32,
        now: u32,
    },
    /// The followed catalogs are not the source's; one text for each difference.
    OtherCatalogs(Vec<String>),
    Unfit(Unfit),
    OtherSource(OtherSource),
    /// A task of ours panicked.
    Broke(String),
}

/// The source is another cluster than the one that a subscription was made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherSource {
    /// The subscription.
    pub name: SubscriptionName,
    /// The system identifier that it was made for.
    pub made_for: String,
    /// The system identifier that was found.
    pub found: String,
}

/// An error that is another crate's, and says nothing about WAL.
#[derive(Debug)]
pub enum Foreign {
    /// A session of the source failed.
    Client(client::Error),
    /// A request to the source failed.
    Source(source::Error),
    /// A file on this machine could not be written or read.
    Spool(io::Error),
    /// The source is another cluster.
    OtherSource(OtherSource),
}

impl Error {
    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }

    /// Returns the error of another crate, if this error is nothing more.
    ///
    /// # Errors
    /// This error, if it is about WAL.
    pub fn into_foreign(self) -> Result<Foreign, Error> {
        match *self.0 {
            Kind::Client(error) => Ok(Foreign::Client(error)),
            Kind::Source(error) => Ok(Foreign::Source(error)),
            Kind::Spool(error) => Ok(Foreign::Spool(error)),
            Kind::OtherSource(other) => Ok(Foreign::OtherSource(other)),
            kind => Err(kind.into()),
        }
    }

    /// The catalogs cannot be followed any further; only a new look at them helps.
    #[must_use]
    pub fn lost(&self) -> Option<output::Lost> {
        match &*self.0 {
            Kind::Decode(error) => error.lost(),
            Kind::OtherCatalogs(_) => Some(output::Lost { at: None, is_proven: false }),
            _ => None,
        }
    }

    /// A table that takes part and cannot be decoded from here on.
    #[must_use]
    pub fn undecodable(&self) -> Option<&output::RefusedTable> {
        match &*self.0 {
            Kind::Decode(error) => error.refused(),
            _ => None,
        }
    }

    /// Whether the source went on on another timeline. The next attempt finds out whether that can
    /// be followed.
    #[must_use]
    pub fn has_left_timeline(&self) -> bool {
        matches!(&*self.0, Kind::LeftTimeline { .. })
    }

    /// Whether another server, or another timeline, answers for the source.
    pub(crate) fn is_of_another_source(&self) -> bool {
        matches!(&*self.0, Kind::LeftTimeline { .. } | Kind::OtherSource(_))
    }

    /// Whether only a person can help: settings, rights, files that do not fit.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        match &*self.0 {
            Kind::Client(error) => {
                let is_configuration =
                    error.is_configuration() || error.is_authentication() || error.is_tls();
                !error.is_connection_lost() && (is_configuration || is_missing_right(error.sqlstate()))
            }
            Kind::Source(error) => {
                let is_configuration = error.is_configuration() || is_missing_right(error.sqlstate());
                !error.is_connection_lost() && is_configuration
            }
            Kind::Decode(error) => error.lost().is_none() && error.refused().is_none() && !error.is_passing(),
            Kind::Spool(_)
            | Kind::Archive(_)
            | Kind::Pass(_)
            | Kind::NotYet(_)
            | Kind::LeftTimeline { .. }
            | Kind::OtherCatalogs(_) => false,
            Kind::Unfit(_) | Kind::OtherSource(_) | Kind::Broke(_) => true,
        }
    }
}

/// `insufficient_privilege`, `invalid_catalog_name`.
fn is_missing_right(sqlstate: Option<&str>) -> bool {
    let state = sqlstate.map(SqlState::from_code);
    matches!(state, Some(SqlState::INSUFFICIENT_PRIVILEGE | SqlState::INVALID_CATALOG_NAME))
}

/// Most differences that a message shows.
const SHOWN_MAX: usize = 10;

/// The first differences, and the number of the others.
fn shown(all: &[String]) -> String {
    let more = all.len().saturating_sub(SHOWN_MAX);
    let shown = all[..all.len() - more].join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Client(error) => error.fmt(f),
            Kind::Source(error) => error.fmt(f),
            Kind::Spool(error) => write!(f, "{error}; make room there, or give another --state-dir"),
            Kind::Decode(error) if error.is_publication() => write!(
                f,
                "cannot decode the source's WAL: {error}: it was dropped or altered, and perhaps created again \
                 since; nothing can decode what was written meanwhile; drop the subscription and copy again"
            ),
            Kind::Decode(error) => write!(f, "cannot decode the source's WAL: {error}"),
            Kind::Archive(error) => write!(f, "cannot read the archive of the source's WAL: {error}"),
            Kind::Pass(why) => write!(
                f,
                "decoding for several subscriptions in one pass has ended: {why}; this one goes on from what it has kept"
            ),
            Kind::NotYet(why) => write!(f, "pgsluice cannot read the source's catalogs again yet: {why}"),
            Kind::LeftTimeline { before, now } => write!(
                f,
                "the source is on timeline {now} now, and pgsluice followed its WAL on timeline {before}: it checks \
                 whether both have what was applied"
            ),
            Kind::OtherCatalogs(differences) => write!(
                f,
                "the catalogs that pgsluice followed through the WAL are not those of the source: {}; it applies \
                 nothing more; pgsluice verify shows which rows differ",
                shown(differences)
            ),
            Kind::Unfit(unfit) => unfit.fmt(f),
            Kind::OtherSource(other) => other.fmt(f),
            Kind::Broke(error) => write!(f, "the decoding of WAL broke down: {error}"),
        }
    }
}

impl fmt::Display for OtherSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OtherSource { name, made_for, found } = self;
        write!(
            f,
            "subscription \"{name}\" was made for the source with system identifier {made_for}, but this one has \
             {found}; give the right --source, or drop the subscription and start again"
        )
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            Kind::Client(error) => error.source(),
            Kind::Source(error) => error.source(),
            Kind::Decode(error) => error.source(),
            Kind::Archive(error) => error.source(),
            _ => None,
        }
    }
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Self {
        Error(Box::new(kind))
    }
}

impl From<Unfit> for Error {
    fn from(unfit: Unfit) -> Self {
        Kind::Unfit(unfit).into()
    }
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Self {
        Kind::Client(error).into()
    }
}

impl From<source::Error> for Error {
    fn from(error: source::Error) -> Self {
        Kind::Source(error).into()
    }
}

impl From<output::Error> for Error {
    fn from(error: output::Error) -> Self {
        Kind::Decode(error).into()
    }
}

/// The error for a task that panicked.
pub(crate) fn broke(error: &tokio::task::JoinError) -> Error {
    Kind::Broke(error.to_string()).into()
}
