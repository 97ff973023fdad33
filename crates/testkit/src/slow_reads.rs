//! Slow storage under a server: each read takes longer by a chosen time.
//!
//! A small library, compiled here with the machine's C compiler, is loaded before the server's libc
//! ([`Cluster::set_environment`](crate::Cluster::set_environment)). The kernel has the server's
//! pages in its cache, so a read costs the delay and a copy. Version 18 reads in other processes
//! unless it has `io_method = sync`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

const LIBRARY: &str = include_str!("slow_reads.c");

/// The compiled library, which goes when this is dropped.
#[derive(Debug)]
pub struct SlowReads {
    _dir: tempfile::TempDir,
    library: PathBuf,
    delay_us: String,
}

impl SlowReads {
    /// Makes the library. A server that is started with it takes this much longer for each read.
    ///
    /// # Errors
    /// There is no C compiler, or no room.
    pub fn build(delay: Duration) -> Result<SlowReads> {
        let dir = tempfile::Builder::new().prefix("pgsluice-slow-reads-").tempdir()?;
        // The server runs as another user.
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let [source, library] = ["slow_reads.c", "slow_reads.so"].map(|name| dir.path().join(name));
        std::fs::write(&source, LIBRARY)?;
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl");
        let output = cc.output().context("running cc, the C compiler")?;
        ensure!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
        Ok(SlowReads { _dir: dir, library, delay_us: delay.as_micros().to_string() })
    }

    /// Whether the process has it.
    ///
    /// # Errors
    /// There is no such process.
    pub fn is_in(&self, pid: u32) -> Result<bool> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).context("reading a server's maps")?;
        Ok(maps.contains(self.library.to_str().context("a path that is not UTF-8")?))
    }

    /// Variables for the server's environment.
    ///
    /// # Errors
    /// The path of the library is not UTF-8.
    pub fn environment(&self) -> Result<[(&str, &str); 2]> {
        let path = self.library.to_str().context("a path that is not UTF-8")?;
        Ok([("LD_PRELOAD", path), ("PGSLUICE_READ_DELAY_US", &self.delay_us)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_that_reads_at_a_position_is_delayed() {
        let slow = SlowReads::build(Duration::from_micros(100)).unwrap();
        let symbols = std::fs::read(&slow.library).unwrap();
        for name in ["pread", "pread64", "preadv", "preadv64"] {
            let wanted = [b"\0", name.as_bytes(), b"\0"].concat();
            assert!(symbols.windows(wanted.len()).any(|bytes| bytes == wanted), "{name}");
        }
    }
}
