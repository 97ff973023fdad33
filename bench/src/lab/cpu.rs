//! CPU seconds of servers, by kind of process.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use testkit::Cluster;

/// CPU seconds by kind of process. `exited` sums up all server processes that ended during the run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Cpu {
    pub(crate) publisher: BTreeMap<String, f64>,
    pub(crate) subscriber: BTreeMap<String, f64>,
    pub(crate) pgsluice: f64,
    /// The parts of pgsluice's time that belong to a stage, as its `status` tells them.
    #[serde(default)]
    pub(crate) stages: BTreeMap<String, f64>,
}

impl Cpu {
    pub(crate) fn total(&self) -> f64 {
        self.publisher.values().chain(self.subscriber.values()).sum::<f64>() + self.pgsluice
    }
}

/// CPU seconds that `server`'s processes spend while `work` is done.
pub(crate) fn cpu_between<T>(server: &Cluster, work: impl FnOnce() -> T) -> (f64, T) {
    let before = cpu_of(server);
    let done = work();
    (spent(before, cpu_of(server)).values().sum(), done)
}

/// CPU seconds that process `pid`, which has one thread, has spent so far. The kernel gives them in
/// nanoseconds here, and in hundredths of a second in `/proc/PID/stat`.
pub(crate) fn exact_cpu_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/schedstat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let spent = text.split_whitespace().next().and_then(|spent| spent.parse::<u64>().ok());
    Ok(spent.with_context(|| format!("{path} has no time"))? as f64 / 1e9)
}

/// What `cluster`'s processes have spent so far.
pub(crate) fn cpu_of(cluster: &Cluster) -> BTreeMap<String, f64> {
    cluster.cpu_seconds().into_iter().collect()
}

/// The seconds spent in between. A process that ended has left its kind for `exited`, with what it
/// had spent before. That part is subtracted again, so that the sum is right.
pub(crate) fn spent(before: BTreeMap<String, f64>, after: BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let mut spent = after;
    let mut left = 0.0;
    for (kind, earlier) in before {
        let seconds = spent.entry(kind).or_default();
        *seconds -= earlier;
        left += seconds.min(0.0);
        *seconds = seconds.max(0.0);
    }
    if let Some(exited) = spent.get_mut("exited") {
        *exited = (*exited + left).max(0.0);
    }
    spent.retain(|_, seconds| *seconds > 0.0);
    spent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_had_spent_before_the_run_is_not_counted_when_it_ends() {
        let cpu = |pairs: &[(&str, f64)]| {
            pairs.iter().map(|(kind, seconds)| ((*kind).to_owned(), *seconds)).collect::<BTreeMap<_, _>>()
        };
        let before = cpu(&[("walsender", 5.0), ("exited", 1.0), ("walwriter", 1.0)]);
        let after = cpu(&[("exited", 9.0), ("walwriter", 1.5)]);
        let spent = spent(before, after);
        assert!((spent["exited"] - 3.0).abs() < 1e-9, "{spent:?}");
        assert!((spent["walwriter"] - 0.5).abs() < 1e-9);
        assert!(!spent.contains_key("walsender"));
    }
}
