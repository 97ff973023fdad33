//! Every reason why a subscription is not moved, for docs/errors.md.

use base::Lsn;
use base::error_reference::{Doing, Entry, HeldBy, entry};
use proto::frame::ServerError;

use super::{Error, Refusal};

const STAYS: HeldBy = ("pgsluice relay", "what_cannot_be_moved_stays_where_it_is");

base::error_reference! {
    /// Every way in which a subscription is not moved.
    #[must_use]
    pub fn error_reference() -> Error where error is error => Error;
    Error::Server { .. } => moving(
        "A server fails while a subscription is moved",
        Error::Server {
            doing: "make slot \"s\" at the new publisher".to_owned(),
            cause: ServerError::new("ERROR", "42710", "replication slot \"s\" already exists").into(),
        },
        "The server's words say why. Here the new publisher has a slot of that name, from an earlier attempt or \
        of another subscriber.",
        "Repair what they name, and repeat `pgsluice relay move`. `pgsluice slots list` shows who reads a slot.",
        &[],
    ),
    Error::Refused(Refusal::NoSubscription { .. }) => moving(
        "The subscriber has no such subscription",
        Refusal::NoSubscription { name: "s".to_owned(), place: "sub1:5432/shop as postgres".to_owned() },
        "A subscription belongs to one database. The name is wrong, or `--subscriber` leads to another database.",
        "Correct `--subscription` or the `dbname` in `--subscriber`.",
        &[STAYS],
    ),
    Error::Refused(Refusal::NoSlot { .. }) => moving(
        "The subscription has no slot",
        Refusal::NoSlot { name: "s".to_owned() },
        "It was made with `slot_name = NONE`, or the slot was taken from it.",
        "Give it its slot again: `ALTER SUBSCRIPTION ... SET (slot_name = '...')`.",
        &[],
    ),
    Error::Refused(Refusal::Disabled { .. }) => moving(
        "The subscription to move is disabled",
        Refusal::Disabled { name: "s".to_owned() },
        "It must apply what comes before the new slot's point, and a disabled subscription applies nothing.",
        "Run `ALTER SUBSCRIPTION ... ENABLE`, and repeat `pgsluice relay move`.",
        &[STAYS],
    ),
    Error::Refused(Refusal::Copies { .. }) => moving(
        "The subscription still copies tables",
        Refusal::Copies { name: "s".to_owned(), tables: 3 },
        "The slots that copy tables are at the present publisher, and cannot be moved.",
        "Wait until `SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'` is 0.",
        &[],
    ),
    Error::Refused(Refusal::TwoPhasePending { .. }) => moving(
        "Two-phase commit has not begun",
        Refusal::TwoPhasePending { name: "s".to_owned() },
        "The subscription has `two_phase = on` and waits until its tables are copied.",
        "Wait until `subtwophasestate` in `pg_subscription` is `e`.",
        &[],
    ),
    Error::Refused(Refusal::HiddenPlace { .. }) => moving(
        "The subscription's connection string is hidden",
        Refusal::HiddenPlace { name: "s".to_owned() },
        "The connection string may have a password, and PostgreSQL shows it to superusers only.",
        "Give the present publisher with `--from`, or connect as a superuser.",
        &[],
    ),
    Error::Refused(Refusal::OtherPublisher { .. }) => moving(
        "The new place serves another publisher",
        Refusal::OtherPublisher {
            old: "system 7300000000000000001, database shop".to_owned(),
            new: "system 7300000000000000002, database shop".to_owned(),
        },
        "A subscription can go on only where the same WAL is. `--to` leads to another cluster, to a relay of \
        another cluster, or to another database.",
        "Correct `--to`. If the address in it is none from this machine, give `--to-from-here` too.",
        &[STAYS],
    ),
    Error::Refused(Refusal::Prepared { .. }) => moving(
        "Prepared transactions stand in the way",
        Refusal::Prepared { gids: "'astride'".to_owned() },
        "With `two_phase = on`, a transaction that was prepared before the new slot's point and commits behind \
        it would come from both slots.",
        "End it with `COMMIT PREPARED` or `ROLLBACK PREPARED`, and repeat `pgsluice relay move`.",
        &[STAYS],
    ),
    Error::Refused(Refusal::NoPoint) => moving(
        "The new slot has no point",
        Refusal::NoPoint,
        "Something else than a server or a relay of pgsluice answers at `--to`.",
        "Correct `--to`.",
        &[],
    ),
    Error::Refused(Refusal::SlotIsElsewhere { .. }) => moving(
        "The present publisher lacks the subscription's slot",
        Refusal::SlotIsElsewhere { slot: "s".to_owned() },
        "The subscription's connection string leads to another server from here than from the subscriber, or \
        somebody dropped the slot.",
        "Give the present publisher, as this machine reaches it, with `--from`.",
        &[],
    ),
    Error::Refused(Refusal::Behind { .. }) => moving(
        "The subscription does not come to the new slot's point",
        Refusal::Behind {
            slot: "s".to_owned(),
            confirmed: "16/B3740028".to_owned(),
            point: Lsn::new(0x16_B374_D848),
            is_read: true,
        },
        "The subscriber is far behind, or its worker stops at a conflict or waits for a lock.",
        "Look at the subscriber's log, and give it more time with `--timeout`.",
        &[STAYS],
    ),
    Error::Refused(Refusal::WorkerStays { .. }) => moving(
        "The worker of the disabled subscription does not end",
        Refusal::WorkerStays { name: "s".to_owned() },
        "It ends at the end of its transaction, which may be long. The subscription is enabled again.",
        "Repeat `pgsluice relay move` with a longer `--timeout`.",
        &[],
    ),
}

fn moving(
    title: &'static str,
    error: impl Into<Error>,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<Error>; 1] {
    entry(Doing::Relaying, title, error, cause, remedy, held_by)
}
