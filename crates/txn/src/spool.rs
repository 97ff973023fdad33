//! The place where changes of open transactions wait: one append-only file for each.
//! `docs/spools.md` has the formats.
//!
//! Nothing here outlives the process. After a restart the source sends every unconfirmed
//! transaction again. So files of an earlier process are removed first, and no file is ever synced.
//! All access to the disk goes through [`Spool`]; a test injects faults with an implementation of
//! its own.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::PathBuf;

use base::Xid;

/// Appends to and reads back one byte string per transaction.
pub trait Spool: Send {
    /// Adds `bytes` behind the earlier bytes of `xid`.
    ///
    /// # Errors
    /// The disk failed.
    fn append(&mut self, xid: Xid, bytes: &[u8]) -> io::Result<()>;

    /// Reads everything that was appended for `xid`, from the start.
    ///
    /// # Errors
    /// The disk failed, or nothing was appended.
    fn read(&mut self, xid: Xid) -> io::Result<Box<dyn Read + Send>>;

    /// Forgets `xid`. Does nothing if nothing was appended.
    ///
    /// # Errors
    /// The disk failed.
    fn remove(&mut self, xid: Xid) -> io::Result<()>;

    /// Makes an empty file to write and read, which disappears when it is closed.
    ///
    /// # Errors
    /// The disk failed.
    fn scratch(&mut self) -> io::Result<File>;
}

/// A directory with a file `<xid>.spool` for each open transaction.
#[derive(Debug)]
pub struct DirSpool {
    dir: PathBuf,
    /// The file that is being written. Blocks of one transaction come in a row, so one open file is
    /// enough for any number of open transactions.
    current: Option<(Xid, File)>,
    has_own_dir: bool,
}

impl DirSpool {
    /// Takes over `dir`: creates it if it is missing, and removes spool files in it.
    ///
    /// # Errors
    /// The directory cannot be created, read or emptied; the message names it.
    pub fn open(dir: PathBuf) -> io::Result<Self> {
        let named = |error: io::Error| named(&dir, "spool directory", error);
        fs::create_dir_all(&dir).map_err(named)?;
        for entry in fs::read_dir(&dir).map_err(named)? {
            let path = entry.map_err(named)?.path();
            if path.extension().is_some_and(|extension| extension == "spool") {
                fs::remove_file(&path).map_err(named)?;
            }
        }
        Ok(DirSpool { dir, current: None, has_own_dir: false })
    }

    /// Has the directory go with the spool: nobody else uses it.
    #[must_use]
    pub fn with_own_dir(mut self) -> DirSpool {
        self.has_own_dir = true;
        self
    }

    fn path(&self, xid: Xid) -> PathBuf {
        self.dir.join(format!("{xid}.spool"))
    }
}

fn named(path: &std::path::Path, what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

impl Spool for DirSpool {
    fn append(&mut self, xid: Xid, bytes: &[u8]) -> io::Result<()> {
        let path = self.path(xid);
        let file = match &mut self.current {
            Some((open, file)) if *open == xid => file,
            current => {
                let opened = File::options().create(true).append(true).open(&path);
                let opened = opened.map_err(|error| named(&path, "spool file", error))?;
                &mut current.insert((xid, opened)).1
            }
        };
        file.write_all(bytes).map_err(|error| named(&path, "spool file", error))
    }

    fn read(&mut self, xid: Xid) -> io::Result<Box<dyn Read + Send>> {
        let path = self.path(xid);
        let file = File::open(&path).map_err(|error| named(&path, "spool file", error))?;
        Ok(Box::new(file))
    }

    fn remove(&mut self, xid: Xid) -> io::Result<()> {
        self.current.take_if(|(open, _)| *open == xid);
        let path = self.path(xid);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(named(&path, "spool file", error)),
            _ => Ok(()),
        }
    }

    fn scratch(&mut self) -> io::Result<File> {
        let path = self.dir.join("scratch.spool");
        let named = |error| named(&path, "spool file", error);
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.map_err(named)?;
        // The file then has no name, so the next one may have the same name.
        fs::remove_file(&path).map_err(named)?;
        Ok(file)
    }
}

impl Drop for DirSpool {
    fn drop(&mut self) {
        // This only frees the disk early; open() does it again.
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "spool") {
                let _ = fs::remove_file(entry.path());
            }
        }
        if self.has_own_dir {
            let _ = fs::remove_dir(&self.dir);
        }
    }
}
