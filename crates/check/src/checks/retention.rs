//! What the capture of deletions needs of the target, beside `wal_level`. Without it changes are
//! applied nevertheless, and an UPDATE of a deleted row counts as `update_missing`.
//!
//! | needed | by |
//! | --- | --- |
//! | physical WAL that can be decoded | the decoder of the source mode `wal` |
//! | REPLICATION | the walsender, and the function that makes the slot |
//! | a replication slot, unless that of the other direction serves | WAL that is kept while nothing reads it |
//! | a walsender | the stream |
//!
//! The stream names the database, so a line of pg_hba.conf that lets the role into the database
//! lets it stream, too. A line for `replication` is not needed.

use super::names::few;
use super::resources::slots_wanted;
use super::source_mode::against_wal;
use crate::finding::{End, Finding, Refuses};
use crate::server::Server;
use crate::subscriber::Subscriber;
use crate::wanted::Wanted;

/// The target, if its deletions are to be remembered and WAL can say which rows were deleted.
fn capturing<'t>(wanted: &Wanted, target: &'t Subscriber) -> Option<&'t Server> {
    // A standby is reported by itself.
    target.server.as_ref().filter(|server| wanted.retain_dead_tuples && !server.in_recovery)
}

pub(super) fn physical_wal(wanted: &Wanted, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = capturing(wanted, target) else { return Vec::new() };
    let against = against_wal(server, &[]);
    if against.is_empty() {
        return Vec::new();
    }
    let what = format!(
        "has no effect: deletions cannot be captured ({}), so an update of a deleted row counts as update_missing",
        few(&against)
    );
    let finding = Finding::cannot(End::Target, "retain_dead_tuples", what).refusing(Refuses::Never);
    if server.service.is_none() && server.setting("full_page_writes") == "off" {
        let sql =
            ["ALTER SYSTEM SET full_page_writes = on", "SELECT pg_catalog.pg_reload_conf()", "CHECKPOINT"];
        return vec![sql.into_iter().fold(finding, Finding::sql)];
    }
    vec![
        finding
            .remedy("turn it off, and choose what happens to update_missing: --conflict update_missing=..."),
    ]
}

/// Whether the target gives physical WAL to a role that may replicate.
fn ships_wal(server: &Server) -> bool {
    server.service.is_none()
}

pub(super) fn replication(wanted: &Wanted, target: &Subscriber) -> Vec<Finding> {
    let server = capturing(wanted, target).filter(|server| ships_wal(server) && !server.replication);
    let Some(server) = server else { return Vec::new() };
    let what = "may not replicate, so deletions cannot be captured: an update of a deleted row counts as \
                update_missing";
    let finding = Finding::cannot(End::Target, format!("role {}", server.role), what);
    let sql = format!("ALTER ROLE {} REPLICATION", base::quote_ident(&server.role));
    vec![finding.sql(sql).refusing(Refuses::Never)]
}

/// A slot and a walsender that are free, or taken for this already.
pub(super) fn room(wanted: &Wanted, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = capturing(wanted, target).filter(|server| ships_wal(server)) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let mut is_full = |setting: &str, of: &str, (used, least): (i64, i64)| {
        let max = server.number(setting).unwrap_or(i64::MAX);
        if used < max {
            return;
        }
        let what = format!("is {max}: {used} in use, 0 left, 1 {of} needed to capture deletions");
        let sql = format!("ALTER SYSTEM SET {setting} = {}", least.max(used + 1));
        let finding = Finding::cannot(End::Target, setting, what).refusing(Refuses::Never);
        findings.push(finding.remedy("then restart the server; or free one").sql(sql));
    };
    if target.capture_slot.is_none() && !wanted.shares_slot {
        is_full(
            "max_replication_slots",
            "replication slot",
            (server.slots, slots_wanted(wanted, target, server)),
        );
    }
    let is_streaming = target.capture_slot == Some(true) || wanted.shares_slot && target.state.is_running;
    if !is_streaming {
        is_full("max_wal_senders", "walsender", (server.walsenders, 0));
    }
    findings
}
