//! Why a subscription stays where it is.

use std::fmt;

use base::Lsn;

/// Why a subscription stays where it is.
#[derive(Debug)]
pub enum Error {
    /// A server failed.
    Server {
        /// What was being done.
        doing: String,
        /// Its error.
        cause: client::Error,
    },
    /// It cannot be moved, or not now.
    Refused(Refusal),
}

/// What stands in the way.
#[derive(Debug)]
pub enum Refusal {
    /// The subscriber has no such subscription.
    NoSubscription {
        /// The subscription.
        name: String,
        /// The subscriber.
        place: String,
    },
    /// It has no slot.
    NoSlot {
        /// The subscription.
        name: String,
    },
    /// It does not run.
    Disabled {
        /// The subscription.
        name: String,
    },
    /// It copies tables.
    Copies {
        /// The subscription.
        name: String,
        /// Number of tables that are not ready.
        tables: i64,
    },
    /// Two-phase commit is wanted and has not begun.
    TwoPhasePending {
        /// The subscription.
        name: String,
    },
    /// The role may not read its connection string.
    HiddenPlace {
        /// The subscription.
        name: String,
    },
    /// Both publishers, by system and database.
    OtherPublisher {
        /// The present one.
        old: String,
        /// The one to move to.
        new: String,
    },
    /// There are prepared transactions.
    Prepared {
        /// Identifiers of some of them.
        gids: String,
    },
    /// The answer to the creation of the slot makes no sense.
    NoPoint,
    /// The present publisher does not have the slot.
    SlotIsElsewhere {
        /// The slot.
        slot: String,
    },
    /// The subscription did not come to the new slot's point in time.
    Behind {
        /// The present slot.
        slot: String,
        /// Where it is.
        confirmed: String,
        /// The new slot's point.
        point: Lsn,
        /// Somebody reads the present slot.
        is_read: bool,
    },
    /// The worker of the disabled subscription did not end in time.
    WorkerStays {
        /// The subscription.
        name: String,
    },
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Error::Refused(refusal)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Server { doing, .. } => write!(f, "could not {doing}"),
            Error::Refused(why) => why.fmt(f),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NoSubscription { name, place } => {
                write!(f, "there is no subscription \"{name}\" at {place}")
            }
            Refusal::NoSlot { name } => write!(
                f,
                "subscription \"{name}\" has no slot (slot_name = NONE), so there is nothing to go on from"
            ),
            Refusal::Disabled { name } => write!(
                f,
                "subscription \"{name}\" is disabled: it must run until it has passed the new slot's point; enable it \
                 first"
            ),
            Refusal::Copies { name, tables } => write!(
                f,
                "subscription \"{name}\" still copies {tables} tables: wait until all of pg_subscription_rel are ready"
            ),
            Refusal::TwoPhasePending { name } => write!(
                f,
                "subscription \"{name}\" has not yet begun two-phase commit (state pending): try again in a moment"
            ),
            Refusal::HiddenPlace { name } => write!(
                f,
                "the role may not read where subscription \"{name}\" is connected: say it by --from"
            ),
            Refusal::OtherPublisher { old, new } => write!(
                f,
                "the new publisher ({new}) is not the present one ({old}): positions of one mean nothing at the other"
            ),
            Refusal::Prepared { gids } => write!(
                f,
                "the publisher has prepared transactions ({gids}): with two_phase they would come from both slots; \
                 commit or roll them back, then try again"
            ),
            Refusal::NoPoint => f.write_str("the new publisher named no consistent point"),
            Refusal::SlotIsElsewhere { slot } => {
                write!(f, "the present publisher has no slot \"{slot}\": say by --from where it is")
            }
            Refusal::Behind { slot, confirmed, point, is_read } => {
                let used = if *is_read { "" } else { ", and nobody reads it" };
                write!(
                    f,
                    "slot \"{slot}\" is confirmed up to {confirmed}, and must come to {point}{used}: give it more time \
                     by --timeout"
                )
            }
            Refusal::WorkerStays { name } => write!(
                f,
                "the apply worker of \"{name}\" does not end: it may be in a long transaction; give it more time by \
                 --timeout"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Server { cause, .. } => Some(cause),
            Error::Refused(_) => None,
        }
    }
}

pub(super) fn refuse<T>(why: Refusal) -> Result<T, Error> {
    Err(why.into())
}

pub(super) fn server(doing: &str) -> impl FnOnce(client::Error) -> Error {
    move |cause| Error::Server { doing: doing.to_owned(), cause }
}
