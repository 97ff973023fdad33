//! Whether the next chunk is expected to meet conflicts.

/// The number of chunks behind the last one with a conflict that begin with a set that tells.
const EXPECTED: u32 = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Expecting(u32);

impl Expecting {
    /// Notes whether a chunk met conflicts.
    pub(super) fn met(&mut self, any: bool) {
        self.0 = if any { EXPECTED } else { self.0.saturating_sub(1) };
    }

    pub(super) fn is_likely(&self) -> bool {
        self.0 > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_are_expected_for_a_while() {
        let mut expecting = Expecting::default();
        assert!(!expecting.is_likely());
        expecting.met(true);
        (0..EXPECTED - 1).for_each(|_| expecting.met(false));
        assert!(expecting.is_likely());
        expecting.met(false);
        assert!(!expecting.is_likely());
    }
}
