//! Hands a world to the buffer, record by record, and watches the output.

use base::{Lsn, Oid, RelFileLocator, Xid};
use decode::OldTuple;
use txn::Spool;
use txn::reorder::{Counters, End, Error, Options, RawChange, ReorderBuffer, Resolve, Target};

use crate::row::Made;
use crate::seen::{Seen, Watcher};
use crate::spools::{Files, MemorySpool};
use crate::world::{
    Changed, Ending, Habits, LATER, LATER_TOAST, LATER_UNWANTED, NEVER, START, Step, TWO_PHASE_AT, World,
};

pub(crate) fn options(habits: &Habits) -> Options {
    let two_phase_at = habits.two_phase.then_some(TWO_PHASE_AT);
    Options { two_phase_at, ..Options::new(Oid(5), Lsn::new(START)) }
}

/// What is known of relations at the end of a transaction.
pub(crate) struct Later;

impl Later {
    fn is(number: u32) -> Target<u32> {
        match number {
            NEVER.. => Target::Unknown,
            LATER_TOAST.. => Target::Toast,
            LATER_UNWANTED.. => Target::Unwanted,
            LATER.. => Target::Relation(number - LATER),
            _ => Target::Relation(number),
        }
    }
}

impl Resolve<u32> for Later {
    fn files(&mut self, _xid: Xid, locator: RelFileLocator) -> Target<u32> {
        Later::is(locator.relfilenumber)
    }

    fn relation(&mut self, _xid: Xid, relation: Oid) -> Target<u32> {
        Later::is(relation.0)
    }
}

pub(crate) struct Driven {
    pub(crate) seen: Vec<Seen>,
    /// After each step: the restart position, where the step ended, how much had come out.
    pub(crate) places: Vec<(Lsn, Lsn, usize)>,
    pub(crate) counters: Counters,
    pub(crate) open_count: usize,
    pub(crate) memory_bytes: usize,
    pub(crate) files_left: usize,
}

/// Drives a world through a buffer with a spool in memory that never fails.
pub(crate) fn drive(world: &World, options: Options) -> Driven {
    let files = Files::default();
    let (driven, end) = try_drive(world, options, Box::new(MemorySpool::new(files.clone())));
    end.unwrap_or_else(|error| panic!("{error}"));
    Driven { files_left: files.count(), ..driven }
}

/// What came out before the end, and how it ended.
pub(crate) fn try_drive(
    world: &World,
    options: Options,
    spool: Box<dyn Spool>,
) -> (Driven, Result<(), Error>) {
    let limit = options.work_mem_bytes;
    let mut buffer = ReorderBuffer::new(options, spool);
    let mut watcher = Watcher::default();
    let mut places = Vec::new();
    let mut end = Ok(());
    for (number, step) in world.steps.iter().enumerate() {
        end = take(&mut buffer, step).and_then(|()| drain(&mut buffer, &mut watcher));
        if end.is_err() {
            assert!(buffer.next().is_err(), "after an error there is nothing but errors");
            break;
        }
        let bytes = buffer.memory_bytes();
        assert!(bytes <= limit.saturating_add(HELD_BYTES), "{bytes} bytes");
        let position = world.steps.get(number + 1).map_or(step.lsn(), Step::lsn);
        places.push((buffer.restart_lsn(position), position, watcher.seen.len()));
    }
    let driven = Driven {
        seen: watcher.seen,
        places,
        counters: buffer.counters(),
        open_count: buffer.open_count(),
        memory_bytes: buffer.memory_bytes(),
        files_left: 0,
    };
    (driven, end)
}

/// The memory that may be used beside the limit: an insertion that waits for its confirmation, in
/// each of five sessions.
const HELD_BYTES: usize = 5 * 600;

pub(crate) fn drain(buffer: &mut ReorderBuffer<u32>, watcher: &mut Watcher) -> Result<(), Error> {
    while let Some(event) = buffer.next()? {
        watcher.see(&event);
    }
    Ok(())
}

fn old(old: &Option<(bool, Made)>) -> Option<OldTuple<'_>> {
    old.as_ref().map(|(key_only, made)| OldTuple { key_only: *key_only, tuple: made.tuple() })
}

pub(crate) fn take(buffer: &mut ReorderBuffer<u32>, step: &Step) -> Result<(), Error> {
    match step {
        Step::Assign { lsn, top, sub } => buffer.assign(*lsn, *top, *sub),
        Step::Change { at, files, target, change } => {
            let change = match change {
                Changed::Insert { new, last_of_chunks, speculative } => RawChange::Insert {
                    new: new.tuple(),
                    last_of_chunks: *last_of_chunks,
                    speculative: *speculative,
                },
                Changed::Update { old: before, new } => {
                    RawChange::Update { old: old(before), new: new.tuple() }
                }
                Changed::Delete(before) => RawChange::Delete(old(before)),
            };
            buffer.change(*at, *files, target.clone(), &change)
        }
        Step::Confirm(at) => buffer.confirm(*at),
        Step::TakeBack(at) => buffer.take_back(*at),
        Step::Chunk { at, files, target, value, number, bytes } => {
            buffer.chunk(*at, *files, target, (*value, *number, bytes))
        }
        Step::Dropped(at) => buffer.passed_over(at.lsn, at.xid, None),
        Step::Truncate { at, cascade, restart, relations } => {
            buffer.truncate(*at, (*cascade, *restart), relations.iter().cloned())
        }
        Step::Message { at, end, transactional, prefix, content } => {
            buffer.message(*at, *end, *transactional, prefix, content)
        }
        Step::Commit(of) => buffer.commit(&ending(of), &mut Later),
        Step::Prepare(of) => buffer.prepare(&ending(of), &mut Later),
        Step::Abort(of) => buffer.abort(&ending(of)),
        Step::Running { lsn, oldest } => buffer.running(*lsn, *oldest),
    }
}

fn ending(of: &Ending) -> End<'_> {
    End {
        xid: of.xid,
        lsn: of.lsn,
        end_lsn: of.end,
        time: of.time,
        origin: of.origin,
        subxacts: &of.subxacts,
        gid: of.gid.as_deref(),
    }
}
