//! Transactions that each stay one on the target, applied by a procedure that commits each of them.
//!
//! A small transaction sent as statements of its own ([`super::pipelined`]) costs the target's
//! backend some 130 us. Most of that goes to the protocol, the portals and the snapshots of half a
//! dozen statements. One CALL takes many transactions as arrays, and executes them in the server:
//!
//! ```text
//!   $1  2        2        0        3        0        0    ...    which change, or 0: a transaction ends
//!   $2                    LSN               LSN                  where on the source
//!   $3                    time              time                 when
//!   $4                    xid               xid                  as which transaction of the source
//!   $5                    LSN               LSN                  where its commit record is
//!   $6  1 'a'    2 'b'             7                             what the changes take, an array for each type
//! ```
//! The procedure is in the session's temporary schema. It has one branch, with one statement, for
//! each kind of change that has come so far. Any error ends it, and so does a change that does not
//! write exactly one row. Everything before is committed, and the executor asks how far
//! that goes. The transaction that failed is applied by itself. Every few transactions the
//! procedure reports its progress by an INFO, which the server sends at once.
//!
//! Some transactions do not fit and go as statements: with a TRUNCATE, many changes, tables with
//! triggers, or types without an array. Where the role may not make the procedure, all of them do.
//! What it does with a row that somebody else wrote last is in [`writers`].
//!
//! The procedure's COMMIT checks deferred constraints. Where an abort moves the origin, that is
//! safe because progress is also a row. Where none does, on 14 and 15, there is no procedure. A
//! session with temporary objects drops them in a transaction of its own when it ends. That would
//! move the origin past a transaction that was given up after the origin was told and before
//! COMMIT.
//!
//! Invariants: the procedure is renamed only when its signature changes, because the server would
//! keep what it compiled for each name. For the same reason it only grows. Code that runs within
//! it, such as a user's default expression, cannot forge its reports of progress.

mod writers;

use std::fmt::Write;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use base::Oid;
use plan::sql::{self, Shape, plain, row_parameters, row_sql};
use plan::{Arrays, Batch, Change, Element, Lookup, Path, Table};
use proto::frame::ServerError;
use proto::pgoutput::Column;
use rustc_hash::FxHashMap;
use txn::Op;

pub(super) use self::writers::{Decided, Decides};
use super::sent::{ASK_EACH, ASK_OF_FEW, Sent};
use crate::write::one_change;

/// The most kinds of changes with a branch; others go as statements.
const BRANCHES_MAX: usize = 64;
/// The most arrays of values: a procedure has at most 100 arguments.
const SLOTS_MAX: usize = 90;
/// The number of the parameter for the first of them.
const FIRST_SLOT: usize = 6;
/// A transaction of more changes is as fast as statements.
const CHANGES_MAX: usize = 16;

const TEXT: (Oid, Oid) = (Oid(25), Oid(1009));
const INT4: (Oid, Oid) = (Oid(23), Oid(1007));
const INT8: (Oid, Oid) = (Oid(20), Oid(1016));
pub(super) const PG_LSN: Oid = Oid(3220);
const LSN: (Oid, Oid) = (PG_LSN, Oid(3221));
const TIMESTAMPTZ: (Oid, Oid) = (Oid(1184), Oid(1185));
/// A value of this type among the arguments would give its collation to all others, and they would
/// lead into no index.
const NAME: Oid = Oid(19);
/// Values of one type, one after another.
struct Slot {
    element: Element,
    array: Oid,
    declared: String,
}

/// The changes that the procedure can execute, and the procedure if there is one.
#[derive(Default)]
pub(super) struct Procedure {
    known: FxHashMap<(u64, sql::Kind), usize>,
    /// The text of each kind of change, and the slots of its values.
    pub(super) branches: Vec<(String, Vec<usize>)>,
    slots: Vec<Slot>,
    /// Statements whose plans were not yet looked at.
    pub(super) unseen: Vec<Arc<Shape>>,
    /// The CALL, and the number of branches of its procedure.
    pub(super) made: Option<(Arc<Shape>, usize)>,
    /// How many names were used, and the number of slots of the last one.
    number: u32,
    named: Option<usize>,
    /// The random prefix of its reports of progress.
    pub(super) word: String,
    /// The role may not make the procedure, or the procedure does not run.
    refused: bool,
    /// Calls since the last one that committed something, but for those that failed because of the
    /// rows.
    pub(super) vain: u32,
}

/// Transactions in the form of the procedure's arguments.
pub(super) struct Gathered {
    pub(super) which: Arrays,
    pub(super) ends: Arrays,
    pub(super) times: Arrays,
    pub(super) xids: Arrays,
    pub(super) finished: Arrays,
    pub(super) values: Vec<Arrays>,
    pub(super) sent: Vec<Sent>,
}

fn int(array: &mut Arrays, bytes: &[u8]) {
    array.push(std::iter::once(Column::Binary(bytes))).expect("a value in binary form");
}

impl Procedure {
    /// The branch for a change, made if it is new; `None` if the change cannot have one.
    fn branch(
        &mut self,
        table: &Table,
        kind: sql::Kind,
        binary: bool,
        decides: &Decides<'_>,
    ) -> Option<usize> {
        let key = (table.id, kind);
        if let Some(&number) = self.known.get(&key) {
            return Some(number);
        }
        if self.branches.len() == BRANCHES_MAX {
            return None;
        }
        let positions = row_parameters(table, &key.1);
        let slots_before = self.slots.len();
        let mut places: Vec<(usize, usize)> = Vec::with_capacity(positions.len());
        for &position in &positions {
            let target = &table.columns[position].target;
            let (array, element) = if binary { target.parameter() } else { (TEXT.1, TEXT.0.into()) };
            if array == Oid(0) || element == NAME.into() || self.slots.len() > SLOTS_MAX {
                self.slots.truncate(slots_before);
                return None;
            }
            let slot = self.slots.iter().position(|slot| slot.element == element).unwrap_or_else(|| {
                let declared = if binary { target.carried() } else { "pg_catalog.text" };
                self.slots.push(Slot { element, array, declared: format!("{declared}[]") });
                self.slots.len() - 1
            });
            let offset = 1 + places.iter().filter(|(other, _)| *other == slot).count();
            places.push((slot, offset));
        }
        let value = |n: usize| {
            let (slot, offset) = places[n];
            let value = format!("(${})[pgsluice_at{slot} + {offset}]", FIRST_SLOT + slot);
            let target = &table.columns[positions[n]].target;
            if binary { target.value_of(value) } else { format!("{value}::{}", target.type_name) }
        };
        let sql = row_sql(table, &key.1, &value);
        let decided = decides.text(table, &key.1, &value);
        let decided = decided.map(|text| format!("IF pgsluice_rows <> 1 THEN {text} END IF; "));
        let decided = decided.unwrap_or_default();
        let used: Vec<usize> = places.iter().map(|(slot, _)| *slot).collect();
        let mut moves = String::new();
        for slot in 0..self.slots.len() {
            let count = used.iter().filter(|used| **used == slot).count();
            if count > 0 {
                write!(moves, " pgsluice_at{slot} := pgsluice_at{slot} + {count};")
                    .expect("a string takes it");
            }
        }
        let text = format!(
            "{sql}; GET DIAGNOSTICS pgsluice_rows = ROW_COUNT; {decided}IF pgsluice_rows <> 1 THEN RAISE EXCEPTION \
             'pgsluice: % rows instead of 1, now looked at one at a time', pgsluice_rows; END IF;{moves}"
        );
        self.branches.push((text, used));
        self.known.insert(key, self.branches.len());
        Some(self.branches.len())
    }

    /// Gathers as many of the first `count` transactions as fit; `None` if fewer than two do.
    pub(super) fn gather(
        &mut self,
        batch: &Batch,
        count: usize,
        binary: bool,
        decides: &Decides<'_>,
    ) -> Option<Gathered> {
        if self.refused {
            return None;
        }
        let one = |binary| Arrays::new(1, binary);
        let mut all = Gathered {
            which: one(true),
            ends: one(true),
            times: one(true),
            xids: one(true),
            finished: one(true),
            values: Vec::new(),
            sent: Vec::with_capacity(count),
        };
        let (mut branches, mut values) = (Vec::new(), Vec::new());
        for end in &batch.ends[..count] {
            let from = all.sent.last().map_or(0, |sent| sent.changes.end);
            let changes = from..end.changes_end;
            branches.clear();
            values.clear();
            let fits = !end.skipped
                && changes.len() <= CHANGES_MAX
                && batch.changes[changes.clone()].iter().all(|change| {
                    let branch = self.fitting(change, binary, decides, &mut values);
                    branches.extend(branch);
                    branch.is_some()
                });
            if !fits {
                break;
            }
            all.values.resize_with(self.slots.len(), || one(binary));
            let mut rest = values.iter();
            for &branch in &branches {
                int(&mut all.which, &i32::try_from(branch).expect("a few").to_be_bytes());
                for (&slot, value) in self.branches[branch - 1].1.iter().zip(&mut rest) {
                    all.values[slot].push(std::iter::once(*value)).ok()?;
                }
            }
            int(&mut all.which, &0_i32.to_be_bytes());
            int(&mut all.ends, &end.commit.end_lsn.as_u64().to_be_bytes());
            int(&mut all.times, &end.commit.commit_time.0.to_be_bytes());
            int(&mut all.xids, &u64::from(end.begin.xid.0).to_be_bytes());
            int(&mut all.finished, &end.begin.final_lsn.as_u64().to_be_bytes());
            let statements = all.sent.len() + 1;
            all.sent.push(Sent { statements, written: changes.len() as u64, changes });
        }
        all.values.resize_with(self.slots.len(), || one(binary));
        (all.sent.len() > 1).then_some(all)
    }

    /// The branch of one change, if it fits. The change's values are appended to `values`.
    fn fitting<'c>(
        &mut self,
        change: &'c Change,
        binary: bool,
        decides: &Decides<'_>,
        values: &mut Vec<Column<'c>>,
    ) -> Option<usize> {
        let Change::Row { table, op } = change else { return None };
        // An UPDATE cannot write a generated key; it would have to be a DELETE and an INSERT.
        let generated = |op: &Op| {
            matches!(op, Op::Update { .. })
                && table.columns.iter().any(|column| column.target.identity_always)
        };
        if table.path == Path::RowsAlone || generated(op) {
            return None;
        }
        let start = values.len();
        let kind = one_change(table, op, values).ok()?;
        let fits = |value: &Column<'_>| match value {
            Column::Null => true,
            Column::Binary(_) => binary,
            Column::Text(_) => !binary,
            Column::Unchanged => false,
        };
        let known = self.branches.len();
        let branch =
            values[start..].iter().all(fits).then(|| self.branch(table, kind.clone(), binary, decides))?;
        if self.branches.len() > known && table.lookup == Lookup::UniqueKey && !matches!(op, Op::Insert(_)) {
            self.unseen.push(Arc::new(sql::of_one_change(table, &kind)));
        }
        branch
    }

    /// Whether the procedure has a branch for every kind of change that came.
    pub(super) fn is_made(&self) -> bool {
        self.made.as_ref().is_some_and(|(_, branches)| *branches == self.branches.len())
    }

    fn name(&self) -> String {
        format!("pgsluice_each{}", self.number)
    }

    /// Renames the procedure if its last name is for other arguments, and returns that name.
    pub(super) fn rename(&mut self) -> Option<String> {
        if self.named == Some(self.slots.len()) {
            return None;
        }
        let old = self.named.map(|_| self.name());
        self.number += 1;
        self.named = Some(self.slots.len());
        let random = std::hash::RandomState::new().build_hasher().finish();
        self.word = format!("{random:016x} ");
        old
    }

    pub(super) fn refuse(&mut self, why: &ServerError) {
        tracing::info!(
            code = %why.code,
            "pgsluice applies transactions one by one with statements, because the target refuses the faster \
             temporary procedure: {}",
            why.message
        );
        self.refused = true;
    }

    /// The text that creates the procedure; `progress` is the statement that stores where a
    /// transaction ended.
    pub(super) fn text(&self, progress: &str) -> String {
        let mut arguments = String::from(
            "pg_catalog.int4[], pg_catalog.pg_lsn[], pg_catalog.timestamptz[], pg_catalog.int8[], pg_catalog.pg_lsn[]",
        );
        let mut places = String::new();
        for (number, slot) in self.slots.iter().enumerate() {
            write!(arguments, ", {}", slot.declared).expect("a string takes it");
            write!(places, " pgsluice_at{number} pg_catalog.int4 := 0;").expect("a string takes it");
        }
        let mut branches = String::new();
        for (number, (text, _)) in self.branches.iter().enumerate() {
            write!(branches, " WHEN {} THEN {text}", number + 1).expect("a string takes it");
        }
        let body = format!(
            "#variable_conflict use_variable\n\
             DECLARE pgsluice_end pg_catalog.int4 := 0; pgsluice_rows pg_catalog.int8;{variables}{places} \
             BEGIN FOR pgsluice_next IN 1 .. pg_catalog.cardinality($1) LOOP CASE ($1)[pgsluice_next] \
             WHEN 0 THEN pgsluice_end := pgsluice_end + 1; {progress}; \
             PERFORM pg_catalog.pg_replication_origin_xact_setup(($2)[pgsluice_end], ($3)[pgsluice_end]); COMMIT; \
             IF pgsluice_met IS NOT NULL THEN RAISE INFO USING ERRCODE = '{code}', \
             MESSAGE = '{word}[' || pgsluice_met || ']'; pgsluice_met := NULL; END IF; \
             IF pgsluice_end % {ASK_EACH} = 0 OR pg_catalog.cardinality($2) <= {ASK_OF_FEW} THEN \
             RAISE INFO USING ERRCODE = '{code}', MESSAGE = '{word}' || pgsluice_end; END IF;{branches} END CASE; END LOOP; END",
            variables = writers::VARIABLES,
            code = client::REPORT,
            word = self.word,
        );
        format!(
            "CREATE OR REPLACE PROCEDURE pg_temp.{}({arguments}) LANGUAGE plpgsql AS {}",
            self.name(),
            base::quote_literal(&body)
        )
    }

    /// The CALL of the present procedure.
    pub(super) fn call(&self) -> Shape {
        let mut call = plain(&self.name(), "");
        let fixed = [INT4, LSN, TIMESTAMPTZ, INT8, LSN].map(|(element, array)| (element.into(), array));
        let types = fixed.into_iter().chain(self.slots.iter().map(|slot| (slot.element, slot.array)));
        (call.element_types, call.parameter_types) = types.unzip();
        let numbers: Vec<String> = (1..=call.parameter_types.len()).map(|n| format!("${n}")).collect();
        call.sql = format!("CALL pg_temp.{}({})", self.name(), numbers.join(", "));
        call
    }
}

#[cfg(test)]
mod tests {
    use base::Lsn;
    use plan::fixtures;
    use proto::pgoutput::Tuple;
    use txn::Begin;

    use super::*;
    use crate::executor::met::With;
    use crate::executor::resolved::Settings;

    fn settings() -> Settings {
        Settings::default()
    }

    fn decides(settings: &Settings) -> Decides<'_> {
        Decides { settings, subscription: "s", with: With { commit: true, values: false } }
    }

    fn tuple(values: [Column<'_>; 3]) -> Tuple {
        values.into_iter().collect()
    }

    fn batch(transactions: Vec<Vec<Op>>) -> Batch {
        batch_of(&fixtures::table(), transactions)
    }

    fn batch_of(table: &Arc<Table>, transactions: Vec<Vec<Op>>) -> Batch {
        let mut batch = Batch::default();
        for (number, ops) in transactions.into_iter().enumerate() {
            ops.into_iter().for_each(|op| batch.push(Change::Row { table: Arc::clone(table), op }));
            let lsn = Lsn::new(number as u64 + 1);
            let time = base::PgTimestamp(0);
            let begin = Begin { xid: base::Xid(1), final_lsn: lsn, commit_time: time, origin: None };
            let commit = proto::pgoutput::CommitInfo { commit_lsn: lsn, end_lsn: lsn, commit_time: time };
            batch.end(begin, commit, false);
        }
        batch
    }

    fn update(id: &'static [u8], a: Option<&'static [u8]>) -> Op {
        let a = a.map_or(Column::Unchanged, Column::Text);
        Op::Update { old: None, new: tuple([Column::Text(id), a, Column::Null]) }
    }

    #[test]
    fn each_kind_of_change_is_one_branch() {
        let mut procedure = Procedure::default();
        let insert = || Op::Insert(tuple([Column::Text(b"1"), Column::Null, Column::Null]));
        let two = batch(vec![vec![insert(), update(b"1", None)], vec![update(b"2", None), insert()]]);
        let gathered = procedure.gather(&two, 2, false, &decides(&settings())).unwrap();
        assert_eq!((procedure.branches.len(), procedure.slots.len()), (2, 1), "all text");
        assert_eq!((gathered.which.rows(), gathered.ends.rows()), (6, 2));
        // An INSERT takes three values. An UPDATE that keeps one column takes the other two and the
        // key.
        assert_eq!(gathered.values[0].rows(), 12);
        assert_eq!(
            procedure.branches[1].0.split(';').next().unwrap(),
            "UPDATE ONLY \"s\".\"t\" AS t SET \"id\" = ($6)[pgsluice_at0 + 1]::integer, \
             \"b\" = ($6)[pgsluice_at0 + 2]::integer WHERE t.\"id\" OPERATOR(pg_catalog.=) ($6)[pgsluice_at0 + 3]::integer"
        );
        assert!(!procedure.is_made());
        assert!(procedure.text("").contains(" WHEN 2 THEN UPDATE "));
    }

    #[test]
    fn what_does_not_fit_ends_what_is_gathered() {
        let many = (0..=CHANGES_MAX).map(|_| update(b"1", Some(b"2"))).collect();
        let small = || vec![update(b"1", Some(b"2"))];
        let transactions = vec![small(), small(), small(), many, small()];
        let gathered =
            Procedure::default().gather(&batch(transactions), 5, false, &decides(&settings())).unwrap();
        assert_eq!(gathered.sent.len(), 3);
        let other_form = batch(vec![small(), small()]);
        assert!(Procedure::default().gather(&other_form, 2, true, &decides(&settings())).is_none());
        assert!(
            Procedure::default().gather(&other_form, 1, false, &decides(&settings())).is_none(),
            "one goes by itself"
        );
    }

    #[test]
    fn it_grows_until_it_is_full_and_is_named_by_its_arguments() {
        let mut procedure = Procedure::default();
        let relation = fixtures::relation(proto::pgoutput::ReplicaIdentity::Default);
        let gather = |procedure: &mut Procedure, number| {
            let table = Arc::new(Table::map(number, Arc::clone(&relation), &fixtures::target()).unwrap());
            let two = batch_of(&table, vec![vec![update(b"1", None)], vec![update(b"1", Some(b"2"))]]);
            let gathered = procedure.gather(&two, 2, false, &decides(&settings())).is_some();
            (gathered, procedure.branches.len(), procedure.rename().is_some(), procedure.number)
        };
        let room = BRANCHES_MAX as u64 / 2;
        for number in 0..room {
            assert_eq!(gather(&mut procedure, number), (true, 2 * (number as usize + 1), false, 1));
        }
        assert_eq!(
            gather(&mut procedure, room),
            (false, BRANCHES_MAX, false, 1),
            "there is no room for its branches"
        );
        assert_eq!(gather(&mut procedure, 0), (true, BRANCHES_MAX, false, 1));
        procedure.slots.push(Slot { element: Oid(1).into(), array: Oid(2), declared: "x[]".to_owned() });
        assert_eq!(procedure.rename().as_deref(), Some("pgsluice_each1"));
        assert_eq!(procedure.name(), "pgsluice_each2");
    }

    #[test]
    fn a_table_that_does_not_fit_leaves_no_slots() {
        let relation = fixtures::relation(proto::pgoutput::ReplicaIdentity::Default);
        let mut target = fixtures::target();
        target.columns[2].type_oid = NAME;
        let table = Table::map(1, relation, &target).unwrap();
        let mut procedure = Procedure::default();
        assert_eq!(procedure.branch(&table, sql::Kind::RowInsert, true, &decides(&settings())), None);
        assert!(procedure.slots.is_empty());
        assert_eq!(
            procedure.branch(&table, sql::Kind::RowDelete, true, &decides(&settings())),
            Some(1),
            "its key is an integer"
        );
    }
}
