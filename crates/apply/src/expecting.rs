//! Whether the next chunk is expected to meet conflicts. All sessions of a target share the
//! experience.

use std::sync::atomic::{AtomicU32, Ordering};

/// The number of chunks behind the last one with a conflict that begin with a set that tells.
const EXPECTED: u32 = 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Expecting(AtomicU32);

impl Expecting {
    /// Notes whether a chunk met conflicts.
    pub(crate) fn met(&self, any: bool) {
        let left = self.0.load(Ordering::Relaxed);
        // Sessions that note something at the same time may lose a chunk of the count.
        self.0.store(if any { EXPECTED } else { left.saturating_sub(1) }, Ordering::Relaxed);
    }

    /// Whether they are.
    pub(crate) fn is_likely(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_are_expected_for_a_while() {
        let expecting = Expecting::default();
        assert!(!expecting.is_likely());
        expecting.met(true);
        (0..EXPECTED - 1).for_each(|_| expecting.met(false));
        assert!(expecting.is_likely());
        expecting.met(false);
        assert!(!expecting.is_likely());
    }
}
