//! PostgreSQL's regression SQL: Debian's source package of one major, fetched once, kept below
//! `target`.
//!
//! apt fetches it and checks its signature. Which mirrors there are, this machine's own
//! configuration says; only that they are asked for sources as well is ours. That stands in a list
//! of our own, with directories of our own for all that apt keeps, so that nothing of the machine
//! is changed and nobody need be root.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};

/// Whose SQL. The newest that each Debian in use has would be another one; what runs on one major
/// runs mostly on all.
const PACKAGE: &str = "postgresql-15";
/// From this major on `psql` reads what the SQL asks of the environment (`\getenv`).
const PSQL_MIN: u32 = 15;
/// All that is unpacked.
const PART: &str = "src/test/regress";
/// Each source that the machine asks for packages, as a line of a list.
const LINES: &str = "deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)";
const HINT: &str = "`--sql DIRECTORY` names src/test/regress of any source tree of PostgreSQL instead";

/// Where the SQL is, and of which version.
#[derive(Debug)]
pub(crate) struct Sql {
    pub(crate) dir: PathBuf,
    pub(crate) name: String,
}

/// The directory that was named, or what apt fetches.
pub(crate) fn sql(named: Option<&Path>) -> Result<Sql> {
    let Some(dir) = named else {
        return fetched().with_context(|| format!("fetching the sources of {PACKAGE}; {HINT}"));
    };
    let dir = std::path::absolute(dir)?;
    ensure!(dir.join("parallel_schedule").is_file(), "{} has no parallel_schedule", dir.display());
    Ok(Sql { dir, name: "named".to_owned() })
}

/// Whether there is a `psql` that will do.
pub(crate) fn psql() -> Result<()> {
    let output = run(Command::new("psql").arg("--version"), "psql is missing: install postgresql-client")?;
    let text = text(&output);
    let major = text.split(' ').nth(2).and_then(|version| version.split('.').next());
    let major: u32 = major.and_then(|major| major.parse().ok()).with_context(|| text.clone())?;
    ensure!(major >= PSQL_MIN, "psql is of {major}; the regression SQL needs {PSQL_MIN} or newer");
    Ok(())
}

fn fetched() -> Result<Sql> {
    let home = testkit::workspace_dir().join("target/regress");
    std::fs::create_dir_all(&home)?;
    if let Some(version) = kept(&home)? {
        return Ok(of(&home, &version));
    }
    let apt = Apt::prepared(&home.join("apt"))?;
    let mut reasons = Vec::new();
    for version in apt.versions()? {
        match apt.unpack(&version, &home) {
            Ok(()) => return Ok(of(&home, &version)),
            // Mirrors may have dropped what their lists still name.
            Err(error) => reasons.push(format!("{version}: {error:#}")),
        }
    }
    ensure!(!reasons.is_empty(), "no mirror of this machine's apt has sources of {PACKAGE}");
    bail!("{}", reasons.join("; "))
}

fn of(home: &Path, version: &str) -> Sql {
    Sql { dir: home.join(version).join(PART), name: format!("{PACKAGE} {version}") }
}

/// The version that is there already.
fn kept(home: &Path) -> Result<Option<String>> {
    for entry in std::fs::read_dir(home)? {
        let entry = entry?;
        if entry.path().join(PART).join("parallel_schedule").is_file() {
            return Ok(Some(entry.file_name().to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

/// apt with directories of its own.
struct Apt {
    dir: PathBuf,
}

impl Apt {
    /// Which packages there are is asked anew.
    fn prepared(dir: &Path) -> Result<Apt> {
        for part in ["lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(dir.join(part))?;
        }
        let apt = Apt { dir: dir.to_owned() };
        let mut targets = Command::new("apt-get");
        targets.args(["indextargets", "--format", LINES, "Created-By: Packages"]);
        let lines = text(&run(&mut targets, "asking apt for its mirrors")?);
        std::fs::write(apt.list(), lines)?;
        // One mirror that has no sources is no failure: what matters is whether some version can be
        // fetched.
        let _ = apt.command("apt-get").arg("update").output();
        Ok(apt)
    }

    fn list(&self) -> PathBuf {
        self.dir.join("sources.list")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let option = |name: &str, path: &Path| format!("{name}={}", path.display());
        for option in [
            option("Dir::Etc::SourceList", &self.list()),
            option("Dir::Etc::SourceParts", Path::new("/dev/null")),
            option("Dir::State::Lists", &self.dir.join("lists")),
            option("Dir::Cache", &self.dir.join("cache")),
            // It would switch to a user that may not write here.
            "APT::Sandbox::User=".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        command.env("LC_ALL", "C");
        command
    }

    /// Newest first.
    fn versions(&self) -> Result<Vec<String>> {
        let mut command = self.command("apt-cache");
        command.args(["showsrc", "--only-source", PACKAGE]);
        let mut versions = versions_in(&text(&run(&mut command, "asking apt for versions")?));
        let older = |a: &str, b: &str| {
            let compared = Command::new("dpkg").args(["--compare-versions", a, "lt", b]).status();
            compared.is_ok_and(|status| status.success())
        };
        versions
            .sort_by(|a, b| if older(a, b) { std::cmp::Ordering::Greater } else { std::cmp::Ordering::Less });
        Ok(versions)
    }

    /// Puts that version's SQL below `home`, whole or not at all.
    fn unpack(&self, version: &str, home: &Path) -> Result<()> {
        let work = tempfile::Builder::new().prefix("fetch-").tempdir_in(&self.dir)?;
        let mut source = self.command("apt-get");
        source.args(["source", "--download-only", "--only-source", "--tar-only"]);
        source.arg(format!("{PACKAGE}={version}")).current_dir(work.path());
        run(&mut source, "apt-get source")?;
        let mut files = std::fs::read_dir(work.path())?.filter_map(|entry| Some(entry.ok()?.path()));
        let archive = files.find(|path| path.to_string_lossy().contains(".orig.tar."));
        let archive = archive.context("apt-get source left no .orig.tar")?;
        let kept = work.path().join("kept");
        std::fs::create_dir(&kept)?;
        let mut tar = Command::new("tar");
        tar.arg("-xf").arg(archive).args(["--no-same-owner", "--strip-components=1", "-C"]).arg(&kept);
        tar.args(["--wildcards", &format!("*/{PART}")]);
        run(&mut tar, "unpacking the sources")?;
        // The servers' user reads rows from there.
        run(Command::new("chmod").args(["-R", "a+rX"]).arg(&kept), "chmod")?;
        let place = home.join(version);
        std::fs::rename(&kept, &place).with_context(|| format!("moving the SQL to {}", place.display()))
    }
}

/// The versions that `apt-cache showsrc` names, each once.
fn versions_in(showsrc: &str) -> Vec<String> {
    let mut versions: Vec<String> = Vec::new();
    for version in showsrc.lines().filter_map(|line| line.strip_prefix("Version: ")) {
        if !versions.iter().any(|known| known == version) {
            versions.push(version.to_owned());
        }
    }
    versions
}

fn run(command: &mut Command, what: &str) -> Result<Output> {
    let output = match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{what}: there is no {}", command.get_program().to_string_lossy())
        }
        other => other.with_context(|| what.to_owned())?,
    };
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{what}: {}", said.lines().last().unwrap_or("it failed").trim());
    Ok(output)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_is_named_once() {
        let text = "Package: a\nVersion: 15.18-0+x\nBinary: b\n\nPackage: a\nVersion: 15.20-1\n\nVersion: 15.18-0+x\n";
        assert_eq!(versions_in(text), ["15.18-0+x", "15.20-1"]);
    }

    #[test]
    fn only_a_directory_with_a_schedule_holds_the_sql() {
        let dir = tempfile::tempdir().unwrap();
        assert!(sql(Some(dir.path())).unwrap_err().to_string().contains("parallel_schedule"));
        std::fs::write(dir.path().join("parallel_schedule"), "test: a\n").unwrap();
        assert_eq!(sql(Some(dir.path())).unwrap().dir, dir.path());
    }

    #[test]
    fn a_version_counts_as_kept_when_its_sql_is_there() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join("apt/lists")).unwrap();
        assert_eq!(kept(home.path()).unwrap(), None);
        let dir = home.path().join("15.18").join(PART);
        std::fs::create_dir_all(&dir).unwrap();
        assert_eq!(kept(home.path()).unwrap(), None, "half of it");
        std::fs::write(dir.join("parallel_schedule"), "").unwrap();
        assert_eq!(kept(home.path()).unwrap().as_deref(), Some("15.18"));
    }
}
