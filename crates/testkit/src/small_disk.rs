//! A disk that can be full: a small file system in memory.
//!
//! Mounting needs a right that not every machine gives. A test that gets no disk says so, and
//! leaves out what needs it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A small file system; unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
    /// Removed after it.
    own: Option<TempDir>,
}

impl SmallDisk {
    /// A disk of this size in a directory of its own; `None`, after printing the reason, if nothing
    /// can be mounted.
    ///
    /// # Panics
    /// When no directory can be made.
    pub fn mount(kilobytes: u64) -> Option<SmallDisk> {
        let dir = tempfile::Builder::new().prefix("pgsluice-disk-").tempdir().expect("a directory");
        let mut disk = SmallDisk::mount_over(dir.path(), kilobytes)?;
        disk.own = Some(dir);
        Some(disk)
    }

    /// [`SmallDisk::mount`] over a directory, which it hides.
    ///
    /// # Panics
    /// When the disk cannot be opened to everybody.
    pub fn mount_over(path: &Path, kilobytes: u64) -> Option<SmallDisk> {
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={kilobytes}k,mode=0777"), "tmpfs"])
            .arg(path)
            .output();
        match output {
            Ok(output) if output.status.success() => {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))
                    .expect("a disk of our own");
                Some(SmallDisk { path: path.to_owned(), own: None })
            }
            other => {
                println!("not tested, because no small disk can be mounted here: {other:?}");
                None
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it another size.
    ///
    /// # Panics
    /// When the kernel refuses: what is there must fit.
    pub fn resize(&self, kilobytes: u64) {
        let size = format!("remount,size={kilobytes}k");
        let status = Command::new("mount").args(["-o", &size]).arg(self.path()).status();
        assert!(status.is_ok_and(|status| status.success()), "no other size: {size}");
    }

    /// Kilobytes of everything below `dir`, as the disk counts them.
    ///
    /// # Panics
    /// When a file goes meanwhile.
    pub fn used(dir: &Path) -> u64 {
        let entries = std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("a file"));
        let size = |entry: std::fs::DirEntry| match entry.file_type().expect("its type").is_dir() {
            true => SmallDisk::used(&entry.path()),
            false => entry.metadata().expect("its size").len().div_ceil(4096) * 4,
        };
        entries.map(size).sum()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process may still have a file open.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
        self.own.take();
    }
}
