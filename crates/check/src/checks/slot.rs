//! The subscription's slot, origin and row, and what a new slot waits for.
//!
//! `run` looks at these again, under its lock, and refuses by itself: another process may end
//! between the two looks.

use base::quote_literal;
use source::slot::SlotState;

use super::names::few;
use super::start::is_running;
use crate::finding::{End, Finding, Refuses};
use crate::publisher::{Publisher, Running};
use crate::subscriber::Subscriber;
use crate::wanted::Wanted;

/// A transaction this old is not one of many short ones.
const LONG_SECONDS: f64 = 60.0;

pub(super) fn slot(wanted: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let name = &source.slot_name;
    let object = format!("replication slot {name}");
    let drop = format!("SELECT pg_catalog.pg_drop_replication_slot({})", quote_literal(name));
    let cannot = |what: String| Finding::cannot(End::Source, &object, what).refusing(Refuses::Never);
    let database = source.server.as_ref().map(|server| server.database.as_str());
    let begun = target.state.is_begun();
    let again = "pgsluice drop, then copy again";
    let from_archive = |what: &str| {
        let what = format!("{what}: pgsluice creates it again, and reads what is missing from --wal-archive");
        vec![Finding::note(End::Source, &object, what)]
    };
    let is_followed = wanted.followed_archive().is_some();
    let has_archive = wanted.physical_slot && wanted.wal_archive.is_some();
    let Some(slot) = &source.slot else {
        if begun && is_followed {
            return Vec::new();
        }
        if begun && has_archive {
            return from_archive("does not exist any more");
        }
        let what = match wanted.physical_slot {
            true => {
                "does not exist any more: pgsluice creates it again after a failover; otherwise changes may be \
                     missing"
            }
            false => "does not exist any more, so changes may be missing",
        };
        return if begun { vec![cannot(what.to_owned()).remedy(again)] } else { Vec::new() };
    };
    let holder = slot.active_pid.map(|pid| format!(", in use by walsender {pid}")).unwrap_or_default();
    let is_fit = match wanted.physical_slot {
        true => slot.is_physical() || begun && slot.is_pgoutput_of(database),
        false => slot.is_pgoutput_of(database) || begun && slot.is_physical(),
    };
    if !is_fit {
        let what = format!(
            "is another's: plugin {}, database {}{holder}",
            slot.plugin.as_deref().unwrap_or("none"),
            slot.database.as_deref().unwrap_or("none")
        );
        return vec![cannot(what).remedy("choose another --subscription; or, if nothing needs it").sql(drop)];
    }
    if begun && is_followed && slot.is_physical() {
        let what = format!("is dropped at the next start{holder}: all WAL comes from --wal-archive then");
        return vec![Finding::note(End::Source, &object, what)];
    }
    if begun && slot.is_lost() && has_archive {
        return from_archive("has lost WAL that the target still needs");
    }
    if begun && slot.is_lost() {
        let why = slot.invalidation.as_deref().unwrap_or("lost");
        return vec![cannot(format!("has lost WAL that the target still needs ({why})")).remedy(again)];
    }
    if target.state.subscription.is_none() {
        let what = format!(
            "exists{holder}, but the target knows no subscription {}: the name is in use by another target",
            wanted.subscription
        );
        return vec![cannot(what).remedy("choose another --subscription; or, if nothing needs it").sql(drop)];
    }
    Vec::new()
}

/// pgsluice never decodes WAL that an awaited standby does not receive.
pub(super) fn standbys(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    source.standby_slots.iter().filter_map(|(name, slot)| standby(name, slot.as_ref())).collect()
}

fn standby(name: &str, slot: Option<&SlotState>) -> Option<Finding> {
    let object = format!("synchronized_standby_slots {name}");
    let cannot = |what: &str| Finding::cannot(End::Source, &object, what).refusing(Refuses::Never);
    let Some(slot) = slot else {
        let make = format!("SELECT pg_catalog.pg_create_physical_replication_slot({})", quote_literal(name));
        let what = "there is no such slot, so pgsluice would decode nothing";
        return Some(cannot(what).remedy("make it, and set primary_slot_name on the standby").sql(make));
    };
    if !slot.is_physical() {
        return Some(cannot("is a logical slot").remedy("name the physical slot of the standby"));
    }
    if slot.is_lost() {
        return Some(
            cannot("has lost WAL").remedy("create the standby and its slot again, or do not name it"),
        );
    }
    if slot.active_pid.is_some() {
        return None;
    }
    let what = "no standby uses it: pgsluice decodes nothing that the standby has not received";
    let finding = Finding::warning(End::Source, &object, what);
    Some(finding.remedy("start the standby with this primary_slot_name, or do not name the slot"))
}

pub(super) fn subscription(wanted: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let Some(own) = &target.state.subscription else { return Vec::new() };
    let object = format!("subscription {}", wanted.subscription);
    let mut findings = Vec::new();
    let system = source.server.as_ref().and_then(|server| server.system_identifier.as_deref());
    if system.is_some_and(|system| system != own.source_sysid) {
        let what =
            format!("was made for the source with system identifier {}, not for this one", own.source_sysid);
        let finding = Finding::cannot(End::Target, &object, what);
        findings.push(finding.remedy("give the right --source, or pgsluice drop").refusing(Refuses::Never));
    }
    if !own.enabled {
        let finding = Finding::cannot(End::Target, &object, "is disabled");
        findings.push(finding.remedy("pgsluice enable").refusing(Refuses::Never));
    }
    if own.begun {
        let state = if is_running(source, target) { "is running" } else { "exists and will be continued" };
        let what = format!("{state}: {} tables, {} not copied yet", own.tables, own.unfinished);
        findings.push(Finding::note(End::Target, &object, what));
    }
    findings
}

pub(super) fn origin(wanted: &Wanted, target: &Subscriber) -> Vec<Finding> {
    if !target.origins.ours || target.state.subscription.is_some() {
        return Vec::new();
    }
    let name = wanted.subscription.origin(0);
    let what = format!(
        "exists, but this database knows no subscription {}: another database of the cluster uses the name",
        wanted.subscription
    );
    let sql = format!("SELECT pg_catalog.pg_replication_origin_drop({})", quote_literal(&name));
    let finding = Finding::cannot(End::Target, format!("replication origin {name}"), what);
    vec![finding.remedy("choose another --subscription; or, if nothing needs it").sql(sql)]
}

pub(super) fn running_transactions(_: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    if target.state.is_begun() { Vec::new() } else { waited_for(&source.running) }
}

/// Transactions that a new slot waits for. Somebody may have forgotten one that has run for long.
fn waited_for(running: &[Running]) -> Vec<Finding> {
    if running.is_empty() {
        return Vec::new();
    }
    let describe = |running: &Running| {
        let role = running.role.as_deref().unwrap_or("unknown role");
        let age = running.seconds.map_or_else(|| "unknown age".to_owned(), |age| format!("{age:.0} s"));
        format!("pid {} ({role}, {age})", running.pid)
    };
    let all: Vec<String> = running.iter().map(describe).collect();
    let what = format!("the slot is made when these have ended: {}", few(&all));
    let object = "running transactions";
    let long: Vec<_> =
        running.iter().filter(|own| own.seconds.is_some_and(|age| age >= LONG_SECONDS)).collect();
    if long.is_empty() {
        return vec![Finding::note(End::Source, object, what)];
    }
    let finding = Finding::warning(End::Source, object, what).remedy("end those that have been forgotten");
    let terminate = |own: &&Running| format!("SELECT pg_catalog.pg_terminate_backend({})", own.pid);
    vec![long.iter().map(terminate).fold(finding, Finding::sql)]
}

pub(super) fn prepared_transactions(_: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    if target.state.is_begun() || source.prepared.is_empty() {
        return Vec::new();
    }
    let all: Vec<String> =
        source.prepared.iter().map(|own| format!("'{}' in database {}", own.gid, own.database)).collect();
    let what = format!("the slot is made when these have been committed or rolled back: {}", few(&all));
    let remedy = "COMMIT PREPARED or ROLLBACK PREPARED each, in its database";
    vec![Finding::warning(End::Source, "prepared transactions", what).remedy(remedy)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;

    fn running(pid: i32, seconds: Option<f64>) -> Running {
        Running { pid, role: Some("app".to_owned()), seconds }
    }

    #[test]
    fn a_transaction_that_runs_for_long_is_a_warning_with_what_would_end_it() {
        assert!(waited_for(&[]).is_empty());
        let short = waited_for(&[running(7, Some(LONG_SECONDS - 1.0)), running(8, None)]);
        assert_eq!((short.len(), short[0].severity), (1, Severity::Note));
        assert!(short[0].what.contains("pid 7 (app, 59 s), pid 8 (app, unknown age)"), "{short:?}");
        let long = waited_for(&[running(7, Some(1.0)), running(9, Some(7_200.0))]);
        assert_eq!((long.len(), long[0].severity), (1, Severity::Warning));
        assert_eq!(long[0].sql, ["SELECT pg_catalog.pg_terminate_backend(9)"]);
        assert!(long[0].what.contains("pid 9 (app, 7200 s)"), "{long:?}");
    }
}
