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
        "Only one process can run a subscription. Another `run`, `drop`, `adopt` or `release` would disturb \
        it, and does not wait for it.",
        "Stop the process with `pgsluice stop`, or give another name with `--subscription`.",
        &[LOCK, ("operate", "a_second_holder_is_refused_with_the_pid_of_the_first")],
    ),
    Kind::NotRunning { .. } => operating(
        "Nothing runs the subscription here",
        Kind::NotRunning { subscription: name() },
        "The process has ended, or runs on another machine, or runs with another `state_dir`.",
        "Start the process with `pgsluice run`, or give the `--state-dir` and `--subscription` that it was \
        started with.",
        &[("pgsluice usage", "what_does_not_run_is_said_to_be_so")],
    ),
    Kind::PathTooLong { .. } => entry(
        Doing::KeepingState,
        "The state directory's path is too long",
        Error(Kind::PathTooLong { path: format!("/var/lib{}/orders.sock", "/deep".repeat(20)).into() }),
        "The path of a Unix socket has at most 107 bytes.",
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
        "pgsluice keeps lock, socket and spool in this directory, and its user cannot create it or write to \
        it.",
        "Give the directory to the user of this process with `chown`, or name another with `--state-dir`.",
        &[],
    ),
    Kind::Talk { .. } => operating(
        "The running process does not answer",
        Kind::Talk {
            subscription: name(),
            cause: io::Error::new(io::ErrorKind::TimedOut, "no answer within 5s"),
        },
        "The process has a socket, but it is stopped (SIGSTOP), overloaded, or belongs to another user.",
        "Look at the process and its log. Run the command as the same user. `pgsluice stop`, or SIGTERM, \
        ends the process.",
        &[],
    ),
    Kind::Refused { .. } => operating(
        "The running process refuses a command",
        Kind::Refused {
            subscription: name(),
            reason: apply::GateHoldError::NotStreaming.to_string(),
        },
        "The process cannot do at present what the command asks for; the message has the reason.",
        "Repeat the command when `pgsluice status` reports that the subscription streams.",
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
