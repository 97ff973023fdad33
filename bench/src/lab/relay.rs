//! `pgsluice relay` beside a publisher, as an operator would start it.
//!
//! It listens at a port that the kernel chooses, lets everybody in from this machine, and logs how
//! its forms are decoded.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use testkit::{Cluster, Sluice, pgsluice_path, wait_for};

/// The physical slot of a relay with default settings.
pub(crate) const SLOT: &str = "pgsluice_relay";
const HBA: &str = "host all,replication all 127.0.0.1/32 trust\n";
/// What the log says when it serves, and before the address.
const SERVES: [&str; 2] = ["serving subscribers of ", " at "];
/// What the log says when a form begins to be decoded alone, and when it has joined the others.
const ALONE: &str = "is decoded alone from";
const JOINED: &str = "has joined the pass";
/// What the log says then around the bytes that were read for all such forms.
const ALONE_BYTES: [&str; 2] = ["forms have read ", " bytes alone"];
/// Longest time for a relay to serve.
const START_BOUND: Duration = Duration::from_secs(120);
const STOP_BOUND: Duration = Duration::from_secs(60);

/// A relay's directory, which it finds again after a restart.
pub(crate) struct Place(Arc<TempDir>);

/// A running relay; killed when dropped.
pub(crate) struct Relay {
    sluice: Sluice,
    address: String,
    /// Removed when nobody needs it any more.
    _place: Arc<TempDir>,
}

impl Place {
    pub(crate) fn new() -> Result<Place> {
        let dir = tempfile::Builder::new().prefix("pgsluice-relay-").tempdir()?;
        std::fs::write(dir.path().join("hba.conf"), HBA)?;
        Ok(Place(Arc::new(dir)))
    }

    /// Starts a relay of `publisher` with more `words`, and waits until it serves.
    pub(crate) fn start(&self, publisher: &Cluster, words: &[&str]) -> Result<Relay> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--"]).arg(pgsluice_path()?);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
            command.env_remove(name);
        }
        command.args(["relay", "--listen", "127.0.0.1:0", "--log-level", "info,relay=debug"]);
        command.arg("--source").arg(publisher.url("postgres"));
        command.arg("--data-dir").arg(self.0.path().join("data"));
        command.arg("--hba-file").arg(self.0.path().join("hba.conf")).args(words);
        let mut sluice = Sluice::start(command)?;
        let mut address = None;
        wait_for("the relay to serve", START_BOUND, || {
            ensure!(sluice.is_running(), "the relay ended:\n{}", sluice.stderr());
            address = address_in(&sluice.stderr());
            Ok(address.is_some())
        })?;
        let address = address.context("the relay names no address")?;
        Ok(Relay { sluice, address, _place: Arc::clone(&self.0) })
    }
}

impl Relay {
    /// How to connect to `dbname` through it, as the superuser `postgres`.
    pub(crate) fn url(&self, dbname: &str) -> String {
        format!("postgres://postgres@{}/{dbname}", self.address)
    }

    /// CPU seconds so far, of all its threads. The kernel gives these in hundredths.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.sluice.cpu_seconds()
    }

    pub(crate) fn resident_bytes_max(&self) -> u64 {
        self.sluice.resident_bytes_max()
    }

    /// How often a form was decoded alone since the start, until it joined the pass of all.
    pub(crate) fn passes(&self) -> usize {
        self.sluice.stderr().matches(ALONE).count()
    }

    /// The lines of the log about that.
    pub(crate) fn passes_logged(&self) -> String {
        let log = self.sluice.stderr();
        log.lines().filter(|line| line.contains(ALONE)).collect::<Vec<_>>().join("\n")
    }

    /// Waits until every form has joined the pass.
    pub(crate) fn wait_for_pass(&self) -> Result<()> {
        wait_for("all forms to join the pass", START_BOUND, || {
            Ok(self.sluice.stderr().matches(JOINED).count() == self.passes())
        })
    }

    /// Bytes of WAL that were read for forms alone, by the last line that names them.
    pub(crate) fn alone_bytes(&self) -> u64 {
        alone_bytes_in(&self.sluice.stderr()).unwrap_or(0)
    }

    pub(crate) fn log(&self) -> String {
        self.sluice.stderr()
    }

    /// Ends it in order.
    pub(crate) fn stop(mut self) -> Result<()> {
        let status = self.sluice.terminate(STOP_BOUND)?;
        ensure!(status.success(), "the relay ended with {status}:\n{}", self.sluice.stderr());
        Ok(())
    }
}

/// The address at which a relay serves.
fn address_in(log: &str) -> Option<String> {
    let [serves, at] = SERVES;
    let line = log.lines().find(|line| line.contains(serves))?;
    Some(line.rsplit_once(at)?.1.trim().to_owned())
}

fn alone_bytes_in(log: &str) -> Option<u64> {
    let [before, behind] = ALONE_BYTES;
    let rest = log.rsplit_once(before)?.1;
    rest.split_once(behind)?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_names_the_address_and_the_bytes() {
        let log = "INFO serving subscribers of 127.0.0.1:1 at postgres at 127.0.0.1:15432\n\
                   DEBUG form 0 is decoded alone from 0/15A0000, for what ends behind 0/15A1238\n\
                   DEBUG form 0 has joined the pass; forms have read 17 bytes alone\n\
                   DEBUG form 1 has joined the pass; forms have read 99 bytes alone\n";
        assert_eq!(address_in(log).as_deref(), Some("127.0.0.1:15432"));
        assert_eq!(address_in("INFO stopped\n"), None);
        assert_eq!(alone_bytes_in(log), Some(99));
        assert_eq!(log.matches(ALONE).count(), 1);
    }
}
