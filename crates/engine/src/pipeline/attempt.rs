//! One attempt to run a subscription: what it works with, what it found on both ends, and what it
//! leaves to the next one.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use output::Lost;
use source::end::SourceEnd;
use source::publication::{TableName, TargetTable};
use state::{State, SubscriptionRow, TableKey};
use tokio_util::sync::CancellationToken;
use txn::Spool;
use wal_source::{Context, OpenSpool, Passes};

use crate::error::Error;
use crate::repeated::Repeated;
use crate::retaining::Retaining;
use crate::spooling::Watched;
use crate::{Direction, Settings, Status};

/// What earlier attempts leave to the next one.
#[derive(Default)]
pub(super) struct Past {
    /// Both ends have been checked.
    pub(super) checked: bool,
    /// The backend of the last control session.
    pub(super) control_pid: Option<i32>,
    /// The next changes were written when columns had other types, so values must come as text.
    pub(super) in_text: bool,
    /// Why the catalogs must be looked at anew.
    pub(super) lost: Option<Cause>,
    /// Tables that took part and cannot be decoded, until the target has stored that.
    pub(super) refused: Vec<output::RefusedTable>,
    /// All such tables so far.
    pub(super) refused_before: BTreeSet<TableKey>,
    /// How those attempts failed.
    pub(super) failing: Repeated,
}

impl Past {
    /// Records what the next attempt has to do about `error`.
    pub(super) fn note(&mut self, error: &Error) {
        if let Some(lost) = error.lost() {
            self.lost = Some(Cause { lost, told: base::with_causes(error) });
        }
        self.refused.extend(error.undecodable().cloned());
    }
}

/// One attempt, from connecting to the error or stop that ends it.
pub(crate) struct Attempt<'a> {
    pub(crate) settings: &'a Arc<Settings>,
    /// What the settings ask of WAL that is decoded here.
    pub(crate) of_wal: &'a Arc<wal_source::Settings>,
    pub(crate) status: &'a Arc<Status>,
    pub(crate) passes: &'a Passes,
    /// Set if another pipeline replicates the other way.
    pub(crate) direction: Option<&'a Direction>,
    /// What runs beside all attempts, once one of them has the subscription.
    pub(crate) beside: &'a OnceLock<Retaining>,
    pub(crate) stop: &'a CancellationToken,
}

/// Both ends as the attempt found them.
pub(super) struct Ends {
    pub(super) source: SourceEnd,
    pub(super) state: State,
    pub(super) row: Option<SubscriptionRow>,
    pub(super) adopted: Option<state::Adoption>,
    pub(super) targets: HashMap<TableName, TargetTable>,
    /// See [`Past::in_text`].
    pub(super) in_text: bool,
}

impl Ends {
    /// Whether the slot and the snapshot of the first copy were made.
    pub(super) fn has_begun(&self) -> bool {
        self.row.as_ref().is_some_and(|row| row.consistent_point.is_some())
    }
}

/// Why a new look is needed.
#[derive(Debug, Clone)]
pub(super) struct Cause {
    pub(super) lost: Lost,
    /// The cause in words.
    pub(super) told: String,
}

impl Attempt<'_> {
    /// The context in which the source's WAL is read.
    pub(super) fn wal<'a>(&'a self, ends: &'a Ends) -> Context<'a> {
        let (dir, spooling) = (self.settings.decoding_dir(), Arc::clone(self.status.spooling()));
        let open_spool: OpenSpool = Arc::new(move || {
            let spool = Watched::open(dir.clone(), &spooling)?;
            Ok(Box::new(spool) as Box<dyn Spool>)
        });
        Context {
            settings: self.of_wal,
            figures: self.status.decoded(),
            open_spool,
            passes: self.passes,
            source: &ends.source,
        }
    }
}
