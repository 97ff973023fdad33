//! Runs `initdb` once per major; every cluster is a copy.
//!
//! A template lives beside the server binaries. Its name says everything that its contents depend
//! on: the package, the options below and the user that owns the files. A rename makes it appear as
//! a whole.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::identity;
use crate::major::Major;
use crate::server::{cache_dir, lock, server_dir};
use crate::user::ServerUser;

/// Count up when [`INITDB`] changes.
const FORMAT: u32 = 1;
/// The C locale sorts alike on every major and machine. `--no-sync` is enough because a template
/// can be made again.
const INITDB: [&str; 6] =
    ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "-N"];

/// Makes `data` (which must not exist) a fresh data directory of `major`, owned by `user`.
pub(crate) fn copy_to(major: Major, user: ServerUser, data: &Path) -> Result<()> {
    copy_tree(&template(major, user)?, data)?;
    identity::set(data, rand::random::<u64>() >> 1).context("giving the copy an identifier of its own")
}

/// Copies a directory, owners and all, to a place that must not exist.
pub(crate) fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").args(["-a", "--reflink=auto", "-T"]).arg(from).arg(to).status();
    ensure!(status.context("running cp")?.success(), "cp could not copy {}", from.display());
    Ok(())
}

fn template(major: Major, user: ServerUser) -> Result<PathBuf> {
    let server = server_dir(major)?;
    let version = server.parent().and_then(Path::file_name).expect("a server lives in <version>/native");
    let name = format!("{}-{FORMAT}-{}", version.to_string_lossy(), user.uid);
    let templates = cache_dir()?.join("templates");
    let template = templates.join(&name);
    if template.is_dir() {
        return Ok(template);
    }
    std::fs::create_dir_all(&templates)?;
    let _lock = lock(&templates.join(format!("{name}.lock")))?;
    if !template.is_dir() {
        initdb(&server, user, &templates, &template)
            .with_context(|| format!("making the template of PostgreSQL {major}"))?;
    }
    Ok(template)
}

fn initdb(server: &Path, user: ServerUser, templates: &Path, template: &Path) -> Result<()> {
    let work = tempfile::Builder::new().prefix("initdb-").tempdir_in(templates)?;
    user.take(work.path())?;
    let data = work.path().join("data");
    let output = user
        .command(&server.join("bin/initdb"), "KILL")
        .args(INITDB)
        .arg("--pgdata")
        .arg(&data)
        .env_remove("PGDATA")
        .current_dir("/")
        .output()
        .context("running initdb")?;
    ensure!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr).trim());
    std::fs::rename(&data, template).with_context(|| format!("moving the template to {}", template.display()))
}
