//! A server with a clock of its own, which a test sets ahead of this machine's.
//!
//! A stock server asks libc for the time. A small library that is loaded before libc answers
//! instead: with the time of this machine and what a file adds to it. `cc`, which links every Rust
//! program, makes the library.
//!
//! The clock only goes forward, as pgsluice promises nothing for a clock that is set back. Of two
//! such servers, the one that is to be behind stays while the other is set ahead.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

const LIBRARY: &str = include_str!("clock.c");

/// The clock of one server.
#[derive(Debug)]
pub(crate) struct Clock {
    library: PathBuf,
    path: PathBuf,
    file: File,
}

impl Clock {
    /// A clock that agrees with this machine's. Its files are in `dir`, where the server can read.
    pub(crate) fn make(dir: &Path) -> Result<Clock> {
        let [source, library, path] = ["clock.c", "clock.so", "clock"].map(|name| dir.join(name));
        std::fs::write(&source, LIBRARY)?;
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source);
        let made = cc.output().context("running cc")?;
        ensure!(made.status.success(), "cc: {}", String::from_utf8_lossy(&made.stderr).trim());
        std::fs::write(&path, 0_i64.to_ne_bytes())?;
        let file = File::options().write(true).open(&path)?;
        Ok(Clock { library, path, file })
    }

    /// What a server with this clock is started with.
    pub(crate) fn environment(&self) -> [(&'static str, &Path); 2] {
        [("LD_PRELOAD", &self.library), ("TESTKIT_CLOCK", &self.path)]
    }

    /// Sets it ahead of this machine's clock by this much in all.
    pub(crate) fn set_ahead(&self, ahead: Duration) -> Result<()> {
        let ahead_us = i64::try_from(ahead.as_micros())?;
        self.file.write_all_at(&ahead_us.to_ne_bytes(), 0).context("setting a server's clock")
    }
}
