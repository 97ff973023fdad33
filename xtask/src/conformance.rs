//! `cargo x conformance`: our decoding of WAL beside the server's, for as long as one likes.
//!
//! The work is a test of `output`; this builds it, hands it what it is asked for, and says where
//! its totals go.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use testkit::Major;

use crate::cargo::{cargo, succeeds};
use crate::regress;

/// What long runs add up to.
const TOTALS: &str = "docs/conformance.csv";
/// What runs of the regression SQL came to.
const REGRESS_TOTALS: &str = "docs/conformance_regress.csv";

#[derive(Args)]
pub(crate) struct Options {
    /// The walk to repeat; another one each time unless said.
    #[arg(long)]
    seed: Option<u64>,
    /// On this major; on 15 to 18, one after the other, unless said.
    #[arg(long)]
    major: Option<u32>,
    /// For how long, on each major; the share of the default suite unless said. Adds a line for
    /// each major to docs/conformance.csv.
    #[arg(long)]
    minutes: Option<u64>,
    /// PostgreSQL's regression SQL as the load, on 14 to 18, in every option of the stream. Its
    /// source package is fetched by apt. Adds lines to docs/conformance_regress.csv.
    #[arg(long, conflicts_with_all = ["seed", "minutes"])]
    regress: bool,
    /// The directory src/test/regress of a source tree, instead of the one that apt fetches.
    #[arg(long, requires = "regress", value_name = "DIRECTORY")]
    sql: Option<PathBuf>,
    /// Only these files of it, separated by commas, and the one that makes their tables. Adds no
    /// line.
    #[arg(long, requires = "regress", value_name = "FILES")]
    only: Option<String>,
}

/// Whether there was no difference.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let majors = match options.major {
        Some(number) => vec![Major::from_number(number).context("no supported major")?],
        None => Major::ALL.to_vec(),
    };
    if options.regress {
        return run_regress(options, &majors);
    }
    // 14 knows neither row filters nor lists of columns, and prepared transactions only by half.
    let majors: Vec<_> = majors.into_iter().filter(|major| *major >= Major::V15).collect();
    ensure!(!majors.is_empty(), "conformance is of 15 to 18");
    let mut fine = true;
    let mut run_one = |majors: &str| -> Result<()> {
        let mut command = cargo(&["test", "--package", "output", "--test", "conformance", "--"]);
        command.arg("--nocapture").env("PGSLUICE_TEST_MAJORS", majors);
        if options.seed.is_some() || options.minutes.is_some() {
            command.arg("a_random_walk_is_decoded_as_the_server_does");
        }
        if let Some(seed) = options.seed {
            command.env("PGSLUICE_CONFORMANCE_SEED", seed.to_string());
        }
        if let Some(minutes) = options.minutes {
            command.env("PGSLUICE_CONFORMANCE_MINUTES", minutes.to_string());
            command.env("PGSLUICE_CONFORMANCE_COMMIT", commit()?);
            command.env("PGSLUICE_CONFORMANCE_TOTALS", testkit::workspace_dir().join(TOTALS));
        }
        fine &= succeeds(&mut command)?;
        Ok(())
    };
    if options.minutes.is_some() {
        majors.iter().try_for_each(|major| run_one(&major.to_string()))?;
    } else {
        run_one(&majors.iter().map(Major::to_string).collect::<Vec<_>>().join(","))?;
    }
    Ok(fine)
}

/// Each major alone: what came of one is recorded before the next begins.
fn run_regress(options: &Options, majors: &[Major]) -> Result<bool> {
    regress::psql()?;
    let sql = regress::sql(options.sql.as_deref())?;
    println!("conformance: {} in {}", sql.name, sql.dir.display());
    let mut fine = true;
    for major in majors {
        let mut command = cargo(&["test", "--package", "output", "--test", "conformance", "--"]);
        command.args(["--ignored", "--nocapture", "the_regression_sql_is_decoded_as_the_server_does"]);
        command.env("PGSLUICE_TEST_MAJORS", major.to_string());
        command.env("PGSLUICE_CONFORMANCE_REGRESS", &sql.dir).env("PGSLUICE_CONFORMANCE_SQL", &sql.name);
        command.env("PGSLUICE_CONFORMANCE_ONLY", options.only.as_deref().unwrap_or_default());
        command.env("PGSLUICE_CONFORMANCE_COMMIT", commit()?);
        command.env("PGSLUICE_CONFORMANCE_TOTALS", testkit::workspace_dir().join(REGRESS_TOTALS));
        fine &= succeeds(&mut command)?;
    }
    Ok(fine)
}

/// The commit that is checked out, with a mark if there is more than that.
fn commit() -> Result<String> {
    let output = Command::new("git")
        .args(["describe", "--always", "--dirty", "--exclude", "*"])
        .current_dir(testkit::workspace_dir())
        .output()
        .context("asking git for the commit")?;
    ensure!(output.status.success(), "git: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
