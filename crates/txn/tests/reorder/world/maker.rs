//! Sessions that write at random: savepoints, statements, messages, one record after the other.

mod endings;

use std::collections::{HashMap, VecDeque};

use base::{Lsn, Oid, PgTimestamp, RelFileLocator, Xid};
use rand::Rng;
use rand::rngs::StdRng;
use txn::reorder::{At, Target};

use super::{Changed, Habits, LATER, LATER_TOAST, LATER_UNWANTED, START, Step};
use crate::row::{Made, make};
use crate::seen::{Facts, Item, Seen, What};

const RELATIONS: u32 = 12;
const DEPTH_MAX: usize = 5;

/// One record that a session is about to write.
enum Act {
    Chunk(Oid, u32, Vec<u8>),
    /// The rows of one record.
    Rows(Vec<(Changed, u32)>),
    Confirm,
    TakeBack,
    Dropped,
}

#[derive(Default)]
struct Level {
    xid: Option<Xid>,
    /// Subtransactions that committed into it.
    committed: Vec<Xid>,
}

#[derive(Default)]
struct Session {
    /// The transaction and its savepoints; empty outside of one.
    levels: Vec<Level>,
    script: VecDeque<Act>,
    origin: Option<u16>,
    /// The row of a speculative insertion that is not confirmed or taken back yet.
    speculative: Option<(Lsn, What)>,
}

struct PreparedXact {
    top: Xid,
    subxacts: Vec<Xid>,
    gid: Vec<u8>,
    origin: Option<u16>,
    facts: Facts,
    /// What must come out when it commits.
    items: Option<Vec<Item>>,
}

pub(super) struct Maker<'a> {
    random: &'a mut StdRng,
    habits: Habits,
    lsn: u64,
    xid: u32,
    first_xid: u32,
    value: u32,
    clock: i64,
    sessions: Vec<Session>,
    prepared: Vec<PreparedXact>,
    /// The model: each change with its number, by (sub)transaction.
    kept: HashMap<Xid, Vec<(usize, Item)>>,
    /// Subtransactions whose top-level transaction no record has named.
    untold: Vec<(Xid, Xid)>,
    pub(super) steps: Vec<Step>,
    pub(super) expected: Vec<Seen>,
}

fn files(number: u32) -> RelFileLocator {
    RelFileLocator { tablespace: Oid(1663), database: Oid(5), relfilenumber: number }
}

impl<'a> Maker<'a> {
    pub(super) fn new(random: &'a mut StdRng, habits: &Habits) -> Maker<'a> {
        // In some worlds, the ids wrap around.
        let first_xid = if random.random() { 700 } else { u32::MAX - 60 };
        Maker {
            random,
            habits: habits.clone(),
            lsn: START,
            xid: first_xid,
            first_xid,
            value: 0,
            clock: 0,
            sessions: (0..habits.sessions).map(|_| Session::default()).collect(),
            prepared: Vec::new(),
            kept: HashMap::new(),
            untold: Vec::new(),
            steps: Vec::new(),
            expected: Vec::new(),
        }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    /// Start and end of the next record.
    fn record(&mut self) -> (Lsn, Lsn) {
        let start = self.lsn;
        self.lsn += 8 * self.random.random_range(3..30);
        (Lsn::new(start), Lsn::new(self.lsn))
    }

    fn new_xid(&mut self) -> Xid {
        let xid = Xid(self.xid);
        self.xid = self.xid.wrapping_add(1).max(3);
        xid
    }

    fn time(&mut self) -> PgTimestamp {
        self.clock += 1_000;
        PgTimestamp(self.clock)
    }

    pub(super) fn act(&mut self) {
        let which = self.random.random_range(0..self.sessions.len());
        match self.random.random_range(0..400) {
            0 => return self.crash(),
            1..=4 => return self.running(),
            5..=14 => return self.end_prepared(),
            15..=20 => return self.free_message(which),
            21..=28 => return self.tell_late(),
            _ => {}
        }
        if self.sessions[which].levels.is_empty() {
            let origin = if self.chance(20) { Some(self.random.random_range(1..4)) } else { None };
            self.sessions[which] = Session { levels: vec![Level::default()], origin, ..Session::default() };
        }
        if !self.sessions[which].script.is_empty() {
            if self.chance(3) {
                // An error in the middle of a statement.
                return self.roll_back(which);
            }
            let act = self.sessions[which].script.pop_front().unwrap();
            return self.write(which, act);
        }
        match self.random.random_range(0..100) {
            0..=14 => self.savepoint(which),
            15..=22 => self.release(which),
            23..=31 => self.roll_back(which),
            32..=39 => self.commit(which),
            40..=41 => self.abort(which),
            42..=44 => self.prepare(which),
            45..=48 => self.truncate(which),
            49..=52 => self.message(which),
            _ => self.statement(which),
        }
    }

    /// The record's place in the session's innermost subtransaction. Ids are assigned from the
    /// outside to the inside.
    fn at(&mut self, which: usize, lsn: Lsn) -> At {
        let mut levels = std::mem::take(&mut self.sessions[which].levels);
        let mut top = None;
        for level in &mut levels {
            if level.xid.is_none() {
                let xid = self.new_xid();
                level.xid = Some(xid);
                if let Some(top) = top {
                    self.untold.push((top, xid));
                }
            }
            top = top.or(level.xid);
        }
        let xid = levels.last().unwrap().xid.unwrap();
        self.sessions[which].levels = levels;
        let untold = self.untold.iter().position(|(_, sub)| *sub == xid);
        if let Some(index) = untold.filter(|_| !self.habits.late || self.random.random_range(0..3) == 0) {
            let (top, sub) = self.untold.swap_remove(index);
            self.steps.push(Step::Assign { lsn, top, sub });
        }
        At { lsn, xid, origin: self.sessions[which].origin }
    }

    fn keep(&mut self, at: At, lsn: Lsn, what: What) {
        let number = self.steps.len();
        self.kept.entry(at.xid).or_default().push((number, Item { lsn, xid: at.xid, what }));
    }

    /// A relation as it is named at the record, and whether its rows come out.
    fn relation(&mut self) -> (u32, Target<u32>, bool) {
        let relation = self.random.random_range(1..=RELATIONS);
        match self.random.random_range(0..100) {
            0 => (LATER + relation, Target::Unknown, true),
            1 => (LATER_UNWANTED + relation, Target::Unknown, false),
            2 => (relation, Target::Unwanted, false),
            _ => (relation, Target::Relation(relation), true),
        }
    }

    fn make(&mut self, with_chunks: bool) -> Made {
        make(self.random, &mut self.value, with_chunks)
    }

    fn chunk_acts(made: &Made) -> impl Iterator<Item = Act> + use<> {
        made.chunks.clone().into_iter().map(|(value, number, bytes)| Act::Chunk(value, number, bytes))
    }

    fn statement(&mut self, which: usize) {
        let relation = self.random.random_range(1..=RELATIONS);
        let mut script = VecDeque::new();
        match self.random.random_range(0..10) {
            0..=2 => {
                let new = self.make(true);
                script.extend(Self::chunk_acts(&new));
                let insert = Changed::Insert { new, last_of_chunks: true, speculative: false };
                script.push_back(Act::Rows(vec![(insert, relation)]));
            }
            3 | 4 => {
                let (new, old) = (self.make(true), self.make(false));
                script.extend(Self::chunk_acts(&new));
                let old = self.random.random::<bool>().then(|| (self.random.random(), old));
                script.push_back(Act::Rows(vec![(Changed::Update { old, new }, relation)]));
            }
            5 => {
                let old = self.make(false);
                let old = self.random.random::<bool>().then(|| (self.random.random(), old));
                script.push_back(Act::Rows(vec![(Changed::Delete(old), relation)]));
            }
            6 | 7 => {
                let rows: Vec<Made> = (0..self.random.random_range(2..7)).map(|_| self.make(true)).collect();
                script.extend(rows.iter().flat_map(Self::chunk_acts));
                let last = rows.len() - 1;
                let insert = |(index, new)| {
                    (Changed::Insert { new, last_of_chunks: index == last, speculative: false }, relation)
                };
                let mut rows: Vec<_> = rows.into_iter().enumerate().map(insert).collect();
                // They may not fit onto one page.
                let second = rows.split_off(self.random.random_range(1..=last));
                script.extend([Act::Rows(rows), Act::Rows(second)]);
            }
            8 => {
                for is_last in [false, true] {
                    let new = self.make(true);
                    script.extend(Self::chunk_acts(&new));
                    let insert = Changed::Insert { new, last_of_chunks: true, speculative: true };
                    script.push_back(Act::Rows(vec![(insert, relation)]));
                    if is_last || self.random.random() {
                        script.push_back(Act::Confirm);
                        break;
                    }
                    // Earlier minors of the server write nothing when they give up.
                    script.extend(self.random.random::<bool>().then_some(Act::TakeBack));
                }
            }
            // The table's updates are wanted but not these inserts, so only the chunks come here.
            _ => {
                script.extend(Self::chunk_acts(&self.make(true)));
                script.push_back(Act::Dropped);
            }
        }
        self.sessions[which].script = script;
    }

    fn write(&mut self, which: usize, act: Act) {
        let (lsn, _) = self.record();
        let at = self.at(which, lsn);
        match act {
            Act::Chunk(value, number, bytes) => {
                let is_known = !self.chance(1);
                let (files, target) = match is_known {
                    true => (files(50), Target::Toast),
                    false => (files(LATER_TOAST), Target::Unknown),
                };
                self.steps.push(Step::Chunk { at, files, target, value, number, bytes });
            }
            Act::Rows(rows) => {
                let (number, target, counts) = self.relation_of(&rows);
                for (change, relation) in rows {
                    self.row(which, at, files(number), target.clone(), change, (relation, counts));
                }
            }
            Act::Confirm => {
                if let Some((lsn, what)) = self.sessions[which].speculative.take() {
                    self.keep(at, lsn, what);
                }
                self.steps.push(Step::Confirm(at));
            }
            Act::TakeBack => {
                self.sessions[which].speculative = None;
                self.steps.push(Step::TakeBack(at));
            }
            Act::Dropped => self.steps.push(Step::Dropped(at)),
        }
    }

    /// Mostly the statement's relation. A speculative insertion is always into a known one.
    fn relation_of(&mut self, rows: &[(Changed, u32)]) -> (u32, Target<u32>, bool) {
        let relation = rows[0].1;
        let plain = (relation, Target::Relation(relation), true);
        let whole = match &rows[0].0 {
            Changed::Insert { last_of_chunks, speculative, .. } => *last_of_chunks && !speculative,
            _ => true,
        };
        if whole && rows.len() == 1 && self.chance(3) {
            let (number, target, counts) = self.relation();
            if target == Target::Unknown {
                return (number / 1_000 * 1_000 + relation, target, counts);
            }
        }
        plain
    }

    fn row(
        &mut self,
        which: usize,
        at: At,
        files: RelFileLocator,
        target: Target<u32>,
        change: Changed,
        (relation, counts): (u32, bool),
    ) {
        let old = |old: &Option<(bool, Made)>| old.as_ref().map(|(key, made)| (*key, made.columns.clone()));
        let what = match &change {
            Changed::Insert { new, .. } => What::Insert(relation, at.origin, new.columns.clone()),
            Changed::Update { old: before, new } => {
                What::Update(relation, at.origin, old(before), new.columns.clone())
            }
            Changed::Delete(before) => What::Delete(relation, at.origin, old(before)),
        };
        if matches!(change, Changed::Insert { speculative: true, .. }) {
            self.sessions[which].speculative = Some((at.lsn, what));
        } else if counts {
            self.keep(at, at.lsn, what);
        }
        self.steps.push(Step::Change { at, files, target, change });
    }

    fn truncate(&mut self, which: usize) {
        let (lsn, _) = self.record();
        let at = self.at(which, lsn);
        let (cascade, restart) = (self.random.random(), self.random.random());
        let tables: Vec<_> = (0..self.random.random_range(1..4)).map(|_| self.relation()).collect();
        let named: Vec<u32> =
            tables.iter().filter(|(.., counts)| *counts).map(|(number, ..)| number % 1_000).collect();
        if !named.is_empty() {
            self.keep(at, lsn, What::Truncate(named, cascade, restart));
        }
        let relations = tables.into_iter().map(|(number, target, _)| (Oid(number), target)).collect();
        self.steps.push(Step::Truncate { at, cascade, restart, relations });
    }

    fn content(&mut self) -> Vec<u8> {
        // Some are longer than a piece of memory, or a block of a file.
        let length = if self.chance(4) { 300_000 } else { self.random.random_range(0..200) };
        vec![self.random.random(); length]
    }

    fn message(&mut self, which: usize) {
        let (lsn, end) = self.record();
        let at = self.at(which, lsn);
        let (prefix, content) = (b"ours".to_vec(), self.content());
        self.keep(at, Lsn::INVALID, What::Message(end, prefix.clone(), content.clone()));
        self.steps.push(Step::Message { at, end, transactional: true, prefix, content });
    }

    fn free_message(&mut self, which: usize) {
        let (lsn, end) = self.record();
        let xid = self.sessions[which].levels.first().and_then(|level| level.xid).unwrap_or(Xid::INVALID);
        let at = At { lsn, xid, origin: None };
        let (prefix, content) = (b"free".to_vec(), self.content());
        self.expected.push(Seen::Message { lsn: end, xid, prefix: prefix.clone(), content: content.clone() });
        self.steps.push(Step::Message { at, end, transactional: false, prefix, content });
    }
}
