//! The wiring: from bytes to messages.
//!
//! ```text
//! bytes --> wal::Reader --> Catalog::follow --> LocatorFilterCache --> decode --> ReorderBuffer --> Writer --> Output
//!                              |  what changed      ^ nobody wants it:              ^
//!                              '------> Tables -----' dropped unread                '- Tables: which table, as of now
//! ```
//!
//! [`Group`] has the steps for each record. Here, a group has one member.

use base::{Lsn, Oid, Xid};
use catalog::Catalog;
use txn::Spool;
use wal::{Reader, Records, Start};

use crate::deletions::Deleted;
use crate::error::{Error, Kind, RefusedTable, Result};
use crate::group::{Group, Member, Place};
use crate::options::Options;
use crate::writer::{Counters, Output};

/// See the crate.
pub struct Decoder {
    reader: Reader,
    /// Has one member.
    pub(crate) group: Group,
    failed: bool,
}

/// The messages from some bytes of WAL. If it is dropped before its end, [`Decoder::position`] says
/// from where bytes must be handed over again.
pub struct Outputs<'d, 'b> {
    records: Records<'d, 'b>,
    group: &'d mut Group,
    failed: &'d mut bool,
}

impl Decoder {
    /// Makes a decoder that has seen no WAL. It begins where `catalog` does. Transactions that the
    /// look at the catalogs saw ([`Catalog::is_before`]) do not come out.
    ///
    /// # Errors
    /// The options contradict one another, or the server's major does not have them.
    pub fn new(catalog: Catalog, options: Options, spool: Box<dyn Spool>) -> Result<Decoder, Error> {
        let server = catalog.server();
        options.check(server.major)?;
        if catalog.view(options.database, Xid::INVALID).is_none() {
            return Err(Error::options(format!("database {} is none that was looked at", options.database)));
        }
        let reader = reader_of(&catalog, &options)?;
        let group = Group::new(catalog, reader.position(), Member::new(options, spool));
        Ok(Decoder { reader, group, failed: false })
    }

    /// Makes a decoder of a group that was a part of a pass.
    pub(crate) fn of(group: Group) -> Result<Decoder> {
        let reader = reader_of(&group.catalog, &group.members[0].options)?;
        Ok(Decoder { reader, group, failed: false })
    }

    pub(crate) fn into_parts(self) -> (Reader, Group) {
        (self.reader, self.group)
    }

    /// What it was made with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.group.members[0].options
    }

    /// Where the next bytes must begin: at first at the page of [`Catalog::start`], later where the
    /// last bytes ended.
    #[must_use]
    pub fn position(&self) -> Lsn {
        self.reader.position()
    }

    /// Takes bytes of WAL, any number of them, from [`Decoder::position`] on. Poll the result until
    /// it has nothing more.
    ///
    /// # Errors
    /// There was an error before.
    pub fn push<'d, 'b>(&'d mut self, bytes: &'b [u8]) -> Result<Outputs<'d, 'b>, Error> {
        if self.failed {
            return Err(Error::new(Kind::Over));
        }
        let records = self.reader.push(self.reader.position(), bytes)?;
        Ok(Outputs { records, group: &mut self.group, failed: &mut self.failed })
    }

    /// The end of WAL, if the bytes showed it: from there on came only zeros, or pages of an
    /// earlier use of the segment. The caller must know whether WAL may end there.
    #[must_use]
    pub fn end_of_wal(&self) -> Option<Lsn> {
        self.reader.zeros_from()
    }

    /// Notes that there are no more bytes, and returns where the next record would start.
    /// Transactions that are open then do not come out.
    ///
    /// # Errors
    /// The bytes ended in the middle of a record, or there was an error before.
    pub fn finish(&self) -> Result<Lsn, Error> {
        if self.failed {
            return Err(Error::new(Kind::Over));
        }
        Ok(self.reader.finish()?)
    }

    /// Where the last record that was read ended; see [`Place::decoded`].
    #[must_use]
    pub fn decoded(&self) -> Lsn {
        self.group.end
    }

    /// The catalogs, and how far WAL was read.
    #[must_use]
    pub fn place(&self) -> Place<'_> {
        self.group.place()
    }

    /// Where reading must begin again once the output up to [`Decoder::decoded`] is confirmed. The
    /// catalogs must then be as of that place.
    #[must_use]
    pub fn restart_lsn(&self) -> Lsn {
        self.member().buffer.restart_lsn(self.decoded())
    }

    /// The number of open transactions that have left something that may come out.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.member().buffer.open_count()
    }

    /// Counts of what was decoded so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.member().counters()
    }

    /// Records that were dropped unread because no member wants them, by relation.
    #[must_use]
    pub fn dropped(&self) -> Vec<(Oid, wal::Dropped)> {
        let dropped = self.group.cache.dropped().into_iter();
        dropped.map(|((_, relation), dropped)| (relation, dropped)).collect()
    }

    /// Tables that were left out because they cannot come out, even if they are gone by now. Also
    /// tables that could not come out with the present catalogs.
    ///
    /// # Errors
    /// The catalogs contradict themselves.
    pub fn refused(&mut self) -> Result<Vec<RefusedTable>, Error> {
        let Group { catalog, members, .. } = &mut self.group;
        members[0].tables.refused(catalog)
    }

    fn member(&self) -> &Member {
        &self.group.members[0]
    }
}

/// Makes a reader that goes on behind the last record that the catalogs followed, or begins where
/// they do.
fn reader_of(catalog: &Catalog, options: &Options) -> Result<Reader> {
    let followed = catalog.last();
    let start = Start {
        lsn: if followed.is_valid() { followed } else { catalog.start() },
        segment_size: options.segment_size,
        system_id: Some(catalog.server().system_id),
        timeline: None,
    };
    Ok(Reader::new(start)?)
}

impl Outputs<'_, '_> {
    /// The next message; `None` when more bytes are needed.
    ///
    /// # Errors
    /// Any error, with its LSN. Nothing comes out afterwards.
    #[allow(clippy::should_implement_trait, reason = "what it gives is borrowed from it")]
    pub fn next(&mut self) -> Result<Option<Output<'_>>, Error> {
        if *self.failed {
            return Err(Error::new(Kind::Over));
        }
        match self.advance() {
            Ok(true) => Ok(self.group.members[0].output()),
            Ok(false) => Ok(None),
            Err(error) => {
                *self.failed = true;
                Err(error)
            }
        }
    }

    /// As [`crate::Steps::describe_again`].
    pub fn describe_again(&mut self) {
        self.group.members[0].writer.describe_again();
    }

    /// The next deletion, where the options ask for these.
    pub(crate) fn next_deletion(&mut self) -> Result<Option<Deleted>> {
        if *self.failed {
            return Err(Error::new(Kind::Over));
        }
        match self.advance() {
            Ok(true) => Ok(self.group.members[0].take_deletion()),
            Ok(false) => Ok(None),
            Err(error) => {
                *self.failed = true;
                Err(error)
            }
        }
    }

    fn advance(&mut self) -> Result<bool> {
        loop {
            let Group { catalog, members, .. } = &mut *self.group;
            if members[0].advance(catalog)? {
                return Ok(true);
            }
            match self.records.poll()? {
                Some(record) => self.group.take(&record)?,
                None => return Ok(false),
            }
        }
    }
}

/// A source of changes lives in a task of its own.
const _: () = {
    const fn may_be_sent<T: Send>() {}
    may_be_sent::<Decoder>();
};
