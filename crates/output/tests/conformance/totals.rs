//! The totals of long walks, in a file that is checked in. Each line is a walk that took place.

use std::io::Write as _;

use testkit::Major;

use crate::walk::Walked;

const HEADER: &str = "commit,seed,major,transactions,compared,rows,differences";

/// Adds a line to the file that the environment names, if it names one.
pub(crate) fn add(major: Major, seed: u64, walked: &Walked, differs: bool) {
    let Some(path) = std::env::var_os("PGSLUICE_CONFORMANCE_TOTALS") else { return };
    let commit = std::env::var("PGSLUICE_CONFORMANCE_COMMIT").unwrap();
    let is_new = !std::path::Path::new(&path).exists();
    let mut file = std::fs::File::options().create(true).append(true).open(path).unwrap();
    if is_new {
        writeln!(file, "{HEADER}").unwrap();
    }
    let compared = walked.compared;
    writeln!(
        file,
        "{commit},{seed},{major},{},{},{},{}",
        walked.transactions,
        compared.transactions,
        compared.rows,
        u8::from(differs)
    )
    .unwrap();
}
