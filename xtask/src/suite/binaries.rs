//! The test binaries of the workspace, run in lanes.
//!
//! ```text
//!                             +-> lane: golden, ... one by one --+
//!   scenarios alone, then ----+                                  +--> lines, as they come
//!                             +-> lane: crash, ... one by one ---+
//! ```
//! The scenarios are hundreds of tests, which keep every processor busy by themselves. A lane takes
//! the next binary when it has ended one. Those that take longest stand first in the queue.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::hung;
use super::progress::Progress;
use crate::cargo::cargo;

/// Binaries at the same time. The tests of each run several at a time.
pub(super) const LANES: usize = 2;

/// Test targets that take minutes, the longest first. The first runs alone.
const LONGEST: [&str; 7] = ["scenarios", "golden", "crash", "conformance", "relay_faults", "memory", "check"];

/// A binary that takes longer hangs, and is ended. On a slow machine the longest takes half of it.
const LIMIT: Duration = Duration::from_secs(25 * 60);

/// One test binary.
#[derive(Debug, PartialEq)]
pub(super) struct Binary {
    /// The name of its target, such as `scenarios`.
    target: String,
    program: PathBuf,
    /// Where its package is. Tests run there.
    package: PathBuf,
}

/// Builds all test binaries of the workspace.
pub(super) fn built() -> Result<VecDeque<Binary>> {
    let mut build = cargo(&["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    let output = build.stderr(Stdio::inherit()).output().context("running cargo test --no-run")?;
    ensure!(output.status.success(), "building the tests failed");
    let messages = String::from_utf8(output.stdout).context("what cargo test --no-run printed")?;
    let mut found: Vec<Binary> = messages.lines().filter_map(binary).collect();
    ensure!(!found.is_empty(), "cargo test --no-run named no test binary");
    found.sort_by_key(|binary| {
        LONGEST.iter().position(|longest| *longest == binary.target).unwrap_or(LONGEST.len())
    });
    Ok(found.into())
}

/// The test binary that a message of cargo names.
fn binary(message: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_test = message["profile"]["test"].as_bool()?;
    let program = message["executable"].as_str().filter(|_| is_test)?;
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    Some(Binary {
        target: message["target"]["name"].as_str()?.to_owned(),
        program: program.into(),
        package: manifest.parent()?.to_owned(),
    })
}

/// How binaries are run.
pub(super) struct Terms<'a> {
    /// Arguments of all.
    pub(super) arguments: &'a [String],
    pub(super) environment: &'a [(&'a str, OsString)],
    /// Tests at the same time, of all lanes together.
    pub(super) tests: usize,
    /// Is told what runs.
    pub(super) progress: Progress,
}

/// Runs them all. `line` gets each line that they print. Returns whether all succeeded.
pub(super) fn run(queue: VecDeque<Binary>, terms: &Terms<'_>, line: &mut dyn FnMut(&str)) -> Result<bool> {
    let (alone, rest) = queue.into_iter().partition(|binary| binary.target == LONGEST[0]);
    let first = run_in_lanes(alone, 1, terms, line)?;
    Ok(run_in_lanes(rest, LANES, terms, line)? && first)
}

fn run_in_lanes(
    queue: VecDeque<Binary>,
    lanes: usize,
    terms: &Terms<'_>,
    line: &mut dyn FnMut(&str),
) -> Result<bool> {
    let queue = Mutex::new(queue);
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let threads = terms.tests.div_ceil(lanes);
    let (sender, lines) = channel();
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes)
            .map(|_| {
                let sender = sender.clone();
                scope.spawn(move || -> Result<bool> {
                    let mut fine = true;
                    while let Some(binary) = next() {
                        fine &= binary.run(terms, threads, &sender)?;
                    }
                    Ok(fine)
                })
            })
            .collect();
        drop(sender);
        lines.iter().for_each(|text| line(&text));
        let mut fine = true;
        for lane in lanes {
            fine &= lane.join().expect("a lane does not panic")?;
        }
        Ok(fine)
    })
}

impl Binary {
    fn run(&self, terms: &Terms<'_>, threads: usize, lines: &Sender<String>) -> Result<bool> {
        let name = format!("{} of {}", self.target, self.package.display());
        // Nobody listens any more only if this thread's result is not wanted either.
        let tell = |line: String| _ = lines.send(line);
        let started = Instant::now();
        let running = terms.progress.begins(&name);
        let mut command = Command::new(&self.program);
        command.args(terms.arguments).arg(format!("--test-threads={threads}"));
        command.envs(terms.environment.iter().map(|(name, value)| (name, value)));
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("starting {name}"))?;
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let id = child.id();
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
        thread::scope(|scope| -> Result<()> {
            // Dropped at the end of what is printed, before the process can have another's number.
            let (_reads, ended) = channel::<()>();
            let (tell, name, running) = (&tell, &name, &running);
            scope.spawn(move || {
                if ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                    tell(format!("test: {name} has not ended after {} s; it is ended", LIMIT.as_secs()));
                    running.slow().iter().for_each(|test| tell(format!("test: it is in {test}")));
                    hung::described(id).into_iter().for_each(tell);
                    pid.map(|pid| kill_process(pid, Signal::TERM));
                }
            });
            for line in stdout.split(b'\n') {
                let line = line.with_context(|| format!("reading what {name} prints"))?;
                let line = String::from_utf8_lossy(&line).into_owned();
                running.reads(&line);
                tell(line);
            }
            Ok(())
        })?;
        let succeeded = child.wait()?.success();
        let word = if succeeded { "ended" } else { "FAILED" };
        tell(format!("test: {name} {word} after {:.0} s", started.elapsed().as_secs_f64()));
        Ok(succeeded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cargo_built_as_a_test_is_a_test_binary() {
        let message = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml",
                "target":{{"name":"scenarios"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let scenarios = Binary {
            target: "scenarios".to_owned(),
            program: "/w/target/scenarios-1".into(),
            package: "/w/crates/a".into(),
        };
        assert_eq!(binary(&message(true, r#""/w/target/scenarios-1""#)), Some(scenarios));
        assert_eq!(binary(&message(false, r#""/w/target/a""#)), None);
        assert_eq!(binary(&message(true, "null")), None);
        assert_eq!(binary(r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn lanes_run_every_binary_and_one_that_fails_fails_all() {
        let with = |programs: &[&str]| {
            let binary = |program: &&str| Binary {
                target: (*program).to_owned(),
                program: program.into(),
                package: "/".into(),
            };
            let mut lines = Vec::new();
            let queue = programs.iter().map(binary).collect();
            let terms = Terms {
                arguments: &["a line".to_owned()],
                environment: &[],
                tests: 4,
                progress: Progress::default(),
            };
            let fine = run(queue, &terms, &mut |line| lines.push(line.to_owned()));
            lines.retain(|line| line.starts_with("a line --test-threads=2"));
            (fine.unwrap(), lines.len())
        };
        assert_eq!(with(&["echo", "echo", "echo"]), (true, 3));
        assert_eq!(with(&["echo", "false", "echo"]), (false, 2));
    }
}
