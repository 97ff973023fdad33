//! Which rows a server lost, by whom and when: what comes out instead of messages of pgoutput.
//!
//! This module takes the place of the writer of messages. It is handed what the reorder buffer puts
//! out, and keeps the values of each table's own replica identity, in binary form.
//!
//! | in WAL | out |
//! | --- | --- |
//! | DELETE with its old row | the row |
//! | UPDATE with an old row: the key changed, or REPLICA IDENTITY FULL | the old row |
//! | UPDATE without one, INSERT | nothing; most are dropped unread |
//! | TRUNCATE | each table and partition that it names |
//! | DELETE in a table without a replica identity, or with one that cannot be rendered | the table: its WAL does not say which row |
//!
//! Deletions come in the order of their commits, those of a transaction in the order of its
//! changes. What a deletion is remembered by does not belong here.

use std::collections::VecDeque;
use std::sync::Arc;

use base::{Lsn, Oid, PgTimestamp, Xid};
use txn::reorder::{Boundary, RawAction, ReorderedEvent, ReorderedRow, ReorderedTruncate};

use crate::error::Error;
use crate::options::Options;
use crate::row::{Of, Room};
use crate::table::{OutputTable, Wanted};

/// A deletion that has committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deleted {
    /// What is gone.
    pub what: DeletedWhat,
    /// The transaction, or the subtransaction of it, that deleted.
    pub xid: Xid,
    /// Its commit.
    pub commit: DeletingCommit,
}

/// What is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeletedWhat {
    /// A row.
    Row {
        /// The table or partition that had it.
        table: Arc<DeletedFrom>,
        /// The values of its identity columns in binary form, in the order of these.
        values: Vec<Option<Vec<u8>>>,
        /// An UPDATE gave the row another identity.
        is_key_change: bool,
    },
    /// A row of this table or partition, and it is not known which.
    Unnamed(Arc<DeletedFrom>),
    /// All rows of this table or partition.
    Table(Oid),
}

/// The commit of a transaction that deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeletingCommit {
    /// Where the commit record ends.
    pub end_lsn: Lsn,
    /// When it committed, at its origin if it has one.
    pub time: PgTimestamp,
    /// The replication origin.
    pub origin: Option<u16>,
}

/// A table as its deletions have it, at a place in the WAL.
#[derive(Debug, PartialEq, Eq)]
pub struct DeletedFrom {
    /// Another one for each description: the table may have changed when this has.
    pub number: u64,
    /// The table or partition.
    pub relation: Oid,
    /// Schema and name.
    pub name: (String, String),
    /// The columns of its replica identity, in the order of the table's columns.
    pub columns: Vec<String>,
    /// They are all columns (REPLICA IDENTITY FULL).
    pub is_whole_row: bool,
}

/// Takes the place of the writer of messages.
#[derive(Debug, Default)]
pub(crate) struct DeletionWriter {
    commit: Option<DeletingCommit>,
    out: VecDeque<Deleted>,
    /// The last table.
    table: Option<Arc<DeletedFrom>>,
    room: Room,
}

impl DeletionWriter {
    /// Takes the next deletion away.
    pub(crate) fn take(&mut self) -> Option<Deleted> {
        self.out.pop_front()
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    pub(crate) fn event(
        &mut self,
        event: &ReorderedEvent<'_, Wanted>,
        options: &Options,
    ) -> Result<(), Error> {
        match event {
            ReorderedEvent::Boundary(Boundary::Begin(begin)) => {
                self.commit = Some(DeletingCommit {
                    end_lsn: begin.end_lsn,
                    time: begin.commit_time,
                    origin: begin.origin.map(|origin| origin.id),
                });
                Ok(())
            }
            // Transactions are neither streamed nor told of when they are prepared.
            ReorderedEvent::Boundary(_) | ReorderedEvent::Message(_) => Ok(()),
            ReorderedEvent::Row(row) => self.row(row, options),
            ReorderedEvent::Truncate(truncate) => {
                self.truncate(truncate);
                Ok(())
            }
        }
    }

    fn push(&mut self, what: DeletedWhat, xid: Xid) {
        // Rows stand between the boundaries of their transaction.
        if let Some(commit) = self.commit {
            self.out.push_back(Deleted { what, xid, commit });
        }
    }

    fn row(&mut self, row: &ReorderedRow<'_, Wanted>, options: &Options) -> Result<(), Error> {
        let Wanted(table) = row.relation;
        let (old, is_key_change) = match &row.action {
            RawAction::Delete(Some(old)) => (old, false),
            RawAction::Update { old: Some(old), .. } => (old, true),
            RawAction::Delete(None) => {
                let table = self.described(table);
                self.push(DeletedWhat::Unnamed(table), row.xid);
                return Ok(());
            }
            RawAction::Update { old: None, .. } | RawAction::Insert(_) => return Ok(()),
        };
        if table.failure.is_some() || table.columns.is_empty() {
            let table = self.described(table);
            self.push(DeletedWhat::Unnamed(table), row.xid);
            return Ok(());
        }
        let of = Of { lsn: row.lsn, table, chunks: row.chunks };
        let side = of.side(&old.tuple, &mut self.room)?;
        let values = of.binary_values(&side, &options.settings)?;
        self.room.give(side);
        let table = self.described(table);
        self.push(DeletedWhat::Row { table, values, is_key_change }, row.xid);
        Ok(())
    }

    fn truncate(&mut self, truncate: &ReorderedTruncate<'_, Wanted>) {
        for Wanted(table) in &truncate.relations {
            self.push(DeletedWhat::Table(table.oid), truncate.xid);
        }
    }

    fn described(&mut self, table: &OutputTable) -> Arc<DeletedFrom> {
        if let Some(known) = self.table.as_ref().filter(|known| known.number == table.number) {
            return Arc::clone(known);
        }
        let described = Arc::new(DeletedFrom {
            number: table.number,
            relation: table.oid,
            name: (table.schema.clone(), table.name.clone()),
            columns: table.columns.iter().map(|column| column.name.clone()).collect(),
            is_whole_row: table.whole_old,
        });
        self.table = Some(Arc::clone(&described));
        described
    }
}
