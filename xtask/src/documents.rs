//! Documents that are generated from the code, by the program itself.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::{Profile, build_pgsluice};

/// Arguments of the program, and the file that holds what it then prints.
const DOCUMENTS: [(&[&str], &str); 3] = [
    (&["config-reference"], "docs/configuration.md"),
    (&["error-reference"], "docs/errors.md"),
    (&["man"], "docs/pgsluice.1"),
];

/// Writes the documents, or with `check_only` says which are out of date; whether all were up to date or written.
pub(crate) fn run(check_only: bool) -> Result<bool> {
    let program = build_pgsluice(Profile::Dev, &[])?;
    let mut fine = true;
    for (arguments, path) in DOCUMENTS {
        let text = output(&program, arguments)?;
        let file = testkit::workspace_dir().join(path);
        if std::fs::read_to_string(&file).is_ok_and(|old| old == text) {
            continue;
        }
        if check_only {
            eprintln!("docs: {path} is out of date: run `cargo x docs`");
            fine = false;
        } else {
            std::fs::write(&file, text).with_context(|| format!("writing {path}"))?;
            println!("wrote {path}");
        }
    }
    Ok(fine)
}

/// What the program prints; the environment must not show in a document.
fn output(program: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name);
    }
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    ensure!(
        output.status.success(),
        "pgsluice {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    String::from_utf8(output.stdout).context("a document is UTF-8")
}
