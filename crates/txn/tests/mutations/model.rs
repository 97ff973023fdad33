//! The meaning of a stream's messages, in the simplest way: everything in memory, no spool, no
//! shared state.

use std::collections::{HashMap, HashSet};

use base::{Lsn, Oid, PgTimestamp, Xid};
use bytes::Bytes;
use proto::pgoutput::{self, CommitInfo, Message, Relation};

/// What came out, in a form that can be compared.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Seen {
    Begin(Xid, Lsn, PgTimestamp),
    /// The relation at that time, and the change.
    Row(Relation, String),
    Truncate(Vec<Relation>, bool),
    Commit(CommitInfo),
}

/// The stream was wrong here.
#[derive(Debug)]
pub(crate) struct Wrong;

enum Place {
    Outside,
    Transaction(Lsn, PgTimestamp),
    Block(Xid),
}

/// See [`Model::feed`].
pub(crate) struct Model {
    binary: bool,
    place: Place,
    relations: HashMap<Oid, Relation>,
    open: HashMap<Xid, Open>,
    pub(crate) seen: Vec<Seen>,
}

#[derive(Default)]
struct Open {
    messages: Vec<Bytes>,
    aborted: HashSet<Xid>,
}

impl Model {
    pub(crate) fn new(binary: bool) -> Model {
        Model {
            binary,
            place: Place::Outside,
            relations: HashMap::new(),
            open: HashMap::new(),
            seen: Vec::new(),
        }
    }

    /// Takes the next message. `seen` then has what it completes.
    pub(crate) fn feed(&mut self, data: &Bytes) -> Result<(), Wrong> {
        if let Place::Block(xid) = self.place {
            if data.first() != Some(&b'E') {
                self.open.get_mut(&xid).expect("open while in its block").messages.push(data.clone());
                return Ok(());
            }
            pgoutput::decode(data.clone(), false).map_err(|_| Wrong)?;
            self.place = Place::Outside;
            return Ok(());
        }
        let (_, message) = pgoutput::decode(data.clone(), false).map_err(|_| Wrong)?;
        match (&self.place, message) {
            (Place::Outside, Message::Begin { final_lsn, commit_time, xid }) => {
                self.seen.push(Seen::Begin(xid, final_lsn, commit_time));
                self.place = Place::Transaction(final_lsn, commit_time);
            }
            (Place::Transaction(lsn, time), Message::Commit(commit)) => {
                if (*lsn, *time) != (commit.commit_lsn, commit.commit_time) {
                    return Err(Wrong);
                }
                self.seen.push(Seen::Commit(commit));
                self.place = Place::Outside;
            }
            (Place::Outside, Message::StreamStart { xid, first_segment }) => {
                if first_segment == self.open.contains_key(&xid) {
                    return Err(Wrong);
                }
                self.open.entry(xid).or_default();
                self.place = Place::Block(xid);
            }
            (Place::Outside, Message::StreamAbort { xid, subxid }) if xid == subxid => {
                drop(self.open.remove(&xid))
            }
            (Place::Outside, Message::StreamAbort { xid, subxid }) => {
                if let Some(open) = self.open.get_mut(&xid) {
                    open.aborted.insert(subxid);
                }
            }
            (Place::Outside, Message::StreamCommit { xid, commit }) => {
                let open = self.open.remove(&xid).ok_or(Wrong)?;
                self.seen.push(Seen::Begin(xid, commit.commit_lsn, commit.commit_time));
                for data in open.messages {
                    let (subxid, message) = pgoutput::decode(data, true).map_err(|_| Wrong)?;
                    if subxid.is_none_or(|subxid| !open.aborted.contains(&subxid)) {
                        self.row(message)?;
                    }
                }
                self.seen.push(Seen::Commit(commit));
            }
            (_, Message::Origin { .. } | Message::Type { .. } | Message::Logical { .. }) => {}
            (Place::Transaction(..), message) | (_, message @ Message::Relation(_)) => self.row(message)?,
            _ => return Err(Wrong),
        }
        Ok(())
    }

    fn row(&mut self, message: Message) -> Result<(), Wrong> {
        let words = format!("{message:?}");
        let (id, tuples) = match message {
            Message::Insert { relation, new } => (relation, vec![new]),
            Message::Update { relation, old, new } => {
                (relation, old.map(|old| old.tuple).into_iter().chain([new]).collect())
            }
            Message::Delete { relation, old } => (relation, vec![old.tuple]),
            Message::Truncate { relations, restart_identity, .. } => {
                let known = relations.iter().map(|id| self.relations.get(id).cloned().ok_or(Wrong));
                let known = known.collect::<Result<_, _>>()?;
                self.seen.push(Seen::Truncate(known, restart_identity));
                return Ok(());
            }
            Message::Relation(relation) => {
                self.relations.insert(relation.id, relation);
                return Ok(());
            }
            Message::Origin { .. } | Message::Type { .. } | Message::Logical { .. } => return Ok(()),
            _ => return Err(Wrong),
        };
        let relation = self.relations.get(&id).cloned().ok_or(Wrong)?;
        let fits = |tuple: &pgoutput::Tuple| {
            tuple.len() == relation.columns.len() && (self.binary || !tuple.has_binary())
        };
        if !tuples.iter().all(fits) {
            return Err(Wrong);
        }
        self.seen.push(Seen::Row(relation, words));
        Ok(())
    }
}
