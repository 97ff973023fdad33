//! Two outputs of the same WAL, message by message.
//!
//! What may differ, and nothing else:
//! - how often Relation and Type messages come. Where both sides send one between the same two changes it must say the
//!   same, and each change must stand behind a Relation that describes its relation as the other side's does;
//! - keepalives, which are no messages here;
//! - where a streamed transaction is cut into blocks, up to not at all: blocks are put together until the transaction
//!   ends, without what its subtransactions took back. So a block with nothing in it, and a streamed transaction of
//!   which nothing is left or which aborts, say nothing. Logical messages name the transaction there and not the
//!   subtransaction, so that one of a subtransaction that was taken back may be left;
//! - which comes first of a logical message and the record behind it, in another subtransaction. The message's position is
//!   the end of its record, which is where the other begins, and the server's merge of subtransactions knows no more;
//! - what is left of a prepared transaction that was rolled back before the server was asked: it stops at the first look
//!   at a catalog that tells it so. What it sends until then must be ours, in our order, but the DDL of such a transaction
//!   may be invisible to it already. For the same reason 18 may say that a stream aborts that never began;
//! - that 18 says of a prepared transaction which has changed nothing that it is prepared, without having begun it;
//! - the origin of a streamed transaction, which the server may not name: it takes that of the first thing in its queue,
//!   and an invalidation that stands there has none;
//! - on 14, of which relation a row is, where the server contradicts itself ([`stale`]).
//!
//! All that remains is compared, with the LSN and the transaction id that each message is sent with.

pub(crate) mod stale;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use crate::message::{At, End, Message, Prepared, Relation, Sent, read};

/// A change with what is known of its relations at its place.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) lsn: At,
    pub(crate) xid: u32,
    /// Only in blocks of a stream.
    pub(crate) sub: Option<u32>,
    pub(crate) message: Message,
    relations: Vec<Rc<Relation>>,
    /// What was said since the change before: relations and types by their ids.
    said: Vec<Said>,
    /// The server contradicts itself here ([`stale`]).
    is_stale: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Said {
    Relation(Rc<Relation>),
    Type { id: u32, schema: String, name: String },
}

impl Said {
    fn key(&self) -> (bool, u32) {
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
    /// Its first message with what it was sent with; a streamed one has none.
    begin: Option<(At, u32, Message)>,
    origin: Option<(At, String)>,
    pub(crate) changes: Vec<Change>,
    /// A subtransaction was taken back after it was streamed.
    is_cut: bool,
    ended: Ended,
    sent: (At, u32),
}

impl Transaction {
    pub(crate) fn is_streamed(&self) -> bool {
        self.begin.is_none()
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Item {
    Transaction(Transaction),
    /// What is in no transaction: messages that wait for none, and the ends of prepared transactions.
    Alone(At, u32, Message),
}

impl Item {
    fn transaction(&self) -> Option<&Transaction> {
        match self {
            Item::Transaction(transaction) => Some(transaction),
            Item::Alone(..) => None,
        }
    }
}

/// What a session that reads one of the outputs knows.
#[derive(Default, Debug)]
pub(crate) struct Side {
    /// Some oddities are the server's alone.
    is_server: bool,
    relations: HashMap<u32, Rc<Relation>>,
    types: HashMap<u32, (String, String)>,
    /// Streamed transactions that go on, by their ids.
    streams: HashMap<u32, Stream>,
    /// The block that goes on.
    block: Option<u32>,
    /// The transaction that goes on.
    building: Option<Building>,
    /// Streamed aborts with their position and time, as far as they are said.
    pub(crate) aborts: BTreeMap<(u32, u32), Option<(At, i64)>>,
    /// Relations that were described since the items were taken last.
    said: HashSet<u32>,
    items: Vec<Item>,
    /// The relations as they were described when the items were taken last.
    known: HashMap<u32, Rc<Relation>>,
}

/// What came in a stretch, and what was known of relations before it.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) items: Vec<Item>,
    known: HashMap<u32, Rc<Relation>>,
}

/// What one side has of relations that the other cannot render.
#[derive(Default, Debug)]
pub(crate) struct LeftOut {
    pub(crate) rows: u64,
    relations: HashSet<u32>,
    /// Transactions of which nothing else was there.
    emptied: HashSet<u32>,
}

impl Told {
    /// Takes away the rows of relations that have a column of one of these types. A truncation has no values, and stays.
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

    /// 14 begins a transaction with its first record, whatever comes out of it, and we as later majors do, with the first
    /// change that comes out: one with nothing in it is left out, and where the others begin is not compared.
    pub(crate) fn as_begun_by_14(&mut self) {
        self.items.retain_mut(|item| {
            let Item::Transaction(transaction) = item else { return true };
            if let Some((sent, ..)) = &mut transaction.begin {
                *sent = At(0);
            }
            !(matches!(transaction.ended, Ended::Commit(_)) && transaction.changes.is_empty())
        });
    }

    /// What the other side has left out is nothing here: a transaction without anything in it may come out or not.
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
    /// Types that were described for the relation that comes next.
    types: Vec<u32>,
    /// The subtransaction that described something for the change that comes next.
    sub: Option<u32>,
    is_cut: bool,
    /// The server stops anywhere in it, and goes on with the next block, if it was rolled back meanwhile.
    may_stop: bool,
}

/// Types from here on are not the same on every server; pgoutput describes them (`FirstGenbkiObjectId`).
const DESCRIBED_TYPES: u32 = 10_000;

impl Side {
    pub(crate) fn server() -> Side {
        Side { is_server: true, ..Side::default() }
    }

    /// Reads on. Where what comes is not pgoutput, or not in an order that pgoutput has, says so.
    pub(crate) fn read(&mut self, messages: &[Sent]) -> Result<(), String> {
        messages.iter().try_for_each(|sent| {
            self.one(sent).map_err(|error| format!("{error}, at {:?} of {}", At(sent.lsn), sent.xid))
        })
    }

    /// What came since is compared with nothing.
    pub(crate) fn skip(&mut self) {
        self.said.clear();
    }

    /// What came since this was asked last.
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
            // A session does one thing after the other: what came since is of those below it.
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

    /// A streamed transaction is over: to the session it is one that happens now.
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
        // A stable sort of what is sorted: only messages go before others of the same position.
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

/// What was compared and found equal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) transactions: u64,
    pub(crate) rows: u64,
    /// Truncations and logical messages.
    pub(crate) others: u64,
    /// Transactions of which at least one side was streamed.
    pub(crate) streamed: u64,
    /// Rows that are not equal: the server contradicts itself in them ([`stale`]).
    pub(crate) stale: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.transactions += other.transactions;
        self.rows += other.rows;
        self.others += other.others;
        self.streamed += other.streamed;
        self.stale += other.stale;
    }
}

/// What [`compare`] found equal.
#[derive(Debug)]
pub(crate) struct Compared {
    pub(crate) tally: Tally,
    /// Relations that only one side may know: for a transaction that was rolled back, or as one side leaves them out.
    pub(crate) aside: HashSet<u32>,
}

impl Compared {
    /// Relations that were taken from one side may be described there.
    pub(crate) fn beside(mut self, left_out: &LeftOut) -> Compared {
        self.aside.extend(&left_out.relations);
        self
    }
}

/// A difference, told for people, and where in the WAL it is.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) place: Option<At>,
    words: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.words)
    }
}

impl From<Difference> for String {
    fn from(difference: Difference) -> String {
        difference.words
    }
}

/// Where two items that should be one begin to differ: at a change, as far as there is one.
fn place(ours: Option<&Item>, theirs: Option<&Item>) -> Option<At> {
    let begin = |item: &Item| match item {
        Item::Alone(lsn, ..) => *lsn,
        Item::Transaction(one) => one.changes.first().map_or(one.sent.0, |change| change.lsn),
    };
    let (Some(Item::Transaction(ours)), Some(Item::Transaction(theirs))) = (ours, theirs) else {
        return theirs.or(ours).map(begin);
    };
    let same = |(ours, theirs): &(&Change, &Change)| {
        theirs.is_stale
            || (ours.lsn, &ours.message, &ours.relations) == (theirs.lsn, &theirs.message, &theirs.relations)
    };
    let equal = ours.changes.iter().zip(&theirs.changes).take_while(same).count();
    let next = [theirs.changes.get(equal), ours.changes.get(equal)].into_iter().flatten().next();
    Some(next.map_or(theirs.sent.0, |change| change.lsn))
}

/// The first difference.
pub(crate) fn compare(ours: &Told, theirs: &Told) -> Result<Compared, Difference> {
    let known = [ours.known.clone(), theirs.known.clone()];
    let mut described = Described { known, aside: HashSet::new() };
    let (ours, mut theirs) = (telling(&ours.items, &theirs.items), telling(&theirs.items, &ours.items));
    let rolled_back: HashSet<u32> = theirs.iter().filter_map(|item| rolled_back(item)).collect();
    let prepared: HashSet<u32> = ours.iter().filter_map(|item| prepared(item)).collect();
    theirs.retain(|item| prepared_alone(item).is_none_or(|xid| prepared.contains(&xid)));
    let mut tally = Tally::default();
    for at in 0..ours.len().max(theirs.len()) {
        let pair = (ours.get(at), theirs.get(at));
        let compared = match pair {
            (Some(Item::Transaction(ours)), Some(Item::Transaction(theirs)))
                if rolled_back.contains(&ours.xid) && matches!(ours.ended, Ended::Prepare(..)) =>
            {
                beginning(ours, theirs, &mut described)
            }
            (Some(ours), Some(theirs)) => item(ours, theirs, &mut described),
            (Some(ours), None) => Err(format!("only we have it\n   ours: {}", head(ours))),
            (None, Some(theirs)) => Err(format!("only the server has it\n theirs: {}", head(theirs))),
            (None, None) => Ok(Tally::default()),
        };
        match compared {
            Ok(one) => tally += one,
            Err(difference) => {
                let before = at.checked_sub(1).and_then(|at| theirs.get(at));
                let before = before.map_or_else(|| "nothing".to_owned(), |item| head(item));
                let place = place(pair.0.copied(), pair.1.copied());
                return Err(Difference { place, words: format!("item {at} (after {before}): {difference}") });
            }
        }
    }
    Ok(Compared { tally, aside: described.aside })
}

fn rolled_back(item: &Item) -> Option<u32> {
    match item {
        Item::Alone(_, _, Message::RollbackPrepared { xid, .. }) => Some(*xid),
        _ => None,
    }
}

/// What we say is prepared, by its transaction.
fn prepared(item: &Item) -> Option<u32> {
    let transaction = item.transaction().filter(|one| matches!(one.ended, Ended::Prepare(..)))?;
    Some(transaction.xid)
}

/// What the server says is prepared and has not begun, by its transaction.
fn prepared_alone(item: &Item) -> Option<u32> {
    match item {
        Item::Alone(_, _, Message::Prepare { prepared, .. }) => Some(prepared.xid),
        _ => None,
    }
}

/// A prepared transaction that is known to be rolled back: each of the server's changes is one of ours, in our order.
fn beginning(ours: &Transaction, theirs: &Transaction, described: &mut Described) -> Result<Tally, String> {
    let mut rest = theirs.changes.iter().peekable();
    for our_change in &ours.changes {
        // What a reader was told of relations outlives the rollback.
        match rest.next_if(|change| self::change(our_change, change).is_ok()) {
            Some(change) => described.follow(our_change, change)?,
            None => {
                described.learn(our_change);
                if let Some(change) = rest.next_if(|change| is_seen_otherwise(our_change, change)) {
                    described.learn_theirs(change);
                }
            }
        }
    }
    if let Some(change) = rest.next() {
        return Err(pair(&format!("{ours:?}"), &row(change)));
    }
    if (ours.xid, &ours.ended, ours.sent) != (theirs.xid, &theirs.ended, theirs.sent) {
        return Err(pair(&format!("{ours:?}"), &format!("{theirs:?}")));
    }
    Ok(Tally { transactions: 1, rows: theirs.changes.len() as u64, ..Tally::default() })
}

/// Whether both are of the same record, of a relation that is not the same to both.
fn is_seen_otherwise(ours: &Change, theirs: &Change) -> bool {
    let place = |change: &Change| {
        (change.lsn, change.xid, std::mem::discriminant(&change.message), change.message.relations())
    };
    place(ours) == place(theirs) && ours.relations != theirs.relations
}

/// How relations are described to either side at a place.
struct Described {
    known: [HashMap<u32, Rc<Relation>>; 2],
    /// Relations that one side has described of which the other may never hear.
    aside: HashSet<u32>,
}

impl Described {
    fn learn(&mut self, ours: &Change) {
        self.learn_of(0, ours);
    }

    fn learn_theirs(&mut self, theirs: &Change) {
        self.learn_of(1, theirs);
    }

    /// What only one side says.
    fn learn_of(&mut self, side: usize, change: &Change) {
        for said in &change.said {
            if let Said::Relation(relation) = said {
                self.known[side].insert(relation.id, Rc::clone(relation));
                self.aside.insert(relation.id);
            }
        }
    }

    /// Whoever describes a relation says what the other side knows of it.
    fn follow(&mut self, ours: &Change, theirs: &Change) -> Result<(), String> {
        let mut ids = Vec::new();
        for (known, change) in self.known.iter_mut().zip([ours, theirs]) {
            for said in &change.said {
                if let Said::Relation(relation) = said {
                    known.insert(relation.id, Rc::clone(relation));
                    ids.push(relation.id);
                }
            }
        }
        for id in ids {
            let [ours, theirs] = self.known.each_ref().map(|known| known.get(&id));
            if ours.is_some() && theirs.is_some() && ours != theirs {
                return Err(format!("described as{}", pair(&format!("{ours:?}"), &format!("{theirs:?}"))));
            }
        }
        Ok(())
    }
}

/// What is said of no place in particular: positions and times of aborts that both sides tell, and that no side describes
/// a relation, but those `aside`, that the other knows nothing about. How many aborts were compared.
pub(crate) fn compare_sides(ours: &mut Side, theirs: &mut Side, aside: &HashSet<u32>) -> Result<u64, String> {
    let mut both = 0;
    for (key, theirs) in &theirs.aborts {
        if let Some(ours) = ours.aborts.get(key) {
            both += 1;
            if ours != theirs {
                return Err(format!("abort of {key:?}\n   ours: {ours:?}\n theirs: {theirs:?}"));
            }
        }
    }
    for (who, said, other) in [("we", &ours.said, &*theirs), ("the server", &theirs.said, &*ours)] {
        let mut said = said.iter().filter(|id| !aside.contains(id));
        if let Some(id) = said.find(|id| !other.relations.contains_key(id)) {
            return Err(format!("only {who} describes relation {id}"));
        }
    }
    ours.said.clear();
    theirs.said.clear();
    Ok(both)
}

/// Without streamed transactions of which nothing is left, not on the other side either.
fn telling<'a>(items: &'a [Item], other: &[Item]) -> Vec<&'a Item> {
    let others: HashSet<u32> = other.iter().filter_map(Item::transaction).map(|other| other.xid).collect();
    let tells = |item: &&Item| {
        let Some(transaction) = item.transaction() else { return true };
        let is_commit = matches!(transaction.ended, Ended::Commit(_));
        let mut changes = transaction.changes.iter();
        let is_message = |change: &Change| matches!(change.message, Message::Logical { .. });
        // Those of a subtransaction that was taken back may be left.
        let left = transaction.is_cut && !others.contains(&transaction.xid) && changes.all(is_message);
        let is_nothing = transaction.changes.is_empty() || left;
        !(is_commit && transaction.is_streamed() && is_nothing)
    };
    items.iter().filter(tells).collect()
}

fn head(item: &Item) -> String {
    match item {
        Item::Alone(lsn, xid, message) => format!("{lsn:?} {xid} {message:?}"),
        Item::Transaction(transaction) => {
            let Transaction { xid, changes, ended, .. } = transaction;
            let form = if transaction.is_streamed() { "streamed" } else { "whole" };
            let first = changes.first().map(|change| format!("{:?} {:?}", change.lsn, change.message));
            format!("transaction {xid}, {form}, {ended:?}, {} changes, first {first:?}", changes.len())
        }
    }
}

fn item(ours: &Item, theirs: &Item, described: &mut Described) -> Result<Tally, String> {
    match (ours, theirs) {
        (Item::Transaction(ours), Item::Transaction(theirs)) => transaction(ours, theirs, described),
        (Item::Alone(lsn, xid, message), Item::Alone(their_lsn, their_xid, their_message))
            if (lsn, xid, message) == (their_lsn, their_xid, their_message) =>
        {
            Ok(Tally { others: 1, ..Tally::default() })
        }
        _ => Err(pair(&head(ours), &head(theirs))),
    }
}

fn pair(ours: &str, theirs: &str) -> String {
    format!("\n   ours: {ours}\n theirs: {theirs}")
}

fn transaction(ours: &Transaction, theirs: &Transaction, described: &mut Described) -> Result<Tally, String> {
    let told = |transaction: &Transaction| {
        format!(
            "transaction {}, {:?}, sent at {:?}, origin {:?}, begin {:?}, {} changes",
            transaction.xid,
            transaction.ended,
            transaction.sent,
            transaction.origin,
            transaction.begin,
            transaction.changes.len()
        )
    };
    let one_is_streamed = ours.is_streamed() || theirs.is_streamed();
    let ends = (ours.xid, &ours.ended, ours.sent) == (theirs.xid, &theirs.ended, theirs.sent);
    let begins = one_is_streamed || ours.begin == theirs.begin;
    let origins = match (&ours.origin, &theirs.origin) {
        (Some(_), None) if theirs.is_streamed() => true,
        // In blocks the position is not known yet.
        (Some((_, ours)), Some((_, theirs))) if one_is_streamed => ours == theirs,
        (ours, theirs) => ours == theirs,
    };
    if ours.xid != theirs.xid {
        return Err(pair(&told(ours), &told(theirs)));
    }
    let (our_changes, their_changes) = (counting(ours, theirs), counting(theirs, ours));
    for (at, change) in their_changes.iter().enumerate() {
        let Some(our_change) = our_changes.get(at) else {
            let theirs = format!("{}, of {}", row(change), told(theirs));
            return Err(format!("change {at} is missing{}", pair(&told(ours), &theirs)));
        };
        if change.is_stale {
            described.learn(our_change);
            described.learn_theirs(change);
            continue;
        }
        self::change(our_change, change)
            .and_then(|()| described.follow(our_change, change))
            .map_err(|difference| format!("transaction {}, change {at}: {difference}", theirs.xid))?;
    }
    if let Some(change) = our_changes.get(their_changes.len()) {
        return Err(format!("transaction {}: only we have{}", theirs.xid, pair(&row(change), "-")));
    }
    if !(ends && begins && origins) {
        return Err(pair(&told(ours), &told(theirs)));
    }
    let count = |is: fn(&Change) -> bool| their_changes.iter().filter(|change| is(change)).count() as u64;
    let (stale, rows) = (count(|change| change.is_stale), count(|change| change.message.is_row()));
    let others = their_changes.len() as u64 - rows;
    Ok(Tally { transactions: 1, rows: rows - stale, others, streamed: u64::from(one_is_streamed), stale })
}

/// The changes of one side, without messages that a subtransaction may have left which was taken back.
fn counting<'a>(one: &'a Transaction, other: &Transaction) -> Vec<&'a Change> {
    let is_left = |change: &Change| {
        let is_message = matches!(change.message, Message::Logical { .. });
        one.is_cut && is_message && !other.changes.iter().any(|other| other.lsn == change.lsn)
    };
    one.changes.iter().filter(|change| !is_left(change)).collect()
}

fn row(change: &Change) -> String {
    let names: Vec<_> =
        change.relations.iter().map(|relation| format!("{}.{}", relation.schema, relation.name)).collect();
    format!("{:?} xid {} sub {:?} {names:?} {:?}", change.lsn, change.xid, change.sub, change.message)
}

fn change(ours: &Change, theirs: &Change) -> Result<(), String> {
    let subs = match (ours.sub, theirs.sub) {
        (Some(ours), Some(theirs)) => ours == theirs,
        _ => true,
    };
    if !subs || (ours.lsn, ours.xid, &ours.message) != (theirs.lsn, theirs.xid, &theirs.message) {
        return Err(pair(&row(ours), &row(theirs)));
    }
    if ours.relations != theirs.relations {
        let described = pair(&format!("{:?}", ours.relations), &format!("{:?}", theirs.relations));
        return Err(format!("{} is described otherwise{described}", row(theirs)));
    }
    // The last that each said of something counts.
    let last = |change: &Change| -> HashMap<_, _> {
        change.said.iter().map(|said| (said.key(), said.clone())).collect()
    };
    let (ours_said, theirs_said) = (last(ours), last(theirs));
    for (key, theirs_said) in &theirs_said {
        match ours_said.get(key) {
            Some(ours_said) if ours_said != theirs_said => {
                let both = pair(&format!("{ours_said:?}"), &format!("{theirs_said:?}"));
                return Err(format!("before {}{both}", row(theirs)));
            }
            _ => {}
        }
    }
    Ok(())
}
