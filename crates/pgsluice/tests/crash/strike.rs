//! The victim of a kill, the moment, and the phase that it was in.
//!
//! The test polls the flight recorder (`src/flight.rs`) until it shows the wanted phase. A seeded
//! time later the victim gets its signal. The phase that the recorder shows then counts, not the
//! wanted one.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use base::crash_phases::Phase;
use rand::Rng;
use rand::rngs::StdRng;
use rustix::process::{Pid, Signal, kill_process};

use crate::HITS_MIN;
use crate::conn::Conn;

/// How long a phase is waited for. What never comes in this time under load
/// counts as a miss.
const PHASE_BOUND: Duration = Duration::from_secs(15);

/// A server that does not answer for so long waits for a backend that is stopped.
const ANSWER_BOUND: Duration = Duration::from_secs(3);

/// What is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    /// pgsluice, SIGKILL.
    Sluice,
    /// The target's postmaster and all its children, SIGKILL.
    Target,
    /// The backend that applies, SIGKILL: the target restarts itself.
    Backend,
    /// The backend that applies, SIGTERM.
    Session,
    /// The source: an immediate stop, or SIGKILL to all of it.
    Source,
    /// The connections between pgsluice and the target: both live on.
    Link,
}

impl Victim {
    pub(crate) const ALL: [Victim; 6] =
        [Victim::Sluice, Victim::Target, Victim::Backend, Victim::Session, Victim::Source, Victim::Link];

    /// pgsluice and the target are what the phases are counted for.
    pub(crate) fn counts(self) -> bool {
        matches!(self, Victim::Sluice | Victim::Target | Victim::Backend)
    }

    pub(crate) fn pick(random: &mut StdRng) -> Victim {
        match random.random_range(0..20) {
            0..7 => Victim::Sluice,
            7..11 => Victim::Target,
            11..14 => Victim::Backend,
            14 => Victim::Session,
            15..18 => Victim::Source,
            _ => Victim::Link,
        }
    }

    /// How often it must be ended, in whatever phase.
    pub(crate) fn hits_min(self) -> u32 {
        if self == Victim::Source { HITS_MIN } else { 1 }
    }

    /// The others are asked to end, or live on.
    fn is_killed(self) -> bool {
        !matches!(self, Victim::Session | Victim::Link)
    }

    /// Whether its end leaves a COMMIT unanswered that its backend is in.
    pub(crate) fn may_find_commit_held(self) -> bool {
        self.counts() || self == Victim::Link
    }
}

/// The recorder's file, as a killed process left it or as a living one
/// writes it.
pub(crate) struct Recorder(File);

impl Recorder {
    pub(crate) fn create(path: &Path) -> Recorder {
        let file = File::options().create(true).truncate(true).read(true).write(true).open(path);
        Recorder(file.expect("a file for the recorder"))
    }

    /// Of a process that is gone: the next one has not begun.
    pub(crate) fn clear(&self) {
        self.0.write_all_at(&[b'0'; Phase::ALL.len()], 0).expect("the recorder's file");
    }

    pub(crate) fn read(&self) -> Phases {
        let mut digits = [0; Phase::ALL.len()];
        // Short while the program starts: then it is in no phase.
        let _ = self.0.read_at(&mut digits, 0);
        Phases(digits.map(|digit| digit == b'1'))
    }
}

/// Which phases a process is in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phases([bool; Phase::ALL.len()]);

impl Phases {
    fn has(self, phase: Phase) -> bool {
        self.0[phase as usize]
    }

    /// Whether `phase` is what a kill would hit now. Something is unreported
    /// most of the time: that counts only while nothing else is going on.
    pub(crate) fn is(self, phase: Phase) -> bool {
        let busy =
            [Phase::Batch, Phase::Commit, Phase::Replay, Phase::Spool].into_iter().any(|p| self.has(p));
        self.has(phase) && (phase != Phase::Unreported || !busy)
    }

    /// The one phase that a kill counts for: the wanted one if it is there,
    /// else the narrowest.
    pub(crate) fn hit(self, wanted: Phase) -> Option<Phase> {
        let narrowest = [
            wanted,
            Phase::Commit,
            Phase::Replay,
            Phase::Batch,
            Phase::Copy,
            Phase::Spool,
            Phase::Unreported,
            Phase::Look,
            Phase::Keep,
        ];
        narrowest.into_iter().find(|phase| self.is(*phase))
    }
}

/// How long after the phase was seen the signal is sent, at most: about as
/// long as the phase lasts.
fn delay_max(phase: Phase) -> Duration {
    match phase {
        Phase::Copy => Duration::from_millis(80),
        Phase::Spool | Phase::Batch => Duration::from_millis(1),
        Phase::Replay => Duration::from_millis(2),
        Phase::Commit => Duration::from_micros(60),
        Phase::Unreported => Duration::from_millis(2),
        Phase::Look => Duration::from_millis(20),
        Phase::Keep => Duration::from_micros(500),
    }
}

/// Returns a seeded while after `wanted` was seen; false if it never was.
pub(crate) fn await_phase(recorder: &Recorder, wanted: Phase, random: &mut StdRng) -> bool {
    await_phase_for(recorder, wanted, PHASE_BOUND, random)
}

/// [`await_phase`] that waits for `bound` at most.
pub(crate) fn await_phase_for(
    recorder: &Recorder,
    wanted: Phase,
    bound: Duration,
    random: &mut StdRng,
) -> bool {
    let deadline = Instant::now() + bound;
    let delay = delay_max(wanted).mul_f64(random.random_range(0.0..1.0));
    while Instant::now() < deadline {
        if recorder.read().is(wanted) {
            let until = Instant::now() + delay;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            return true;
        }
        look_again();
    }
    false
}

/// Pauses between two looks for a phase: the servers need the processors.
fn look_again() {
    std::thread::sleep(Duration::from_micros(20));
}

/// Stops the process `pid`, whose recorder this is, while it is in `wanted`, so that the kill
/// certainly hits that phase. If that fails, returns false and lets the process run.
pub(crate) fn freeze_in(recorder: &Recorder, wanted: Phase, pid: u32) -> bool {
    let deadline = Instant::now() + PHASE_BOUND;
    while Instant::now() < deadline {
        if !recorder.read().is(wanted) {
            look_again();
            continue;
        }
        signal(pid, Signal::STOP);
        while !is_stopped(pid) && Instant::now() < deadline {
            // Between two looks at a condition that has a bound.
            std::thread::sleep(Duration::from_micros(100));
        }
        if recorder.read().is(wanted) {
            return true;
        }
        signal(pid, Signal::CONT);
    }
    false
}

/// Stops `backend` of `target` in the middle of a COMMIT, so that it is certainly sent and
/// unanswered; false if that did not succeed.
///
/// A backend that is stopped while it has a lock of the whole server would hold up everybody, also
/// this test. So the server must still answer.
pub(crate) fn hold_in_commit(recorder: &Recorder, backend: u32, target: &str) -> bool {
    let deadline = Instant::now() + PHASE_BOUND;
    while Instant::now() < deadline {
        if !recorder.read().is(Phase::Commit) {
            look_again();
            continue;
        }
        signal(backend, Signal::STOP);
        // Long enough for an answer that was under way to be read.
        std::thread::sleep(Duration::from_millis(5));
        let is_held = recorder.read().is(Phase::Commit) && is_stopped(backend);
        let reads = "SELECT sum(n) FROM tally";
        if is_held && Conn::within(ANSWER_BOUND, target.to_owned()).run(reads).is_ok() {
            return true;
        }
        signal(backend, Signal::CONT);
        // It goes on for a moment, and may be met in the phase next time.
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Whether the process is there and a signal has stopped all of its threads.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let stats = threads.filter_map(|thread| {
        let thread = thread.ok()?;
        // A thread that is gone has stopped, too.
        std::fs::read_to_string(thread.path().join("stat")).ok()
    });
    let is_stopped = |stat: &String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
    let stats: Vec<String> = stats.collect();
    !stats.is_empty() && stats.iter().all(is_stopped)
}

/// A process that is gone already is no error.
pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Kills by phase and victim.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    hits: [[u32; Victim::ALL.len()]; Phase::ALL.len()],
    between: [u32; Victim::ALL.len()],
    /// COMMITs whose backend was held while its client or server died.
    pub(crate) held: u32,
    /// COMMITs whose backend was held while the connection was cut, so that the
    /// same process asks what became of it.
    pub(crate) answers_lost: u32,
}

impl Tally {
    pub(crate) fn add(&mut self, phase: Option<Phase>, victim: Victim) {
        match phase {
            Some(phase) => self.hits[phase as usize][victim as usize] += 1,
            None => self.between[victim as usize] += 1,
        }
    }

    pub(crate) fn hits(&self, phase: Phase, victim: Victim) -> u32 {
        self.hits[phase as usize][victim as usize]
    }

    /// Kills of `victim` in any phase or in none.
    pub(crate) fn of(&self, victim: Victim) -> u32 {
        let within = Phase::ALL.into_iter().map(|phase| self.hits(phase, victim));
        self.between[victim as usize] + within.sum::<u32>()
    }

    /// Processes that got SIGKILL, or a server an immediate stop.
    pub(crate) fn kills(&self) -> u32 {
        let killed = Victim::ALL.into_iter().filter(|victim| victim.is_killed());
        killed.map(|victim| self.of(victim)).sum()
    }

    /// Kills of pgsluice and of the target in `phase`.
    pub(crate) fn counted(&self, phase: Phase) -> u32 {
        let victims = Victim::ALL.into_iter().filter(|victim| victim.counts());
        victims.map(|victim| self.hits(phase, victim)).sum()
    }

    pub(crate) fn total(&self) -> u32 {
        Victim::ALL.into_iter().map(|victim| self.of(victim)).sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:12}", "")?;
        Victim::ALL.iter().try_for_each(|victim| write!(f, "{:>9}", format!("{victim:?}")))?;
        for phase in Phase::ALL {
            write!(f, "\n{:12}", format!("{phase:?}"))?;
            self.hits[phase as usize].iter().try_for_each(|count| write!(f, "{count:>9}"))?;
        }
        write!(f, "\n{:12}", "between")?;
        self.between.iter().try_for_each(|count| write!(f, "{count:>9}"))?;
        write!(
            f,
            "\n{} kills; held in COMMIT: {}, of these by cutting the connection: {}",
            self.kills(),
            self.held,
            self.answers_lost
        )
    }
}
