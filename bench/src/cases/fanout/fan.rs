//! One run of one side, with receivers that drain, and what the walsenders and the relay take
//! meanwhile.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use testkit::process;

use super::load::Load;
use super::{FIRST, LAST, RUN_BOUND, Stage, names};
use crate::Arm;
use crate::lab::cpu::{Cpu, cpu_of, exact_cpu_seconds, spent};
use crate::lab::drain::{Receipt, Receivers, create_slots};
use crate::lab::measure::Run;
use crate::lab::relay::{Place, Relay};
use crate::report::WALSENDER;

/// What one run showed.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    /// Its seconds are the load's own wall time.
    pub(super) run: Run,
    /// From the beginning of the load until all had everything.
    pub(super) level_seconds: f64,
    pub(super) wal_bytes: f64,
    /// Walsenders on the publisher.
    pub(super) senders: usize,
    /// CPU seconds of the receivers.
    pub(super) receivers: f64,
    /// How often receivers lost their connections.
    pub(super) reconnections: u32,
    pub(super) receipt: Receipt,
}

impl Measured {
    /// CPU seconds of walsenders.
    pub(super) fn walsenders(&self) -> f64 {
        self.run.cpu.publisher.get(WALSENDER).copied().unwrap_or(0.0)
    }
}

/// Starts the relay, if it is that side.
pub(super) fn relay_of(stage: &Stage, arm: Arm) -> Result<Option<Relay>> {
    (arm == Arm::Ours).then(|| Place::new()?.start(stage.source(), &[])).transpose()
}

/// For an error: which side it was, with what the relay logged.
pub(super) fn described(relay: Option<&Relay>) -> String {
    relay.map_or_else(
        || "with slots on the publisher".to_owned(),
        |relay| format!("the relay:\n{}", relay.log()),
    )
}

/// One run.
pub(super) fn measure(stage: &Stage, arm: Arm, count: usize, load: &Load) -> Result<Measured> {
    stage.reset(Some(load))?;
    let relay = relay_of(stage, arm)?;
    let done = under_load(stage, relay.as_ref(), count, load);
    let measured = done.with_context(|| described(relay.as_ref()))?;
    relay.map_or(Ok(()), Relay::stop)?;
    Ok(measured)
}

fn under_load(stage: &Stage, relay: Option<&Relay>, count: usize, load: &Load) -> Result<Measured> {
    let url = stage.url(relay);
    let slots = names("s", count);
    create_slots(&url, &slots)?;
    let mut receivers = Receivers::start(&url, &slots, stage.reading())?;
    stage.write_mark(FIRST)?;
    receivers.wait_for_all(FIRST, RUN_BOUND)?;
    let meter = Meter::start(stage, relay, count)?;
    let started = Instant::now();
    let written = load.write(&stage.rig)?;
    stage.write_mark(LAST)?;
    let level = receivers.wait_for_all(LAST, RUN_BOUND)?;
    let spent = meter.stop(stage, relay)?;
    let reconnections = receivers.reconnections();
    let receipts = receivers.finish()?;
    let receipt = receipts.first().copied().unwrap_or_default();
    let equal = receipts.iter().all(|other| *other == receipt);
    if !equal {
        eprintln!("NOT EQUAL: {receipts:?}");
    }
    let resident_bytes_max = relay.map_or(0, Relay::resident_bytes_max);
    Ok(Measured {
        run: Run { seconds: written.seconds, cpu: spent.cpu, resident_bytes_max, equal, ..Run::default() },
        level_seconds: level.duration_since(started).as_secs_f64(),
        wal_bytes: written.wal_bytes,
        senders: spent.senders,
        receivers: spent.own,
        reconnections,
        receipt,
    })
}

/// Says of each run whether both sides got the same.
pub(super) fn compare(runs: &mut [(Arm, Measured)]) {
    let Some(receipt) = runs.first().map(|(_, first)| first.receipt) else { return };
    if runs.iter().all(|(_, run)| run.receipt.is_alike(&receipt)) {
        return;
    }
    let receipts: Vec<&Receipt> = runs.iter().map(|(_, run)| &run.receipt).collect();
    eprintln!("NOT EQUAL: {receipts:?}");
    runs.iter_mut().for_each(|(_, run)| run.run.equal = false);
}

/// Counts CPU seconds between two moments at which the same walsenders run.
pub(super) struct Meter {
    senders: Vec<u32>,
    walsenders: f64,
    publisher: BTreeMap<String, f64>,
    subscriber: BTreeMap<String, f64>,
    relay: f64,
    own: f64,
}

/// What was spent.
pub(super) struct Spent {
    pub(super) cpu: Cpu,
    /// CPU seconds of the benchmark, most of them of its receivers.
    pub(super) own: f64,
    pub(super) senders: usize,
}

impl Meter {
    /// Begins, once a walsender for each subscriber runs, or the relay's one.
    pub(super) fn start(stage: &Stage, relay: Option<&Relay>, subscribers: usize) -> Result<Meter> {
        let expected = if relay.is_some() { 1 } else { subscribers };
        let senders = stage.senders(expected)?;
        ensure!(senders.len() >= expected, "{} walsenders run, not {expected}", senders.len());
        let pair = &stage.rig.pair;
        Ok(Meter {
            walsenders: exact(&senders)?,
            senders,
            publisher: cpu_of(&pair.source),
            subscriber: cpu_of(&pair.target),
            relay: relay.map_or(0.0, Relay::cpu_seconds),
            own: process::cpu_seconds(std::process::id()),
        })
    }

    /// Ends. The walsenders must still run.
    pub(super) fn stop(self, stage: &Stage, relay: Option<&Relay>) -> Result<Spent> {
        let walsenders = exact(&self.senders)? - self.walsenders;
        let pair = &stage.rig.pair;
        let mut publisher = spent(self.publisher, cpu_of(&pair.source));
        publisher.insert(WALSENDER.to_owned(), walsenders);
        let cpu = Cpu {
            publisher,
            subscriber: spent(self.subscriber, cpu_of(&pair.target)),
            pgsluice: relay.map_or(0.0, Relay::cpu_seconds) - self.relay,
            ..Cpu::default()
        };
        let own = process::cpu_seconds(std::process::id()) - self.own;
        let senders = stage.senders(self.senders.len())?.len();
        Ok(Spent { cpu, own, senders })
    }
}

fn exact(pids: &[u32]) -> Result<f64> {
    pids.iter().map(|pid| exact_cpu_seconds(*pid)).sum()
}
