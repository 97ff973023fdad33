//! `pgsluice release`: hands the subscription back to its native owner.

use std::time::Duration;

use operate::adopt::AdoptionOutcome;
use operate::control::Lock;

use super::{from_adopt, from_control, stop};
use crate::exit::Code;
use crate::subject::Subject;

/// Stops the process that runs here, then hands back.
pub(crate) async fn release(subject: &Subject, bound: Duration) -> anyhow::Result<Code> {
    let name = &subject.name;
    let (source, target) = (subject.source()?, subject.target()?);
    if let Some(pid) = stop::stop_one(subject, bound).await? {
        super::say(format_args!("{name}: stopped (process {pid})"));
    }
    let lock = Lock::acquire(&subject.state_dir, name).map_err(from_control)?;
    let outcome =
        operate::adopt::release(&source, &target, name).await.map_err(|error| from_adopt(&error))?;
    match outcome {
        AdoptionOutcome::Done { at: None, slot, .. } => super::say(format_args!(
            "{name}: its adoption was not finished; handed back as it was: slot \"{slot}\"; the native subscription is \
             enabled"
        )),
        AdoptionOutcome::Done { at: Some(at), slot, tables } => super::say(format_args!(
            "{name}: handed back at {at}: slot \"{slot}\", {tables} tables; the native subscription is enabled"
        )),
        AdoptionOutcome::Already | AdoptionOutcome::Missing => {
            super::say(format_args!(
                "{name}: the target has nothing of it: released already, or never adopted"
            ));
        }
    }
    lock.remove().map_err(from_control)?;
    Ok(Code::Done)
}
