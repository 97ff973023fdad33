//! What the figures were measured on.

use std::process::Command;

use testkit::pgsluice_path;

/// Processor, cores and memory, in words.
pub(crate) fn machine() -> String {
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

/// The program's own word, and the commit it was built from if git knows.
pub(crate) fn pgsluice_version() -> String {
    let version = pgsluice_path().ok().and_then(|path| output(Command::new(path).arg("--version")));
    let commit = git(&["describe", "--always"]).map(|commit| {
        // What was measured before is written while the next is: it is no part of the program.
        let changes = git(&["status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs"]);
        format!(" ({commit}{})", if changes.is_none_or(|changes| changes.is_empty()) { "" } else { "-dirty" })
    });
    format!("{}{}", version.unwrap_or_else(|| "pgsluice".to_owned()), commit.unwrap_or_default())
}

fn git(words: &[&str]) -> Option<String> {
    output(Command::new("git").args(words).current_dir(testkit::workspace_dir()))
}

/// Today, in UTC.
pub(crate) fn date() -> String {
    output(Command::new("date").args(["--utc", "+%Y-%m-%d"])).unwrap_or_default()
}

fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
