//! `pgsluice disable`.

use std::time::Duration;

use operate::admin;

use super::stop::stop_one;
use super::{connect, from_admin};
use crate::exit::Code;
use crate::subject::Subject;

/// `run` ends within 5 s of being asked.
const STOP_BOUND: Duration = Duration::from_secs(10);

/// Forbids the subscription to run. The target is first, so that nothing starts it again; then the
/// process that runs it here stops.
pub(crate) async fn disable(subject: &Subject) -> anyhow::Result<Code> {
    let name = &subject.name;
    let target = connect("target", &subject.target()?, name).await?;
    admin::set_enabled(&target, name, false).await.map_err(from_admin)?;
    match stop_one(subject, STOP_BOUND).await? {
        Some(pid) => super::say(format_args!("{name}: disabled, and process {pid} stopped")),
        None => super::say(format_args!("{name}: disabled")),
    }
    Ok(Code::Done)
}
