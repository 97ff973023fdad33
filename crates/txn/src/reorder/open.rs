//! What happens to open transactions: they grow, and they end.
//!
//! A session does one thing after the other. So entries of a transaction and its subtransactions
//! come in the order of WAL, and go into one run. The place where each subtransaction began is
//! kept. An abort then removes its entries in memory from that place on.

use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use base::{Lsn, Oid, PgTimestamp, RelFileLocator, Xid};
use rustc_hash::FxHashSet;

use super::entry::flag;
use super::error::{Error, Kind, Unknown};
use super::event::{Boundary, Finished, Prepared};
use super::input::{At, End, RawChange, Resolve, Target};
use super::replay::Replay;
use super::run::Pieces;
use super::transaction::{NamedRun, Remembered, Transaction};
use super::{NO_TIME, Output, ReorderBuffer, Sub, aborted, block};

impl<R: Clone + Eq + Hash> ReorderBuffer<R> {
    /// Every function that gets a record calls this first.
    pub(super) fn enter(&mut self, lsn: Lsn) -> Result<(), Error> {
        self.alive()?;
        assert!(self.output.is_empty() && self.current.is_none(), "what is to come out is taken first");
        assert!(lsn >= self.lsn, "records come in the order of WAL: {lsn} after {}", self.lsn);
        self.lsn = lsn;
        Ok(())
    }

    /// Notes that `sub` is a subtransaction of `top`. Called for the first record of each
    /// subtransaction, even if that record is not wanted.
    ///
    /// # Errors
    /// An earlier record named another top-level transaction.
    pub fn assign(&mut self, lsn: Lsn, top: Xid, sub: Xid) -> Result<(), Error> {
        self.enter(lsn)?;
        let assigned = self.adopt(lsn, top, sub);
        self.noting(assigned)
    }

    fn adopt(&mut self, lsn: Lsn, top: Xid, sub: Xid) -> Result<(), Error> {
        let another = |before| Error::from(Kind::Assigned { lsn, xid: sub, top, before });
        if let Some(known) = self.subs.get(&sub) {
            return if known.top == top { Ok(()) } else { Err(another(known.top)) };
        }
        if top == sub || self.subs.contains_key(&top) {
            return Err(another(self.top_of(top)));
        }
        let own = self.open.remove(&sub);
        if own.as_ref().is_some_and(|own| own.streamed || own.prepared.is_some() || !own.children.is_empty())
        {
            return Err(another(sub));
        }
        let transaction = self.open.entry(top).or_insert_with(|| Transaction::new(top, lsn));
        transaction.children.push(sub);
        let wrote = own.as_ref().is_some_and(Transaction::wrote);
        if let Some(own) = own {
            // Waiting chunks are counted by transaction.
            self.waiting -= usize::from(own.waiting.is_some() && transaction.waiting.is_some());
            transaction.adopt(own);
        }
        self.subs.insert(sub, Sub { top, start: None, wrote, streamed: false, aborted: false });
        Ok(())
    }

    /// Adds an entry to the transaction of a record, and updates the count of transactions with
    /// waiting chunks.
    fn grow(&mut self, at: At, add: impl FnOnce(&mut Transaction<R>, &mut Pieces)) -> Result<(), Error> {
        let top = match self.subs.get_mut(&at.xid) {
            None => at.xid,
            Some(Sub { aborted: true, .. }) => return Err(Kind::Ended { lsn: at.lsn, xid: at.xid }.into()),
            Some(sub) => {
                sub.wrote = true;
                if sub.start.is_none() {
                    sub.start = self.open.get(&sub.top).map(|transaction| transaction.main.run.end());
                }
                sub.top
            }
        };
        let transaction = self.open.entry(top).or_insert_with(|| Transaction::new(top, at.lsn));
        let (before, waited) = (transaction.memory(), transaction.waiting.is_some());
        add(transaction, &mut self.pieces);
        self.memory = self.memory + transaction.memory() - before;
        self.waiting = self.waiting + usize::from(transaction.waiting.is_some()) - usize::from(waited);
        Ok(())
    }

    /// Adds a change to a row of the relation in `files`.
    ///
    /// # Errors
    /// An earlier error; or the transaction was over.
    pub fn change(
        &mut self,
        at: At,
        files: RelFileLocator,
        target: Target<R>,
        change: &RawChange<'_>,
    ) -> Result<(), Error> {
        self.enter(at.lsn)?;
        let to = (at, Unknown::Files(files), target);
        let grown = self.grow(at, |transaction, pieces| transaction.change(pieces, to, change));
        self.noting(grown)
    }

    /// Confirms the last speculative insertion of the transaction.
    ///
    /// # Errors
    /// As [`ReorderBuffer::change`].
    pub fn confirm(&mut self, at: At) -> Result<(), Error> {
        self.enter(at.lsn)?;
        let grown = self.grow(at, |transaction, pieces| transaction.confirm(pieces, at));
        self.noting(grown)
    }

    /// Takes back the last speculative insertion of the transaction.
    ///
    /// # Errors
    /// As [`ReorderBuffer::change`].
    pub fn take_back(&mut self, at: At) -> Result<(), Error> {
        self.enter(at.lsn)?;
        if !self.open.contains_key(&self.top_of(at.xid)) {
            return Ok(());
        }
        let grown = self.grow(at, |transaction, pieces| transaction.take_back(pieces, at));
        self.noting(grown)
    }

    /// Adds a piece of a large value; `number` counts the pieces of each `value` from 0.
    ///
    /// # Errors
    /// As [`ReorderBuffer::change`].
    pub fn chunk(
        &mut self,
        at: At,
        files: RelFileLocator,
        target: &Target<R>,
        piece: (Oid, u32, &[u8]),
    ) -> Result<(), Error> {
        self.enter(at.lsn)?;
        if *target == Target::Unwanted {
            return Ok(());
        }
        let grown = self.grow(at, |transaction, pieces| {
            if *target == Target::Unknown {
                transaction.main.names.unknown(at, Unknown::Files(files));
            }
            transaction.chunk(pieces, at, piece);
        });
        self.noting(grown)
    }

    /// Notes that an unwanted change was left out. Chunks before it belonged to it, and are
    /// forgotten.
    ///
    /// # Errors
    /// As [`ReorderBuffer::change`].
    pub fn dropped(&mut self, at: At) -> Result<(), Error> {
        self.enter(at.lsn)?;
        let top = self.top_of(at.xid);
        if self.waiting == 0 || self.open.get(&top).is_none_or(|transaction| transaction.waiting.is_none()) {
            return Ok(());
        }
        let grown = self.grow(at, |transaction, pieces| transaction.forget_chunks(pieces, at));
        self.noting(grown)
    }

    /// Adds a TRUNCATE of one or more tables.
    ///
    /// # Errors
    /// As [`ReorderBuffer::change`].
    pub fn truncate(
        &mut self,
        at: At,
        (cascade, restart_identity): (bool, bool),
        relations: impl IntoIterator<Item = (Oid, Target<R>)>,
    ) -> Result<(), Error> {
        self.enter(at.lsn)?;
        let mut relations =
            relations.into_iter().filter(|(_, target)| *target != Target::Unwanted).peekable();
        if relations.peek().is_none() {
            return Ok(());
        }
        let flags = if cascade { flag::CASCADE } else { 0 };
        let flags = flags | if restart_identity { flag::RESTART_IDENTITY } else { 0 };
        let grown = self.grow(at, |transaction, pieces| {
            let names = &mut transaction.main.names;
            let subject = |(oid, target)| names.subject(at, Unknown::Relation(oid), target);
            let subjects: Vec<_> = relations.filter_map(subject).collect();
            transaction.truncate(pieces, at, flags, &subjects);
        });
        self.noting(grown)
    }

    /// Adds a logical message, whose record ends at `end_lsn`. A message that is not transactional
    /// comes out at once.
    ///
    /// # Errors
    /// As [`ReorderBuffer::change`].
    pub fn message(
        &mut self,
        at: At,
        end_lsn: Lsn,
        transactional: bool,
        prefix: &[u8],
        content: &[u8],
    ) -> Result<(), Error> {
        self.enter(at.lsn)?;
        if transactional {
            let grown = self
                .grow(at, |transaction, pieces| transaction.message(pieces, at, end_lsn, (prefix, content)));
            return self.noting(grown);
        }
        if at.lsn >= self.options.start {
            let (prefix, content) = (prefix.to_vec(), content.to_vec());
            self.output.push_back(Output::Message { lsn: end_lsn, xid: at.xid, prefix, content });
        }
        Ok(())
    }

    /// Ends a transaction that committed. A prepared transaction has a `gid`.
    ///
    /// # Errors
    /// The spool failed, an object could not be identified, or the transaction is not whole.
    pub fn commit(&mut self, end: &End<'_>, resolve: &mut dyn Resolve<R>) -> Result<(), Error> {
        self.enter(end.lsn)?;
        let committed =
            if end.lsn < self.options.start { self.leave(end) } else { self.finish(end, resolve) };
        self.noting(committed)
    }

    fn finish(&mut self, end: &End<'_>, resolve: &mut dyn Resolve<R>) -> Result<(), Error> {
        let two_phase_at = self.options.two_phase_at.filter(|_| end.gid.is_some());
        let Some(mut transaction) = self.end(end.xid, end.subxacts)? else { return Ok(()) };
        let finished = Finished {
            xid: end.xid,
            first_lsn: transaction.transaction.first_lsn,
            final_lsn: end.lsn,
            end_lsn: end.end_lsn,
            commit_time: end.time,
            origin: end.origin,
        };
        let remembered = transaction.transaction.prepared.take();
        if let (Some(two_phase_at), Some(how)) = (two_phase_at, remembered) {
            if !how.sent && how.lsn < two_phase_at {
                let prepared = transaction.transaction.as_prepared(&how);
                self.emit_prepared(transaction, end.lsn, prepared, resolve)?;
            } else {
                transaction.transaction.discard(&mut *self.spool)?;
            }
            let told = Boundary::CommitPrepared { commit: finished, gid: Arc::clone(&how.gid) };
            self.output.push_back(Output::Boundary(told));
            return Ok(());
        }
        if transaction.transaction.streamed {
            self.emit(transaction, end.lsn, block(end.xid, false), resolve)?;
            self.output.push_back(Output::Boundary(Boundary::StreamCommit(finished)));
            return Ok(());
        }
        self.emit(transaction, end.lsn, (Boundary::Begin(finished), Boundary::Commit(finished)), resolve)
    }

    /// Notes that a transaction was prepared.
    ///
    /// # Errors
    /// As [`ReorderBuffer::commit`].
    pub fn prepare(&mut self, end: &End<'_>, resolve: &mut dyn Resolve<R>) -> Result<(), Error> {
        self.enter(end.lsn)?;
        let Some(two_phase_at) = self.options.two_phase_at else { return Ok(()) };
        let comes_out = end.lsn >= self.options.start && end.lsn >= two_phase_at;
        let prepared = self.remember(end, comes_out, resolve);
        self.noting(prepared)
    }

    fn remember(&mut self, end: &End<'_>, sent: bool, resolve: &mut dyn Resolve<R>) -> Result<(), Error> {
        let how = Remembered {
            lsn: end.lsn,
            end_lsn: end.end_lsn,
            time: end.time,
            gid: Arc::from(end.gid.unwrap_or_default()),
            origin: end.origin,
            sent,
        };
        if !sent {
            // The transaction came out before this process started, or it will come out when it
            // commits.
            self.open.entry(end.xid).or_insert_with(|| Transaction::new(end.xid, end.lsn)).prepared =
                Some(Box::new(how));
            return Ok(());
        }
        let ended = match self.end(end.xid, end.subxacts)? {
            Some(ended) => ended,
            None => EndedTransaction::new(Transaction::new(end.xid, end.lsn)),
        };
        let prepared = ended.transaction.as_prepared(&how);
        self.emit_prepared(ended, end.lsn, prepared, resolve)?;
        // A restart at this record can learn again how the transaction was prepared, and that is
        // all that is still needed.
        let mut rest = Transaction::new(end.xid, end.lsn);
        rest.prepared = Some(Box::new(how));
        self.open.insert(end.xid, rest);
        Ok(())
    }

    fn emit_prepared(
        &mut self,
        ended: EndedTransaction<R>,
        finished: Lsn,
        prepared: Prepared,
        resolve: &mut dyn Resolve<R>,
    ) -> Result<(), Error> {
        if !ended.transaction.streamed {
            let around = (Boundary::BeginPrepare(prepared.clone()), Boundary::Prepare(prepared));
            return self.emit(ended, finished, around, resolve);
        }
        self.emit(ended, finished, block(prepared.xid, false), resolve)?;
        self.output.push_back(Output::Boundary(Boundary::StreamPrepare(prepared)));
        Ok(())
    }

    /// Puts a whole transaction into the output.
    fn emit(
        &mut self,
        ended: EndedTransaction<R>,
        finished: Lsn,
        around: (Boundary, Boundary),
        resolve: &mut dyn Resolve<R>,
    ) -> Result<(), Error> {
        let EndedTransaction { transaction, aborted, undecided } = ended;
        transaction.check(finished)?;
        if let Some(xid) = undecided {
            return Err(Kind::Undecided { xid, top: transaction.xid, finished }.into());
        }
        let top = transaction.xid;
        let (mut main, mut late) = (transaction.main, transaction.late);
        for part in [&mut main].into_iter().chain(&mut late) {
            part.names.resolve(top, finished, resolve)?;
        }
        let replay = Replay::new(top, (main, late), aborted, around, &mut *self.spool)?;
        self.output.push_back(Output::Replay(Box::new(replay)));
        Ok(())
    }

    /// Ends a transaction or subtransaction that aborted. A prepared transaction has a `gid`.
    ///
    /// # Errors
    /// The spool failed.
    pub fn abort(&mut self, end: &End<'_>) -> Result<(), Error> {
        self.enter(end.lsn)?;
        // A subtransaction that wrote nothing itself may be unknown, while those below it are
        // known.
        let mut tops = [&end.xid]
            .into_iter()
            .chain(end.subxacts)
            .filter_map(|xid| self.subs.get(xid))
            .map(|sub| sub.top);
        let aborted = match tops.next() {
            Some(top) if top != end.xid => self.abort_sub(top, end),
            _ => self.abort_top(end),
        };
        self.noting(aborted)
    }

    fn abort_top(&mut self, end: &End<'_>) -> Result<(), Error> {
        for &subxid in end.subxacts {
            if self.subs.get(&subxid).is_some_and(|sub| sub.streamed && !sub.aborted && sub.top == end.xid) {
                self.say_aborted(end.xid, subxid, end.end_lsn, end.time);
            }
        }
        let Some(EndedTransaction { mut transaction, .. }) = self.end(end.xid, end.subxacts)? else {
            return Ok(());
        };
        if transaction.streamed {
            self.say_aborted(end.xid, end.xid, end.end_lsn, end.time);
        }
        let is_told = self.options.two_phase_at.is_some() && end.lsn >= self.options.start;
        if let Some(how) = transaction.prepared.take().filter(|_| is_told && end.gid.is_some()) {
            let prepared = transaction.as_prepared(&how);
            let (end_lsn, time) = (end.end_lsn, end.time);
            self.output.push_back(Output::Boundary(Boundary::RollbackPrepared { prepared, end_lsn, time }));
        }
        transaction.discard(&mut *self.spool)
    }

    fn say_aborted(&mut self, xid: Xid, subxid: Xid, end_lsn: Lsn, time: PgTimestamp) {
        self.output.push_back(Output::Boundary(Boundary::StreamAbort { xid, subxid, end_lsn, time }));
    }

    /// Takes back what subtransactions wrote: `end.xid`, and those of `end.subxacts`, which had
    /// committed into it.
    fn abort_sub(&mut self, top: Xid, end: &End<'_>) -> Result<(), Error> {
        let mut from = u64::MAX;
        for &xid in end.subxacts.iter().chain([&end.xid]) {
            if !self.subs.contains_key(&xid) && self.open.contains_key(&xid) {
                self.adopt(end.lsn, top, xid)?;
            }
            let Some(sub) = self.subs.get_mut(&xid).filter(|sub| !sub.aborted) else { continue };
            sub.aborted = true;
            from = from.min(sub.start.unwrap_or(u64::MAX));
            if sub.streamed {
                self.say_aborted(top, xid, end.end_lsn, end.time);
            }
        }
        let Some(transaction) = self.open.get_mut(&top) else { return Ok(()) };
        let (before, waited) = (transaction.memory(), transaction.waiting.is_some());
        let subs = &self.subs;
        let is_void = |xid: Xid| xid != top && subs.get(&xid).is_some_and(|sub| sub.aborted);
        transaction.take_out(from, is_void, &mut *self.spool)?;
        self.memory = self.memory + transaction.memory() - before;
        self.waiting -= usize::from(waited && transaction.waiting.is_none());
        self.forget_aborted(top, from, end);
        Ok(())
    }

    /// Forgets aborted subtransactions that left nothing in the file. A transaction with a million
    /// savepoints that were rolled back then needs no more memory than one with a few.
    fn forget_aborted(&mut self, top: Xid, from: u64, end: &End<'_>) {
        let Some(transaction) = self.open.get_mut(&top) else { return };
        let memory_start = transaction.main.run.memory_start();
        for xid in end.subxacts.iter().chain([&end.xid]) {
            let left_nothing = |sub: &Sub| sub.aborted && sub.start.is_none_or(|start| start >= memory_start);
            if let Entry::Occupied(sub) = self.subs.entry(*xid)
                && left_nothing(sub.get())
            {
                sub.remove();
            }
        }
        let subs = &mut self.subs;
        while transaction.children.last().is_some_and(|last| !subs.contains_key(last)) {
            transaction.children.pop();
        }
        // This happens only if sessions did more than one thing at a time. Moved entries are then
        // searched from their new place on.
        if transaction.main.run.end() > from {
            for child in &transaction.children {
                if let Some(sub) = subs.get_mut(child) {
                    sub.start = sub.start.map(|start| start.min(from));
                }
            }
        }
    }

    /// Ends a transaction of which nothing comes out.
    ///
    /// # Errors
    /// The spool failed.
    pub fn forget(&mut self, end: &End<'_>) -> Result<(), Error> {
        self.enter(end.lsn)?;
        let left = self.leave(end);
        self.noting(left)
    }

    fn leave(&mut self, end: &End<'_>) -> Result<(), Error> {
        let Some(EndedTransaction { transaction, .. }) = self.end(end.xid, end.subxacts)? else {
            return Ok(());
        };
        if transaction.streamed {
            self.say_aborted(end.xid, end.xid, end.end_lsn, end.time);
        }
        transaction.discard(&mut *self.spool)
    }

    /// Ends every transaction before `oldest`, except prepared ones, which count as running. If no
    /// record ended such a transaction, a crash did.
    ///
    /// # Errors
    /// The spool failed.
    pub fn running(&mut self, lsn: Lsn, oldest: Xid) -> Result<(), Error> {
        self.enter(lsn)?;
        let over = self.open.values().filter(|transaction| transaction.xid.precedes(oldest));
        let mut over: Vec<_> = over.map(|transaction| (transaction.first_lsn, transaction.xid.0)).collect();
        over.sort_unstable();
        for (_, xid) in over {
            let ended = self.end(Xid(xid), &[]);
            let Some(EndedTransaction { transaction, .. }) = self.noting(ended)? else { continue };
            if transaction.streamed {
                self.say_aborted(Xid(xid), Xid(xid), Lsn::INVALID, NO_TIME);
            }
            let discarded = transaction.discard(&mut *self.spool);
            self.noting(discarded)?;
        }
        Ok(())
    }

    /// Removes an ended transaction with its subtransactions, and returns it. `None` if it left
    /// nothing here.
    fn end(&mut self, xid: Xid, subxacts: &[Xid]) -> Result<Option<EndedTransaction<R>>, Error> {
        for &sub in subxacts {
            if self.open.contains_key(&sub) {
                self.adopt(self.lsn, xid, sub)?;
            }
        }
        let Some(transaction) = self.open.remove(&xid) else { return Ok(None) };
        self.memory -= transaction.memory();
        self.waiting -= usize::from(transaction.waiting.is_some());
        if transaction.children.is_empty() {
            return Ok(Some(EndedTransaction::new(transaction)));
        }
        let aborted = aborted(&self.subs, &transaction.children);
        let committed: FxHashSet<Xid> = subxacts.iter().copied().collect();
        let mut undecided = None;
        for child in &transaction.children {
            let Some(sub) = self.subs.remove(child) else { continue };
            if sub.wrote && !sub.aborted && !committed.contains(child) {
                undecided = Some(*child);
            }
        }
        Ok(Some(EndedTransaction { transaction, aborted, undecided }))
    }
}

/// A transaction that is no longer open.
struct EndedTransaction<R> {
    transaction: Transaction<R>,
    /// Subtransactions that were aborted and left entries.
    aborted: FxHashSet<Xid>,
    /// A subtransaction that left entries and did not end with the transaction.
    undecided: Option<Xid>,
}

impl<R> EndedTransaction<R> {
    fn new(transaction: Transaction<R>) -> EndedTransaction<R> {
        EndedTransaction { transaction, aborted: FxHashSet::default(), undecided: None }
    }
}

impl<R: Clone + Eq + Hash> Transaction<R> {
    /// Removes entries of void subtransactions from memory; in the main part, those from `from` on.
    fn take_out(
        &mut self,
        from: u64,
        is_void: impl Fn(Xid) -> bool,
        spool: &mut dyn crate::Spool,
    ) -> Result<(), Error> {
        self.main.run.remove_from(from, |head| is_void(head.xid));
        let (void, late) = self.late.drain(..).partition(|part: &NamedRun<R>| is_void(part.run.key()));
        self.late = late;
        for part in void {
            part.run.discard(spool)?;
        }
        for part in self.parts_mut() {
            part.names.forget_unknown(&is_void);
        }
        self.speculative.take_if(|held| is_void(held.at.xid));
        if self.waiting.is_some_and(|waiting| waiting.is_after(from)) {
            self.waiting = None;
        }
        Ok(())
    }

    fn discard(self, spool: &mut dyn crate::Spool) -> Result<(), Error> {
        self.main.run.discard(spool)?;
        self.late.into_iter().try_for_each(|part| part.run.discard(spool))
    }
}
