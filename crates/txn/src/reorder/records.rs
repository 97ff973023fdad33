//! Turns records into events of transactions, as the server's `decode.c` does.

use std::hash::Hash;

use base::{Lsn, Oid, Xid};
use decode::{Decoded, Delete, Insert, MultiInsert, NewTuple, Place, RawTuple, Truncate, Update, What};
use wal::Fields;

use super::ReorderBuffer;
use super::error::{Error, Kind};
use super::event::Origin;
use super::input::{At, End, RawChange, Resolve, Target};

const NOT_LOGGED: &str = "a row of a table that is wanted is not in it";
const NO_CHUNK: &str = "a row of a TOAST relation is none";

impl<R: Clone + Eq + Hash> ReorderBuffer<R> {
    /// Takes a record from `lsn` to `end_lsn`, after the catalogs have followed it. Callers may
    /// leave out records that change nothing here. They may also leave out unwanted changes, if
    /// they call [`ReorderBuffer::passed_over`] instead.
    ///
    /// # Errors
    /// The record is impossible, the transaction that it ends cannot come out, or the spool failed.
    pub fn record(
        &mut self,
        (lsn, end_lsn): (Lsn, Lsn),
        decoded: &Decoded<'_>,
        resolve: &mut dyn Resolve<R>,
    ) -> Result<(), Error> {
        let at = At { lsn, xid: decoded.xid, origin: decoded.origin.filter(|id| *id != 0) };
        if let Some(top) = decoded.top_level_xid {
            self.assign(lsn, top, at.xid)?;
        }
        let is_foreign = self.options.local_only && at.origin.is_some();
        match &decoded.what {
            What::Commit(_) | What::Abort(_) | What::Prepare(_) => {
                self.ends(at, end_lsn, is_foreign, decoded, resolve)
            }
            What::Assignment { top, subxacts } => {
                subxacts.iter().try_for_each(|sub| self.assign(lsn, *top, sub))
            }
            What::RunningXacts(running) => self.running(lsn, running.oldest),
            _ if is_foreign => Ok(()),
            What::Message(message) if self.options.messages && message.database == self.options.database => {
                self.message(at, end_lsn, message.transactional, message.prefix, message.content)
            }
            What::Insert(insert) => self.inserted(at, insert, resolve),
            What::MultiInsert(insert) => self.inserted_many(at, insert, resolve),
            What::Update(update) => self.updated(at, update, resolve),
            What::Delete(delete) => self.deleted(at, delete, resolve),
            What::Confirm(confirm) => match self.target(at, confirm.place, resolve) {
                Target::Unwanted | Target::Toast => Ok(()),
                Target::Relation(_) | Target::Unknown => self.confirm(at),
            },
            What::Truncate(truncate) => self.truncated(at, truncate, resolve),
            // The other records are about catalogs and files.
            _ => Ok(()),
        }
    }

    /// Notes that an unwanted change of `xid` was dropped unread. `top` is the top-level
    /// transaction that its record names.
    ///
    /// # Errors
    /// As [`ReorderBuffer::assign`].
    pub fn passed_over(&mut self, lsn: Lsn, xid: Xid, top: Option<Xid>) -> Result<(), Error> {
        if let Some(top) = top {
            self.assign(lsn, top, xid)?;
        }
        if self.waiting == 0 { self.enter(lsn) } else { self.dropped(At { lsn, xid, origin: None }) }
    }

    fn target(&self, at: At, place: Place, resolve: &mut dyn Resolve<R>) -> Target<R> {
        resolve.files(self.top_of(at.xid), place.locator)
    }

    fn broken<T>(&mut self, at: At, what: &'static str) -> Result<T, Error> {
        self.noting(Err(Kind::Row { lsn: at.lsn, xid: at.xid, what }.into()))
    }

    /// Returns the row in a record; a row of a relation that can be published must be there.
    fn whole<'a>(&mut self, at: At, tuple: &NewTuple<'a>) -> Result<RawTuple<'a>, Error> {
        match tuple {
            NewTuple::Whole(tuple) => Ok(*tuple),
            NewTuple::Spliced(_) | NewTuple::InImage(_) => self.broken(at, NOT_LOGGED),
        }
    }

    fn inserted(&mut self, at: At, insert: &Insert<'_>, resolve: &mut dyn Resolve<R>) -> Result<(), Error> {
        // Rows that a rewrite copies, and rows of catalogs.
        if !insert.is_logical {
            return Ok(());
        }
        let target = self.target(at, insert.place, resolve);
        let new = self.whole(at, &insert.tuple)?;
        if insert.is_toast || target == Target::Toast {
            return self.chunk_of(at, insert.place, &target, &new);
        }
        let change = RawChange::Insert { new, last_of_chunks: true, speculative: insert.is_speculative };
        self.wanted(at, insert.place, target, &change)
    }

    fn inserted_many(
        &mut self,
        at: At,
        insert: &MultiInsert<'_>,
        resolve: &mut dyn Resolve<R>,
    ) -> Result<(), Error> {
        if !insert.is_logical {
            return Ok(());
        }
        let count = usize::from(insert.count());
        for (number, (place, tuple)) in insert.rows().enumerate() {
            let target = self.target(at, place, resolve);
            let new = self.whole(at, &tuple)?;
            if insert.is_toast || target == Target::Toast {
                self.chunk_of(at, place, &target, &new)?;
                continue;
            }
            // The server wrote the chunks of all rows before the first row.
            let last_of_chunks = insert.is_last && number + 1 == count;
            let change = RawChange::Insert { new, last_of_chunks, speculative: false };
            self.wanted(at, place, target, &change)?;
        }
        Ok(())
    }

    fn updated(&mut self, at: At, update: &Update<'_>, resolve: &mut dyn Resolve<R>) -> Result<(), Error> {
        let target = self.target(at, update.place, resolve);
        match target {
            Target::Relation(_) => {}
            // Catalogs, which the catalogs' follower knows. A row that is not in the record can
            // belong to no other relation.
            Target::Unknown if !update.is_logical => return Ok(()),
            Target::Unknown => {}
            Target::Toast | Target::Unwanted => return self.dropped(at),
        }
        if !update.is_logical {
            return self.broken(at, NOT_LOGGED);
        }
        let new = self.whole(at, &update.tuple)?;
        self.wanted(at, update.place, target, &RawChange::Update { old: update.old, new })
    }

    fn deleted(&mut self, at: At, delete: &Delete<'_>, resolve: &mut dyn Resolve<R>) -> Result<(), Error> {
        let target = self.target(at, delete.place, resolve);
        match target {
            // Chunks go with their row. Those of an insertion that is taken back go when its own
            // record comes.
            Target::Toast => Ok(()),
            Target::Unwanted => self.dropped(at),
            Target::Relation(_) | Target::Unknown if delete.is_super => self.take_back(at),
            // A row of a catalog, or of a table without replica identity: there is nothing to send.
            Target::Unknown if delete.old.is_none() => Ok(()),
            Target::Relation(_) | Target::Unknown => {
                self.wanted(at, delete.place, target, &RawChange::Delete(delete.old))
            }
        }
    }

    fn truncated(
        &mut self,
        at: At,
        truncate: &Truncate<'_>,
        resolve: &mut dyn Resolve<R>,
    ) -> Result<(), Error> {
        if truncate.database != self.options.database {
            return Ok(());
        }
        let top = self.top_of(at.xid);
        let relations: Vec<_> =
            truncate.relations.iter().map(|oid| (oid, resolve.relation(top, oid))).collect();
        self.truncate(at, (truncate.cascade, truncate.restart_identity), relations)
    }

    fn wanted(
        &mut self,
        at: At,
        place: Place,
        target: Target<R>,
        change: &RawChange<'_>,
    ) -> Result<(), Error> {
        match target {
            Target::Unwanted => self.dropped(at),
            target => self.change(at, place.locator, target, change),
        }
    }

    /// Reads a row of a TOAST relation: `chunk_id oid, chunk_seq int4, chunk_data bytea`. No column
    /// is ever NULL, and the last one is neither compressed nor out of line.
    fn chunk_of(
        &mut self,
        at: At,
        place: Place,
        target: &Target<R>,
        tuple: &RawTuple<'_>,
    ) -> Result<(), Error> {
        if *target == Target::Unwanted {
            return Ok(());
        }
        let Some((value, number, data)) = chunk(tuple) else { return self.broken(at, NO_CHUNK) };
        match types::payload(data) {
            Ok(std::borrow::Cow::Borrowed(bytes)) => {
                self.chunk(at, place.locator, target, (value, number, bytes))
            }
            _ => self.broken(at, NO_CHUNK),
        }
    }

    fn ends(
        &mut self,
        at: At,
        end_lsn: Lsn,
        is_foreign: bool,
        decoded: &Decoded<'_>,
        resolve: &mut dyn Resolve<R>,
    ) -> Result<(), Error> {
        let mut subxacts = std::mem::take(&mut self.xids);
        subxacts.clear();
        let (xid, time, progress, gid, database) = match &decoded.what {
            What::Commit(ended) | What::Abort(ended) => {
                subxacts.extend(ended.subxacts.iter());
                let gid = ended.is_prepared.then_some(ended.gid.unwrap_or_default());
                (ended.xid, ended.time, ended.origin, gid, ended.database)
            }
            What::Prepare(prepared) => {
                subxacts.extend(prepared.subxacts.iter());
                (prepared.xid, prepared.time, prepared.origin, Some(prepared.gid), Some(prepared.database))
            }
            _ => return Ok(()),
        };
        let origin = at.origin.map(|id| Origin { id, lsn: progress.map_or(Lsn::INVALID, |at| at.lsn) });
        // A prepare record always has a place for the origin's position and time, which is empty
        // without an origin. A commit or abort record has no such place in that case. Its time may
        // be zero: the first commit of a session that was never told a time has that.
        let is_prepare = matches!(decoded.what, What::Prepare(_));
        let progress_time = progress.map(|progress| progress.time).filter(|time| time.0 != 0 || !is_prepare);
        let time = progress_time.unwrap_or(time);
        let end = End { xid, lsn: at.lsn, end_lsn, time, origin, subxacts: &subxacts, gid };
        let is_ours = database.is_none_or(|database| database == self.options.database || database == Oid(0));
        let is_skipped = is_foreign || !is_ours;
        let done = match &decoded.what {
            What::Commit(_) if is_skipped => self.forget(&end),
            What::Commit(_) => self.commit(&end, resolve),
            What::Prepare(_) if is_skipped => self.enter(at.lsn),
            What::Prepare(_) => self.prepare(&end, resolve),
            // If the transaction was not sent, its rollback must not be sent either.
            _ if is_skipped => self.abort(&End { gid: None, ..end }),
            _ => self.abort(&end),
        };
        self.xids = subxacts;
        done
    }
}

fn chunk<'a>(tuple: &RawTuple<'a>) -> Option<(Oid, u32, &'a [u8])> {
    if tuple.null_bitmap().is_some() || tuple.attributes() != 3 {
        return None;
    }
    let mut fields = Fields::new(tuple.data());
    let (value, number) = (fields.oid()?, u32::try_from(fields.i32()?).ok()?);
    // A header of four bytes behind eight bytes is aligned like a header of one byte.
    Some((value, number, fields.rest()))
}
