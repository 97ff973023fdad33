//! Every check, in the order of interest to a reader.
//!
//! A check is a function from facts to findings, without I/O. A check of both ends is skipped if
//! one end could not be read, because its result is not known.

mod acting;
mod archive;
mod conflicts;
mod identity;
mod names;
mod new_schema;
mod not_carried;
mod pair;
mod partitions;
mod publication;
mod resources;
mod retention;
mod rights;
mod servers;
mod slot;
mod source_mode;
mod start;
mod tables;

use self::pair::{Pair, pairs};
use crate::finding::{End, Finding};
use crate::publisher::Publisher;
use crate::server::Server;
use crate::subscriber::Subscriber;
use crate::wanted::Wanted;

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

const CHECKS: [Check; 69] = [
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
    Check::Target(conflicts::commit_times),
    Check::Both(conflicts::clones),
    Check::Both(conflicts::clocks),
    Check::Target(conflicts::remembered_deletions),
    Check::Target(conflicts::deletions_in_wal),
    Check::Target(retention::physical_wal),
    Check::Target(retention::replication),
    // What a subscription takes of them.
    Check::Both(resources::slots),
    Check::Both(resources::walsenders),
    Check::Target(resources::origins),
    Check::Target(retention::room),
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
    Check::Source(conflicts::unpublished),
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
    Check::Table(|pair| conflicts::remembered_rows(pair).into_iter().collect()),
    Check::Target(acting::other_writers),
];

/// Checks of a table that act on it while changes are applied.
const ACTING: [Check; 3] =
    [Check::Table(acting::triggers), Check::Table(acting::rules), Check::Both(acting::foreign_keys)];

/// Runs every check on the facts that could be read.
pub(crate) fn run(wanted: &Wanted, source: Option<&Publisher>, target: Option<&Subscriber>) -> Vec<Finding> {
    CHECKS.iter().chain(&ACTING).flat_map(|check| findings(check, wanted, source, target)).collect()
}

fn findings(
    check: &Check,
    wanted: &Wanted,
    source: Option<&Publisher>,
    target: Option<&Subscriber>,
) -> Vec<Finding> {
    match check {
        Check::Server(check) => {
            let source = source.and_then(|source| source.server.as_ref()).map(|server| (End::Source, server));
            let target = target.and_then(|target| target.server.as_ref()).map(|server| (End::Target, server));
            source.into_iter().chain(target).flat_map(|(end, server)| check(end, server)).collect()
        }
        Check::Source(check) => source.map(|source| check(wanted, source)).unwrap_or_default(),
        Check::Target(check) => target.map(|target| check(wanted, target)).unwrap_or_default(),
        Check::Both(check) => match (source, target) {
            (Some(source), Some(target)) => check(wanted, source, target),
            _ => Vec::new(),
        },
        Check::Table(check) => pairs(source, target).flat_map(|pair| check(&pair)).collect(),
    }
}
