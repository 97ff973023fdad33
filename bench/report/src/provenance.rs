//! When, where and from which commit something was measured.

use std::path::Path;
use std::process::Command;

/// Processor, cores and memory, in words.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let memory = field("/proc/meminfo", "MemTotal").and_then(|text| {
        let kilobytes: f64 = text.split_whitespace().next()?.parse().ok()?;
        Some(format!("{:.0} GB of memory", kilobytes / 1e6))
    });
    let processor = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".to_owned());
    format!("{cores} cores of {processor}, {}", memory.unwrap_or_else(|| "unknown memory".to_owned()))
}

/// The value of the first line `name : value`.
fn field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let pair = |line: &str| {
        line.split_once(':').map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
    };
    text.lines().filter_map(pair).find(|(key, _)| key == name).map(|(_, value)| value)
}

/// The commit that the work tree at `root` stands at, with `-dirty` if files outside `docs` differ
/// from it; `None` if git does not know.
pub fn commit(root: &Path) -> Option<String> {
    let git = |words: &[&str]| output(Command::new("git").args(words).current_dir(root));
    let commit = git(&["describe", "--always"])?;
    // A benchmark writes its record below `docs` while the next one runs: that is no part of the
    // program.
    let changes = git(&["status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs"]);
    let dirty = if changes.is_some_and(|changes| !changes.is_empty()) { "-dirty" } else { "" };
    Some(format!("{commit}{dirty}"))
}

/// Today, in UTC.
pub fn date() -> String {
    output(Command::new("date").args(["--utc", "+%Y-%m-%d"])).unwrap_or_default()
}

/// What the command printed; `None` if it failed.
pub fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
