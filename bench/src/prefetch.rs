//! What reading ahead does by itself: one session that applies, one transaction of the source at a time, on slow
//! storage.
//!
//! The subscriber keeps commit timestamps, so that pgsluice applies each transaction as one (RULES F3) and there is no
//! batch whose folding or order would help. Both sides are pgsluice: `off` is `--prefetch off`, measured once for all
//! cases of a scenario; `on` is `identity` or `all` with so many sessions. The order of all runs turns with each
//! repeat.

use anyhow::{Context, Result};
use testkit::Major;

use crate::catchup::{self, Backlog};
use crate::report::{Case, Stock};
use crate::{Arm, Options, Say};

const SESSIONS: [u32; 4] = [2, 4, 8, 16];
/// What prefetching is measured beside.
pub(crate) const STOCK: Stock = Stock {
    sides: "off: `--prefetch off`, on: as the case is called; both are pgsluice with one apply worker and batches of one \
            transaction, on the same slow storage",
    columns: "\"Equal\": after every run both ends held the same rows (count and hash).",
};

/// What the message and its issue ask of each scenario: `identity` for updates, `all` for inserts.
const GOAL_UPDATES: f64 = 2.4;
const GOAL_INSERTS: f64 = 1.7;
/// So slow that more would show nothing else.
const TRANSACTIONS: u64 = 100_000;
const TRANSACTIONS_QUICK: u64 = 20_000;

/// One way to read ahead.
#[derive(Clone, Copy)]
struct Setup {
    mode: &'static str,
    sessions: u32,
}

impl Setup {
    const OFF: Setup = Setup { mode: "off", sessions: 0 };

    fn all() -> Vec<Setup> {
        let modes = ["identity", "all"].into_iter();
        modes.flat_map(|mode| SESSIONS.map(|sessions| Setup { mode, sessions })).collect()
    }

    fn words(self) -> Vec<String> {
        let name = "--max-parallel-prefetch-workers-per-subscription";
        ["--prefetch", self.mode, name, &self.sessions.to_string()].map(str::to_owned).to_vec()
    }
}

/// Every scenario on every major.
pub(crate) fn run(options: &Options, say: &Say) -> Result<Vec<Case>> {
    let options = &Options {
        transactions: options.transactions.or(Some(if options.quick {
            TRANSACTIONS_QUICK
        } else {
            TRANSACTIONS
        })),
        only: Some(Arm::Ours),
        ..options.clone()
    };
    let mut cases = Vec::new();
    for major in options.majors() {
        for (scenario, backlog, goal) in [
            ("updates", catchup::updates_slow(options), GOAL_UPDATES),
            ("inserts", catchup::inserts_slow(options), GOAL_INSERTS),
        ] {
            if options.wants(scenario) {
                let measured = ablation(options, say, major, scenario, &backlog, goal);
                cases.extend(measured.with_context(|| format!("{scenario} on {major}"))?);
            }
        }
    }
    Ok(cases)
}

fn ablation(
    options: &Options,
    say: &Say,
    major: Major,
    scenario: &str,
    backlog: &Backlog,
    goal: f64,
) -> Result<Vec<Case>> {
    let name = format!("prefetch {scenario}-{major}");
    let stamped = [("track_commit_timestamp", "on".to_owned())];
    let mut ready = catchup::prepare(options, say, &name, major, backlog, &stamped)?;
    let setups = Setup::all();
    let mut cases: Vec<Case> = Vec::new();
    for setup in &setups {
        let mut case = ready.case(backlog, format!("{scenario}-{}-{}", setup.mode, setup.sessions), goal);
        case.sides = ["off", "on"];
        case.what = format!("{}; prefetch = {} with {} sessions", case.what, setup.mode, setup.sessions);
        cases.push(case);
    }
    for repeat in 0..options.repeats {
        let mut order: Vec<Option<usize>> =
            std::iter::once(None).chain((0..setups.len()).map(Some)).collect();
        if !repeat.is_multiple_of(2) {
            order.reverse();
        }
        for number in order {
            let setup = number.map_or(Setup::OFF, |number| setups[number]);
            let run = ready.catch_up(backlog, Arm::Ours, &setup.words())?;
            let described = cases[number.unwrap_or(0)].describe(Arm::Ours, repeat + 1, options.repeats, &run);
            say.line(&format!("{name}: {} {}: {described}", setup.mode, setup.sessions));
            match number {
                Some(number) => cases[number].add(Arm::Ours, run),
                None => cases.iter_mut().for_each(|case| case.add(Arm::Native, run.clone())),
            }
        }
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_modes_are_measured_with_every_number_of_sessions() {
        let words: Vec<String> = Setup::all().iter().map(|setup| setup.words().join(" ")).collect();
        assert_eq!(words.len(), 8);
        assert!(words[0].starts_with("--prefetch identity ") && words[0].ends_with(" 2"), "{words:?}");
        assert!(words[7].starts_with("--prefetch all ") && words[7].ends_with(" 16"), "{words:?}");
    }
}
