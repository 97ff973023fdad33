//! The record in the target's state that a subscription was adopted from a native one.
//!
//! The crate `operate` has the commands that adopt and release. A start only reads what they left
//! in `pgsluice.adopted`. It refuses to stream while the native owner could stream, too. Before
//! adopting, the command checks what a start would check: [`crate::before_adopting`] and
//! [`crate::learn_at_adoption`].

use base::SubscriptionName;
use tokio_postgres::GenericClient;

use crate::error::Error;
use crate::refusal::Refusal;

/// The options of a native subscription, in pgsluice's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeOptions {
    /// Its connection string, if the role may read it and it still exists.
    pub conninfo: Option<String>,
    /// Its publications.
    pub publications: Vec<String>,
    /// `binary`
    pub binary: bool,
    /// `streaming`, `parallel` included.
    pub streaming: bool,
    /// `any` or `none`
    pub origin: String,
    /// `synchronous_commit`
    pub synchronous_commit: String,
    /// `disable_on_error`
    pub disable_on_error: bool,
}

/// A subscription that was adopted, and the present state of the native one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adoption {
    /// OID of the native subscription.
    pub native_oid: u32,
    /// The native subscription's name, if it still exists.
    pub native: Option<String>,
    /// The slot that the native subscription names; it should be `None`.
    pub native_slot: Option<String>,
    /// The slot that was taken over.
    pub slot: String,
    /// The command that adopts has finished.
    pub finished: bool,
    /// The options of the native subscription.
    pub options: NativeOptions,
}

impl Adoption {
    /// Returns why `run` must not stream, if so. `origin_none` is what the pgsluice subscription's
    /// settings ask for.
    #[must_use]
    pub fn refusal(&self, name: &SubscriptionName, origin_none: bool) -> Option<Error> {
        let name = || name.clone();
        let why = if !self.finished {
            Refusal::AdoptionUnfinished { name: name() }
        } else if let (Some(native), Some(slot)) = (&self.native, &self.native_slot) {
            Refusal::SlotGivenBack { native: native.clone(), slot: slot.clone() }
        } else if self.options.origin == "none" && !origin_none {
            Refusal::AdoptedOriginNone { name: name() }
        } else {
            return None;
        };
        Some(Error::refused(why))
    }
}

const ADOPTED: &str = "\
SELECT a.native_oid, n.subname::text, n.subslotname::text, s.slot, s.consistent_point IS NOT NULL, s.publications,
       a.binary_values, a.streaming, a.origin, a.synchronous_commit, a.disable_on_error
  FROM pgsluice.adopted a
  JOIN pgsluice.subscription s ON s.name = a.subscription
  LEFT JOIN pg_catalog.pg_subscription n ON n.oid = a.native_oid
   AND n.subdbid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
 WHERE a.subscription = $1";

/// Reads whether the subscription was adopted.
///
/// # Errors
/// The target failed.
pub async fn adoption(
    target: &impl GenericClient,
    name: &SubscriptionName,
) -> Result<Option<Adoption>, tokio_postgres::Error> {
    let sql = "SELECT pg_catalog.to_regclass('pgsluice.adopted') IS NOT NULL";
    if !target.query_one(sql, &[]).await?.get::<_, bool>(0) {
        return Ok(None);
    }
    let row = target.query_opt(ADOPTED, &[&name.as_str()]).await?;
    Ok(row.map(|row| Adoption {
        native_oid: row.get(0),
        native: row.get(1),
        native_slot: row.get(2),
        slot: row.get(3),
        finished: row.get(4),
        options: NativeOptions {
            conninfo: None,
            publications: row.get(5),
            binary: row.get(6),
            streaming: row.get(7),
            origin: row.get(8),
            synchronous_commit: row.get(9),
            disable_on_error: row.get(10),
        },
    }))
}
