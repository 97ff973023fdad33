//! `cargo deny`: licences, sources, bans; advisories where their database can be reached.
//!
//! Building the program takes minutes on a new machine. Where the database cannot be reached,
//! everything else depends on files of ours. So [`PASSED`] holds the hash of these files as they
//! were when the checks last passed, and where nothing has changed the program need not be built.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::cargo::{cargo, metadata, succeeds};

/// Known to work with deny.toml, and to build with the toolchain that the workspace asks for.
const VERSION: &str = "0.20.2";
/// The hash of [`inputs`] when the checks last passed.
const PASSED: &str = "xtask/deny-passed.txt";
const DATABASE: &str = "https://github.com/RustSec/advisory-db";
/// How long the database is waited for.
const REACHED_BOUND: Duration = Duration::from_secs(20);

/// Runs the checks where they could tell something new; whether all hold.
pub(crate) fn run() -> Result<bool> {
    let unchanged = passed()? == hash()?;
    if unchanged && !works("cargo-deny") && !works(&own()?.to_string_lossy()) && !database_is_reached()? {
        println!("deny: not run: no database of advisories, and all else is as {PASSED} has it");
        return Ok(true);
    }
    let fine = run_program()?;
    if fine && !unchanged {
        println!("deny: {PASSED} is of other dependencies: `cargo x deny` writes it anew");
    }
    Ok(fine && unchanged)
}

/// Runs the checks; if all hold, writes [`PASSED`].
pub(crate) fn run_and_record() -> Result<bool> {
    let fine = run_program()?;
    if fine {
        std::fs::write(testkit::workspace_dir().join(PASSED), hash()? + "\n")?;
    }
    Ok(fine)
}

fn run_program() -> Result<bool> {
    let program = cargo_deny()?;
    let deny = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(["--log-level", "error", "--workspace"]).args(arguments);
        command.current_dir(testkit::workspace_dir());
        command
    };
    let fine = succeeds(deny(&["check", "bans", "licenses", "sources"]).stdout(Stdio::null()))?;
    let mut fetch = deny(&["fetch", "db"]);
    fetch.env("GIT_TERMINAL_PROMPT", "0");
    if !fetch.stdout(Stdio::null()).stderr(Stdio::null()).status()?.success() {
        println!("deny: advisories were not checked, their database could not be fetched");
        return Ok(fine);
    }
    Ok(succeeds(&mut deny(&["check", "advisories"]))? && fine)
}

/// All that the checks depend on besides advisories.
fn inputs() -> Result<Vec<PathBuf>> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let manifests = packages.iter().filter_map(|package| package["manifest_path"].as_str());
    let mut inputs: Vec<PathBuf> = manifests.map(PathBuf::from).collect();
    inputs.sort();
    let top = ["Cargo.toml", "Cargo.lock", "deny.toml"];
    Ok(top.map(|name| testkit::workspace_dir().join(name)).into_iter().chain(inputs).collect())
}

fn hash() -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(VERSION);
    for input in inputs()? {
        let bytes = std::fs::read(&input).with_context(|| format!("reading {}", input.display()))?;
        hash.update(bytes.len().to_le_bytes());
        hash.update(bytes);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What [`PASSED`] has; empty if it is missing.
fn passed() -> Result<String> {
    match std::fs::read_to_string(testkit::workspace_dir().join(PASSED)) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error).context(PASSED),
    }
}

fn database_is_reached() -> Result<bool> {
    let mut ask = Command::new("git");
    ask.args(["ls-remote", "--quiet", DATABASE, "HEAD"]).env("GIT_TERMINAL_PROMPT", "0");
    let mut ask = ask.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("running git")?;
    let began = Instant::now();
    while began.elapsed() < REACHED_BOUND {
        if let Some(status) = ask.try_wait()? {
            return Ok(status.success());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    ask.kill()?;
    ask.wait()?;
    Ok(false)
}

fn works(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Where a program of our own is, below the target directory.
fn own() -> Result<PathBuf> {
    let target = metadata()?["target_directory"].as_str().map(PathBuf::from);
    Ok(target.context("no target directory")?.join("tools/bin/cargo-deny"))
}

/// The installed program, else one of our own, which is built if it is missing.
fn cargo_deny() -> Result<PathBuf> {
    if works("cargo-deny") {
        return Ok("cargo-deny".into());
    }
    let program = own()?;
    if !works(&program.to_string_lossy()) {
        let tools = program.ancestors().nth(2).expect("it is two directories down");
        println!("deny: installing cargo-deny {VERSION} into {}", tools.display());
        let mut install =
            cargo(&["install", "--quiet", "--debug", "--locked", "--version", VERSION, "cargo-deny"]);
        ensure!(succeeds(install.arg("--root").arg(tools))?, "cargo install cargo-deny failed");
    }
    Ok(program)
}
