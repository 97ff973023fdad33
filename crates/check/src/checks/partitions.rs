//! Tables that are published as their root: whether the root's identity fits the leaves', and what
//! is done to leaves without reaching a target.
//!
//! The leaf's identity decides which part of an old row is written to WAL. The subscriber is sent
//! the root's identity (see `../partitions.rs`):
//!
//! | root \ leaf | FULL | a key | none |
//! | --- | --- | --- | --- |
//! | FULL | fits | lost, unless the target's own key is within the leaf's | refused by the source |
//! | a key | fits | fits, if the root's columns are within the leaf's; else lost | refused by the source |
//! | none | the stream stops | the stream stops | refused by the source |

use base::quote_ident;
use source::publication::{ReplicaIdentity, TableKind, TableName};

use super::names::{few, tables};
use super::not_carried::section;
use crate::finding::{End, Finding};
use crate::partitions::{Partition, Root, RootKey};
use crate::publisher::{Publisher, SourceTable};
use crate::subscriber::Subscriber;
use crate::wanted::Wanted;

/// The columns that find an old row.
enum Identity<'a> {
    Full,
    Key(&'a [String]),
    None,
}

impl Partition {
    fn table(&self) -> TableName {
        TableName::new(&self.schema, &self.name)
    }

    /// It can be found and is not refused by the source.
    fn has_identity(&self) -> bool {
        self.full || !self.identity.is_empty()
    }

    /// Its changes go to WAL.
    fn is_carried(&self) -> bool {
        self.kind == "r" && self.persistence == "p"
    }

    /// What it writes to WAL holds `columns` whenever they change or go.
    fn holds(&self, columns: &[String]) -> bool {
        self.full || columns.iter().all(|name| self.identity.contains(name))
    }

    /// Gives it the identity that the root has by `key`, as far as it can be had.
    fn follow(&self, key: &RootKey) -> String {
        let table = self.table().quoted();
        match self.parts.iter().find(|part| part.root_index == key.index) {
            Some(part) => {
                format!("ALTER TABLE {table} REPLICA IDENTITY USING INDEX {}", quote_ident(&part.index))
            }
            None => self.make_full(),
        }
    }

    fn make_full(&self) -> String {
        format!("ALTER TABLE {} REPLICA IDENTITY FULL", self.table().quoted())
    }
}

fn identity_of(table: &SourceTable) -> Identity<'_> {
    match table.published.identity {
        ReplicaIdentity::Full => Identity::Full,
        _ if table.facts.identity.is_empty() => Identity::None,
        _ => Identity::Key(&table.facts.identity),
    }
}

/// Published as roots, and how they stand.
fn roots(source: &Publisher) -> impl Iterator<Item = (&SourceTable, &Root)> {
    let as_root = |table: &&SourceTable| table.published.kind == TableKind::Partitioned;
    source.tables.iter().filter(as_root).filter_map(|table| {
        let root = source.partitions.roots.iter().find(|root| root.oid == table.published.oid.0)?;
        Some((table, root))
    })
}

/// The stream cannot say which row an UPDATE means.
pub(super) fn root_without_identity(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (table, root) in roots(source).filter(|(table, _)| source.publishes_old_rows(&table.published)) {
        if !matches!(identity_of(table), Identity::None) {
            continue;
        }
        let name = &table.published.name;
        let leaves: Vec<&Partition> =
            source.partitions.of(root.oid).filter(|leaf| leaf.is_carried()).collect();
        let object = format!("table {name}");
        let finding = match leaves.iter().any(|leaf| leaf.has_identity()) {
            true => {
                let what = "is published as the root of its partitions and has no replica identity, while \
                            partitions have one: the first UPDATE or DELETE stops the subscription, and only \
                            skipping its transaction passes it";
                Finding::cannot(End::Source, object, what)
            }
            false => {
                let what = "is published as the root of its partitions and has no replica identity: once a \
                            partition has one, the first UPDATE or DELETE stops the subscription";
                Finding::warning(End::Source, object, what)
            }
        };
        let remedy = "set an identity that the root and all partitions share, on new partitions as well; or \
                      publish only INSERT and TRUNCATE";
        findings
            .push(set_identity(root, name, &leaves).into_iter().fold(finding.remedy(remedy), Finding::sql));
    }
    findings
}

/// What gives the root an identity that its leaves hold.
fn set_identity(root: &Root, name: &TableName, leaves: &[&Partition]) -> Vec<String> {
    let table = name.quoted();
    let held = |key: &&RootKey| leaves.iter().all(|leaf| leaf.holds(&key.columns));
    if let Some(key) = root.keys.iter().find(held).or(root.keys.first()) {
        let set = format!("ALTER TABLE {table} REPLICA IDENTITY USING INDEX {}", quote_ident(&key.index));
        let others = leaves.iter().filter(|leaf| !leaf.holds(&key.columns));
        return std::iter::once(set).chain(others.map(|leaf| leaf.follow(key))).collect();
    }
    if let Some(columns) = common_key(root, leaves) {
        let list = columns.iter().map(|name| quote_ident(name)).collect::<Vec<_>>().join(", ");
        let add = format!("ALTER TABLE {table} ADD PRIMARY KEY ({list})");
        let by_default = format!("ALTER TABLE {table} REPLICA IDENTITY DEFAULT");
        return std::iter::once(add).chain((root.letter != "d").then_some(by_default)).collect();
    }
    let set = format!("ALTER TABLE {table} REPLICA IDENTITY FULL");
    let others = leaves.iter().filter(|leaf| !leaf.full);
    std::iter::once(set).chain(others.map(|leaf| leaf.make_full())).collect()
}

/// The columns that all leaves are found by, if they can be the root's primary
/// key: they must hold what it is partitioned by, and a leaf that has a primary
/// key must have this one, its columns in this order.
fn common_key<'a>(root: &Root, leaves: &[&'a Partition]) -> Option<&'a [String]> {
    let partitioned_by = root.partitioned_by.as_ref()?;
    let has_primary = leaves.iter().find(|leaf| !leaf.primary.is_empty());
    let columns = match has_primary {
        Some(leaf) => leaf.primary.as_slice(),
        None => leaves.first()?.identity.as_slice(),
    };
    let fits = |leaf: &&Partition| {
        let same = leaf.identity.len() == columns.len() && leaf.holds(columns) && !leaf.full;
        same && (leaf.primary.is_empty() || leaf.primary == columns)
    };
    let holds = partitioned_by.iter().all(|name| columns.contains(name));
    (!columns.is_empty() && holds && leaves.iter().all(fits)).then_some(columns)
}

/// Leaves whose old rows do not hold what the subscriber looks for.
pub(super) fn other_identity(_: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (table, root) in roots(source).filter(|(table, _)| source.publishes_old_rows(&table.published)) {
        let name = &table.published.name;
        let (sought, root_has) = match identity_of(table) {
            Identity::None => continue,
            Identity::Key(columns) => (columns.to_vec(), format!("{} has ({})", name, columns.join(", "))),
            Identity::Full => (found_by(table, root, target), format!("{name} has FULL")),
        };
        let lost: Vec<&Partition> = source
            .partitions
            .of(root.oid)
            .filter(|leaf| leaf.is_carried() && leaf.has_identity() && !leaf.holds(&sought))
            .collect();
        if lost.is_empty() {
            continue;
        }
        let leaf_has = |leaf: &Partition| format!("{} has ({})", leaf.table(), leaf.identity.join(", "));
        let shown: Vec<String> = lost.iter().map(|leaf| leaf_has(leaf)).collect();
        let what = format!(
            "partitions have another replica identity than their root, by which rows are found: {root_has}, {}; \
             UPDATEs and DELETEs there are lost, as update_missing and delete_missing",
            few(&shown)
        );
        let key = root
            .keys
            .iter()
            .find(|key| key.columns == sought && !matches!(identity_of(table), Identity::Full));
        let sql = lost.iter().map(|leaf| key.map_or_else(|| leaf.make_full(), |key| leaf.follow(key)));
        let finding = Finding::cannot(End::Source, format!("table {name}"), what);
        let remedy = "give the partitions the root's identity, new ones as well";
        findings.push(sql.fold(finding.remedy(remedy), Finding::sql));
    }
    findings
}

/// The columns by which a row of a source with FULL is found: the target's own
/// key, or all. A table that is not there yet will have the source's key.
fn found_by(table: &SourceTable, root: &Root, target: &Subscriber) -> Vec<String> {
    let published = &table.published;
    let all = || published.columns.iter().map(|column| column.name.clone()).collect::<Vec<String>>();
    let key: Option<Vec<String>> = match target.tables.get(&published.name) {
        Some(own) => {
            let first = own.facts.indexes.iter().find(|index| index.is_key());
            let own = first.filter(|index| index.identity);
            own.map(|index| index.names().into_iter().map(str::to_owned).collect())
        }
        None => root.keys.iter().find(|key| key.primary).map(|key| key.columns.clone()),
    };
    let is_published = |name: &String| published.columns.iter().any(|column| column.name == *name);
    key.filter(|names| names.iter().all(is_published)).unwrap_or_else(all)
}

/// A statement on a leaf as a table does not reach the root.
pub(super) fn leaves_are_hidden(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let published: Vec<(&SourceTable, &Root)> = roots(source).collect();
    let Some((first, root)) = published.first() else { return Vec::new() };
    let names: Vec<String> = published.iter().map(|(table, _)| table.published.name.to_string()).collect();
    let leaf = source.partitions.of(root.oid).next();
    let leaf = leaf.map_or_else(|| "PARTITION".to_owned(), |leaf| leaf.table().quoted());
    let what = "published as the root of their partitions: rows of a partition that is attached do not reach the \
                target, nor does TRUNCATE, DROP or DETACH of a partition";
    let remedy = format!(
        "attach partitions empty, and INSERT into {root}; instead of TRUNCATE use DELETE FROM {leaf}; before DROP or \
         DETACH run DELETE FROM {leaf}, or remove its rows on the target as well; {}",
        section("Partitions of a table that is published as its root"),
        root = first.published.name.quoted(),
    );
    vec![Finding::warning(End::Source, tables(&names), what).remedy(remedy)]
}

/// Leaves that are not published at all.
pub(super) fn leaves_without_wal(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (table, root) in roots(source) {
        let of = |kind: &str| -> Vec<&Partition> {
            let is = |leaf: &&Partition| match kind {
                "foreign" => leaf.kind == "f",
                _ => leaf.kind == "r" && leaf.persistence == kind,
            };
            source.partitions.of(root.oid).filter(is).collect()
        };
        let (unlogged, foreign) = (of("u"), of("foreign"));
        let object = |leaves: &[&Partition]| {
            let names: Vec<String> = leaves.iter().map(|leaf| leaf.table().to_string()).collect();
            tables(&names)
        };
        let root = &table.published.name;
        if !unlogged.is_empty() {
            let what = format!("unlogged partitions of {root}: no change of theirs reaches the target");
            let finding = Finding::warning(End::Source, object(&unlogged), what);
            let sql = unlogged.iter().map(|leaf| format!("ALTER TABLE {} SET LOGGED", leaf.table().quoted()));
            let remedy = section("Unlogged and temporary tables");
            findings.push(sql.fold(finding.remedy(remedy), Finding::sql));
        }
        if !foreign.is_empty() {
            let what = format!("foreign partitions of {root}: no change of theirs reaches the target");
            let finding = Finding::warning(End::Source, object(&foreign), what);
            let remedy =
                format!("detach them, or replicate from where their rows are; {}", section("Foreign tables"));
            findings.push(finding.remedy(remedy));
        }
    }
    findings
}

/// A publication's row filter and column list of a leaf do not count if its root is published; from
/// 15 on, nor do the publication's actions.
pub(super) fn listed_leaves(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let mut findings = Vec::new();
    for listed in &source.partitions.listed {
        let Some((table, _)) = roots(source).find(|(_, root)| root.oid == listed.root) else { continue };
        let leaf = TableName::new(&listed.schema, &listed.name);
        let (publication, root) = (&listed.publication, &table.published.name);
        let object = format!("table {leaf}");
        let drop = format!("ALTER PUBLICATION {} DROP TABLE {}", quote_ident(publication), leaf.quoted());
        let own = match (listed.filter, listed.list) {
            (true, true) => Some("row filter and column list"),
            (true, false) => Some("row filter"),
            (false, true) => Some("column list"),
            (false, false) => None,
        };
        if let Some(own) = own {
            let what = format!(
                "the {own} that publication {publication} gives it is not used: it is published as {root}, whose own \
                 counts"
            );
            let remedy = format!("give them to {root} instead, and then");
            findings.push(Finding::warning(End::Source, object, what).remedy(remedy).sql(drop));
        } else if !listed.via_root {
            let others = table.published.publications.join(", ");
            let what = format!(
                "publication {publication} publishes it by itself, and {others} as {root}: it is sent as {root}, once"
            );
            findings.push(Finding::note(End::Source, object, what));
        }
    }
    findings
}
