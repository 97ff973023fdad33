//! Rows of partitions in which a server of 14 contradicts itself.
//!
//! pgoutput keeps an entry for each relation, with the relation that its rows are published as.
//! With `publish_via_partition_root`, that is the root of a partition, and ATTACH or DETACH
//! PARTITION changes it. Both send an invalidation for the partition. From 15 on,
//! `rel_sync_cache_relation_cb` makes the whole entry invalid (`replicate_valid`). In 14, it only
//! has the schema sent again (`schema_sent`). So a session of 14 that has sent a row of the
//! partition before goes on with the old relation, until any publication changes. What 14 sends
//! thus depends on where its session began. Streaming has no part in it.
//!
//! Ours is right where the server says so itself. The test asks a second session, which begins with
//! the same transaction and so has no old entry. A row is [`mark`]ed, and counted separately, only
//! if that session sends exactly what we send: relation, values, position. Every other row stays as
//! it is, and the comparison finds it.
//!
//! One thing is added to what the second session sends. If root and partition have the same
//! columns, 14 reads the partition's row as one of the root. A column that the partition got after
//! the row was written is then null, instead of its default. The session with the old entry reads
//! the row as one of the partition, and knows the default. So where the second session sends null,
//! ours may be what the first session sends for the same column.

use std::collections::HashMap;
use std::mem::discriminant;

use testkit::Major;

use super::change;
use crate::message::{At, Value};
use crate::told::{Change, Ended, Item, Told, Transaction};

/// Marks the server's stale rows. `afresh` returns what a new session sends for the transaction
/// whose commit record is between two positions, or nothing if the server refuses. It is called on
/// major 14 only.
pub(crate) fn mark(
    major: Major,
    ours: &Told,
    theirs: &mut Told,
    mut afresh: impl FnMut([At; 2]) -> Option<Told>,
) {
    if major != Major::V14 {
        return;
    }
    let ours: HashMap<u32, &Transaction> = by_xid(ours);
    for item in &mut theirs.items {
        let Item::Transaction(theirs) = item else { continue };
        let (Some(ours), Ended::Commit(end)) = (ours.get(&theirs.xid), &theirs.ended) else { continue };
        if !ours.changes.iter().zip(&theirs.changes).any(is_of_another_relation) {
            continue;
        }
        let Some(afresh) = afresh([end.lsn, end.end]) else { continue };
        let Some(afresh) = by_xid(&afresh).remove(&theirs.xid).cloned() else { continue };
        for (at, theirs) in theirs.changes.iter_mut().enumerate() {
            let (Some(ours), Some(afresh)) = (ours.changes.get(at), afresh.changes.get(at)) else { break };
            theirs.is_stale = is_of_another_relation((ours, theirs))
                && (change(ours, afresh).is_ok() || change(ours, &with_defaults(afresh, theirs)).is_ok());
        }
    }
}

fn by_xid(told: &Told) -> HashMap<u32, &Transaction> {
    let transactions = told.items.iter().filter_map(Item::transaction);
    transactions.map(|transaction| (transaction.xid, transaction)).collect()
}

/// Whether both changes are a row of the same record, but of two relations.
fn is_of_another_relation((ours, theirs): (&Change, &Change)) -> bool {
    let record = |change: &Change| (change.lsn, change.xid, discriminant(&change.message));
    // Only blocks of a stream name the subtransaction.
    let same_sub = ours.sub.zip(theirs.sub).is_none_or(|(ours, theirs)| ours == theirs);
    ours.message.is_row()
        && same_sub
        && record(ours) == record(theirs)
        && ours.message.relations() != theirs.message.relations()
}

/// The change of the new session, with the partition's values in place of nulls.
fn with_defaults(afresh: &Change, theirs: &Change) -> Change {
    let mut filled = afresh.clone();
    let ([root], [partition]) = (&afresh.relations[..], &theirs.relations[..]) else { return filled };
    let place = |name: &str| partition.columns.iter().position(|column| column.name == name);
    let places: Vec<_> = root.columns.iter().map(|column| place(&column.name)).collect();
    let mut known = theirs.message.clone();
    for (row, known) in filled.message.rows_mut().zip(known.rows_mut()) {
        for (value, place) in row.iter_mut().zip(&places).filter(|(value, _)| **value == Value::Null) {
            if let Some(known) = place.and_then(|place| known.get(place)) {
                value.clone_from(known);
            }
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{Side, Tally, compare, compare_sides};
    use crate::message::Sent;

    const ROOT: u32 = 20_001;
    const LEAF: u32 = 20_002;
    const XID: u32 = 7;

    /// The messages of a session for one transaction: rows of one column, each of a relation. An
    /// empty value is null.
    fn sent(rows: &[(u32, &str)]) -> Vec<Sent> {
        let (mut all, mut described) = (Vec::new(), Vec::new());
        let mut send = |lsn: u64, parts: &[&[u8]]| all.push(Sent { lsn, xid: XID, data: parts.concat() });
        let [first, commit, end, time] = [0x100, 0x800, 0x830, 1_u64];
        let fields = [commit.to_be_bytes(), time.to_be_bytes()].concat();
        send(first, &[b"B", &fields, &XID.to_be_bytes()]);
        for (lsn, (relation, value)) in (first..).zip(rows) {
            let id = relation.to_be_bytes();
            if !described.contains(relation) {
                described.push(*relation);
                let column = [b"\0id\0", &25_u32.to_be_bytes()[..], &(-1_i32).to_be_bytes()].concat();
                send(lsn, &[b"R", &id, b"public\0", format!("r{relation}\0f").as_bytes(), &[0, 1], &column]);
            }
            let length = u32::try_from(value.len()).unwrap().to_be_bytes();
            let value: &[&[u8]] = if value.is_empty() { &[b"n"] } else { &[b"t", &length, value.as_bytes()] };
            send(lsn, &[b"I", &id, b"N\0\x01", &value.concat()]);
        }
        let fields = [commit, end, time].map(u64::to_be_bytes).concat();
        send(end, &[b"C\0", &fields]);
        all
    }

    /// The result of the comparison, and how often a new session was asked for.
    fn compared(major: Major, [ours, theirs, afresh]: [&[(u32, &str)]; 3]) -> (Result<Tally, String>, usize) {
        let side = |mut side: Side, rows| {
            side.read(&sent(rows)).unwrap();
            (side.take(), side)
        };
        let ((ours, mut our_side), (mut theirs, mut their_side)) =
            (side(Side::default(), ours), side(Side::server(), theirs));
        let mut asked = 0;
        mark(major, &ours, &mut theirs, |commit| {
            assert_eq!(commit, [At(0x800), At(0x830)]);
            asked += 1;
            (!afresh.is_empty()).then(|| side(Side::server(), afresh).0)
        });
        let tally = compare(&ours, &theirs).map_err(String::from).and_then(|compared| {
            compare_sides(&mut our_side, &mut their_side, &compared.aside).map(|_| compared.tally)
        });
        (tally, asked)
    }

    const OURS: &[(u32, &str)] = &[(ROOT, "one"), (ROOT, "two")];
    const THEIRS: &[(u32, &str)] = &[(ROOT, "one"), (LEAF, "two")];

    #[test]
    fn a_row_that_the_server_sends_afresh_as_we_do_is_counted_apart() {
        let stale = Tally { transactions: 1, rows: 1, stale: 1, ..Tally::default() };
        assert_eq!(compared(Major::V14, [OURS, THEIRS, OURS]), (Ok(stale), 1));
        // In both directions: the partition was attached, or it was detached.
        assert_eq!(compared(Major::V14, [THEIRS, OURS, THEIRS]), (Ok(stale), 1));
    }

    #[test]
    fn a_fault_of_ours_stays_a_difference() {
        let is_difference = |rows: [&[(u32, &str)]; 3]| compared(Major::V14, rows).0.is_err();
        assert!(is_difference([OURS, THEIRS, THEIRS]), "the server says the same afresh");
        assert!(is_difference([OURS, THEIRS, &[]]), "the server does not say");
        assert!(is_difference([OURS, THEIRS, &[(ROOT, "one"), (ROOT, "2")]]), "our value is another one");
        assert!(
            is_difference([OURS, THEIRS, &[(ROOT, "one"), (LEAF + 1, "two")]]),
            "it says a third relation"
        );
        assert!(is_difference([OURS, THEIRS, &OURS[..1]]), "the row is not there afresh");
        assert!(is_difference([OURS, &[(ROOT, "1"), (LEAF, "two")], OURS]), "the row before it differs");
        assert!(is_difference([&OURS[..1], THEIRS, OURS]), "we have fewer rows");
    }

    #[test]
    fn a_default_that_the_server_knows_of_the_partition_alone_is_known() {
        const NULL: &[(u32, &str)] = &[(ROOT, "one"), (ROOT, "")];
        assert_eq!(compared(Major::V14, [OURS, THEIRS, NULL]).0.map(|tally| tally.stale), Ok(1));
        let other = &[(ROOT, "one"), (LEAF, "2")][..];
        assert!(compared(Major::V14, [OURS, other, NULL]).0.is_err(), "it is another default");
        assert!(compared(Major::V14, [OURS, &OURS[..1], NULL]).0.is_err(), "the row is missing");
        assert!(compared(Major::V14, [OURS, NULL, NULL]).0.is_err(), "no entry is old");
    }

    #[test]
    fn a_value_that_differs_alone_is_asked_of_nobody() {
        let (tally, asked) = compared(Major::V14, [OURS, &[(ROOT, "one"), (ROOT, "2")], OURS]);
        assert!(tally.is_err() && asked == 0);
    }

    #[test]
    fn no_other_major_is_given_that_grace() {
        for major in Major::ALL.into_iter().filter(|major| *major != Major::V14) {
            let (tally, asked) = compared(major, [OURS, THEIRS, OURS]);
            assert!(tally.is_err() && asked == 0, "{major}");
        }
    }
}
