//! The wiring.

use base::{Lsn, Oid, Xid};
use catalog::Catalog;
use txn::Spool;

use crate::error::{Error, Refused};
use crate::options::Options;

/// One message: a row of `pg_logical_slot_get_binary_changes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output<'a> {
    /// `lsn`.
    pub lsn: Lsn,
    /// `xid`.
    pub xid: Xid,
    /// `data`.
    pub data: &'a [u8],
}

/// See the crate.
pub struct Decoder {}

/// What comes out of some bytes of WAL. Dropped before its end, the bytes that were not needed yet are handed over
/// again: [`Decoder::position`] says from where.
pub struct Outputs<'d, 'b> {
    decoder: &'d mut Decoder,
    bytes: &'b [u8],
}

/// How much was decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Of transactions that were spilled and streamed.
    pub reorder: txn::reorder::Counters,
    /// Transactions that came out: their commit, or that they were prepared.
    pub transactions: u64,
    /// Rows that came out.
    pub rows: u64,
    /// Transactions that were left out because the look at the catalogs saw them.
    pub seen_by_look: u64,
}

impl Decoder {
    /// A decoder that has seen no WAL. It begins where `catalog` does; transactions that the look at it saw
    /// ([`Catalog::is_before`]) do not come out.
    ///
    /// # Errors
    /// When options contradict one another, or the server's major has them not.
    pub fn new(_catalog: Catalog, _options: Options, _spool: Box<dyn Spool>) -> Result<Decoder, Error> {
        todo!()
    }

    /// Where the next bytes must begin: at first at the page of [`Catalog::start`], then where the bytes before ended.
    #[must_use]
    pub fn position(&self) -> Lsn {
        todo!()
    }

    /// Takes bytes of WAL, any number of them, from [`Decoder::position`] on. Poll the result until it has nothing more.
    ///
    /// # Errors
    /// There was an error before.
    pub fn push<'d, 'b>(&'d mut self, _bytes: &'b [u8]) -> Result<Outputs<'d, 'b>, Error> {
        todo!()
    }

    /// Where WAL ended, if it did: nothing but zeros came from there on, or pages of an earlier use of the segment.
    #[must_use]
    pub fn end_of_wal(&self) -> Option<Lsn> {
        todo!()
    }

    /// There are no more bytes: where the next record would start. What is open then does not come out.
    ///
    /// # Errors
    /// They ended in the middle of a record, or there was an error before.
    pub fn finish(&self) -> Result<Lsn, Error> {
        todo!()
    }

    /// Where reading has to begin again, once all that came out is confirmed.
    #[must_use]
    pub fn restart_lsn(&self) -> Lsn {
        todo!()
    }

    /// How much was decoded so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        todo!()
    }

    /// What was dropped unread because nobody wants it, by relation.
    #[must_use]
    pub fn dropped(&self) -> Vec<(Oid, wal::Dropped)> {
        todo!()
    }

    /// Tables that would come out as the catalogs are now, but cannot.
    ///
    /// # Errors
    /// When the catalogs contradict themselves.
    pub fn refused(&self) -> Result<Vec<Refused>, Error> {
        todo!()
    }

    /// The catalogs, as they are at the last record that was read.
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        todo!()
    }
}

impl Outputs<'_, '_> {
    /// The next message; `None` when more bytes are needed.
    ///
    /// # Errors
    /// Whatever is wrong, with its LSN. Nothing comes out any more.
    #[allow(clippy::should_implement_trait, reason = "what it gives is borrowed from it")]
    pub fn next(&mut self) -> Result<Option<Output<'_>>, Error> {
        let _ = (&self.decoder, self.bytes);
        todo!()
    }
}
