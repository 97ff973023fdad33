//! Which files are which table, as transactions see them, kept until the catalogs change.
//!
//! Answers are of two kinds. The shared ones hold for every transaction that has not changed catalogs itself; a
//! transaction that has gets answers of its own, as long as it is open. Whatever [`Catalog::follow`] says has changed
//! makes answers void before the next record is looked at (rule W2); the filter's cache, which is in front of
//! this, is kept in step here.

use std::sync::Arc;

use base::{Oid, RelFileLocator, Xid};
use catalog::{Catalog, Changes, Files, View};
use rustc_hash::FxHashMap;
use txn::reorder::{Resolve, Target};
use wal::{Actions, Interest, LocatorFilterCache};

use crate::error::{Error, Refused, Result};
use crate::options::{OnRefused, Options};
use crate::table::{Table, Wanted, describe};

/// Answers for those that see the same.
#[derive(Debug, Default)]
struct Answers {
    /// By relation; `None`: it is not published.
    tables: FxHashMap<Oid, Option<Wanted>>,
    files: FxHashMap<RelFileLocator, Answer>,
    /// The files for which an answer depends on a relation.
    of: FxHashMap<Oid, Vec<RelFileLocator>>,
    /// Tables that were asked about and left out.
    left_out: Vec<Refused>,
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
    /// By top-level transaction.
    own: FxHashMap<Xid, Answers>,
    /// The shared answer that was given last: rows of a table come one after the other.
    last: Option<(RelFileLocator, Target<Wanted>)>,
    /// Of the next description.
    number: u64,
    /// Tables that were left out, whatever became of them since.
    left_out: Vec<Refused>,
    /// The same of transactions that are open, by the top-level one: it counts if they commit.
    open_left_out: FxHashMap<Xid, Vec<Refused>>,
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

    /// A transaction's own answers are void.
    pub(crate) fn forget_own(&mut self, top: Xid) {
        if let Some(own) = self.own.remove(&top).filter(|own| !own.left_out.is_empty()) {
            self.open_left_out.entry(top).or_default().extend(own.left_out);
        }
    }

    /// A transaction is over, and its own answers with it.
    pub(crate) fn ended(&mut self, top: Xid, committed: bool) {
        self.forget_own(top);
        let left_out = self.open_left_out.remove(&top).filter(|_| committed);
        note(&mut self.left_out, left_out.into_iter().flatten());
    }

    /// Answers that everybody got are void.
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

    /// What these files are to everybody, for the filter's cache: the relation, and what is wanted of it. `None` when
    /// nobody has them.
    pub(crate) fn interest(
        &mut self,
        catalog: &Catalog,
        locator: RelFileLocator,
    ) -> Result<Option<(Oid, Interest)>> {
        let Some(view) = catalog.view(self.options.database, Xid::INVALID) else {
            // The database was dropped: whatever comes was written before.
            return Ok(Some((Oid(0), Interest::Rows(Actions::NONE))));
        };
        let answer = self.shared.files(&view, &self.options, &mut self.number, locator)?;
        Ok(answer.map(|answer| (answer.relation, answer.interest)))
    }

    /// Tables that were left out, and those that would be as the catalogs are now.
    pub(crate) fn refused(&mut self, catalog: &Catalog) -> Result<Vec<Refused>> {
        let now = self.all(catalog)?;
        note(&mut self.left_out, std::mem::take(&mut self.shared.left_out));
        let mut refused = self.left_out.clone();
        note(&mut refused, now.iter().filter_map(|table| table.refused().cloned()));
        Ok(refused)
    }

    /// Every published table, as everybody sees it.
    pub(crate) fn all(&mut self, catalog: &Catalog) -> Result<Vec<Arc<Table>>> {
        let Some(view) = catalog.view(self.options.database, Xid::INVALID) else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for oid in view.relations().into_iter().filter(|oid| oid.is_user_defined()) {
            let table = self.shared.table(&view, &self.options, &mut self.number, oid)?;
            all.extend(table.map(|Wanted(table)| table));
        }
        Ok(all)
    }
}

/// Adds what is not there yet.
fn note(all: &mut Vec<Refused>, more: impl IntoIterator<Item = Refused>) {
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

    /// `None`: nobody has them, for now.
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

/// Whether its rows are left out, for good, because they cannot be written. Who takes part may be another one when they would
/// come out: then it is decided there.
fn is_left_out(table: &Table, options: &Options) -> bool {
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
        !is_left_out(table, options) && table.actions.any_of(Actions::INSERT | Actions::UPDATE)
    };
    match table.filter(is_wanted) {
        Some(_) => Answer { target: Target::Toast, relation, interest: Interest::Rows(Actions::INSERT) },
        None => unwanted(relation),
    }
}

/// What the reorder buffer asks.
pub(crate) struct Asked<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) tables: &'a mut Tables,
    /// What went wrong: an answer cannot say it.
    pub(crate) error: Option<Error>,
}

impl Asked<'_> {
    /// Whose answers a transaction gets.
    fn ask<T>(
        &mut self,
        xid: Xid,
        with: impl FnOnce(&mut Answers, &View<'_>, &Options, &mut u64) -> Result<T>,
    ) -> Option<T> {
        let Tables { options, shared, own, number, .. } = &mut *self.tables;
        let is_own = self.catalog.has_changes(xid);
        let answers = if is_own { own.entry(xid).or_default() } else { shared };
        // Who has changed nothing sees what everybody sees.
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
