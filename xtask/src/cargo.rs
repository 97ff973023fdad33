//! Running cargo and other programs from the workspace's root.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// What is built.
#[derive(Clone, Copy)]
pub(crate) enum Profile {
    Dev,
    Release,
    /// As release, without what takes long to build.
    Demo,
}

impl Profile {
    /// Its name for `cargo build --profile`, and the directory of what is built.
    fn name_and_dir(self) -> (&'static str, &'static str) {
        match self {
            Profile::Dev => ("dev", "debug"),
            Profile::Release => ("release", "release"),
            Profile::Demo => ("demo", "demo"),
        }
    }
}

/// The cargo that runs us.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(testkit::workspace_dir());
    // What `cargo run` has told us about ourselves. Build scripts look at these names: with them
    // set, ring and all that depends on it would be built anew after each plain `cargo build`.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs `command` with our output; whether it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> Result<bool> {
    Ok(command.status().with_context(|| format!("running {command:?}"))?.success())
}

/// The workspace as cargo sees it, without its dependencies.
pub(crate) fn metadata() -> Result<Value> {
    let mut command = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let output = command.stderr(Stdio::inherit()).output().context("running cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata failed");
    serde_json::from_slice(&output.stdout).context("cargo metadata")
}

/// Builds the program, and `also` these packages; the path of the program.
pub(crate) fn build_pgsluice(profile: Profile, also: &[&str]) -> Result<PathBuf> {
    let (name, dir) = profile.name_and_dir();
    let mut command = cargo(&["build", "--profile", name, "--package", "pgsluice"]);
    also.iter().for_each(|package| {
        command.args(["--package", package]);
    });
    if matches!(profile, Profile::Dev) {
        // As tests have them: with other features, everything above would be built once more.
        command.args(["--package", "plan", "--package", "prefetch"]);
        command.args(["--features", "plan/fixtures,prefetch/fixtures"]);
    }
    ensure!(succeeds(&mut command)?, "building pgsluice failed");
    let target =
        metadata()?["target_directory"].as_str().map(PathBuf::from).context("no target directory")?;
    Ok(target.join(dir).join("pgsluice"))
}
