//! `cargo deny`: licences, sources, bans; advisories where their database can be reached.
//!
//! Where the database cannot be reached, all depends on files of ours, and need not be checked
//! twice ([`Inputs`]).

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::cargo::{cargo, metadata, succeeds};
use crate::passed::Inputs;

/// Known to work with deny.toml, and to build with the toolchain that the workspace asks for.
const VERSION: &str = "0.20.2";
const DATABASE: &str = "https://github.com/RustSec/advisory-db";
/// How long the database is waited for.
const REACHED_BOUND: Duration = Duration::from_secs(20);

/// Runs the checks and records that they passed, or with `check_only` says whether that is
/// recorded; whether all hold.
pub(crate) fn run(check_only: bool) -> Result<bool> {
    let inputs = inputs()?;
    let is_there = works("cargo-deny") || works(&own()?.to_string_lossy());
    if check_only && !is_there && inputs.have_passed()? && !database_is_reached()? {
        println!("deny: not run: cargo-deny is not there, and passed on the same inputs elsewhere");
        return Ok(true);
    }
    Ok(run_program()? && inputs.pass(check_only, "cargo x deny")?)
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
fn inputs() -> Result<Inputs> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let manifest = |package: &serde_json::Value| {
        Some((package["name"].as_str()?.to_owned(), PathBuf::from(package["manifest_path"].as_str()?)))
    };
    let mut manifests: Vec<(String, PathBuf)> = packages.iter().filter_map(manifest).collect();
    manifests.sort();
    let mut inputs = Inputs::new("deny", VERSION);
    for name in ["Cargo.toml", "Cargo.lock", "deny.toml"] {
        inputs.add(name, &testkit::workspace_dir().join(name))?;
    }
    for (name, path) in manifests {
        inputs.add(&name, &path)?;
    }
    Ok(inputs)
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
