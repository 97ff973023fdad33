//! What must hold of a history, whatever made it. Each checker looks at one property and knows
//! nothing of the schedule.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Footprint, Late, Split, Touched, Units};

/// Chunks are numbered from 1 in the order of the source.
#[derive(Debug, Clone)]
pub(super) enum SimulationEvent {
    Pushed(u64, Footprint),
    /// Executed before its turn, except for the late part.
    Speculated(u64, Split),
    /// Execution of the whole chunk began; with true, its failure may be reported.
    Began(u64, bool),
    /// Executed with this many other transactions open.
    Alone(u64, usize),
    CommitSent(u64),
    /// Committed; true if the target then holds what the source held.
    Committed(u64, bool),
    Acknowledged(u64),
    /// A cancel hit something; true if that was speculative or being rolled back.
    Cancelled(bool),
    /// The source was told that all chunks up to this one are durable.
    Confirmed(u64),
    /// Everything begins anew; the target holds these chunks.
    Lost(BTreeSet<u64>),
}

impl SimulationEvent {
    pub(super) fn name(&self) -> &'static str {
        match self {
            SimulationEvent::Pushed(..) => "Pushed",
            SimulationEvent::Speculated(..) => "Speculated",
            SimulationEvent::Began(..) => "Began",
            SimulationEvent::Alone(..) => "Alone",
            SimulationEvent::CommitSent(..) => "CommitSent",
            SimulationEvent::Committed(..) => "Committed",
            SimulationEvent::Acknowledged(..) => "Acknowledged",
            SimulationEvent::Cancelled(..) => "Cancelled",
            SimulationEvent::Confirmed(..) => "Confirmed",
            SimulationEvent::Lost(..) => "Lost",
        }
    }
}

/// Each chunk commits once, after the one before it, and is sent to commit only when that one was
/// acknowledged.
pub(super) fn order(history: &[SimulationEvent]) -> Result<(), String> {
    let (mut committed, mut acknowledged) = (0, 0);
    for event in history {
        match event {
            SimulationEvent::CommitSent(chunk) if *chunk != acknowledged + 1 => {
                return Err(format!("{chunk} was told to commit when {acknowledged} was acknowledged"));
            }
            SimulationEvent::Committed(chunk, _) if *chunk != committed + 1 => {
                return Err(format!("{chunk} committed behind {committed}"));
            }
            SimulationEvent::Committed(chunk, _) => committed = *chunk,
            SimulationEvent::Acknowledged(chunk) => acknowledged = *chunk,
            SimulationEvent::Lost(held) => {
                let last = held.len() as u64;
                if !held.iter().copied().eq(1..=last) || last > committed {
                    return Err(format!("begun anew with {held:?} behind {committed}"));
                }
                (committed, acknowledged) = (last, last);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whatever is lost, a chunk commits only when the target lacks it, and confirmed chunks stay. In
/// the end nothing is missing that was acknowledged and not lost.
pub(super) fn exactly_once(history: &[SimulationEvent]) -> Result<(), String> {
    let (mut held, mut confirmed) = (BTreeSet::new(), 0);
    for event in history {
        match event {
            SimulationEvent::Committed(chunk, _) if !held.insert(*chunk) => {
                return Err(format!("{chunk} was committed twice"));
            }
            SimulationEvent::Confirmed(chunk) => confirmed = confirmed.max(*chunk),
            SimulationEvent::Lost(left) => {
                if let Some(chunk) = left.difference(&held).next() {
                    return Err(format!("{chunk} came from nowhere"));
                }
                held.clone_from(left);
            }
            _ => {}
        }
        if let Some(chunk) = (1..=confirmed).find(|chunk| !held.contains(chunk)) {
            return Err(format!("{chunk} was confirmed, up to {confirmed}, and is not there"));
        }
    }
    Ok(())
}

/// Number of chunks that committed while an earlier one was missing.
pub(super) fn overtakings(history: &[SimulationEvent]) -> usize {
    let mut held: BTreeSet<u64> = BTreeSet::new();
    let mut overtook = 0;
    for event in history {
        match event {
            SimulationEvent::Committed(chunk, _) => {
                overtook += usize::from((held.range(..chunk).count() as u64) < chunk - 1);
                held.insert(*chunk);
            }
            SimulationEvent::Lost(left) => held.clone_from(left),
            _ => {}
        }
    }
    overtook
}

/// After each commit the target holds the result of its chunks, in their order. Where order is
/// preserved, that is a state of the source.
pub(super) fn atomicity(history: &[SimulationEvent]) -> Result<(), String> {
    history.iter().try_for_each(|event| match event {
        SimulationEvent::Committed(chunk, false) => {
            Err(format!("after {chunk} the target holds what the source never held"))
        }
        _ => Ok(()),
    })
}

/// A chunk executed before its turn shares nothing that changes show with an earlier chunk that was
/// not acknowledged. A failure may be reported only of a chunk that has nothing before it.
pub(super) fn dependency(history: &[SimulationEvent]) -> Result<(), String> {
    let mut in_flight: BTreeMap<u64, &Footprint> = BTreeMap::new();
    for event in history {
        match event {
            SimulationEvent::Pushed(chunk, footprint) => drop(in_flight.insert(*chunk, footprint)),
            SimulationEvent::Acknowledged(chunk) => drop(in_flight.remove(chunk)),
            SimulationEvent::Lost(_) => in_flight.clear(),
            SimulationEvent::Began(chunk, may_report) => {
                let mine = in_flight.get(chunk).copied();
                for (before, footprint) in in_flight.range(..chunk) {
                    if *may_report {
                        return Err(format!(
                            "what {chunk} meets may be reported, and {before} is not committed"
                        ));
                    }
                    let (Some(Footprint::Tables(tables)), Footprint::Tables(others)) = (mine, footprint)
                    else {
                        return Err(format!("{chunk} or {before} is a barrier and was passed"));
                    };
                    let shared = |table: &Touched| {
                        let mut same = others.iter().filter(|other| other.root == table.root);
                        same.any(|other| overlap(table, &Late::Nothing, other))
                    };
                    if tables.iter().any(shared) {
                        return Err(format!("{chunk} was executed before {before}, which it depends on"));
                    }
                }
            }
            SimulationEvent::Speculated(chunk, split) => {
                let Some(Footprint::Tables(tables)) = in_flight.get(chunk) else {
                    return Err(format!("{chunk} is a barrier and was executed ahead"));
                };
                for (before, footprint) in in_flight.range(..chunk) {
                    let Footprint::Tables(others) = footprint else {
                        return Err(format!("{chunk} was executed past the barrier {before}"));
                    };
                    let shared = tables.iter().zip(split).any(|(table, late)| {
                        let same = others.iter().filter(|other| other.root == table.root);
                        same.into_iter().any(|other| overlap(table, late, other))
                    });
                    if shared {
                        return Err(format!("{chunk} was executed ahead of {before}, which it depends on"));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn overlap(table: &Touched, late: &Late, other: &Touched) -> bool {
    let late: BTreeSet<u32> = match late {
        Late::All => return false,
        Late::Nothing => BTreeSet::new(),
        Late::Units(units) => units.iter().copied().collect(),
    };
    match (&table.units, &other.units) {
        (Units::Append, Units::Append) => false,
        (Units::Keys { ends, keys }, Units::Keys { keys: others, .. }) if table.mapping == other.mapping => {
            let starts = std::iter::once(&0).chain(ends);
            (0..).zip(starts.zip(ends)).any(|(unit, (&start, &end))| {
                let early = !late.contains(&unit);
                early && keys[start as usize..end as usize].iter().any(|key| others.contains(key))
            })
        }
        (Units::Keys { keys, .. }, Units::Filtered(filter)) if table.mapping == other.mapping => {
            late.is_empty() && keys.iter().any(|&key| filter.contains(key))
        }
        _ => true,
    }
}

/// A barrier and exact replay find nothing else open. A cancel never hits a chunk that was told to
/// commit.
pub(super) fn solitude(history: &[SimulationEvent]) -> Result<(), String> {
    history.iter().try_for_each(|event| match event {
        SimulationEvent::Alone(chunk, others) if *others > 0 => {
            Err(format!("{chunk} is not alone: {others} others"))
        }
        SimulationEvent::Cancelled(false) => Err("a cancel hit a head".to_owned()),
        _ => Ok(()),
    })
}

/// Each checker notices the violation that it is for.
#[test]
fn canaries() {
    let on = |keys: Vec<u64>| {
        let units = Units::Keys { ends: vec![u32::try_from(keys.len()).unwrap()], keys };
        Footprint::Tables(vec![Touched { root: base::Oid(1), mapping: 1, units }])
    };
    let whole = Footprint::Tables(vec![Touched { root: base::Oid(1), mapping: 1, units: Units::Whole }]);
    let ahead = |before: Footprint, late: Late| {
        dependency(&[
            SimulationEvent::Pushed(1, before),
            SimulationEvent::Pushed(2, on(vec![7, 8])),
            SimulationEvent::Speculated(2, vec![late]),
        ])
    };
    assert!(ahead(on(vec![9]), Late::Nothing).is_ok());
    assert!(ahead(on(vec![9, 8]), Late::Nothing).is_err());
    assert!(ahead(on(vec![9, 8]), Late::Units(vec![0])).is_ok());
    assert!(ahead(whole, Late::Nothing).is_err());
    assert!(ahead(Footprint::Everything, Late::All).is_err());

    let in_order = [
        SimulationEvent::CommitSent(1),
        SimulationEvent::Committed(1, true),
        SimulationEvent::Acknowledged(1),
        SimulationEvent::CommitSent(2),
    ];
    assert!(order(&in_order).is_ok());
    assert!(
        order(&[&in_order[..2], &[SimulationEvent::CommitSent(2)]].concat()).is_err(),
        "not acknowledged"
    );
    assert!(order(&[SimulationEvent::Committed(2, true)]).is_err(), "overtaken");
    assert!(order(&[&in_order[..3], &[SimulationEvent::Committed(1, true)]].concat()).is_err(), "twice");
    let lost = |held: &[u64]| SimulationEvent::Lost(held.iter().copied().collect());
    assert!(order(&[SimulationEvent::Committed(1, true), lost(&[2])]).is_err(), "a gap");
    assert!(order(&[SimulationEvent::Committed(1, true), lost(&[])]).is_ok(), "it was not flushed");

    let commit = |chunk| SimulationEvent::Committed(chunk, true);
    assert!(exactly_once(&[commit(2), commit(1), lost(&[2]), commit(1)]).is_ok());
    assert!(exactly_once(&[commit(2), lost(&[2]), commit(2)]).is_err(), "twice");
    assert!(exactly_once(&[commit(2), lost(&[1, 2])]).is_err(), "from nowhere");
    assert!(exactly_once(&[commit(2), SimulationEvent::Confirmed(2)]).is_err(), "past a gap");
    assert!(exactly_once(&[commit(1), SimulationEvent::Confirmed(1), lost(&[])]).is_err(), "not flushed");
    assert_eq!(overtakings(&[commit(2), commit(1), commit(4), lost(&[1, 2]), commit(3)]), 2);

    let began = |before: Footprint, mine: Footprint, may_report: bool| {
        dependency(&[
            SimulationEvent::Pushed(1, before),
            SimulationEvent::Pushed(2, mine),
            SimulationEvent::Began(2, may_report),
        ])
    };
    assert!(began(on(vec![9]), on(vec![7]), false).is_ok());
    assert!(began(on(vec![9]), on(vec![7]), true).is_err(), "reported too early");
    assert!(began(on(vec![7]), on(vec![7]), false).is_err());
    assert!(began(Footprint::Everything, on(vec![7]), false).is_err());
    assert!(began(on(vec![7]), Footprint::Everything, false).is_err());
    let large = |keys| super::filtered(on(keys));
    assert!(began(large(vec![9]), on(vec![7]), false).is_ok());
    assert!(began(large(vec![7]), on(vec![7]), false).is_err());
    assert!(atomicity(&[SimulationEvent::Committed(1, false)]).is_err());
    assert!(
        solitude(&[SimulationEvent::Alone(1, 1)]).is_err()
            && solitude(&[SimulationEvent::Cancelled(false)]).is_err()
    );
}
