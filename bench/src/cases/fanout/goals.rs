//! Goals that several cases have.

use super::fan::Measured;
use crate::lab::measure::median;
use crate::report::Goal;

/// The load may take this much longer than without any slot.
const WALL_GOAL: f64 = 1.1;
const MIB: f64 = 1_048_576.0;
/// Resident memory of a relay, and more of it for each connection, in MiB.
const RESIDENT_GOAL: f64 = 256.0;
const RESIDENT_GOAL_EACH: f64 = 1.0;

/// The largest resident memory of all runs, which have the same number of connections.
pub(super) fn resident(bytes: impl IntoIterator<Item = u64>, connections: usize) -> Goal {
    let most = bytes.into_iter().max().unwrap_or(0) as f64 / MIB;
    let goal = RESIDENT_GOAL + RESIDENT_GOAL_EACH * connections as f64;
    Goal {
        what: "resident memory of the relay".to_owned(),
        goal: format!("at most {goal:.0} MiB ({RESIDENT_GOAL:.0}, and {RESIDENT_GOAL_EACH:.0} a connection)"),
        measured: format!("{most:.0} MiB"),
        met: most <= goal,
    }
}

/// The most connections that receivers lost in a run. Nothing here is a reason to lose one.
pub(super) fn reconnections(counts: impl IntoIterator<Item = u32>) -> Goal {
    let most = counts.into_iter().max().unwrap_or(0);
    Goal {
        what: "connections that receivers lost in a run".to_owned(),
        goal: "0".to_owned(),
        measured: most.to_string(),
        met: most == 0,
    }
}

/// The load's wall time beside a relay, as a multiple of the same load's without any slot.
pub(super) fn wall(without: &[f64], ours: &[Measured]) -> Goal {
    let alone = median(without.iter().copied());
    let beside = median(ours.iter().map(|measured| measured.run.seconds));
    let ratio = if alone > 0.0 { beside / alone } else { 0.0 };
    Goal {
        what: "the load's wall time, beside that without any slot".to_owned(),
        goal: format!("at most {WALL_GOAL:.2}"),
        measured: format!("{ratio:.2} ({beside:.1} s, {alone:.1} s)"),
        met: ratio <= WALL_GOAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_may_take_a_mebibyte() {
        assert!(resident([1 << 28, 1 << 20], 0).met);
        assert!(!resident([(1 << 28) + (1 << 20)], 0).met);
        let goal = resident([(1 << 28) + (1 << 20)], 1);
        assert_eq!((goal.met, goal.measured.as_str()), (true, "257 MiB"));
    }
}
