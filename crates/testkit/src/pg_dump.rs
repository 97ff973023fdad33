//! A pg_dump that is not older than the servers under test.
//!
//! The machine's own pg_dump comes first. If it is too old, the pinned one of the newest major
//! takes its place ([`client_dir`]).

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::clients::client_dir;
use crate::major::Major;

/// The path of a pg_dump that reads servers of `major`: this machine's if it is new enough,
/// otherwise the pinned one.
///
/// # Errors
///
/// There is none here, and it cannot be fetched.
pub fn pg_dump_for(major: Major) -> Result<PathBuf> {
    if let Some(path) = installed(major) {
        return Ok(path);
    }
    pg_dump_pinned()
}

/// The path of the pinned pg_dump, which is of the newest major.
///
/// # Errors
/// It cannot be fetched, or is not the pinned one.
pub fn pg_dump_pinned() -> Result<PathBuf> {
    Ok(client_dir(Major::V18)?.join("bin/pg_dump"))
}

/// This machine's, if it is not older than `major`.
fn installed(major: Major) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program = std::env::split_paths(&path).map(|dir| dir.join("pg_dump")).find(|path| path.is_file())?;
    let output = Command::new(&program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_once(") ")?.1;
    let digits = version.find(|c: char| !c.is_ascii_digit())?;
    (version[..digits].parse::<u32>().ok()? >= major.number()).then_some(program)
}
