//! The share of the servers' limits that a subscription takes, and the rest.
//!
//! | when | slots | walsenders | source sessions | target sessions |
//! | --- | --- | --- | --- | --- |
//! | a new subscription, copying | 1 | 2: the stream's, the snapshot's | 2 (look, monitor) and one per copy connection | 1 (control) and one per copy connection |
//! | continued with unfinished tables | 1 more, temporary, but for `source_mode = wal` | 2 | the same | the same |
//! | streaming | 1 | 1 | 2 (monitor, refresh) | 3 (control, apply, catalog); with several apply workers one for each, and 1 (watch) |
//! | a table was added | 1 more, temporary, but for `source_mode = wal` | 2 | as for a new subscription | 1 more per copy connection |
//!
//! With `retain_dead_tuples`, the target has one more slot and walsender (see `retention`) and two
//! more sessions (capture, fence), or three while its catalogs are looked at. The source has one
//! more session, for the horizon.
//!
//! A new schema's indexes are built after the copy, over the same number of connections. The part
//! of the schema that waits for the stream takes one more session on the target.
//!
//! `engine::pipeline`, `copy::run` and `apply::applier` open them, and must agree. A copy goes on
//! with fewer connections than it may have, but not with none. A server may have room later, so
//! `run` tries again rather than refuse, unless the subscription is new.

use super::start::{copies, is_running};
use crate::finding::{End, Finding, Refuses};
use crate::publisher::Publisher;
use crate::server::Server;
use crate::subscriber::Subscriber;
use crate::wanted::Wanted;

/// Besides the connections that copy: one for looks, one that asks for the end of WAL.
const SOURCE_SESSIONS: i64 = 2;
/// Control, apply and catalog while streaming.
const TARGET_SESSIONS: i64 = 3;
/// Control, besides the connections that copy.
const TARGET_SESSIONS_COPYING: i64 = 1;
/// The horizon's.
const SOURCE_SESSIONS_RETAINING: i64 = 1;
/// Those of capture and fences, and for a look.
const TARGET_SESSIONS_RETAINING: i64 = 3;

pub(super) fn slots(wanted: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = &source.server else { return Vec::new() };
    let unfinished = target.state.subscription.as_ref().is_some_and(|own| own.begun && own.unfinished > 0);
    let has_none = source.slot.is_none() && wanted.followed_archive().is_none();
    let needed = i64::from(has_none) + i64::from(unfinished && !wanted.physical_slot);
    let Some(max) = server.number("max_replication_slots") else { return Vec::new() };
    short(server, "max_replication_slots", max, server.slots, needed, "replication slot")
        .map(|finding| finding.refusing(Refuses::New))
        .into_iter()
        .collect()
}

pub(super) fn walsenders(wanted: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = source.server.as_ref().filter(|_| !is_running(source, target)) else {
        return Vec::new();
    };
    let needed = walsenders_needed(wanted, target);
    let Some(max) = server.number("max_wal_senders") else { return Vec::new() };
    short(server, "max_wal_senders", max, server.walsenders, needed, "walsender").into_iter().collect()
}

/// The walsender of the stream (without a stream, that of the first query), and the one that holds
/// the snapshot of a copy.
fn walsenders_needed(wanted: &Wanted, target: &Subscriber) -> i64 {
    if wanted.physical_slot || target.state.is_begun() && !copies(wanted, target) { 1 } else { 2 }
}

/// A limit of the server that is set at its start.
fn short(server: &Server, setting: &str, max: i64, used: i64, needed: i64, of: &str) -> Option<Finding> {
    let left = (max - used).max(0);
    if left >= needed {
        return None;
    }
    let what = format!("is {max}: {used} in use, {left} left, {needed} {of}s needed");
    let finding = Finding::cannot(End::Source, setting, what).refusing(Refuses::Never);
    let more = used + needed;
    Some(match server.service {
        Some(_) => {
            finding.remedy(format!("set it to {more} or more with the service's own means, or free one"))
        }
        None => finding
            .remedy("then restart the server; or free one")
            .sql(format!("ALTER SYSTEM SET {setting} = {more}")),
    })
}

pub(super) fn origins(wanted: &Wanted, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = &target.server else { return Vec::new() };
    let setting = origins_setting(server);
    let Some(max) = server.number(setting) else { return Vec::new() };
    let (used, needed) = origins_used_and_needed(wanted, target);
    let known = target.origins_active.is_some();
    let left = (max - used).max(0);
    if left >= needed {
        return Vec::new();
    }
    let what = format!("is {max}: {used} replication origins in use, {left} left, {needed} needed");
    // Slots have the same limit, and a remedy of their own.
    let slots = if wanted.retain_dead_tuples && server.major() < 18 { server.slots + 1 } else { 0 };
    let sql = format!("ALTER SYSTEM SET {setting} = {}", slots.max(used + needed));
    let remedy = "then restart the server";
    // Origins that are named but hold no state take no entry.
    let finding = match known && left == 0 && !target.origins.ours {
        true => Finding::cannot(End::Target, setting, what).refusing(Refuses::New),
        false if known => Finding::warning(End::Target, setting, format!("{what}: fewer sessions apply")),
        false => Finding::warning(End::Target, setting, format!("{what}, if all of them hold state")),
    };
    vec![finding.remedy(remedy).sql(sql)]
}

fn origins_setting(server: &Server) -> &'static str {
    if server.major() >= 18 { "max_active_replication_origins" } else { "max_replication_slots" }
}

fn origins_used_and_needed(wanted: &Wanted, target: &Subscriber) -> (i64, i64) {
    // One for each.
    let needed = (wanted.apply_sessions as i64 - target.origins.own).max(0);
    (target.origins_active.unwrap_or(target.origins.named), needed)
}

/// What `max_replication_slots` of the target must be for origins, before 18.
pub(super) fn slots_wanted(wanted: &Wanted, target: &Subscriber, server: &Server) -> i64 {
    let (used, needed) = origins_used_and_needed(wanted, target);
    if server.major() >= 18 { 0 } else { used + needed }
}

pub(super) fn source_connections(wanted: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = source.server.as_ref().filter(|_| !is_running(source, target)) else {
        return Vec::new();
    };
    let copying = if copies(wanted, target) { wanted.copy_connections as i64 } else { 0 };
    let own = SOURCE_SESSIONS + if wanted.retain_dead_tuples { SOURCE_SESSIONS_RETAINING } else { 0 };
    let walsenders = walsenders_needed(wanted, target);
    connections(End::Source, server, [own + copying.min(1), own + copying], walsenders)
}

pub(super) fn target_connections(wanted: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = target.server.as_ref().filter(|_| !is_running(source, target)) else {
        return Vec::new();
    };
    let copying = if copies(wanted, target) { wanted.copy_connections as i64 } else { 0 };
    let applying = if wanted.apply_sessions > 1 { wanted.apply_sessions as i64 } else { 0 };
    let most = (TARGET_SESSIONS + applying).max(TARGET_SESSIONS_COPYING + copying);
    let (retaining, walsenders) =
        if wanted.retain_dead_tuples { (TARGET_SESSIONS_RETAINING, 1) } else { (0, 0) };
    connections(End::Target, server, [TARGET_SESSIONS, most].map(|own| own + retaining), walsenders)
}

/// `walsenders` count where the limit is one of a role or a database; from 18
/// on they do not, and it is a few more than needed.
fn connections(end: End, server: &Server, [least, most]: [i64; 2], walsenders: i64) -> Vec<Finding> {
    let (left, limit) = server.connections_left();
    let walsenders = if limit == "max_connections" { 0 } else { walsenders };
    let (least, most) = (least + walsenders, most + walsenders);
    if left >= most {
        return Vec::new();
    }
    let what = format!("leaves {left} connections to this role; {least} to {most} are needed");
    let sql = match limit.as_str() {
        "max_connections" => format!(
            "ALTER SYSTEM SET max_connections = {}",
            server.number("max_connections").unwrap_or(0) + most - left
        ),
        _ if limit.contains(" role ") => {
            format!(
                "ALTER ROLE {} CONNECTION LIMIT {}",
                base::quote_ident(&server.role),
                server.role_connections + most
            )
        }
        _ => format!(
            "ALTER DATABASE {} CONNECTION LIMIT {}",
            base::quote_ident(&server.database),
            server.database_connections + most
        ),
    };
    let finding = match left < least {
        true => Finding::cannot(end, &limit, what).refusing(Refuses::Never),
        false => Finding::warning(end, &limit, format!("{what}: the first copy continues with fewer")),
    };
    let finding = if limit == "max_connections" {
        finding.remedy("then restart the server; or use a smaller --max-sync-workers-per-subscription")
    } else {
        finding
    };
    vec![finding.sql(sql)]
}

pub(super) fn kept_wal(wanted: &Wanted, source: &Publisher) -> Vec<Finding> {
    if wanted.followed_archive().is_some() {
        return Vec::new();
    }
    let keep = source.server.as_ref().and_then(|server| server.number("max_slot_wal_keep_size"));
    let Some(megabytes) = keep else { return Vec::new() };
    let object = "max_slot_wal_keep_size";
    if megabytes < 0 {
        let what = "is -1: while the subscription is stopped, the source keeps all WAL it writes";
        return vec![Finding::note(End::Source, object, what).remedy("watch the disk, or set a bound")];
    }
    let bytes: u64 = source.tables.iter().map(|table| table.published.bytes).sum();
    let megabytes_copied = (bytes >> 20) as i64;
    let what =
        format!("is {megabytes} MB: a slot that falls further behind is lost, and the copy starts again");
    if wanted.copy_data && source.slot.is_none() && megabytes < megabytes_copied {
        // What writes that much needs about as long as copying it.
        let what = format!("{what}; the slot stands still while {megabytes_copied} MB are copied");
        let sql = format!("ALTER SYSTEM SET max_slot_wal_keep_size = '{}MB'", megabytes_copied * 2);
        return vec![
            Finding::warning(End::Source, object, what)
                .remedy("then SELECT pg_reload_conf(); or copy when little is written")
                .sql(sql),
        ];
    }
    vec![Finding::note(End::Source, object, what)]
}

pub(super) fn idle_slots(wanted: &Wanted, source: &Publisher) -> Vec<Finding> {
    if wanted.followed_archive().is_some() {
        return Vec::new();
    }
    let timeout = source.server.as_ref().and_then(|server| server.number("idle_replication_slot_timeout"));
    let Some(seconds) = timeout.filter(|seconds| *seconds > 0) else { return Vec::new() };
    let what =
        format!("is {seconds} s: a slot that nobody reads for longer is lost, during the first copy as well");
    let finding = Finding::warning(End::Source, "idle_replication_slot_timeout", what);
    let finding = finding.remedy("or make sure that the copy and every stop are shorter");
    vec![
        finding
            .sql("ALTER SYSTEM SET idle_replication_slot_timeout = 0")
            .sql("SELECT pg_catalog.pg_reload_conf()"),
    ]
}
