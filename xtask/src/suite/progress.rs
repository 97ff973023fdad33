//! Which test binaries have run, for how long, and what runs now.
//!
//! A suite that somebody ends before its time says so: where its time went, and what it waited for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Binaries that took less are not listed.
const SHORT: Duration = Duration::from_secs(10);

/// Clones are of the same suite.
#[derive(Clone, Default)]
pub(super) struct Progress {
    runs: Arc<Mutex<Vec<Run>>>,
}

/// One binary.
struct Run {
    name: String,
    began: Instant,
    took: Option<Duration>,
    /// Tests that have run for more than a minute and have not ended.
    slow: Vec<String>,
}

/// One binary of a suite. Dropping it says that the binary has ended.
pub(super) struct Running {
    progress: Progress,
    number: usize,
}

impl Progress {
    fn runs(&self) -> MutexGuard<'_, Vec<Run>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that a binary begins.
    pub(super) fn begins(&self, name: &str) -> Running {
        let mut runs = self.runs();
        runs.push(Run { name: name.to_owned(), began: Instant::now(), took: None, slow: Vec::new() });
        Running { progress: self.clone(), number: runs.len() - 1 }
    }

    /// A line for each binary that took long, the longest first, and for each that runs.
    pub(super) fn shown(&self) -> Vec<String> {
        let runs = self.runs();
        let mut longest: Vec<&Run> = runs.iter().collect();
        longest.sort_by_key(|run| std::cmp::Reverse(run.elapsed()));
        let line = |run: &Run| {
            let seconds = run.elapsed().as_secs();
            match run.took {
                Some(took) if took < SHORT => None,
                Some(_) => Some(format!("test: {seconds:>5} s  {}", run.name)),
                None if run.slow.is_empty() => {
                    Some(format!("test: {seconds:>5} s  {} has not ended", run.name))
                }
                None => {
                    let slow = run.slow.join(", ");
                    Some(format!(
                        "test: {seconds:>5} s  {} has not ended; for over a minute: {slow}",
                        run.name
                    ))
                }
            }
        };
        longest.into_iter().filter_map(line).collect()
    }
}

impl Run {
    fn elapsed(&self) -> Duration {
        self.took.unwrap_or_else(|| self.began.elapsed())
    }

    fn reads(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test ") else { return };
        if let Some(name) = rest.strip_suffix(" has been running for over 60 seconds") {
            self.slow.push(name.to_owned());
        } else if let Some((name, _)) = rest.split_once(" ... ") {
            self.slow.retain(|slow| slow != name);
        }
    }
}

impl Running {
    /// Reads a line that the binary printed.
    pub(super) fn reads(&self, line: &str) {
        self.progress.runs()[self.number].reads(line);
    }

    /// Tests that have run for more than a minute and have not ended.
    pub(super) fn slow(&self) -> Vec<String> {
        self.progress.runs()[self.number].slow.clone()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut runs = self.progress.runs();
        runs[self.number].took = Some(runs[self.number].began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_ended_is_named_with_its_slow_tests() {
        let progress = Progress::default();
        drop(progress.begins("base"));
        let crash = progress.begins("crash");
        for line in [
            "test kills has been running for over 60 seconds",
            "test cuts has been running for over 60 seconds",
            "test cuts ... ok",
            "test other ... FAILED",
        ] {
            crash.reads(line);
        }
        let memory = progress.begins("memory");
        let mut shown = progress.shown();
        shown.sort();
        assert_eq!(
            shown,
            [
                "test:     0 s  crash has not ended; for over a minute: kills",
                "test:     0 s  memory has not ended"
            ]
        );
        drop((crash, memory));
        assert_eq!(progress.shown(), Vec::<String>::new());
    }
}
