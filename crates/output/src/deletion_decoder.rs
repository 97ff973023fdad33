//! WAL in, deletions out.
//!
//! ```text
//! let mut decoder = DeletionDecoder::new(catalog, options, origins, spool)?;
//! for bytes in wal {
//!     let mut deletions = decoder.push(bytes)?;
//!     while let Some(deletion) = deletions.next()? { ... }
//! }
//! ```
//! It is the [`Decoder`] with another writer; `deletions` says what comes out.

use base::Lsn;
use catalog::Catalog;
use txn::Spool;

use crate::decoder::{Decoder, Outputs};
use crate::deletions::Deleted;
use crate::error::Error;
use crate::group::Place;
use crate::options::Options;

/// See the module.
pub struct DeletionDecoder(Decoder);

/// The deletions from some bytes of WAL.
pub struct Deletions<'d, 'b>(Outputs<'d, 'b>);

impl DeletionDecoder {
    /// Makes a decoder that begins where `catalog` does. Of the options, those that concern
    /// messages and publications do not matter. Changes of `skipped_origins` do not come out.
    ///
    /// # Errors
    /// As [`Decoder::new`].
    pub fn new(
        catalog: Catalog,
        options: Options,
        skipped_origins: Vec<u16>,
        spool: Box<dyn Spool>,
    ) -> Result<DeletionDecoder, Error> {
        let options = Options { deletions: Some(skipped_origins), ..options };
        Decoder::new(catalog, options, spool).map(DeletionDecoder)
    }

    /// As [`Decoder::position`].
    #[must_use]
    pub fn position(&self) -> Lsn {
        self.0.position()
    }

    /// As [`Decoder::place`].
    #[must_use]
    pub fn place(&self) -> Place<'_> {
        self.0.place()
    }

    /// Where the last record that was read begins, and its checksum; `None` before the first.
    #[must_use]
    pub fn last_record(&self) -> Option<(Lsn, u32)> {
        self.0.group.last
    }

    /// Takes bytes of WAL, as [`Decoder::push`] does.
    ///
    /// # Errors
    /// There was an error before.
    pub fn push<'d, 'b>(&'d mut self, bytes: &'b [u8]) -> Result<Deletions<'d, 'b>, Error> {
        self.0.push(bytes).map(Deletions)
    }
}

impl Deletions<'_, '_> {
    /// The next deletion; `None` when more bytes are needed.
    ///
    /// # Errors
    /// Any error, with its LSN. Nothing comes out afterwards.
    #[allow(clippy::should_implement_trait, reason = "it fails")]
    pub fn next(&mut self) -> Result<Option<Deleted>, Error> {
        self.0.next_deletion()
    }
}
