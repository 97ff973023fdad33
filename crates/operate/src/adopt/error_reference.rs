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
        "Nobody knows whether it has applied changes meanwhile that pgsluice has applied too.",
        "Run `SET (slot_name = NONE)` as the message says if it was never enabled since, and `pgsluice release` again; \
         otherwise `pgsluice drop` and copy again.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::MadeByRun { .. }) => adopting(
        "A subscription of this name exists",
        Refusal::MadeByRun { name: name(), native: NATIVE.to_owned() },
        "`pgsluice run` made a subscription of this name on the target.",
        "Adopt under another name: `pgsluice adopt --subscription NAME --native NAME`, the second one the native one's.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::NoSlot { .. }) => adopting(
        "The native subscription has no slot",
        Refusal::NoSlot { native: NATIVE.to_owned() },
        "Without a slot there is no place in the source's WAL to go on from.",
        "Set it if the slot still exists: `ALTER SUBSCRIPTION ... SET (slot_name = '...')`; otherwise `pgsluice run` \
         copies.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::OtherOwner { .. }) => adopting(
        "The native subscription is another role's",
        Refusal::OtherOwner { native: NATIVE.to_owned(), owner: "owner".to_owned() },
        "Only its owner, a member of that role or a superuser may alter a subscription.",
        "Give the owner as `user` in `--target`, or `GRANT` the owner's role to this one.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::SuperusersOnly { .. }) => adopting(
        "Only a superuser may alter the native subscription",
        Refusal::SuperusersOnly { native: NATIVE.to_owned() },
        "It was made with `password_required = false`, which lets it connect without a password.",
        "Give a superuser as `user` in `--target`; or have one run `ALTER SUBSCRIPTION ... SET (password_required = \
         true)`.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::NoWayBack { .. }) => adopting(
        "The role could not hand the subscription back",
        Refusal::NoWayBack {
            role: "repl".to_owned(),
            function: "pg_replication_origin_advance(text, pg_lsn)",
        },
        "`pgsluice release` moves the native subscription's origin to where pgsluice stands. What the way back needs \
         is looked for before the first step.",
        "Run the `GRANT EXECUTE ON FUNCTION` of the message on the target, as a superuser.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::TwoPhase { .. }) => adopting(
        "The native subscription has two_phase",
        Refusal::TwoPhase { native: NATIVE.to_owned() },
        "A transaction that the native worker prepared is committed by a message that pgsluice does not ask for.",
        "Take the option away as the message says: `ALTER SUBSCRIPTION ... SET (two_phase = false)`, from 18 on.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::Skips { .. }) => adopting(
        "The native subscription is to skip a transaction",
        Refusal::Skips { native: NATIVE.to_owned(), name: name() },
        "`ALTER SUBSCRIPTION ... SKIP` was given and not met yet; pgsluice would not know of it.",
        "Let it skip first; or `ALTER SUBSCRIPTION ... SKIP (lsn = NONE)`, adopt, and `pgsluice skip --lsn LSN`.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::Synchronising { .. }) => adopting(
        "The native subscription is still copying",
        Refusal::Synchronising {
            native: NATIVE.to_owned(),
            tables: vec!["public.accounts (state d)".to_owned()],
        },
        "Tables that are being synchronised have slots and positions of their own, which cannot be taken over.",
        "Wait until `srsubstate` in `pg_subscription_rel` is `r` for all, then repeat `pgsluice adopt`.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::SlotNotThere { .. }) => adopting(
        "The native subscription's slot is not on this source",
        Refusal::SlotNotThere { slot: NATIVE_SLOT.to_owned(), place: SOURCE.to_owned() },
        "`--source` leads to another server than the native subscription's, or the slot was dropped.",
        "Correct `--source`; the native one's is `subconninfo` in `pg_subscription`.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::SlotOfAnother { .. }) => adopting(
        "The native subscription's slot is another's",
        Refusal::SlotOfAnother {
            slot: NATIVE_SLOT.to_owned(),
            place: SOURCE.to_owned(),
            plugin: Some("wal2json".to_owned()),
            database: Some("shop".to_owned()),
        },
        "A slot of this name exists there, of another plugin or another database.",
        "Correct `--source`, its database too; the native one's is `subconninfo` in `pg_subscription`.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::SlotLost { .. }) => adopting(
        "The native subscription's slot was invalidated",
        Refusal::SlotLost { slot: NATIVE_SLOT.to_owned(), why: Some("wal_removed".to_owned()) },
        "The source removed WAL that the native subscription still needed: neither side can go on.",
        "Run `DROP SUBSCRIPTION` on the target, empty the tables, and `pgsluice run` copies.",
        &[],
    ),
    Kind::Refused(Refusal::SlotBusy { .. }) => adopting(
        "The slot is still in use",
        Refusal::SlotBusy { slot: NATIVE_SLOT.to_owned(), pid: 4711 },
        "A walsender of the side that gave it up has not noticed that its client has gone.",
        "End it on the source with `SELECT pg_terminate_backend(...)`, and repeat the command.",
        &[],
    ),
    Kind::Refused(Refusal::NativeDropped) => adopting(
        "The native subscription was dropped meanwhile",
        Refusal::NativeDropped,
        "Somebody ran `DROP SUBSCRIPTION` at the same moment; that drops its slot too.",
        "Run `pgsluice run`, which copies, if the tables are to be replicated.",
        &[],
    ),
    Kind::Refused(Refusal::OriginTaken { .. }) => adopting(
        "Another database of the target uses the name that is to adopt",
        Refusal::OriginTaken { origin: "pgsluice_orders_0".to_owned(), name: name() },
        "Replication origins belong to the whole cluster, and one of this name exists.",
        "Adopt under another name: `pgsluice adopt --subscription NAME --native NAME`, the second one the native one's.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::NotAdopted { .. }) => adopting(
        "What is to be released was not adopted",
        Refusal::NotAdopted { name: name() },
        "`pgsluice run` made this subscription: there is no native one behind it.",
        "Create a native one with `CREATE SUBSCRIPTION` after `pgsluice drop`, if that is what is wanted.",
        &[],
    ),
    Kind::Refused(Refusal::NobodyToReleaseTo { .. }) => adopting(
        "There is nobody to release to",
        Refusal::NobodyToReleaseTo { name: name() },
        "The native subscription was dropped while pgsluice had its slot.",
        "Go on with `pgsluice run`, or remove everything with `pgsluice drop`.",
        &[],
    ),
    Kind::Refused(Refusal::CommittedAhead { .. }) => adopting(
        "Released while transactions are committed out of order",
        Refusal::CommittedAhead { name: name(), at: HERE, furthest: LATER },
        "With `commit_order = relaxed` a stop can leave an earlier transaction unapplied behind later ones; a native \
         subscription knows one position only.",
        "Run with `--commit-order preserve` until it is level with the source, stop it, and `pgsluice release` again.",
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
