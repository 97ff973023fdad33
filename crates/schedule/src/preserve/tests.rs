//! Each test tells one order of events step by step; the simulation has the other orders.

use super::*;

fn keys(keys: &[u64]) -> Footprint {
    let ends = (1..).take(keys.len()).collect();
    table(Units::Keys { ends, keys: keys.to_vec() })
}

fn table(units: Units) -> Footprint {
    Footprint::Tables(vec![Touched { root: Oid(1), mapping: 1, units }])
}

fn polled(schedule: &mut Preserve) -> Vec<Action> {
    std::iter::from_fn(|| schedule.poll()).collect()
}

fn ahead(number: u64, worker: usize, late: Late) -> Action {
    Action::Speculate { number, worker, split: vec![late] }
}

#[test]
fn what_is_independent_is_executed_ahead_and_the_rest_in_its_turn() {
    let mut schedule = Preserve::new(3);
    schedule.push(keys(&[1, 2]));
    schedule.push(keys(&[2, 3, 4]));
    schedule.push(keys(&[4, 2]));
    let expected = [Action::Whole { number: 1, worker: 0 }, ahead(2, 1, Late::Units(vec![0]))];
    assert_eq!(polled(&mut schedule), expected);
    assert!(!schedule.has_room());
    schedule.executed(2);
    assert_eq!(polled(&mut schedule), []);
    schedule.committed(1);
    // All of the third chunk comes after the second, which is head now.
    assert_eq!(polled(&mut schedule), [Action::Finish { number: 2, worker: 1 }]);
    schedule.committed(2);
    assert_eq!(polled(&mut schedule), [Action::Whole { number: 3, worker: 0 }]);
    schedule.committed(3);
    assert!(schedule.is_empty() && schedule.keys.is_empty() && schedule.tables.is_empty());
}

#[test]
fn a2_tables_whose_rows_cannot_be_told_apart_are_serialised() {
    let start = |first: Units, second: Units, mapping: u64| {
        let mut schedule = Preserve::new(2);
        schedule.push(table(first));
        schedule.push(Footprint::Tables(vec![Touched { root: Oid(1), mapping, units: second }]));
        polled(&mut schedule).len() == 2
    };
    let row = |key| Units::Keys { ends: vec![1], keys: vec![key] };
    assert!(start(row(1), row(2), 1));
    assert!(start(Units::Append, Units::Append, 1));
    for (first, second, mapping) in [
        (Units::Whole, row(1), 1),
        (row(1), Units::Whole, 1),
        (Units::Append, Units::Whole, 1),
        (Units::Whole, Units::Append, 1),
        // The relation was described anew, so keys may look different.
        (row(1), row(2), 2),
    ] {
        assert!(!start(first.clone(), second.clone(), mapping), "{first:?} {second:?} {mapping}");
    }
}

/// A new description hides the keys of the old one, also from the following chunk.
#[test]
fn a2_a_new_mapping_is_a_barrier_for_its_table() {
    let mut schedule = Preserve::new(3);
    schedule.push(keys(&[1]));
    for _ in 0..2 {
        let units = Units::Keys { ends: vec![1], keys: vec![9] };
        schedule.push(Footprint::Tables(vec![Touched { root: Oid(1), mapping: 2, units }]));
    }
    assert_eq!(polled(&mut schedule), [Action::Whole { number: 1, worker: 0 }]);
}

#[test]
fn nothing_goes_past_a_barrier() {
    let mut schedule = Preserve::new(4);
    schedule.push(keys(&[1]));
    schedule.push(keys(&[2]));
    schedule.push(Footprint::Everything);
    assert!(!schedule.has_room());
    assert_eq!(polled(&mut schedule).len(), 2);
    schedule.executed(2);
    schedule.committed(1);
    assert_eq!(polled(&mut schedule), [Action::Finish { number: 2, worker: 1 }]);
    schedule.committed(2);
    assert_eq!(polled(&mut schedule), [Action::Alone { number: 3, worker: 0 }]);
    schedule.committed(3);
    assert!(schedule.has_room());
}

#[test]
fn more_keys_than_are_remembered_are_a_barrier_and_no_error() {
    let mut schedule = Preserve::new(2);
    schedule.push(keys(&[1]));
    schedule.push(keys(&(2..u64::try_from(KEYS_MAX).unwrap() + 2).collect::<Vec<_>>()));
    assert_eq!(polled(&mut schedule), [Action::Whole { number: 1, worker: 0 }]);
    schedule.committed(1);
    assert_eq!(polled(&mut schedule), [Action::Alone { number: 2, worker: 0 }]);
}

#[test]
fn a1_what_was_met_ahead_is_void_and_tried_again_as_head() {
    let mut schedule = Preserve::new(2);
    schedule.push(keys(&[1]));
    schedule.push(keys(&[2]));
    polled(&mut schedule);
    assert!(schedule.voided(2));
    assert_eq!(polled(&mut schedule), []);
    schedule.committed(1);
    assert_eq!(polled(&mut schedule).last(), Some(&Action::Whole { number: 2, worker: 0 }));
    schedule.committed(2);
    // A schedule whose executions are void again and again tries less and less.
    let mut tried = Vec::new();
    schedule.push(keys(&[3]));
    for number in 4..40 {
        schedule.push(keys(&[number]));
        for action in polled(&mut schedule) {
            if let Action::Speculate { number, .. } = action {
                tried.push(number);
                schedule.voided(number);
            }
        }
        schedule.committed(number - 1);
    }
    assert_eq!(tried, [4, 6, 10, 18, 34]);
}

#[test]
fn a3_a_head_that_waits_for_a_lock_lets_the_others_go() {
    let mut schedule = Preserve::new(3);
    for key in 1..4 {
        schedule.push(keys(&[key]));
    }
    polled(&mut schedule);
    schedule.executed(2);
    assert_eq!(schedule.head(), Some((1, 0, true)));
    schedule.waits_for_lock(1);
    let expected = [Action::Rollback { number: 2, worker: 1 }, Action::Cancel { number: 3, worker: 2 }];
    assert_eq!(polled(&mut schedule), expected);
    schedule.rolled_back(2);
    // Answered or not, the chunk is rolled back once the server has the cancel request.
    assert!(!schedule.voided(3), "it was cancelled");
    assert_eq!(polled(&mut schedule), []);
    schedule.cancelled(3);
    assert_eq!(polled(&mut schedule), [Action::Rollback { number: 3, worker: 2 }]);
    schedule.rolled_back(3);
    assert_eq!(polled(&mut schedule), [], "not before the head is done");
    schedule.committed(1);
    assert_eq!(polled(&mut schedule).len(), 2);
}

#[test]
fn a_head_that_does_not_hold_is_applied_again_alone() {
    let mut schedule = Preserve::new(2);
    schedule.push(keys(&[1]));
    schedule.push(keys(&[2]));
    schedule.executed(2);
    polled(&mut schedule);
    schedule.stumbled(1);
    assert_eq!(polled(&mut schedule), [Action::Rollback { number: 2, worker: 1 }]);
    schedule.rolled_back(2);
    assert_eq!(polled(&mut schedule), [Action::Replay { number: 1, worker: 0, again: true }]);
    schedule.committed(1);
    assert_eq!(polled(&mut schedule), [Action::Whole { number: 2, worker: 0 }]);
    schedule.stumbled(2);
    assert_eq!(polled(&mut schedule), [Action::Replay { number: 2, worker: 0, again: false }]);
}
