//! What is remembered of the target's deletions, for `status`.

use std::time::Duration;

use retention::{Condition, Quantiles, Retention, Waiting};
use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetainedSnapshot {
    /// `starting`, `looking`, `capturing`, `unfit` or `failed`.
    pub state: String,
    /// What keeps deletions from being captured, and what to do; null while they are.
    pub trouble: Option<String>,
    /// Deletions that are remembered.
    pub count: u64,
    /// Bytes of the files that remember them.
    pub bytes: u64,
    /// Everything that committed on the target up to here was captured.
    pub captured_lsn: Option<String>,
    /// Deletions up to here are not needed any more.
    pub horizon_lsn: Option<String>,
    /// What the horizon waits for, in words; null while it looks now and then.
    pub horizon_waits_for: Option<String>,
    /// Deletions up to here were not captured or forgotten too early; null if nothing is missing.
    pub cut_lsn: Option<String>,
    /// Why they are missing, in words; null if nothing is.
    #[serde(default)]
    pub not_covered_because: Option<String>,
    /// Misses about which nothing is known, so that they count as `update_missing`.
    pub retention_exceeded: u64,
    /// How long the last look-ups of missing rows took, from the question to the answer; null
    /// before the first.
    #[serde(default)]
    pub lookup_us: Option<QuantilesSnapshot>,
    /// How long their fences took, which every look-up begins with.
    #[serde(default)]
    pub fence_us: Option<QuantilesSnapshot>,
}

/// What a part of some durations did not exceed, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuantilesSnapshot {
    /// Half of them.
    pub median: u64,
    /// 99 of 100.
    pub p99: u64,
}

impl From<Quantiles> for QuantilesSnapshot {
    fn from(Quantiles { median, p99 }: Quantiles) -> QuantilesSnapshot {
        let microseconds = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        QuantilesSnapshot { median: microseconds(median), p99: microseconds(p99) }
    }
}

impl RetainedSnapshot {
    pub(super) fn of(retention: &Retention) -> RetainedSnapshot {
        let condition = retention.condition();
        let figures = retention.figures();
        let state = match &condition {
            Condition::Starting => "starting",
            Condition::Looking => "looking",
            Condition::Capturing => "capturing",
            Condition::Unfit(_) => "unfit",
            Condition::Failed(_) => "failed",
        };
        let has_trouble = !matches!(condition, Condition::Starting | Condition::Capturing);
        RetainedSnapshot {
            state: state.to_owned(),
            trouble: has_trouble.then(|| condition.to_string()),
            count: figures.map_or(0, |figures| figures.count),
            bytes: figures.map_or(0, |figures| figures.file_bytes),
            captured_lsn: figures.map(|figures| figures.captured.to_string()),
            horizon_lsn: figures.map(|figures| figures.horizon.to_string()),
            horizon_waits_for: retention.waiting().and_then(|waiting| told(&waiting)),
            cut_lsn: figures.and_then(|figures| figures.cut).map(|cut| cut.lsn.to_string()),
            not_covered_because: retention.not_covered_because(),
            retention_exceeded: retention.retention_exceeded(),
            lookup_us: retention.lookup_times().map(QuantilesSnapshot::from),
            fence_us: retention.fence_times().map(QuantilesSnapshot::from),
        }
    }
}

/// In words; `None` for the pause between two looks.
fn told(waiting: &Waiting) -> Option<String> {
    Some(match waiting {
        Waiting::UntilLooking(_) => return None,
        Waiting::Clock(_) => "the source's clock, which is behind the target's".to_owned(),
        Waiting::Transactions(xids) => {
            let xids: Vec<String> = xids.iter().take(5).map(ToString::to_string).collect();
            format!("transactions of the source that may be in commit: {}", xids.join(", "))
        }
        Waiting::Position => "the source's position".to_owned(),
        Waiting::Flush(lsn) => format!("the target to flush {lsn}"),
    })
}
