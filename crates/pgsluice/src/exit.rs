//! Exit codes: what a script may rely on.
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | done; for `run`: stopped as asked |
//! | 1 | failed: a server, the network, this machine; for `check`: warnings |
//! | 2 | wrong usage or configuration; for `check`: it cannot work |
//! | 3 | in use: another process runs this subscription |
//! | 4 | the subscription is disabled |
//! | 5 | not running (`status`), or no such subscription |
//! | 6 | the ends differ (`verify`; `sequences` without `--apply`; `refresh`: tables that cannot be replicated) |
//! | 128 + n | ended by signal n the second time it came |

use std::fmt;

use crate::failure::Failure;

/// Why the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Done = 0,
    Failed = 1,
    Usage = 2,
    InUse = 3,
    Disabled = 4,
    NotRunning = 5,
    Differs = 6,
}

impl Code {
    /// `check` cannot fail in another way: an unreachable server is a finding.
    pub(crate) const WARNINGS: Code = Code::Failed;
    /// Settings that cannot be read cannot work either.
    pub(crate) const CANNOT: Code = Code::Usage;
}

/// The table above, for `--help` and the man page.
pub(crate) const HELP: &str = "\
Exit codes:
  0  done; for run: stopped as asked
  1  failed: a server, the network, this machine; for check: warnings
  2  wrong usage or configuration; for check: it cannot work
  3  in use: another process runs this subscription
  4  the subscription is disabled
  5  not running (status), or no such subscription
  6  the ends differ (verify; sequences without --apply; refresh: tables that
     cannot be replicated)
  128 + n  ended by signal n the second time it came";

/// An error that knows its exit code; others count as [`Code::Failed`].
#[derive(Debug)]
pub(crate) struct Exit {
    code: Code,
    message: String,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Exit {}

/// An error with its exit code.
pub(crate) fn exit(code: Code, message: impl Into<String>) -> anyhow::Error {
    Exit { code, message: message.into() }.into()
}

/// The code that `error`, or the first of its causes that has one, asks for.
pub(crate) fn code_of(error: &anyhow::Error) -> Code {
    let own = |cause: &(dyn std::error::Error + 'static)| {
        let failure = cause.downcast_ref::<Failure>().map(Failure::code);
        failure.or_else(|| cause.downcast_ref::<Exit>().map(|exit| exit.code))
    };
    error.chain().find_map(own).unwrap_or(Code::Failed)
}
