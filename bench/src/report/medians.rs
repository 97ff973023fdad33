//! Medians of a side's runs, where a figure has parts.

use std::collections::BTreeMap;

use bench_report::table::rounded;

use crate::lab::aftermath::Aftermath;
use crate::lab::cpu::Cpu;
use crate::lab::measure::{Run, median};

/// Medians of what the runs left, if that was looked at.
pub(super) fn aftermath(runs: &[Run]) -> Option<Aftermath> {
    let left: Vec<Aftermath> = runs.iter().filter_map(|run| run.aftermath).collect();
    let of = |pick: fn(&Aftermath) -> f64| median(left.iter().map(pick));
    (!left.is_empty()).then(|| Aftermath {
        wal_bytes: of(|left| left.wal_bytes),
        index_bytes: of(|left| left.index_bytes),
        table_bytes: of(|left| left.table_bytes),
        dead_rows: of(|left| left.dead_rows),
        updates: of(|left| left.updates),
        heap_only_updates: of(|left| left.heap_only_updates),
    })
}

/// Medians by kind; a kind that a run does not have counts as 0.
pub(super) fn kinds(runs: &[Run], server: fn(&Cpu) -> &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let names = runs.iter().flat_map(|run| server(&run.cpu).keys().cloned());
    let median_of =
        |name: &String| median(runs.iter().map(|run| server(&run.cpu).get(name).copied().unwrap_or(0.0)));
    let all: BTreeMap<String, f64> = names.map(|name| (name.clone(), rounded(median_of(&name), 2))).collect();
    all.into_iter().filter(|(_, seconds)| *seconds > 0.0).collect()
}
