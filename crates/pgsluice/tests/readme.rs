//! The README's quick start, run as it stands there on real servers, from its CREATE PUBLICATION to
//! its `drop`. The test replaces only the placeholders: the two connection strings and the LSN.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::time::Duration;

use testkit::{Major, Pair, Sluice, wait_for};

const DB: &str = "postgres";
const BOUND: Duration = Duration::from_secs(60);

/// The quick start's section.
fn quick_start() -> String {
    let readme = include_str!("../../../README.md");
    let (_, section) = readme.split_once("\n## Quick start\n").unwrap();
    section.split_once("\n## ").unwrap().0.to_owned()
}

/// The lines of all blocks fenced as `language`, continued lines joined, comments taken off.
fn fenced(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let blocks = text.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap());
    let lines =
        blocks.flat_map(|block| block.replace("\\\n", " ").lines().map(str::to_owned).collect::<Vec<_>>());
    let commands = lines.map(|line| line.split('#').next().unwrap().trim().to_owned());
    commands.filter(|line| !line.is_empty()).collect()
}

/// Words as a shell reads them, as far as the README needs it: quotes hold words together.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for letter in line.chars() {
        match letter {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            _ => words.last_mut().unwrap().push(letter),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The command's arguments without both ends, which are in the environment of every command that
/// testkit runs.
fn arguments(line: &str) -> Option<Vec<String>> {
    let mut words = words(line).into_iter();
    let program = words.next()?;
    if program != "pgsluice" && !program.ends_with("/pgsluice") {
        return None;
    }
    let mut arguments = Vec::new();
    while let Some(word) = words.next() {
        if word == "--source" || word == "--target" {
            words.next()?;
        } else {
            arguments.push(word);
        }
    }
    Some(arguments)
}

#[test]
fn the_quick_start_works_as_it_is_written() {
    let pair = Pair::start(Major::V15, Major::V18).unwrap();
    pair.both(DB, "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)").unwrap();
    pair.source.sql(DB, "INSERT INTO t (v) SELECT 'v' || i FROM generate_series(1, 1000) i").unwrap();
    let section = quick_start();
    for sql in fenced(&section, "sql") {
        pair.source.sql(DB, &sql).unwrap();
    }
    let mut running: Option<Sluice> = None;
    let mut done = BTreeSet::new();
    for line in fenced(&section, "sh") {
        let Some(mut arguments) = arguments(&line) else {
            assert!(line.starts_with("cargo "), "not run: {line}");
            continue;
        };
        done.insert(arguments[0].clone());
        // A transaction to come: one that is over is refused.
        if let Some(lsn) = arguments.iter_mut().find(|word| word.contains('/')) {
            *lsn = "F/16B3748".to_owned();
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        if arguments.contains(&"--both-ways") {
            println!(
                "not run here: {line}; it needs an empty target, and the scenario `commands` gives it one"
            );
            continue;
        }
        if arguments[0] == "run" {
            running = Some(Sluice::run(&pair, &arguments[1..]).unwrap());
            wait_for("the first copy", BOUND, || {
                let there = pair.target.sql(
                    DB,
                    "SELECT count(*) FROM t WHERE to_regclass('pgsluice.copied_table') IS NOT NULL",
                )?;
                Ok(there[0][0].as_deref() == Some("1000"))
            })
            .unwrap();
            continue;
        }
        let output = Sluice::call(&pair, &arguments).unwrap();
        // 1 of `check` is: it works, with warnings.
        let warned = arguments[0] == "check" && output.status.code() == Some(1);
        let fine = output.status.success() || warned;
        assert!(fine, "{line}\n{}: {}{}", output.status, output.stdout, output.stderr);
        if arguments[0] == "stop" {
            let ended = running.as_mut().unwrap().wait(BOUND).unwrap();
            assert!(ended.is_some_and(|status| status.success()), "{}", running.unwrap().stderr());
            running = None;
        }
    }
    let all = ["check", "conflicts", "drop", "run", "sequences", "skip", "status", "stop", "verify"];
    assert_eq!(done, BTreeSet::from(all.map(str::to_owned)));
    let left = "SELECT count(*) FROM pg_replication_slots";
    assert_eq!(pair.source.sql(DB, left).unwrap()[0][0].as_deref(), Some("0"));
    assert_eq!(pair.target.sql(DB, "SELECT count(*) FROM t").unwrap()[0][0].as_deref(), Some("1000"));
}
