//! Sizes in bytes, for messages.

/// A size in bytes, shown in the largest unit that it fills.
pub(crate) struct ByteSize(pub(crate) u64);

impl std::fmt::Display for ByteSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
        match units.iter().find(|(_, size)| self.0 as f64 >= *size) {
            Some((unit, size)) => write!(f, "{:.1} {unit}", self.0 as f64 / size),
            None => write!(f, "{} B", self.0),
        }
    }
}
