//! The data that is kept for an open transaction.

use std::hash::Hash;
use std::sync::Arc;

use base::{Lsn, Oid, PgTimestamp, Xid};
use decode::RawTuple;
use rustc_hash::FxHashMap;

use super::entry::{Head, Kind, Subject, flag, tuple_head, tuple_length};
use super::error::{Error, Kind as Failure, Unknown};
use super::event::{Origin, Prepared};
use super::input::{At, RawChange, Resolve, Target};
use super::run::{Pieces, Run};

/// Up to this many relations are searched one by one; beyond that a map is made.
const RELATIONS_WITHOUT_MAP: usize = 8;

/// A top-level transaction with its subtransactions.
#[derive(Debug)]
pub(crate) struct Transaction<R> {
    pub(crate) xid: Xid,
    /// Reading from here on finds the whole transaction again.
    pub(crate) first_lsn: Lsn,
    /// Entries of the transaction and its subtransactions.
    pub(crate) main: NamedRun<R>,
    /// Entries that subtransactions wrote before their top-level transaction was known.
    pub(crate) late: Vec<NamedRun<R>>,
    /// Its subtransactions, as far as they are known.
    pub(crate) children: Vec<Xid>,
    pub(crate) waiting: Option<Waiting>,
    pub(crate) speculative: Option<Box<Speculative<R>>>,
    /// A contradiction that is impossible if the whole transaction was seen. It becomes an error
    /// once the transaction comes out.
    pub(crate) broken: Option<(Lsn, &'static str)>,
    /// A block of the transaction came out.
    pub(crate) streamed: bool,
    /// The transaction was spilled, now or before.
    pub(crate) spilled: bool,
    pub(crate) prepared: Option<Box<Remembered>>,
}

/// Entries, with the relations that they are about.
#[derive(Debug)]
pub(crate) struct NamedRun<R> {
    pub(crate) run: Run,
    pub(crate) names: Names<R>,
}

/// Chunks whose row has not come yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting {
    /// Where they begin in the run.
    from: u64,
    /// The run of a subtransaction has further ones.
    also_late: bool,
}

impl Waiting {
    /// Whether the chunks go if everything from `position` on goes.
    pub(crate) fn is_after(self, position: u64) -> bool {
        self.from >= position && !self.also_late
    }
}

/// An insertion that is not confirmed yet. Its relation gets a number only at the confirmation,
/// because its top-level transaction may become known in between.
#[derive(Debug)]
pub(crate) struct Speculative<R> {
    pub(crate) at: At,
    object: Unknown,
    target: Target<R>,
    /// The bytes that go into the run behind the head.
    rest: Vec<u8>,
}

/// How a transaction was prepared.
#[derive(Debug, Clone)]
pub(crate) struct Remembered {
    pub(crate) lsn: Lsn,
    pub(crate) end_lsn: Lsn,
    pub(crate) time: PgTimestamp,
    pub(crate) gid: Arc<[u8]>,
    pub(crate) origin: Option<Origin>,
    /// The prepared transaction came out from here.
    pub(crate) sent: bool,
}

impl<R: Clone + Eq + Hash> Transaction<R> {
    pub(crate) fn new(xid: Xid, first_lsn: Lsn) -> Transaction<R> {
        Transaction {
            xid,
            first_lsn,
            main: NamedRun { run: Run::new(xid), names: Names::default() },
            late: Vec::new(),
            children: Vec::new(),
            waiting: None,
            speculative: None,
            broken: None,
            streamed: false,
            spilled: false,
            prepared: None,
        }
    }

    /// Bytes of memory that its changes take.
    pub(crate) fn memory(&self) -> usize {
        let late: usize = self.late.iter().map(|part| part.run.allocated()).sum();
        let held = self.speculative.as_ref().map_or(0, |held| held.rest.capacity());
        self.main.run.allocated() + late + held
    }

    /// Bytes of memory that spilling or streaming it frees.
    pub(crate) fn movable(&self) -> usize {
        self.parts().map(|part| part.run.allocated()).sum()
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = &NamedRun<R>> {
        std::iter::once(&self.main).chain(&self.late)
    }

    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = &mut NamedRun<R>> {
        std::iter::once(&mut self.main).chain(&mut self.late)
    }

    /// Whether it has left any entry.
    pub(crate) fn wrote(&self) -> bool {
        self.speculative.is_some() || self.parts().any(|part| !part.run.is_empty())
    }

    /// Whether it ends in the middle of a row, or has a change to an unknown object. What is there
    /// cannot come out yet.
    pub(crate) fn is_partial(&self) -> bool {
        self.waiting.is_some()
            || self.speculative.is_some()
            || self.prepared.is_some()
            || self.parts().any(|part| part.names.has_unknown())
    }

    /// Appends a change. A speculative one is put aside.
    pub(crate) fn change(
        &mut self,
        pieces: &mut Pieces,
        (at, object, target): (At, Unknown, Target<R>),
        change: &RawChange<'_>,
    ) {
        if let RawChange::Insert { new, speculative: true, .. } = change {
            let rest = [&tuple_head(new)[..], new.bytes].concat();
            // An earlier insertion that still waits was given up: only then does the server go on
            // to the next one.
            self.speculative = Some(Box::new(Speculative { at, object, target, rest }));
            return;
        }
        let Some(subject) = self.main.names.subject(at, object, target) else {
            return self.forget_chunks(pieces, at);
        };
        let mut head = Head { flags: flag::LAST_OF_CHUNKS, ..plain(Kind::Insert, at, subject) };
        let run = &mut self.main.run;
        match change {
            RawChange::Insert { new, last_of_chunks, .. } => {
                head.flags = if *last_of_chunks { flag::LAST_OF_CHUNKS } else { 0 };
                run.push(pieces, &head, &[&tuple_head(new), new.bytes]);
            }
            RawChange::Update { old, new } => {
                head.kind = Kind::Update;
                match old {
                    None => run.push(pieces, &head, &[&tuple_head(new), new.bytes]),
                    Some(old) => {
                        head.flags |= old_flags(old.key_only);
                        let RawTuple { bytes, .. } = old.tuple;
                        run.push(
                            pieces,
                            &head,
                            &[
                                &tuple_length(&old.tuple),
                                &tuple_head(&old.tuple),
                                bytes,
                                &tuple_head(new),
                                new.bytes,
                            ],
                        );
                    }
                }
            }
            RawChange::Delete(old) => {
                head.kind = Kind::Delete;
                match old {
                    None => run.push(pieces, &head, &[]),
                    Some(old) => {
                        head.flags |= old_flags(old.key_only);
                        run.push(pieces, &head, &[&tuple_head(&old.tuple), old.tuple.bytes]);
                    }
                }
            }
        }
        if head.flags & flag::LAST_OF_CHUNKS != 0 {
            self.waiting = None;
        }
    }

    /// Confirms the insertion that was put aside.
    pub(crate) fn confirm(&mut self, pieces: &mut Pieces, at: At) {
        let Some(held) = self.speculative.take_if(|held| held.at.xid == at.xid) else {
            self.broken = self.broken.or(Some((at.lsn, "was confirmed and never made")));
            return;
        };
        self.waiting = None;
        let Speculative { at, object, target, rest } = *held;
        if let Some(subject) = self.main.names.subject(at, object, target) {
            let head = Head { flags: flag::LAST_OF_CHUNKS, ..plain(Kind::Insert, at, subject) };
            self.main.run.push(pieces, &head, &[&rest]);
        }
    }

    /// Drops the insertion that was put aside.
    pub(crate) fn take_back(&mut self, pieces: &mut Pieces, at: At) {
        if self.speculative.take_if(|held| held.at.xid == at.xid).is_some() {
            self.forget_chunks(pieces, at);
        }
    }

    /// Appends a piece of a large value. The row that follows says which value it belongs to.
    pub(crate) fn chunk(&mut self, pieces: &mut Pieces, at: At, (value, number, bytes): (Oid, u32, &[u8])) {
        let head = plain(Kind::Chunk, at, Subject::NONE);
        self.waiting.get_or_insert(Waiting { from: self.main.run.end(), also_late: false });
        self.main.run.push(pieces, &head, &[&value.0.to_le_bytes(), &number.to_le_bytes(), bytes]);
    }

    /// Notes that the row for the last chunks does not come.
    pub(crate) fn forget_chunks(&mut self, pieces: &mut Pieces, at: At) {
        let Some(waiting) = self.waiting.take() else { return };
        let run = &mut self.main.run;
        run.remove_from(waiting.from, |head| head.kind == Kind::Chunk);
        if waiting.also_late || waiting.from < run.memory_start() {
            run.push(pieces, &plain(Kind::ForgetChunks, at, Subject::NONE), &[]);
        }
    }

    pub(crate) fn truncate(&mut self, pieces: &mut Pieces, at: At, flags: u8, subjects: &[Subject]) {
        let head = Head { flags, ..plain(Kind::Truncate, at, Subject::NONE) };
        let numbers: Vec<u8> = subjects.iter().flat_map(|subject| subject.0.to_le_bytes()).collect();
        self.main.run.push(pieces, &head, &[&numbers]);
    }

    pub(crate) fn message(
        &mut self,
        pieces: &mut Pieces,
        at: At,
        lsn: Lsn,
        (prefix, content): (&[u8], &[u8]),
    ) {
        let length = u32::try_from(prefix.len()).expect("a WAL record is below 1 GiB");
        let head = plain(Kind::Message, at, Subject::NONE);
        let rest = [&lsn.as_u64().to_le_bytes()[..], &length.to_le_bytes(), prefix, content];
        self.main.run.push(pieces, &head, &rest);
    }

    /// Takes over the entries of a transaction that has turned out to be a subtransaction of this
    /// one.
    pub(crate) fn adopt(&mut self, sub: Transaction<R>) {
        self.first_lsn = self.first_lsn.min(sub.first_lsn);
        if sub.waiting.is_some() {
            self.waiting = Some(Waiting { from: self.main.run.end(), also_late: true });
        }
        self.speculative = sub.speculative.or(self.speculative.take());
        self.broken = self.broken.or(sub.broken);
        self.late.extend(std::iter::once(sub.main).chain(sub.late).filter(|part| !part.run.is_empty()));
    }

    /// Returns how it was prepared, for the output.
    pub(crate) fn as_prepared(&self, how: &Remembered) -> Prepared {
        Prepared {
            xid: self.xid,
            first_lsn: self.first_lsn,
            prepare_lsn: how.lsn,
            end_lsn: how.end_lsn,
            prepare_time: how.time,
            gid: Arc::clone(&how.gid),
            origin: how.origin,
        }
    }

    /// Returns what is wrong with the transaction, if all of it was seen.
    pub(crate) fn check(&self, finished: Lsn) -> Result<(), Error> {
        let xid = self.xid;
        if let Some((lsn, what)) = self.broken {
            return Err(Failure::Speculative { xid, lsn, finished, what }.into());
        }
        if let Some(At { lsn, .. }) = self.speculative.as_ref().map(|held| held.at) {
            return Err(Failure::Speculative { xid, lsn, finished, what: "was never confirmed" }.into());
        }
        Ok(())
    }
}

fn old_flags(key_only: bool) -> u8 {
    flag::HAS_OLD | if key_only { flag::OLD_IS_KEY } else { 0 }
}

fn plain(kind: Kind, at: At, subject: Subject) -> Head {
    Head { kind, flags: 0, origin: at.origin.unwrap_or(0), xid: at.xid, subject, lsn: at.lsn }
}

/// The relations that entries are about, each once, and the objects that could not be identified.
#[derive(Debug)]
pub(crate) struct Names<R> {
    relations: Vec<R>,
    /// The index of the relation that was named last.
    last: usize,
    /// Data that most transactions do not need.
    rare: Option<Box<Rare<R>>>,
}

#[derive(Debug)]
struct Rare<R> {
    /// The relations' indexes, if there are many relations.
    places: FxHashMap<R, usize>,
    unknown: Vec<Use>,
    unknown_places: FxHashMap<(Unknown, Xid), usize>,
    /// What the unknown objects turned out to be: an index into the relations, or `None` for an
    /// unwanted object.
    found: Vec<Option<usize>>,
}

/// An unknown object that a (sub)transaction changed.
#[derive(Debug)]
struct Use {
    object: Unknown,
    xid: Xid,
    /// The first record that changed it.
    lsn: Lsn,
    /// The subtransaction was aborted.
    void: bool,
}

impl<R> Default for Names<R> {
    fn default() -> Self {
        Names { relations: Vec::new(), last: 0, rare: None }
    }
}

impl<R> Default for Rare<R> {
    fn default() -> Self {
        Rare {
            places: FxHashMap::default(),
            unknown: Vec::new(),
            unknown_places: FxHashMap::default(),
            found: Vec::new(),
        }
    }
}

impl<R: Clone + Eq + Hash> Names<R> {
    /// Returns the number for `object`; `None` if its rows are not wanted.
    pub(crate) fn subject(&mut self, at: At, object: Unknown, target: Target<R>) -> Option<Subject> {
        match target {
            Target::Relation(relation) => Some(Subject::relation(self.place(relation))),
            Target::Toast | Target::Unwanted => None,
            Target::Unknown => Some(self.unknown(at, object)),
        }
    }

    /// Returns the index of `relation` among the relations.
    fn place(&mut self, relation: R) -> usize {
        if self.relations.get(self.last) != Some(&relation) {
            self.last = self.find(relation);
        }
        self.last
    }

    fn find(&mut self, relation: R) -> usize {
        let count = self.relations.len();
        if count < RELATIONS_WITHOUT_MAP {
            if let Some(place) = self.relations.iter().position(|known| *known == relation) {
                return place;
            }
        } else {
            let places = &mut self.rare.get_or_insert_default().places;
            if places.is_empty() {
                let known = self.relations.iter().cloned();
                *places = known.enumerate().map(|(place, relation)| (relation, place)).collect();
            }
            let place = *places.entry(relation.clone()).or_insert(count);
            if place < count {
                return place;
            }
        }
        self.relations.push(relation);
        count
    }

    /// Returns the number for an object that could not be identified.
    pub(crate) fn unknown(&mut self, at: At, object: Unknown) -> Subject {
        let At { xid, lsn, .. } = at;
        let Rare { unknown, unknown_places, .. } = &mut **self.rare.get_or_insert_default();
        let place = *unknown_places.entry((object, xid)).or_insert_with(|| {
            unknown.push(Use { object, xid, lsn, void: false });
            unknown.len() - 1
        });
        Subject::unknown(place)
    }

    /// Whether an object could not be identified.
    fn has_unknown(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| !rare.unknown.is_empty())
    }

    /// Drops objects that only aborted subtransactions changed: they need not be identified.
    pub(crate) fn forget_unknown(&mut self, is_void: impl Fn(Xid) -> bool) {
        for unknown in self.rare.iter_mut().flat_map(|rare| &mut rare.unknown) {
            unknown.void |= is_void(unknown.xid);
        }
    }

    /// Identifies the unknown objects at the end of the transaction.
    pub(crate) fn resolve(
        &mut self,
        top: Xid,
        finished: Lsn,
        resolve: &mut dyn Resolve<R>,
    ) -> Result<(), Error> {
        let Some(mut rare) = self.rare.take() else { return Ok(()) };
        for &Use { object, xid, lsn, void } in &rare.unknown {
            let target = match object {
                _ if void => Target::Unwanted,
                Unknown::Files(locator) => resolve.files(top, locator),
                Unknown::Relation(oid) => resolve.relation(top, oid),
            };
            rare.found.push(match target {
                Target::Relation(relation) => {
                    self.relations.push(relation);
                    Some(self.relations.len() - 1)
                }
                Target::Toast | Target::Unwanted => None,
                Target::Unknown => return Err(Failure::Unresolved { object, xid, lsn, finished }.into()),
            });
        }
        self.rare = Some(rare);
        Ok(())
    }

    /// Returns the relation that an entry is about; `None` if its rows are not wanted.
    pub(crate) fn relation(&self, subject: Subject) -> Option<&R> {
        let place = match subject.index() {
            Ok(place) => place,
            Err(unknown) => self.rare.as_ref()?.found.get(unknown).copied().flatten()?,
        };
        self.relations.get(place)
    }
}
