//! Objects of the source's database that no logical replication carries. `docs/not-carried.md` has
//! a section for each kind.

use super::names::{few, tables};
use crate::finding::{End, Finding};
use crate::publisher::Publisher;
use crate::wanted::Wanted;

/// `see "Sequences" in docs/not-carried.md`
pub(super) fn section(title: &str) -> String {
    format!("see \"{title}\" in docs/not-carried.md")
}

pub(super) fn not_carried(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let mut findings = Vec::new();
    if source.sequences > 0 {
        let owned = match source.uncarried.owned_sequences {
            0 => String::new(),
            owned => format!(" ({owned} of columns of published tables)"),
        };
        let what = format!("{} in this database{owned}: their values are not replicated", source.sequences);
        let remedy =
            format!("pgsluice sequences --apply, before the target takes over; {}", section("Sequences"));
        findings.push(Finding::note(End::Source, "sequences", what).remedy(remedy));
    }
    if source.large_objects > 0 {
        let more = if source.large_objects >= 1000 { " or more" } else { "" };
        let what = format!("{}{more} in this database: they are not replicated", source.large_objects);
        let remedy = format!(
            "carry them over with pg_dump --large-objects (--blobs before 16), or keep them in bytea columns; {}",
            section("Large objects")
        );
        findings.push(Finding::warning(End::Source, "large objects", what).remedy(remedy));
    }
    let what = "changes of tables and other objects are not replicated";
    let remedy = format!(
        "change the target first when adding, last when dropping; {}",
        section("Schema changes (DDL)")
    );
    findings.push(Finding::note(End::Source, "schema", what).remedy(remedy));
    findings
}

pub(super) fn materialized_views(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let views = &source.uncarried.materialized_views;
    if views.is_empty() {
        return Vec::new();
    }
    let what = format!("{}: REFRESH does not reach the target", few(views));
    let remedy = format!("create and refresh them on the target; {}", section("Materialized views"));
    vec![Finding::note(End::Source, "materialized views", what).remedy(remedy)]
}

pub(super) fn extensions(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let extensions = &source.uncarried.stateful_extensions;
    if extensions.is_empty() {
        return Vec::new();
    }
    let what = format!("{} have tables of their own, which are their state", few(extensions));
    let remedy = format!("configure them on the target as on the source; {}", section("Extensions"));
    vec![Finding::note(End::Source, "extensions", what).remedy(remedy)]
}

/// TRUNCATE ... CASCADE on the source also empties tables that are not published.
pub(super) fn truncate_cascade(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let references = &source.uncarried.references;
    if references.is_empty() || !source.publications.iter().any(|own| own.truncate) {
        return Vec::new();
    }
    let what = format!(
        "foreign keys of tables that are not published: {}; TRUNCATE ... CASCADE empties these on the source only",
        few(references)
    );
    let remedy =
        format!("publish them as well, or TRUNCATE them on the target by hand; {}", section("TRUNCATE"));
    vec![Finding::note(End::Source, "TRUNCATE", what).remedy(remedy)]
}

/// Unlogged tables beside published ones. Where a publication takes all tables
/// or a schema, `publication::unpublished` names them.
pub(super) fn unlogged(_: &Wanted, source: &Publisher) -> Vec<Finding> {
    let told = |name: &&String| source.unpublished.iter().any(|own| own.name == **name);
    let names: Vec<&String> = source.uncarried.unlogged.iter().filter(|name| !told(name)).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let what = "unlogged, beside published tables: cannot be published";
    let remedy = format!(
        "ALTER TABLE ... SET LOGGED, if they are to be replicated; {}",
        section("Unlogged and temporary tables")
    );
    vec![Finding::note(End::Source, tables(&names), what).remedy(remedy)]
}

#[cfg(test)]
mod tests {
    /// Every section that a finding names is there, under this heading.
    #[test]
    fn sections_that_findings_name_exist() {
        let page = include_str!("../../../../docs/not-carried.md");
        let sources =
            [include_str!("not_carried.rs"), include_str!("partitions.rs"), include_str!("publication.rs")];
        let mut named = 0;
        for source in sources {
            for rest in source.split("section(\"").skip(1) {
                let title = rest.split('"').next().unwrap();
                named += 1;
                assert!(page.contains(&format!("\n## {title}\n")), "no section \"{title}\"");
            }
        }
        assert!(named >= 10, "{named}");
    }
}
