//! The user of the servers: a PostgreSQL server refuses to run as root.
//!
//! If an ordinary user starts the tests, servers run as that user. If root starts them, servers run
//! as `postgres`, otherwise as `nobody`, whichever exists. The machine gets no new user.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The user that owns data directories and runs server processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Whether it is another user than ourselves, so that ownership has to be handed over.
    pub(crate) other: bool,
}

impl ServerUser {
    pub(crate) fn find() -> Result<ServerUser> {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        if !uid.is_root() {
            return Ok(ServerUser { uid: uid.as_raw(), gid: gid.as_raw(), other: false });
        }
        let passwd = std::fs::read_to_string("/etc/passwd").context("reading /etc/passwd")?;
        match ["postgres", "nobody"].iter().find_map(|name| find_in_passwd(&passwd, name)) {
            Some((uid, gid)) => Ok(ServerUser { uid, gid, other: true }),
            None => bail!(
                "a PostgreSQL server refuses to run as root, and there is no user `postgres` or `nobody`"
            ),
        }
    }

    /// Gives `path` to this user (only ever called on what we have just created).
    pub(crate) fn take(&self, path: &Path) -> Result<()> {
        if self.other {
            std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid))
                .with_context(|| format!("giving {} to uid {}", path.display(), self.uid))?;
        }
        Ok(())
    }

    /// Whether this user can enter `dir` and read what everybody may read there.
    pub(crate) fn can_enter(&self, dir: &Path) -> bool {
        if !self.other {
            return true;
        }
        existing_ancestor(dir).ancestors().all(|step| {
            std::fs::metadata(step).is_ok_and(|meta| {
                let mode = meta.permissions().mode();
                mode & 0o001 != 0 || (meta.uid() == self.uid && mode & 0o100 != 0)
            })
        })
    }

    /// A command that runs `program` as this user. The kernel sends it `signal` when the thread
    /// that spawns it dies, so spawn it with [`crate::process::spawn`]. `setpriv` (util-linux) does
    /// both, which keeps `unsafe` out of here.
    pub(crate) fn command(&self, program: &Path, signal: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.arg(format!("--pdeathsig={signal}"));
        if self.other {
            command
                .arg(format!("--reuid={}", self.uid))
                .arg(format!("--regid={}", self.gid))
                .arg("--clear-groups");
        }
        command.arg("--").arg(program);
        command
    }
}

/// uid and gid of `name` in the text of a passwd file. A root account under another name does not
/// count.
fn find_in_passwd(passwd: &str, name: &str) -> Option<(u32, u32)> {
    passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find_map(|fields| {
        (fields.first() == Some(&name) && fields.len() >= 4)
            .then(|| Some((fields[2].parse().ok()?, fields[3].parse().ok()?)))
            .flatten()
            .filter(|&(uid, _)| uid != 0)
    })
}

/// The nearest existing directory on the way up.
fn existing_ancestor(path: &Path) -> PathBuf {
    path.ancestors().find(|step| step.exists()).unwrap_or(Path::new("/")).to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_user_by_its_whole_name_and_never_a_root() {
        let passwd =
            "root:x:0:0::/root:/bin/sh\npostgresx:x:5:6::/:\npostgres:x:101:104:a,b:/:\ntoor:x:0:0::/:\n";
        assert_eq!(find_in_passwd(passwd, "postgres"), Some((101, 104)));
        assert_eq!(find_in_passwd(passwd, "toor"), None);
        assert_eq!(find_in_passwd(passwd, "nobody"), None);
    }
}
