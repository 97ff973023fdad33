//! What the rules for conflicts need of the target, and which of them meet no table.

use std::time::Duration;

use conflict::Rules;

use super::identity::found_by;
use super::names::{few, tables};
use super::pair::Pair;
use crate::finding::{End, Finding, Refuses};
use crate::publisher::Publisher;
use crate::server::{Kinship, Server};
use crate::subscriber::Subscriber;
use crate::wanted::Wanted;

/// Without commit times the target knows neither which version is the later one nor who wrote it.
pub(super) fn commit_times(wanted: &Wanted, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = &target.server else { return Vec::new() };
    match server.setting("track_commit_timestamp") {
        "on" => Vec::new(),
        _ => without_commit_times(&wanted.conflict_rules),
    }
}

fn without_commit_times(rules: &Rules) -> Vec<Finding> {
    let rules: Vec<String> = rules.needing_commit_times().collect();
    if rules.is_empty() {
        return Vec::new();
    }
    let what =
        format!("is off, so the target does not keep the commit times that {} needs", rules.join(", "));
    let remedy = "then restart the server; rows that were written before count as the oldest";
    let finding = Finding::cannot(End::Target, "track_commit_timestamp", what).remedy(remedy);
    vec![finding.sql("ALTER SYSTEM SET track_commit_timestamp = on").refusing(Refuses::Every)]
}

/// Versions with the same commit time are decided by their nodes: system identifier and database.
pub(super) fn clones(wanted: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let (Some(from), Some(to)) = (&source.server, &target.server) else { return Vec::new() };
    let is_one_node = from.kinship(to) == Kinship::Copies && from.database == to.database;
    if !is_one_node || !wanted.conflict_rules.compares_times() {
        return Vec::new();
    }
    vec![same_node(&to.database)]
}

fn same_node(database: &str) -> Finding {
    let what = format!(
        "has the name \"{database}\" of the source's, and the server is a copy of the source's: conflict rules could \
         not tell the two apart where commit times are equal, and both sides would keep their own version"
    );
    Finding::cannot(End::Target, "database", what)
        .remedy("rename it on one side, for example with ALTER DATABASE ... RENAME TO")
        .refusing(Refuses::Every)
}

/// Clocks that differ by less cost no hold that anybody notices.
const CLOCKS_DIFFER_MAX_US: i64 = 100_000;

/// Where commit times decide, a transaction is held until the target's clock has passed its commit
/// time.
pub(super) fn clocks(wanted: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let clock = |server: &Option<Server>| server.as_ref().and_then(|server| server.clock);
    let (Some(source), Some(target)) = (clock(&source.server), clock(&target.server)) else {
        return Vec::new();
    };
    let compares = wanted.conflict_rules.compares_times();
    differing_clocks(source.ahead_of(&target), wanted.clock_skew_max)
        .filter(|_| compares)
        .into_iter()
        .collect()
}

/// `ahead` is how far the source's clock is ahead at least and at most, in microseconds.
fn differing_clocks((least, most): (i64, i64), max: Option<Duration>) -> Option<Finding> {
    let seconds = |us: i64| us.unsigned_abs() as f64 / 1e6;
    let remedy = "correct both clocks, by NTP for example";
    if least > CLOCKS_DIFFER_MAX_US {
        let ahead = seconds(least);
        let beyond = max.filter(|max| Duration::from_micros(least.unsigned_abs()) > *max);
        let what = format!("is {ahead:.1} s ahead of the target's, and conflict rules compare commit times");
        return Some(match beyond {
            Some(max) => Finding::cannot(
                End::Source,
                "clock",
                format!(
                    "{what}: that is more than clock_skew_max ({} s), so no transaction is applied",
                    max.as_secs_f64()
                ),
            )
            .remedy(format!("{remedy}, or raise --clock-skew-max"))
            // The clock may be corrected while it runs.
            .refusing(Refuses::Never),
            None => {
                Finding::warning(End::Source, "clock", format!("{what}: each transaction is held that long"))
                    .remedy(remedy)
            }
        });
    }
    if most < -CLOCKS_DIFFER_MAX_US {
        let what = format!(
            "is {:.1} s behind the target's, and conflict rules compare commit times: a version of the target counts \
             as later than one that the source writes up to that long after it",
            seconds(most)
        );
        return Some(Finding::warning(End::Source, "clock", what).remedy(remedy));
    }
    None
}

/// Without deletion memory no row is known to have been deleted.
pub(super) fn remembered_deletions(wanted: &Wanted, _: &Subscriber) -> Vec<Finding> {
    let rules: Vec<String> = wanted.conflict_rules.needing_deletions().collect();
    if rules.is_empty() || wanted.retain_dead_tuples {
        return Vec::new();
    }
    let what =
        format!("is off, so no row is known to have been deleted, and {} has no effect", rules.join(", "));
    vec![Finding::warning(End::Target, "retain_dead_tuples", what).remedy("turn it on: --retain-dead-tuples")]
}

/// Deletions are captured from the target's WAL, which names deleted rows at `logical` only.
pub(super) fn deletions_in_wal(wanted: &Wanted, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = target.server.as_ref().filter(|_| wanted.retain_dead_tuples) else {
        return Vec::new();
    };
    let level = server.setting("wal_level");
    if level == "logical" || level.is_empty() {
        return Vec::new();
    }
    let what =
        format!("is {level}, so WAL does not name deleted rows: no update is reported as update_deleted");
    let finding = Finding::cannot(End::Target, "wal_level", what).remedy("then restart the server");
    // Changes are applied nevertheless.
    vec![finding.sql("ALTER SYSTEM SET wal_level = logical").refusing(Refuses::Never)]
}

/// Deletions are remembered by the target's replica identity, and asked for by the columns by which
/// rows are found.
pub(super) fn remembered_rows(pair: &Pair<'_>) -> Option<Finding> {
    let found_by = found_by(pair)?;
    let why = match pair.target.facts.remembered_by.as_ref()? {
        Err(why) => why.clone(),
        Ok(columns) if *columns != found_by => format!(
            "they are known by {} (the target's replica identity), and rows are found by {}",
            few(columns),
            few(&found_by)
        ),
        Ok(_) => return None,
    };
    let what = format!(
        "deletions of its rows cannot be asked for, so that an update of a deleted row counts as update_missing: {why}"
    );
    let remedy = "give it the source's replica identity, on columns of types that pgsluice compares";
    Some(Finding::warning(End::Target, pair.object(), what).remedy(remedy))
}

/// A rule for a table that is not published is more often a mistake than intended.
pub(super) fn unpublished(wanted: &Wanted, source: &Publisher) -> Vec<Finding> {
    if !source.tables_read {
        return Vec::new();
    }
    let published = source.tables.iter().map(|table| &table.published.name);
    let published: Vec<(&str, &str)> =
        published.map(|own| (own.schema.as_str(), own.name.as_str())).collect();
    of_other_tables(&wanted.conflict_rules, &published)
}

/// Rules whose tables are none of `published`, by schema and name.
fn of_other_tables(rules: &Rules, published: &[(&str, &str)]) -> Vec<Finding> {
    let named = rules.iter().filter_map(|(table, ..)| table);
    let mut names: Vec<String> = named
        .filter(|table| !published.contains(table))
        .map(|(schema, name)| format!("{schema}.{name}"))
        .collect();
    names.dedup();
    if names.is_empty() {
        return Vec::new();
    }
    let what = "a rule for conflicts names it, but no publication publishes it";
    let remedy = "correct the name in the rule, or add the table to a publication";
    vec![Finding::warning(End::Source, tables(&names), what).remedy(remedy)]
}

#[cfg(test)]
mod tests {
    use conflict::{ConflictType, Resolution};

    use super::*;
    use crate::finding::Severity;

    #[test]
    fn rules_that_need_commit_times_are_named_with_the_setting() {
        let mut rules = Rules::default();
        assert!(without_commit_times(&rules).is_empty());
        rules.set(ConflictType::InsertExists, Resolution::KeepLocal).unwrap();
        assert!(without_commit_times(&rules).is_empty(), "it looks at no time");
        rules.set(ConflictType::UpdateExists, Resolution::LastUpdateWins).unwrap();
        rules.set_for(("s", "t"), ConflictType::DeleteOriginDiffers, Resolution::Skip).unwrap();
        let found = without_commit_times(&rules);
        assert_eq!((found.len(), found[0].severity, found[0].end), (1, Severity::Cannot, End::Target));
        assert_eq!(found[0].object, "track_commit_timestamp");
        assert!(found[0].what.contains("update_exists=last_update_wins, delete_origin_differs=skip:s.t"));
        assert_eq!(found[0].sql, ["ALTER SYSTEM SET track_commit_timestamp = on"]);
        assert_eq!(found[0].refuses, Refuses::Every);
    }

    #[test]
    fn clocks_that_differ_for_certain_are_named_with_what_it_costs() {
        let max = Some(Duration::from_secs(30));
        assert!(differing_clocks((-90_000, 2_000_000), max).is_none(), "the answers took too long to tell");
        let held = differing_clocks((3_200_000, 3_300_000), max).unwrap();
        assert_eq!((held.severity, held.end), (Severity::Warning, End::Source));
        assert!(held.what.contains("3.2 s ahead of the target's") && held.what.contains("held"), "{held:?}");
        let beyond = differing_clocks((31_000_000, 31_100_000), max).unwrap();
        assert_eq!((beyond.severity, beyond.refuses), (Severity::Cannot, Refuses::Never));
        assert!(beyond.what.contains("clock_skew_max (30 s)") && beyond.remedy.contains("--clock-skew-max"));
        assert_eq!(differing_clocks((31_000_000, 31_100_000), None).unwrap().severity, Severity::Warning);
        let behind = differing_clocks((-5_100_000, -5_000_000), max).unwrap();
        assert!(behind.what.contains("5.0 s behind the target's"), "{behind:?}");
    }

    #[test]
    fn a_rule_for_a_table_that_is_not_published_is_a_warning_once() {
        let mut rules = Rules::default();
        rules.set(ConflictType::InsertExists, Resolution::Skip).unwrap();
        rules.set_for(("public", "orders"), ConflictType::InsertExists, Resolution::Skip).unwrap();
        let published = [("public", "orders"), ("other", "ordres")];
        assert!(of_other_tables(&rules, &published).is_empty());
        rules.set_for(("public", "ordres"), ConflictType::InsertExists, Resolution::Skip).unwrap();
        rules.set_for(("public", "ordres"), ConflictType::UpdateMissing, Resolution::Error).unwrap();
        let found = of_other_tables(&rules, &published);
        assert_eq!((found.len(), found[0].severity, found[0].end), (1, Severity::Warning, End::Source));
        assert_eq!(found[0].object, "table public.ordres");
        assert!(found[0].remedy.contains("correct the name"), "{found:?}");
        assert_eq!(found[0].refuses, Refuses::Never);
    }
}
