//! The results of a benchmark: a table to read, a page, a plot per case, and one JSON object.
//!
//! [`case`] has the figures of one case, [`document`] writes the page, [`json`] is the last line of
//! output, and [`plot`] draws the runs. This file keeps the record: a case that is measured again
//! replaces its earlier figures, and all other recorded cases stay on the page.

mod case;
mod document;
mod json;
mod medians;
mod plot;

use std::path::Path;

use anyhow::{Context, Result, ensure};

pub(crate) use case::{Case, Goal, Unit, WALSENDER};

/// What pgsluice is compared with.
pub(crate) struct Stock {
    /// For the page: the settings of each side, and the meaning of columns, as items of a list.
    pub(crate) sides: &'static [&'static str],
    pub(crate) columns: &'static [&'static str],
}

/// Native logical replication.
pub(crate) const NATIVE: Stock = Stock {
    sides: &[
        "Native: `binary = true`, `streaming = parallel` (`on` before 16), `synchronous_commit = off`. It has as many \
         `max_sync_workers_per_subscription` as pgsluice.",
        "pgsluice: its defaults, unless the section of the case says otherwise.",
    ],
    columns: &[
        EQUAL,
        "\"Limit\": what the servers alone allow on this machine, measured in the same run. Its first part is the \
         walsender, which sends to a reader that throws everything away. Its second part is the same number of rows, \
         written on the subscriber by set-based statements from a table there. Both parts need the machine's cores. So \
         the limit is the longer of the two times, or the sum of their CPU seconds divided by the cores if that is \
         longer. A side that writes only the last of several versions of a row may be faster than the limit.",
        "\"publisher / ours\": the time that the publisher needed to write the changes, as a multiple of ours.",
    ],
};

/// The meaning of the column \"equal\" where rows are compared.
pub(crate) const EQUAL: &str =
    "\"Equal\": after every run both ends held the same rows, by their count and a hash.";

/// A whole benchmark.
pub(crate) struct Report {
    pub(crate) bench: &'static str,
    pub(crate) stock: &'static Stock,
    pub(crate) cases: Vec<Case>,
    pub(crate) settings: Vec<(&'static str, String)>,
}

impl Report {
    pub(crate) fn is_equal(&self) -> bool {
        self.cases.iter().all(Case::is_equal)
    }

    fn versions(&self) -> Vec<&str> {
        distinct(self.cases.iter().map(|case| case.version.as_str()))
    }

    /// Writes the plots to `out`, and the page of these cases and of all recorded ones.
    pub(crate) fn write(mut self, out: &Path) -> Result<()> {
        std::fs::create_dir_all(out)?;
        for case in self.cases.iter().filter(|case| case.has_curve()) {
            plot::write(&out.join(self.plot_name(case)), case)?;
        }
        let records = out.join(format!("{}.jsonl", self.bench));
        self.cases = with_earlier(&records, self.cases)?;
        ensure!(!self.cases.is_empty(), "nothing is recorded in {}: measure first", records.display());
        let lines: Result<Vec<String>, _> = self.cases.iter().map(serde_json::to_string).collect();
        std::fs::write(&records, format!("{}\n", lines?.join("\n")))?;
        std::fs::write(out.join(format!("{}.md", self.bench)), self.document()?)?;
        Ok(())
    }

    fn plot_name(&self, case: &Case) -> String {
        format!("{}-{}.svg", self.bench, case.name)
    }
}

/// The recorded cases and the measured ones. If a case is in both, the measured figures count.
fn with_earlier(records: &Path, measured: Vec<Case>) -> Result<Vec<Case>> {
    let earlier = if records.exists() { std::fs::read_to_string(records)? } else { String::new() };
    let earlier: Result<Vec<Case>, _> = earlier.lines().map(serde_json::from_str).collect();
    let mut cases = earlier.with_context(|| {
        let records = records.display();
        format!("{records} cannot be read, perhaps as records of an earlier format: delete it and measure all cases again")
    })?;
    for case in measured {
        match cases.iter_mut().find(|earlier| earlier.name == case.name) {
            Some(earlier) => *earlier = case,
            None => cases.push(case),
        }
    }
    Ok(cases)
}

/// In the order of their first appearance.
fn distinct<'t>(texts: impl Iterator<Item = &'t str>) -> Vec<&'t str> {
    let mut distinct = Vec::new();
    for text in texts {
        if !distinct.contains(&text) {
            distinct.push(text);
        }
    }
    distinct
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::Arm;
    use crate::lab::measure::Run;
    use testkit::Major;

    use super::*;

    pub(super) fn run(seconds: f64) -> Run {
        Run { seconds, curve: vec![(seconds, 0.0)], resident_bytes_max: 1, equal: true, ..Run::default() }
    }

    /// Native took 3 seconds in the median, ours 1, for 1,000 rows.
    pub(super) fn case() -> Case {
        let mut case = Case::new("updates", Major::V15, "15.1".to_owned(), 2.0, 1000);
        [4.0, 2.0, 3.0].into_iter().for_each(|seconds| case.add(Arm::Native, run(seconds)));
        [1.0, 9.0, 1.0].into_iter().for_each(|seconds| case.add(Arm::Ours, run(seconds)));
        case
    }

    #[test]
    fn a_case_that_is_measured_again_replaces_its_earlier_figures_only() {
        let place = std::env::temp_dir().join(format!("pgsluice-bench-report-{}", std::process::id()));
        let report = |cases| Report { bench: "test", stock: &NATIVE, cases, settings: Vec::new() };
        let mut other = case();
        other.name = "inserts-15".to_owned();
        report(vec![case(), other]).write(&place).unwrap();
        let mut again = case();
        again.ours = vec![run(0.5)];
        report(vec![again]).write(&place).unwrap();
        let document = std::fs::read_to_string(place.join("test.md")).unwrap();
        report(Vec::new()).write(&place).unwrap();
        assert_eq!(std::fs::read_to_string(place.join("test.md")).unwrap(), document);
        assert!(report(Vec::new()).write(&place.join("nothing")).is_err());
        std::fs::remove_dir_all(&place).unwrap();
        let line = |name: &str| document.lines().find(|line| line.contains(name)).unwrap().to_owned();
        assert!(line("| updates-15").contains("| 6.00  |"), "{document}");
        assert!(line("| inserts-15").contains("| 3.00  |"), "{document}");
    }
}
