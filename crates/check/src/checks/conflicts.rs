//! What the rules for conflicts need of the target, and which of them meet no table.

use super::names::tables;
use crate::finding::{End, Finding, Refuses};
use crate::publisher::Publisher;
use crate::subscriber::Subscriber;
use crate::wanted::Wanted;

/// Without commit times the target knows neither which version is the later one nor who wrote it.
pub(super) fn commit_times(wanted: &Wanted, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = &target.server else { return Vec::new() };
    let rules: Vec<String> = wanted.conflict_rules.needing_commit_times().collect();
    if rules.is_empty() || server.setting("track_commit_timestamp") == "on" {
        return Vec::new();
    }
    let what =
        format!("is off, so the target does not keep the commit times that {} needs", rules.join(", "));
    let remedy = "then restart the server; rows that were written before count as the oldest";
    let finding = Finding::cannot(End::Target, "track_commit_timestamp", what).remedy(remedy);
    vec![finding.sql("ALTER SYSTEM SET track_commit_timestamp = on").refusing(Refuses::Every)]
}

/// A rule for a table that is not published is more often a mistake than intended.
pub(super) fn unpublished(wanted: &Wanted, source: &Publisher) -> Vec<Finding> {
    if !source.tables_read {
        return Vec::new();
    }
    let is_published = |(schema, name): (&str, &str)| {
        let names = source.tables.iter().map(|table| &table.published.name);
        names.into_iter().any(|own| own.schema == schema && own.name == name)
    };
    let named = wanted.conflict_rules.iter().filter_map(|(table, ..)| table);
    let mut names: Vec<String> = named
        .filter(|table| !is_published(*table))
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
