//! What each mechanism contributes by itself: reading ahead, several apply workers, batches.
//!
//! Both sides are pgsluice and differ in one setting. The plain side is measured once for all cases
//! of a group, and the order of all runs turns with each repeat. For prefetch the subscriber keeps
//! commit timestamps. So each transaction is applied as one (rule F3), no batch folds or orders
//! anything, and the following transactions are still known ahead. With several workers, batches
//! have one row instead: transactions that must stay one go to one session while that is quick.

use anyhow::{Context, Result};
use testkit::Major;

use crate::cases::catchup;
use crate::lab::backlog::{self, Backlog};
use crate::report::{Case, EQUAL, Stock};
use crate::{Arm, Options, Say};

/// The sides of each case.
pub(crate) const STOCK: Stock = Stock {
    sides: &[
        "Both sides are pgsluice.",
        "Group `prefetch`: one apply worker, batches of one transaction. The plain side has `--prefetch off`.",
        "Group `workers`: no prefetch, batches of one row, so of one transaction. The plain side has one apply worker.",
        "Group `batch`: no prefetch, one apply worker. The plain side has batches of one row, so of one transaction.",
    ],
    columns: &[EQUAL],
};

/// The goals of the message and the issue for slow reads: `identity` for updates, `all` for
/// inserts. The other cases have no goal.
const GOAL_UPDATES: f64 = 2.4;
const GOAL_INSERTS: f64 = 1.7;
const NO_GOAL: f64 = 1.0;
/// These runs are so slow that more transactions would show nothing else.
const TRANSACTIONS: u64 = 100_000;
const TRANSACTIONS_QUICK: u64 = 20_000;

const PREFETCH_SESSIONS: [u32; 4] = [2, 4, 8, 16];
const APPLY_WORKERS: [u32; 3] = [2, 4, 8];
const BATCH_ROWS: [u32; 5] = [10, 100, 1_000, 10_000, 100_000];

/// One setting in several values.
struct Group {
    name: &'static str,
    /// Batches have one transaction, whatever is set.
    stamped: bool,
    /// Settings of the plain side.
    plain: Vec<String>,
    setups: Vec<Setup>,
}

/// One value.
struct Setup {
    name: String,
    words: Vec<String>,
    goal: fn(scenario: &str) -> f64,
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().copied().map(str::to_owned).collect()
}

fn groups() -> Vec<Group> {
    let (off, one_row) = (["--prefetch", "off"], ["--prefetch", "off", "--batch-rows-max", "1"]);
    let prefetch = |mode: &'static str| {
        PREFETCH_SESSIONS.map(|sessions| Setup {
            name: format!("{mode}-{sessions}"),
            words: words(&[
                "--prefetch",
                mode,
                "--max-parallel-prefetch-workers-per-subscription",
                &sessions.to_string(),
            ]),
            goal: if mode == "all" {
                |scenario| match scenario {
                    "inserts-slow" => GOAL_INSERTS,
                    "updates-slow" => GOAL_UPDATES,
                    _ => NO_GOAL,
                }
            } else {
                |scenario| if scenario == "updates-slow" { GOAL_UPDATES } else { NO_GOAL }
            },
        })
    };
    let workers = APPLY_WORKERS.map(|count| {
        let setting = ["--max-parallel-apply-workers-per-subscription", &count.to_string()];
        Setup {
            name: format!("{count}"),
            words: words(&[one_row.as_slice(), &setting].concat()),
            goal: |_| NO_GOAL,
        }
    });
    let batches = BATCH_ROWS.map(|rows| {
        let setting = ["--batch-rows-max", &rows.to_string()];
        Setup { name: format!("{rows}"), words: words(&[off, setting].concat()), goal: |_| NO_GOAL }
    });
    vec![
        Group {
            name: "prefetch",
            stamped: true,
            plain: words(&off),
            setups: prefetch("identity").into_iter().chain(prefetch("all")).collect(),
        },
        Group { name: "workers", stamped: false, plain: words(&one_row), setups: workers.into() },
        Group { name: "batch", stamped: false, plain: words(&one_row), setups: batches.into() },
    ]
}

/// Every group over every scenario on every major. A case is chosen by its group, its scenario, or
/// both (`prefetch-updates-slow`).
pub(crate) fn run(options: &Options, say: &Say) -> Result<Vec<Case>> {
    let fewer = if options.quick { TRANSACTIONS_QUICK } else { TRANSACTIONS };
    let transactions = options.transactions.or(Some(fewer));
    let options = &Options { transactions, only: Some(Arm::Ours), ..options.clone() };
    let mut cases = Vec::new();
    for major in options.majors() {
        for scenario in [backlog::updates_slow, backlog::inserts_slow, backlog::updates, backlog::inserts] {
            let backlog = scenario(options);
            for group in groups() {
                let name = format!("{}-{}", group.name, backlog.case);
                if [name.as_str(), group.name, backlog.case].into_iter().any(|name| options.wants(name)) {
                    let measured = measure(options, say, major, &group, &backlog);
                    cases.extend(measured.with_context(|| format!("{name} on {major}"))?);
                }
            }
        }
    }
    Ok(cases)
}

fn measure(
    options: &Options,
    say: &Say,
    major: Major,
    group: &Group,
    backlog: &Backlog,
) -> Result<Vec<Case>> {
    let name = format!("{} {}-{major}", group.name, backlog.case);
    let stamped = [("track_commit_timestamp", "on".to_owned())];
    let mut ready =
        catchup::prepare(options, say, &name, major, backlog, if group.stamped { &stamped } else { &[] })?;
    let mut cases: Vec<Case> = Vec::new();
    for setup in &group.setups {
        let case = format!("{}-{}-{}", group.name, backlog.case, setup.name);
        let mut case = ready.case(backlog, case, (setup.goal)(backlog.case));
        case.sides = ["plain", "set"].map(Into::into);
        case.what = format!("{}; `{}` beside `{}`", case.what, setup.words.join(" "), group.plain.join(" "));
        cases.push(case);
    }
    for repeat in 0..options.repeats() {
        let mut order: Vec<Option<usize>> =
            std::iter::once(None).chain((0..group.setups.len()).map(Some)).collect();
        if !repeat.is_multiple_of(2) {
            order.reverse();
        }
        for number in order {
            let words = number.map_or(&group.plain, |number| &group.setups[number].words);
            let run = ready.catch_up(backlog, Arm::Ours, words)?;
            let described =
                cases[number.unwrap_or(0)].describe(Arm::Ours, repeat + 1, options.repeats(), &run);
            let setup = number.map_or("plain", |number| &group.setups[number].name);
            say.line(&format!("{name}: {setup}: {described}"));
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
    fn each_group_changes_one_setting() {
        let groups = groups();
        let names: Vec<Vec<&str>> = groups
            .iter()
            .map(|group| group.setups.iter().map(|setup| setup.name.as_str()).collect())
            .collect();
        assert_eq!(names[0].len(), 8);
        assert_eq!((names[0][0], names[0][7]), ("identity-2", "all-16"));
        assert_eq!(names[1], ["2", "4", "8"]);
        assert_eq!(names[2], ["10", "100", "1000", "10000", "100000"]);
        let goals = |scenario| [0, 7].map(|number: usize| (groups[0].setups[number].goal)(scenario));
        assert_eq!(goals("updates-slow"), [GOAL_UPDATES, GOAL_UPDATES]);
        assert_eq!(goals("inserts-slow"), [NO_GOAL, GOAL_INSERTS]);
        assert_eq!(goals("updates"), [NO_GOAL, NO_GOAL], "nothing is to be gained where all is in memory");
    }
}
