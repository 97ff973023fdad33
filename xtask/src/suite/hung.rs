//! What a test binary that hangs waits for, read from `/proc` before it is ended.
//!
//! The output of its tests is lost with it. The processes below it still tell something:
//!
//! - the threads that it has, by the names of their tests;
//! - how each `pgsluice` was called, and what it last wrote;
//! - what each backend does, by its title, and whether a signal has stopped it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes of a log that are shown, from its end.
const LOG_BYTES: u64 = 2_000;

/// Lines about the process `pid` and all below it.
pub(super) fn described(pid: u32) -> Vec<String> {
    let mut lines = Vec::new();
    for thread in entries(&process(pid).join("task")) {
        let name = read(&thread.join("comm"));
        lines.push(format!("test: thread {} waits in {}", name.trim(), read(&thread.join("wchan"))));
    }
    let children = children();
    let mut below: Vec<(u32, usize)> = vec![(pid, 0)];
    let mut logs: Vec<PathBuf> = Vec::new();
    while let Some((pid, depth)) = below.pop() {
        let (title, state) = (title(pid), state(pid));
        lines.push(format!("test: {:depth$}{pid} {state} {title}", ""));
        let log = fs::read_link(process(pid).join("fd/2")).ok().filter(|log| log.is_file());
        if let Some(log) = log.filter(|log| !logs.contains(log)) {
            logs.push(log);
        }
        below.extend(children.get(&pid).into_iter().flatten().map(|child| (*child, depth + 2)));
    }
    for log in logs {
        lines.push(format!("test: the end of {}:", log.display()));
        lines.extend(end_of(&log).lines().map(|line| format!("test: | {line}")));
    }
    lines
}

fn process(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// Text of a file of `/proc`; empty when the process is gone.
fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Arguments, or the title that a server gives its process.
fn title(pid: u32) -> String {
    let title = read(&process(pid).join("cmdline")).replace('\0', " ");
    title.trim().chars().take(300).collect()
}

/// The fields of `/proc/PID/stat` behind the name, which may have spaces.
fn stat(pid: u32) -> Vec<String> {
    let stat = read(&process(pid).join("stat"));
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    fields.split_whitespace().map(str::to_owned).collect()
}

/// A letter: `T` is stopped by a signal.
fn state(pid: u32) -> String {
    stat(pid).into_iter().next().unwrap_or_default()
}

/// The children of each process.
fn children() -> BTreeMap<u32, Vec<u32>> {
    let mut children = BTreeMap::<u32, Vec<u32>>::new();
    for entry in entries(Path::new("/proc")) {
        let pid = entry.file_name().and_then(|name| name.to_str()?.parse().ok());
        let Some(pid) = pid else { continue };
        if let Some(parent) = stat(pid).get(1).and_then(|parent| parent.parse().ok()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    children
}

fn end_of(log: &Path) -> String {
    let mut end = Vec::new();
    if let Ok(mut file) = fs::File::open(log) {
        let size = file.metadata().map_or(0, |metadata| metadata.len());
        let sought = file.seek(SeekFrom::Start(size.saturating_sub(LOG_BYTES)));
        if sought.is_ok() && file.read_to_end(&mut end).is_err() {
            end.clear();
        }
    }
    String::from_utf8_lossy(&end).into_owned()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    #[test]
    fn what_a_process_and_its_children_do_and_wrote_is_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let script = "echo what it wrote >&2; sleep 300 & echo ready; wait";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped()).stderr(file.reopen().unwrap());
        let mut child = command.spawn().unwrap();
        let mut ready = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        let sleeps = children()[&child.id()].clone();
        let send = |signal| {
            let pid = i32::try_from(sleeps[0]).ok().and_then(Pid::from_raw).unwrap();
            kill_process(pid, signal).unwrap();
        };
        let wait_for = |what: &str, holds: &dyn Fn() -> bool| {
            testkit::wait_for(what, Duration::from_secs(10), || Ok(holds())).unwrap();
        };
        wait_for("the program", &|| title(sleeps[0]) == "sleep 300");
        send(Signal::STOP);
        wait_for("the signal", &|| state(sleeps[0]) == "T");
        let told = described(child.id());
        send(Signal::KILL);
        child.wait().unwrap();
        let told_of = |what: &str| told.iter().any(|line| line.contains(what));
        for what in ["thread sh waits in", "T sleep 300", "| what it wrote"] {
            assert!(told_of(what), "{what}:\n{}", told.join("\n"));
        }
    }
}
