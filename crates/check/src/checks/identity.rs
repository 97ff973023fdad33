//! How the applier will find a row, and whether it can write sets.
//!
//! `plan`'s `table.rs` decides it when the relation is described; this is
//! the same decision from the same facts, and must agree with it:
//!
//! | the target has, for the source's identity ... | a row is found by | changes are written |
//! | --- | --- | --- |
//! | a unique, immediate, full index, all columns NOT NULL and bytewise, or equal by a rule that the source's index has too | that key | as sets |
//! | such an index, but a column may be NULL, or equal without equal bytes | that key | one at a time |
//! | no such index | the identity's columns, in whatever index begins with one | one at a time |
//! | nothing, and the source's identity is FULL | all columns, in whatever index begins with one | as sets |

use base::quote_ident;
use source::publication::{Column, ReplicaIdentity};

use super::names::few;
use super::pair::Pair;
use crate::finding::{End, Finding};
use crate::subscriber::Index;

/// How a row is found.
enum Lookup<'a> {
    /// By a unique key of the target.
    Key(Vec<&'a str>),
    /// By the source's identity, not unique here.
    Columns(Vec<&'a str>),
    /// By the whole row.
    Row,
    /// Not at all: only INSERT and TRUNCATE can arrive.
    None,
}

pub(super) fn identity(pair: &Pair<'_>) -> Vec<Finding> {
    if !matches!(pair.target.facts.kind.as_str(), "r" | "p") || pair.target.facts.unbuilt {
        return Vec::new();
    }
    let mut findings = not_for_sets(pair);
    if !pair.publisher.publishes_old_rows(pair.published()) {
        return findings;
    }
    let lookup = lookup(pair);
    findings.extend(full_identity(pair, &lookup));
    match &lookup {
        Lookup::Row => findings.push(by_whole_row(pair)),
        Lookup::Columns(columns) => findings.push(by_columns(pair, columns)),
        Lookup::Key(columns) => findings.extend(one_at_a_time(pair, columns)),
        Lookup::None => {}
    }
    findings
}

/// The columns by which rows are found, in the order of their names; `None` if no change looks for
/// a row.
pub(super) fn found_by<'a>(pair: &'a Pair<'_>) -> Option<Vec<&'a str>> {
    if !pair.publisher.publishes_old_rows(pair.published()) {
        return None;
    }
    let mut columns = match lookup(pair) {
        Lookup::Key(columns) | Lookup::Columns(columns) => columns,
        Lookup::Row => pair.published().columns.iter().map(|column| column.name.as_str()).collect(),
        Lookup::None => return None,
    };
    columns.sort_unstable();
    Some(columns)
}

fn lookup<'a>(pair: &'a Pair<'_>) -> Lookup<'a> {
    let published = pair.published();
    let is_published = |name: &&str| published.columns.iter().any(|column| column.name == **name);
    let keys: Vec<&Index> = pair.target.facts.indexes.iter().filter(|index| index.is_key()).collect();
    if published.identity == ReplicaIdentity::Full {
        let own = keys.first().filter(|index| index.identity).map(|index| index.names());
        return match own.filter(|names| names.iter().all(is_published)) {
            Some(names) => Lookup::Key(names),
            None => Lookup::Row,
        };
    }
    let of_identity = published.columns.iter().filter(|column| column.in_replica_identity);
    let mut identity: Vec<&str> = of_identity.map(|column| column.name.as_str()).collect();
    if identity.is_empty() {
        return Lookup::None;
    }
    identity.sort_unstable();
    let same = |index: &&&Index| {
        let mut names = index.names();
        names.sort_unstable();
        names == identity
    };
    if keys.iter().any(|index| same(&index)) { Lookup::Key(identity) } else { Lookup::Columns(identity) }
}

fn full_identity(pair: &Pair<'_>, lookup: &Lookup<'_>) -> Option<Finding> {
    if pair.published().identity != ReplicaIdentity::Full || matches!(lookup, Lookup::Row) {
        return None;
    }
    let what = "REPLICA IDENTITY FULL: the source writes whole old rows to WAL; the target's key finds them";
    Some(Finding::note(End::Source, pair.object(), what).remedy("a primary key as the identity costs less"))
}

/// Whether it may lead to rows of which the value of such a column is known.
fn leads_by(index: &Index, is_known: impl Fn(&str) -> bool) -> bool {
    let first = index.columns.first().and_then(Option::as_deref);
    index.searchable && index.valid && !index.partial && first.is_some_and(is_known)
}

fn by_whole_row(pair: &Pair<'_>) -> Finding {
    let what = "the source's identity is FULL and the target has no primary key or replica identity among the published \
                columns";
    let is_published = |name: &str| pair.published().columns.iter().any(|column| column.name == name);
    let finding = match pair.target.facts.indexes.iter().any(|index| leads_by(index, is_published)) {
        true => {
            let what = format!(
                "{what}: rows are found by all of their values, through an index that may be of little use"
            );
            Finding::note(End::Target, pair.object(), what)
        }
        false => {
            let what = format!("{what}: every set of UPDATEs and DELETEs reads the whole table");
            Finding::warning(End::Target, pair.object(), what)
        }
    };
    finding.remedy("ALTER TABLE ... ADD PRIMARY KEY with columns that are published, best on both ends")
}

fn by_columns(pair: &Pair<'_>, columns: &[&str]) -> Finding {
    let indexes = &pair.target.facts.indexes;
    let list = columns.iter().map(|name| quote_ident(name)).collect::<Vec<_>>().join(", ");
    // Why an index that looks right cannot serve.
    let unfit = indexes.iter().find(|index| index.unique && index.names() == columns && !index.is_key());
    let why = unfit.map_or(String::new(), |index| {
        let why = match () {
            () if !index.immediate => "deferrable",
            () if index.partial => "partial",
            () if index.expressions => "over expressions",
            () => "not valid",
        };
        format!(" (index {} is {why})", index.name)
    });
    let what = format!("no unique index that serves on the source's identity, {}{why}", columns.join(", "));
    let has_primary = indexes.iter().any(|index| index.identity);
    let sql = match has_primary {
        true => format!("CREATE UNIQUE INDEX ON {} ({list})", pair.name.quoted()),
        false => format!("ALTER TABLE {} ADD PRIMARY KEY ({list})", pair.name.quoted()),
    };
    let finding = match indexes.iter().any(|index| leads_by(index, |name| columns.contains(&name))) {
        true => {
            let what = format!("{what}: changes are written one at a time");
            Finding::note(End::Target, pair.object(), what)
        }
        false => {
            let what = format!("{what}: every UPDATE and DELETE reads the whole table");
            Finding::warning(End::Target, pair.object(), what)
        }
    };
    finding.sql(sql)
}

/// There is a key, but not one that sets can be folded by.
fn one_at_a_time(pair: &Pair<'_>, columns: &[&str]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let published = &pair.published().columns;
    // An index of the source's, which is unique by the same rule.
    let unique_there = pair.published().identity != ReplicaIdentity::Full;
    for column in published.iter().filter(|column| columns.contains(&column.name.as_str())) {
        let (Some(target), Some(own)) =
            (pair.target.described.column(&column.name), pair.target.facts.columns.get(&column.name))
        else {
            continue;
        };
        let what = match () {
            () if !target.not_null => "may be NULL",
            () if !(own.bytewise || own.inherent && unique_there) => {
                "has a type whose values may be equal without being the same"
            }
            () if !same_type(column, target, own.is_enum) => {
                "has another type than on the source, or a type of users"
            }
            () => continue,
        };
        let what = format!("is of the identity and {what}: changes are written one at a time");
        let finding = Finding::note(End::Target, pair.column(&column.name), what);
        findings.push(match target.not_null {
            true => finding,
            false => finding.sql(format!(
                "ALTER TABLE {} ALTER COLUMN {} SET NOT NULL",
                pair.name.quoted(),
                quote_ident(&column.name)
            )),
        });
    }
    let always: Vec<String> = published
        .iter()
        .filter(|column| !columns.contains(&column.name.as_str()))
        .filter(|column| {
            pair.target.described.column(&column.name).is_some_and(|target| target.identity_always)
        })
        .map(|column| column.name.clone())
        .collect();
    if !always.is_empty() {
        let what = format!(
            "GENERATED ALWAYS AS IDENTITY outside of the key ({}): changes are written one at a time",
            few(&always)
        );
        let set = |name: &String| {
            format!(
                "ALTER TABLE {} ALTER COLUMN {} SET GENERATED BY DEFAULT",
                pair.name.quoted(),
                quote_ident(name)
            )
        };
        findings
            .push(always.iter().map(set).fold(Finding::note(End::Target, pair.object(), what), Finding::sql));
    }
    findings
}

fn same_type(source: &Column, target: &Column, is_enum: bool) -> bool {
    let (from, to) = (source.data_type.oid, target.data_type.oid);
    from == to && !from.is_user_defined() || is_enum && from.is_user_defined()
}

/// Constraints that a set may violate although the source never did: the batch is then split into
/// single changes (rules F4, A2).
fn not_for_sets(pair: &Pair<'_>) -> Vec<Finding> {
    let names = |chosen: fn(&&Index) -> bool| -> Vec<&str> {
        pair.target.facts.indexes.iter().filter(chosen).map(|index| index.name.as_str()).collect()
    };
    let kinds: [(&str, Vec<&str>); 3] = [
        ("exclusion constraints", names(|index| index.exclusion)),
        ("unique indexes over expressions", names(|index| index.unique && index.expressions)),
        ("partial unique indexes", names(|index| index.unique && index.partial)),
    ];
    let found = kinds.into_iter().filter(|(_, names)| !names.is_empty());
    found
        .map(|(kind, names)| {
            let what =
                format!("{kind} ({}): a batch that meets one is written one change at a time", few(&names));
            Finding::note(End::Target, pair.object(), what)
        })
        .collect()
}
