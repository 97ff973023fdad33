//! Why an attempt to capture deletions ended.

use std::fmt;
use std::io;

use base::Xid;

use crate::condition::Unfit;

/// See the module.
#[derive(Debug)]
pub struct Error(Kind);

#[derive(Debug)]
enum Kind {
    Client(client::Error),
    Source(source::Error),
    Catalogs(wal_source::Error),
    Decode(output::Error),
    Memory(deletions::Error),
    Files(io::Error),
    Unfit(Unfit),
    /// A transaction that deleted has committed, and stays invisible.
    Invisible(Xid),
    /// Two connections reached two servers, as during a failover.
    TwoServers,
    /// The target was put back to an older state, and has written other WAL since.
    OtherHistory,
    Ended,
}

impl Error {
    pub(crate) fn unfit(unfit: Unfit) -> Error {
        Error(Kind::Unfit(unfit))
    }

    pub(crate) fn invisible(xid: Xid) -> Error {
        Error(Kind::Invisible(xid))
    }

    pub(crate) fn two_servers() -> Error {
        Error(Kind::TwoServers)
    }

    pub(crate) fn other_history() -> Error {
        Error(Kind::OtherHistory)
    }

    pub(crate) fn ended() -> Error {
        Error(Kind::Ended)
    }

    /// What somebody must change on the target.
    #[must_use]
    pub fn as_unfit(&self) -> Option<Unfit> {
        match &self.0 {
            Kind::Unfit(unfit) => Some(unfit.clone()),
            _ => None,
        }
    }

    /// What the memory has is of a history that the target has left.
    pub(crate) fn is_other_history(&self) -> bool {
        matches!(self.0, Kind::OtherHistory)
    }

    /// The memory's files are damaged, and are to be removed.
    pub(crate) fn is_damaged_memory(&self) -> bool {
        matches!(&self.0, Kind::Memory(error) if error.is_damaged())
    }

    /// The catalogs cannot be followed any further, so they must be looked at anew.
    pub(crate) fn has_lost_catalogs(&self) -> bool {
        matches!(&self.0, Kind::Decode(_) | Kind::Catalogs(_) | Kind::OtherHistory)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Unfit(unfit) => unfit.fmt(f),
            Kind::Invisible(xid) => write!(
                f,
                "capturing deletions: transaction {xid} of the target has committed and is not visible; \
                 it may wait for a synchronous standby: see synchronous_standby_names there"
            ),
            Kind::TwoServers => f.write_str(
                "capturing deletions: two connections to the target have reached two servers, as during a failover",
            ),
            Kind::OtherHistory => f.write_str(
                "capturing deletions: the target was restored to an earlier state since; what was remembered \
                 before is discarded",
            ),
            Kind::Ended => f.write_str("capturing deletions: the target's WAL has ended"),
            _ => f.write_str("capturing deletions"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Kind::Client(error) => Some(error),
            Kind::Source(error) => Some(error),
            Kind::Catalogs(error) => Some(error),
            Kind::Decode(error) => Some(error),
            Kind::Memory(error) => Some(error),
            Kind::Files(error) => Some(error),
            Kind::Unfit(_) | Kind::Invisible(_) | Kind::TwoServers | Kind::OtherHistory | Kind::Ended => None,
        }
    }
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Error {
        Error(Kind::Client(error))
    }
}

impl From<source::Error> for Error {
    fn from(error: source::Error) -> Error {
        Error(Kind::Source(error))
    }
}

impl From<wal_source::Error> for Error {
    fn from(error: wal_source::Error) -> Error {
        Error(Kind::Catalogs(error))
    }
}

impl From<output::Error> for Error {
    fn from(error: output::Error) -> Error {
        Error(Kind::Decode(error))
    }
}

impl From<deletions::Error> for Error {
    fn from(error: deletions::Error) -> Error {
        Error(Kind::Memory(error))
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error(Kind::Files(error))
    }
}
