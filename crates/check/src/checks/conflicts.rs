//! What the rules for conflicts need of the target, and which of them meet no table.

use conflict::Rules;

use super::identity::found_by;
use super::names::{few, tables};
use super::pair::Pair;
use crate::finding::{End, Finding, Refuses};
use crate::publisher::Publisher;
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
