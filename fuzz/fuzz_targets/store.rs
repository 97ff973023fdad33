//! The version store compared with its model. Every decision of a walk, including crashes, is drawn
//! from the fuzzer's bytes.
#![no_main]

#[path = "../../crates/store/tests/model/disk.rs"]
mod disk;
#[path = "../../crates/store/tests/model/oracle.rs"]
mod oracle;
#[path = "../../crates/store/tests/model/walk.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod walk;

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};

/// A step of a walk draws a few numbers of four bytes.
const BYTES_PER_STEP: usize = 12;

/// The fuzzer's bytes, then numbers that depend only on their count.
struct Tape {
    bytes: Vec<u8>,
    at: usize,
    then: StdRng,
}

impl RngCore for Tape {
    fn next_u32(&mut self) -> u32 {
        let mut word = [0; 4];
        self.fill_bytes(&mut word);
        u32::from_le_bytes(word)
    }

    fn next_u64(&mut self) -> u64 {
        let mut word = [0; 8];
        self.fill_bytes(&mut word);
        u64::from_le_bytes(word)
    }

    fn fill_bytes(&mut self, out: &mut [u8]) {
        let left = self.bytes.get(self.at..).unwrap_or_default();
        let taken = left.len().min(out.len());
        out[..taken].copy_from_slice(&left[..taken]);
        self.at += taken;
        self.then.fill_bytes(&mut out[taken..]);
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let tape = Tape { bytes: data.to_vec(), at: 0, then: StdRng::seed_from_u64(data.len() as u64) };
    let steps = (data.len() / BYTES_PER_STEP) as u64;
    if let Err(failure) = walk::Walk::drawn_from(Box::new(tape)).run(steps, false) {
        panic!("{failure}");
    }
});
