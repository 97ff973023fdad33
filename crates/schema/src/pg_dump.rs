//! A pg_dump that will do: found, asked for its version, run.
//!
//! One that is older than the source refuses the source's server, so its
//! version is asked for before anything is created. Where a path was given
//! only that is tried; else the first that will do of those in `PATH` and in
//! the directories where packages keep one per major, the newest first.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use client::ConnInfo;
use tokio::process::Command;

use crate::error::{Error, Kind};

/// Parents of directories named after a major, as Debian has them, and what
/// stands before the major in those of Red Hat.
const BY_MAJOR: [(&str, &str, &str); 2] =
    [("/usr/lib/postgresql", "", "bin/pg_dump"), ("/usr", "pgsql-", "bin/pg_dump")];

/// How long a program may take to say what it is.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How long pg_dump waits for a lock that a change of the schema holds.
const LOCK_WAIT: &str = "60s";

/// What pg_dump says when the server is stopped or restarted under it. It
/// gives no SQLSTATE; its messages are in English because we ask for that.
const PASSING: [&str; 5] = [
    "server closed the connection unexpectedly",
    "terminating connection due to administrator command",
    "the database system is",
    "Connection refused",
    "canceling statement due to lock timeout",
];

/// What is dumped: the schema of the whole database, but nothing that would
/// replicate from the target, and not our own state.
const ARGUMENTS: [&str; 6] = [
    "--schema-only",
    "--no-publications",
    "--no-subscriptions",
    "--exclude-schema=pgsluice",
    "--encoding=UTF8",
    // It has nobody to ask.
    "--no-password",
];

/// A program that can dump the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PgDump {
    /// Where it is.
    pub path: PathBuf,
    /// As it names it: `15.18`.
    pub version: String,
    major: u32,
}

impl PgDump {
    /// Finds a pg_dump that is not older than a source of `source_major`.
    ///
    /// # Errors
    /// There is none. The error has what was found and what to do.
    pub async fn find(given: Option<&Path>, source_major: u32) -> Result<PgDump, Error> {
        if let Some(path) = given {
            let not_one = |why| Kind::NotPgDump { path: path.to_owned(), why, source_major };
            let found = PgDump::ask(path).await.map_err(not_one)?;
            return match found.serves(source_major) {
                true => Ok(found),
                false => Err(Kind::OldPgDump { found: vec![found], source_major }.into()),
            };
        }
        PgDump::first_of(candidates(), source_major).await
    }

    async fn first_of(candidates: Vec<PathBuf>, source_major: u32) -> Result<PgDump, Error> {
        let mut old = Vec::new();
        for path in candidates {
            match PgDump::ask(&path).await {
                Ok(found) if found.serves(source_major) => return Ok(found),
                Ok(found) => old.push(found),
                Err(why) => tracing::debug!("{}: {why}", path.display()),
            }
        }
        if old.is_empty() {
            return Err(Kind::NoPgDump { source_major }.into());
        }
        Err(Kind::OldPgDump { found: old, source_major }.into())
    }

    /// One that has been asked.
    pub(crate) fn known(path: &str, version: &str, major: u32) -> PgDump {
        PgDump { path: path.into(), version: version.to_owned(), major }
    }

    fn serves(&self, source_major: u32) -> bool {
        self.major >= source_major
    }

    /// Asks the program at `path` what it is.
    async fn ask(path: &Path) -> Result<PgDump, String> {
        let mut command = quiet(path);
        command.arg("--version");
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, command.output()).await;
        let output = answer
            .map_err(|_| format!("it does not answer to --version within {} s", ANSWER_TIMEOUT.as_secs()))?
            .map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let first = text.lines().next().unwrap_or_default().trim();
        let version = version(first).filter(|_| output.status.success());
        let (version, major) = version.ok_or_else(|| match first {
            "" => "it is no pg_dump: it says nothing to --version".to_owned(),
            first => format!(
                "it is no pg_dump: to --version it says \"{}\"",
                first.chars().take(80).collect::<String>()
            ),
        })?;
        Ok(PgDump { path: path.to_owned(), version: version.to_owned(), major })
    }

    /// The schema of the source's database, as SQL for psql.
    ///
    /// # Errors
    /// It ended with an error; its words are in ours.
    pub async fn dump(&self, source: &ConnInfo, application_name: &str) -> Result<String, Error> {
        let told = source.for_libpq();
        let mut command = quiet(&self.path);
        command.args(ARGUMENTS).arg(format!("--lock-wait-timeout={LOCK_WAIT}"));
        if self.major >= 18 {
            // Statistics are no schema, and older targets do not take them.
            command.arg("--no-statistics");
        }
        command.arg("--dbname").arg(&told.conninfo).env("PGAPPNAME", application_name);
        if let Some(password) = &told.password {
            command.env("PGPASSWORD", password);
        }
        let failed = |words: String| {
            let passing = PASSING.iter().any(|passing| words.contains(passing));
            Kind::DumpFailed { program: self.clone(), words, passing }
        };
        let output = command.output().await.map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(words(&output)).into());
        }
        String::from_utf8(output.stdout).map_err(|_| Kind::NotUtf8 { program: self.clone() }.into())
    }
}

impl std::fmt::Display for PgDump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pg_dump {} ({})", self.version, self.path.display())
    }
}

/// With no terminal, in English, and gone when we are.
fn quiet(path: &Path) -> Command {
    let mut command = Command::new(path);
    command.stdin(Stdio::null()).kill_on_drop(true).env("LC_ALL", "C").env("PG_COLOR", "never");
    command
}

/// Its complaint, with what to do where we know.
fn words(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let said = match lines.is_empty() {
        true => format!("it ended with {}", output.status),
        false => lines.join("; "),
    };
    if said.contains("permission denied") {
        return format!(
            "{said}; the whole database's schema is read, so the role needs to be let in everywhere: \
             GRANT pg_read_all_data TO it on the source, or let another role run this first start"
        );
    }
    said
}

/// `15.18` and 15 of `pg_dump (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`;
/// those who build their own may have other words between the brackets.
fn version(line: &str) -> Option<(&str, u32)> {
    let rest = line.strip_prefix("pg_dump (")?;
    let version = rest.split_once(") ")?.1.split_whitespace().next()?;
    let digits = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
    Some((version, version[..digits].parse().ok()?))
}

/// Where one may be, best first.
fn candidates() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|directory| directory.join("pg_dump"));
    let mut by_major: Vec<(u32, PathBuf)> = BY_MAJOR
        .iter()
        .flat_map(|(parent, prefix, program)| {
            let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
            entries.filter_map(move |entry| {
                let major = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
                Some((major, entry.path().join(program)))
            })
        })
        .collect();
    by_major.sort_by_key(|(major, _)| std::cmp::Reverse(*major));
    let all = in_path.chain(by_major.into_iter().map(|(_, path)| path));
    all.filter(|path| path.is_file()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_programs_say_them() {
        let said = |line| version(line);
        assert_eq!(said("pg_dump (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"), Some(("15.18", 15)));
        assert_eq!(said("pg_dump (PostgreSQL) 18.4"), Some(("18.4", 18)));
        assert_eq!(said("pg_dump (PostgreSQL) 19beta1"), Some(("19beta1", 19)));
        assert_eq!(said("pg_dump (EnterpriseDB) 16.2.0"), Some(("16.2.0", 16)));
        assert_eq!(said("psql (PostgreSQL) 15.18"), None);
        assert_eq!(said("pg_dump (PostgreSQL) devel"), None);
        assert_eq!(said(""), None);
    }

    /// A program that says `answer` to everything.
    fn program(directory: &Path, name: &str, answer: &str) -> PathBuf {
        let path = directory.join(name);
        // By another process: what this one holds open for writing its
        // children could not run.
        let script = format!("#!/bin/sh\necho '{answer}'\n");
        let write = std::process::Command::new("sh")
            .args(["-c", "printf %s \"$2\" > \"$1\" && chmod 755 \"$1\"", "sh"])
            .arg(&path)
            .arg(script)
            .status();
        assert!(write.unwrap().success());
        path
    }

    #[tokio::test]
    async fn a_given_program_is_judged_by_what_it_says() {
        let directory = tempfile::tempdir().unwrap();
        let path = program(directory.path(), "a", "pg_dump (PostgreSQL) 16.1");
        let find = |path: PathBuf, major| async move { PgDump::find(Some(&path), major).await };
        assert_eq!(find(path.clone(), 16).await.unwrap().version, "16.1");
        let old = find(path, 17).await.unwrap_err().to_string();
        assert!(old.contains("16.1") && old.contains("postgresql-client-17"), "{old}");
        let other = program(directory.path(), "b", "psql (PostgreSQL) 18.0");
        let other = find(other, 15).await.unwrap_err().to_string();
        assert!(other.contains("no pg_dump") && other.contains("psql"), "{other}");
        let missing = find(directory.path().join("nowhere"), 15).await.unwrap_err().to_string();
        assert!(missing.contains("nowhere") && missing.contains("No such file"), "{missing}");
    }

    #[tokio::test]
    async fn the_first_that_will_do_is_taken_and_the_others_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let answers = ["psql (PostgreSQL) 18.0", "pg_dump (PostgreSQL) 14.2", "pg_dump (PostgreSQL) 17.3"];
        let all: Vec<PathBuf> = ["a", "b", "c"]
            .iter()
            .zip(answers)
            .map(|(name, answer)| program(directory.path(), name, answer))
            .collect();
        let find = |major| PgDump::first_of(all.clone(), major);
        assert_eq!(find(14).await.unwrap().version, "14.2");
        assert_eq!(find(17).await.unwrap().version, "17.3");
        let old = find(18).await.unwrap_err().to_string();
        assert!(
            old.contains("14.2") && old.contains("17.3") && old.contains("postgresql-client-18"),
            "{old}"
        );
        let none = PgDump::first_of(Vec::new(), 18).await.unwrap_err().to_string();
        assert!(none.contains("not installed") && none.contains("postgresql-client-18"), "{none}");
    }
}
