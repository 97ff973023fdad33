//! One file per command; each gives an exit code.

pub(crate) mod adopt;
pub(crate) mod catalog;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod config_reference;
pub(crate) mod conflicts;
pub(crate) mod decode;
pub(crate) mod disable;
pub(crate) mod drop;
pub(crate) mod enable;
pub(crate) mod error_reference;
pub(crate) mod man;
pub(crate) mod refresh;
pub(crate) mod relay;
pub(crate) mod relay_move;
pub(crate) mod release;
pub(crate) mod relook;
pub(crate) mod run;
pub(crate) mod sequences;
pub(crate) mod skip;
pub(crate) mod slots;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod user;
pub(crate) mod verify;

use std::io::Write as _;

use base::SubscriptionName;
use client::{ConnInfo, Session};
use operate::{admin, control};

use crate::exit::{Code, exit};
use crate::failure::Failure;
use crate::subject::Subject;

/// A session for an operator's command; `end` is `source` or `target`.
async fn connect(end: &'static str, info: &ConnInfo, name: &SubscriptionName) -> anyhow::Result<Session> {
    admin::connect(end, info, name).await.map_err(from_admin)
}

/// The publications that were named, or those that the target has stored.
async fn publications(subject: &Subject) -> anyhow::Result<Vec<String>> {
    if !subject.publications().is_empty() {
        return Ok(subject.publications().to_vec());
    }
    let target = connect("target", &subject.target()?, &subject.name).await?;
    match admin::stored(&target, &subject.name).await.map_err(from_admin)? {
        Some(stored) if !stored.publications.is_empty() => Ok(stored.publications),
        _ => Err(Failure::NoPublications { name: subject.name.clone() }.into()),
    }
}

/// An error of the servers with its exit code.
pub(crate) fn from_admin(error: admin::Error) -> anyhow::Error {
    let code = match () {
        () if error.is_in_use() => Code::InUse,
        () if error.is_missing() => Code::NotRunning,
        () => Code::Failed,
    };
    exit(code, base::with_causes(&error))
}

/// An error of adopting or handing back with its exit code.
pub(crate) fn from_adopt(error: &operate::adopt::Error) -> anyhow::Error {
    let code = if error.is_in_use() { Code::InUse } else { Code::Failed };
    exit(code, base::with_causes(error))
}

/// An error of a pipeline with its exit code.
pub(crate) fn from_engine(error: &engine::Error) -> anyhow::Error {
    let code = match () {
        () if error.is_in_use() => Code::InUse,
        () if error.is_disabled() => Code::Disabled,
        () => Code::Failed,
    };
    exit(code, base::with_causes(error))
}

/// An error of lock or socket with its exit code.
pub(crate) fn from_control(error: control::Error) -> anyhow::Error {
    let code = match () {
        () if error.is_in_use() => Code::InUse,
        () if error.is_not_running() => Code::NotRunning,
        () => Code::Failed,
    };
    exit(code, base::with_causes(&error))
}

/// An error of a comparison with its exit code.
pub(crate) fn from_verify(error: &::verify::Error) -> anyhow::Error {
    exit(Code::Failed, base::with_causes(error))
}

/// Prints a document. A closed pipe is not an error: the reader has seen enough.
fn print(bytes: &[u8]) -> Code {
    let _ = std::io::stdout().write_all(bytes);
    Code::Done
}

/// Prints a line of a result; a closed pipe is not an error.
fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
