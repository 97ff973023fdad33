//! `pgsluice relook`.

use operate::admin;

use super::{connect, from_admin};
use crate::exit::Code;
use crate::subject::Subject;

/// Allows the tables that `run` has named to be emptied and copied again; it starts nothing.
pub(crate) async fn relook(subject: &Subject) -> anyhow::Result<Code> {
    let name = &subject.name;
    let target = connect("target", &subject.target()?, name).await?;
    match admin::allow_relook(&target, name).await.map_err(from_admin)? {
        true => super::say(format_args!(
            "{name}: allowed: the next pgsluice run reads the catalogs again, and copies again the tables that were \
             written meanwhile"
        )),
        false => super::say(format_args!(
            "{name}: nothing is to be copied again: pgsluice run has asked for nothing"
        )),
    }
    Ok(Code::Done)
}
