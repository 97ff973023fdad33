//! Which files belong to which table, as transactions see them. Answers are kept until the catalogs
//! change.
//!
//! Shared answers hold for every transaction that has not changed catalogs itself. A transaction
//! that has gets answers of its own, as long as it is open. Every change that [`Catalog::follow`]
//! reports makes answers void before the next record is looked at (rule W2). This module also keeps
//! the filter's cache, which comes before it, in step.

use std::sync::Arc;

use base::{Oid, RelFileLocator, Xid};
use catalog::{Catalog, Changes, Files, View};
use rustc_hash::FxHashMap;
use txn::reorder::{Resolve, Target};
use wal::{Actions, Interest, LocatorFilterCache};

use crate::error::{Error, RefusedTable, Result};
use crate::options::{OnRefused, Options};
use crate::table::{OutputTable, Wanted, describe};

/// Answers for transactions that see the same catalogs.
#[derive(Debug, Default)]
struct Answers {
    /// By relation. `None` if it is not published.
    tables: FxHashMap<Oid, Option<Wanted>>,
    files: FxHashMap<RelFileLocator, Answer>,
    /// By relation, the files whose answers depend on it.
    of: FxHashMap<Oid, Vec<RelFileLocator>>,
    /// Tables that are left out, among those that were looked up.
    left_out: Vec<RefusedTable>,
}

#[derive(Debug, Clone)]
struct Answer {
    target: Target<Wanted>,
    /// The relation that has the files.
    relation: Oid,
    interest: Interest,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Tables {
    options: Arc<Options>,
    shared: Answers,
    /// Answers for transactions that have changed catalogs, by top-level transaction.
    own: FxHashMap<Xid, Answers>,
    /// The last shared answer: rows of a table come one after the other.
    last: Option<(RelFileLocator, Target<Wanted>)>,
    /// The number of the next description.
    number: u64,
    /// Tables that were left out, whatever happened to them since.
    left_out: Vec<RefusedTable>,
    /// The same for open transactions, by top-level transaction. It counts if they commit.
    open_left_out: FxHashMap<Xid, Vec<RefusedTable>>,
}

impl Tables {
    pub(crate) fn new(options: Arc<Options>) -> Tables {
        Tables {
            options,
            shared: Answers::default(),
            own: FxHashMap::default(),
            last: None,
            number: 0,
            left_out: Vec::new(),
            open_left_out: FxHashMap::default(),
        }
    }

    /// Makes a transaction's own answers void.
    pub(crate) fn forget_own(&mut self, top: Xid) {
        if let Some(own) = self.own.remove(&top).filter(|own| !own.left_out.is_empty()) {
            self.open_left_out.entry(top).or_default().extend(own.left_out);
        }
    }

    /// Notes the end of a transaction, which ends its own answers.
    pub(crate) fn ended(&mut self, top: Xid, committed: bool) {
        self.forget_own(top);
        let left_out = self.open_left_out.remove(&top).filter(|_| committed);
        note(&mut self.left_out, left_out.into_iter().flatten());
    }

    /// Makes shared answers void that depend on `changes`.
    pub(crate) fn forget(&mut self, changes: &Changes, cache: &mut LocatorFilterCache) {
        let database = self.options.database;
        self.last = None;
        for top in self.own.keys().copied().collect::<Vec<_>>() {
            self.forget_own(top);
        }
        note(&mut self.left_out, std::mem::take(&mut self.shared.left_out));
        if changes.databases.contains(&database) {
            self.shared = Answers::default();
            cache.forget_database(database);
            return;
        }
        for (_, relation) in changes.relations.iter().filter(|(of, _)| *of == database) {
            self.shared.tables.remove(relation);
            for locator in self.shared.of.remove(relation).into_iter().flatten() {
                self.shared.files.remove(&locator);
                cache.forget(locator);
            }
        }
    }

    /// What these files are to all transactions, for the filter's cache: the relation, and which of
    /// its changes are wanted. `None` if no relation has them.
    pub(crate) fn interest(
        &mut self,
        catalog: &Catalog,
        locator: RelFileLocator,
    ) -> Result<Option<(Oid, Interest)>> {
        let Some(view) = catalog.view(self.options.database, Xid::INVALID) else {
            // The database was dropped. All records of it were written before.
            return Ok(Some((Oid(0), Interest::Rows(Actions::NONE))));
        };
        let answer = self.shared.files(&view, &self.options, &mut self.number, locator)?;
        Ok(answer.map(|answer| (answer.relation, answer.interest)))
    }

    /// Tables that were left out, and those that would be left out with the present catalogs.
    pub(crate) fn refused(&mut self, catalog: &Catalog) -> Result<Vec<RefusedTable>> {
        let now = self.all(catalog)?;
        note(&mut self.left_out, std::mem::take(&mut self.shared.left_out));
        let mut refused = self.left_out.clone();
        note(&mut refused, now.iter().filter_map(|table| table.refused().cloned()));
        Ok(refused)
    }

    /// Every published table, as all transactions see it.
    pub(crate) fn all(&mut self, catalog: &Catalog) -> Result<Vec<Arc<OutputTable>>> {
        let Some(view) = catalog.view(self.options.database, Xid::INVALID) else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for oid in view.relations().into_iter().filter(|oid| oid.is_user_defined()) {
            let table = self.shared.table(&view, &self.options, &mut self.number, oid)?;
            all.extend(table.map(|Wanted(table)| table));
        }
        Ok(all)
    }
}

/// Adds entries that are not there yet.
fn note(all: &mut Vec<RefusedTable>, more: impl IntoIterator<Item = RefusedTable>) {
    for refused in more {
        if !all.contains(&refused) {
            all.push(refused);
        }
    }
}

impl Answers {
    fn table(
        &mut self,
        view: &View<'_>,
        options: &Options,
        number: &mut u64,
        oid: Oid,
    ) -> Result<Option<Wanted>> {
        if let Some(known) = self.tables.get(&oid) {
            return Ok(known.clone());
        }
        *number += 1;
        let table = describe(view, options, oid, *number)?.map(|table| Wanted(Arc::new(table)));
        if let Some(Wanted(table)) = table.as_ref().filter(|Wanted(table)| is_left_out(table, options)) {
            note(&mut self.left_out, table.refused().cloned());
        }
        self.tables.insert(oid, table.clone());
        Ok(table)
    }

    /// `None` if no relation has the files at present.
    fn files(
        &mut self,
        view: &View<'_>,
        options: &Options,
        number: &mut u64,
        locator: RelFileLocator,
    ) -> Result<Option<&Answer>> {
        if !self.files.contains_key(&locator) {
            let (answer, of) = match view.files(locator) {
                Files::Unknown => return Ok(None),
                Files::Table(oid) => {
                    let table = self.table(view, options, number, oid)?;
                    (table_answer(table, options, oid), [oid, oid])
                }
                Files::Toast { relation, of } => {
                    let table = self.table(view, options, number, of)?;
                    (toast_answer(table, options, relation), [relation, of])
                }
                Files::Catalog(oid) => {
                    let interest = Interest::Catalog;
                    (Answer { target: Target::Unwanted, relation: oid, interest }, [oid, oid])
                }
                Files::NoTable(oid) | Files::Rewrite(oid) => (unwanted(oid), [oid, oid]),
                Files::Elsewhere => (unwanted(Oid(0)), [Oid(0), Oid(0)]),
            };
            for relation in of {
                let locators = self.of.entry(relation).or_default();
                if !locators.contains(&locator) {
                    locators.push(locator);
                }
            }
            self.files.insert(locator, answer);
        }
        Ok(self.files.get(&locator))
    }
}

fn unwanted(relation: Oid) -> Answer {
    Answer { target: Target::Unwanted, relation, interest: Interest::Rows(Actions::NONE) }
}

/// Whether the table's rows are always left out because they cannot be written. If that depends on
/// which tables take part, it may change before the rows come out, and is decided then.
fn is_left_out(table: &OutputTable, options: &Options) -> bool {
    matches!(options.refused, OnRefused::LeaveOut) && table.refused().is_some()
}

fn table_answer(table: Option<Wanted>, options: &Options, relation: Oid) -> Answer {
    match table.filter(|Wanted(table)| !is_left_out(table, options)) {
        Some(table) => {
            let interest = Interest::Rows(table.0.actions);
            Answer { target: Target::Relation(table), relation, interest }
        }
        None => unwanted(relation),
    }
}

/// Chunks are wanted with the rows that they belong to.
fn toast_answer(table: Option<Wanted>, options: &Options, relation: Oid) -> Answer {
    let is_wanted = |Wanted(table): &Wanted| {
        !is_left_out(table, options)
            && options.deletions.is_none()
            && table.actions.any_of(Actions::INSERT | Actions::UPDATE)
    };
    match table.filter(is_wanted) {
        Some(_) => Answer { target: Target::Toast, relation, interest: Interest::Rows(Actions::INSERT) },
        None => unwanted(relation),
    }
}

/// Answers the questions of the reorder buffer.
pub(crate) struct Asked<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) tables: &'a mut Tables,
    /// An error while answering, because an answer cannot report it.
    pub(crate) error: Option<Error>,
}

impl Asked<'_> {
    /// Asks the answers that hold for a transaction.
    fn ask<T>(
        &mut self,
        xid: Xid,
        with: impl FnOnce(&mut Answers, &View<'_>, &Options, &mut u64) -> Result<T>,
    ) -> Option<T> {
        let Tables { options, shared, own, number, .. } = &mut *self.tables;
        let is_own = self.catalog.has_changes(xid);
        let answers = if is_own { own.entry(xid).or_default() } else { shared };
        // A transaction that has changed no catalogs sees what all others see.
        let viewer = if is_own { xid } else { Xid::INVALID };
        let view = self.catalog.view(options.database, viewer)?;
        match with(answers, &view, options, number) {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }
}

impl Resolve<Wanted> for Asked<'_> {
    fn files(&mut self, xid: Xid, locator: RelFileLocator) -> Target<Wanted> {
        if locator.database != self.tables.options.database {
            return Target::Unwanted;
        }
        let is_own = self.catalog.has_changes(xid);
        if let Some((_, target)) = self.tables.last.as_ref().filter(|(last, _)| !is_own && *last == locator) {
            return target.clone();
        }
        let answer = self.ask(xid, |answers, view, options, number| {
            answers
                .files(view, options, number, locator)
                .map(|answer| answer.map(|answer| answer.target.clone()))
        });
        match answer {
            Some(Some(target)) => {
                if !is_own {
                    self.tables.last = Some((locator, target.clone()));
                }
                target
            }
            Some(None) => Target::Unknown,
            None => Target::Unwanted,
        }
    }

    fn relation(&mut self, xid: Xid, relation: Oid) -> Target<Wanted> {
        let answer =
            self.ask(xid, |answers, view, options, number| answers.table(view, options, number, relation));
        match answer.flatten() {
            Some(table) => Target::Relation(table),
            None => Target::Unwanted,
        }
    }
}
