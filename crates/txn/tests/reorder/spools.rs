//! Spools that keep their files in memory, and spools that fail.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Mutex};

use base::Xid;
use txn::Spool;

/// Files that a test can read and change while a buffer has them.
#[derive(Clone, Default)]
pub(crate) struct Files(Arc<Mutex<HashMap<Xid, Vec<u8>>>>);

impl Files {
    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.lock().unwrap().values().map(Vec::len).sum()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut HashMap<Xid, Vec<u8>>)) {
        change(&mut self.0.lock().unwrap());
    }
}

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The disk is full in the middle of an append.
    Full,
    /// An append reports that it wrote everything, and did not.
    Short,
    /// A file cannot be read.
    Unreadable,
    /// A file ends in an error.
    BadSector,
    /// A file cannot be removed.
    Stuck,
}

pub(crate) struct MemorySpool {
    files: Files,
    /// The fault, and the number of the call of its kind that fails.
    fault: Option<(Fault, usize)>,
}

impl MemorySpool {
    pub(crate) fn new(files: Files) -> MemorySpool {
        MemorySpool { files, fault: None }
    }

    pub(crate) fn faulty(files: Files, fault: Fault, at: usize) -> MemorySpool {
        MemorySpool { files, fault: Some((fault, at)) }
    }

    /// Whether this call fails.
    fn fails(&mut self, kind: Fault) -> bool {
        match &mut self.fault {
            Some((fault, left)) if *fault == kind => {
                let is_now = *left == 0;
                *left = left.wrapping_sub(1);
                is_now
            }
            _ => false,
        }
    }
}

/// Bytes, then an error.
struct Broken(io::Cursor<Vec<u8>>);

impl Read for Broken {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self.0.read(bytes)? {
            0 => Err(io::Error::other("bad sector")),
            read => Ok(read),
        }
    }
}

impl Spool for MemorySpool {
    fn append(&mut self, xid: Xid, bytes: &[u8]) -> io::Result<()> {
        let (is_full, is_short) = (self.fails(Fault::Full), self.fails(Fault::Short));
        self.files.change(|files| {
            let file = files.entry(xid).or_default();
            let written = if is_full || is_short { &bytes[..bytes.len() / 2] } else { bytes };
            file.extend_from_slice(written);
        });
        if is_full { Err(io::Error::new(io::ErrorKind::StorageFull, "no room")) } else { Ok(()) }
    }

    fn read(&mut self, xid: Xid) -> io::Result<Box<dyn Read + Send>> {
        if self.fails(Fault::Unreadable) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "not allowed"));
        }
        let mut bytes = None;
        self.files.change(|files| bytes = files.get(&xid).cloned());
        let mut bytes = bytes.ok_or(io::ErrorKind::NotFound)?;
        if self.fails(Fault::BadSector) {
            bytes.truncate(bytes.len() * 2 / 3);
            return Ok(Box::new(Broken(io::Cursor::new(bytes))));
        }
        Ok(Box::new(io::Cursor::new(bytes)))
    }

    fn remove(&mut self, xid: Xid) -> io::Result<()> {
        if self.fails(Fault::Stuck) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "not allowed"));
        }
        self.files.change(|files| drop(files.remove(&xid)));
        Ok(())
    }

    fn scratch(&mut self) -> io::Result<File> {
        Err(io::Error::other("nobody asks for it"))
    }
}
