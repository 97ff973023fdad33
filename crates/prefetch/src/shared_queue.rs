//! What the applier, which hands over changes, and the workers share: the queue, and what is known
//! of each table.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::{Lsn, Progress};
use plan::{Arrays, Table};
use proto::pgoutput::{Column, Tuple};
use tokio::sync::Notify;
use txn::Op;

use crate::figures::{PrefetchFigures, add};
use crate::known::{KnownLookups, KnownTables};
use crate::lookups::{Need, TableLookups, Written};
use crate::options::PrefetchOptions;
use crate::queue::{Bounds, Group, Queue, ROWS_MIN, Taken, WantedRow, Whose};

/// Initial size of a group. A group should take some tens of milliseconds.
pub(crate) const GROUP_ROWS: usize = 64;
/// Pages that may be ahead until the target has reported the size of its shared buffers.
pub(crate) const PAGES_AHEAD: u64 = 1_024;
/// Fewer rows are not worth a statement, and more gain nothing.
pub(crate) const STATEMENT_ROWS: std::ops::RangeInclusive<usize> = 64..=4_096;
/// How many statements may be unfinished while pages are read ahead: one is executed and one waits.
/// The next is made as soon as the first is done.
pub const UNFINISHED: usize = 2;
/// Delay before groups that are too far ahead are looked at again. The applier writes some hundred
/// rows meanwhile.
pub(crate) const NEARER: Duration = Duration::from_millis(5);
/// Pause after an error.
pub(crate) const TROUBLE: Duration = Duration::from_secs(60);

/// See the module.
pub(crate) struct SharedQueue {
    pub(crate) options: PrefetchOptions,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) known: KnownTables,
    /// Notified when there is work.
    pub(crate) ready: Notify,
    pub(crate) progress: Arc<Progress>,
    pub(crate) figures: Arc<PrefetchFigures>,
    pub(crate) hands: AtomicU64,
    pub(crate) group_rows: AtomicUsize,
    pub(crate) pages_ahead: AtomicU64,
    /// Number of workers that may connect.
    pub(crate) workers: AtomicUsize,
    /// After an error, nothing is looked up until this time.
    pub(crate) trouble: Mutex<Option<Instant>>,
}

/// A worker's next job.
pub(crate) enum Job {
    Learn(Arc<Table>),
    LookUp(Group),
}

impl SharedQueue {
    pub(crate) fn new(
        options: PrefetchOptions,
        progress: &Arc<Progress>,
        figures: &Arc<PrefetchFigures>,
        workers: usize,
    ) -> SharedQueue {
        SharedQueue {
            options,
            queue: Mutex::default(),
            known: KnownTables::default(),
            ready: Notify::new(),
            progress: Arc::clone(progress),
            figures: Arc::clone(figures),
            hands: AtomicU64::new(0),
            group_rows: AtomicUsize::new(GROUP_ROWS),
            pages_ahead: AtomicU64::new(PAGES_AHEAD),
            workers: AtomicUsize::new(workers),
            trouble: Mutex::new(None),
        }
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            rows_max: self.group_rows.load(Ordering::Relaxed),
            pages_max: self.pages_ahead.load(Ordering::Relaxed),
        }
    }

    /// Rows of a statement, with `lookups` look-ups for each. The pages of [`UNFINISHED`]
    /// statements and one more must fit in memory.
    pub(crate) fn statement_rows(&self, lookups: usize) -> usize {
        let pages = usize::try_from(self.pages_ahead.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        (pages / (1 + lookups) / (UNFINISHED + 1)).clamp(*STATEMENT_ROWS.start(), *STATEMENT_ROWS.end())
    }

    /// The look-ups of `table`, of which `rows` have come. If they are unknown or too old, a worker
    /// finds them out. No session connects for only a few rows.
    pub(crate) fn table_lookups(&self, table: &Arc<Table>, rows: usize, now: Instant) -> KnownLookups {
        let (lookups, must_learn) = self.known.ask(table, rows, now);
        if must_learn {
            self.queue().unknown.push_back(Arc::clone(table));
            self.ready.notify_waiters();
        }
        lookups
    }

    /// Takes up the changes that came while the look-ups of `table` were found out.
    pub(crate) fn learned(&self, table: &Arc<Table>) {
        let waited = self.queue().take_waiting(table);
        for (op, commit) in waited {
            self.coming(table, &op, commit);
        }
    }

    pub(crate) fn coming(&self, table: &Arc<Table>, op: &Op, commit: Lsn) {
        let now = Instant::now();
        if self.is_in_trouble(now) {
            return;
        }
        let table_lookups = match self.table_lookups(table, 1, now) {
            KnownLookups::Known(table_lookups) => table_lookups,
            KnownLookups::Asked => {
                let applied = self.progress.snapshot().applied;
                return self.queue().wait(table, op, commit, applied);
            }
            KnownLookups::None => return,
        };
        let whose = Whose::Commit(commit);
        match op {
            Op::Insert(new) => self.look_up(table, &table_lookups, &[(Need::NewRow, new)], whose, now),
            Op::Delete(old) => self.look_up(table, &table_lookups, &[(Need::Row, &old.tuple)], whose, now),
            Op::Update { old: Some(old), new } if !same_key(table, &old.tuple, new) => {
                let needs = [(Need::Row, &old.tuple), (Need::NewRow, new)];
                self.look_up(table, &table_lookups, &needs, whose, now);
            }
            Op::Update { new, .. } => {
                // A value that was not sent did not change, so only the row is needed.
                let whole = table_lookups.new_version.is_some() && !new.has_unchanged();
                let need = if whole { Need::NewVersion } else { Need::Row };
                self.look_up(table, &table_lookups, &[(need, new)], whose, now);
            }
        }
    }

    pub(crate) fn look_up(
        &self,
        table: &Arc<Table>,
        table_lookups: &Arc<TableLookups>,
        needs: &[(Need, &Tuple)],
        whose: Whose,
        now: Instant,
    ) {
        let awake = |need| table_lookups.lookups(need).iter().any(|lookup| lookup.gauge.is_awake(now));
        let Whose::Commit(commit) = whose else { return };
        if !needs.iter().any(|(need, _)| awake(*need)) {
            return;
        }
        let bounds = self.bounds();
        let applied = self.progress.snapshot().applied;
        let mut ready = false;
        let mut dropped = 0;
        for (need, tuple) in needs.iter().filter(|(need, _)| awake(*need)) {
            let values: Vec<Column<'_>> = tuple.columns().collect();
            let row = WantedRow {
                table,
                table_lookups,
                need: *need,
                whose,
                values: &values,
                binary: self.options.binary,
            };
            let pages = 1 + table_lookups.lookups(*need).len() as u64;
            let mut queue = self.queue();
            queue.come(commit, pages, applied);
            let taken = queue.push(&row, bounds, now);
            ready |= taken == Taken::Ready;
            dropped += u64::from(taken == Taken::No);
        }
        add(&self.figures.dropped, dropped);
        if ready {
            self.ready.notify_waiters();
        }
    }

    pub(crate) fn in_hand(
        &self,
        table: &Arc<Table>,
        written: Written,
        columns: &[usize],
        rows: &Arrays,
        hand: u64,
        up_to: Option<Lsn>,
    ) {
        let now = Instant::now();
        if self.is_in_trouble(now) {
            return;
        }
        let KnownLookups::Known(table_lookups) = self.table_lookups(table, ROWS_MIN, now) else { return };
        let need = table_lookups.need(written, columns);
        let lookups = table_lookups.lookups(need);
        if !lookups.iter().any(|lookup| lookup.gauge.is_awake(now)) {
            return;
        }
        let mut values = vec![Column::Unchanged; table.columns.len()];
        let mut walk = rows.walk();
        let bounds = self.bounds();
        // Each of the sessions should get some of it.
        let workers = self.workers.load(Ordering::Relaxed).max(1);
        let share = self.statement_rows(lookups.len()) * UNFINISHED / workers;
        let bounds = Bounds { rows_max: bounds.rows_max.min(share.max(ROWS_MIN)), ..bounds };
        let (mut taken, whose) = (0, Whose::Hand(hand));
        if let Some(up_to) = up_to {
            self.queue().overtake(&table_lookups, up_to);
        }
        while walk.next(columns, &mut values) {
            let row = WantedRow {
                table,
                table_lookups: &table_lookups,
                need,
                whose,
                values: &values,
                binary: self.options.binary,
            };
            let full = self.queue().push(&row, bounds, now) == Taken::No;
            if full {
                break;
            }
            taken += 1;
            if taken % bounds.rows_max == 0 {
                self.ready.notify_waiters();
            }
        }
        self.ready.notify_waiters();
        add(&self.figures.dropped, rows.rows() - taken as u64);
    }

    /// Waits for the next job of worker `number`. All workers but the first help only where a probe
    /// has shown that look-ups pay.
    pub(crate) async fn next(&self, number: usize) -> Job {
        loop {
            let ready = self.ready.notified();
            tokio::pin!(ready);
            ready.as_mut().enable();
            let (job, waits_for_applier) = self.take(number);
            if let Some(job) = job {
                return job;
            }
            if waits_for_applier {
                let _ = tokio::time::timeout(NEARER, ready).await;
            } else {
                ready.await;
            }
        }
    }

    /// The next job. Without one, whether a group waits that is still too far ahead.
    pub(crate) fn take(&self, number: usize) -> (Option<Job>, bool) {
        if number >= self.workers.load(Ordering::Relaxed) {
            return (None, false);
        }
        let mut queue = self.queue();
        if number == 0
            && let Some(table) = queue.unknown.pop_front()
        {
            return (Some(Job::Learn(table)), false);
        }
        let applied = self.progress.snapshot().applied;
        let bounds = self.bounds();
        let (group, dropped) = queue.take(applied, bounds, |group| number == 0 || group.is_on());
        add(&self.figures.dropped, dropped as u64);
        (group.map(Job::LookUp), queue.waits_for_applier(bounds))
    }

    pub(crate) fn is_in_trouble(&self, now: Instant) -> bool {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        match *trouble {
            Some(until) if now < until => true,
            Some(_) => {
                *trouble = None;
                false
            }
            None => false,
        }
    }

    /// Pauses all look-ups because of `why`, and logs it once while that lasts.
    pub(crate) fn fail(&self, why: String) {
        if self.figures.trouble().is_none() {
            tracing::warn!(
                subscription = %self.options.subscription,
                "prefetch is off for {} s, and for as long as this lasts: {why}", TROUBLE.as_secs()
            );
        }
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + TROUBLE);
        self.figures.set_trouble(Some(why));
        self.queue().clear();
    }
}

fn same_key(table: &Table, old: &Tuple, new: &Tuple) -> bool {
    let key = |tuple: &Tuple| -> Vec<u8> {
        let mut bytes = Vec::new();
        for (value, _) in tuple.columns().zip(&table.key_mask).filter(|(_, key)| **key) {
            if let Column::Text(value) | Column::Binary(value) = value {
                bytes.extend_from_slice(&value.len().to_be_bytes());
                bytes.extend_from_slice(value);
            }
        }
        bytes
    };
    key(old) == key(new)
}
