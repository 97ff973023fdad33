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
        "Another process applies the subscription",
        Kind::InUse {
            name: "orders".to_owned(),
            holder: "process 4711 (pgsluice orders control, 192.0.2.7)".to_owned(),
        },
        "Another pgsluice, perhaps on another machine, holds the subscription's lock on the target.",
        "Stop that process with `pgsluice stop` on its machine; or give this one another name with \
        `--subscription`.",
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
        "Only one session can use a replication origin. Another session attached to this one, or a backend \
        has not noticed yet that its client's machine is gone.",
        "End that session on the target with `SELECT pg_terminate_backend(...)`. pgsluice then continues by \
        itself.",
        &[("pgsluice scenarios", "another_session_that_holds_our_origin_is_named")],
    ),
    Kind::Damaged(_) => entry(
        Doing::KeepingState,
        "State on the target that is damaged or not pgsluice's",
        Kind::Damaged(
            ServerError::new("ERROR", "42703", "column \"slot\" does not exist").into(),
        ),
        "Somebody altered or dropped a table of schema `pgsluice`, or the schema belonged to something else \
        before.",
        "Restore the schema from a backup of the same moment as the tables. Or give up its contents: run \
        `pgsluice drop --force`, `DROP SCHEMA pgsluice CASCADE`, empty the tables, and start again from \
        nothing.",
        &[STATE],
    ),
    Kind::OriginTaken { .. } => entry(
        Doing::Starting,
        "Another database of the target uses the subscription's name",
        Kind::OriginTaken { origin: "pgsluice_orders_0".to_owned(), name: "orders".to_owned() },
        "Replication origins belong to the whole cluster. An origin of this name exists, and this database \
        did not create it.",
        "Give another name with `--subscription`; or, if nothing uses the origin, drop it with `SELECT \
        pg_replication_origin_drop('...')`.",
        &[],
    ),
    Kind::NoPlace { .. } => entry(
        Doing::Copying,
        "No place for the origin of copied rows",
        Kind::NoPlace { name: "orders".to_owned() },
        "Each replication origin that is used takes a place on the target, and all are taken. Without an origin, \
        copied rows look as if somebody else had written them when the copy ended. A rule that keeps the later \
        version would then keep out changes that came while the table was copied.",
        "Raise `max_replication_slots`, from 18 on `max_active_replication_origins`, on the target and restart it. \
        pgsluice tries again by itself.",
        &[("pgsluice scenarios", "copied_rows_are_the_subscriptions_own_where_rules_compare_times")],
    ),
    Kind::OriginGone { .. } => entry(
        Doing::KeepingState,
        "The replication origin is gone",
        Kind::OriginGone { origin: "pgsluice_orders_0".to_owned(), name: "orders".to_owned() },
        "Somebody dropped the origin on the target, or the target was made from a dump, which has no \
        origins. The position of the target is lost.",
        "Run `pgsluice drop`, empty the tables, and copy them again with `pgsluice run`.",
        &[STATE],
    ),
}
