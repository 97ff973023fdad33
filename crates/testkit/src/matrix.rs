//! Settings of the applier that must all lead to the same rows, and the choice of a combination for
//! a test.
//!
//! Every pair of values of two settings stands in one of nine rows ([`pairwise`]). A printed seed
//! decides which row a test takes. [`FORCED`] chooses one row of the whole product instead, as
//! `cargo x matrix` does for one after another.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};

/// A combination as printed: all tests that choose by themselves take this one.
pub const FORCED: &str = "PGSLUICE_MATRIX";

const WORKERS: [usize; 3] = [1, 2, 8];
const BATCHES: [usize; 3] = [1, 7, 10_000];
const PREFETCH: [&str; 3] = ["off", "identity", "all"];
const ORDERS: [&str; 2] = ["preserve", "relaxed"];

/// One value of each setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combination {
    /// `max_parallel_apply_workers_per_subscription`
    pub workers: usize,
    /// `batch_rows_max`
    pub batch: usize,
    /// `prefetch`
    pub prefetch: &'static str,
    /// `commit_order`
    pub order: &'static str,
}

impl Combination {
    fn at(workers: usize, batch: usize, prefetch: usize, order: usize) -> Combination {
        Combination {
            workers: WORKERS[workers],
            batch: BATCHES[batch],
            prefetch: PREFETCH[prefetch],
            order: ORDERS[order],
        }
    }

    /// As words of a command line, each a name and its value.
    pub fn arguments(&self) -> [String; 4] {
        [
            format!("--max-parallel-apply-workers-per-subscription={}", self.workers),
            format!("--batch-rows-max={}", self.batch),
            format!("--prefetch={}", self.prefetch),
            format!("--commit-order={}", self.order),
        ]
    }

    /// Whether transactions may become visible out of order: one worker has nobody to overtake.
    pub fn is_relaxed(&self) -> bool {
        self.order == "relaxed" && self.workers > 1
    }
}

impl fmt::Display for Combination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Combination { workers, batch, prefetch, order } = self;
        write!(f, "workers={workers},batch={batch},prefetch={prefetch},order={order}")
    }
}

impl FromStr for Combination {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Combination> {
        let found = full().into_iter().find(|combination| combination.to_string() == text);
        found.with_context(|| {
            format!("no combination is called {text:?}; one is {}", Combination::at(0, 0, 0, 0))
        })
    }
}

/// All combinations.
pub fn full() -> Vec<Combination> {
    let mut all = Vec::new();
    for order in 0..ORDERS.len() {
        for workers in 0..WORKERS.len() {
            for batch in 0..BATCHES.len() {
                all.extend(
                    (0..PREFETCH.len()).map(|prefetch| Combination::at(workers, batch, prefetch, order)),
                );
            }
        }
    }
    all
}

/// Combinations in which each value of a setting meets each value of every other.
pub fn pairwise() -> Vec<Combination> {
    let mut rows = Vec::new();
    for workers in 0..WORKERS.len() {
        // Six of nine are relaxed: there is more to go wrong.
        rows.extend((0..BATCHES.len()).map(|step| {
            let batch = (workers + step) % BATCHES.len();
            Combination::at(workers, batch, (workers + batch) % PREFETCH.len(), usize::from(step < 2))
        }));
    }
    rows
}

/// What [`FORCED`] says, if it does.
///
/// # Panics
/// When it is none of [`full`].
pub fn forced() -> Option<Combination> {
    let text = std::env::var(FORCED).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|error| panic!("{FORCED}: {error:#}")))
}

/// The combination that test `number` of those with this seed takes: the one that is [`forced`],
/// else one of [`pairwise`], another for each of nine numbers.
pub fn chosen(seed: u64, number: usize) -> Combination {
    let rows = pairwise();
    // Rows that follow one another differ little: go by more than one.
    let at = (seed % rows.len() as u64) as usize + number * 4;
    forced().unwrap_or(rows[at % rows.len()])
}

/// A checked-in record of what was run: tab-separated, see [`Row`].
pub const RECORD: &str = "docs/matrix.tsv";

/// One run of the product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Of the program.
    pub commit: String,
    /// What was run.
    pub suite: String,
    /// With these settings.
    pub combination: Combination,
    /// It repeats the run's choices.
    pub seed: u64,
    /// `passed` or `failed`.
    pub outcome: String,
}

impl Row {
    /// The line that says so.
    pub fn line(&self) -> String {
        let Row { commit, suite, combination, seed, outcome } = self;
        format!("{commit}\t{suite}\t{combination}\t{seed}\t{outcome}\n")
    }

    /// A line of the record.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(line: &str) -> Result<Row> {
        let cells: Vec<&str> = line.split('\t').collect();
        let [commit, suite, combination, seed, outcome] = cells[..] else {
            anyhow::bail!("not five cells: {line}");
        };
        ensure!(matches!(outcome, "passed" | "failed"), "no outcome: {line}");
        Ok(Row {
            commit: commit.to_owned(),
            suite: suite.to_owned(),
            combination: combination.parse()?,
            seed: seed.parse().with_context(|| format!("no seed: {line}"))?,
            outcome: outcome.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn values(combination: &Combination) -> [String; 4] {
        let Combination { workers, batch, prefetch, order } = combination;
        [format!("w{workers}"), format!("b{batch}"), format!("p{prefetch}"), format!("o{order}")]
    }

    fn pairs(rows: &[Combination]) -> BTreeSet<(String, String)> {
        let mut pairs = BTreeSet::new();
        for row in rows {
            let values = values(row);
            for (at, one) in values.iter().enumerate() {
                pairs.extend(values[at + 1..].iter().map(|other| (one.clone(), other.clone())));
            }
        }
        pairs
    }

    #[test]
    fn every_pair_of_values_is_among_the_nine() {
        assert_eq!((full().len(), pairwise().len()), (54, 9));
        assert_eq!(pairs(&pairwise()), pairs(&full()));
        // One row fewer would not do: nothing is there for show.
        for left_out in 0..9 {
            let mut rows = pairwise();
            rows.remove(left_out);
            assert_ne!(pairs(&rows), pairs(&full()), "{left_out}");
        }
    }

    #[test]
    fn nine_numbers_take_nine_combinations() {
        if forced().is_none() {
            let taken: BTreeSet<String> = (0..9).map(|number| chosen(5, number).to_string()).collect();
            assert_eq!(taken.len(), 9);
        }
    }

    #[test]
    fn what_is_printed_is_read() {
        for combination in full() {
            assert_eq!(combination.to_string().parse::<Combination>().unwrap(), combination);
        }
        assert!("workers=3".parse::<Combination>().is_err());
    }

    /// Only what was run stands there, as it is written.
    #[test]
    fn the_record_can_be_read() {
        let path = crate::workspace_dir().join(RECORD);
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for line in text.lines().skip(1) {
            let row = Row::parse(line).unwrap_or_else(|error| panic!("{error:#}"));
            assert_eq!(row.line().trim_end(), line);
        }
    }
}
