//! Turns a message inside a transaction into an event, by the relations that were described before
//! it.

use std::sync::Arc;

use base::Oid;
use proto::pgoutput::{Message, Relation};
use rustc_hash::FxHashMap;

use super::error::{AssemblyError, Kind, name};
use super::event::{Change, Event, Op, TruncateChange};

/// The relations that were described, and the form of values.
#[derive(Debug)]
pub(super) struct Rows {
    relations: FxHashMap<Oid, Arc<Relation>>,
    /// Values may come in binary form.
    binary: bool,
}

impl Rows {
    pub(super) fn new(binary: bool) -> Rows {
        Rows { relations: FxHashMap::default(), binary }
    }

    pub(super) fn set_binary(&mut self, binary: bool) {
        self.binary = binary;
    }

    /// A copy to which no relation has been described yet.
    pub(super) fn anew(&self) -> Rows {
        Rows::new(self.binary)
    }

    /// Returns the event for `message`; `None` if the message makes none.
    pub(super) fn event(&mut self, message: Message) -> Result<Option<Event>, AssemblyError> {
        match message {
            Message::Insert { relation, new } => self.change(relation, Op::Insert(new)),
            Message::Update { relation, old, new } => self.change(relation, Op::Update { old, new }),
            Message::Delete { relation, old } => self.change(relation, Op::Delete(old)),
            Message::Truncate { relations, restart_identity, cascade: _ } => {
                // CASCADE is not repeated: the list names every table that was truncated and is
                // published, as in native apply.
                let relations =
                    relations.into_iter().map(|id| self.relation(id)).collect::<Result<_, _>>()?;
                Ok(Some(Event::Truncate(TruncateChange { relations, restart_identity })))
            }
            Message::Relation(relation) => {
                self.describe(relation);
                Ok(None)
            }
            Message::Origin { .. } | Message::Type { .. } | Message::Logical { .. } => Ok(None),
            other => Err(Kind::OutOfPlace { message: name(&other), state: "inside a transaction" }.into()),
        }
    }

    /// Stores a description and returns it. The source sends it again after every invalidation.
    /// Only a changed description makes a new one, so that plans are kept.
    pub(super) fn describe(&mut self, relation: Relation) -> Arc<Relation> {
        match self.relations.get(&relation.id) {
            Some(known) if **known == relation => Arc::clone(known),
            _ => {
                let relation = Arc::new(relation);
                self.learn(Arc::clone(&relation));
                relation
            }
        }
    }

    /// Takes over a description.
    pub(super) fn learn(&mut self, relation: Arc<Relation>) {
        self.relations.insert(relation.id, relation);
    }

    /// Returns the description as it would be stored, without storing it.
    pub(super) fn shared(&self, relation: Relation) -> Arc<Relation> {
        match self.relations.get(&relation.id) {
            Some(known) if **known == relation => Arc::clone(known),
            _ => Arc::new(relation),
        }
    }

    fn relation(&self, id: Oid) -> Result<Arc<Relation>, AssemblyError> {
        self.relations.get(&id).cloned().ok_or(Kind::UnknownRelation(id).into())
    }

    fn change(&self, relation: Oid, op: Op) -> Result<Option<Event>, AssemblyError> {
        let relation = self.relation(relation)?;
        let (one, other) = match &op {
            Op::Insert(new) => (new, None),
            Op::Update { old, new } => (new, old.as_ref().map(|old| &old.tuple)),
            Op::Delete(old) => (&old.tuple, None),
        };
        for tuple in std::iter::once(one).chain(other) {
            let name = || format!("{}.{}", relation.namespace, relation.name);
            let (values, columns) = (tuple.len(), relation.columns.len());
            if values != columns {
                return Err(Kind::Columns { relation: name(), values, columns }.into());
            }
            if tuple.has_binary() && !self.binary {
                return Err(Kind::Binary { relation: name() }.into());
            }
        }
        Ok(Some(Event::Change(Change { relation, op })))
    }
}
