//! Every error that can end a pipeline, or after which it is tried again, for docs/errors.md.

use std::io;
use std::time::Duration;

use base::error_reference::{Doing, Entry, HeldBy, carried, entry};
use base::{Lsn, SubscriptionName};
use source::publication::TableName;
use wal_source::OtherSource;

use crate::Error;
use crate::error::{Kind, Silence};
use crate::refusal::Refusal;

const SLOT: &str = "pgsluice_orders";
const NATIVE: &str = "orders_native";
const NATIVE_SLOT: &str = "orders_native";
const HERE: Lsn = Lsn::new(0x16_B374_D848);
const LATER: Lsn = Lsn::new(0x16_B400_0028);

const ADOPT: HeldBy = ("pgsluice scenarios", "what_cannot_be_adopted_is_refused_and_left_as_it_is");
const KILLED_ADOPT: HeldBy = ("pgsluice scenarios", "killed_at_any_instant_it_is_repeated");
const SLOT_MADE_AGAIN: HeldBy = ("pgsluice scenarios", "a_slot_made_again_under_the_same_name_is_refused");
const SLOT_LOST: HeldBy =
    ("pgsluice scenarios", "a_slot_that_lost_wal_while_the_target_was_blocked_is_refused");
const SLOT_GONE: HeldBy = ("pgsluice scenarios", "a_slot_that_is_gone_is_refused");
const OTHER_SOURCE: HeldBy = ("pgsluice scenarios", "another_source_is_refused_by_its_identifier");
const RESTORED_TARGET: HeldBy = ("pgsluice scenarios", "p4_a_restored_target_is_refused_with_the_remedy");
const RESTORED_SOURCE: HeldBy = ("pgsluice scenarios", "a_source_restored_to_before_our_position_is_refused");
const FOLLOWED_BY_ITSELF: HeldBy = ("pgsluice scenarios", "w3_a_promoted_standby_is_followed_by_itself");
const DISABLED: HeldBy = ("pgsluice scenarios", "disable_on_error_keeps_the_prefix_and_stays_disabled");
const WAL_STATE: HeldBy = ("pgsluice scenarios", "without_what_was_kept_nothing_is_decoded");
const RELOOK: HeldBy =
    ("pgsluice scenarios", "w1_tables_that_were_written_meanwhile_are_copied_again_once_allowed");
const BOTH_WAYS: HeldBy = ("pgsluice scenarios", "two_sides_with_rows_are_refused_with_the_remedy");
const FINDINGS: HeldBy = ("pgsluice check", "every_finding_has_an_object_and_a_remedy_that_helps");
const STALLED_TARGET: HeldBy = ("pgsluice scenarios", "a_network_to_the_target_that_stalls_is_noticed");
const CLOCK_OF_COPY: HeldBy =
    ("pgsluice scenarios", "nothing_is_copied_from_a_source_whose_clock_is_far_ahead_until_the_clocks_agree");
const COPY_AGAIN: &str =
    "Run `pgsluice drop`, empty the tables on the target, and copy them again with `pgsluice run`.";

base::error_reference! {
    /// Every way in which a pipeline fails.
    #[must_use]
    pub fn error_reference() -> Error where error is error.kind() => Kind;
    Kind::Client(_) => carried(client::error_reference()),
    Kind::Source(_) => carried(source::error_reference()),
    Kind::Copy(_) => carried(copy::error_reference()),
    Kind::Schema(_) => carried(schema::error_reference()),
    Kind::Apply(_) => carried(apply::error_reference()),
    Kind::Wal(_) => carried(wal_source::error_reference()),
    Kind::Spool(_) => entry(
        Doing::KeepingState,
        "The spool directory cannot be used",
        Kind::Spool(io::Error::other("spool directory /var/lib/pgsluice/orders: Permission denied (os error 13)")),
        "pgsluice keeps open transactions on this machine's disk, below `state_dir`. It cannot create, read \
        or empty that directory.",
        "Give the directory to the user of this process, or name another with `--state-dir`.",
        &[("pgsluice scenarios", "a_full_disk_under_the_spool_is_waited_for")],
    ),
    Kind::NoRoom { .. } => entry(
        Doing::KeepingState,
        "The spool has no room for the changes that come again",
        Kind::NoRoom { dir: "/var/lib/pgsluice/orders".into(), free: 1_200_000, needed: 3_400_000_000 },
        "The spool was full, and the source sends its contents again. pgsluice checks that there is room for \
        as much before it starts.",
        "Make room on that disk, or name a directory on another disk with `--state-dir`. `run` then \
        continues by itself.",
        &[("pgsluice scenarios", "a_full_spool_is_asked_about_before_the_same_is_received_again")],
    ),
    Kind::ClockSkew { .. } => entry(
        Doing::Copying,
        "The source's clock is far ahead, so nothing is copied",
        Kind::ClockSkew { ahead: Duration::from_secs(3600), max: Duration::from_secs(30) },
        "A conflict rule compares commit times, so rows are copied only after the target's clock has passed \
        their commit times. The source's clock is ahead by more than `clock_skew_max`.",
        "Correct the clocks of both servers (`chronyc tracking` shows the offset of each). pgsluice tries again \
        and goes on by itself. It waits longer with a larger `--clock-skew-max`.",
        &[CLOCK_OF_COPY],
    ),
    Kind::SourceIsStandby => entry(
        Doing::Starting,
        "The source is a standby",
        Kind::SourceIsStandby,
        "With `source_mode = wal`: the connection leads to a standby, as it may during a failover. The \
        standby may have less WAL than pgsluice has applied, and it does not say on which timeline it will \
        continue.",
        "Give a `--source` that leads to the primary, with `target_session_attrs=read-write` if it names \
        several hosts; or promote this standby. `run` keeps trying meanwhile.",
        &[FOLLOWED_BY_ITSELF],
    ),
    Kind::Silent(_) => entry(
        Doing::Applying,
        "The target is silent",
        Kind::Silent(Silence { pid: 4711, lasted: Duration::from_secs(60) }),
        "The network drops packets without an error. The target's backend waits for pgsluice or is gone, and \
        pgsluice waits for it. A backend that works, or waits for a lock, is left alone.",
        "Look at the devices between. If pauses of that length are usual there, raise \
        `wal_receiver_timeout`.",
        &[STALLED_TARGET],
    ),
    Kind::Disabled { .. } => entry(
        Doing::Starting,
        "The subscription is disabled",
        Kind::Disabled { name: name(), after: None },
        "`pgsluice disable` disabled it, or an error did because `disable_on_error` is set. The message then \
        has that error.",
        "Repair the cause if there is one. Then run `pgsluice enable` and `pgsluice run`.",
        &[DISABLED, ("pgsluice run", "what_fails_can_be_disabled_and_enabled_again")],
    ),
    Kind::DisabledNow { .. } => entry(
        Doing::Applying,
        "An error disabled the subscription",
        Kind::DisabledNow {
            name: name(),
            error: Box::new(unfit()),
        },
        "`disable_on_error` is set, and a change does not fit the target. The message begins with the error \
        itself, which has its own entry.",
        "Repair the cause, or skip the transaction with `pgsluice skip --lsn LSN`. Then run `pgsluice \
        enable` and `pgsluice run`.",
        &[DISABLED],
    ),
    Kind::Refused(Refusal::Relook { .. }) => entry(
        Doing::Decoding,
        "Tables must be copied again before decoding can continue",
        Kind::Refused(Refusal::Relook {
            cause: "cannot decode the source's WAL: WAL record 0/1A2B3C8: full_page_writes was switched off, so \
                    pgsluice cannot follow the catalogs; switch it on"
                .to_owned(),
            is_proven: true,
            tables: vec!["public.orders".to_owned()],
            copy_data: true,
        }),
        "With `source_mode = wal`: `full_page_writes` or `wal_level` was lowered, the database was moved, or \
        pgsluice could not follow the catalogs. Decoding can restart from newly read catalogs. It cannot \
        decode what was written before them and is not on the target.",
        "Check whether the target's rows of these tables may be removed. Then run `pgsluice relook` and \
        `pgsluice run`. The other tables stay as they are.",
        &[RELOOK],
    ),
    Kind::Refused(Refusal::BothHaveRows { .. }) => starting(
        "Both sides of a pair have rows",
        Refusal::BothHaveRows {
            table: TableName::new("public", "orders"),
            database: "app on b port 5432".to_owned(),
        },
        "Two databases are set up to follow each other, and the one that the first copy goes to has rows \
        already. The other side would never receive them.",
        "Let the copy start from the side that has the rows: `--source` names it. If both sides have the \
        same rows, run with `--copy-data off`. `pgsluice verify` compares them. Otherwise empty the tables \
        of one side.",
        &[BOTH_WAYS],
    ),
    Kind::Refused(Refusal::OtherDirection { .. }) => starting(
        "The other direction has ended",
        Refusal::OtherDirection { name: name() },
        "While two databases are set up to follow each other, neither direction can go on without the other, \
        and the other has ended with an error of its own.",
        "Repair the cause of that error, which the log has. Then give the same `pgsluice run` again. It \
        continues where it was.",
        &[BOTH_WAYS],
    ),
    Kind::Refused(Refusal::OtherMode { .. }) => starting(
        "The subscription was created in the other source mode",
        Refusal::OtherMode { name: name(), made_for: "logical" },
        "Its slot is logical, perhaps adopted from a native subscription, and `source_mode = wal` needs a \
        physical slot; or the other way round.",
        "Give the mode that it was created with. To change the mode, run `pgsluice drop`, empty the tables \
        on the target, and copy them again with `pgsluice run`.",
        &[WAL_STATE],
    ),
    Kind::Refused(Refusal::Check(_)) => starting(
        "These servers cannot replicate as they are",
        Refusal::Check(vec![
            "source, wal_level: is \"replica\": changes cannot be decoded; set it and restart the server; \
             ALTER SYSTEM SET wal_level = 'logical'"
                .to_owned(),
            "target, table public.accounts: does not exist; create it there, or give --create-schema".to_owned(),
        ]),
        "A start checks both ends before it changes anything. It lists every reason at once, each with its \
        object and its remedy: settings, limits, rights, tables, columns, identities.",
        "Do what each reason says. `pgsluice check` shows the reasons with the SQL, and reports when none is \
        left.",
        &[FINDINGS, ("pgsluice check", "what_is_said_of_a_table_is_what_the_applier_does")],
    ),
    Kind::Refused(Refusal::SlotOfAnotherTarget { .. }) => starting(
        "The slot belongs to another target",
        Refusal::SlotOfAnotherTarget { slot: SLOT.to_owned(), name: name() },
        "The source has a slot with this subscription's name, and this target has no record of it. Another \
        target uses the name, or somebody removed the state on the target.",
        "Give another name with `--subscription`; or, if nothing uses the slot, run `SELECT \
        pg_drop_replication_slot('...')` on the source.",
        &[],
    ),
    Kind::Refused(Refusal::OtherSource(_)) => starting(
        "Another source than before",
        Refusal::OtherSource(OtherSource {
            name: name(),
            made_for: "7412345678901234567".to_owned(),
            found: "7498765432109876543".to_owned(),
        }),
        "`--source` leads to another cluster than the one that the subscription was created for. The address \
        is wrong, or initdb created the server anew.",
        "Correct `--source`. To replicate from this server, run `pgsluice drop`, empty the tables, and run \
        `pgsluice run`.",
        &[OTHER_SOURCE],
    ),
    Kind::Refused(Refusal::NotOurSlot { .. }) => starting(
        "The slot is not the one that pgsluice created",
        Refusal::NotOurSlot { slot: SLOT.to_owned(), name: name(), plugin: None, database: None },
        "Somebody dropped the slot and created it again, as a physical slot, for another plugin or in \
        another database.",
        COPY_AGAIN,
        &[SLOT_MADE_AGAIN],
    ),
    Kind::Refused(Refusal::SlotLost { .. }) => starting(
        "The slot was invalidated",
        Refusal::SlotLost { slot: SLOT.to_owned(), why: Some("wal_removed".to_owned()) },
        "The subscription was stopped or blocked for too long. The source removed WAL that the target still \
        needs, because of `max_slot_wal_keep_size` or `idle_replication_slot_timeout`.",
        "Run `pgsluice drop`, empty the tables, and copy them again with `pgsluice run`. Raise \
        `max_slot_wal_keep_size`.",
        &[SLOT_LOST],
    ),
    Kind::Refused(Refusal::SlotGone { .. }) => starting(
        "The slot was dropped",
        Refusal::SlotGone { slot: SLOT.to_owned() },
        "Somebody dropped it on the source, or a standby without a copy of the slot was promoted. Failover \
        slots exist from 17 on.",
        COPY_AGAIN,
        &[SLOT_GONE],
    ),
    Kind::Refused(Refusal::TargetBehind { .. }) => starting(
        "The slot is ahead of the target",
        Refusal::TargetBehind { slot: SLOT.to_owned(), confirmed: LATER, start: HERE },
        "Three causes look the same. The target was restored from a backup that is older than the position \
        it had confirmed. The slot was dropped and created again under the same name. Or somebody advanced \
        the slot. In each case the target lacks changes that the source does not have any more.",
        COPY_AGAIN,
        &[RESTORED_TARGET, SLOT_MADE_AGAIN],
    ),
    Kind::Refused(Refusal::SourceBehind { .. }) => starting(
        "The source was restored to before our position",
        Refusal::SourceBehind { end: HERE, start: LATER },
        "The source's files were restored to an older state. It now writes other transactions at positions \
        that the target has passed.",
        "Compare with `pgsluice verify`. Then run `pgsluice drop`, empty the tables, and copy them again \
        with `pgsluice run`.",
        &[RESTORED_SOURCE],
    ),
    Kind::Refused(Refusal::Forked { .. }) => starting(
        "The source failed over to before our position",
        Refusal::Forked { before: 1, now: 2, fork: HERE, applied: LATER },
        "A standby was promoted, or a backup was recovered to a point in time, without the changes that the \
        target has applied. pgsluice follows a failover that lost none of these changes.",
        "Compare with `pgsluice verify`. Then run `pgsluice drop`, empty the tables, and copy them again \
        with `pgsluice run`. To be safe next time, see `synchronized_standby_slots`.",
        &[RESTORED_SOURCE],
    ),
    Kind::Refused(Refusal::OtherHistory { .. }) => starting(
        "The source has another history",
        Refusal::OtherHistory { before: 2, now: 1, applied: LATER },
        "This server was never on the timeline that the target's changes came from. It is an old primary \
        that came back after a failover, or it was restored to a state before the failover.",
        "Give the present primary as `--source`. If this server is the primary, run `pgsluice drop`, empty \
        the tables, and run `pgsluice run`.",
        &[RESTORED_SOURCE],
    ),
    Kind::Refused(Refusal::Binary(_)) => starting(
        "A column's values cannot come in binary",
        Refusal::Binary(source::publication::BinaryRefusal::example()),
        "`binary = on` is set. The binary form of a published column means nothing on another server, or the \
        column has another type there.",
        "Give `--binary auto`, which uses binary where every column allows it.",
        &[("pgsluice scenarios", "c3_a_new_table_whose_types_do_not_travel_in_binary")],
    ),
    Kind::Refused(Refusal::Generated { .. }) => starting(
        "A published column that the target computes",
        Refusal::Generated { table: table(), column: "total".to_owned() },
        "The copy could leave the column out, but pgsluice could not apply any change of it.",
        "Run `ALTER TABLE ... ALTER COLUMN ... DROP EXPRESSION` on the target, or leave the column out of \
        the publication's column list.",
        &[("pgsluice scenarios", "generated_columns_are_computed_on_each_end")],
    ),
    Kind::Refused(Refusal::PartOfTheTables { .. }) => entry(
        Doing::CreatingSchema,
        "The target has some of the tables",
        refused(Refusal::PartOfTheTables {
            there: vec!["public.accounts".to_owned()],
            missing: vec!["public.transfers".to_owned()],
        }),
        "`--create-schema` needs a target that has none of the published tables.",
        "Drop the tables that exist; or create the missing ones, and run without `--create-schema`.",
        &[("pgsluice scenarios", "what_the_target_does_not_take_is_named_and_nothing_is_left")],
    ),
    Kind::Refused(Refusal::NotJoined { .. }) => entry(
        Doing::Copying,
        "A table that was added cannot join the stream",
        refused(Refusal::NotJoined {
            table: "public.accounts".to_owned(),
            reason: "its changes cannot be put aside: No space left on device (os error 28)".to_owned(),
        }),
        "A table was added to the publication and copied. pgsluice could not keep the changes that arrived \
        for it meanwhile, or the target's table does not fit.",
        "Repair the cause and start `pgsluice run` again: it copies the table again.",
        &[("pgsluice scenarios", "c1_a_kill_while_a_table_joins_copies_it_anew")],
    ),
    Kind::Refused(Refusal::Dropped) => starting(
        "The subscription was dropped at the same time",
        Refusal::Dropped,
        "`pgsluice drop` or `pgsluice release` removed the subscription while this process was starting.",
        "Run `pgsluice run` if you want the subscription: it starts again from nothing, with a copy.",
        &[],
    ),
    Kind::Refused(Refusal::NoSnapshot) => starting(
        "The source exported no snapshot",
        Refusal::NoSnapshot,
        "The answer to CREATE_REPLICATION_SLOT had no snapshot. PostgreSQL always gives one.",
        "Connect to the server itself with `--source`, not through a pooler or a proxy.",
        &[],
    ),
    Kind::Refused(Refusal::ApplierEnded) => entry(
        Doing::Applying,
        "The applier ended by itself",
        refused(Refusal::ApplierEnded),
        "This is a defect of pgsluice. What the target has committed stays.",
        "Report it with the log of a run with `--log-level debug`. `pgsluice run` continues from the last \
        commit.",
        &[],
    ),
    Kind::Refused(Refusal::ApplierBroke(_)) => entry(
        Doing::Applying,
        "The applier broke down",
        refused(Refusal::ApplierBroke("task 7 panicked".to_owned())),
        "This is a defect of pgsluice. What the target has committed stays; the rest was rolled back.",
        "Report it with the log of a run with `--log-level debug`. `pgsluice run` continues from the last \
        commit.",
        &[],
    ),
    Kind::Refused(Refusal::AdoptionUnfinished { .. }) => adopting(
        "An adoption was interrupted",
        Refusal::AdoptionUnfinished { name: name() },
        "`pgsluice adopt` ended after it had disabled the native subscription and before it had read that \
        subscription's position. Nothing is lost.",
        "Repeat `pgsluice adopt`, or hand the subscription back with `pgsluice release`.",
        &[KILLED_ADOPT],
    ),
    Kind::Refused(Refusal::SlotGivenBack { .. }) => adopting(
        "The native subscription has its slot again",
        Refusal::SlotGivenBack { native: NATIVE.to_owned(), slot: NATIVE_SLOT.to_owned() },
        "Somebody gave the slot back to the native subscription with `ALTER SUBSCRIPTION`. Both would apply \
        the same changes.",
        "Take the slot away again with `SET (slot_name = NONE)`, as the message says; or hand everything \
        back with `pgsluice release`.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::AdoptedOriginNone { .. }) => adopting(
        "An adopted subscription wants origin = none",
        Refusal::AdoptedOriginNone { name: name() },
        "The native subscription asked for changes without an origin. In two-way replication, asking for all \
        changes now would send them round in a circle.",
        "Give `--origin none`; or leave out `--publication`, so that pgsluice uses the stored options.",
        &[],
    ),
}

fn name() -> SubscriptionName {
    "orders".parse().expect("a name as in the manual")
}

fn table() -> TableName {
    TableName { schema: "public".to_owned(), name: "accounts".to_owned() }
}

/// A change that does not fit the target.
fn unfit() -> Error {
    let mut all = apply::error_reference().into_iter().map(|entry| entry.error);
    all.find(apply::Error::is_data).expect("applying has such errors").into()
}

fn refused(why: Refusal) -> Error {
    Error::refused(why)
}

fn starting(
    title: &'static str,
    why: Refusal,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<Error>; 1] {
    entry(Doing::Starting, title, refused(why), cause, remedy, held_by)
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
