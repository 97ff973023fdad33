//! The regression SQL: which files there are, and how `psql` runs them as `pg_regress` would.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base::Lsn;
use tempfile::TempDir;
use testkit::Cluster;

use super::tap::{Statement, Tap};

/// A file that takes longer than this hangs. The slowest takes some ten seconds.
const HANGS: Duration = Duration::from_secs(1_800);
/// The file that makes the tables for all others.
const SETUP: &str = "test_setup";

pub(super) struct Load {
    dir: PathBuf,
    files: Vec<String>,
    is_whole: bool,
    /// Where files are written, also by the server.
    scratch: TempDir,
}

/// The result of running a file.
pub(super) struct Ran {
    pub(super) file: String,
    text: String,
    /// In their order, each with the end of WAL before it.
    pub(super) statements: Vec<Statement>,
    pub(super) failed: usize,
    pub(super) took: Duration,
}

impl Load {
    /// Reads everything that the environment names.
    pub(super) fn read() -> Load {
        let dir = std::env::var_os("PGSLUICE_CONFORMANCE_REGRESS").map(PathBuf::from);
        let dir = dir.expect("PGSLUICE_CONFORMANCE_REGRESS names the directory of the SQL");
        let schedule = std::fs::read_to_string(dir.join("parallel_schedule")).unwrap();
        let mut files = schedule_of(&schedule);
        let all = files.len();
        let only = std::env::var("PGSLUICE_CONFORMANCE_ONLY").unwrap_or_default();
        if !only.is_empty() {
            let only: Vec<&str> = only.split(',').map(str::trim).collect();
            for name in &only {
                assert!(files.iter().any(|file| file == name), "{name} is not in the schedule");
            }
            files.retain(|file| file == SETUP || only.contains(&file.as_str()));
        }
        let scratch = tempfile::tempdir().unwrap();
        for dir in [scratch.path().to_owned(), scratch.path().join("results")] {
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
        }
        Load { dir, is_whole: files.len() == all, files, scratch }
    }

    pub(super) fn files(&self) -> &[String] {
        &self.files
    }

    /// Whether nothing was left out.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Checks the file that makes the tables: their rows come from files that the server must be
    /// able to read.
    pub(super) fn assert_set_up(&self, file: &str, cluster: &Cluster, db: &str) {
        if file == SETUP {
            let rows = cluster.one(db, "SELECT count(*) FROM tenk1");
            assert_eq!(rows, "10000", "the server cannot read {}", self.dir.join("data").display());
        }
    }

    /// Runs one file in a session of its own, through the tap.
    pub(super) fn run(&self, file: &str, tap: &Tap, db: &str) -> Ran {
        let path = self.dir.join("sql").join(format!("{file}.sql"));
        let began = Instant::now();
        let errors = self.psql(&path, file, tap, db);
        Ran {
            file: file.to_owned(),
            text: String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned(),
            statements: tap.take(),
            failed: errors.lines().filter(|line| is_failure(line)).count(),
            took: began.elapsed(),
        }
    }

    /// The errors that `psql` reports.
    fn psql(&self, path: &Path, file: &str, tap: &Tap, db: &str) -> String {
        let output = |kind: &str| self.scratch.path().join(format!("results/{file}.{kind}"));
        let mut psql = Command::new("psql");
        psql.args(["-X", "-a", "-q", "-h", "127.0.0.1", "-U", "postgres", "-d", db, "-p"]);
        psql.arg(tap.port().to_string());
        psql.args(["-v", "HIDE_TABLEAM=on", "-v", "HIDE_TOAST_COMPRESSION=on", "-f"]).arg(path);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
            psql.env_remove(name);
        }
        psql.env("PGAPPNAME", format!("pg_regress/{file}"))
            .env("PGTZ", "PST8PDT")
            .env("PGDATESTYLE", "Postgres, MDY")
            .env("PGOPTIONS", "-c intervalstyle=postgres_verbose")
            // The tap reads the messages.
            .env("PGSSLMODE", "disable")
            .env("PGGSSENCMODE", "disable")
            .env("PG_ABS_SRCDIR", &self.dir)
            .env("PG_ABS_BUILDDIR", self.scratch.path())
            // There is no library of test functions. Statements that need one fail.
            .env("PG_LIBDIR", self.scratch.path())
            .env("PG_DLSUFFIX", ".so");
        psql.current_dir(self.scratch.path()).stdin(Stdio::null());
        psql.stdout(std::fs::File::create(output("out")).unwrap());
        psql.stderr(std::fs::File::create(output("err")).unwrap());
        let mut child = psql.spawn().unwrap_or_else(|error| panic!("psql does not start: {error}"));
        let ended = testkit::wait_for("psql", HANGS, || Ok(child.try_wait()?.is_some()));
        if let Err(error) = ended {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{file}: {error:#}");
        }
        String::from_utf8_lossy(&std::fs::read(output("err")).unwrap()).into_owned()
    }
}

/// A line `psql:FILE:LINE: ERROR:  ...`, or one about a lost connection.
fn is_failure(line: &str) -> bool {
    line.starts_with("psql:") && [": ERROR:  ", ": FATAL:  "].iter().any(|word| line.contains(word))
}

/// The files of a schedule, one after the other.
fn schedule_of(text: &str) -> Vec<String> {
    let groups = text.lines().filter_map(|line| line.strip_prefix("test:"));
    groups.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

impl Ran {
    /// The statement that wrote a record, with its line number if the file has the statement as it
    /// was sent.
    pub(super) fn place(&self, lsn: Lsn) -> String {
        let number = self.statements.partition_point(|statement| statement.at <= lsn);
        let Some(statement) = number.checked_sub(1).map(|at| &self.statements[at]) else {
            return format!("LSN {lsn}, before its first statement");
        };
        let line = self.line_of(number - 1).map_or_else(String::new, |line| format!("line {line}, "));
        let sql: String = statement.sql.split_whitespace().collect::<Vec<_>>().join(" ");
        let sql: String = sql.chars().take(200).collect();
        format!("{line}statement {number} (`{sql}`), LSN {lsn}")
    }

    /// Looks for each statement behind the one before it. Statements with variables are not found.
    fn line_of(&self, at: usize) -> Option<usize> {
        let (mut from, mut found) = (0, None);
        for statement in &self.statements[..=at] {
            let sql = statement.sql.trim().trim_end_matches(';');
            found = self.text[from..].find(sql).map(|place| from + place);
            from = found.map_or(from, |place| place + sql.len());
        }
        Some(self.text[..found?].matches('\n').count() + 1)
    }
}

#[test]
fn a_schedule_is_its_files_in_order() {
    let text = "# comment\ntest: a\n\ntest: b c\nignore: c\n  # test: x\ntest: d\n";
    assert_eq!(schedule_of(text), ["a", "b", "c", "d"]);
}

#[test]
fn a_record_is_traced_to_the_statement_that_wrote_it() {
    let text = "-- first\nSELECT 1;\n\\set x 1\nINSERT INTO t\n  VALUES (1);\nSELECT 1;\nDELETE FROM t;\n"
        .to_owned();
    let statement = |at: u64, sql: &str| Statement { at: Lsn::new(at), sql: sql.to_owned() };
    let statements = vec![
        statement(16, "SELECT 1;"),
        statement(16, "INSERT INTO t\n  VALUES (1);"),
        statement(32, "SELECT 1;"),
        statement(48, "DELETE FROM other;"),
    ];
    let ran = Ran { file: "f".to_owned(), text, statements, failed: 0, took: Duration::ZERO };
    let place = |lsn: u64| ran.place(Lsn::new(lsn));
    assert_eq!(place(24), "line 4, statement 2 (`INSERT INTO t VALUES (1);`), LSN 0/18");
    assert_eq!(place(40), "line 6, statement 3 (`SELECT 1;`), LSN 0/28");
    assert_eq!(place(99), "statement 4 (`DELETE FROM other;`), LSN 0/63");
    assert_eq!(place(1), "LSN 0/1, before its first statement");
}

#[test]
fn failures_are_counted_and_notices_are_not() {
    assert!(is_failure("psql:/x/sql/a.sql:12: ERROR:  division by zero"));
    assert!(!is_failure("psql:/x/sql/a.sql:12: NOTICE:  it says ERROR"));
    assert!(!is_failure("DETAIL:  Key (a)=(psql: ERROR:  ) exists"));
}
