//! Recorded runs of benchmarks, read from `docs/benchmarks/*.jsonl`, which `cargo x bench` writes.
//!
//! A run is known as `FILE:CASE` (`catchup:tpcb-wal-18`). Only what a figure in a document needs is
//! read here: rows, and for both sides the median time and the median CPU time of walsenders. The
//! whole record is the benchmark's own matter.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// One case of a benchmark: native replication and pgsluice on the same machine.
pub(super) struct Run {
    rows: f64,
    native_seconds: f64,
    our_seconds: f64,
    /// CPU seconds of the publisher's walsenders with native and with pgsluice, where they were
    /// measured.
    walsenders: [Option<f64>; 2],
}

impl Run {
    /// How many times as fast as native replication pgsluice was.
    pub(super) fn ratio(&self) -> f64 {
        self.native_seconds / self.our_seconds
    }

    /// CPU seconds that the publisher's walsenders took for a million rows, with `native` or with
    /// `pgsluice`.
    pub(super) fn walsenders(&self, side: &str) -> Result<f64> {
        let [native, ours] = self.walsenders;
        let seconds = match side {
            "native" => native,
            "pgsluice" => ours,
            other => anyhow::bail!("{other:?} is no side: native or pgsluice"),
        };
        Ok(seconds.context("the CPU time of walsenders was not measured")? / self.rows * 1e6)
    }

    /// Rows a second with native replication.
    pub(super) fn native_rate(&self) -> f64 {
        self.rows / self.native_seconds
    }

    /// Rows a second with pgsluice.
    pub(super) fn our_rate(&self) -> f64 {
        self.rows / self.our_seconds
    }
}

/// All recorded runs.
pub(super) struct Records(BTreeMap<String, Run>);

impl Records {
    /// Reads every `.jsonl` file of `dir` whose lines are runs of two sides.
    pub(super) fn read(dir: &Path) -> Result<Records> {
        let mut runs = BTreeMap::new();
        for entry in std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
            let path = entry?.path();
            let Some(benchmark) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                let text = std::fs::read_to_string(&path)?;
                let own = parsed(benchmark, &text).with_context(|| format!("in {}", path.display()))?;
                runs.extend(own);
            }
        }
        Ok(Records(runs))
    }

    /// The run that `name` (`catchup:tpcb-18`) is.
    pub(super) fn run(&self, name: &str) -> Result<&Run> {
        self.0.get(name).with_context(|| format!("no run is recorded as {name} in docs/benchmarks"))
    }

    #[cfg(test)]
    pub(super) fn of(benchmark: &str, text: &str) -> Records {
        Records(parsed(benchmark, text).expect("a test's own records").into_iter().collect())
    }
}

fn parsed(benchmark: &str, text: &str) -> Result<Vec<(String, Run)>> {
    let mut runs = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let value: Value = serde_json::from_str(line)?;
        // The version store's runs beside other stores have another form, and no native side.
        let (Some(name), Some(rows)) = (value["name"].as_str(), value["rows"].as_f64()) else { continue };
        // A case that is measured by itself has no other side, and no ratio.
        if value["stock"].as_array().is_some_and(Vec::is_empty) {
            continue;
        }
        let run = Run {
            rows,
            native_seconds: median(&value["stock"], TIME)
                .with_context(|| format!("native side of {name}"))?,
            our_seconds: median(&value["ours"], TIME).with_context(|| format!("our side of {name}"))?,
            walsenders: [&value["stock"], &value["ours"]].map(|side| median(side, WALSENDERS).ok()),
        };
        runs.push((format!("{benchmark}:{name}"), run));
    }
    Ok(runs)
}

/// Where a repeat has its time.
const TIME: &str = "/seconds";
/// Where it has the CPU seconds of walsenders.
const WALSENDERS: &str = "/cpu/publisher/walsender";

/// The median over a side's repeats of what stands at this place in each.
fn median(side: &Value, place: &str) -> Result<f64> {
    let repeats = side.as_array().context("no repeats")?;
    let mut seconds: Vec<f64> =
        repeats.iter().filter_map(|repeat| repeat.pointer(place).and_then(Value::as_f64)).collect();
    ensure!(!seconds.is_empty() && seconds.len() == repeats.len(), "a repeat has no {place}");
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walsenders_are_counted_for_a_million_rows() {
        let line = r#"{"name":"a","rows":500000,"stock":[{"seconds":9.0,"cpu":{"publisher":{"walsender":3.0}}}],"ours":[{"seconds":2.0}]}"#;
        let records = Records::of("cost", line);
        let run = records.run("cost:a").expect("it was recorded");
        assert_eq!(run.walsenders("native").expect("measured"), 6.0);
        assert!(run.walsenders("pgsluice").is_err() && run.walsenders("nobody").is_err());
    }

    #[test]
    fn what_was_measured_by_itself_has_no_figure() {
        let line = r#"{"name":"a","rows":100,"stock":[],"ours":[{"seconds":2.0}]}"#;
        assert!(Records::of("update-deleted", line).run("update-deleted:a").is_err());
    }

    #[test]
    fn a_figure_is_the_ratio_of_medians() {
        let line = r#"{"name":"a","rows":100,"stock":[{"seconds":9.0},{"seconds":2.0},{"seconds":4.0}],"ours":[{"seconds":2.0}]}"#;
        let records = Records::of("catchup", line);
        let run = records.run("catchup:a").expect("it was recorded");
        assert_eq!((run.ratio(), run.native_rate(), run.our_rate()), (2.0, 25.0, 50.0));
        assert!(records.run("catchup:b").is_err());
    }
}
