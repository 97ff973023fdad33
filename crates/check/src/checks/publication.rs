//! What the publications publish, and what they leave out that an operator might expect.

use base::quote_ident;
use source::publication::{ReplicaIdentity, TableKind, TableName};

use super::names::{few, tables};
use super::not_carried::section;
use crate::finding::{End, Finding, Refuses};
use crate::publisher::{Publisher, SourceTable};
use crate::subscriber::Subscriber;
use crate::wanted::Wanted;

pub(super) fn missing(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let database = source.server.as_ref().map_or("the source", |server| server.database.as_str());
    let finding = |name: &String| {
        let what = format!("publication \"{name}\" does not exist in database {database}");
        let finding = Finding::cannot(End::Source, format!("publication {name}"), what);
        let remedy = "name the tables instead of ALL TABLES if you do not want all";
        let sql = format!("CREATE PUBLICATION {} FOR ALL TABLES", quote_ident(name));
        finding.remedy(remedy).sql(sql).refusing(Refuses::Every)
    };
    source.missing.iter().map(finding).collect()
}

pub(super) fn contradiction(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let Some(why) = &source.contradiction else { return Vec::new() };
    let finding = Finding::cannot(End::Source, "publications", why.clone()).refusing(Refuses::Every);
    vec![finding.remedy("make the publications agree, or follow them as several subscriptions")]
}

/// A publication that publishes nothing is more often a mistake than intended.
pub(super) fn coverage(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !source.tables_read {
        return findings;
    }
    for publication in &source.publications {
        let object = format!("publication {}", publication.name);
        let covers: Vec<&SourceTable> =
            source.tables.iter().filter(|t| t.published.publications.contains(&publication.name)).collect();
        if covers.is_empty() {
            let sql = format!("ALTER PUBLICATION {} ADD TABLE ...", quote_ident(&publication.name));
            let finding = Finding::warning(End::Source, &object, "publishes no table");
            findings.push(finding.remedy(format!("add the tables that you want: {sql}")));
            continue;
        }
        let actions = [
            ("insert", publication.insert),
            ("update", publication.update),
            ("delete", publication.delete),
            ("truncate", publication.truncate),
        ];
        let (on, off): (Vec<_>, Vec<_>) = actions.into_iter().partition(|(_, on)| *on);
        let names = |actions: &[(&'static str, bool)]| -> Vec<&'static str> {
            actions.iter().map(|(name, _)| *name).collect()
        };
        let all = if publication.all_tables { ", new ones as well" } else { "" };
        let root = if publication.via_root { ", partitions as their root" } else { "" };
        let count = covers.len();
        let plural = if count == 1 { "" } else { "s" };
        let what = format!("publishes {} of {count} table{plural}{all}{root}", names(&on).join(", "));
        findings.push(Finding::note(End::Source, &object, what));
        if !off.is_empty() {
            let off = names(&off);
            let what = format!(
                "does not publish {}: the target keeps what the source no longer has",
                off.join(", ")
            );
            let sql = format!(
                "ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate')",
                quote_ident(&publication.name)
            );
            let finding = Finding::note(End::Source, &object, what);
            findings.push(finding.remedy("unless you want this").sql(sql));
        }
    }
    findings
}

/// The publisher itself refuses such an UPDATE or DELETE, to everybody.
pub(super) fn without_identity(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let mut names: Vec<TableName> = source
        .tables
        .iter()
        .filter(|table| source.publishes_old_rows(&table.published))
        .flat_map(|table| &table.facts.without_identity)
        .map(|leaf| TableName::new(&leaf.schema, &leaf.name))
        .collect();
    names.sort();
    names.dedup();
    if names.is_empty() {
        return Vec::new();
    }
    let shown: Vec<String> = names.iter().map(ToString::to_string).collect();
    let what =
        "no replica identity: the source refuses every UPDATE and DELETE there while they are published";
    let finding = Finding::warning(End::Source, tables(&shown), what);
    let remedy = "better, give them a primary key; or leave them out of the publication; or";
    let full = |name: &TableName| format!("ALTER TABLE {} REPLICA IDENTITY FULL", name.quoted());
    vec![names.iter().map(full).fold(finding.remedy(remedy), Finding::sql)]
}

/// Column lists and row filters (15) that do not fit the identity.
pub(super) fn lists_and_filters(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let mut findings = Vec::new();
    for table in source.tables.iter().filter(|table| source.publishes_old_rows(&table.published)) {
        for (full, identity) in identities(source, table) {
            findings.extend(against_identity(table, full, &identity));
        }
        findings.dedup();
    }
    findings
}

/// The identities that the source judges lists and filters by: those of the
/// leaves, where a root is published. FULL, or the columns.
fn identities(source: &Publisher, table: &SourceTable) -> Vec<(bool, Vec<String>)> {
    if table.published.kind != TableKind::Partitioned {
        return vec![(table.published.identity == ReplicaIdentity::Full, table.facts.identity.clone())];
    }
    let leaves =
        source.partitions.of(table.published.oid.0).filter(|leaf| leaf.full || !leaf.identity.is_empty());
    let mut found: Vec<(bool, Vec<String>)> = leaves.map(|leaf| (leaf.full, leaf.identity.clone())).collect();
    found.sort();
    found.dedup();
    found
}

fn against_identity(table: &SourceTable, full: bool, identity: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let published = &table.published;
    let is_published = |name: &str| published.columns.iter().any(|column| column.name == name);
    let of_table = |columns: &[String], what: &str, remedy: &str| {
        let what = format!("{what}: {}; the source refuses every UPDATE and DELETE there", few(columns));
        Finding::warning(End::Source, format!("table {}", published.name), what).remedy(remedy)
    };
    // With FULL, every column belongs to the identity; generated columns are not published unless
    // listed.
    let identity: Vec<String> = match full {
        true => {
            let stored = table.facts.types.keys().filter(|name| !table.facts.generated.contains(name));
            stored.cloned().collect()
        }
        false => identity.to_vec(),
    };
    let mut unlisted: Vec<String> = identity.iter().filter(|name| !is_published(name)).cloned().collect();
    unlisted.sort();
    if !unlisted.is_empty() {
        let remedy = "add them to the column list, or publish only INSERT and TRUNCATE";
        findings.push(of_table(
            &unlisted,
            "the column list leaves out columns of the replica identity",
            remedy,
        ));
    }
    let outside: Vec<String> =
        table.facts.filtered_by.iter().filter(|name| !full && !identity.contains(name)).cloned().collect();
    if !outside.is_empty() && table.facts.without_identity.is_empty() {
        let finding = of_table(
            &outside,
            "the row filter looks at columns outside of the replica identity",
            "filter by columns of the identity, or publish only INSERT and TRUNCATE; or",
        );
        let sql = format!("ALTER TABLE {} REPLICA IDENTITY FULL", published.name.quoted());
        // A root's identity is not its leaves'.
        let is_root = published.kind == TableKind::Partitioned;
        findings.push(if is_root { finding } else { finding.sql(sql) });
    }
    findings
}

pub(super) fn unpublished(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    ["unlogged", "foreign", "temporary"]
        .into_iter()
        .filter_map(|kind| {
            let names: Vec<&str> = source
                .unpublished
                .iter()
                .filter(|own| own.kind == kind)
                .map(|own| own.name.as_str())
                .collect();
            if names.is_empty() {
                return None;
            }
            let what = format!("{kind}, and so not published with the others");
            let finding = Finding::note(End::Source, tables(&names), what);
            Some(match kind {
                "unlogged" => finding.remedy(format!(
                    "ALTER TABLE ... SET LOGGED, if they are to be replicated; {}",
                    section("Unlogged and temporary tables")
                )),
                "foreign" => finding.remedy(section("Foreign tables")),
                _ => finding.remedy(section("Unlogged and temporary tables")),
            })
        })
        .collect()
}

pub(super) fn generated(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let left_out = |table: &&SourceTable| {
        let published = |name: &String| table.published.columns.iter().any(|column| column.name == *name);
        table.facts.generated.iter().any(|name| !published(name))
    };
    let names: Vec<String> =
        source.tables.iter().filter(left_out).map(|table| table.published.name.to_string()).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let newer = source.server.as_ref().is_some_and(|server| server.major() >= 18);
    let remedy = match newer {
        true => {
            "generate them on the target as well, or ALTER PUBLICATION ... SET (publish_generated_columns = stored)"
        }
        false => "generate them on the target as well",
    };
    let remedy = format!("{remedy}; {}", section("Generated columns"));
    let what = "generated columns are not published";
    vec![Finding::note(End::Source, tables(&names), what).remedy(remedy)]
}

pub(super) fn binary(_: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let (Some(from), Some(to)) = (&source.server, &target.server) else { return Vec::new() };
    let pairs = source
        .tables
        .iter()
        .filter_map(|table| Some((&table.published, &target.tables.get(&table.published.name)?.described)));
    match source::publication::binary_allowed(from.version, to.version, pairs) {
        Ok(()) => Vec::new(),
        Err(why) => vec![Finding::note(End::Source, "binary", format!("values come as text: {why}"))],
    }
}
