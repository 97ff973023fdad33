//! `pgsluice stop`: asks through the control socket, and waits for the end.

use std::time::Duration;

use operate::control::{self, Request};

use super::from_control;
use crate::exit::Code;
use crate::failure::Failure;
use crate::subject::Subject;

/// Stops all `subjects`. A subscription that does not run counts as stopped.
pub(crate) async fn stop(subjects: &[Subject], bound: Duration) -> anyhow::Result<Code> {
    for subject in subjects {
        let name = &subject.name;
        match stop_one(subject, bound).await? {
            Some(pid) => super::say(format_args!("{name}: stopped (process {pid})")),
            None => super::say(format_args!("{name}: not running")),
        }
    }
    Ok(Code::Done)
}

/// Asks and waits. Returns the process's id if there was a process.
pub(super) async fn stop_one(subject: &Subject, bound: Duration) -> anyhow::Result<Option<u32>> {
    let (dir, name) = (&subject.state_dir, &subject.name);
    let pid = match control::ask(dir, name, &Request::Stop).await {
        Ok(answer) => answer.pid,
        Err(error) if error.is_not_running() => return Ok(None),
        Err(error) => return Err(from_control(error)),
    };
    match control::wait_until_free(dir, name, bound).await.map_err(from_control)? {
        true => Ok(Some(pid)),
        false => Err(Failure::StillRuns { name: name.clone(), pid, bound }.into()),
    }
}
