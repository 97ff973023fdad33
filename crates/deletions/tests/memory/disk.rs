//! A disk in memory that loses what was not synced when the power goes.

use std::io;
use std::sync::{Arc, Mutex};

use deletions::Disks;
use rand::Rng;
use store::Disk;

/// A change of the file that was not synced.
#[derive(Debug)]
enum Step {
    Write(usize, Vec<u8>),
    Size(usize),
}

impl Step {
    fn apply(&self, image: &mut Vec<u8>) {
        match self {
            Step::Write(offset, bytes) => {
                if image.len() < offset + bytes.len() {
                    image.resize(offset + bytes.len(), 0);
                }
                image[*offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            Step::Size(size) => image.resize(*size, 0),
        }
    }
}

#[derive(Debug, Default)]
struct Images {
    current: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Step>,
}

#[derive(Debug, Default)]
pub(crate) struct SimDisk(Mutex<Images>);

impl SimDisk {
    /// The power goes: each change that was not synced is there or is not.
    pub(crate) fn crash(&self, random: &mut impl Rng) {
        let mut images = self.0.lock().unwrap();
        let mut image = std::mem::take(&mut images.durable);
        for step in std::mem::take(&mut images.pending) {
            if random.random_bool(0.5) {
                step.apply(&mut image);
            }
        }
        images.current.clone_from(&image);
        images.durable = image;
    }

    /// Flips a bit.
    pub(crate) fn damage(&self, random: &mut impl Rng) {
        let mut images = self.0.lock().unwrap();
        let at = random.random_range(0..images.current.len());
        images.current[at] ^= 1;
        images.durable = images.current.clone();
    }

    fn step(&self, step: Step) {
        let mut images = self.0.lock().unwrap();
        step.apply(&mut images.current);
        images.pending.push(step);
    }
}

impl Disk for SimDisk {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let images = self.0.lock().unwrap();
        let from = usize::try_from(offset).unwrap();
        let bytes = images.current.get(from..from + buffer.len());
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.step(Step::Write(usize::try_from(offset).unwrap(), bytes.to_vec()));
        Ok(())
    }

    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().current.len() as u64)
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.step(Step::Size(usize::try_from(bytes).unwrap()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut images = self.0.lock().unwrap();
        let Images { durable, pending, .. } = &mut *images;
        pending.drain(..).for_each(|step| step.apply(durable));
        Ok(())
    }
}

/// The disks of one memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimDisks {
    pub(crate) data: Arc<SimDisk>,
    pub(crate) log: Arc<SimDisk>,
}

impl SimDisks {
    pub(crate) fn disks(&self) -> Disks {
        Disks { data: self.data.clone(), log: self.log.clone(), background: false }
    }

    pub(crate) fn crash(&self, random: &mut impl Rng) {
        self.data.crash(random);
        self.log.crash(random);
    }
}
