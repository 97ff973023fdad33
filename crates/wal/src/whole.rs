//! How far bytes of WAL are whole records.

use base::Lsn;

use crate::error::Result;
use crate::reader::Reader;

/// How much of some WAL is whole records, which passed all checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Whole {
    /// The start of the last record.
    pub last: Lsn,
    /// The end of the last record. Behind a switch, the end of its segment.
    pub end: Lsn,
}

impl Whole {
    /// Moves behind the last whole record of `bytes`, which go to `reader` and begin `at`. It never
    /// moves back.
    ///
    /// # Errors
    /// Those of the reader. The records before the error count.
    pub fn read(&mut self, reader: &mut Reader, at: Lsn, bytes: &[u8]) -> Result<()> {
        let mut end = self.end;
        let mut records = reader.push(at, bytes)?;
        let read = loop {
            match records.poll() {
                Ok(Some(record)) => (self.last, end) = (record.lsn(), record.end()),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        // Behind a switch the rest of the segment has no records, but belongs to it.
        if let Ok(next) = reader.finish() {
            end = end.max(next);
        }
        self.end = self.end.max(end.min(reader.position()));
        read
    }
}
