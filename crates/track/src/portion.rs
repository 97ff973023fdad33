//! What a reader gets at once.

use base::Lsn;
use bytes::Bytes;

/// Whole frames. Sent one after the other, they are what a reader must get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Portion {
    /// The frames.
    pub bytes: Bytes,
    /// The greatest position that they say. What was cut off in front may have said it, too.
    pub last: Lsn,
}

impl Portion {
    /// What is left of it without its first bytes.
    pub(crate) fn behind(&self, first: u64) -> Portion {
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        Portion { bytes: self.bytes.slice(first..), last: self.last }
    }
}
