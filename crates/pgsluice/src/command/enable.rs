//! `pgsluice enable`.

use operate::admin;

use super::{connect, from_admin};
use crate::exit::Code;
use crate::subject::Subject;

/// Allows the subscription to run; it starts nothing.
pub(crate) async fn enable(subject: &Subject) -> anyhow::Result<Code> {
    let name = &subject.name;
    let target = connect("target", &subject.target()?, name).await?;
    admin::set_enabled(&target, name, true).await.map_err(from_admin)?;
    super::say(format_args!("{name}: enabled"));
    Ok(Code::Done)
}
