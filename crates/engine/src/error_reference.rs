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
const FINDINGS: HeldBy = ("pgsluice check", "every_finding_has_an_object_and_a_remedy_that_helps");
const STALLED_TARGET: HeldBy = ("pgsluice scenarios", "a_network_to_the_target_that_stalls_is_noticed");
const COPY_AGAIN: &str =
    "Run `pgsluice drop`, empty the tables on the target, and `pgsluice run` copies them again.";

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
        "pgsluice keeps open transactions on this machine's disk, below `state_dir`; that cannot be made, read or \
         emptied.",
        "Give the directory to the user who runs pgsluice, or name another by `--state-dir`.",
        &[("pgsluice scenarios", "a_full_disk_under_the_spool_is_waited_for")],
    ),
    Kind::NoRoom { .. } => entry(
        Doing::KeepingState,
        "The spool has no room for what comes again",
        Kind::NoRoom { dir: "/var/lib/pgsluice/orders".into(), free: 1_200_000, needed: 3_400_000_000 },
        "The spool was full. The source sends again what was in it, so pgsluice asks whether there is room for as much before \
         it begins.",
        "Make room on that disk, or name a directory on another by `--state-dir`; it then goes on by itself.",
        &[("pgsluice scenarios", "a_full_spool_is_asked_about_before_the_same_is_received_again")],
    ),
    Kind::SourceIsStandby => entry(
        Doing::Starting,
        "The source is a standby",
        Kind::SourceIsStandby,
        "With `source_mode = wal`: the connection leads to a standby, as it may in the middle of a failover. What it has may be \
         less than what was applied, and it does not say on which timeline it will go on.",
        "Give a `--source` that leads to the primary, with `target_session_attrs=read-write` where it names several hosts; or \
         promote this one. It is tried again meanwhile.",
        &[FOLLOWED_BY_ITSELF],
    ),
    Kind::Silent(_) => entry(
        Doing::Applying,
        "Nothing is heard of the target",
        Kind::Silent(Silence { pid: 4711, lasted: Duration::from_secs(60) }),
        "The network swallows packets without a word: the target's backend waits for us, or is gone, and we wait for \
         it. A backend that works or waits for a lock is left alone.",
        "Look at what stands between; raise `wal_receiver_timeout` if pauses of that length are ordinary there.",
        &[STALLED_TARGET],
    ),
    Kind::Disabled { .. } => entry(
        Doing::Starting,
        "The subscription is disabled",
        Kind::Disabled { name: name(), after: None },
        "`pgsluice disable` said so, or an error did with `disable_on_error`; the message then has that error.",
        "Repair the cause if there is one, then `pgsluice enable` and `pgsluice run`.",
        &[DISABLED, ("pgsluice run", "what_fails_can_be_disabled_and_enabled_again")],
    ),
    Kind::DisabledNow { .. } => entry(
        Doing::Applying,
        "An error disabled the subscription",
        Kind::DisabledNow {
            name: name(),
            error: Box::new(unfit()),
        },
        "`disable_on_error` is set, and a change does not fit the target. The error itself, which stands first in the \
         message, has an entry of its own.",
        "Repair the cause, or pass over the transaction with `pgsluice skip --lsn LSN`; then `pgsluice enable` and \
         `pgsluice run`.",
        &[DISABLED],
    ),
    Kind::Refused(Refusal::Relook { .. }) => entry(
        Doing::Decoding,
        "Tables must be copied again for decoding to go on",
        Kind::Refused(Refusal::Relook {
            cause: "cannot decode the source's WAL: WAL record 0/1A2B3C8: full_page_writes was switched off, so that catalogs \
                    cannot be followed; switch it on"
                .to_owned(),
            is_proven: true,
            tables: vec!["public.orders".to_owned()],
            copy_data: true,
        }),
        "With `source_mode = wal`: `full_page_writes` or `wal_level` was lowered, the database was moved, or the catalogs could not \
         be followed. Decoding can go on from a new look at them, but not what was written before it and is not on the target.",
        "Look whether the target's rows of these tables may be removed; then run `pgsluice relook` and `pgsluice run`. The other \
         tables stay as they are.",
        &[RELOOK],
    ),
    Kind::Refused(Refusal::OtherMode { .. }) => starting(
        "The subscription was begun in the other source mode",
        Refusal::OtherMode { name: name(), made_for: "logical" },
        "Its slot is a logical one, perhaps adopted from a native subscription, and `source_mode = wal` needs a physical \
         one; or the other way round.",
        "Give the mode it was begun with. To change it, run `pgsluice drop`, empty the tables on the target, and \
         `pgsluice run` copies them again.",
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
        "A start looks at both ends before it changes anything. Every reason is told at once, each with its object and \
         its remedy: settings, limits, rights, tables, columns, identities.",
        "Do what each reason says; `pgsluice check` shows them with the SQL, and says when nothing is left.",
        &[FINDINGS, ("pgsluice check", "what_is_said_of_a_table_is_what_the_applier_does")],
    ),
    Kind::Refused(Refusal::SlotOfAnotherTarget { .. }) => starting(
        "The slot belongs to another target",
        Refusal::SlotOfAnotherTarget { slot: SLOT.to_owned(), name: name() },
        "A slot of this subscription's name exists and this target knows nothing of it: another target uses the name, \
         or state on the target was removed by hand.",
        "Give another name by `--subscription`; or, if nothing uses the slot, `SELECT pg_drop_replication_slot('...')` \
         on the source.",
        &[],
    ),
    Kind::Refused(Refusal::OtherSource(_)) => starting(
        "Another source than before",
        Refusal::OtherSource(OtherSource {
            name: name(),
            made_for: "7412345678901234567".to_owned(),
            found: "7498765432109876543".to_owned(),
        }),
        "`--source` leads to another cluster than the one that the subscription was made for: a wrong address, or a \
         server that was made anew with initdb.",
        "Correct `--source`; to begin with this server, `pgsluice drop`, empty the tables and `pgsluice run`.",
        &[OTHER_SOURCE],
    ),
    Kind::Refused(Refusal::NotOurSlot { .. }) => starting(
        "A slot of our name that is not the one we made",
        Refusal::NotOurSlot { slot: SLOT.to_owned(), name: name(), plugin: None, database: None },
        "The slot was dropped and made again, as a physical one, for another plugin or in another database.",
        COPY_AGAIN,
        &[SLOT_MADE_AGAIN],
    ),
    Kind::Refused(Refusal::SlotLost { .. }) => starting(
        "The slot was invalidated",
        Refusal::SlotLost { slot: SLOT.to_owned(), why: Some("wal_removed".to_owned()) },
        "The source removed WAL that the target still needs, to keep to `max_slot_wal_keep_size` (or \
         `idle_replication_slot_timeout`): the subscription was stopped or blocked for too long.",
        "Run `pgsluice drop`, empty the tables and `pgsluice run` copies them again; raise `max_slot_wal_keep_size`.",
        &[SLOT_LOST],
    ),
    Kind::Refused(Refusal::SlotGone { .. }) => starting(
        "The slot was dropped",
        Refusal::SlotGone { slot: SLOT.to_owned() },
        "Somebody dropped it on the source, or a standby was promoted that had no copy of it (failover slots exist \
         from 17 on).",
        COPY_AGAIN,
        &[SLOT_GONE],
    ),
    Kind::Refused(Refusal::TargetBehind { .. }) => starting(
        "The slot is ahead of the target",
        Refusal::TargetBehind { slot: SLOT.to_owned(), confirmed: LATER, start: HERE },
        "Three things look the same: the target was restored from a backup that is older than what it had confirmed; \
         the slot was dropped and made again under the same name; or somebody advanced it. In each of them changes in \
         between are missing here, and the source does not have them any more.",
        COPY_AGAIN,
        &[RESTORED_TARGET, SLOT_MADE_AGAIN],
    ),
    Kind::Refused(Refusal::SourceBehind { .. }) => starting(
        "The source was restored to before our position",
        Refusal::SourceBehind { end: HERE, start: LATER },
        "The source's files were put back to an older state: it writes other transactions at positions that the target \
         has passed.",
        "Compare with `pgsluice verify`; then `pgsluice drop`, empty the tables and copy them again by `pgsluice run`.",
        &[RESTORED_SOURCE],
    ),
    Kind::Refused(Refusal::Forked { .. }) => starting(
        "The source failed over to before our position",
        Refusal::Forked { before: 1, now: 2, fork: HERE, applied: LATER },
        "A standby was promoted, or a backup recovered to a point in time, that had not received what the target has \
         applied. A failover that lost nothing of ours is gone on from.",
        "Compare with `pgsluice verify`; then `pgsluice drop`, empty the tables and copy them again by `pgsluice run`. \
         For the next time, see `synchronized_standby_slots`.",
        &[RESTORED_SOURCE],
    ),
    Kind::Refused(Refusal::OtherHistory { .. }) => starting(
        "The source is of another history",
        Refusal::OtherHistory { before: 2, now: 1, applied: LATER },
        "This server never was on the timeline that the target's changes came from: it is an old primary that came \
         back after a failover, or was restored to before it.",
        "Give the present primary as `--source`; if this is it, `pgsluice drop`, empty the tables and `pgsluice run`.",
        &[RESTORED_SOURCE],
    ),
    Kind::Refused(Refusal::Binary(_)) => starting(
        "A column's values cannot come in binary",
        Refusal::Binary(source::publication::BinaryRefusal::example()),
        "`binary = on` was asked for, and the binary form of a published column has no meaning on another server, or \
         is another there.",
        "Give `--binary auto`, which uses binary where every column allows it.",
        &[("pgsluice scenarios", "c3_a_new_table_whose_types_do_not_travel_in_binary")],
    ),
    Kind::Refused(Refusal::Generated { .. }) => starting(
        "A published column that the target computes",
        Refusal::Generated { table: table(), column: "total".to_owned() },
        "The copy would go past it, but none of its changes could be applied.",
        "Run on the target `ALTER TABLE ... ALTER COLUMN ... DROP EXPRESSION`, or leave the column out of the \
         publication's column list.",
        &[("pgsluice scenarios", "generated_columns_are_computed_on_each_end")],
    ),
    Kind::Refused(Refusal::PartOfTheTables { .. }) => entry(
        Doing::CreatingSchema,
        "The target has some of the tables",
        refused(Refusal::PartOfTheTables {
            there: vec!["public.accounts".to_owned()],
            missing: vec!["public.transfers".to_owned()],
        }),
        "`--create-schema` is for a target that has none of the published tables.",
        "Drop those that are there, or create the missing ones and run without `--create-schema`.",
        &[("pgsluice scenarios", "what_the_target_does_not_take_is_named_and_nothing_is_left")],
    ),
    Kind::Refused(Refusal::NotJoined { .. }) => entry(
        Doing::Copying,
        "A table that was added does not join",
        refused(Refusal::NotJoined {
            table: "public.accounts".to_owned(),
            reason: "its changes cannot be put aside: No space left on device (os error 28)".to_owned(),
        }),
        "A table was added to the publication and copied, and what came for it meanwhile could not be kept, or the \
         target's table does not fit.",
        "Repair the reason and start again with `pgsluice run`: the table is copied anew.",
        &[("pgsluice scenarios", "c1_a_kill_while_a_table_joins_copies_it_anew")],
    ),
    Kind::Refused(Refusal::Dropped) => starting(
        "The subscription was dropped meanwhile",
        Refusal::Dropped,
        "`pgsluice drop` or `pgsluice release` removed it while this was starting.",
        "Run `pgsluice run` if it is to exist: it begins anew, with a copy.",
        &[],
    ),
    Kind::Refused(Refusal::NoSnapshot) => starting(
        "The source exported no snapshot",
        Refusal::NoSnapshot,
        "The answer to CREATE_REPLICATION_SLOT had none, which PostgreSQL always gives.",
        "Connect to the server itself by `--source`, not through a pooler or a proxy.",
        &[],
    ),
    Kind::Refused(Refusal::ApplierEnded) => entry(
        Doing::Applying,
        "The applier ended by itself",
        refused(Refusal::ApplierEnded),
        "A mistake of pgsluice itself. What was committed on the target counts.",
        "Report it with the log of a run with `--log-level debug`; `pgsluice run` goes on from the last commit.",
        &[],
    ),
    Kind::Refused(Refusal::ApplierBroke(_)) => entry(
        Doing::Applying,
        "The applier broke down",
        refused(Refusal::ApplierBroke("task 7 panicked".to_owned())),
        "A mistake of pgsluice itself. What was committed on the target counts, the rest was rolled back.",
        "Report it with the log of a run with `--log-level debug`; `pgsluice run` goes on from the last commit.",
        &[],
    ),
    Kind::Refused(Refusal::AdoptionUnfinished { .. }) => adopting(
        "An adoption was interrupted",
        Refusal::AdoptionUnfinished { name: name() },
        "`pgsluice adopt` was ended after it had disabled the native subscription and before it knew where that stood. \
         Nothing is lost.",
        "Repeat `pgsluice adopt`, or hand it back with `pgsluice release`.",
        &[KILLED_ADOPT],
    ),
    Kind::Refused(Refusal::SlotGivenBack { .. }) => adopting(
        "The native subscription has its slot again",
        Refusal::SlotGivenBack { native: NATIVE.to_owned(), slot: NATIVE_SLOT.to_owned() },
        "Somebody gave the slot back to the native subscription by `ALTER SUBSCRIPTION`; both would apply the same \
         changes.",
        "Take it away again as the message says, `SET (slot_name = NONE)`; or hand everything back with `pgsluice \
         release`.",
        &[ADOPT],
    ),
    Kind::Refused(Refusal::AdoptedOriginNone { .. }) => adopting(
        "An adopted subscription wants origin = none",
        Refusal::AdoptedOriginNone { name: name() },
        "The native subscription asked for changes without an origin; asking for all of them now would send changes \
         round in two-way replication.",
        "Give `--origin none`, or leave out `--publication`, so that the stored options count.",
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
