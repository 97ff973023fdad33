//! Whether the source's schema can be brought over (`--create-schema`).
//!
//! `engine`'s `target_schema.rs` does it, and must agree: all published tables
//! are created or none, and only before the subscription begins.

use std::collections::BTreeSet;

use base::quote_ident;

use super::names::{few, tables};
use super::start::creates_schema;
use crate::finding::{End, Finding};
use crate::publisher::Publisher;
use crate::subscriber::Subscriber;
use crate::wanted::Wanted;

pub(super) fn new_schema(wanted: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let Some(existing) = target.existing.as_ref().filter(|_| creates_schema(wanted, target)) else {
        return Vec::new();
    };
    let names = source.tables.iter().map(|table| &table.published.name);
    let (there, absent): (Vec<_>, Vec<_>) = names.partition(|name| existing.contains(*name));
    let show = |names: &[&source::publication::TableName]| -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    };
    if absent.is_empty() {
        let what = "all published tables exist: --create-schema has nothing to create";
        return vec![Finding::note(End::Target, "schema", what)];
    }
    if !there.is_empty() {
        let what = format!(
            "exist already, and {} not: --create-schema creates all published tables or none",
            few(&show(&absent))
        );
        let finding = Finding::cannot(End::Target, tables(&show(&there)), what);
        return vec![finding.remedy("drop those that exist, or create the others too")];
    }
    let mut findings = match &source.pg_dump {
        Some(Ok(found)) => {
            vec![Finding::note(End::Source, "pg_dump", format!("{found} will read the schema"))]
        }
        Some(Err(error)) => {
            let finding = Finding::cannot(End::Source, "pg_dump", error.what());
            vec![finding.remedy(error.remedy().unwrap_or_default())]
        }
        None => Vec::new(),
    };
    // None at all could not be read: plpgsql is always there.
    let is_absent = |name: &str| !target.extensions.is_empty() && !target.extensions.contains(name);
    let absent_extensions = source.extensions.iter().filter(|extension| is_absent(&extension.name));
    findings.extend(absent_extensions.map(|extension| {
        let what = "is not available on the target, and the source's schema has it";
        let finding = Finding::cannot(End::Target, format!("extension {}", extension.name), what);
        finding.remedy(
            "install its package on the target's machine, or drop the extension on the source if nothing needs it",
        )
    }));
    let Some(server) = &target.server else { return findings };
    let role = quote_ident(&server.role);
    let schemas: BTreeSet<&str> = absent.iter().map(|name| name.schema.as_str()).collect();
    let closed: Vec<&str> = schemas
        .iter()
        .copied()
        .filter(|name| target.closed_schemas.iter().any(|closed| closed == name))
        .collect();
    if !closed.is_empty() {
        let quoted: Vec<String> = closed.iter().map(|name| quote_ident(name)).collect();
        let what = format!("tables cannot be created there by role {}", server.role);
        let finding = Finding::cannot(End::Target, format!("schema {}", few(&closed)), what);
        findings.push(finding.sql(format!("GRANT CREATE ON SCHEMA {} TO {role}", quoted.join(", "))));
    }
    let new: Vec<&str> =
        schemas.iter().copied().filter(|name| !target.schemas.iter().any(|own| own == name)).collect();
    if !new.is_empty() && !target.state.create {
        let what = format!("schema {} cannot be created there by role {}", few(&new), server.role);
        let finding = Finding::cannot(End::Target, format!("database {}", server.database), what);
        let database = quote_ident(&server.database);
        findings.push(finding.sql(format!("GRANT CREATE ON DATABASE {database} TO {role}")));
    }
    findings
}
