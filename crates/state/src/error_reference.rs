//! Every error of the state on the target, for docs/errors.md.

use base::error_reference::{Doing, HeldBy, entry, nothing_of_its_own};
use proto::frame::ServerError;

use crate::Error;
use crate::error::Kind;

const STATE: HeldBy = ("pgsluice scenarios", "state_on_the_target_that_is_damaged_or_not_ours_is_refused");

base::error_reference! {
    /// Lists every reason for which the state on the target cannot be used.
    #[must_use]
    pub fn error_reference() -> Error where error is error.kind() => Kind;
    // Documented with connections.
    Kind::Client(_) => nothing_of_its_own(),
    Kind::InUse { .. } => entry(
        Doing::Starting,
        "The subscription is applied by another process",
        Kind::InUse {
            name: "orders".to_owned(),
            holder: "process 4711 (pgsluice orders control, 192.0.2.7)".to_owned(),
        },
        "Another pgsluice, perhaps on another machine, holds the subscription's lock on the target.",
        "Stop that one with `pgsluice stop` where it runs; or give this one another name by `--subscription`.",
        &[
            ("pgsluice scenarios", "a_name_in_use_is_refused"),
            ("pgsluice run", "another_state_directory_does_not_get_round_the_lock_on_the_target"),
        ],
    ),
    Kind::Held { .. } => entry(
        Doing::Applying,
        "Another writer holds our replication origin",
        Kind::Held {
            origin: "pgsluice_orders_0".to_owned(),
            name: "orders".to_owned(),
            pid: 4711,
            who: " (psql, user postgres, local)".to_owned(),
        },
        "A replication origin can be used by one session. Somebody attached this one, or the backend of a process \
         whose machine is gone has not noticed yet.",
        "End that session on the target with `SELECT pg_terminate_backend(...)`; pgsluice then goes on by itself.",
        &[("pgsluice scenarios", "another_session_that_holds_our_origin_is_named")],
    ),
    Kind::Damaged(_) => entry(
        Doing::KeepingState,
        "State on the target that is damaged or not ours",
        Kind::Damaged(
            ServerError::new("ERROR", "42703", "column \"slot\" does not exist").into(),
        ),
        "A table of schema `pgsluice` was altered or dropped, or the schema belonged to something else before.",
        "Restore the schema from a backup of the same moment as the tables; or give up what it knows: `pgsluice drop \
         --force`, `DROP SCHEMA pgsluice CASCADE`, empty the tables and begin anew.",
        &[STATE],
    ),
    Kind::OriginTaken { .. } => entry(
        Doing::Starting,
        "Another database of the target uses the subscription's name",
        Kind::OriginTaken { origin: "pgsluice_orders_0".to_owned(), name: "orders".to_owned() },
        "Replication origins belong to the whole cluster. One of this name exists, and this database did not make it.",
        "Give another name by `--subscription`; or `SELECT pg_replication_origin_drop('...')` if nothing uses it any \
         more.",
        &[],
    ),
    Kind::OriginGone { .. } => entry(
        Doing::KeepingState,
        "The replication origin is gone",
        Kind::OriginGone { origin: "pgsluice_orders_0".to_owned(), name: "orders".to_owned() },
        "Somebody dropped it on the target, or the target was made from a dump, which has no origins. How far it came \
         is not known any more.",
        "Run `pgsluice drop`, empty the tables and `pgsluice run` copies them again.",
        &[STATE],
    ),
}
