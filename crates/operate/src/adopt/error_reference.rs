//! Every error of adopting and handing back, for docs/errors.md.

use base::error_reference::{Doing, Entry, HeldBy, entry, nothing_of_its_own};
use base::{Lsn, SubscriptionName};

use super::refusal::Refusal;
use super::{Error, Kind};

const NATIVE: &str = "orders_native";
const NATIVE_SLOT: &str = "orders_native";
const SOURCE: &str = "db1:5432/shop as repl";
const HERE: Lsn = Lsn::new(0x16_B374_D848);
const LATER: Lsn = Lsn::new(0x16_B400_0028);
const ADOPT: HeldBy = ("pgsluice scenarios", "what_cannot_be_adopted_is_refused_and_left_as_it_is");
const RELAXED: HeldBy = ("pgsluice scenarios", "p1_what_was_committed_ahead_is_not_released");

base::error_reference! {
    /// Every way in which adopting or handing back is refused.
    #[must_use]
    pub fn error_reference() -> Error where error is &error.0 => Kind;
    // `engine` lists it.
    Kind::Pipeline(_) => nothing_of_its_own(),
    Kind::Refused(Refusal::SlotUsedSince { .. }) => adopting(
        "The native subscription had its slot before it was released",
        Refusal::SlotUsedSince { native: NATIVE.to_owned(), slot: NATIVE_SLOT.to_owned() },
        "The native subscription may have applied changes that pgsluice has applied too; pgsluice cannot \
        tell.",
        "Run `SET (slot_name = NONE)` as the message says, if the native subscription was never enabled \
        since, and then `pgsluice release` again. Otherwise run `pgsluice drop` and copy again.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::MadeByRun { .. }) => adopting(
        "A subscription of this name exists",
        Refusal::MadeByRun { name: name(), native: NATIVE.to_owned() },
        "`pgsluice run` created a subscription with this name on the target.",
        "Adopt under another name: `pgsluice adopt --subscription NAME --native NAME`, where the second name \
        is that of the native subscription.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::NoSlot { .. }) => adopting(
        "The native subscription has no slot",
        Refusal::NoSlot { native: NATIVE.to_owned() },
        "Without a slot, there is no position in the source's WAL to continue from.",
        "Set the slot if it still exists: `ALTER SUBSCRIPTION ... SET (slot_name = '...')`. Otherwise \
        `pgsluice run` copies the tables.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::OtherOwner { .. }) => adopting(
        "The native subscription belongs to another role",
        Refusal::OtherOwner { native: NATIVE.to_owned(), owner: "owner".to_owned() },
        "Only its owner, a member of that role or a superuser may alter a subscription.",
        "Give the owner as `user` in `--target`, or `GRANT` the owner's role to the target's role.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::SuperusersOnly { .. }) => adopting(
        "Only a superuser may alter the native subscription",
        Refusal::SuperusersOnly { native: NATIVE.to_owned() },
        "The subscription has `password_required = false`, which lets it connect without a password.",
        "Give a superuser as `user` in `--target`; or ask a superuser to run `ALTER SUBSCRIPTION ... SET \
        (password_required = true)`.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::NoWayBack { .. }) => adopting(
        "The role could not hand the subscription back",
        Refusal::NoWayBack {
            role: "repl".to_owned(),
            function: "pg_replication_origin_advance(text, pg_lsn)",
        },
        "`pgsluice release` moves the native subscription's origin to pgsluice's position. `adopt` checks \
        before its first step that the way back is open.",
        "Run the `GRANT EXECUTE ON FUNCTION` from the message on the target, as a superuser.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::TwoPhase { .. }) => adopting(
        "The native subscription has two_phase",
        Refusal::TwoPhase { native: NATIVE.to_owned() },
        "The native worker may have prepared a transaction. Its commit comes as a message that pgsluice does \
        not ask for.",
        "Run `ALTER SUBSCRIPTION ... SET (two_phase = false)` as the message says, on 18 and later.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::Skips { .. }) => adopting(
        "The native subscription is to skip a transaction",
        Refusal::Skips { native: NATIVE.to_owned(), name: name() },
        "`ALTER SUBSCRIPTION ... SKIP` names a transaction that the subscription has not reached yet. \
        pgsluice would not know of it.",
        "Let the native subscription skip it first. Or run `ALTER SUBSCRIPTION ... SKIP (lsn = NONE)`, \
        adopt, and run `pgsluice skip --lsn LSN`.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::Synchronising { .. }) => adopting(
        "The native subscription is still copying",
        Refusal::Synchronising {
            native: NATIVE.to_owned(),
            tables: vec!["public.accounts (state d)".to_owned()],
        },
        "A table that is still synchronising has a slot and a position of its own, which pgsluice cannot \
        take over.",
        "Wait until `srsubstate` in `pg_subscription_rel` is `r` for all tables, then repeat `pgsluice \
        adopt`.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::SlotNotThere { .. }) => adopting(
        "The native subscription's slot is not on this source",
        Refusal::SlotNotThere { slot: NATIVE_SLOT.to_owned(), place: SOURCE.to_owned() },
        "`--source` leads to another server than the native subscription reads from, or the slot was \
        dropped.",
        "Correct `--source`. The native subscription's address is `subconninfo` in `pg_subscription`.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::SlotOfAnother { .. }) => adopting(
        "The native subscription's slot belongs to something else",
        Refusal::SlotOfAnother {
            slot: NATIVE_SLOT.to_owned(),
            place: SOURCE.to_owned(),
            plugin: Some("wal2json".to_owned()),
            database: Some("shop".to_owned()),
        },
        "A slot with this name exists there, for another plugin or another database.",
        "Correct `--source`, including its database. The native subscription's address is `subconninfo` in \
        `pg_subscription`.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::SlotLost { .. }) => adopting(
        "The native subscription's slot was invalidated",
        Refusal::SlotLost { slot: NATIVE_SLOT.to_owned(), why: Some("wal_removed".to_owned()) },
        "The source removed WAL that the native subscription still needed. Neither side can continue.",
        "Run `DROP SUBSCRIPTION` on the target, empty the tables, and copy them with `pgsluice run`.",
        &[],
    ),
    Kind::Refused(Refusal::SlotBusy { .. }) => adopting(
        "The slot is still in use",
        Refusal::SlotBusy { slot: NATIVE_SLOT.to_owned(), pid: 4711 },
        "A walsender of the side that gave the slot up has not noticed that its client is gone.",
        "End the walsender on the source with `SELECT pg_terminate_backend(...)`, and repeat the command.",
        &[],
    ),
    Kind::Refused(Refusal::NativeDropped) => adopting(
        "The native subscription was dropped at the same time",
        Refusal::NativeDropped,
        "Somebody ran `DROP SUBSCRIPTION` at the same moment. That drops its slot too.",
        "Run `pgsluice run`, which copies the tables, if you want to replicate them.",
        &[],
    ),
    Kind::Refused(Refusal::OriginTaken { .. }) => adopting(
        "Another database of the target uses the adopting subscription's name",
        Refusal::OriginTaken { origin: "pgsluice_orders_0".to_owned(), name: name() },
        "Replication origins belong to the whole cluster, and one with this name exists.",
        "Adopt under another name: `pgsluice adopt --subscription NAME --native NAME`, where the second name \
        is that of the native subscription.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::NotAdopted { .. }) => adopting(
        "The subscription to release was not adopted",
        Refusal::NotAdopted { name: name() },
        "`pgsluice run` created this subscription: there is no native subscription behind it.",
        "Create a native subscription with `CREATE SUBSCRIPTION` after `pgsluice drop`, if you want one.",
        &[],
    ),
    Kind::Refused(Refusal::NobodyToReleaseTo { .. }) => adopting(
        "The native subscription to release to is gone",
        Refusal::NobodyToReleaseTo { name: name() },
        "The native subscription was dropped while pgsluice had its slot.",
        "Go on with `pgsluice run`, or remove everything with `pgsluice drop`.",
        &[],
    ),
    Kind::Refused(Refusal::CommittedAhead { .. }) => adopting(
        "Released while transactions are committed out of order",
        Refusal::CommittedAhead { name: name(), at: HERE, furthest: LATER },
        "With `commit_order = relaxed`, a stop can leave an earlier transaction unapplied while later ones \
        are applied. A native subscription knows one position only.",
        "Run with `--commit-order preserve` until the target has caught up with the source. Then stop, and \
        run `pgsluice release` again.",
        &[RELAXED],
    ),
}

fn adopting(
    title: &'static str,
    why: Refusal,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<Error>; 1] {
    entry(Doing::Adopting, title, Error::refused(why), cause, remedy, held_by)
}

fn name() -> SubscriptionName {
    "orders".parse().expect("a name as in the manual")
}
