//! Whether the target's WAL is still that which deletions were captured from.
//!
//! A target may be put back to an older state without a new timeline, and then write past what was
//! captured. Neither its identifier nor a position shows that, but its WAL does: where the last
//! captured record was, it has another one. Until that place was read, nothing is answered.

use base::Lsn;
use deletions::Landmark;
use wal::{Reader, Start};

use crate::error::Error;

/// Reads WAL up to the landmark.
pub(crate) struct Proof {
    reader: Reader,
    landmark: Landmark,
}

impl Proof {
    /// Begins at `position`, the start of a page.
    pub(crate) fn new(position: Lsn, segment_size: u64, landmark: Landmark) -> Result<Proof, Error> {
        let start = Start { segment_size, ..Start::at(position) };
        let reader = Reader::new(start).map_err(|_| Error::other_history())?;
        Ok(Proof { reader, landmark })
    }

    /// Takes the next bytes of WAL. Returns whether the landmark was among them.
    ///
    /// # Errors
    /// The WAL is not that of the landmark.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        let position = self.reader.position();
        let mut records = self.reader.push(position, bytes).map_err(|_| Error::other_history())?;
        while let Some(record) = records.poll().map_err(|_| Error::other_history())? {
            if record.lsn() >= self.landmark.lsn {
                let is_same = (record.lsn(), record.crc()) == (self.landmark.lsn, self.landmark.crc);
                return if is_same { Ok(true) } else { Err(Error::other_history()) };
            }
        }
        Ok(false)
    }
}
