//! Names the part that limits the rate while the target is behind and everything moves.
//!
//! [`super::waits`] names what does not move for a second. A pipeline may as well be behind while
//! each of its parts moves all the time. Then one of them has no time left, and only a count over
//! some seconds shows which. So `monitor` looks at the servers a few times a second while the
//! target is behind, and puts the CPU time of our own stages beside that.
//!
//! ```text
//! source's walsender --> receive --> decode --> plan --> write --> target's session
//!   works? waits to        CPU time of each, of the last      works? on what? or
//!   send?                  ten seconds                        waits for us?
//! ```
//! The first row that holds gives the name. Shares are of the last ten seconds.
//!
//! | stage | when |
//! |---|---|
//! | one of [`super::waits`] | that stage has taken longer than a second; `queue`, `open`, `source` and `flush` come last |
//! | `storage` | the target's session works for 60 % of the time, most of it waiting for its storage |
//! | `statement` | the target's session works for 60 % of the time |
//! | `decode`, `plan`, `write`, `receive` | this stage of ours uses 70 % of a processor |
//! | `source` | the source's walsender works for 60 % of the time |
//! | `network` | the walsender waits until it can send, or the target's session waits for what we have sent, for half of the time |
//!
//! Nothing is named while the target is less than a second behind.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::lag::Lag;
use super::look::BackendLook;
use super::stage_times::StageTimes;
use super::standstill::lock;
use super::waits::WaitsFor;

/// What counts is the time before now that is shorter than this.
const WINDOW: Duration = Duration::from_secs(10);
/// This number of samples says something.
const ENOUGH: usize = 12;
/// A session of a server is the limit if it works for this share of the time.
const SERVER_SHARE: f64 = 0.6;
/// A stage of ours is the limit if it uses this share of a processor.
const STAGE_SHARE: f64 = 0.7;
/// One end waits for the network if it waits for this share of the time.
const NETWORK_SHARE: f64 = 0.5;
/// A target that is behind by less time keeps up.
const BEHIND_SECONDS: f64 = 1.0;

/// What limits the rate at present.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LimitedBy {
    /// The part; see the module's table.
    pub stage: String,
    /// For people: the part, and how busy it is.
    pub what: String,
    /// The share of the last ten seconds in which it was busy; null for something that does not
    /// move at all.
    #[serde(default)]
    pub share: Option<f64>,
    /// The operation on which the target spent most of that time, as `UPDATE`.
    #[serde(default)]
    pub operation: Option<String>,
    /// Its table, schema-qualified.
    #[serde(default)]
    pub table: Option<String>,
}

/// What the source's walsender does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Walsender {
    /// It reads, decodes or sends.
    Works,
    /// It waits until its connection takes more.
    WaitsToSend,
    /// It has nothing to send.
    Idle,
}

impl Walsender {
    /// Reads what `pg_stat_activity` says it waits for.
    pub(crate) fn of(wait_event: Option<&str>) -> Walsender {
        match wait_event {
            None | Some("WALRead" | "WalRead" | "WalSenderTimelineRead") => Walsender::Works,
            Some("WalSenderWriteData") => Walsender::WaitsToSend,
            Some(_) => Walsender::Idle,
        }
    }
}

/// One look at all parts.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) at: Instant,
    /// The target's session that applies; `None` if it could not be asked.
    pub(crate) target: Option<BackendLook>,
    /// `None` if there is none, or it could not be asked.
    pub(crate) walsender: Option<Walsender>,
    /// We wait for an answer of the target.
    pub(crate) has_sent: bool,
    /// CPU time of our stages since the process started.
    pub(crate) cpu_us: StageTimes,
}

/// The latest looks.
#[derive(Debug, Default)]
pub(crate) struct Limits(Mutex<VecDeque<Sample>>);

impl Limits {
    pub(crate) fn note(&self, sample: Sample) {
        let mut samples = lock(&self.0);
        samples.push_back(sample);
        while samples.front().is_some_and(|first| first.at.elapsed() > WINDOW) {
            samples.pop_front();
        }
    }

    /// The part that limits the rate. `waits` is what does not move.
    pub(crate) fn limited_by(&self, total: &Lag, waits: Option<&WaitsFor>) -> Option<LimitedBy> {
        let waits = waits.filter(|waits| !waits.is_for_changes());
        if let Some(waits) = waits.filter(|waits| !waits.is_by_lag()) {
            return Some(of_wait(waits));
        }
        if !is_behind(total) {
            return None;
        }
        let samples = lock(&self.0);
        let samples: Vec<&Sample> = samples.iter().filter(|sample| sample.at.elapsed() <= WINDOW).collect();
        let found = if samples.len() < ENOUGH { None } else { verdict(&samples) };
        found.or_else(|| waits.map(of_wait))
    }
}

/// Whether the target is so far behind that something limits it.
pub(crate) fn is_behind(total: &Lag) -> bool {
    total.bytes.is_some_and(|bytes| bytes > 0) && total.seconds.is_some_and(|age| age >= BEHIND_SECONDS)
}

fn of_wait(waits: &WaitsFor) -> LimitedBy {
    let reads = waits.wait_event.as_ref().is_some_and(|event| event.starts_with("IO: "));
    let stage = if reads && waits.stage == "statement" { "storage" } else { &waits.stage };
    LimitedBy {
        stage: stage.to_owned(),
        what: waits.what.clone(),
        share: None,
        operation: waits.operation.clone(),
        table: waits.table.clone(),
    }
}

fn verdict(samples: &[&Sample]) -> Option<LimitedBy> {
    let share = |counts: &dyn Fn(&Sample) -> bool| {
        samples.iter().filter(|sample| counts(sample)).count() as f64 / samples.len() as f64
    };
    let busy = share(&|sample| sample.target.as_ref().is_some_and(BackendLook::works));
    if busy >= SERVER_SHARE {
        return Some(of_target(samples, busy));
    }
    let plain = |stage: &str, share: f64, what: String| {
        Some(LimitedBy { stage: stage.to_owned(), what, share: Some(share), operation: None, table: None })
    };
    let (stage, used) = busiest_stage(samples);
    if used >= STAGE_SHARE {
        let what = match stage {
            "receive" => "receiving the stream",
            "decode" => "decoding WAL",
            "plan" => "planning statements",
            _ => "sending statements to the target",
        };
        return plain(
            stage,
            used,
            format!("pgsluice's own work, {what}: {} of one processor", percent(used)),
        );
    }
    let works = share(&|sample| sample.walsender == Some(Walsender::Works));
    if works >= SERVER_SHARE {
        let what = format!("the source: its walsender is busy for {} of the time", percent(works));
        return plain("source", works, what);
    }
    let held_up = share(&|sample| sample.walsender == Some(Walsender::WaitsToSend) && !sample.has_sent);
    if held_up >= NETWORK_SHARE {
        let what = format!(
            "the network from the source: its walsender waits until it can send for {} of the time",
            percent(held_up)
        );
        return plain("network", held_up, what);
    }
    let on_the_way =
        share(&|sample| sample.has_sent && sample.target.as_ref().is_some_and(BackendLook::waits_for_us));
    if on_the_way >= NETWORK_SHARE {
        let what = format!(
            "the network to the target: for {} of the time, both ends wait for what the other has sent",
            percent(on_the_way)
        );
        return plain("network", on_the_way, what);
    }
    None
}

/// The target's session, which is busy for this share of the time.
fn of_target(samples: &[&Sample], busy: f64) -> LimitedBy {
    let works: Vec<&BackendLook> =
        samples.iter().filter_map(|sample| sample.target.as_ref()).filter(|look| look.works()).collect();
    let (statement, count) = most(works.iter().map(|look| (look.operation.clone(), look.table.clone())));
    let (operation, table) = statement;
    let mut what = format!("the target: its session is busy for {} of the time", percent(busy));
    if let Some(operation) = &operation {
        let on = table.as_ref().map(|table| format!(" on {table}")).unwrap_or_default();
        let part = percent(count as f64 / works.len() as f64);
        what.push_str(&format!(", {part} of that with {operation}{on}"));
    }
    let waits = works.iter().filter_map(|look| look.wait_event.clone());
    let waits: Vec<(String, String)> = waits.collect();
    let reads = waits.iter().filter(|(kind, _)| kind == "IO").count() as f64 / works.len() as f64;
    let (event, waiting) = most(waits.into_iter());
    if 2 * waiting >= works.len() {
        let part = percent(waiting as f64 / works.len() as f64);
        what.push_str(&format!("; {part} of that it waits ({}: {})", event.0, event.1));
    }
    let stage = if reads >= 0.5 { "storage" } else { "statement" };
    LimitedBy { stage: stage.to_owned(), what, share: Some(busy), operation, table }
}

/// What comes most often, and how often.
fn most<T: Clone + Default + Eq + std::hash::Hash>(all: impl Iterator<Item = T>) -> (T, usize) {
    let mut counts: HashMap<T, usize> = HashMap::new();
    all.for_each(|one| *counts.entry(one).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).unwrap_or_default()
}

/// The stage of ours that used most of a processor, and what share of one.
fn busiest_stage(samples: &[&Sample]) -> (&'static str, f64) {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return ("plan", 0.0) };
    let elapsed = last.at.duration_since(first.at).as_secs_f64().max(0.001);
    let used = |of: fn(&StageTimes) -> u64| {
        of(&last.cpu_us).saturating_sub(of(&first.cpu_us)) as f64 / 1e6 / elapsed
    };
    let stages = [
        ("receive", used(|cpu| cpu.receive)),
        ("decode", used(|cpu| cpu.decode)),
        ("plan", used(|cpu| cpu.plan)),
        ("write", used(|cpu| cpu.write)),
    ];
    stages.into_iter().max_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or(("plan", 0.0))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEHIND: Lag = Lag { bytes: Some(1_000_000), seconds: Some(3.0) };

    fn look(operation: &str, wait_event: Option<(&str, &str)>) -> BackendLook {
        BackendLook {
            end: "target",
            pid: 7,
            state: Some("active".to_owned()),
            wait_event: wait_event.map(|(kind, name)| (kind.to_owned(), name.to_owned())),
            operation: Some(operation.to_owned()),
            table: Some("public.orders".to_owned()),
            lasts: Duration::from_millis(5),
        }
    }

    /// Samples a quarter of a second apart, of which `each` makes one by its number.
    fn limits(each: impl Fn(u64, &mut Sample)) -> Limits {
        let limits = Limits::default();
        let now = Instant::now();
        for number in 0..30 {
            let idle = look("UPDATE", Some(("Client", "ClientRead")));
            let mut sample = Sample {
                at: now.checked_sub(Duration::from_millis(250 * (30 - number))).unwrap(),
                target: Some(idle),
                walsender: Some(Walsender::Idle),
                has_sent: false,
                cpu_us: StageTimes::default(),
            };
            each(number, &mut sample);
            limits.note(sample);
        }
        limits
    }

    fn named(limits: &Limits) -> Option<(String, u64, String)> {
        let found = limits.limited_by(&BEHIND, None)?;
        Some((found.stage, (100.0 * found.share.unwrap()).round() as u64, found.what))
    }

    #[test]
    fn the_part_without_time_left_is_named() {
        let busy = limits(|number, sample| {
            let table = if number % 10 == 0 { "INSERT" } else { "UPDATE" };
            sample.target = Some(look(table, None));
            sample.walsender = Some(Walsender::Works);
        });
        let (stage, share, what) = named(&busy).unwrap();
        assert_eq!((stage.as_str(), share), ("statement", 100));
        assert!(
            what.contains("busy for 100 % of the time, 90 % of that with UPDATE on public.orders"),
            "{what}"
        );
        let reads = limits(|_, sample| sample.target = Some(look("UPDATE", Some(("IO", "DataFileRead")))));
        let (stage, _, what) = named(&reads).unwrap();
        assert_eq!(stage, "storage");
        assert!(what.ends_with("; 100 % of that it waits (IO: DataFileRead)"), "{what}");
        let decodes = limits(|number, sample| {
            sample.cpu_us =
                StageTimes { decode: 230_000 * number, plan: 100_000 * number, ..Default::default() };
        });
        let (stage, share, what) = named(&decodes).unwrap();
        assert_eq!((stage.as_str(), share), ("decode", 92));
        assert!(what.contains("decoding WAL: 92 % of one processor"), "{what}");
        let source = limits(|_, sample| sample.walsender = Some(Walsender::Works));
        assert_eq!(named(&source).unwrap().0, "source");
        let sends = limits(|number, sample| {
            sample.walsender = Some(if number % 4 == 0 { Walsender::Idle } else { Walsender::WaitsToSend });
        });
        let (stage, share, what) = named(&sends).unwrap();
        assert_eq!((stage.as_str(), share), ("network", 73));
        assert!(what.starts_with("the network from the source"), "{what}");
        let answers = limits(|_, sample| sample.has_sent = true);
        assert!(named(&answers).unwrap().2.starts_with("the network to the target"));
        assert_eq!(named(&limits(|_, _| {})), None);
    }

    #[test]
    fn nothing_is_named_while_the_target_keeps_up_or_too_little_is_known() {
        let busy = limits(|_, sample| sample.target = Some(look("UPDATE", None)));
        for lag in [
            Lag { bytes: Some(0), seconds: Some(0.0) },
            Lag { bytes: Some(10), seconds: Some(0.5) },
            Lag::default(),
        ] {
            assert_eq!(busy.limited_by(&lag, None), None);
        }
        let few = limits(|number, sample| {
            if number < 25 {
                sample.at = sample.at.checked_sub(WINDOW).unwrap();
            }
            sample.target = Some(look("UPDATE", None));
        });
        assert_eq!(few.limited_by(&BEHIND, None), None);
    }

    #[test]
    fn what_does_not_move_comes_first() {
        let busy = limits(|_, sample| sample.walsender = Some(Walsender::Works));
        let slow = WaitsFor::of_look(&BackendLook {
            lasts: Duration::from_secs(5),
            ..look("UPDATE", Some(("IO", "DataFileRead")))
        });
        let found = busy.limited_by(&BEHIND, Some(&slow)).unwrap();
        assert_eq!((found.stage.as_str(), found.share), ("storage", None));
        assert_eq!(found.what, slow.what);
    }
}
