//! A control group that caps the memory of one run, the kernel's page cache for its files included.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Where the two versions of control groups are mounted, and the name of the limit's file.
const PLACES: [(&str, &str); 2] =
    [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];

/// Removed when dropped.
pub(crate) struct Cage(PathBuf);

impl Cage {
    /// A new group with this limit; `None` where we may not make one.
    pub(crate) fn new(memory_bytes: u64) -> Option<Cage> {
        for (root, limit) in PLACES {
            let dir = Path::new(root).join(format!("pgsluice-bench-{}", std::process::id()));
            if !Path::new(root).is_dir() || fs::create_dir(&dir).is_err() {
                continue;
            }
            let cage = Cage(dir);
            if fs::write(cage.0.join(limit), memory_bytes.to_string()).is_ok() {
                return Some(cage);
            }
        }
        None
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

/// Moves this process into the group at `dir`.
pub(crate) fn enter(dir: &Path) -> Result<()> {
    let path = dir.join("cgroup.procs");
    fs::write(&path, std::process::id().to_string()).with_context(|| format!("writing {}", path.display()))
}

impl Drop for Cage {
    fn drop(&mut self) {
        // The kernel takes a moment to see that its last process has ended.
        let started = Instant::now();
        while fs::remove_dir(&self.0).is_err() && started.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
