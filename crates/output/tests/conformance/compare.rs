//! Compares two outputs of the same WAL, message by message.
//!
//! Only these things may differ:
//! - how often Relation and Type messages come. If both sides send one between the same two
//!   changes, both must say the same. Each change must come after a Relation that describes its
//!   relation as the other side's does;
//! - keepalives, which are no messages here;
//! - where a streamed transaction is cut into blocks, or whether it is. Blocks are put together
//!   until the transaction ends, without what its subtransactions took back. So an empty block says
//!   nothing, and neither does a streamed transaction that aborts or of which nothing is left. A
//!   logical message in a stream names the transaction and not the subtransaction. So a message of
//!   a subtransaction that was taken back may be left;
//! - the order of a logical message and the record behind it, if that is of another subtransaction.
//!   The message's position is the end of its record, where the other begins, and that is all the
//!   server's merge of subtransactions knows;
//! - what is left of a prepared transaction that was rolled back before the server decoded it. The
//!   server stops at the first look at a catalog that shows the rollback. What it sends until then
//!   must be ours, in our order, but the transaction's DDL may already be invisible to it. For the
//!   same reason, 18 may report the abort of a stream that never began;
//! - the PREPARE of a transaction that has changed nothing, which 18 sends without having begun the
//!   transaction;
//! - the origin of a streamed transaction, which the server may not name. It takes the origin of
//!   the first entry in its queue, and an invalidation there has none;
//! - on 14, the relation of a row, where the server contradicts itself ([`stale`]).
//!
//! Everything else is compared, with the LSN and the transaction id that each message is sent with.

// The relay's tests have this file by its path, and look for the other one from there.
#[path = "compare/stale.rs"]
pub(crate) mod stale;

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::message::{At, Message, Relation};
use crate::told::{Change, Ended, Item, LeftOut, Said, Side, Told, Transaction};

/// Counts of what was compared and found equal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) transactions: u64,
    pub(crate) rows: u64,
    /// Truncations and logical messages.
    pub(crate) others: u64,
    /// Transactions that at least one side streamed.
    pub(crate) streamed: u64,
    /// Rows that are not equal, because the server contradicts itself in them ([`stale`]).
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
    /// Relations that only one side may know, because a transaction was rolled back or one side
    /// leaves them out.
    pub(crate) aside: HashSet<u32>,
}

impl Compared {
    /// Adds relations that were removed from one side. That side may still describe them.
    pub(crate) fn beside(mut self, left_out: &LeftOut) -> Compared {
        self.aside.extend(&left_out.relations);
        self
    }
}

/// A difference as text for people, and its place in the WAL.
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

/// Where two items that should be equal begin to differ: at a change, if there is one.
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

/// The transaction that we say is prepared.
fn prepared(item: &Item) -> Option<u32> {
    let transaction = item.transaction().filter(|one| matches!(one.ended, Ended::Prepare(..)))?;
    Some(transaction.xid)
}

/// The transaction that the server says is prepared without having begun it.
fn prepared_alone(item: &Item) -> Option<u32> {
    match item {
        Item::Alone(_, _, Message::Prepare { prepared, .. }) => Some(prepared.xid),
        _ => None,
    }
}

/// Compares a prepared transaction that is known to be rolled back. Each of the server's changes
/// must be one of ours, in our order.
fn beginning(ours: &Transaction, theirs: &Transaction, described: &mut Described) -> Result<Tally, String> {
    let mut rest = theirs.changes.iter().peekable();
    for our_change in &ours.changes {
        // What a reader was told of relations stays valid after the rollback.
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

/// Whether both changes are of the same record, but of a relation that the sides describe
/// differently.
fn is_seen_otherwise(ours: &Change, theirs: &Change) -> bool {
    let place = |change: &Change| {
        (change.lsn, change.xid, std::mem::discriminant(&change.message), change.message.relations())
    };
    place(ours) == place(theirs) && ours.relations != theirs.relations
}

/// How relations are described to each side at a place.
struct Described {
    known: [HashMap<u32, Rc<Relation>>; 2],
    /// Relations that one side has described and the other may never hear of.
    aside: HashSet<u32>,
}

impl Described {
    fn learn(&mut self, ours: &Change) {
        self.learn_of(0, ours);
    }

    fn learn_theirs(&mut self, theirs: &Change) {
        self.learn_of(1, theirs);
    }

    /// Learns what only one side says.
    fn learn_of(&mut self, side: usize, change: &Change) {
        for said in &change.said {
            if let Said::Relation(relation) = said {
                self.known[side].insert(relation.id, Rc::clone(relation));
                self.aside.insert(relation.id);
            }
        }
    }

    /// Learns the descriptions of both sides. A new description on one side must be what the other
    /// side knows.
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

/// Compares what belongs to no particular place: positions and times of aborts that both sides
/// report. Also checks that no side describes a relation of which the other knows nothing, except
/// those in `aside`. Returns how many aborts were compared.
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

/// The items without streamed transactions of which nothing is left on either side.
fn telling<'a>(items: &'a [Item], other: &[Item]) -> Vec<&'a Item> {
    let others: HashSet<u32> = other.iter().filter_map(Item::transaction).map(|other| other.xid).collect();
    let tells = |item: &&Item| {
        let Some(transaction) = item.transaction() else { return true };
        let is_commit = matches!(transaction.ended, Ended::Commit(_));
        let mut changes = transaction.changes.iter();
        let is_message = |change: &Change| matches!(change.message, Message::Logical { .. });
        // Messages of a subtransaction that was taken back may be left.
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
        // While a transaction is streamed, the origin's position is not known yet.
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

/// The changes of one side, without messages that may be left of a subtransaction that was taken
/// back.
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
    // Only the last announcement of each relation or type counts.
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
