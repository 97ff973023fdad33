//! What conflicts cost: the same backlog, caught up with where no row conflicts, one in 1,000, and
//! one in 10 (rule D5).
//!
//! ```text
//! copy -> image, parked slot -> subscriber off, backlog written once
//! └─> per run: image and slot back, a share of the rows deleted or changed, clock on, replicate
//! ```
//! Each row is updated once, so the share of rows is the share of changes that conflict. Both ends
//! are compared by the rows that no share touches.

use anyhow::Result;
use testkit::Major;

use crate::cases::catchup::{Ready, prepare};
use crate::lab::backlog::{Backlog, independent_rows};
use crate::report::{Case, Stock};
use crate::{Arm, Options, Say};

/// The sides of each case.
pub(crate) const STOCK: Stock = Stock {
    sides: &[
        "none: pgsluice, and no row conflicts.",
        "conflicts: pgsluice, and the share of the rows that the case names was deleted or changed on the \
         subscriber before.",
    ],
    columns: &[
        "\"Equal\": both ends hold the same rows, but for the share.",
        "The ratio is the speed with conflicts divided by the speed without.",
    ],
};

/// The shares, each as one row in this number of rows, with its goal.
const SHARES: [(u64, f64); 2] = [(1_000, 0.7), (10, 0.3)];

struct Kind {
    case: &'static str,
    what: &'static str,
    /// Lets a share of the rows conflict. Its number takes the place of `{}`.
    sql: &'static str,
    words: &'static [&'static str],
    /// The subscriber keeps commit times.
    tracks: bool,
}

const KINDS: [Kind; 2] = [
    Kind {
        case: "update-missing",
        what: "is missing, and its update is passed over",
        sql: "DELETE FROM t WHERE pk % {} = 0",
        words: &[],
        tracks: false,
    },
    Kind {
        case: "update-origin-differs",
        what: "was changed locally, and stays",
        sql: "UPDATE t SET counter = -1 WHERE pk % {} = 0",
        words: &["--conflict", "update_origin_differs=keep_local", "--keep-commit-timestamps", "off"],
        tracks: true,
    },
];

/// Every case on every major.
pub(crate) fn run(options: &Options, say: &Say) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    // No case has a native side.
    let options = Options { only: Some(Arm::Ours), ..options.clone() };
    for major in options.majors() {
        for kind in KINDS.iter().filter(|kind| options.wants(kind.case)) {
            cases.extend(run_kind(&options, say, major, kind)?);
        }
    }
    Ok(cases)
}

fn run_kind(options: &Options, say: &Say, major: Major, kind: &Kind) -> Result<Vec<Case>> {
    let name = format!("conflicts {}-{major}", kind.case);
    let backlog = independent_rows(options);
    let tracks = [("track_commit_timestamp", "on".to_owned())];
    let settings = if kind.tracks { tracks.as_slice() } else { &[] };
    let mut ready = prepare(options, say, &name, major, &backlog, settings)?;
    let mut cases: Vec<Case> = SHARES.iter().map(|share| case(&ready, &backlog, kind, *share)).collect();
    let shares: Vec<Option<usize>> = std::iter::once(None).chain((0..SHARES.len()).map(Some)).collect();
    for repeat in 0..options.repeats {
        let mut order = shares.clone();
        order.rotate_left(repeat as usize % shares.len());
        for share in order {
            let sql = share.map(|share| kind.sql.replace("{}", &SHARES[share].0.to_string()));
            let words: Vec<String> = kind.words.iter().map(|word| (*word).to_owned()).collect();
            let run = ready.catch_up_after(&backlog, &words, sql.as_deref())?;
            let arm = if share.is_some() { Arm::Ours } else { Arm::Native };
            let described = cases[share.unwrap_or(0)].describe(arm, repeat + 1, options.repeats, &run);
            say.line(&format!("{name}, {}: {described}", sql.as_deref().unwrap_or("nothing conflicts")));
            match share {
                Some(share) => cases[share].ours.push(run),
                None => cases.iter_mut().for_each(|case| case.stock.push(run.clone())),
            }
        }
    }
    Ok(cases)
}

fn case(ready: &Ready, backlog: &Backlog, kind: &Kind, (share, goal): (u64, f64)) -> Case {
    let mut case = ready.case(backlog, format!("{}-{share}", kind.case), goal);
    case.what = format!("{}; one row in {share} {}", backlog.what, kind.what);
    if !kind.words.is_empty() {
        case.what.push_str(&format!("; pgsluice with `{}`", kind.words.join(" ")));
    }
    case.sides = ["none", "conflicts"].map(Into::into);
    case
}
