//! The content of one output: transactions put together from its messages, with what is known of
//! relations at each change.
//!
//! Blocks of a streamed transaction are put together until it ends, without what its
//! subtransactions took back. So it makes no difference where a stream is cut.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use crate::message::{At, End, Message, Prepared, Relation, Sent, read};

/// A change, with what is known of its relations at its place.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) lsn: At,
    pub(crate) xid: u32,
    /// Only in blocks of a stream.
    pub(crate) sub: Option<u32>,
    pub(crate) message: Message,
    pub(crate) relations: Vec<Rc<Relation>>,
    /// Relations and types that were announced since the last change.
    pub(crate) said: Vec<Said>,
    /// The server contradicts itself here ([`crate::compare::stale`]).
    pub(crate) is_stale: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    Relation(Rc<Relation>),
    Type { id: u32, schema: String, name: String },
}

impl Said {
    pub(crate) fn key(&self) -> (bool, u32) {
        match self {
            Said::Relation(relation) => (true, relation.id),
            Said::Type { id, .. } => (false, *id),
        }
    }
}

/// How a transaction ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    Commit(End),
    Prepare(u8, Prepared),
}

#[derive(Debug, Clone)]
pub(crate) struct Transaction {
    pub(crate) xid: u32,
    /// Its first message, with the LSN and xid it was sent with; `None` if it was streamed.
    pub(crate) begin: Option<(At, u32, Message)>,
    pub(crate) origin: Option<(At, String)>,
    pub(crate) changes: Vec<Change>,
    /// A subtransaction was taken back after it was streamed.
    pub(crate) is_cut: bool,
    pub(crate) ended: Ended,
    pub(crate) sent: (At, u32),
}

impl Transaction {
    pub(crate) fn is_streamed(&self) -> bool {
        self.begin.is_none()
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Item {
    Transaction(Transaction),
    /// A message outside of transactions: one that waits for no transaction, or the end of a
    /// prepared transaction.
    Alone(At, u32, Message),
}

impl Item {
    pub(crate) fn transaction(&self) -> Option<&Transaction> {
        match self {
            Item::Transaction(transaction) => Some(transaction),
            Item::Alone(..) => None,
        }
    }
}

/// The knowledge of a session that reads one of the outputs.
#[derive(Default, Debug)]
pub(crate) struct Side {
    /// Some oddities occur only on the server's side.
    is_server: bool,
    pub(crate) relations: HashMap<u32, Rc<Relation>>,
    types: HashMap<u32, (String, String)>,
    /// Open streamed transactions by their ids.
    streams: HashMap<u32, Stream>,
    /// The open block.
    block: Option<u32>,
    /// The open transaction.
    building: Option<Building>,
    /// Streamed aborts, with position and time if the message has them.
    pub(crate) aborts: BTreeMap<(u32, u32), Option<(At, i64)>>,
    /// Relations that were described since the items were last taken.
    pub(crate) said: HashSet<u32>,
    items: Vec<Item>,
    /// The relations as they were described when the items were last taken.
    pub(crate) known: HashMap<u32, Rc<Relation>>,
}

/// The items of a stretch, and what was known of relations before it.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) items: Vec<Item>,
    pub(crate) known: HashMap<u32, Rc<Relation>>,
}

/// What one side has of relations that the other cannot render.
#[derive(Default, Debug)]
pub(crate) struct LeftOut {
    pub(crate) rows: u64,
    pub(crate) relations: HashSet<u32>,
    /// Transactions that had nothing else.
    pub(crate) emptied: HashSet<u32>,
}

impl Told {
    /// Removes the rows of relations that have a column of one of these types. A truncation has no
    /// values, and stays.
    pub(crate) fn leave_out(&mut self, types: &HashSet<u32>) -> LeftOut {
        let mut left_out = LeftOut::default();
        let is_of =
            |relation: &Rc<Relation>| relation.columns.iter().any(|column| types.contains(&column.type_oid));
        self.items.retain_mut(|item| {
            let Item::Transaction(transaction) = item else { return true };
            let before = transaction.changes.len();
            transaction.changes.retain(|change| {
                let stays = !change.message.is_row() || !change.relations.iter().any(is_of);
                if !stays {
                    left_out.relations.extend(change.relations.iter().map(|relation| relation.id));
                }
                stays
            });
            left_out.rows += (before - transaction.changes.len()) as u64;
            let is_emptied = before > 0 && transaction.changes.is_empty();
            if is_emptied && matches!(transaction.ended, Ended::Commit(_)) {
                left_out.emptied.insert(transaction.xid);
                return false;
            }
            true
        });
        left_out
    }

    /// Removes what depends on where 14 begins transactions. It begins a transaction with the first
    /// record, even if nothing comes out. We begin it, like later majors, with the first change
    /// that comes out. So empty transactions are removed, and the beginning of the others is not
    /// compared.
    pub(crate) fn as_begun_by_14(&mut self) {
        self.items.retain_mut(|item| {
            let Item::Transaction(transaction) = item else { return true };
            if let Some((sent, ..)) = &mut transaction.begin {
                *sent = At(0);
            }
            !(matches!(transaction.ended, Ended::Commit(_)) && transaction.changes.is_empty())
        });
    }

    /// Removes empty transactions that became empty on the other side because their rows were left
    /// out. They may come out or not.
    pub(crate) fn without_emptied(&mut self, theirs: &LeftOut) {
        self.items.retain(|item| {
            let of = item.transaction().filter(|one| one.changes.is_empty());
            of.is_none_or(|transaction| !theirs.emptied.contains(&transaction.xid))
        });
    }
}

#[derive(Default, Debug)]
struct Stream {
    origin: Option<(At, String)>,
    steps: Vec<Step>,
    /// A subtransaction was taken back.
    is_cut: bool,
}

#[derive(Debug)]
struct Step {
    lsn: At,
    xid: u32,
    sub: Option<u32>,
    message: Message,
}

#[derive(Default, Debug)]
struct Building {
    begin: Option<(At, u32, Message)>,
    origin: Option<(At, String)>,
    changes: Vec<Change>,
    said: Vec<Said>,
    /// Types that were described for the next relation.
    types: Vec<u32>,
    /// The subtransaction that described something for the next change.
    sub: Option<u32>,
    is_cut: bool,
    /// If the transaction was rolled back meanwhile, the server stops anywhere in it and goes on
    /// with the next block.
    may_stop: bool,
}

/// Types with higher OIDs differ from server to server, so pgoutput describes them
/// (`FirstGenbkiObjectId`).
const DESCRIBED_TYPES: u32 = 10_000;

impl Side {
    pub(crate) fn server() -> Side {
        Side { is_server: true, ..Side::default() }
    }

    /// Reads more messages. Fails if they are not pgoutput's, or not in an order that pgoutput has.
    pub(crate) fn read(&mut self, messages: &[Sent]) -> Result<(), String> {
        messages.iter().try_for_each(|sent| {
            self.one(sent).map_err(|error| format!("{error}, at {:?} of {}", At(sent.lsn), sent.xid))
        })
    }

    /// Leaves what came since the last call out of the comparison.
    pub(crate) fn skip(&mut self) {
        self.said.clear();
    }

    /// Returns what came since the last call.
    pub(crate) fn take(&mut self) -> Told {
        let known = std::mem::replace(&mut self.known, self.relations.clone());
        Told { known, items: std::mem::take(&mut self.items) }
    }

    fn one(&mut self, sent: &Sent) -> Result<(), String> {
        let (lsn, xid) = (At(sent.lsn), sent.xid);
        let (sub, message) = read(&sent.data, self.block.is_some())?;
        if let Some(top) = self.block {
            return self.in_block(top, Step { lsn, xid, sub, message });
        }
        if self.building.is_some() {
            return self.in_transaction(Step { lsn, xid, sub, message });
        }
        match message {
            Message::Begin { .. } | Message::BeginPrepare(_) => {
                self.building = Some(Building { begin: Some((lsn, xid, message)), ..Building::default() });
            }
            Message::StreamStart { xid: top, first } => {
                let is_new = !self.streams.contains_key(&top);
                if (first == 1) != is_new || first > 1 {
                    return Err(format!("block of {top} says first = {first}, it is {is_new}"));
                }
                self.streams.entry(top).or_default();
                self.block = Some(top);
            }
            Message::StreamAbort { xid: top, sub, at } => self.stream_abort(top, sub, at)?,
            Message::StreamCommit { xid: top, end } => self.replay(top, Ended::Commit(end), (lsn, xid))?,
            Message::StreamPrepare { flags, prepared } => {
                self.replay(prepared.xid, Ended::Prepare(flags, prepared), (lsn, xid))?;
            }
            Message::Prepare { .. } if self.is_server => self.items.push(Item::Alone(lsn, xid, message)),
            Message::Logical { flags: 0, .. }
            | Message::CommitPrepared { .. }
            | Message::RollbackPrepared { .. } => self.items.push(Item::Alone(lsn, xid, message)),
            _ => return Err(format!("outside of a transaction: {message:?}")),
        }
        Ok(())
    }

    fn in_block(&mut self, top: u32, step: Step) -> Result<(), String> {
        let stream = self.streams.get_mut(&top).ok_or("a block of no stream")?;
        match step.message {
            Message::StreamStop => self.block = None,
            Message::Origin { lsn, name } if stream.origin.is_none() && stream.steps.is_empty() => {
                stream.origin = Some((lsn, name));
            }
            _ if step.sub.is_some() => stream.steps.push(step),
            _ => return Err(format!("inside of a block: {:?}", step.message)),
        }
        Ok(())
    }

    fn stream_abort(&mut self, top: u32, sub: u32, at: Option<(At, i64)>) -> Result<(), String> {
        let Some(stream) = self.streams.get_mut(&top) else {
            return if self.is_server { Ok(()) } else { Err(format!("{top} is no stream, and aborts")) };
        };
        if self.aborts.insert((top, sub), at).is_some() {
            return Err(format!("{sub} of {top} aborts twice"));
        }
        if sub == top {
            self.streams.remove(&top);
        } else {
            stream.is_cut = true;
            // A session does one thing after the other, so everything since then belongs to this
            // subtransaction's own subtransactions.
            if let Some(first) = stream.steps.iter().position(|step| step.sub == Some(sub)) {
                let behind = stream.steps.split_off(first);
                let lsn = behind[0].lsn;
                let is_before =
                    |step: &Step| step.lsn == lsn && matches!(step.message, Message::Logical { .. });
                stream.steps.extend(behind.into_iter().filter(is_before));
            }
        }
        Ok(())
    }

    /// Ends a streamed transaction: for the session, it happens now.
    fn replay(&mut self, top: u32, ended: Ended, sent: (At, u32)) -> Result<(), String> {
        let stream = self.streams.remove(&top).ok_or_else(|| format!("{top} is no stream, and ends"))?;
        let Stream { origin, steps, is_cut } = stream;
        let may_stop = self.is_server && matches!(ended, Ended::Prepare(..));
        let mut building = Building { origin, is_cut, may_stop, ..Building::default() };
        for step in steps {
            self.change(&mut building, step)?;
        }
        self.finish(building, top, ended, sent);
        Ok(())
    }

    fn in_transaction(&mut self, step: Step) -> Result<(), String> {
        let mut building = self.building.take().ok_or("no transaction")?;
        let sent = (step.lsn, step.xid);
        match (step.message, &building.begin) {
            (Message::Commit(end), Some((_, _, Message::Begin { final_lsn, time, xid }))) => {
                if (*final_lsn, *time) != (end.lsn, end.time) {
                    return Err(format!("{xid} begins with {final_lsn:?} and {time}, and ends with {end:?}"));
                }
                let xid = *xid;
                self.finish(building, xid, Ended::Commit(end), sent);
            }
            (Message::Prepare { flags, prepared }, Some((_, _, Message::BeginPrepare(begun)))) => {
                if prepared != *begun {
                    return Err(format!("begun as {begun:?}, prepared as {prepared:?}"));
                }
                self.finish(building, prepared.xid, Ended::Prepare(flags, prepared), sent);
            }
            (Message::Origin { lsn, name }, _)
                if building.origin.is_none() && building.changes.is_empty() && building.said.is_empty() =>
            {
                building.origin = Some((lsn, name));
                self.building = Some(building);
            }
            (message, _) => {
                self.change(&mut building, Step { message, ..step })?;
                self.building = Some(building);
            }
        }
        Ok(())
    }

    fn finish(&mut self, building: Building, xid: u32, ended: Ended, sent: (At, u32)) {
        let Building { begin, origin, mut changes, is_cut, .. } = building;
        // The changes are sorted, and the sort is stable: messages only move before other changes
        // of the same position.
        for same in changes.chunk_by_mut(|one, next| one.lsn == next.lsn) {
            same.sort_by_key(|change| !matches!(change.message, Message::Logical { .. }));
        }
        self.items.push(Item::Transaction(Transaction { xid, begin, origin, changes, is_cut, ended, sent }));
    }

    fn change(&mut self, building: &mut Building, step: Step) -> Result<(), String> {
        let Step { lsn, xid, sub, message } = step;
        if building.may_stop && building.sub != sub {
            building.said.clear();
            building.types.clear();
        }
        if !building.said.is_empty() && building.sub != sub {
            return Err(format!("{:?} described for {sub:?}: {message:?}", building.sub));
        }
        building.sub = sub;
        match message {
            Message::Relation(relation) => {
                for column in relation.columns.iter().filter(|column| column.type_oid >= DESCRIBED_TYPES) {
                    if !self.types.contains_key(&column.type_oid) {
                        return Err(format!(
                            "{} of {} has a type that was not described",
                            column.name, relation.name
                        ));
                    }
                }
                let is_of = |id: &u32| relation.columns.iter().any(|column| column.type_oid == *id);
                if !std::mem::take(&mut building.types).iter().all(is_of) {
                    return Err(format!("a type was described that no column of {} has", relation.name));
                }
                let relation = Rc::new(relation);
                self.said.insert(relation.id);
                self.relations.insert(relation.id, Rc::clone(&relation));
                building.said.push(Said::Relation(relation));
            }
            Message::Type { id, schema, name } => {
                self.types.insert(id, (schema.clone(), name.clone()));
                building.types.push(id);
                building.said.push(Said::Type { id, schema, name });
            }
            Message::Insert { .. }
            | Message::Update { .. }
            | Message::Delete { .. }
            | Message::Truncate { .. }
            | Message::Logical { flags: 1, .. } => {
                if !building.types.is_empty() {
                    return Err(format!("types were described without a relation, before {message:?}"));
                }
                let described = |id| {
                    let relation = self.relations.get(&id).map(Rc::clone);
                    relation.ok_or_else(|| format!("no Relation came before {message:?}"))
                };
                let relations = message.relations().into_iter().map(described).collect::<Result<_, _>>()?;
                let said = std::mem::take(&mut building.said);
                building.changes.push(Change { lsn, xid, sub, message, relations, said, is_stale: false });
            }
            _ => return Err(format!("inside of a transaction: {message:?}")),
        }
        Ok(())
    }
}
