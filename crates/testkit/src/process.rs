//! Processes: started so that none outlives us, and read through `/proc`.
//!
//! The kernel's parent-death signal follows the *thread* that started a process, and a test's
//! thread ends long before its process does. So one thread that lives as long as the process starts
//! every server.

use std::collections::BTreeMap;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal};

use crate::patience::Patience;

type Request = (Command, Sender<io::Result<Child>>);

/// Starts `command` from the long-lived thread.
pub(crate) fn spawn(command: Command) -> Result<Child> {
    static SPAWNER: OnceLock<Mutex<Sender<Request>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (requests, todo) = channel::<Request>();
        std::thread::spawn(move || {
            for (mut command, answer) in todo {
                // The caller waits for the answer, so it can only be gone with its whole process.
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(requests)
    });
    let what = format!("starting {command:?}");
    let (answer, child) = channel();
    let requests = spawner.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
    requests.send((command, answer)).expect("the spawner thread lives as long as the process");
    child.recv().expect("the spawner answers every request").context(what)
}

/// Sends `signal`. A process that is gone already is not an error.
pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Waits until `child` ends, at most `bound`, which lasts longer where the machine is busy; `None`
/// when it still runs.
pub(crate) fn wait(child: &mut Child, bound: Duration) -> Result<Option<ExitStatus>> {
    let mut patience = Patience::new(bound);
    loop {
        if let Some(status) = child.try_wait().context("waiting for a process")? {
            return Ok(Some(status));
        }
        if patience.is_over() {
            return Ok(None);
        }
        // Between two looks at a condition that has a bound.
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The fields of `/proc/<pid>/stat` that we need.
#[derive(Debug, PartialEq)]
pub(crate) struct Stat {
    state: char,
    parent: u32,
    /// CPU time of the process itself, in clock ticks.
    ticks: u64,
    /// CPU time of its children that have ended and been waited for, in clock ticks.
    children_ticks: u64,
}

impl Stat {
    /// `None` when there is no such process.
    pub(crate) fn of(pid: u32) -> Option<Stat> {
        Stat::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Stat> {
        // The name in parentheses may hold spaces and parentheses itself: fields count from the
        // last one.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |field: usize| fields.get(field)?.parse::<u64>().ok();
        Some(Stat {
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            ticks: ticks(11)? + ticks(12)?,
            children_ticks: ticks(13)? + ticks(14)?,
        })
    }

    pub(crate) fn is_running(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }
}

/// The processes whose parent is `parent`.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| Stat::of(pid).is_some_and(|stat| stat.parent == parent))
        .collect()
}

/// CPU seconds, user and system, of `pid` itself; 0 when it is gone.
pub fn cpu_seconds(pid: u32) -> f64 {
    Stat::of(pid).map_or(0.0, |stat| seconds(stat.ticks))
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// The processes of a server, each with its kind; see [`crate::Cluster::cpu_seconds`].
#[must_use]
pub fn server_processes(postmaster: u32) -> Vec<(u32, String)> {
    let kind = |pid: u32| {
        let title = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        kind_of_backend(&String::from_utf8_lossy(&title).replace('\0', " ")).to_owned()
    };
    children(postmaster).into_iter().map(|pid| (pid, kind(pid))).collect()
}

/// CPU seconds of a server by kind of process; see [`crate::Cluster::cpu_seconds`].
pub(crate) fn server_cpu_seconds(postmaster: u32) -> Vec<(String, f64)> {
    let mut by_kind = BTreeMap::<String, u64>::new();
    for (pid, kind) in server_processes(postmaster) {
        if let Some(stat) = Stat::of(pid) {
            *by_kind.entry(kind).or_default() += stat.ticks;
        }
    }
    // Read last: a child that ended in between is then counted twice for a moment rather than lost.
    if let Some(stat) = Stat::of(postmaster) {
        by_kind.insert("postmaster".to_owned(), stat.ticks);
        *by_kind.entry(EXITED.to_owned()).or_default() += stat.children_ticks;
    }
    by_kind.into_iter().map(|(kind, ticks)| (kind, seconds(ticks))).collect()
}

/// The kinds a process title can begin with, after `postgres: `. Longer ones before those they
/// begin with.
const KINDS: [&str; 18] = [
    "walsender",
    "walreceiver",
    "walwriter",
    "walsummarizer",
    "checkpointer",
    "background writer",
    "autovacuum launcher",
    "autovacuum worker",
    "stats collector",
    "archiver",
    "startup",
    "io worker",
    "parallel worker",
    "logical replication launcher",
    "logical replication parallel apply worker",
    "logical replication apply worker",
    "logical replication tablesync worker",
    "logical replication worker",
];

/// The kind of all processes that have ended.
const EXITED: &str = "exited";

/// The kind of server process, from its title; majors 14 to 16 call every apply worker
/// `logical replication worker`. A process that is about to end has no memory any more, and so no
/// title.
fn kind_of_backend(title: &str) -> &str {
    if title.is_empty() {
        return EXITED;
    }
    let Some(rest) = title.strip_prefix("postgres: ") else { return "starting" };
    KINDS.into_iter().find(|kind| rest.starts_with(kind)).unwrap_or("client backend")
}

/// Largest resident memory of process `pid` so far, in bytes; 0 after its end.
pub fn resident_bytes_max(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status_bytes(&status, "VmHWM:").unwrap_or(0)
}

/// Resident memory of process `pid` now, in bytes, with the files that it maps; 0 after its end.
pub fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status_bytes(&status, "VmRSS:").unwrap_or(0)
}

/// Resident memory of process `pid` now, in bytes, without what it shares with others of its
/// server: of a server process, all but `shared_buffers` and the like; 0 after its end.
pub fn resident_bytes_unshared(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let [all, shared] = ["VmRSS:", "RssShmem:"].map(|name| status_bytes(&status, name).unwrap_or(0));
    all.saturating_sub(shared)
}

/// A line of `/proc/PID/status` that is a size.
fn status_bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_cannot_shift_the_fields_of_its_stat() {
        let text = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 1 0 55 1 2";
        let expected = Stat { state: 'S', parent: 7, ticks: 120, children_ticks: 4 };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse("42 (a) S"), None);
    }

    #[test]
    fn a_size_is_read_from_its_line_of_the_status() {
        let text = "VmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nRssShmem:\t       4 kB\nThreads:\t1\n";
        assert_eq!(status_bytes(text, "VmRSS:"), Some(1 << 20));
        assert_eq!(status_bytes(text, "Threads:"), None);
        assert_eq!(status_bytes(text, "RssAnon:"), None);
    }

    #[test]
    fn a_process_is_named_by_its_title() {
        let kind = kind_of_backend;
        assert_eq!(kind("postgres: walsender postgres db 127.0.0.1(4) START_REPLICATION"), "walsender");
        assert_eq!(kind("postgres: postgres db 127.0.0.1(4) idle"), "client backend");
        assert_eq!(
            kind("postgres: logical replication apply worker for subscription 16"),
            "logical replication apply worker"
        );
        assert_eq!(kind("/x/bin/postgres -D data"), "starting");
        assert_eq!(kind(""), "exited");
    }
}
