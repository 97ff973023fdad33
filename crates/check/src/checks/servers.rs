//! The two servers as they are set up: before any table is looked at.

use crate::finding::{End, Finding, Refuses};
use crate::publisher::Publisher;
use crate::server::{Kinship, Service};
use crate::subscriber::Subscriber;
use crate::wanted::Wanted;

pub(super) fn wal_level(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let Some(server) = &source.server else { return Vec::new() };
    let level = server.setting("wal_level");
    if level == "logical" || level.is_empty() {
        return Vec::new();
    }
    let what = format!("is {level}, so no logical slot can be made");
    let finding = Finding::cannot(End::Source, "wal_level", what);
    vec![match server.service {
        Some(Service::Rds) => {
            finding.remedy("set rds.logical_replication = 1 in the parameter group, reboot")
        }
        Some(Service::CloudSql) => finding.remedy("set the flag cloudsql.logical_decoding = on, restart"),
        Some(Service::Azure) => {
            finding.remedy("set the server parameter wal_level to logical, save and restart")
        }
        None => finding.remedy("then restart the server").sql("ALTER SYSTEM SET wal_level = logical"),
    }]
}

pub(super) fn source_in_recovery(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let Some(server) = source.server.as_ref().filter(|server| server.in_recovery) else { return Vec::new() };
    if server.major() < 16 {
        let what = format!("is a standby, and PostgreSQL {} cannot decode on one", server.version);
        let remedy = "use the primary as the source, or a standby of version 16 or later";
        return vec![Finding::cannot(End::Source, "server", what).remedy(remedy)];
    }
    let what = "is a standby: making the slot waits for the primary to log its running transactions, and a \
                conflict with recovery may take the slot away";
    let remedy = "while the first start waits, run SELECT pg_log_standby_snapshot() on the primary; set \
                  hot_standby_feedback = on here";
    vec![Finding::warning(End::Source, "server", what).remedy(remedy)]
}

pub(super) fn target_in_recovery(_: &Wanted, target: &Subscriber) -> Vec<Finding> {
    let Some(_) = target.server.as_ref().filter(|server| server.in_recovery) else { return Vec::new() };
    // It may be about to be promoted: run waits.
    let finding = Finding::cannot(End::Target, "server", "is a standby: nothing can be written to it");
    let remedy = "connect to the primary (target_session_attrs=read-write finds it among several hosts)";
    vec![finding.remedy(remedy).refusing(Refuses::Never)]
}

pub(super) fn read_only(_: &Wanted, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = &target.server else { return Vec::new() };
    if server.setting("default_transaction_read_only") != "on" || server.in_recovery {
        return Vec::new();
    }
    let what = "is on for this role and database, so the state in schema pgsluice cannot be written";
    let (role, database) = (base::quote_ident(&server.role), base::quote_ident(&server.database));
    let sql = format!("ALTER ROLE {role} IN DATABASE {database} SET default_transaction_read_only = off");
    vec![Finding::cannot(End::Target, "default_transaction_read_only", what).sql(sql)]
}

/// A copy of a cluster has its identifier, but not its start time.
pub(super) fn one_server(_: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let (Some(from), Some(to)) = (&source.server, &target.server) else { return Vec::new() };
    if from.kinship(to) != Kinship::OneServer {
        return Vec::new();
    }
    if from.database == to.database {
        let what =
            format!("is the source's database \"{}\" itself: every change would come back", to.database);
        return vec![Finding::cannot(End::Target, "database", what).remedy("give another --target")];
    }
    let what = format!("is on the source's own server (database \"{}\")", to.database);
    vec![Finding::note(End::Target, "database", what)]
}

/// Values travel as UTF-8, except between two SQL_ASCII databases.
pub(super) fn encodings(_: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let (Some(from), Some(to)) = (&source.server, &target.server) else { return Vec::new() };
    let (from, to) = (from.encoding.as_str(), to.encoding.as_str());
    let what = match (from, to) {
        ("SQL_ASCII", "SQL_ASCII") => {
            let what = "is SQL_ASCII, as the source's: text passes byte by byte, but names of tables and columns must be UTF-8";
            return vec![Finding::note(End::Target, "encoding", what)];
        }
        _ if from == to => return Vec::new(),
        ("SQL_ASCII", _) => format!("is {to}, the source's SQL_ASCII: bytes that are no UTF-8 are refused"),
        (_, "UTF8") => return Vec::new(),
        (_, "SQL_ASCII") => format!("is SQL_ASCII, the source's {from}: text is stored as UTF-8, unchecked"),
        _ => format!("is {to}, the source's {from}: characters that {to} does not have are refused"),
    };
    let remedy = format!("create the target's database with ENCODING '{from}' or 'UTF8'");
    vec![Finding::warning(End::Target, "encoding", what).remedy(remedy)]
}

pub(super) fn walsender_timeout(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let timeout = source.server.as_ref().and_then(|server| server.number("wal_sender_timeout"));
    if timeout != Some(0) {
        return Vec::new();
    }
    let what = "is 0: after a network failure the slot may stay in use until TCP gives up";
    vec![Finding::note(End::Source, "wal_sender_timeout", what).remedy("leave it at its default of 60 s")]
}

pub(super) fn commit_settings(wanted: &Wanted, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = &target.server else { return Vec::new() };
    let mut findings = Vec::new();
    let keeps = wanted.keep_commit_timestamps != Some(false);
    if keeps && server.setting("track_commit_timestamp") == "on" {
        let what = "is on: one source transaction stays one target transaction, so that each keeps its time, \
                    which costs a commit for each";
        findings.push(Finding::note(End::Target, "track_commit_timestamp", what));
    }
    let standbys = server.setting("synchronous_standby_names");
    if !standbys.is_empty() && matches!(wanted.synchronous_commit, "off" | "local") {
        let what = format!(
            "is {}: what is applied does not wait for the synchronous standbys ({standbys})",
            wanted.synchronous_commit
        );
        let remedy = "--synchronous-commit on, if a failover of the target must not lose what was confirmed";
        findings.push(Finding::note(End::Target, "--synchronous-commit", what).remedy(remedy));
    }
    findings
}
