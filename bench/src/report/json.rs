//! A case and a report as JSON: the last line that a benchmark prints.

use std::collections::BTreeMap;

use bench_report::provenance;
use bench_report::table::rounded;
use serde_json::{Value, json};

use super::medians::{aftermath, kinds};
use super::{Case, Report};
use crate::lab::limit::Alone;
use crate::lab::measure::{Run, median};

impl Report {
    /// The result in one line.
    pub(crate) fn json(&self) -> Value {
        let settings: BTreeMap<_, _> = self.settings.iter().map(|(name, value)| (*name, value)).collect();
        json!({
            "bench": self.bench,
            "servers": self.versions(),
            "machine": provenance::machine(),
            "settings": settings,
            "cases": self.cases.iter().map(Case::json).collect::<Vec<_>>(),
        })
    }
}

impl Case {
    fn json(&self) -> Value {
        let seconds = |runs: &[Run]| runs.iter().map(|run| rounded(run.seconds, 3)).collect::<Vec<_>>();
        let mut value = json!({
            "case": self.name,
            "what": self.what,
            "server": self.version,
            "source": self.source,
            "stock": self.median(&self.stock).map(|value| rounded(value, self.unit.digits())),
            "ours": self.median(&self.ours).map(|value| rounded(value, self.unit.digits())),
            "unit": self.unit.name(),
            "ratio": self.ratio().map(|ratio| rounded(ratio, 3)),
            "goal": (self.goal > 0.0).then_some(self.goal),
            "equal": self.is_equal(),
            "rows": self.rows,
            "limit": self.limit_rate().map(f64::round),
            "of_limit": self.of_limit().map(|share| rounded(share, 3)),
            "stock_seconds": seconds(&self.stock),
            "ours_seconds": seconds(&self.ours),
            "stock_cpu_seconds": cpu_json(&self.stock),
            "ours_cpu_seconds": cpu_json(&self.ours),
            "ours_resident_bytes_max": self.ours.iter().map(|run| run.resident_bytes_max).max(),
        });
        if let Some(limit) = &self.limit {
            let alone = |alone: &Alone| json!({"seconds": rounded(alone.seconds, 3), "cpu_seconds": rounded(alone.cpu, 3)});
            value["walsender_alone"] = alone(&limit.walsender);
            value["sets_alone"] = alone(&limit.sets);
        }
        for (key, runs) in [("stock_aftermath", &self.stock), ("ours_aftermath", &self.ours)] {
            if let Some(left) = aftermath(runs) {
                value[key] = json!({
                    "wal_bytes": left.wal_bytes,
                    "index_bytes": left.index_bytes,
                    "table_bytes": left.table_bytes,
                    "dead_rows": left.dead_rows,
                    "updates": left.updates,
                    "heap_only_updates": left.heap_only_updates,
                });
            }
        }
        if let Some(written) = &self.publisher {
            value["publisher_seconds"] = json!(rounded(written.seconds, 3));
            value["publisher_transactions"] = json!(written.transactions);
            value["written_by"] = json!(written.by);
            value["publisher_ratio"] = json!(self.of_publisher().map(|ratio| rounded(ratio, 3)));
        }
        if !self.goals.is_empty() {
            value["goals"] = json!(self.goals);
        }
        value
    }
}

fn cpu_json(runs: &[Run]) -> Value {
    if runs.is_empty() {
        return Value::Null;
    }
    json!({
        "publisher": kinds(runs, |cpu| &cpu.publisher),
        "subscriber": kinds(runs, |cpu| &cpu.subscriber),
        "pgsluice": rounded(median(runs.iter().map(|run| run.cpu.pgsluice)), 2),
        "stages": kinds(runs, |cpu| &cpu.stages),
        "total": rounded(median(runs.iter().map(|run| run.cpu.total())), 2),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::case;
    use super::*;

    #[test]
    fn the_ratio_is_of_medians_and_the_better_the_larger() {
        let json = case().json();
        assert_eq!(json["case"], "updates-15");
        assert_eq!(json["ratio"], 3.0);
        assert_eq!((&json["stock"], &json["ours"]), (&json!(333.0), &json!(1000.0)));
    }

    #[test]
    fn one_side_alone_has_no_ratio() {
        let mut case = case();
        case.stock.clear();
        assert_eq!(case.json()["ratio"], Value::Null);
        assert_eq!(case.json()["stock"], Value::Null);
    }

    #[test]
    fn one_run_that_differs_makes_the_case_unequal() {
        let mut case = case();
        case.ours[1].equal = false;
        assert_eq!(case.json()["equal"], false);
    }
}
