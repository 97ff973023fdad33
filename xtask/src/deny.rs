//! `cargo deny`: licences, sources, bans; advisories where their database can be reached.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cargo::{cargo, metadata, succeeds};

/// Known to work with deny.toml, and to build with the toolchain that the workspace asks for.
const VERSION: &str = "0.20.2";

/// Runs the checks; whether all hold.
pub(crate) fn run() -> Result<bool> {
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

/// The installed program, else one of our own below the target directory.
fn cargo_deny() -> Result<PathBuf> {
    let works = |program: &str| {
        Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    if works("cargo-deny") {
        return Ok("cargo-deny".into());
    }
    let target =
        metadata()?["target_directory"].as_str().map(PathBuf::from).context("no target directory")?;
    let tools = target.join("tools");
    let program = tools.join("bin/cargo-deny");
    if !works(&program.to_string_lossy()) {
        println!("deny: installing cargo-deny {VERSION} into {}", tools.display());
        let mut install =
            cargo(&["install", "--quiet", "--debug", "--locked", "--version", VERSION, "cargo-deny"]);
        ensure!(succeeds(install.arg("--root").arg(&tools))?, "cargo install cargo-deny failed");
    }
    Ok(program)
}
