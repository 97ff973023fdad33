//! Each test tells one order of events step by step; the simulation has the other orders.

use std::sync::Arc;

use base::Oid;

use super::*;

fn keys(keys: &[u64]) -> Footprint {
    let ends = (1..).take(keys.len()).collect();
    table(Units::Keys { ends, keys: keys.to_vec() })
}

fn table(units: Units) -> Footprint {
    Footprint::Tables(vec![Touched { root: Oid(1), mapping: 1, units }])
}

fn polled(schedule: &mut Relaxed) -> Vec<Action> {
    std::iter::from_fn(|| schedule.poll()).collect()
}

fn whole(number: u64, worker: usize) -> Action {
    Action::Whole { number, worker }
}

fn large(keys: &[u64]) -> Footprint {
    let mut filter = KeyFilter::default();
    keys.iter().for_each(|&key| filter.add(key));
    table(Units::Filtered(Arc::new(filter)))
}

#[test]
fn what_is_independent_passes_what_depends_waits_for_each_it_depends_on() {
    let mut schedule = Relaxed::new(3);
    for footprint in [keys(&[1]), keys(&[1, 2]), keys(&[3]), keys(&[3, 2])] {
        schedule.push(footprint, Manner::Set);
    }
    assert_eq!(polled(&mut schedule), [whole(1, 0), whole(3, 1)]);
    schedule.committed(3);
    assert_eq!(polled(&mut schedule), [], "4 comes after 2, which comes after 1");
    schedule.committed(1);
    assert_eq!(polled(&mut schedule), [whole(2, 0)]);
    schedule.committed(2);
    assert_eq!(polled(&mut schedule), [whole(4, 0)]);
    schedule.committed(4);
    assert!(schedule.is_empty() && schedule.remembers_nothing());
}

/// However many chunks have passed a large transaction, a chunk that shares a key waits for it.
#[test]
fn a_large_transaction_is_passed_by_what_is_independent_of_it() {
    let mut schedule = Relaxed::new(2);
    schedule.push(keys(&[8]), Manner::Set);
    schedule.push(large(&[1, 2, 8]), Manner::Large);
    assert_eq!(polled(&mut schedule), [whole(1, 0)], "it begins as head");
    schedule.committed(1);
    assert_eq!(polled(&mut schedule), [whole(2, 0)]);
    for number in 3..100 {
        assert_eq!(schedule.push(keys(&[number + 1_000]), Manner::Set), number);
        assert!(!schedule.is_behind_large(number));
        assert_eq!(polled(&mut schedule), [whole(number, 1)]);
        schedule.committed(number);
    }
    schedule.push(keys(&[2, 50]), Manner::Set);
    schedule.push(keys(&[50]), Manner::Set);
    assert!(schedule.is_behind_large(100) && schedule.is_behind_large(101));
    assert_eq!(polled(&mut schedule), []);
    schedule.committed(2);
    assert_eq!(polled(&mut schedule), [whole(100, 0)]);
}

#[test]
fn large_transactions_go_one_after_another() {
    let mut schedule = Relaxed::new(3);
    schedule.push(large(&[1]), Manner::Large);
    schedule.push(large(&[2]), Manner::Large);
    schedule.push(keys(&[3]), Manner::Set);
    assert_eq!(polled(&mut schedule), [whole(1, 0), whole(3, 1)]);
    schedule.committed(3);
    schedule.committed(1);
    assert_eq!(polled(&mut schedule), [whole(2, 0)]);
}

#[test]
fn nothing_passes_a_barrier_and_a_barrier_passes_nothing() {
    let mut schedule = Relaxed::new(3);
    schedule.push(keys(&[1]), Manner::Set);
    schedule.push(Footprint::Everything, Manner::Set);
    assert!(!schedule.has_room());
    schedule.push(keys(&[2]), Manner::Set);
    assert_eq!(polled(&mut schedule), [whole(1, 0)]);
    schedule.committed(1);
    assert_eq!(polled(&mut schedule), [Action::Alone { number: 2, worker: 0 }]);
    schedule.committed(2);
    assert_eq!(polled(&mut schedule), [whole(3, 0)]);
}

/// rule A1.
#[test]
fn what_did_not_hold_is_executed_again_as_head() {
    let mut schedule = Relaxed::new(2);
    for key in 1..=4 {
        schedule.push(keys(&[key]), Manner::Set);
    }
    assert_eq!(polled(&mut schedule), [whole(1, 0), whole(2, 1)]);
    schedule.stumbled(2);
    // Its worker is free for chunks that need not wait for their turn.
    assert_eq!(polled(&mut schedule), [whole(3, 1)]);
    schedule.committed(3);
    assert_eq!(polled(&mut schedule), [whole(4, 1)]);
    schedule.committed(1);
    assert_eq!(polled(&mut schedule), [Action::Replay { number: 2, worker: 0, again: true }]);
    schedule.committed(2);
    schedule.stumbled(4);
    let expected = [Action::Replay { number: 4, worker: 0, again: true }];
    assert_eq!(polled(&mut schedule), expected, "it began with others before it");
}

#[test]
fn tables_whose_rows_cannot_be_told_apart_go_one_after_another_and_appends_do_not() {
    let mut schedule = Relaxed::new(4);
    for units in [Units::Append, Units::Append, Units::Whole, Units::Append] {
        schedule.push(table(units), Manner::Set);
    }
    assert_eq!(polled(&mut schedule), [whole(1, 0), whole(2, 1)]);
    schedule.committed(2);
    assert_eq!(polled(&mut schedule), [], "all of the table comes after both");
    schedule.committed(1);
    assert_eq!(polled(&mut schedule), [whole(3, 0)]);
    schedule.committed(3);
    assert_eq!(polled(&mut schedule), [whole(4, 0)]);
}
