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
        "The server is unreachable or refuses the connection. The message has the reason, which has an entry \
        under *Connecting*. Commands do not try again.",
        "Repair the cause and repeat the command. `pgsluice drop --force` continues without an end that is \
        gone for good.",
        &[ONE_END],
    ),
    Kind::Query { .. } => operating(
        "A server refuses a command",
        Kind::Query {
            doing: "disable it on the target".to_owned(),
            cause: ServerError::new("ERROR", "42501", "permission denied for table subscription").into(),
        },
        "A right is missing, another session holds a lock, or somebody altered the state on the target; the \
        server's words say which.",
        "Connect as the role that runs `pgsluice run`: it owns the tables in schema `pgsluice`.",
        &[],
    ),
    Kind::Source { .. } => operating(
        "A command on the source's slot fails",
        Kind::Source { cause: source::slot_not_dropped() },
        "The source refused to show or drop the slot, and the message has its reason. Usually the role does \
        not have `REPLICATION`.",
        "Run `ALTER ROLE ... REPLICATION` on the source and repeat the command.",
        &[],
    ),
    Kind::InUse { .. } => operating(
        "The subscription to drop is in use",
        Kind::InUse {
            what: "replication slot \"pgsluice_orders\" on the source".to_owned(),
            by: "walsender 4711".to_owned(),
        },
        "A pgsluice process still runs the subscription, usually on another machine.",
        "Stop the process there with `pgsluice stop`, or end its session with `SELECT \
        pg_terminate_backend(...)`. Then repeat the command.",
        &[HELD],
    ),
    Kind::Foreign { .. } => operating(
        "The slot or origin to drop may belong to another subscription",
        Kind::Foreign {
            what: "replication slot \"pgsluice_orders\" on the source".to_owned(),
            why: "belongs to database \"billing\", not \"shop\"".to_owned(),
        },
        "Slots and origins belong to a whole cluster, and another database of it may use the same name.",
        "Give the right `--source` and `--target`. Run `pgsluice drop --force` only if it belongs to this \
        subscription nevertheless.",
        &[FOREIGN],
    ),
    Kind::Missing { .. } => operating(
        "The target knows no such subscription",
        Kind::Missing {
            subscription: "orders".parse().expect("a name as in the manual"),
            place: "db2:5432/shop as repl".to_owned(),
        },
        "The name is wrong, the target is another database, or the subscription was never created or was \
        dropped.",
        "Correct `--subscription` or `--target`. `pgsluice run` creates the subscription.",
        &[TARGET],
    ),
    Kind::SkipPassed { .. } => operating(
        "The transaction to skip has passed",
        Kind::SkipPassed {
            subscription: "orders".parse().expect("a name as in the manual"),
            lsn: Lsn::new(0x16_B374_D848),
            reached: Lsn::new(0x16_B374_E000),
        },
        "The transaction was applied or skipped already, or no transaction for this target commits at this \
        LSN. Nothing was changed.",
        "Look at `pgsluice status`. If a transaction fails, its error has the LSN and the whole command.",
        &[SKIPPED],
    ),
    Kind::SkipOther { .. } => operating(
        "Another transaction fails than the one to skip",
        Kind::SkipOther { lsn: Lsn::new(0x16_B374_F000), failing: Lsn::new(0x16_B374_D848) },
        "The LSN has a typing error, or is another position from the error message. Nothing was changed.",
        "Repeat `pgsluice skip --lsn LSN` with the LSN from the message.",
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
