//! What else acts on replicated rows of the target (rule F5).

use base::quote_ident;

use super::names::few;
use super::pair::{Pair, pairs};
use crate::finding::{End, Finding, Refuses};
use crate::publisher::Publisher;
use crate::subscriber::Subscriber;
use crate::wanted::Wanted;

pub(super) fn triggers(pair: &Pair<'_>) -> Vec<Finding> {
    let names = &pair.target.facts.triggers;
    if names.is_empty() {
        return Vec::new();
    }
    let what = format!(
        "triggers fire for replicated rows ({}): changes are written one at a time, and other tables wait for them",
        few(names)
    );
    let finding = Finding::warning(End::Target, pair.object(), what).remedy("unless you want them to fire");
    let disable =
        |name: &String| format!("ALTER TABLE {} DISABLE TRIGGER {}", pair.name.quoted(), quote_ident(name));
    vec![names.iter().map(disable).fold(finding, Finding::sql)]
}

/// The first copy passes rules by; the first change stops at them.
pub(super) fn rules(pair: &Pair<'_>) -> Vec<Finding> {
    let names = &pair.target.facts.rules;
    if names.is_empty() || !matches!(pair.target.facts.kind.as_str(), "r" | "p") {
        return Vec::new();
    }
    let what =
        format!("rules would rewrite replicated changes ({}), so pgsluice refuses the first one", few(names));
    let finding = Finding::cannot(End::Target, pair.object(), what).refusing(Refuses::Never);
    let disable =
        |name: &String| format!("ALTER TABLE {} DISABLE RULE {}", pair.name.quoted(), quote_ident(name));
    vec![names.iter().map(disable).fold(finding, Finding::sql)]
}

pub(super) fn foreign_keys(_: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let names: Vec<String> = pairs(Some(source), Some(target))
        .flat_map(|pair| {
            pair.target.facts.foreign_keys.iter().map(move |key| format!("{key} of {}", pair.name))
        })
        .collect();
    if names.is_empty() {
        return Vec::new();
    }
    let object = format!("foreign key{} {}", if names.len() == 1 { "" } else { "s" }, few(&names));
    if target.replica {
        let what = "not checked for replicated rows, as in native apply: the source has checked them";
        return vec![Finding::note(End::Target, object, what)];
    }
    let what = "checked for replicated rows, because session_replication_role cannot be set: tables are not \
                copied in the keys' order";
    vec![Finding::warning(End::Target, object, what).remedy("let the role set session_replication_role")]
}

/// Native subscriptions into the same tables, and publications that include schema `pgsluice`.
pub(super) fn other_writers(_: &Wanted, target: &Subscriber) -> Vec<Finding> {
    let native = target.native.iter().map(|own| {
        let what = format!("writes into the same tables ({}): every change comes twice", few(&own.tables));
        let finding = Finding::warning(End::Target, format!("subscription {}", own.name), what);
        finding.sql(format!("ALTER SUBSCRIPTION {} DISABLE", quote_ident(&own.name)))
    });
    let publishing = target.publishing_state.iter().map(|name| {
        let what = "is FOR ALL TABLES on the target, and so publishes pgsluice's own state, too";
        let finding = Finding::note(End::Target, format!("publication {name}"), what);
        finding.remedy("name the tables, or keep schema pgsluice out on the other side")
    });
    native.chain(publishing).collect()
}
