//! The processes that work and those that wait during one run, ten milliseconds at a time.
//!
//! A thread reads how long each process ran and how long it waited for a core
//! (`/proc/PID/schedstat`), ten milliseconds after ten milliseconds. What it did neither of it
//! slept: it waited for somebody. Printed, a character stands for ten milliseconds and says how
//! many tenths of a core were used:
//!
//! ```text
//!   0.0 s walsender |99999876..12345|
//!         pgsluice  |.....99+++99+9.|   . asleep, + a core or more
//!         target    |......13999999.|
//! ```
//! Looking takes about one per cent of a core, so a figure from such a run is not kept.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use testkit::{Cluster, process};

/// What a character stands for.
const SLOT: Duration = Duration::from_millis(10);
/// Processes and threads that are new are found this often.
const FOUND_EACH: u32 = 10;
/// Characters in a line: one second.
const LINE: usize = 100;
/// Less than this part of a slot is sleep.
const ASLEEP: f64 = 0.05;

/// Whose time it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Walsender,
    Pgsluice,
    /// What applies on the target: sessions of pgsluice, or workers of native replication.
    Target,
    /// Everything else of both servers.
    Other,
}

impl Part {
    const ALL: [Part; 4] = [Part::Walsender, Part::Pgsluice, Part::Target, Part::Other];

    fn name(self) -> &'static str {
        match self {
            Part::Walsender => "walsender",
            Part::Pgsluice => "pgsluice",
            Part::Target => "target",
            Part::Other => "others",
        }
    }
}

/// What one part did in one slot, in cores.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Share {
    ran: f64,
    /// Waited for a core.
    queued: f64,
}

type Slot = [Share; Part::ALL.len()];

/// Looks until it is asked for what it saw.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Timeline>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    slots: Vec<Slot>,
}

impl Watch {
    /// Begins to look at both servers, and at pgsluice if it runs. The target's process `probe`
    /// serves the benchmark itself.
    pub(crate) fn begin(source: &Cluster, target: &Cluster, probe: u32, pgsluice: Option<u32>) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let (source, target) = (source.pid(), target.pid());
        let looker = Looker { source, target, probe, pgsluice, known: HashMap::new() };
        let over = Arc::clone(&stop);
        Watch { stop, thread: Some(std::thread::spawn(move || looker.run(&over))) }
    }

    /// Ends it.
    pub(crate) fn end(mut self) -> Result<Timeline> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().and_then(|thread| thread.join().ok());
        ended.context("the timeline's thread panicked")
    }
}

struct Looker {
    source: Option<u32>,
    target: Option<u32>,
    probe: u32,
    pgsluice: Option<u32>,
    /// By the path of its `schedstat`: the part that it belongs to, and what it said last.
    known: HashMap<String, (Part, Option<(u64, u64)>)>,
}

impl Looker {
    fn run(mut self, over: &AtomicBool) -> Timeline {
        let mut timeline = Timeline::default();
        let mut before = Instant::now();
        let mut looks = 0;
        while !over.load(Ordering::Relaxed) {
            if looks % FOUND_EACH == 0 {
                self.find();
            }
            looks += 1;
            std::thread::sleep(SLOT.saturating_sub(before.elapsed()));
            let now = Instant::now();
            let slot = self.look((now - before).as_nanos() as f64);
            // A look that came late stands for several slots.
            let slots = ((now - before).as_secs_f64() / SLOT.as_secs_f64()).round().max(1.0) as usize;
            timeline.slots.extend(std::iter::repeat_n(slot, slots));
            before = now;
        }
        timeline
    }

    fn find(&mut self) {
        let servers = [(self.source, true), (self.target, false)];
        for (postmaster, is_source) in servers {
            for (pid, kind) in postmaster.map(process::server_processes).unwrap_or_default() {
                let part = match (is_source, kind.as_str()) {
                    // It has no title of its own yet, or any more.
                    (_, "starting" | "exited") => continue,
                    _ if pid == self.probe => Part::Other,
                    (true, "walsender") => Part::Walsender,
                    (false, "client backend") => Part::Target,
                    (false, kind) if kind.starts_with("logical replication") && kind.contains("worker") => {
                        Part::Target
                    }
                    _ => Part::Other,
                };
                self.known.entry(format!("/proc/{pid}/schedstat")).or_insert((part, None));
            }
        }
        let Some(pid) = self.pgsluice else { return };
        for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let path = format!("{}/schedstat", thread.path().display());
            self.known.entry(path).or_insert((Part::Pgsluice, None));
        }
    }

    /// What each part did in the `nanoseconds` since the last look.
    fn look(&mut self, nanoseconds: f64) -> Slot {
        let mut slot = Slot::default();
        self.known.retain(|path, (part, last)| {
            let Some(now) = fs::read_to_string(path).ok().and_then(|text| times(&text)) else { return false };
            if let Some((ran, queued)) = last.replace(now) {
                let share = &mut slot[*part as usize];
                share.ran += now.0.saturating_sub(ran) as f64 / nanoseconds;
                share.queued += now.1.saturating_sub(queued) as f64 / nanoseconds;
            }
            true
        });
        slot
    }
}

/// Nanoseconds that a thread ran and that it waited for a core.
fn times(schedstat: &str) -> Option<(u64, u64)> {
    let mut fields = schedstat.split_whitespace().map(|field| field.parse::<u64>().ok());
    Some((fields.next()??, fields.next()??))
}

/// Tenths of a core.
fn character(ran: f64) -> char {
    if ran < ASLEEP {
        return '.';
    }
    match (ran * 10.0).round() as u32 {
        tenths @ 0..=9 => char::from_digit(tenths, 10).unwrap_or('?'),
        _ => '+',
    }
}

impl Timeline {
    /// How often this holds of the target and of pgsluice, each awake or not, in per cent of the
    /// time.
    fn both(&self, target: bool, pgsluice: bool) -> f64 {
        let awake = |slot: &Slot, part: Part| {
            let Share { ran, queued } = slot[part as usize];
            ran + queued >= ASLEEP
        };
        let holds =
            |slot: &&Slot| awake(slot, Part::Target) == target && awake(slot, Part::Pgsluice) == pgsluice;
        100.0 * self.slots.iter().filter(holds).count() as f64 / self.slots.len().max(1) as f64
    }

    fn mean(&self, of: impl Fn(&Slot) -> f64) -> f64 {
        self.slots.iter().map(of).sum::<f64>() / self.slots.len().max(1) as f64
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "10 ms a character, in tenths of a core; `.` asleep, `+` a core or more")?;
        for (second, line) in self.slots.chunks(LINE).enumerate() {
            for part in Part::ALL {
                let time = if part == Part::Walsender { format!("{second} s") } else { String::new() };
                let characters: String = line.iter().map(|slot| character(slot[part as usize].ran)).collect();
                writeln!(f, "{time:>6} {:<9} |{characters}|", part.name())?;
            }
        }
        for part in Part::ALL {
            let ran = self.mean(|slot| slot[part as usize].ran);
            let queued = self.mean(|slot| slot[part as usize].queued);
            writeln!(f, "{:>16}: {ran:.2} cores used, {queued:.2} waited for", part.name())?;
        }
        let all = self.mean(|slot| slot.iter().map(|share| share.ran).sum());
        writeln!(f, "             all: {all:.2} cores used")?;
        writeln!(
            f,
            "target and pgsluice awake {:.0} % of the time, the target alone {:.0} %, pgsluice alone {:.0} %, neither \
             {:.0} %",
            self.both(true, true),
            self.both(true, false),
            self.both(false, true),
            self.both(false, false)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_second_of_tenths_of_a_core() {
        let share = |ran| Share { ran, queued: 0.0 };
        let slot = |target, pgsluice| [share(0.0), share(pgsluice), share(target), share(0.0)];
        let mut slots = vec![slot(0.96, 0.0); 50];
        slots.extend(vec![slot(0.04, 0.33); 25]);
        slots.extend(vec![slot(1.4, 1.0); 50]);
        let text = Timeline { slots }.to_string();
        let target: Vec<&str> = text.lines().filter(|line| line.contains("target    |")).collect();
        assert_eq!(target.len(), 2, "{text}");
        assert!(target[0].contains(&format!("|{}{}{}|", "+".repeat(50), ".".repeat(25), "+".repeat(25))));
        assert!(text.contains(&format!("pgsluice  |{}{}", ".".repeat(50), "3".repeat(25))), "{text}");
        assert!(
            text.contains("awake 40 % of the time, the target alone 40 %, pgsluice alone 20 %, neither 0 %"),
            "{text}"
        );
    }

    #[test]
    fn the_scheduler_says_what_ran_and_what_waited() {
        assert_eq!(times("12 34 5\n"), Some((12, 34)));
        assert_eq!(times(""), None);
        assert!(times(&fs::read_to_string("/proc/self/schedstat").unwrap()).is_some());
    }
}
