//! Rights of the roles, and the GRANT for each missing right.
//!
//! There is one finding per kind of right, with all tables for which it is missing. So one
//! statement grants it.

use std::collections::BTreeSet;

use base::quote_ident;
use source::publication::{PublishedTable, TableName};
use state::STATE_SCHEMA;

use super::names::{few, tables};
use super::pair::{Pair, pairs};
use super::start::copies;
use crate::finding::{End, Finding, Refuses};
use crate::publisher::{Publisher, SourceTable};
use crate::server::{Server, Service};
use crate::subscriber::{Subscriber, TargetFacts};
use crate::wanted::Wanted;

/// A note that the server looks like a managed service, with what the service configures in its own
/// way.
pub(super) fn service(end: End, server: &Server) -> Vec<Finding> {
    let what = match server.service {
        None => return Vec::new(),
        Some(Service::Rds) => {
            "looks like Amazon RDS or Aurora: settings are changed in the parameter group, rights to replicate are \
             the role rds_replication's"
        }
        Some(Service::CloudSql) => {
            "looks like Google Cloud SQL: settings are changed as flags of the instance, first of all \
             cloudsql.logical_decoding"
        }
        Some(Service::Azure) => {
            "looks like Azure Database for PostgreSQL: settings are changed as server parameters"
        }
    };
    vec![Finding::note(end, "service", what)]
}

pub(super) fn replication(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let Some(server) = source.server.as_ref().filter(|server| !server.replication) else { return Vec::new() };
    let role = quote_ident(&server.role);
    let sql = match server.service {
        Some(Service::Rds) => format!("GRANT rds_replication TO {role}"),
        _ => format!("ALTER ROLE {role} REPLICATION"),
    };
    let what = "may not replicate: it can neither make a slot nor stream from one";
    let finding = Finding::cannot(End::Source, format!("role {}", server.role), what).sql(sql);
    vec![finding.refusing(Refuses::Every)]
}

pub(super) fn read_tables(wanted: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    // The walsender needs no right to a table.
    let Some(server) = source.server.as_ref().filter(|_| copies(wanted, target)) else { return Vec::new() };
    let unreadable = |table: &&SourceTable| {
        let columns = table.published.columns.iter().map(|column| &column.name);
        columns.chain(&table.facts.filtered_by).any(|name| table.facts.unreadable.contains(name))
    };
    let names = |wanted: &dyn Fn(&&SourceTable) -> bool| -> Vec<&TableName> {
        source.tables.iter().filter(wanted).map(|table| &table.published.name).collect()
    };
    let what = "may not be read, so they cannot be copied";
    let schemas = usage(End::Source, server, &names(&|table| !table.facts.usage));
    let unreadable = names(&|table| unreadable(table));
    schemas.into_iter().chain(grant(End::Source, server, "SELECT", &unreadable, what)).collect()
}

/// A right on a table of the target.
struct Right {
    name: &'static str,
    has: fn(&TargetFacts) -> bool,
    /// The first copy needs it, whatever is published.
    copies: bool,
    /// A published change needs it.
    applies: fn(&Publisher, &PublishedTable) -> bool,
    without: &'static str,
}

const RIGHTS: [Right; 5] = [
    Right {
        name: "SELECT",
        has: |table| table.may_select,
        copies: true,
        applies: Publisher::publishes_old_rows,
        without: "may not be looked into",
    },
    Right {
        name: "INSERT",
        has: |table| table.may_insert,
        copies: true,
        applies: |source, table| source.publishes(table, |publication| publication.insert),
        without: "take no rows",
    },
    Right {
        name: "UPDATE",
        has: |table| table.may_update,
        copies: false,
        applies: |source, table| source.publishes(table, |publication| publication.update),
        without: "may not be updated",
    },
    Right {
        name: "DELETE",
        has: |table| table.may_delete,
        copies: false,
        applies: |source, table| source.publishes(table, |publication| publication.delete),
        without: "may not be deleted from",
    },
    Right {
        name: "TRUNCATE",
        has: |table| table.may_truncate,
        copies: false,
        applies: |source, table| source.publishes(table, |publication| publication.truncate),
        without: "may not be truncated",
    },
];

pub(super) fn write_tables(wanted: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = &target.server else { return Vec::new() };
    let copies = copies(wanted, target);
    let pairs: Vec<Pair<'_>> = pairs(Some(source), Some(target)).collect();
    let names = |lacks: &dyn Fn(&&Pair<'_>) -> bool| -> Vec<&TableName> {
        pairs.iter().filter(lacks).map(|pair| pair.name).collect()
    };
    let schemas = usage(End::Target, server, &names(&|pair| !pair.target.facts.usage));
    let grants = RIGHTS.iter().filter_map(|right| {
        let copies = copies && right.copies;
        let lacking = names(&|pair| {
            !(right.has)(&pair.target.facts) && (copies || (right.applies)(source, pair.published()))
        });
        let finding = grant(End::Target, server, right.name, &lacking, right.without)?;
        // A change that needs it may never come.
        Some(finding.refusing(if copies { Refuses::New } else { Refuses::Never }))
    });
    schemas.into_iter().chain(grants).collect()
}

/// `GRANT right ON ... TO role` for all of `names`.
fn grant(end: End, server: &Server, right: &str, names: &[&TableName], what: &str) -> Option<Finding> {
    if names.is_empty() {
        return None;
    }
    let shown: Vec<String> = names.iter().map(ToString::to_string).collect();
    let quoted: Vec<String> = names.iter().map(|name| name.quoted()).collect();
    let sql = format!("GRANT {right} ON {} TO {}", quoted.join(", "), quote_ident(&server.role));
    let what = format!("{what}: role {} has no {right}", server.role);
    Some(Finding::cannot(end, tables(&shown), what).sql(sql))
}

/// `GRANT USAGE` on the schemas of `names`.
fn usage(end: End, server: &Server, names: &[&TableName]) -> Option<Finding> {
    let schemas: BTreeSet<&str> = names.iter().map(|name| name.schema.as_str()).collect();
    if schemas.is_empty() {
        return None;
    }
    let shown: Vec<&str> = schemas.iter().copied().collect();
    let quoted: Vec<String> = shown.iter().map(|schema| quote_ident(schema)).collect();
    let sql = format!("GRANT USAGE ON SCHEMA {} TO {}", quoted.join(", "), quote_ident(&server.role));
    let what = format!("may not be entered: role {} has no USAGE", server.role);
    Some(Finding::cannot(end, format!("schema {}", few(&shown)), what).sql(sql))
}

/// COPY would leave rows out; with `row_security = off` the server raises an error instead.
pub(super) fn source_policies(wanted: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = source.server.as_ref().filter(|_| copies(wanted, target)) else { return Vec::new() };
    let names: Vec<String> = source
        .tables
        .iter()
        .filter(|table| table.facts.policies)
        .map(|table| table.published.name.to_string())
        .collect();
    policies(End::Source, server, &names, Refuses::New, "would hide rows from the first copy")
}

/// An UPDATE would seem to miss its row; with `row_security = off` it is an
/// error (rule F6).
pub(super) fn target_policies(wanted: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = &target.server else { return Vec::new() };
    let names: Vec<String> = pairs(Some(source), Some(target))
        .filter(|pair| pair.target.facts.policies)
        .map(|pair| pair.name.to_string())
        .collect();
    // Without a copy it starts, and stops at the first change.
    let refuses = if copies(wanted, target) { Refuses::New } else { Refuses::Never };
    policies(End::Target, server, &names, refuses, "would hide rows from what is applied")
}

fn policies(end: End, server: &Server, names: &[String], refuses: Refuses, what: &str) -> Vec<Finding> {
    if names.is_empty() {
        return Vec::new();
    }
    let what = format!("row level security {what}, which is an error: it applies to role {}", server.role);
    let finding = Finding::cannot(end, tables(names), what).refusing(refuses);
    let remedy = "or let the role own the tables, without FORCE ROW LEVEL SECURITY";
    vec![finding.remedy(remedy).sql(format!("ALTER ROLE {} BYPASSRLS", quote_ident(&server.role)))]
}

/// The first start creates schema `pgsluice`.
pub(super) fn state(_: &Wanted, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = &target.server else { return Vec::new() };
    let (state, role) = (&target.state, quote_ident(&server.role));
    let mut findings = Vec::new();
    let mut lacks = |what: &str, sql: String| {
        let finding =
            Finding::cannot(End::Target, "schema pgsluice", format!("{what} by role {}", server.role));
        findings.push(finding.sql(sql).refusing(Refuses::Every));
    };
    if state.schema && !state.usage {
        lacks("may not be entered", format!("GRANT USAGE ON SCHEMA {STATE_SCHEMA} TO {role}"));
    }
    if !state.tables && !state.create {
        let database = quote_ident(&server.database);
        lacks("cannot be made", format!("GRANT CREATE ON DATABASE {database} TO {role}"));
    }
    if !state.tables && state.schema && !state.create_in_schema {
        lacks("cannot be filled", format!("GRANT CREATE ON SCHEMA {STATE_SCHEMA} TO {role}"));
    }
    if !state.forbidden.is_empty() {
        let names = state.forbidden.join(", ");
        lacks("may not be written", format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {names} TO {role}"));
    }
    findings
}

pub(super) fn origin_functions(_: &Wanted, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = target.server.as_ref().filter(|_| !target.forbidden_functions.is_empty()) else {
        return Vec::new();
    };
    let object = "replication origin functions";
    // An origin is made once, and dropped by nobody but `pgsluice drop`.
    let begun = target.state.is_begun();
    let later = |name: &String| name.contains("origin_drop") || begun && name.contains("origin_create");
    let finding = match target.forbidden_functions.iter().all(later) {
        false => {
            let what = format!("may not be called by role {}, so progress cannot be kept", server.role);
            Finding::cannot(End::Target, object, what).refusing(Refuses::Every)
        }
        true => {
            let what =
                format!("not all may be called by role {}: the command drop will need them", server.role);
            Finding::warning(End::Target, object, what)
        }
    };
    let functions = target.forbidden_functions.join(", ");
    vec![finding.sql(format!("GRANT EXECUTE ON FUNCTION {functions} TO {}", quote_ident(&server.role)))]
}

pub(super) fn replica_role(wanted: &Wanted, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = target.server.as_ref().filter(|_| !target.replica) else { return Vec::new() };
    let object = "session_replication_role";
    let what = format!(
        "cannot be set by role {}, so ordinary triggers and foreign keys act on replicated rows a second time",
        server.role
    );
    if wanted.allow_triggers {
        return vec![Finding::warning(End::Target, object, what).remedy("allowed by --allow-triggers")];
    }
    let finding = Finding::cannot(End::Target, object, what).refusing(Refuses::Every);
    let role = quote_ident(&server.role);
    vec![match server.major() {
        0..=14 => finding
            .remedy("before version 15 only a superuser can set it; or accept it with --allow-triggers")
            .sql(format!("ALTER ROLE {role} SUPERUSER")),
        _ => finding
            .remedy("or accept it with --allow-triggers")
            .sql(format!("GRANT SET ON PARAMETER session_replication_role TO {role}")),
    }]
}
