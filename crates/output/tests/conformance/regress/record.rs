//! The results of runs of the regression SQL, in a file that is checked in: a line for each major
//! and option.

use std::io::Write as _;

use testkit::Major;

use super::{Run, Totals};

const HEADER: &str = "commit,sql,major,option,statements,failed,wal_mb,transactions,streamed,rows,others,left_out,server_refused,differences,stale";

/// Adds the lines of a run to the file that the environment names, if it names one.
pub(super) fn add(major: Major, run: &Run) {
    let Some(path) = std::env::var_os("PGSLUICE_CONFORMANCE_TOTALS") else { return };
    let said = |name: &str| std::env::var(name).unwrap_or_default();
    let (commit, sql) = (said("PGSLUICE_CONFORMANCE_COMMIT"), said("PGSLUICE_CONFORMANCE_SQL"));
    let is_new = !std::path::Path::new(&path).exists();
    let mut file = std::fs::File::options().create(true).append(true).open(path).unwrap();
    if is_new {
        writeln!(file, "{HEADER}").unwrap();
    }
    for (ours, totals) in run.ours.iter().zip(&run.totals) {
        let Totals { compared, left_out, server_refused, differences } = totals;
        let (option, wal_mb) = (ours.form.name, run.wal_bytes >> 20);
        let done = format!("{},{},{wal_mb}", run.statements, run.failed);
        let equal =
            format!("{},{},{},{}", compared.transactions, compared.streamed, compared.rows, compared.others);
        writeln!(
            file,
            "{commit},{sql},{major},{option},{done},{equal},{left_out},{server_refused},{differences},{}",
            compared.stale
        )
        .unwrap();
    }
}
