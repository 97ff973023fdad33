//! The reasons against adopting or handing back. Each message says what is wrong and what to do.

use std::fmt;

use base::{Lsn, SubscriptionName, quote_ident};

/// A reason not to take over from a native subscription, or not to hand it back.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The slot was used since the adoption. `release` cannot know what was applied meanwhile.
    SlotUsedSince {
        native: String,
        slot: String,
    },
    /// `run` made a subscription of this name.
    MadeByRun {
        name: SubscriptionName,
        native: String,
    },
    NoSlot {
        native: String,
    },
    OtherOwner {
        native: String,
        owner: String,
    },
    /// The native subscription has `password_required = false`.
    SuperusersOnly {
        native: String,
    },
    /// The role may not move origins.
    NoWayBack {
        role: String,
        function: &'static str,
    },
    TwoPhase {
        native: String,
    },
    Skips {
        native: String,
        name: SubscriptionName,
    },
    /// Some tables are not ready; these are their names.
    Synchronising {
        native: String,
        tables: Vec<String>,
    },
    SlotNotThere {
        slot: String,
        place: String,
    },
    SlotOfAnother {
        slot: String,
        place: String,
        plugin: Option<String>,
        database: Option<String>,
    },
    SlotLost {
        slot: String,
        why: Option<String>,
    },
    /// A walsender still uses the slot.
    SlotBusy {
        slot: String,
        pid: i32,
    },
    NativeDropped,
    OriginTaken {
        origin: String,
        name: SubscriptionName,
    },
    /// `release` was given for a subscription that was not adopted.
    NotAdopted {
        name: SubscriptionName,
    },
    NobodyToReleaseTo {
        name: SubscriptionName,
    },
    /// Transactions were committed out of order, beyond the position that can be handed over.
    CommittedAhead {
        name: SubscriptionName,
        at: Lsn,
        furthest: Lsn,
    },
}

fn or_none(text: Option<&String>) -> &str {
    text.map_or("none", String::as_str)
}

fn or_lost(text: Option<&String>) -> &str {
    text.map_or("lost", String::as_str)
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::SlotUsedSince { .. }
            | Refusal::SlotNotThere { .. }
            | Refusal::SlotOfAnother { .. }
            | Refusal::SlotLost { .. }
            | Refusal::SlotBusy { .. } => self.of_slot(f),
            Refusal::MadeByRun { name, native } => write!(
                f,
                "subscription \"{name}\" exists already and was made by the command run; adopt under another \
                 --subscription, with --native {native}"
            ),
            Refusal::NoSlot { .. }
            | Refusal::OtherOwner { .. }
            | Refusal::SuperusersOnly { .. }
            | Refusal::TwoPhase { .. }
            | Refusal::Skips { .. }
            | Refusal::Synchronising { .. }
            | Refusal::NativeDropped => self.of_native(f),
            Refusal::NoWayBack { .. }
            | Refusal::NotAdopted { .. }
            | Refusal::NobodyToReleaseTo { .. }
            | Refusal::CommittedAhead { .. } => self.of_release(f),
            Refusal::OriginTaken { origin, name } => write!(
                f,
                "replication origin \"{origin}\" exists on the target, but this database knows no subscription \
                 \"{name}\": another database of the cluster uses the name; adopt under another --subscription, with \
                 --native"
            ),
        }
    }
}

/// The messages by theme. `fmt` says which variants belong to which.
impl Refusal {
    /// A native subscription that cannot be adopted as it is.
    fn of_native(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NoSlot { native } => write!(
                f,
                "native subscription \"{native}\" has no slot (slot_name = NONE), so there is no position to \
                 continue from; if the slot still exists: ALTER SUBSCRIPTION {} SET (slot_name = 'its name')",
                quote_ident(native)
            ),
            Refusal::OtherOwner { native, owner } => write!(
                f,
                "native subscription \"{native}\" belongs to role \"{owner}\", which the target's role is no member \
                 of; connect to the target as \"{owner}\" or as a superuser"
            ),
            Refusal::SuperusersOnly { native } => write!(
                f,
                "native subscription \"{native}\" has password_required = false, and only a superuser may alter \
                 such a subscription: connect to the target as a superuser; or let one ALTER SUBSCRIPTION {} SET \
                 (password_required = true), for which its connection string must have a password",
                quote_ident(native)
            ),
            Refusal::TwoPhase { native } => write!(
                f,
                "native subscription \"{native}\" has two_phase enabled, which pgsluice does not support: a \
                 transaction prepared before and committed after would be lost or applied twice; on 18 and later: \
                 ALTER SUBSCRIPTION {ident} DISABLE; ALTER SUBSCRIPTION {ident} SET (two_phase = false); ALTER \
                 SUBSCRIPTION {ident} ENABLE; before 18, create the subscription again without it",
                ident = quote_ident(native)
            ),
            Refusal::Skips { native, name } => write!(
                f,
                "native subscription \"{native}\" waits to skip a transaction that it has not met yet; let it do \
                 so, or ALTER SUBSCRIPTION {} SKIP (lsn = NONE) and, after adopting \"{name}\", use the command \
                 skip with that LSN",
                quote_ident(native)
            ),
            Refusal::Synchronising { native, tables } => write!(
                f,
                "native subscription \"{native}\" is still synchronising {}: wait until every srsubstate in \
                 pg_subscription_rel is 'r', with the subscription enabled; or ALTER SUBSCRIPTION {} REFRESH \
                 PUBLICATION after a table was taken out of the publication",
                tables.join(", "),
                quote_ident(native)
            ),
            Refusal::NativeDropped => f.write_str(
                "the native subscription was dropped at this moment: there is nothing to adopt; pgsluice run copies",
            ),
            _ => unreachable!("another theme: {self:?}"),
        }
    }

    /// The slot of the native subscription.
    fn of_slot(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::SlotUsedSince { native, slot } => write!(
                f,
                "native subscription \"{native}\" has slot \"{slot}\" again without release, so nobody knows what \
                 it has applied; if it was never enabled since: ALTER SUBSCRIPTION {ident} DISABLE; ALTER \
                 SUBSCRIPTION {ident} SET (slot_name = NONE); then: pgsluice release",
                ident = quote_ident(native)
            ),
            Refusal::SlotNotThere { slot, place } => write!(
                f,
                "replication slot \"{slot}\" of the native subscription does not exist on {place}: give the --source \
                 that the native subscription reads from"
            ),
            Refusal::SlotOfAnother { slot, place, plugin, database } => write!(
                f,
                "replication slot \"{slot}\" on {place} is another's: plugin {}, database {}; give the --source that \
                 the native subscription reads from",
                or_none(plugin.as_ref()),
                or_none(database.as_ref())
            ),
            Refusal::SlotLost { slot, why } => write!(
                f,
                "replication slot \"{slot}\" has lost WAL that the target still needs ({}): neither side can go on; \
                 drop the native subscription and start with pgsluice run, which copies",
                or_lost(why.as_ref())
            ),
            Refusal::SlotBusy { slot, pid } => write!(
                f,
                "replication slot \"{slot}\" on the source is still in use by walsender {pid}; end it and repeat the \
                 command: SELECT pg_terminate_backend({pid})"
            ),
            _ => unreachable!("another theme: {self:?}"),
        }
    }

    /// What stands against handing back.
    fn of_release(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NoWayBack { role, function } => write!(
                f,
                "role \"{role}\" may not move a replication origin on the target, so release could not hand the \
                 subscription back; GRANT EXECUTE ON FUNCTION {function} TO {}",
                quote_ident(role)
            ),
            Refusal::NotAdopted { name } => write!(
                f,
                "subscription \"{name}\" was not adopted but made by the command run: there is no native subscription to \
                 hand it to"
            ),
            Refusal::NobodyToReleaseTo { name } => write!(
                f,
                "the native subscription that \"{name}\" was adopted from has been dropped: there is nothing to hand \
                 back to; go on with pgsluice run, or remove everything with pgsluice drop"
            ),
            Refusal::CommittedAhead { name, at, furthest } => write!(
                f,
                "subscription \"{name}\" was stopped with transactions up to {furthest} committed before others from \
                 {at} on, which a native subscription would apply again; run it with --commit-order preserve until \
                 status shows that it is level, stop it, and repeat: pgsluice release"
            ),
            _ => unreachable!("another theme: {self:?}"),
        }
    }
}
