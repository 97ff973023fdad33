//! Slow storage under the subscriber: each read of 8 KB takes 0.1 ms, as in the message on
//! prefetching.
//!
//! A small library, compiled here with the machine's C compiler, is preloaded into the subscriber's
//! server for the measured runs of both sides. The kernel has the server's pages in its cache, so a
//! read costs the delay and a copy. Version 18 then reads with `io_method = sync`: in its own
//! processes, as all earlier versions do, so that the process that asks for a page waits for it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testkit::{Major, workspace_dir};

const SOURCE: &str = "slow_reads.c";
const DELAY_US: &str = "100";

/// The compiled library.
pub(crate) struct SlowReads(PathBuf);

impl SlowReads {
    pub(crate) fn build() -> Result<SlowReads> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lab").join(SOURCE);
        let library = workspace_dir().join("target/slow_reads.so");
        let mut command = Command::new("cc");
        command.args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
        let output = command.arg("-ldl").output().context("running cc, the C compiler")?;
        ensure!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
        // The server runs as another user, who may not enter our build directory.
        let shared = std::env::temp_dir().join(format!("pgsluice-slow-reads-{}.so", std::process::id()));
        std::fs::copy(&library, &shared).with_context(|| format!("copying to {}", shared.display()))?;
        Ok(SlowReads(shared))
    }

    /// Whether the process has it.
    pub(crate) fn is_in(&self, pid: u32) -> Result<bool> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).context("reading a server's maps")?;
        Ok(maps.contains(self.0.to_str().context("a path that is not UTF-8")?))
    }

    /// Variables for the server's environment.
    pub(crate) fn environment(&self) -> Result<[(&str, &str); 2]> {
        let path = self.0.to_str().context("a path that is not UTF-8")?;
        Ok([("LD_PRELOAD", path), ("PGSLUICE_READ_DELAY_US", DELAY_US)])
    }
}

impl Drop for SlowReads {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Settings of both servers that go with it.
pub(crate) fn settings(major: Major, shared_buffers: &str) -> Vec<(&'static str, String)> {
    let mut settings = vec![("shared_buffers", shared_buffers.to_owned())];
    if major >= Major::V18 {
        settings.push(("io_method", "sync".to_owned()));
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_that_reads_at_a_position_is_delayed() {
        let slow = SlowReads::build().unwrap();
        let symbols = std::fs::read(&slow.0).unwrap();
        for name in ["pread", "pread64", "preadv", "preadv64"] {
            let wanted = [b"\0", name.as_bytes(), b"\0"].concat();
            assert!(symbols.windows(wanted.len()).any(|bytes| bytes == wanted), "{name}");
        }
    }
}
