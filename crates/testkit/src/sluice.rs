//! The program under test as a process, as a user would run it, found where cargo built it.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::pair::Pair;
use crate::process;

/// How long a command other than `run` may take.
const COMMAND_BOUND: Duration = Duration::from_secs(60);

/// How a pgsluice reads changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceMode {
    /// From a logical slot.
    Logical,
    /// WAL, through a physical slot.
    Wal,
    /// WAL, from an [`Archive`](crate::Archive) of the pair's source that grows.
    Archive,
}

/// The source mode of a pgsluice without an explicit one: `PGSLUICE_TEST_SOURCE_MODE`, which is
/// `logical`, `wal` or `archive`, otherwise the program's own choice.
///
/// # Panics
///
/// When the variable is something else.
pub fn source_mode() -> Option<SourceMode> {
    static MODE: LazyLock<Option<SourceMode>> = LazyLock::new(|| {
        let mode = std::env::var("PGSLUICE_TEST_SOURCE_MODE").ok().filter(|mode| !mode.is_empty())?;
        // Not captured: it belongs to the results.
        let _ = writeln!(io::stderr(), "pgsluice with source_mode = {mode}");
        Some(match mode.as_str() {
            "logical" => SourceMode::Logical,
            "wal" => SourceMode::Wal,
            "archive" => SourceMode::Archive,
            other => panic!("PGSLUICE_TEST_SOURCE_MODE: {other:?}"),
        })
    });
    *MODE
}

/// The apply workers of a pgsluice without an explicit number: `PGSLUICE_TEST_WORKERS`, otherwise
/// the program's own choice.
///
/// # Panics
///
/// When the variable is not a number.
pub fn apply_workers() -> Option<usize> {
    static WORKERS: LazyLock<Option<usize>> = LazyLock::new(|| {
        let workers = std::env::var("PGSLUICE_TEST_WORKERS").ok().filter(|workers| !workers.is_empty())?;
        let workers = workers.parse().unwrap_or_else(|_| panic!("PGSLUICE_TEST_WORKERS: {workers:?}"));
        // Not captured: it belongs to the results.
        let _ = writeln!(io::stderr(), "pgsluice with {workers} apply workers");
        Some(workers)
    });
    *WORKERS
}

/// The built program: `PGSLUICE_BIN`, otherwise `pgsluice` in the target directory of this test.
///
/// # Errors
///
/// When there is none; the message says what to run.
pub fn pgsluice_path() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("PGSLUICE_BIN").filter(|path| !path.is_empty()) {
        return Ok(PathBuf::from(path));
    }
    let exe = std::env::current_exe()?;
    let mut dir = exe.parent().context("an executable lives in a directory")?;
    if dir.ends_with("deps") || dir.ends_with("examples") {
        dir = dir.parent().context("target/<profile>/deps has a parent")?;
    }
    let path = dir.join("pgsluice");
    ensure!(
        path.is_file(),
        "{} is not built: run `cargo build -p pgsluice` first, or set PGSLUICE_BIN",
        path.display()
    );
    Ok(path)
}

/// The result of a finished command.
#[derive(Clone, Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Output {
    /// The standard output of a command that must have succeeded.
    ///
    /// # Panics
    /// When it did not.
    #[track_caller]
    pub fn expect_success(self) -> String {
        assert!(
            self.status.success(),
            "pgsluice ended with {}:\n{}{}",
            self.status,
            self.stdout,
            self.stderr
        );
        self.stdout
    }
}

/// A running `pgsluice`; killed when dropped. After a panic its standard error is printed.
#[derive(Debug)]
pub struct Sluice {
    child: Child,
    files: TempDir,
}

impl Sluice {
    /// Starts `pgsluice run` with `args` on the `postgres` databases of `pair` (`args` may say
    /// otherwise).
    ///
    /// # Errors
    /// When the program is not built or does not start.
    pub fn run(pair: &Pair, args: &[&str]) -> Result<Sluice> {
        let mut all = vec!["run"];
        all.extend_from_slice(args);
        Sluice::start(Sluice::command(pair, &all)?)
    }

    /// Runs another command (`status`, `skip`, `drop` ...) with the environment that
    /// [`Sluice::run`] sets.
    ///
    /// # Errors
    /// When it cannot be started or takes more than a minute.
    pub fn call(pair: &Pair, args: &[&str]) -> Result<Output> {
        Sluice::call_of(&pgsluice_path()?, pair, args)
    }

    /// [`Sluice::call`] of the program at `program`.
    ///
    /// # Errors
    /// As [`Sluice::call`].
    pub fn call_of(program: &Path, pair: &Pair, args: &[&str]) -> Result<Output> {
        let mut running = Sluice::start(Sluice::command_of(program, pair, args))?;
        let status = running.wait(COMMAND_BOUND)?;
        let status =
            status.with_context(|| format!("pgsluice {args:?} takes more than {COMMAND_BOUND:?}"))?;
        Ok(Output { status, stdout: running.stdout(), stderr: running.stderr() })
    }

    /// The command line and environment of [`Sluice::run`] and [`Sluice::call`], for
    /// [`Sluice::start`]. Source, target and state directory are in the environment, where every
    /// command finds them and flags override them.
    ///
    /// # Errors
    ///
    /// When the program is not built.
    pub fn command(pair: &Pair, args: &[&str]) -> Result<Command> {
        Ok(Sluice::command_of(&pgsluice_path()?, pair, args))
    }

    /// [`Sluice::command`] of the program at `program`.
    pub fn command_of(program: &Path, pair: &Pair, args: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.arg("--pdeathsig=KILL").arg("--").arg(program).args(args);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
            command.env_remove(name);
        }
        command.env("PGSLUICE_SOURCE", pair.source.url("postgres"));
        command.env("PGSLUICE_TARGET", pair.target.url("postgres"));
        command.env("PGSLUICE_STATE_DIR", pair.state_dir());
        if let Some(mode) = source_mode() {
            command.env("PGSLUICE_SOURCE_MODE", if mode == SourceMode::Logical { "logical" } else { "wal" });
        }
        if let Some(archive) = pair.archive() {
            command.env("PGSLUICE_WAL_ARCHIVE", archive.path()).env("PGSLUICE_WAL_STREAM", "off");
        }
        if let Some(workers) = apply_workers() {
            command.env("PGSLUICE_MAX_PARALLEL_APPLY_WORKERS_PER_SUBSCRIPTION", workers.to_string());
        }
        command
    }

    /// Starts a command made by [`Sluice::command`].
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(mut command: Command) -> Result<Sluice> {
        let files = tempfile::Builder::new().prefix("pgsluice-output-").tempdir()?;
        command.stdin(Stdio::null());
        command.stdout(File::create(files.path().join("stdout"))?);
        command.stderr(File::create(files.path().join("stderr"))?);
        Ok(Sluice { child: process::spawn(command)?, files })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU seconds it has used; 0 after its end.
    pub fn cpu_seconds(&self) -> f64 {
        process::cpu_seconds(self.pid())
    }

    /// Largest resident memory so far, in bytes; 0 after its end.
    pub fn resident_bytes_max(&self) -> u64 {
        process::resident_bytes_max(self.pid())
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Standard output so far.
    pub fn stdout(&self) -> String {
        self.text("stdout")
    }

    /// Standard error so far.
    pub fn stderr(&self) -> String {
        self.text("stderr")
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.files.path().join(name)).unwrap_or_default()).into_owned()
    }

    /// Waits for its end, at most `bound`; `None` when it still runs.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn wait(&mut self, bound: Duration) -> Result<Option<ExitStatus>> {
        process::wait(&mut self.child, bound)
    }

    /// SIGKILL, and waits for the end.
    pub fn kill9(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, without waiting.
    pub fn ask_to_stop(&self) {
        process::signal(self.pid(), Signal::TERM);
    }

    /// SIGTERM, and how it ended.
    ///
    /// # Errors
    /// When it still runs after `bound`, with its standard error; it is then killed.
    pub fn terminate(&mut self, bound: Duration) -> Result<ExitStatus> {
        self.ask_to_stop();
        if let Some(status) = self.wait(bound)? {
            return Ok(status);
        }
        self.kill9();
        anyhow::bail!("pgsluice still ran {bound:?} after SIGTERM:\n{}", self.stderr())
    }
}

impl Drop for Sluice {
    fn drop(&mut self) {
        self.kill9();
        if std::thread::panicking() {
            eprintln!("--- standard error of pgsluice {}:\n{}", self.pid(), self.stderr());
        }
    }
}
