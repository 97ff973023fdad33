//! `cargo x test`: one command from a fresh checkout to one line that says how it went.
//!
//! `cargo test` runs one test binary after the other. Most have few tests that mostly wait, so here
//! two binaries run at the same time ([`binaries`]).

mod binaries;
mod hung;
mod progress;

use std::path::Path;

use anyhow::Result;
use testkit::Major;
use tokio::signal::unix::{SignalKind, signal};

use crate::cargo::{Profile, build_pgsluice};
use progress::Progress;

/// Each test may hold a pair of clusters, so not many. More at a time than twice the cores made
/// loaded machines answer late.
const THREADS_MAX: usize = 8;

/// A file system in memory.
const IN_MEMORY: &str = "/dev/shm";
/// Clusters in memory want so much of it free: three times what they were seen to take at any time.
const ROOM: u64 = 8 << 30;

/// What all test binaries reported.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    passed: u64,
    failed: u64,
    failures: Vec<String>,
}

impl Tally {
    fn read(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            let count = |word: &str| {
                let before = counts.split_once(&format!(" {word};"))?.0;
                before.rsplit(' ').next()?.parse::<u64>().ok()
            };
            self.passed += count("passed").unwrap_or(0);
            self.failed += count("failed").unwrap_or(0);
        } else if let Some(name) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(name.to_owned());
        }
    }
}

/// Builds, fetches, runs; prints the summary; whether everything passed and there was something to
/// pass.
pub(crate) fn run(all_majors: bool, filter: Option<&str>) -> Result<bool> {
    let mut tally = Tally::default();
    let ended_well = run_tests(all_majors, filter, &mut tally).unwrap_or_else(|error| {
        eprintln!("test: {error:#}");
        false
    });
    // A build that fails and a test binary that dies print no result line.
    if !ended_well && tally.failed == 0 {
        tally.failed = 1;
    }
    for name in &tally.failures {
        println!("failed: {name}");
    }
    if tally.passed + tally.failed == 0 {
        println!("no test has that in its name");
    }
    println!("{} passed, {} failed", tally.passed, tally.failed);
    Ok(tally.failed == 0 && tally.passed > 0)
}

fn run_tests(all_majors: bool, filter: Option<&str>, tally: &mut Tally) -> Result<bool> {
    let program = build_pgsluice(Profile::Dev, &[])?;
    let majors = if all_majors { Major::ALL.to_vec() } else { Major::under_test() };
    for &major in &majors {
        testkit::server_dir(major)?;
    }
    let chosen =
        all_majors || std::env::var_os("PGSLUICE_TEST_MAJORS").is_some_and(|majors| !majors.is_empty());
    let majors = majors.iter().map(Major::to_string).collect::<Vec<_>>().join(",");
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let tests = (cores * 2).min(THREADS_MAX);
    println!("test: PostgreSQL {majors}, {tests} tests at a time");
    let mut environment = vec![("PGSLUICE_TEST_MAJORS", majors.into()), ("PGSLUICE_BIN", program.into())];
    if !chosen && std::env::var_os(testkit::TURNS).is_none() {
        let seed = rand::random_range(0..1_000_000_u32);
        println!("test: slow tests take one major each, by {}={seed}", testkit::TURNS);
        environment.push((testkit::TURNS, seed.to_string().into()));
    }
    // Clusters come and go by the hundred, thousands of files each: ext4 looks for the inode of a
    // new file among all that were deleted within the last minutes, which took a fifth of all
    // processors.
    if std::env::var_os("TMPDIR").is_none() && room(Path::new(IN_MEMORY)) >= ROOM {
        println!("test: temporary files in {IN_MEMORY}; TMPDIR names another place");
        environment.push(("TMPDIR", IN_MEMORY.into()));
    }
    let arguments: Vec<String> = filter.into_iter().map(str::to_owned).collect();
    let progress = Progress::default();
    let terms = binaries::Terms {
        arguments: &arguments,
        environment: &environment,
        tests,
        progress: progress.clone(),
    };
    tell_when_terminated(progress.clone())?;
    let fine = binaries::run(binaries::built()?, &terms, &mut |line| {
        println!("{line}");
        tally.read(line);
    });
    progress.shown().iter().for_each(|line| println!("{line}"));
    fine
}

/// A suite that takes too long is ended by others. They want to know what took so long.
fn tell_when_terminated(progress: Progress) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut terminated = {
        let _inside = runtime.enter();
        signal(SignalKind::terminate())?
    };
    std::thread::spawn(move || {
        runtime.block_on(terminated.recv());
        progress.shown().iter().for_each(|line| println!("{line}"));
        println!("test: terminated");
        std::process::exit(1);
    });
    Ok(())
}

/// Bytes that may be written there without the machine's running out of memory; 0 if it is no place
/// in memory.
fn room(place: &Path) -> u64 {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = memory.lines().find_map(|line| {
        let kib = line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?;
        kib.parse::<u64>().ok()
    });
    match rustix::fs::statfs(place) {
        Ok(found) if found.f_type == TMPFS_MAGIC => {
            let free = found.f_bavail.saturating_mul(found.f_bsize.unsigned_abs());
            free.min(available.unwrap_or_default() << 10)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_system_in_memory_has_room_in_memory() {
        assert_eq!(room(Path::new("/proc")), 0);
        assert_eq!(room(Path::new("/there/is/none")), 0);
    }

    #[test]
    fn results_of_all_binaries_are_summed_up() {
        let mut tally = Tally::default();
        for line in [
            "test a::b ... ok",
            "test a::c ... FAILED",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test result: ok. 20 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 1.01s",
        ] {
            tally.read(line);
        }
        assert_eq!(tally, Tally { passed: 21, failed: 1, failures: vec!["a::c".to_owned()] });
    }
}
