//! Every chore as `cargo x ...`: the one door that a person, the Makefile and CI go through.
//!
//! Each chore is a file. Rules that we made ourselves (`arrows`, `tidy`) are functions from text to
//! complaints, so that their tests can show that they complain.

mod arrows;
mod cargo;
mod check;
mod circles;
mod conformance;
mod corpus;
mod demo;
mod deny;
mod documents;
mod fuzz;
mod matrix;
mod modules;
mod passed;
mod promises;
mod prose;
mod references;
mod regress;
mod rules;
mod state_sql;
mod suite;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use testkit::Major;

/// Chores of the pgsluice workspace.
#[derive(Parser)]
#[command(name = "cargo x", bin_name = "cargo x")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

/// The first line of each is what `cargo x` prints, so that the whole list fits one screen.
#[derive(Subcommand)]
enum Chore {
    /// All that needs no server: fmt, clippy, docs, arrows, tidy, deny
    Check,
    /// All tests, against real servers
    ///
    /// Builds the program and fetches the servers first. The last line is `N passed, N failed`.
    Test {
        /// Run on every supported major instead of PGSLUICE_TEST_MAJORS or the default two.
        #[arg(long)]
        all_majors: bool,
        /// Only tests whose name contains this.
        filter: Option<String>,
    },
    /// Two clusters, a live load, one kill -9, both ends proved equal
    Demo(demo::Options),
    /// Measures against stock PostgreSQL: `cargo x bench NAME [--quick]`
    ///
    /// Builds for release first.
    Bench {
        /// Name and options, passed on.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Writes the documents that are generated from the code
    Docs {
        /// Only say whether they are up to date.
        #[arg(long)]
        check: bool,
    },
    /// Fetches server binaries and prints where they are
    Pg {
        /// 14 to 18, or `all`; the default majors unless named.
        majors: Vec<String>,
    },
    /// Order of the crates, and circles of files inside them
    ///
    /// The order is the one in ARCHITECTURE.md.
    Arrows {
        /// Only print the arrows inside the circles of this crate.
        #[arg(long, value_name = "CRATE")]
        inside: Option<String>,
        /// Write xtask/circles-debt.txt anew, if it does not grow.
        #[arg(long, conflicts_with = "inside")]
        settle: bool,
    },
    /// House rules: lengths, plain language, citations, rules with tests
    ///
    /// Also headers, forbidden words, promises with tests.
    Tidy {
        /// Only list what is to be put into plain language in files whose path begins so.
        #[arg(long, value_name = "PATH")]
        prose: Option<String>,
        /// Write xtask/prose-debt.txt anew, if it does not grow.
        #[arg(long, conflicts_with = "prose")]
        settle: bool,
    },
    /// Licences, sources, bans and advisories of dependencies
    ///
    /// Advisories are looked up where their database can be reached. If all is in order, records
    /// that in xtask/passed.txt.
    Deny,
    /// Golden suite and crash test over every combination of settings
    ///
    /// The settings are workers, batch size, prefetch and commit order.
    Matrix(matrix::Options),
    /// Compares decoded WAL with the server's own messages
    ///
    /// The load is random walks, or PostgreSQL's regression SQL.
    Conformance(conformance::Options),
    /// Fuzzes what reads bytes from outside; needs the nightly toolchain
    Fuzz {
        /// frames, pgoutput, tuples, transactions, conninfo, store, wal, records or values; all
        /// of them unless named.
        targets: Vec<String>,
        /// For how long, each.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Records the streams and the WAL that tests and fuzzers mutate
    Corpus {
        /// streams or wal; both unless named.
        what: Option<String>,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().chore) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo x: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the chore found everything in order; an error is a chore that could not do its work.
fn run(chore: Chore) -> Result<bool> {
    match chore {
        Chore::Check => check::run(),
        Chore::Arrows { inside: Some(name), .. } => arrows::list_inside(&name).map(|()| true),
        Chore::Arrows { settle: true, .. } => arrows::settle().map(|()| true),
        Chore::Arrows { .. } => check::report("arrows", &arrows::complaints()?),
        Chore::Tidy { prose: Some(under), .. } => tidy::list_prose(&under).map(|()| true),
        Chore::Tidy { settle: true, .. } => tidy::settle_prose().map(|()| true),
        Chore::Tidy { .. } => check::report("tidy", &tidy::complaints()?),
        Chore::Deny => deny::run(false),
        Chore::Test { all_majors, filter } => suite::run(all_majors, filter.as_deref()),
        Chore::Pg { majors } => fetch_servers(&majors),
        Chore::Bench { arguments } => bench(&arguments),
        Chore::Demo(options) => demo::run(&options).map(|()| true),
        Chore::Corpus { what } => corpus::run(what.as_deref()).map(|()| true),
        Chore::Conformance(options) => conformance::run(&options),
        Chore::Fuzz { targets, seconds } => fuzz::run(&targets, seconds),
        Chore::Matrix(options) => matrix::run(&options),
        Chore::Docs { check } => documents::run(check),
    }
}

fn fetch_servers(majors: &[String]) -> Result<bool> {
    let mut wanted = Vec::new();
    for word in majors {
        match word.as_str() {
            "all" => wanted.extend(Major::ALL),
            number => wanted.push(
                number
                    .parse()
                    .ok()
                    .and_then(Major::from_number)
                    .context(format!("{number} is no supported major (14 to 18, or `all`)"))?,
            ),
        }
    }
    if wanted.is_empty() {
        wanted = Major::under_test();
    }
    for major in wanted {
        println!("PostgreSQL {major}: {}", testkit::server_dir(major)?.display());
    }
    Ok(true)
}

fn bench(arguments: &[String]) -> Result<bool> {
    if arguments.first().is_some_and(|name| name == "churn") {
        return bench_peers(arguments);
    }
    let program = cargo::build_pgsluice(cargo::Profile::Release, &["bench"])?;
    let bench = program.with_file_name("bench");
    let mut command = std::process::Command::new(bench);
    command.args(arguments).env("PGSLUICE_BIN", program);
    if wants_peers(arguments) {
        command.env("PGSLUICE_PEERS_BIN", build_peers()?);
    }
    cargo::succeeds(&mut command)
}

/// Whether other stores are measured beside pgsluice: in the case `memory` of `update-deleted`.
fn wants_peers(arguments: &[String]) -> bool {
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let has_case = arguments.iter().any(|argument| argument.starts_with("--case"));
    let is_memory = !has_case || has("memory") || has("--case=memory");
    arguments.first().is_some_and(|name| name == "update-deleted") && is_memory && !has("--document")
}

/// Builds the program of the other stores; its path.
fn build_peers() -> Result<PathBuf> {
    let target = peers_target_dir()?;
    let mut command = cargo::cargo(&["build", "--release", "--manifest-path", "bench/peers/Cargo.toml"]);
    command.arg("--target-dir").arg(&target);
    anyhow::ensure!(cargo::succeeds(&mut command)?, "building the other stores failed");
    Ok(target.join("release/bench-peers"))
}

fn peers_target_dir() -> Result<PathBuf> {
    let target =
        cargo::metadata()?["target_directory"].as_str().map(PathBuf::from).context("no target directory")?;
    Ok(target.join("peers"))
}

/// The version store beside other stores, which ordinary builds do not compile: a workspace of its
/// own.
fn bench_peers(arguments: &[String]) -> Result<bool> {
    let mut command =
        cargo::cargo(&["run", "--release", "--quiet", "--manifest-path", "bench/peers/Cargo.toml"]);
    command.arg("--target-dir").arg(peers_target_dir()?).arg("--").args(arguments);
    cargo::succeeds(&mut command)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn other_stores_are_built_where_they_are_measured() {
        let wants = |line: &str| wants_peers(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert!(wants("update-deleted") && wants("update-deleted --major 18 --case memory"));
        assert!(wants("update-deleted --case=memory"));
        assert!(!wants("update-deleted --case misses") && !wants("update-deleted --document"));
        assert!(!wants("catchup"));
    }

    #[test]
    fn the_list_of_chores_fits_one_screen() {
        let list = Arguments::command().term_width(80).render_help().to_string();
        assert!(list.lines().count() <= 24, "{list}");
        assert!(list.lines().all(|line| line.chars().count() <= 80), "{list}");
    }
}
