//! A publisher and a subscriber of one major, and images of the subscriber to return to.
//!
//! An image is a copy of the stopped subscriber's data directory. It lies beside that directory, so
//! it is removed with the cluster. Slots on the publisher return in the same way: no run streams
//! from a *parked* slot, and each run gets a copy of it.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::{Builder, Cluster, Major, Pair, Sluice, StopMode, same_rows, wait_for};

use crate::Arm;
use crate::lab::slow;

pub(crate) const DB: &str = "postgres";
/// Publication, subscription; and so the name in our slot's name.
pub(crate) const NAME: &str = "bench";
/// For steps that are not measured.
pub(crate) const STEP_BOUND: Duration = Duration::from_secs(900);
/// How a parked slot's name ends.
const PARKED: &str = "_parked";

/// Settings of both servers of a pair, besides what replication needs. Everything that is measured
/// fits in `shared_buffers`. Neither checkpoints nor autovacuum start in the middle of one run and
/// not of the other.
pub(crate) fn settings(connections: u32) -> Vec<(&'static str, String)> {
    [
        ("shared_buffers", "1GB"),
        ("fsync", "on"),
        ("synchronous_commit", "off"),
        ("wal_level", "logical"),
        ("max_wal_size", "16GB"),
        ("checkpoint_timeout", "1h"),
        ("autovacuum", "off"),
        ("max_connections", "100"),
        ("max_worker_processes", "32"),
        ("max_logical_replication_workers", "24"),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .into_iter()
    .chain([("max_sync_workers_per_subscription", connections.to_string())])
    .collect()
}

/// The slot that `arm` streams from.
pub(crate) fn slot(arm: Arm) -> String {
    match arm {
        Arm::Native => NAME.to_owned(),
        _ => format!("pgsluice_{NAME}"),
    }
}

/// The clusters.
pub(crate) struct Rig {
    pub(crate) pair: Pair,
    connections: u32,
    /// Extra arguments for pgsluice.
    pub(crate) words: Vec<String>,
    /// The other build of pgsluice.
    pub(crate) before: Option<std::path::PathBuf>,
    /// Print who worked and who waited in each run.
    pub(crate) timeline: bool,
    slow: Option<testkit::SlowReads>,
}

impl Rig {
    pub(crate) fn start(major: Major, connections: u32) -> Result<Rig> {
        Rig::with(major, connections, &[])
    }

    /// The same with more settings of both servers.
    pub(crate) fn with(major: Major, connections: u32, more: &[(&'static str, String)]) -> Result<Rig> {
        let set = |builder: Builder, (name, value): (&str, String)| builder.setting(name, &value);
        let all = || settings(connections).into_iter().chain(more.iter().cloned());
        let builder = || all().fold(Cluster::builder(major), set);
        let pair = Pair::with(builder(), builder())?;
        Ok(Rig { pair, connections, words: Vec::new(), before: None, timeline: false, slow: None })
    }

    /// Makes the subscriber read slowly from its next start on.
    pub(crate) fn read_slowly(&mut self) -> Result<()> {
        let slow = slow::build()?;
        self.pair.target.set_environment(&slow.environment()?);
        self.slow = Some(slow);
        Ok(())
    }

    pub(crate) fn major(&self) -> Major {
        self.pair.source.major()
    }

    /// The server's version, as `15.8`.
    pub(crate) fn version(&self) -> Result<String> {
        Ok(first(self.pair.source.sql(DB, "SELECT split_part(version(), ' ', 2)")?))
    }

    /// Whose first copy `arm` goes on from. Another build and this one share the other's: what
    /// differs between two copies would otherwise count as a difference of the builds.
    pub(crate) fn copied_by(&self, arm: Arm) -> Arm {
        match arm {
            Arm::Ours if self.before.is_some() => Arm::Before,
            Arm::Wal if self.before.is_some() => Arm::BeforeWal,
            _ => arm,
        }
    }

    /// Where `arm`'s slot is kept.
    fn parked(&self, arm: Arm) -> String {
        format!("{}{PARKED}", self.copied_by(arm).name())
    }

    fn image(&self, name: &str) -> PathBuf {
        self.pair.target.data_dir().with_file_name(format!("image-{name}"))
    }

    /// Where the image `name` has what pgsluice kept.
    fn image_of_state(&self, name: &str) -> PathBuf {
        self.image(&format!("{name}-state"))
    }

    /// Stops the subscriber and keeps its data directory and pgsluice's as `name`; it stays down.
    pub(crate) fn save(&mut self, name: &str) -> Result<()> {
        self.pair.target.stop(StopMode::Fast)?;
        copy_tree(self.pair.state_dir(), &self.image_of_state(name))?;
        copy_tree(&self.pair.target.data_dir(), &self.image(name))
    }

    /// Starts the subscriber from the image `name`.
    pub(crate) fn restore(&mut self, name: &str) -> Result<()> {
        self.restore_with(name, "")
    }

    /// The same, with other `settings`: lines of a configuration file.
    pub(crate) fn restore_with(&mut self, name: &str, settings: &str) -> Result<()> {
        self.pair.target.stop(StopMode::Fast)?;
        let data = self.pair.target.data_dir();
        std::fs::remove_dir_all(&data).context("removing the subscriber's data directory")?;
        copy_tree(&self.image(name), &data)?;
        // This file is read last.
        let mut file = OpenOptions::new().append(true).open(data.join("postgresql.auto.conf"))?;
        file.write_all(settings.as_bytes())?;
        let state = self.pair.state_dir();
        std::fs::remove_dir_all(state).context("removing pgsluice's directory")?;
        copy_tree(&self.image_of_state(name), state)?;
        self.pair.target.start_again()?;
        if let (Some(slow), Some(pid)) = (&self.slow, self.pair.target.pid()) {
            ensure!(slow.is_in(pid)?, "the subscriber was started without the library that slows its reads");
        }
        Ok(())
    }

    /// Waits until nothing of the preparation is still on its way to the disk.
    pub(crate) fn settle(&self) -> Result<()> {
        ensure!(Command::new("sync").status().context("running sync")?.success(), "sync failed");
        Ok(())
    }

    /// Drops every slot but the parked ones, as soon as no session uses them. The subscriber must
    /// be down, or its subscription disabled.
    pub(crate) fn drop_slots(&self) -> Result<()> {
        let others = format!("FROM pg_replication_slots WHERE slot_name NOT LIKE '%{PARKED}'");
        wait_for("the slots to be released", STEP_BOUND, || {
            let sql = format!("SELECT NOT coalesce(bool_or(active), false) {others}");
            Ok(first(self.pair.source.sql(DB, &sql)?) == "t")
        })?;
        self.pair.source.sql(DB, &format!("SELECT pg_drop_replication_slot(slot_name) {others}"))?;
        Ok(())
    }

    /// Keeps the position of `arm`'s slot; drops the slot itself.
    pub(crate) fn park(&self, arm: Arm) -> Result<()> {
        self.copy_slot(arm, &slot(arm), &self.parked(arm))?;
        self.drop_slots()
    }

    /// Creates `arm`'s slot again at its parked position.
    pub(crate) fn unpark(&self, arm: Arm) -> Result<()> {
        self.drop_slots()?;
        self.copy_slot(arm, &self.parked(arm), &slot(arm))
    }

    fn copy_slot(&self, arm: Arm, from: &str, to: &str) -> Result<()> {
        let kind = if arm.reads_wal() { "physical" } else { "logical" };
        self.pair.source.sql(DB, &format!("SELECT pg_copy_{kind}_replication_slot('{from}', '{to}')"))?;
        Ok(())
    }

    /// Native replication with its best documented settings.
    pub(crate) fn create_subscription(&self) -> String {
        self.create_subscription_named(&slot(Arm::Native), NAME)
    }

    /// The same under another name, which its slot has too, for another publication.
    pub(crate) fn create_subscription_named(&self, name: &str, publication: &str) -> String {
        let streaming = if self.major() >= Major::V16 { "parallel" } else { "on" };
        format!(
            "CREATE SUBSCRIPTION {name} CONNECTION '{}' PUBLICATION {publication} \
             WITH (slot_name = '{name}', binary = true, streaming = {streaming}, synchronous_commit = off)",
            self.pair.source.url(DB)
        )
    }

    /// Stops native's subscription; its worker is gone when this returns.
    pub(crate) fn disable(&self) -> Result<()> {
        self.pair.target.sql(DB, &format!("ALTER SUBSCRIPTION {NAME} DISABLE"))?;
        self.workers_end()
    }

    /// Waits until no subscription of native has a worker.
    pub(crate) fn workers_end(&self) -> Result<()> {
        wait_for("native's worker to end", STEP_BOUND, || {
            let running = "SELECT count(*) FROM pg_stat_subscription WHERE pid IS NOT NULL";
            Ok(first(self.pair.target.sql(DB, running)?) == "0")
        })
    }

    /// Starts ours; `arm` says what it reads from.
    pub(crate) fn run_sluice(&self, arm: Arm) -> Result<Sluice> {
        let connections = self.connections.to_string();
        let arguments = [
            "--source-mode",
            if arm.reads_wal() { "wal" } else { "logical" },
            "--publication",
            NAME,
            "--subscription",
            NAME,
            "--max-sync-workers-per-subscription",
            &connections,
        ];
        let more = self.words.iter().map(String::as_str);
        let arguments: Vec<&str> = std::iter::once("run").chain(arguments).chain(more).collect();
        let command = match self.before.as_deref().filter(|_| arm.is_other_build()) {
            Some(program) => Sluice::command_of(program, &self.pair, &arguments),
            None => Sluice::command(&self.pair, &arguments)?,
        };
        Sluice::start(command)
    }

    /// Whether both ends hold the same rows; says what differs.
    pub(crate) fn is_equal(&self, tables: &[String]) -> bool {
        let differs = |table: &String| {
            same_rows(&self.pair.source, &self.pair.target, DB, table)
                .inspect_err(|error| eprintln!("NOT EQUAL: {error:#}"))
                .is_err()
        };
        !tables.iter().any(differs)
    }
}

/// The first value of the first row; empty for NULL and for no row.
pub(crate) fn first(rows: testkit::Rows) -> String {
    rows.into_iter().next().and_then(|row| row.into_iter().next()).flatten().unwrap_or_default()
}

fn copy_tree(from: &std::path::Path, to: &std::path::Path) -> Result<()> {
    let status = Command::new("cp").args(["-a", "--reflink=auto", "-T"]).arg(from).arg(to).status();
    ensure!(status.context("running cp")?.success(), "cp could not copy {}", from.display());
    Ok(())
}
