//! How transactions end (commit, prepare, abort, crash), and what comes out then.

use base::{Lsn, Xid};
use rand::Rng;
use txn::reorder::Origin;

use super::{DEPTH_MAX, Level, Maker, PreparedXact, Session};
use crate::seen::{Facts, Item, Seen};
use crate::world::{Ending, Step, TWO_PHASE_AT};

impl Maker<'_> {
    pub(super) fn savepoint(&mut self, which: usize) {
        if self.sessions[which].levels.len() < DEPTH_MAX {
            self.sessions[which].levels.push(Level::default());
        }
    }

    pub(super) fn release(&mut self, which: usize) {
        let levels = &mut self.sessions[which].levels;
        if levels.len() > 1 {
            let released = levels.pop().unwrap();
            let outer = levels.last_mut().unwrap();
            outer.committed.extend(released.xid.into_iter().chain(released.committed));
        }
    }

    /// ROLLBACK TO one of the savepoints, or of the transaction if there is none.
    pub(super) fn roll_back(&mut self, which: usize) {
        self.interrupt(which);
        let depth = self.sessions[which].levels.len();
        if depth == 1 {
            return self.abort(which);
        }
        for _ in self.random.random_range(1..depth)..depth {
            let level = self.sessions[which].levels.pop().unwrap();
            self.abort_level(&level, false, None);
        }
        self.sessions[which].levels.push(Level::default());
    }

    pub(super) fn interrupt(&mut self, which: usize) {
        self.sessions[which].script.clear();
        self.sessions[which].speculative = None;
    }

    pub(super) fn abort_level(&mut self, level: &Level, is_top: bool, gid: Option<Vec<u8>>) {
        let Some(xid) = level.xid else { return };
        let (lsn, end) = self.record();
        let time = self.time();
        for sub in level.committed.iter().chain([&xid]) {
            self.kept.remove(sub);
            self.untold.retain(|(_, untold)| untold != sub);
        }
        let subxacts = level.committed.clone();
        self.steps.push(Step::Abort(Ending { xid, is_top, lsn, end, time, origin: None, subxacts, gid }));
    }

    pub(super) fn abort(&mut self, which: usize) {
        self.interrupt(which);
        while let Some(level) = self.sessions[which].levels.pop() {
            let is_top = self.sessions[which].levels.is_empty();
            self.abort_level(&level, is_top, None);
        }
    }

    /// Ends a session's transaction. Returns its id and those of its subtransactions that
    /// committed.
    pub(super) fn close(&mut self, which: usize) -> Option<(Xid, Vec<Xid>)> {
        let mut levels = std::mem::take(&mut self.sessions[which].levels).into_iter();
        let top = levels.next().unwrap();
        let xid = top.xid?;
        let mut subxacts = top.committed;
        for level in levels {
            subxacts.extend(level.xid.into_iter().chain(level.committed));
        }
        self.untold.retain(|(top, _)| *top != xid);
        Some((xid, subxacts))
    }

    pub(super) fn take_kept(&mut self, top: Xid, subxacts: &[Xid]) -> Vec<Item> {
        let parts = subxacts.iter().chain([&top]).filter_map(|xid| self.kept.remove(xid));
        let mut items: Vec<_> = parts.flatten().collect();
        items.sort_by_key(|(number, _)| *number);
        items.into_iter().map(|(_, item)| item).collect()
    }

    pub(super) fn ending(
        &mut self,
        xid: Xid,
        subxacts: Vec<Xid>,
        origin: Option<u16>,
        gid: Option<Vec<u8>>,
    ) -> Ending {
        let (lsn, end) = self.record();
        let origin = origin.map(|id| Origin { id, lsn: Lsn::new(lsn.as_u64() / 2) });
        Ending { xid, is_top: true, lsn, end, time: self.time(), origin, subxacts, gid }
    }

    pub(super) fn facts(of: &Ending) -> Facts {
        Facts { xid: of.xid, lsn: of.lsn, end: of.end, time: of.time, origin: of.origin }
    }

    pub(super) fn commit(&mut self, which: usize) {
        let origin = self.sessions[which].origin;
        let Some((xid, subxacts)) = self.close(which) else { return };
        let ending = self.ending(xid, subxacts, origin, None);
        let items = self.take_kept(xid, &ending.subxacts);
        if !items.is_empty() {
            self.expected.push(Seen::Committed(Self::facts(&ending), items));
        }
        self.steps.push(Step::Commit(ending));
    }

    pub(super) fn prepare(&mut self, which: usize) {
        let origin = self.sessions[which].origin;
        let Some((xid, subxacts)) = self.close(which) else { return };
        let gid = format!("prepared {}", self.clock).into_bytes();
        let ending = self.ending(xid, subxacts.clone(), origin, Some(gid.clone()));
        let mut items = Some(self.take_kept(xid, &subxacts));
        let facts = Self::facts(&ending);
        if self.habits.two_phase && ending.lsn >= TWO_PHASE_AT {
            self.expected.push(Seen::Prepared(facts.clone(), gid.clone(), items.take().unwrap()));
        }
        self.prepared.push(PreparedXact { top: xid, subxacts, gid, origin, facts, items });
        self.steps.push(Step::Prepare(ending));
    }

    pub(super) fn end_prepared(&mut self) {
        if self.prepared.is_empty() {
            return;
        }
        let at = self.random.random_range(0..self.prepared.len());
        let of = self.prepared.swap_remove(at);
        let ending = self.ending(of.top, of.subxacts, of.origin, Some(of.gid.clone()));
        if self.chance(70) {
            let facts = Self::facts(&ending);
            match (self.habits.two_phase, of.items) {
                (false, items) => {
                    let items = items.unwrap();
                    if !items.is_empty() {
                        self.expected.push(Seen::Committed(facts, items));
                    }
                }
                (true, items) => {
                    if let Some(items) = items {
                        self.expected.push(Seen::Prepared(of.facts, of.gid.clone(), items));
                    }
                    self.expected.push(Seen::CommitPrepared(facts, of.gid));
                }
            }
            self.steps.push(Step::Commit(ending));
            return;
        }
        if self.habits.two_phase {
            self.expected.push(Seen::RollbackPrepared {
                xid: of.top,
                gid: of.gid,
                prepare_end: of.facts.end,
                prepared: of.facts.time,
                end: ending.end,
                time: ending.time,
            });
        }
        self.steps.push(Step::Abort(ending));
    }

    pub(super) fn running(&mut self) {
        let tops = self.sessions.iter().filter_map(|session| session.levels.first()?.xid);
        let running = tops.chain(self.prepared.iter().map(|of| of.top));
        let oldest = running.min_by_key(|xid| xid.0.wrapping_sub(self.first_xid)).unwrap_or(Xid(self.xid));
        let (lsn, _) = self.record();
        self.steps.push(Step::Running { lsn, oldest });
    }

    /// No session writes any more, until the server was started again and reports running
    /// transactions.
    pub(super) fn crash(&mut self) {
        let is_prepared =
            |xid: &Xid| self.prepared.iter().any(|of| of.top == *xid || of.subxacts.contains(xid));
        self.kept.retain(|xid, _| is_prepared(xid));
        self.untold.clear();
        for session in &mut self.sessions {
            *session = Session::default();
        }
        self.running();
    }

    /// Another record names a top-level transaction that the first record did not.
    pub(super) fn tell_late(&mut self) {
        if self.untold.is_empty() || !self.habits.late {
            return;
        }
        let at = self.random.random_range(0..self.untold.len());
        let (top, sub) = self.untold.swap_remove(at);
        let (lsn, _) = self.record();
        self.steps.push(Step::Assign { lsn, top, sub });
    }

    pub(in super::super) fn finish(&mut self) {
        while !self.prepared.is_empty() {
            self.end_prepared();
        }
        self.crash();
    }
}
