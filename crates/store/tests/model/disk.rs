//! A disk in memory that can fail and crash at any write, size change or sync.
//!
//! When the power goes, writes that were not synced reach the disk in any order and by sectors:
//! wholly, partly or not at all.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rand::Rng;
use rand::seq::SliceRandom;
use store::Disk;

/// The unit that a disk writes wholly or not at all.
const SECTOR_BYTES: usize = 512;

/// Counts down over both disks of a store. At zero, the power goes.
#[derive(Debug, Default)]
pub(crate) struct Fuse(Mutex<Option<u64>>);

impl Fuse {
    pub(crate) fn arm(&self, steps: u64) {
        *self.0.lock().unwrap() = Some(steps);
    }

    pub(crate) fn disarm(&self) {
        *self.0.lock().unwrap() = None;
    }

    /// Whether there is power for one more step.
    fn burns(&self) -> bool {
        match &mut *self.0.lock().unwrap() {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                *left > 0
            }
        }
    }
}

#[derive(Debug)]
enum Step {
    Write(usize, Vec<u8>),
    Size(usize),
}

impl Step {
    /// The parts of a step outside of `range`.
    fn without(self, range: Range<usize>) -> Vec<Step> {
        let Step::Write(offset, bytes) = self else { return vec![self] };
        let end = offset + bytes.len();
        let part = |from: usize, to: usize| {
            (from < to).then(|| Step::Write(from, bytes[from - offset..to - offset].to_vec()))
        };
        [part(offset, end.min(range.start)), part(offset.max(range.end), end)].into_iter().flatten().collect()
    }

    fn apply(&self, image: &mut Vec<u8>) {
        match self {
            Step::Write(offset, bytes) => {
                if image.len() < offset + bytes.len() {
                    image.resize(offset + bytes.len(), 0);
                }
                image[*offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            Step::Size(bytes) => image.resize(*bytes, 0),
        }
    }
}

#[derive(Debug, Default)]
struct Images {
    /// The bytes that reads see.
    current: Vec<u8>,
    /// The bytes that a crash cannot take.
    durable: Vec<u8>,
    /// The steps from `durable` to `current`.
    pending: Vec<Step>,
}

#[derive(Debug)]
pub(crate) struct SimDisk {
    images: Mutex<Images>,
    fuse: Arc<Fuse>,
    /// The disk reports syncs that it has not done, for the canary.
    lies: AtomicBool,
}

impl SimDisk {
    pub(crate) fn new(fuse: Arc<Fuse>) -> SimDisk {
        SimDisk { images: Mutex::default(), fuse, lies: AtomicBool::new(false) }
    }

    pub(crate) fn lie(&self, lies: bool) {
        self.lies.store(lies, Ordering::Relaxed);
    }

    /// Turns the power off: the disk becomes one of the states that it may be in.
    pub(crate) fn crash(&self, random: &mut impl Rng) {
        let mut images = self.images.lock().unwrap();
        let mut pending = std::mem::take(&mut images.pending);
        let mut image = images.durable.clone();
        let keep = [0.0, 0.5, 0.9, 1.0][random.random_range(0..4)];
        if random.random_bool(0.5) {
            pending.shuffle(random);
        }
        for step in &pending {
            match step {
                Step::Write(offset, bytes) if random.random_bool(0.5) => {
                    for (index, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
                        if random.random_bool(keep) {
                            Step::Write(offset + index * SECTOR_BYTES, sector.to_vec()).apply(&mut image);
                        }
                    }
                }
                step if random.random_bool(keep) => step.apply(&mut image),
                _ => {}
            }
        }
        images.current.clone_from(&image);
        images.durable = image;
    }

    fn step(&self, step: Step) -> io::Result<()> {
        let burns = self.fuse.burns();
        let mut images = self.images.lock().unwrap();
        // The step at which the power goes may still reach the disk in part. `crash` decides.
        step.apply(&mut images.current);
        images.pending.push(step);
        if burns { Ok(()) } else { Err(io::Error::other("the power is gone")) }
    }
}

impl Disk for SimDisk {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let images = self.images.lock().unwrap();
        let from = offset as usize;
        let bytes = images.current.get(from..from + buffer.len());
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.step(Step::Write(offset as usize, bytes.to_vec()))
    }

    /// Only these bytes become durable, and as much of the file's size as they need. All other
    /// pending steps stay pending.
    fn write_durably(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.lies.load(Ordering::Relaxed) {
            self.write_at(offset, bytes)?;
            return self.sync();
        }
        let offset = offset as usize;
        self.step(Step::Write(offset, bytes.to_vec()))?;
        let mut images = self.images.lock().unwrap();
        let Images { durable, pending, .. } = &mut *images;
        let written = pending.pop();
        let parts =
            std::mem::take(pending).into_iter().flat_map(|step| step.without(offset..offset + bytes.len()));
        *pending = parts.collect();
        written.iter().for_each(|step| step.apply(durable));
        Ok(())
    }

    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.images.lock().unwrap().current.len() as u64)
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.step(Step::Size(bytes as usize))
    }

    fn sync(&self) -> io::Result<()> {
        if !self.fuse.burns() {
            return Err(io::Error::other("the power is gone"));
        }
        let mut images = self.images.lock().unwrap();
        if !self.lies.load(Ordering::Relaxed) {
            let Images { durable, pending, .. } = &mut *images;
            pending.drain(..).for_each(|step| step.apply(durable));
        }
        Ok(())
    }
}
