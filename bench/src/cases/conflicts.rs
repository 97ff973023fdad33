//! What conflicts cost: the same backlog, caught up with where no row conflicts, one in 1,000, and
//! one in 10 (rule D5). Also what it costs to ask who wrote each row, where nothing conflicts.
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

/// What is compared with the same subscription without conflicts.
struct Variant {
    /// Stands behind the case's name.
    name: &'static str,
    /// One row in this number of rows conflicts; 0: none does. Stands for `{}` in the kind's SQL.
    share: u64,
    /// The lowest speed, as a part of the speed without conflicts.
    goal: f64,
}

const fn share(name: &'static str, share: u64, goal: f64) -> Variant {
    Variant { name, share, goal }
}

/// The shares of rows that conflict, with their goals.
const SHARES: [Variant; 2] = [share("-1000", 1_000, 0.7), share("-10", 10, 0.3)];
const SHARES_AND_ALL: [Variant; 3] =
    [share("-1000", 1_000, 0.7), share("-10", 10, 0.3), share("-all", 1, 0.2)];
/// Nothing conflicts. At most 1.3 times the CPU time, as a speed.
const NONE: [Variant; 1] = [share("", 0, 0.77)];

struct Kind {
    case: &'static str,
    what: &'static str,
    /// Lets a share of the rows conflict. Its number takes the place of `{}`.
    sql: &'static str,
    /// For both sides.
    words: &'static [&'static str],
    /// For the side without conflicts.
    without: &'static [&'static str],
    variants: &'static [Variant],
    /// The subscriber keeps commit times.
    tracks: bool,
}

const CHANGED: &str = "UPDATE t SET counter = -1 WHERE pk % {} = 0";
const DETECT_OFF: &[&str] = &["--detect-origin-differs", "off"];
const IN_SETS: &[&str] = &["--keep-commit-timestamps", "off"];

const KINDS: [Kind; 6] = [
    Kind {
        case: "update-missing",
        what: "is missing, and its update is passed over",
        sql: "DELETE FROM t WHERE pk % {} = 0",
        words: &[],
        without: &[],
        variants: &SHARES,
        tracks: false,
    },
    Kind {
        case: "update-origin-differs",
        what: "was changed locally, and stays",
        sql: CHANGED,
        words: &["--conflict", "update_origin_differs=keep_local", "--keep-commit-timestamps", "off"],
        without: &[],
        variants: &SHARES,
        tracks: true,
    },
    Kind {
        case: "update-origin-differs-applied",
        what: "was changed locally, and is overwritten",
        sql: CHANGED,
        words: IN_SETS,
        without: &[],
        variants: &SHARES_AND_ALL,
        tracks: true,
    },
    Kind {
        case: "update-origin-differs-single",
        what: "was changed locally, and is overwritten; each transaction keeps its commit time",
        sql: CHANGED,
        words: &[],
        without: &[],
        variants: &SHARES_AND_ALL,
        tracks: true,
    },
    Kind {
        case: "detect-origin-differs",
        what: "nothing conflicts; the last writer of each row is asked for",
        sql: "",
        words: IN_SETS,
        without: DETECT_OFF,
        variants: &NONE,
        tracks: true,
    },
    Kind {
        case: "detect-origin-differs-single",
        what: "the same; each transaction keeps its commit time",
        sql: "",
        words: &[],
        without: DETECT_OFF,
        variants: &NONE,
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
    let mut cases: Vec<Case> =
        kind.variants.iter().map(|variant| case(&ready, &backlog, kind, variant)).collect();
    let sides: Vec<Option<usize>> = std::iter::once(None).chain((0..kind.variants.len()).map(Some)).collect();
    for repeat in 0..options.repeats() {
        let mut order = sides.clone();
        order.rotate_left(repeat as usize % sides.len());
        for side in order {
            let share = side.map(|side| kind.variants[side].share).filter(|share| *share > 0);
            let sql = share.map(|share| kind.sql.replace("{}", &share.to_string()));
            let only = if side.is_none() { kind.without } else { &[] };
            let words: Vec<String> = kind.words.iter().chain(only).map(|word| (*word).to_owned()).collect();
            let run = ready.catch_up_after(&backlog, &words, sql.as_deref())?;
            let arm = if side.is_some() { Arm::Ours } else { Arm::Native };
            let described = cases[side.unwrap_or(0)].describe(arm, repeat + 1, options.repeats(), &run);
            say.line(&format!("{name}, {}: {described}", sql.as_deref().unwrap_or("nothing conflicts")));
            match side {
                Some(side) => cases[side].ours.push(run),
                None => cases.iter_mut().for_each(|case| case.stock.push(run.clone())),
            }
        }
    }
    Ok(cases)
}

fn case(ready: &Ready, backlog: &Backlog, kind: &Kind, variant: &Variant) -> Case {
    let mut case = ready.case(backlog, format!("{}{}", kind.case, variant.name), variant.goal);
    case.what = match variant.share {
        0 => format!("{}; {}", backlog.what, kind.what),
        1 => format!("{}; every row {}", backlog.what, kind.what),
        share => format!("{}; one row in {share} {}", backlog.what, kind.what),
    };
    let quoted = |words: &[&str]| format!("`{}`", words.join(" "));
    if !kind.words.is_empty() {
        case.what.push_str(&format!("; pgsluice with {}", quoted(kind.words)));
    }
    if !kind.without.is_empty() {
        case.what.push_str(&format!("; the other side with {}", quoted(kind.without)));
    }
    case.sides = ["none", "conflicts"].map(Into::into);
    case
}
