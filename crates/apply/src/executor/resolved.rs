//! The conflicts that an executor has resolved, and what it needs to know for that.

use std::sync::Arc;

use conflict::{ColumnValues, Conflict, Met, Node, Origin, Resolution, Stamp, TableRules, Values, Written};
use plan::sql::{Shape, plain};
use plan::{Arrays, PIECE, Table};
use proto::pgoutput::Column;
use retention::{Retention, RowKey};
use rustc_hash::FxHashMap;
use state::{ConflictOutcome, ConflictRecord, RECORD_COLUMNS, RecordValue, RecordedValues, statements};
use txn::Begin;

use super::met::{LastWriter, UniqueKeys};
use super::missing::Missing;

/// How conflicts are to be resolved.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    pub(crate) rules: conflict::Rules,
    /// The source and the target, which decide between equal commit times.
    pub(crate) nodes: Option<(Node, Node)>,
    /// They are recorded on the target.
    pub(crate) history: bool,
    /// Records and messages have keys and rows.
    pub(crate) values: bool,
    /// Which rows the target lost, if that is remembered.
    pub(crate) retention: Option<Arc<Retention>>,
}

/// What an executor knows of conflicts.
#[derive(Debug, Default)]
pub(super) struct Conflicts {
    pub(super) settings: Settings,
    /// `track_commit_timestamp` of the target, once it was asked.
    pub(super) commit_times: Option<bool>,
    /// Unique keys of tables, by the mapping's id.
    pub(super) keys: FxHashMap<u64, Arc<UniqueKeys>>,
    /// The statement that locks the row of a change, by the mapping's id.
    pub(super) own_rows: FxHashMap<u64, Arc<Shape>>,
    /// What the open transaction has resolved.
    pub(super) resolved: Vec<Resolved>,
    /// How many of these are recorded.
    pub(super) recorded: usize,
    /// Before this one, none waits to be asked about.
    pub(super) asked: usize,
    /// How many wait.
    pub(super) awaiting: usize,
    /// How many were resolved in transactions that have committed.
    pub(super) told: u64,
    /// Rows of coming changes that are known to be missing.
    pub(super) missing: Missing,
    /// See [`Resolved::change`]; of the change that is being replayed.
    pub(super) change: usize,
    /// The last conflict that was an error, until its transaction is rolled back.
    pub(super) refused: Option<Resolved>,
}

/// A conflict that was resolved.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) conflict: Conflict,
    pub(super) begin: Begin,
    /// The change's number in its batch, where conflicts are not met in the order of changes.
    pub(super) change: usize,
    pub(super) table: Arc<Table>,
    pub(super) resolution: Resolution,
    pub(super) outcome: ConflictOutcome,
    /// The row of an `update_missing` of which nobody has asked yet whether it was deleted.
    pub(super) missed: Option<RowKey>,
    /// The row was missing, and nobody knows whether it was deleted.
    pub(super) is_uncovered: bool,
}

impl Resolved {
    /// Hands over its records: one for each row that the change met, or one if it met none.
    pub(super) fn each_record(&self, mut take: impl FnMut(&ConflictRecord<'_>)) {
        let Resolved { conflict, begin, table, resolution, outcome, .. } = self;
        let nothing = [Met::default()];
        let met = if conflict.met.is_empty() { &nothing[..] } else { &conflict.met };
        let (schema, name) = &table.schema_and_name;
        let detail = conflict.detail();
        for met in met {
            let json = |of: fn(&Values) -> &Option<ColumnValues>| {
                of(met.values.as_ref()?).as_ref().map(ColumnValues::json)
            };
            let (key, local_row) = (json(|own| &own.key), json(|own| &own.local_row));
            let (remote_row, identity) = (json(|own| &own.remote_row), json(|own| &own.replica_identity));
            take(&ConflictRecord {
                kind: conflict.kind,
                table: (schema, name),
                index: met.index.as_deref(),
                resolution: *resolution,
                outcome: *outcome,
                remote_xid: begin.xid,
                finished_at: begin.final_lsn,
                remote_time: begin.commit_time,
                remote_origin: begin.origin,
                local: met.written.as_ref(),
                values: RecordedValues {
                    key: key.as_deref(),
                    local_row: local_row.as_deref(),
                    remote_row: remote_row.as_deref(),
                    replica_identity: identity.as_deref(),
                },
                detail: &detail,
            });
        }
    }
}

/// The statement that [`records`] are for.
pub(super) fn recording(subscription: &str) -> Shape {
    let types = RECORD_COLUMNS.map(|(_, of)| of.oids());
    Shape {
        parameter_types: types.iter().map(|(_, array)| *array).collect(),
        element_types: types.iter().map(|(element, _)| (*element).into()).collect(),
        ..plain("record_conflicts", &statements::record_conflicts(subscription))
    }
}

/// The records of conflicts, in pieces of about [`PIECE`] bytes.
pub(super) fn records(resolved: &[Resolved]) -> Vec<Arrays> {
    let (mut pieces, mut piece) = (Vec::new(), None);
    for resolved in resolved {
        resolved.each_record(|record| {
            let rows = piece.get_or_insert_with(|| Arrays::new(RECORD_COLUMNS.len(), true));
            let values = record.values().map(RecordValue::binary);
            let values = values.iter().map(|value| value.as_deref().map_or(Column::Null, Column::Binary));
            rows.push(values).expect("binary values fit binary arrays");
            if rows.byte_len() >= PIECE {
                pieces.extend(piece.take());
            }
        });
    }
    pieces.extend(piece);
    pieces
}

impl Conflicts {
    pub(super) fn new(settings: Settings) -> Conflicts {
        Conflicts { settings, ..Conflicts::default() }
    }

    /// How many conflicts the open transaction has resolved so far.
    pub(super) fn mark(&self) -> usize {
        self.resolved.len()
    }

    /// Forgets what was resolved after `mark`, because it was rolled back.
    pub(super) fn back_to(&mut self, mark: usize) {
        let undone = self.resolved.drain(mark.min(self.resolved.len())..);
        self.awaiting -= undone.filter(|undone| undone.missed.is_some()).count();
        self.recorded = self.recorded.min(mark);
        self.asked = self.asked.min(mark);
    }

    /// Notes that a change was left out after all: a rule had decided to write it, and a holder of
    /// its unique key stays. `mark` is from before the change.
    pub(super) fn leave_out(&mut self, mark: usize) {
        // A holder that has made room for the change does not come back.
        let made_room = |resolved: &Resolved| resolved.conflict.met.iter().any(|met| met.index.is_some());
        for resolved in self.resolved[mark..].iter_mut().filter(|resolved| !made_room(resolved)) {
            resolved.outcome = ConflictOutcome::Kept;
        }
    }

    /// Puts those behind `mark` in the order of their changes.
    pub(super) fn sort_from(&mut self, mark: usize) {
        self.resolved[mark..].sort_by_key(|resolved| resolved.change);
        self.asked = self.asked.min(mark);
    }

    /// Whether a conflict is to be recorded after the rollback.
    pub(super) fn has_refused(&self) -> bool {
        self.refused.is_some()
    }

    pub(super) fn rules_of(&self, table: &Table) -> TableRules {
        self.settings.rules.of(&table.schema_and_name.0, &table.schema_and_name.1)
    }

    pub(super) fn remote(&self, begin: Begin) -> Stamp {
        let node = self.settings.nodes.as_ref().map(|(source, _)| source.clone());
        Stamp { time: Some(begin.commit_time), node }
    }

    /// Leaves the last conflict, of a row with that key, to be asked about.
    pub(super) fn await_answer(&mut self, key: RowKey) {
        if let Some(last) = self.resolved.last_mut() {
            last.missed = Some(key);
            self.awaiting += 1;
        }
    }

    /// When and where a row was deleted.
    pub(super) fn local_of(&self, deletion: &Written) -> Stamp {
        let target = self.settings.nodes.as_ref().map(|(_, target)| target);
        let commit = deletion.commit.as_ref();
        let is_local = commit.is_some_and(|commit| commit.origin == Origin::Local);
        Stamp { time: commit.map(|commit| commit.time), node: target.filter(|_| is_local).cloned() }
    }

    pub(super) fn local(&self, writer: &LastWriter) -> Stamp {
        let target = self.settings.nodes.as_ref().map(|(_, target)| target);
        let node = target.filter(|_| writer.origin == Some(0)).cloned();
        Stamp { time: writer.written.commit.as_ref().map(|commit| commit.time), node }
    }
}
