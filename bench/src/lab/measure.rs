//! One run under the clock: wall time, CPU seconds, and a curve of its progress.
//!
//! The clock starts before the statement or the process that starts replication. It ends when a
//! session on the subscriber sees the result. Both sides are sampled by the same query at the same
//! pace.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use testkit::Sluice;

use crate::lab::aftermath::Aftermath;
use crate::lab::cpu::{Cpu, cpu_of, spent};
use crate::lab::probe::Probe;
use crate::lab::rig::{DB, NAME, Rig};
use crate::lab::timeline::Watch;

/// Between two looks: below one per cent of a run of two seconds.
const PACE: Duration = Duration::from_millis(20);
/// A run that takes longer does not replicate.
const RUN_BOUND: Duration = Duration::from_secs(3600);
/// Longest time for a stopped pgsluice to exit.
const STOP_BOUND: Duration = Duration::from_secs(10);

/// What one run showed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) seconds: f64,
    /// How many were counted, where a run lasts for some time.
    #[serde(default)]
    pub(crate) transactions: u64,
    pub(crate) cpu: Cpu,
    /// Seconds since the start, and the quantity the case's plot shows; not kept, the plot is.
    #[serde(skip)]
    pub(crate) curve: Vec<(f64, f64)>,
    /// Largest resident memory of pgsluice; 0 for native.
    pub(crate) resident_bytes_max: u64,
    pub(crate) equal: bool,
    /// What it left on the subscriber, where that is looked at.
    pub(crate) aftermath: Option<Aftermath>,
}

/// How far it is.
pub(crate) struct Look {
    pub(crate) value: f64,
    pub(crate) done: bool,
}

/// Starts replication with `start` and samples with `look` until it is done. The caller fills in
/// `equal` and `aftermath`.
///
/// Returns the running pgsluice too, if `start` started it.
pub(crate) fn measure(
    rig: &Rig,
    start: impl FnOnce(&Probe) -> Result<Option<Sluice>>,
    look: impl Fn(&Probe) -> Result<Look>,
) -> Result<(Run, Option<Sluice>)> {
    let probe = Probe::connect(&rig.pair.target.url(DB))?;
    let (publisher, subscriber) = (cpu_of(&rig.pair.source), cpu_of(&rig.pair.target));
    let mut curve = Vec::new();
    let started = Instant::now();
    let mut sluice = start(&probe)?;
    let watch = match rig.timeline {
        true => {
            let own = probe.row("SELECT pg_backend_pid()")?;
            let own = own.first().cloned().flatten().and_then(|pid| pid.parse().ok()).unwrap_or(0);
            let pgsluice = sluice.as_ref().map(Sluice::pid);
            Some(Watch::begin(&rig.pair.source, &rig.pair.target, own, pgsluice))
        }
        false => None,
    };
    let seconds = loop {
        let Look { value, done } = look(&probe)?;
        let seconds = started.elapsed().as_secs_f64();
        curve.push((seconds, value));
        if done {
            break seconds;
        }
        if let Some(sluice) = sluice.as_mut() {
            ensure!(sluice.is_running(), "pgsluice ended:\n{}", sluice.stderr());
        }
        ensure!(started.elapsed() < RUN_BOUND, "not done after {RUN_BOUND:?}:\n{}", rig.pair.target.log());
        std::thread::sleep(PACE);
    };
    let cpu = Cpu {
        publisher: spent(publisher, cpu_of(&rig.pair.source)),
        subscriber: spent(subscriber, cpu_of(&rig.pair.target)),
        pgsluice: sluice.as_ref().map_or(0.0, Sluice::cpu_seconds),
        stages: sluice.as_ref().map(|_| stages(rig)).unwrap_or_default(),
    };
    if let Some(watch) = watch {
        eprintln!("{}", watch.end()?);
    }
    let resident_bytes_max = sluice.as_ref().map_or(0, Sluice::resident_bytes_max);
    Ok((Run { seconds, cpu, curve, resident_bytes_max, ..Run::default() }, sluice))
}

/// CPU seconds of each stage of the pgsluice that runs; none if it does not tell them, as another
/// build may not.
fn stages(rig: &Rig) -> BTreeMap<String, f64> {
    let told = || -> Option<BTreeMap<String, f64>> {
        let output = Sluice::call(&rig.pair, &["status", "--json", "--subscription", NAME]).ok()?;
        let status: serde_json::Value = serde_json::from_str(&output.stdout).ok()?;
        let stages = status["totals"]["cpu_us"].as_object()?;
        Some(stages.iter().filter_map(|(name, us)| Some((name.clone(), us.as_f64()? / 1e6))).collect())
    };
    told().unwrap_or_default()
}

/// Ends pgsluice in order, if it was started.
pub(crate) fn finish(sluice: Option<Sluice>) -> Result<()> {
    let Some(mut sluice) = sluice else { return Ok(()) };
    let status = sluice.terminate(STOP_BOUND)?;
    ensure!(status.success(), "pgsluice ended with {status}:\n{}", sluice.stderr());
    Ok(())
}

/// One run of `work`, which returns pgsluice's CPU seconds, its largest resident memory and whether
/// the ends were found equal.
pub(crate) fn measure_work(rig: &Rig, work: impl FnOnce() -> Result<(f64, u64, bool)>) -> Result<Run> {
    let (publisher, subscriber) = (cpu_of(&rig.pair.source), cpu_of(&rig.pair.target));
    let started = Instant::now();
    let (pgsluice, resident_bytes_max, equal) = work()?;
    let seconds = started.elapsed().as_secs_f64();
    let cpu = Cpu {
        publisher: spent(publisher, cpu_of(&rig.pair.source)),
        subscriber: spent(subscriber, cpu_of(&rig.pair.target)),
        pgsluice,
        ..Cpu::default()
    };
    Ok(Run { seconds, cpu, resident_bytes_max, equal, ..Run::default() })
}

/// The middle one, or the mean of the two in the middle; 0 of none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match (values.len(), values.len() / 2) {
        (0, _) => 0.0,
        (count, middle) if count % 2 == 1 => values[middle],
        (_, middle) => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle() {
        assert!((median([3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median([4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
    }
}
