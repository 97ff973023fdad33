//! The output in a form that can be compared: whole transactions, however they came out.

use base::{Lsn, PgTimestamp, Xid};
use txn::reorder::{Boundary, Finished, Origin, Prepared, RawAction, ReorderedEvent, ReorderedRow};

use crate::row::{Column, columns};

/// A transaction, or an event outside of one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Seen {
    Committed(Facts, Vec<Item>),
    Prepared(Facts, Vec<u8>, Vec<Item>),
    CommitPrepared(Facts, Vec<u8>),
    RollbackPrepared {
        xid: Xid,
        gid: Vec<u8>,
        prepare_end: Lsn,
        prepared: PgTimestamp,
        end: Lsn,
        time: PgTimestamp,
    },
    Message {
        lsn: Lsn,
        xid: Xid,
        prefix: Vec<u8>,
        content: Vec<u8>,
    },
}

/// The content of a boundary.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Facts {
    pub(crate) xid: Xid,
    pub(crate) lsn: Lsn,
    pub(crate) end: Lsn,
    pub(crate) time: PgTimestamp,
    pub(crate) origin: Option<Origin>,
}

/// A part of a transaction.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Item {
    pub(crate) lsn: Lsn,
    pub(crate) xid: Xid,
    pub(crate) what: What,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum What {
    Insert(u32, Option<u16>, Vec<Column>),
    /// The old row, and whether it is only the key.
    Update(u32, Option<u16>, Option<(bool, Vec<Column>)>, Vec<Column>),
    Delete(u32, Option<u16>, Option<(bool, Vec<Column>)>),
    Truncate(Vec<u32>, bool, bool),
    Message(Lsn, Vec<u8>, Vec<u8>),
}

impl Seen {
    pub(crate) fn items(&self) -> &[Item] {
        match self {
            Seen::Committed(_, items) | Seen::Prepared(_, _, items) => items,
            _ => &[],
        }
    }
}

/// Puts events together. Panics if they are out of order.
#[derive(Default)]
pub(crate) struct Watcher {
    pub(crate) seen: Vec<Seen>,
    inside: Option<(Boundary, Vec<Item>)>,
    /// Transactions with blocks that have come out.
    streamed: Vec<(Xid, Vec<Item>)>,
}

fn finished(of: &Finished) -> Facts {
    assert!(of.first_lsn < of.final_lsn && of.final_lsn < of.end_lsn, "{of:?}");
    Facts { xid: of.xid, lsn: of.final_lsn, end: of.end_lsn, time: of.commit_time, origin: of.origin }
}

fn prepared(of: &Prepared) -> Facts {
    assert!(of.first_lsn <= of.prepare_lsn && of.prepare_lsn < of.end_lsn, "{of:?}");
    Facts { xid: of.xid, lsn: of.prepare_lsn, end: of.end_lsn, time: of.prepare_time, origin: of.origin }
}

impl Watcher {
    pub(crate) fn see(&mut self, event: &ReorderedEvent<'_, u32>) {
        match event {
            ReorderedEvent::Boundary(boundary) => self.boundary(boundary),
            ReorderedEvent::Row(row) => self.item(row.lsn, row.xid, what(row)),
            ReorderedEvent::Truncate(truncate) => {
                let relations = truncate.relations.iter().map(|relation| **relation).collect();
                let what = What::Truncate(relations, truncate.cascade, truncate.restart_identity);
                self.item(truncate.lsn, truncate.xid, what);
            }
            ReorderedEvent::Message(message) if message.transactional => {
                let what = What::Message(message.lsn, message.prefix.to_vec(), message.content.to_vec());
                // The record, if the message's own position is not known.
                self.item(Lsn::INVALID, message.xid, what);
            }
            ReorderedEvent::Message(message) => {
                assert!(self.inside.is_none());
                let (prefix, content) = (message.prefix.to_vec(), message.content.to_vec());
                self.seen.push(Seen::Message { lsn: message.lsn, xid: message.xid, prefix, content });
            }
        }
    }

    fn item(&mut self, lsn: Lsn, xid: Xid, what: What) {
        self.inside.as_mut().expect("inside of a transaction").1.push(Item { lsn, xid, what });
    }

    fn boundary(&mut self, boundary: &Boundary) {
        match boundary {
            Boundary::Begin(_) | Boundary::BeginPrepare(_) | Boundary::StreamStart { .. } => {
                assert!(self.inside.is_none(), "{boundary:?}");
                self.inside = Some((boundary.clone(), Vec::new()));
            }
            Boundary::Commit(commit) => {
                let (opening, items) = self.inside.take().unwrap();
                assert_eq!(opening, Boundary::Begin(*commit));
                assert!(!items.is_empty(), "an empty transaction does not come out");
                self.seen.push(Seen::Committed(finished(commit), items));
            }
            Boundary::Prepare(prepare) => {
                let (opening, items) = self.inside.take().unwrap();
                assert_eq!(opening, Boundary::BeginPrepare(prepare.clone()));
                self.seen.push(Seen::Prepared(prepared(prepare), prepare.gid.to_vec(), items));
            }
            Boundary::StreamStop { xid, last_lsn } => self.block(*xid, *last_lsn),
            alone => {
                assert!(self.inside.is_none(), "{alone:?}");
                self.alone(alone);
            }
        }
    }

    fn block(&mut self, xid: Xid, last_lsn: Lsn) {
        let (opening, items) = self.inside.take().unwrap();
        let Boundary::StreamStart { xid: began, first_segment, first_lsn, .. } = opening else {
            panic!("{opening:?} before the end of a block");
        };
        assert_eq!(began, xid);
        assert!(first_lsn.is_valid() && first_lsn <= last_lsn && !items.is_empty());
        let known = self.streamed.iter_mut().find(|(known, _)| *known == xid);
        assert_eq!(first_segment, known.is_none());
        match known {
            Some((_, before)) => before.extend(items),
            None => self.streamed.push((xid, items)),
        }
    }

    fn alone(&mut self, boundary: &Boundary) {
        match boundary {
            Boundary::CommitPrepared { commit, gid } => {
                self.seen.push(Seen::CommitPrepared(finished(commit), gid.to_vec()));
            }
            Boundary::RollbackPrepared { prepared, end_lsn, time } => {
                self.seen.push(Seen::RollbackPrepared {
                    xid: prepared.xid,
                    gid: prepared.gid.to_vec(),
                    prepare_end: prepared.end_lsn,
                    prepared: prepared.prepare_time,
                    end: *end_lsn,
                    time: *time,
                });
            }
            Boundary::StreamCommit(commit) => {
                let items = self.take(commit.xid);
                // All its subtransactions may have been aborted after they were streamed.
                if !items.is_empty() {
                    self.seen.push(Seen::Committed(finished(commit), items));
                }
            }
            Boundary::StreamPrepare(prepare) => {
                let items = self.take(prepare.xid);
                self.seen.push(Seen::Prepared(prepared(prepare), prepare.gid.to_vec(), items));
            }
            Boundary::StreamAbort { xid, subxid, .. } if xid == subxid => drop(self.take(*xid)),
            Boundary::StreamAbort { xid, subxid, end_lsn, .. } => {
                assert!(end_lsn.is_valid());
                let open = self.streamed.iter_mut().find(|(known, _)| known == xid).unwrap();
                assert!(open.1.iter().any(|item| item.xid == *subxid), "nothing of {subxid} was streamed");
                open.1.retain(|item| item.xid != *subxid);
            }
            other => panic!("{other:?} alone"),
        }
    }

    fn take(&mut self, xid: Xid) -> Vec<Item> {
        let at = self
            .streamed
            .iter()
            .position(|(known, _)| *known == xid)
            .unwrap_or_else(|| panic!("{xid} was streamed"));
        self.streamed.swap_remove(at).1
    }
}

fn what(row: &ReorderedRow<'_, u32>) -> What {
    let old = |old: &decode::OldTuple<'_>| (old.key_only, columns(&old.tuple, row.chunks));
    match &row.action {
        RawAction::Insert(new) => What::Insert(*row.relation, row.origin, columns(new, row.chunks)),
        RawAction::Update { old: before, new } => {
            What::Update(*row.relation, row.origin, before.as_ref().map(old), columns(new, row.chunks))
        }
        RawAction::Delete(before) => What::Delete(*row.relation, row.origin, before.as_ref().map(old)),
    }
}
