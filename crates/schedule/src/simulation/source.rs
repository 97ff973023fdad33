//! What the source did, and what its changes show.

use std::collections::{BTreeMap, BTreeSet};

use base::Oid;
use rand::Rng;
use rand::rngs::StdRng;

use crate::{Footprint, Late, Split, Touched, Units};

pub(super) type SimulatedKey = (u8, u8);
/// The row's version, and its value of the other unique key.
pub(super) type SimulatedRow = (u32, u8);
pub(super) type Rows = BTreeMap<SimulatedKey, SimulatedRow>;

#[derive(Debug, Clone, Copy)]
pub(super) enum Op {
    Insert(SimulatedKey, SimulatedRow),
    Update(SimulatedKey, SimulatedRow),
    Delete(SimulatedKey),
}

impl Op {
    pub(super) fn key(self) -> SimulatedKey {
        let (Op::Insert(key, _) | Op::Update(key, _) | Op::Delete(key)) = self;
        key
    }

    pub(super) fn row(self) -> Option<SimulatedRow> {
        match self {
            Op::Insert(_, row) | Op::Update(_, row) => Some(row),
            Op::Delete(_) => None,
        }
    }
}

/// The source's changes, chunk by chunk.
pub(super) struct Source {
    pub(super) chunks: Vec<(Vec<Op>, Footprint)>,
    /// The rows after each chunk; the first entry is the start.
    pub(super) states: Vec<Rows>,
}

impl Source {
    /// With `blind`, footprints leave out keys, as changes leave out values that are freed.
    pub(super) fn write(random: &mut StdRng, chunks: usize, blind: bool) -> Source {
        let mut state: Rows = (0..6).map(|id| ((id % 2, id), (0, id))).collect();
        let mut source = Source { chunks: Vec::new(), states: vec![state.clone()] };
        for version in (1..).take(chunks) {
            let ids = if random.random_bool(0.3) { 4 } else { 24 };
            let mut ops: Vec<Op> = Vec::new();
            for _ in 0..random.random_range(1..7) {
                let key = (random.random_range(0..3), random.random_range(0..ids));
                let unique = random.random_range(0..40);
                let taken =
                    state.iter().any(|(other, row)| other.0 == key.0 && *other != key && row.1 == unique);
                if taken || ops.iter().any(|op| op.key() == key) {
                    continue;
                }
                let op = match state.get(&key) {
                    None => Op::Insert(key, (version, unique)),
                    Some(_) if random.random_bool(0.25) => Op::Delete(key),
                    Some(before) if random.random_bool(0.6) => Op::Update(key, (version, before.1)),
                    Some(_) => Op::Update(key, (version, unique)),
                };
                match op.row() {
                    Some(row) => state.insert(key, row),
                    None => state.remove(&key),
                };
                ops.push(op);
            }
            let footprint = footprint(&ops, random, blind);
            source.chunks.push((ops, footprint));
            source.states.push(state.clone());
        }
        source
    }

    /// The rows after these chunks and no others, in order.
    pub(super) fn after(&self, chunks: &BTreeSet<u64>) -> Rows {
        let mut rows = self.states[0].clone();
        for &chunk in chunks {
            let ops = self.chunks[chunk as usize - 1].0.iter();
            write(&mut rows, &ops.map(|op| (op.key(), op.row())).collect());
        }
        rows
    }
}

/// Applies `writes` to `rows`.
pub(super) fn write(rows: &mut Rows, writes: &BTreeMap<SimulatedKey, Option<SimulatedRow>>) {
    for (&key, row) in writes {
        match row {
            Some(row) => rows.insert(key, *row),
            None => rows.remove(&key),
        };
    }
}

/// The keys that the changes show; a table's keys stand in the order of its ops.
fn footprint(ops: &[Op], random: &mut StdRng, blind: bool) -> Footprint {
    if ops.is_empty() || random.random_bool(0.06) {
        return Footprint::Everything;
    }
    let tables: BTreeSet<u8> = ops.iter().map(|op| op.key().0).collect();
    let touched = tables.into_iter().map(|table| {
        let (mut ends, mut keys) = (Vec::new(), Vec::new());
        for op in ops.iter().filter(|op| op.key().0 == table) {
            let shown = !blind || random.random_bool(0.7);
            keys.extend(shown.then_some(u64::from(op.key().1)));
            keys.extend(op.row().filter(|_| shown).map(|row| 1_000 + u64::from(row.1)));
            ends.push(keys.len() as u32);
        }
        // Table 2 is one whose rows cannot be told apart.
        let keys = keys.into_iter().map(|key| key + 10_000 * u64::from(table)).collect();
        let units = if table == 2 { Units::Whole } else { Units::Keys { ends, keys } };
        Touched { root: Oid(u32::from(table)), mapping: 1, units }
    });
    Footprint::Tables(touched.collect())
}

/// Returns the ops that are not late, and those that are.
pub(super) fn split_ops(ops: &[Op], footprint: &Footprint, split: &Split) -> (Vec<Op>, Vec<Op>) {
    let Footprint::Tables(touched) = footprint else { panic!("a barrier has no split") };
    let (mut early, mut late) = (Vec::new(), Vec::new());
    for (table, how) in touched.iter().zip(split) {
        let of_table = ops.iter().filter(|op| u32::from(op.key().0) == table.root.0);
        for (unit, op) in (0..).zip(of_table) {
            let is_late = match how {
                Late::Nothing => false,
                Late::All => true,
                Late::Units(units) => units.contains(&unit),
            };
            if is_late { late.push(*op) } else { early.push(*op) }
        }
    }
    (early, late)
}
