//! Which pgsluice the figures were measured with.

use std::process::Command;

use bench_report::provenance::{commit, output};
use testkit::{pgsluice_path, workspace_dir};

/// The program's own word, and the commit it was built from if git knows.
pub(crate) fn pgsluice_version() -> String {
    let version = pgsluice_path().ok().and_then(|path| output(Command::new(path).arg("--version")));
    let commit = commit(workspace_dir()).map(|commit| format!(" ({commit})"));
    format!("{}{}", version.unwrap_or_else(|| "pgsluice".to_owned()), commit.unwrap_or_default())
}
