//! Every error of the commands on the servers, for docs/errors.md.

use base::Lsn;
use base::error_reference::{Doing, Entry, HeldBy, entry};
use proto::frame::ServerError;

use super::{Error, Kind};

const HELD: HeldBy = ("pgsluice cli", "drop_refuses_what_a_session_holds");
const FOREIGN: HeldBy = ("pgsluice cli", "drop_keeps_what_is_not_its_own");
const ONE_END: HeldBy = ("pgsluice cli", "drop_with_one_end_gone_wants_force");
const SKIPPED: HeldBy = ("pgsluice scenarios", "what_an_error_tells_to_skip_or_enable_works_as_printed");
const TARGET: HeldBy = ("pgsluice cli", "skip_enable_and_disable_reach_the_target");

base::error_reference! {
    /// Every way in which a command on the servers fails.
    #[must_use]
    pub fn error_reference() -> Error where error is &error.0 => Kind;
    Kind::Connect { .. } => operating(
        "A command cannot connect",
        Kind::Connect {
            end: "source",
            cause: ServerError::new("FATAL", "57P03", "the database system is starting up").into(),
        },
        "The server cannot be reached or refuses the connection, for the reason behind it, which has an entry under \
         *Connecting*. Commands do not try again.",
        "Repair it and repeat the command; `pgsluice drop --force` goes on without an end that is gone for good.",
        &[ONE_END],
    ),
    Kind::Query { .. } => operating(
        "A server refuses a command",
        Kind::Query {
            doing: "disable it on the target".to_owned(),
            cause: ServerError::new("ERROR", "42501", "permission denied for table subscription").into(),
        },
        "A right is missing, something is locked, or the state on the target was altered, as the server says.",
        "Give the role that runs `pgsluice run`, whose tables in schema `pgsluice` they are.",
        &[],
    ),
    Kind::Source { .. } => operating(
        "A command on the source's slot fails",
        Kind::Source { cause: source::slot_not_dropped() },
        "The source refused to show or drop the slot, as it says: as a rule the role is not `REPLICATION`.",
        "Run `ALTER ROLE ... REPLICATION` on the source and repeat the command.",
        &[],
    ),
    Kind::InUse { .. } => operating(
        "What is to be dropped is in use",
        Kind::InUse {
            what: "replication slot \"pgsluice_orders\" on the source".to_owned(),
            by: "walsender 4711".to_owned(),
        },
        "A pgsluice still runs the subscription, as a rule on another machine.",
        "Stop it there with `pgsluice stop`, or end the session with `SELECT pg_terminate_backend(...)`; then repeat.",
        &[HELD],
    ),
    Kind::Foreign { .. } => operating(
        "What is to be dropped may be somebody else's",
        Kind::Foreign {
            what: "replication slot \"pgsluice_orders\" on the source".to_owned(),
            why: "belongs to database \"billing\", not \"shop\"".to_owned(),
        },
        "Slots and origins belong to a whole cluster: another database of it may use the same name.",
        "Give the right `--source` and `--target`; only if it is this subscription's nevertheless, `pgsluice drop \
         --force`.",
        &[FOREIGN],
    ),
    Kind::Missing { .. } => operating(
        "The target knows no such subscription",
        Kind::Missing {
            subscription: "orders".parse().expect("a name as in the manual"),
            place: "db2:5432/shop as repl".to_owned(),
        },
        "The name is wrong, the target is another database, or the subscription was never begun or has been dropped.",
        "Correct `--subscription` or `--target`; `pgsluice run` creates it.",
        &[TARGET],
    ),
    Kind::SkipPassed { .. } => operating(
        "The transaction to be skipped has passed",
        Kind::SkipPassed {
            subscription: "orders".parse().expect("a name as in the manual"),
            lsn: Lsn::new(0x16_B374_D848),
            reached: Lsn::new(0x16_B374_E000),
        },
        "It was applied or skipped already, or nothing for this target commits at this LSN. Nothing was changed.",
        "Look at `pgsluice status`: where a transaction fails, its error has the LSN and the whole command.",
        &[SKIPPED],
    ),
    Kind::SkipOther { .. } => operating(
        "Another transaction fails than the one to be skipped",
        Kind::SkipOther { lsn: Lsn::new(0x16_B374_F000), failing: Lsn::new(0x16_B374_D848) },
        "The LSN is mistyped, or is one of the error's other positions. Nothing was changed.",
        "Repeat `pgsluice skip --lsn LSN` with the LSN of the message.",
        &[SKIPPED],
    ),
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
