//! `pgsluice skip --lsn LSN`: writes the request to the target's state, then tells the running
//! process, which may wait for its next attempt.

use base::Lsn;
use operate::admin;
use operate::control::{self, Request};

use super::{connect, from_admin, from_control};
use crate::exit::Code;
use crate::subject::Subject;

/// Requests to skip one transaction, or withdraws the request if `lsn` is invalid.
pub(crate) async fn skip(subject: &Subject, lsn: Lsn) -> anyhow::Result<Code> {
    let name = &subject.name;
    let target = connect("target", &subject.target()?, name).await?;
    // Without a process the target knows the last error.
    let asked = control::ask(&subject.state_dir, name, &Request::Status).await;
    let last_error = asked.ok().and_then(|answer| Some(answer.status?.last_error?.message));
    admin::set_skip(&target, name, lsn, last_error.as_deref()).await.map_err(from_admin)?;
    let request = match lsn.is_valid() {
        true => Request::Skip { lsn: lsn.to_string() },
        false => Request::ReloadSkip,
    };
    let told = match control::ask(&subject.state_dir, name, &request).await {
        Ok(answer) => format!("told process {}", answer.pid),
        Err(error) if error.is_not_running() => "it takes effect when the subscription runs".to_owned(),
        Err(error) => return Err(from_control(error)),
    };
    match lsn.is_valid() {
        true => {
            super::say(format_args!("{name}: the transaction that commits at {lsn} will be skipped; {told}"))
        }
        false => super::say(format_args!("{name}: nothing will be skipped; {told}")),
    }
    Ok(Code::Done)
}
