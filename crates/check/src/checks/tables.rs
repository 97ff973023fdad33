//! Whether the target has the tables and columns that are published.

use base::quote_ident;
use source::publication::{Generated, ReplicaIdentity};

use super::names::{few, tables};
use super::pair::{Pair, pairs};
use super::start::{copies, creates_schema};
use crate::finding::{End, Finding};
use crate::publisher::{Publisher, SourceTable};
use crate::subscriber::Subscriber;
use crate::types::{Fit, fit};
use crate::wanted::Wanted;

pub(super) fn missing(wanted: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    if creates_schema(wanted, target) {
        return Vec::new();
    }
    let mut made: Vec<&str> = Vec::new();
    let Some(existing) = &target.existing else { return Vec::new() };
    let absent = source.tables.iter().filter(|table| !existing.contains(&table.published.name));
    absent
        .map(|table| {
            let name = &table.published.name;
            let what = "does not exist on the target";
            let mut finding = Finding::cannot(End::Target, format!("table {name}"), what);
            let schema = name.schema.as_str();
            if !target.schemas.iter().any(|own| own == schema) && !made.contains(&schema) {
                made.push(schema);
                finding = finding.sql(format!("CREATE SCHEMA {}", quote_ident(schema)));
            }
            match create(table) {
                Some(sql) => finding
                    .remedy("start with --create-schema if the target is empty; or by pg_dump --schema-only of the source, with its indexes; or, at the least")
                    .sql(sql),
                None => finding.remedy(format!(
                    "start with --create-schema if the target is empty; or pg_dump --schema-only --table='{}' of the source \
                     creates it, or leave it out of the publication",
                    name.quoted()
                )),
            }
        })
        .collect()
}

/// The published columns with their key; `None` if a type must be created first.
fn create(table: &SourceTable) -> Option<String> {
    let published = &table.published;
    let mut lines = Vec::new();
    for column in &published.columns {
        if column.data_type.oid.is_user_defined() {
            return None;
        }
        let not_null = if column.not_null { " NOT NULL" } else { "" };
        lines.push(format!(
            "{} {}{not_null}",
            quote_ident(&column.name),
            table.facts.types.get(&column.name)?
        ));
    }
    let key: Vec<String> = table.facts.identity.iter().map(|name| quote_ident(name)).collect();
    if !key.is_empty() && published.identity != ReplicaIdentity::Full {
        lines.push(format!("PRIMARY KEY ({})", key.join(", ")));
    }
    Some(format!("CREATE TABLE {} ({})", published.name.quoted(), lines.join(", ")))
}

/// The kind of relation that has the name.
pub(super) fn kind(pair: &Pair<'_>) -> Vec<Finding> {
    let (facts, object) = (&pair.target.facts, pair.object());
    let other = match facts.kind.as_str() {
        "r" if facts.persistence == "u" => {
            let what =
                "is unlogged: a crash of the target empties it, and what was applied does not come again";
            let sql = format!("ALTER TABLE {} SET LOGGED", pair.name.quoted());
            return vec![Finding::warning(End::Target, object, what).sql(sql)];
        }
        "r" => return Vec::new(),
        "p" => return partitions(pair),
        "v" => "a view",
        "m" => "a materialized view",
        "f" => "a foreign table",
        _ => "something other than a table",
    };
    let what = format!("the name stands for {other} on the target, to which pgsluice cannot apply changes");
    vec![Finding::cannot(End::Target, object, what).remedy("rename one of them, and create the table")]
}

/// Rows for which there is no partition.
fn partitions(pair: &Pair<'_>) -> Vec<Finding> {
    let (from, to) = (&pair.source.facts, &pair.target.facts);
    let object = pair.object();
    let default = format!("{}_default", pair.name.name);
    let sql = format!(
        "CREATE TABLE {}.{} PARTITION OF {} DEFAULT",
        quote_ident(&pair.name.schema),
        quote_ident(&default),
        pair.name.quoted()
    );
    if to.leaves == 0 {
        let what = "is partitioned and has no partition on the target: no row can be written";
        return vec![
            Finding::cannot(End::Target, object, what).remedy("create the source's partitions; or").sql(sql),
        ];
    }
    let has_default = to.partition_bounds.iter().any(|bound| bound == "DEFAULT");
    let is_hash = to.partition_key.as_deref().is_some_and(|key| key.starts_with("HASH"));
    if has_default || is_hash {
        return Vec::new();
    }
    let missing: Vec<String> =
        from.partition_bounds.iter().filter(|bound| !to.partition_bounds.contains(bound)).cloned().collect();
    if from.partition_key == to.partition_key && missing.is_empty() {
        return Vec::new();
    }
    let what = match missing.is_empty() || from.partition_key != to.partition_key {
        true => {
            "is partitioned otherwise than on the source: a row that fits no partition stops the subscription"
                .to_owned()
        }
        false => {
            format!("lacks partitions of the source, whose rows stop the subscription: {}", few(&missing))
        }
    };
    vec![Finding::warning(End::Target, object, what).remedy("create what is missing; or").sql(sql)]
}

/// Columns that are published and cannot be written.
pub(super) fn columns(pair: &Pair<'_>) -> Vec<Finding> {
    if !matches!(pair.target.facts.kind.as_str(), "r" | "p") {
        return Vec::new();
    }
    let table = pair.name.quoted();
    let mut findings = Vec::new();
    for column in &pair.published().columns {
        let (object, quoted) = (pair.column(&column.name), quote_ident(&column.name));
        match pair.target.described.column(&column.name) {
            None => {
                let what = "does not exist on the target";
                let finding = Finding::cannot(End::Target, object, what);
                let full_type = pair.source.facts.types.get(&column.name).map_or("...", String::as_str);
                let sql = format!("ALTER TABLE {table} ADD COLUMN {quoted} {full_type}");
                findings.push(finding.remedy("or publish a column list without it").sql(sql));
            }
            Some(target) if target.generated != Generated::No => {
                let what = "is published by the source but generated on the target, so it cannot be written";
                let finding = Finding::cannot(End::Target, object, what);
                findings.push(match target.generated {
                    Generated::Stored => finding
                        .remedy("or do not publish it")
                        .sql(format!("ALTER TABLE {table} ALTER COLUMN {quoted} DROP EXPRESSION")),
                    _ => finding.remedy("make it an ordinary column there, or do not publish it"),
                });
            }
            Some(target) if target.not_null && !column.not_null => {
                let what = "is NOT NULL on the target only: a NULL of the source stops the subscription";
                let sql = format!("ALTER TABLE {table} ALTER COLUMN {quoted} DROP NOT NULL");
                let finding = Finding::warning(End::Target, object, what);
                let in_key = pair
                    .target
                    .facts
                    .indexes
                    .iter()
                    .any(|i| i.identity && i.names().contains(&&*column.name));
                // A primary key's column stays as it is.
                findings.push(if in_key { finding } else { finding.sql(sql) });
            }
            Some(_) => {}
        }
    }
    findings
}

/// Columns that only the target has, and that no INSERT fills.
pub(super) fn extra_columns(pair: &Pair<'_>) -> Vec<Finding> {
    let published = |name: &str| pair.published().columns.iter().any(|column| column.name == name);
    let mut findings = Vec::new();
    for column in pair.target.described.columns.iter().filter(|column| !published(&column.name)) {
        let has_default =
            pair.target.facts.columns.get(&column.name).is_some_and(|column| column.has_default);
        if column.not_null && !has_default {
            let what =
                "is NOT NULL without a default, and the source does not publish it: no row can be inserted";
            let sql = format!(
                "ALTER TABLE {} ALTER COLUMN {} DROP NOT NULL",
                pair.name.quoted(),
                quote_ident(&column.name)
            );
            let finding = Finding::cannot(End::Target, pair.column(&column.name), what);
            findings.push(finding.remedy("give it a default; or").sql(sql));
        }
    }
    findings
}

/// Columns whose types differ, and enums without a label.
pub(super) fn types(pair: &Pair<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for column in &pair.published().columns {
        let Some(target) = pair.target.described.column(&column.name) else { continue };
        let from = pair.source.facts.types.get(&column.name).map_or("?", String::as_str);
        let own = pair.target.facts.columns.get(&column.name);
        let to = own.map_or("?", |column| column.full_type.as_str());
        let object = pair.column(&column.name);
        let sql = format!(
            "ALTER TABLE {} ALTER COLUMN {} TYPE {from} USING {}::text::{from}",
            pair.name.quoted(),
            quote_ident(&column.name),
            quote_ident(&column.name)
        );
        let differ = format!("is {from} on the source and {to} on the target");
        // A user's type may not be there to be changed to.
        let with_sql = |finding: Finding| {
            if column.data_type.oid.is_user_defined() { finding } else { finding.sql(&sql) }
        };
        match fit(column, target) {
            Fit::Every if from != to && !column.data_type.oid.is_user_defined() => {
                findings.push(Finding::note(
                    End::Target,
                    object,
                    format!("{differ}, which holds every value"),
                ));
            }
            Fit::Every => findings.extend(labels(pair, &column.name)),
            Fit::Some(what) | Fit::Changed(what) => {
                findings.push(with_sql(Finding::warning(End::Target, object, format!("{differ}: {what}"))));
            }
            Fit::None => {
                let what = format!("{differ}, which reads none of its values");
                findings.push(with_sql(Finding::cannot(End::Target, object, what)));
            }
        }
    }
    findings
}

fn labels(pair: &Pair<'_>, column: &str) -> Option<Finding> {
    let from = pair.source.facts.labels.get(column)?;
    let to = pair.target.facts.columns.get(column).filter(|column| column.is_enum)?;
    let missing: Vec<String> = from.iter().filter(|label| !to.labels.contains(label)).cloned().collect();
    if missing.is_empty() {
        return None;
    }
    let what = format!("its enum {} has not these labels on the target: {}", to.full_type, few(&missing));
    let finding = Finding::warning(End::Target, pair.column(column), what);
    let add = |label: &String| {
        format!("ALTER TYPE {} ADD VALUE IF NOT EXISTS {}", to.full_type, base::quote_literal(label))
    };
    Some(missing.iter().map(add).fold(finding, Finding::sql))
}

/// A copy adds to existing rows, as the native first copy does.
pub(super) fn rows_in_the_way(wanted: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    // Tables whose copy was begun hold rows of that copy.
    if target.state.is_begun() || !copies(wanted, target) {
        return Vec::new();
    }
    let filled: Vec<Pair<'_>> =
        pairs(Some(source), Some(target)).filter(|pair| pair.target.facts.has_rows).collect();
    if filled.is_empty() {
        return Vec::new();
    }
    let names: Vec<String> = filled.iter().map(|pair| pair.name.to_string()).collect();
    let quoted: Vec<String> = filled.iter().map(|pair| pair.name.quoted()).collect();
    let what =
        "not empty: the copy adds the source's rows, twice where no key forbids it, and stops where one does";
    let finding = Finding::warning(End::Target, tables(&names), what);
    let remedy = "start with --copy-data off if the rows are the source's; or, if they may go";
    vec![finding.remedy(remedy).sql(format!("TRUNCATE {}", quoted.join(", ")))]
}
