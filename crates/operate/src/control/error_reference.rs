//! Every error of reaching a process that runs, for docs/errors.md.

use std::io;

use base::SubscriptionName;
use base::error_reference::{Doing, Entry, HeldBy, entry};

use super::{Error, Kind};

const LOCK: HeldBy = ("pgsluice usage", "a_name_in_use_is_refused_with_its_holder");

base::error_reference! {
    /// Every way in which the process that runs a subscription cannot be
    /// reached, or its place cannot be taken.
    #[must_use]
    pub fn error_reference() -> Error where error is &error.0 => Kind;
    Kind::InUse { .. } => operating(
        "The subscription runs on this machine",
        Kind::InUse { subscription: name(), pid: Some(4711) },
        "A subscription is run by one process. What would disturb it, another `run`, `drop`, `adopt` or `release`, \
         waits for nobody.",
        "Stop it with `pgsluice stop`, or give another name by `--subscription`.",
        &[LOCK, ("operate", "a_second_holder_is_refused_with_the_pid_of_the_first")],
    ),
    Kind::NotRunning { .. } => operating(
        "Nothing runs the subscription here",
        Kind::NotRunning { subscription: name() },
        "The process has ended, runs on another machine, or with another `state_dir`.",
        "Start it with `pgsluice run`, or give the same `--state-dir` and `--subscription` as it was given.",
        &[("pgsluice usage", "what_does_not_run_is_said_to_be_so")],
    ),
    Kind::PathTooLong { .. } => entry(
        Doing::KeepingState,
        "The state directory's path is too long",
        Error(Kind::PathTooLong { path: format!("/var/lib{}/orders.sock", "/deep".repeat(20)).into() }),
        "A Unix socket's path has at most 107 bytes.",
        "Give a shorter `--state-dir`.",
        &[("operate", "a_path_too_long_for_a_socket_names_the_setting")],
    ),
    Kind::File { .. } => entry(
        Doing::KeepingState,
        "The state directory cannot be used",
        Error(Kind::File {
            doing: "create the state directory",
            path: "/var/lib/pgsluice".into(),
            cause: denied(),
        }),
        "Lock, socket and spool are kept there, and the directory cannot be made or written by this user.",
        "Give it to the user who runs pgsluice with `chown`, or name another by `--state-dir`.",
        &[],
    ),
    Kind::Talk { .. } => operating(
        "The running process does not answer",
        Kind::Talk {
            subscription: name(),
            cause: io::Error::new(io::ErrorKind::TimedOut, "no answer within 5s"),
        },
        "Its socket is there, and it is stopped (SIGSTOP), overloaded, or belongs to another user.",
        "Look at the process and its log; run the command as the same user. `pgsluice stop`, or SIGTERM, ends it.",
        &[],
    ),
    Kind::Refused { .. } => operating(
        "The running process refuses a command",
        Kind::Refused {
            subscription: name(),
            reason: apply::HoldError::NotStreaming.to_string(),
        },
        "The command wants something of it that it cannot do at present, for the reason that is given.",
        "Repeat the command when `pgsluice status` says that it streams.",
        &[("operate", "a_stream_that_does_not_flow_cannot_be_held")],
    ),
}

fn name() -> SubscriptionName {
    "orders".parse().expect("a name as in the manual")
}

fn denied() -> io::Error {
    io::Error::other("Permission denied (os error 13)")
}

fn operating(
    title: &'static str,
    kind: Kind,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<Error>; 1] {
    entry(Doing::Operating, title, Error(kind), cause, remedy, held_by)
}
