//! Every check, in the order of interest to a reader.
//!
//! A check is a function from facts to findings, without I/O. A check of both ends is skipped if
//! one end could not be read, because its result is not known.

mod acting;
mod archive;
mod identity;
mod new_schema;
mod not_carried;
mod partitions;
mod publication;
mod resources;
mod rights;
mod servers;
mod slot;
mod source_mode;
mod tables;

use source::publication::{PublishedTable, TableName};

use crate::finding::{End, Finding};
use crate::publisher::{Publisher, SourceTable};
use crate::server::Server;
use crate::subscriber::{Subscriber, TargetTable};
use crate::{Facts, Wanted};

/// The facts that a check needs.
enum Check {
    /// Either server, by itself.
    Server(fn(End, &Server) -> Vec<Finding>),
    Source(fn(&Wanted, &Publisher) -> Vec<Finding>),
    Target(fn(&Wanted, &Subscriber) -> Vec<Finding>),
    Both(fn(&Wanted, &Publisher, &Subscriber) -> Vec<Finding>),
    /// A published table that the target has.
    Table(fn(&Pair<'_>) -> Vec<Finding>),
}

const CHECKS: [Check; 59] = [
    // The servers.
    Check::Source(servers::wal_level),
    Check::Source(servers::source_in_recovery),
    Check::Both(source_mode::source_mode),
    Check::Target(servers::target_in_recovery),
    Check::Target(servers::read_only),
    Check::Both(servers::one_server),
    Check::Both(servers::encodings),
    Check::Source(servers::walsender_timeout),
    Check::Target(servers::commit_settings),
    // What a subscription takes of them.
    Check::Both(resources::slots),
    Check::Both(resources::walsenders),
    Check::Target(resources::origins),
    Check::Both(resources::source_connections),
    Check::Both(resources::target_connections),
    Check::Source(resources::kept_wal),
    Check::Source(resources::idle_slots),
    // Rights.
    Check::Server(rights::service),
    Check::Source(rights::replication),
    Check::Both(rights::read_tables),
    Check::Both(rights::source_policies),
    Check::Target(rights::state),
    Check::Target(rights::origin_functions),
    Check::Target(rights::replica_role),
    Check::Both(rights::write_tables),
    Check::Both(rights::target_policies),
    // The subscription itself.
    Check::Both(slot::slot),
    Check::Source(slot::standbys),
    Check::Both(archive::archive),
    Check::Both(slot::subscription),
    Check::Target(slot::origin),
    Check::Both(slot::running_transactions),
    Check::Both(slot::prepared_transactions),
    // What is published.
    Check::Source(publication::missing),
    Check::Source(publication::contradiction),
    Check::Source(publication::coverage),
    Check::Source(publication::without_identity),
    Check::Source(publication::lists_and_filters),
    Check::Source(publication::unpublished),
    Check::Source(publication::generated),
    Check::Source(partitions::root_without_identity),
    Check::Both(partitions::other_identity),
    Check::Source(partitions::leaves_are_hidden),
    Check::Source(partitions::leaves_without_wal),
    Check::Source(partitions::listed_leaves),
    Check::Source(not_carried::not_carried),
    Check::Source(not_carried::unlogged),
    Check::Source(not_carried::materialized_views),
    Check::Source(not_carried::truncate_cascade),
    Check::Source(not_carried::extensions),
    Check::Both(publication::binary),
    // Where it goes.
    Check::Both(new_schema::new_schema),
    Check::Both(tables::missing),
    Check::Table(tables::kind),
    Check::Table(tables::columns),
    Check::Table(tables::extra_columns),
    Check::Table(tables::types),
    Check::Both(tables::rows_in_the_way),
    Check::Table(identity::identity),
    Check::Target(acting::other_writers),
];

/// Checks of a table that act on it while changes are applied.
const ACTING: [Check; 3] =
    [Check::Table(acting::triggers), Check::Table(acting::rules), Check::Both(acting::foreign_keys)];

/// A published table and the target's of the same name.
struct Pair<'a> {
    name: &'a TableName,
    publisher: &'a Publisher,
    source: &'a SourceTable,
    target: &'a TargetTable,
}

impl Pair<'_> {
    fn published(&self) -> &PublishedTable {
        &self.source.published
    }

    /// `table public.t`
    fn object(&self) -> String {
        format!("table {}", self.name)
    }

    /// `column a of table public.t`
    fn column(&self, column: &str) -> String {
        format!("column {column} of table {}", self.name)
    }
}

/// Runs every check on the facts that could be read.
pub(crate) fn run(facts: &Facts, findings: &mut Vec<Finding>) {
    let (source, target) = (facts.source.as_ref(), facts.target.as_ref());
    for check in CHECKS.iter().chain(&ACTING) {
        match check {
            Check::Server(check) => {
                let source = source.and_then(|source| source.server.as_ref());
                let target = target.and_then(|target| target.server.as_ref());
                findings.extend(source.into_iter().flat_map(|server| check(End::Source, server)));
                findings.extend(target.into_iter().flat_map(|server| check(End::Target, server)));
            }
            Check::Source(check) => {
                findings.extend(source.into_iter().flat_map(|source| check(&facts.wanted, source)));
            }
            Check::Target(check) => {
                findings.extend(target.into_iter().flat_map(|target| check(&facts.wanted, target)));
            }
            Check::Both(check) => {
                let both = source.zip(target);
                findings.extend(
                    both.into_iter().flat_map(|(source, target)| check(&facts.wanted, source, target)),
                );
            }
            Check::Table(check) => findings.extend(pairs(source, target).flat_map(|pair| check(&pair))),
        }
    }
}

fn pairs<'a>(
    source: Option<&'a Publisher>,
    target: Option<&'a Subscriber>,
) -> impl Iterator<Item = Pair<'a>> {
    source.zip(target).into_iter().flat_map(|(publisher, target)| {
        publisher.tables.iter().filter_map(move |source| {
            let name = &source.published.name;
            Some(Pair { name, publisher, source, target: target.tables.get(name)? })
        })
    })
}

/// Whether the next start will copy tables.
fn copies(wanted: &Wanted, target: &Subscriber) -> bool {
    match &target.state.subscription {
        Some(subscription) if subscription.begun => subscription.unfinished > 0,
        _ => wanted.copy_data,
    }
}

/// Whether the subscription runs at this moment, and so holds its slots and sessions already.
fn is_running(source: &Publisher) -> bool {
    source.slot.as_ref().is_some_and(|slot| slot.active_pid.is_some())
}

/// `a, b and 3 more`
fn few(names: &[impl AsRef<str>]) -> String {
    /// A list longer than a line does not help.
    const SHOWN_MAX: usize = 8;
    let shown: Vec<&str> = names.iter().take(SHOWN_MAX).map(AsRef::as_ref).collect();
    let rest = names.len() - shown.len();
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

/// `table a`, or `tables a, b`
fn tables(names: &[impl AsRef<str>]) -> String {
    format!("table{} {}", if names.len() == 1 { "" } else { "s" }, few(names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut_and_counted() {
        assert_eq!(tables(&["a"]), "table a");
        assert_eq!(tables(&["a", "b"]), "tables a, b");
        let many: Vec<String> = (0..12).map(|n| n.to_string()).collect();
        assert_eq!(few(&many), "0, 1, 2, 3, 4, 5, 6, 7 and 4 more");
    }
}
