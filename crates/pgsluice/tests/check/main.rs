//! `pgsluice check` against real servers. Each test provokes a finding and sees it with its object.
//! If the remedy is SQL, the test runs it and sees the finding disappear.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod applier;
mod ends;
mod partitions;
mod retention;
mod rights;
mod servers;
mod tables;

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use testkit::{Cluster, Major, Output, Pair, Sluice};

/// Commands that a test runs as messages print them.
const RUN_AS_PRINTED: [&str; 8] =
    ["adopt", "check", "drop", "enable", "release", "run", "sequences --apply", "status"];

const BOUND: Duration = Duration::from_secs(45);

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_pgsluice"))
}

/// Every major at the same time.
fn each_major(test: impl Fn(Major) + Sync) {
    Major::each(usize::MAX, test);
}

/// What one check said.
#[derive(Debug)]
struct Said {
    code: i32,
    report: Value,
}

impl Said {
    fn findings(&self) -> &[Value] {
        self.report["findings"].as_array().unwrap()
    }

    fn find(&self, expected: &Expected) -> Option<&Value> {
        let (severity, end, object, what) = (expected.severity, expected.end, expected.object, expected.what);
        self.findings().iter().find(|found| {
            found["severity"] == severity
                && found["end"] == end
                && found["object"].as_str().unwrap().contains(object)
                && found["what"].as_str().unwrap().contains(what)
        })
    }

    #[track_caller]
    fn expect(&self, expected: &Expected) -> &Value {
        self.find(expected)
            .unwrap_or_else(|| panic!("{expected:?} is not among {:#}", self.report["findings"]))
    }

    fn worse_than_a_note(&self) -> Vec<&Value> {
        self.findings().iter().filter(|found| found["severity"] != "note").collect()
    }
}

/// Both ends of one check.
struct Ends<'a> {
    pair: &'a Pair,
    db: String,
    /// Instead of the superuser.
    role: Option<String>,
}

impl<'a> Ends<'a> {
    /// Databases of their own on shared servers.
    fn new(pair: &'a Pair, db: &str) -> Ends<'a> {
        pair.both("postgres", &format!("CREATE DATABASE {db}")).unwrap();
        Ends { pair, db: db.to_owned(), role: None }
    }

    fn call(&self, args: &[&str]) -> Output {
        let mut running = self.start(args);
        let status = running.wait(BOUND).unwrap().expect("it ends");
        Output { status, stdout: running.stdout(), stderr: running.stderr() }
    }

    fn start(&self, args: &[&str]) -> Sluice {
        let mut command = Sluice::command_of(program(), self.pair, args);
        for (name, cluster) in
            [("PGSLUICE_SOURCE", &self.pair.source), ("PGSLUICE_TARGET", &self.pair.target)]
        {
            let url = cluster.url(&self.db);
            let user = self.role.as_deref().unwrap_or("postgres");
            command.env(name, url.replace("postgres://postgres@", &format!("postgres://{user}@")));
        }
        command.env("PGSLUICE_PUBLICATION", "p").env("PGSLUICE_SUBSCRIPTION", &self.db);
        Sluice::start(command).unwrap()
    }

    fn check(&self, args: &[&str]) -> Said {
        let output = self.call(&[&["check", "--json"], args].concat());
        let report =
            serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let said = Said { code: output.status.code().unwrap(), report };
        said.findings().iter().for_each(|finding| self.can_be_done(finding));
        said
    }

    /// Every statement of a finding is valid on its server. Every command is whole, and is among
    /// those that a test runs exactly as printed
    /// (`every_command_that_is_named_works_as_it_is_written`).
    #[track_caller]
    fn can_be_done(&self, finding: &Value) {
        for sql in finding["sql"].as_array().unwrap() {
            // Its body is parsed, and nothing of it is executed.
            let parsed =
                format!("DO $parsed$ BEGIN IF false THEN {}; END IF; END $parsed$", sql.as_str().unwrap());
            let parsed = self.at(finding["end"].as_str().unwrap()).sql("postgres", &parsed);
            parsed.unwrap_or_else(|error| panic!("{error:#}: {finding:#}"));
        }
        let remedy = finding["remedy"].as_str().unwrap_or_default();
        for (number, part) in remedy.split('`').enumerate() {
            let Some((_, command)) = part.split_once("pgsluice ") else { continue };
            let words: Vec<&str> = command.split(' ').collect();
            let is_run = RUN_AS_PRINTED.iter().any(|own| command.starts_with(own));
            assert!(number % 2 == 0 || is_run, "nobody runs it: {remedy}");
            assert!(number % 2 == 1 || !RUN_AS_PRINTED.contains(&words[0]), "not completed: {remedy}");
            if number % 2 == 1 {
                assert!(command.contains(" --subscription "), "{remedy}");
            }
        }
    }

    fn at(&self, end: &str) -> &Cluster {
        if end == "source" { &self.pair.source } else { &self.pair.target }
    }

    /// Runs the SQL of a finding, one statement after the other, as a superuser.
    #[track_caller]
    fn apply(&self, finding: &Value) {
        for sql in finding["sql"].as_array().unwrap() {
            let (end, sql) = (finding["end"].as_str().unwrap(), sql.as_str().unwrap());
            self.at(end)
                .sql(&self.db, sql)
                .unwrap_or_else(|error| panic!("{error:#}, remedy of {finding:#}"));
        }
    }
}

/// A finding that must be there.
#[derive(Clone, Copy, Debug)]
struct Expected {
    severity: &'static str,
    end: &'static str,
    object: &'static str,
    what: &'static str,
    /// Its SQL makes it go away.
    cured: bool,
}

const fn cured(
    severity: &'static str,
    end: &'static str,
    object: &'static str,
    what: &'static str,
) -> Expected {
    Expected { severity, end, object, what, cured: true }
}

const fn told(
    severity: &'static str,
    end: &'static str,
    object: &'static str,
    what: &'static str,
) -> Expected {
    Expected { severity, end, object, what, cured: false }
}
