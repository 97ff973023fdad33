//! Whether a start may stream for a subscription that was adopted from a native one.
//!
//! The crate `operate` has the commands that adopt and release. A start only reads the record that
//! they left ([`state::adoption()`]), and refuses to stream while the native owner could stream,
//! too. Before adopting, the command checks what a start would check:
//! [`crate::before_adopting`] and [`crate::learn_at_adoption`].

use base::SubscriptionName;
use state::Adoption;

use crate::error::Error;
use crate::refusal::Refusal;

/// Returns why `run` must not stream, if so. `origin_none` is what the pgsluice subscription's
/// settings ask for.
#[must_use]
pub fn adoption_refuses(adopted: &Adoption, name: &SubscriptionName, origin_none: bool) -> Option<Error> {
    let name = || name.clone();
    let why = if !adopted.finished {
        Refusal::AdoptionUnfinished { name: name() }
    } else if let (Some(native), Some(slot)) = (&adopted.native, &adopted.native_slot) {
        Refusal::SlotGivenBack { native: native.clone(), slot: slot.clone() }
    } else if adopted.options.origin == "none" && !origin_none {
        Refusal::AdoptedOriginNone { name: name() }
    } else {
        return None;
    };
    Some(Error::refused(why))
}
