//! A stretch of WAL that all forms read in one pass. Some leave the pass and join it again on the
//! way.

use std::collections::HashMap;

use base::Lsn;
use output::{MemberId, Pass, Refusal, Step};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use testkit::Cluster;

use crate::message::Sent;
use crate::server::bytes;
use crate::stage::Ours;

/// How often forms joined a pass of others and left it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moves {
    pub(crate) joined: u64,
    pub(crate) split: u64,
}

/// About how often a form leaves or joins on the way.
const MOVES: usize = 3;

/// Reads up to `to`. Forms that the pass refuses read alone.
pub(crate) fn read(
    ours: &mut [Ours],
    cluster: &Cluster,
    to: Lsn,
    piece: usize,
    seed: u64,
) -> Result<Moves, String> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut moves = Moves::default();
    let first = random.random_range(0..ours.len());
    let founder = ours[first].decoder.take().expect("it is here between stretches");
    let from = founder.position();
    if from >= to {
        ours[first].decoder = Some(founder);
        return Ok(moves);
    }
    let wal = bytes(cluster, from, to, 1);
    // They begin with what the pass has read already, and say no more than it.
    let (mut pass, id) = Pass::new(founder);
    let mut ids = HashMap::from([(id, first)]);
    for at in (0..ours.len()).filter(|at| *at != first) {
        let decoder = ours[at].decoder.take().expect("it is here between stretches");
        ids.insert(pass.join(decoder), at);
    }
    // Forms that were refused go on alone and do not try again.
    let mut alone: Vec<usize> = Vec::new();
    for bytes in wal.chunks(piece) {
        push(&mut pass, bytes, ours, &mut ids, &mut moves)?;
        if random.random_range(0..=wal.len() / piece / MOVES) > 0 {
            continue;
        }
        let joined = |at: &usize| ours[*at].decoder.is_none();
        let here: Vec<usize> = (0..ours.len()).filter(joined).collect();
        if random.random() && here.len() > 1 {
            let at = here[random.random_range(0..here.len())];
            let id = *ids.iter().find(|(_, of)| **of == at).expect("it has one").0;
            if let Some(decoder) = pass.split(id).map_err(|error| base::with_causes(&error))? {
                ids.remove(&id);
                ours[at].decoder = Some(decoder);
                alone.push(at);
                moves.split += 1;
            }
        } else if !alone.is_empty() {
            // Somewhat ahead of the others, perhaps in the middle of a transaction.
            let at = alone.swap_remove(random.random_range(0..alone.len()));
            let ahead = pass.position().as_u64() + random.random_range(0..3 * piece as u64);
            ours[at].read(cluster, Lsn::new(ahead.min(to.as_u64())), piece)?;
            let decoder = ours[at].decoder.take().expect("it read alone");
            ids.insert(pass.join(decoder), at);
        }
    }
    // The last one to join may have read up to here already.
    push(&mut pass, &[], ours, &mut ids, &mut moves)?;
    for (id, at) in ids {
        let decoder = pass.split(id).map_err(|error| base::with_causes(&error))?;
        ours[at].decoder =
            Some(decoder.ok_or_else(|| format!("{} is no member at the end", ours[at].form.name))?);
    }
    Ok(moves)
}

fn push(
    pass: &mut Pass,
    bytes: &[u8],
    ours: &mut [Ours],
    ids: &mut HashMap<MemberId, usize>,
    moves: &mut Moves,
) -> Result<(), String> {
    let told = |error: output::Error| format!("in one pass: we refuse: {}", base::with_causes(&error));
    let mut steps = pass.push(bytes).map_err(told)?;
    while let Some(step) = steps.next().map_err(told)? {
        match step {
            Step::Output(id, output) => {
                let (lsn, xid, data) = (output.lsn.as_u64(), output.xid.0, output.data.to_vec());
                ours[ids[&id]].sent.push(Sent { lsn, xid, data });
            }
            Step::Joined(_) => moves.joined += 1,
            Step::Refused(id, decoder, Refusal::Later) => {
                let at = ids.remove(&id).expect("it has one");
                ours[at].decoder = Some(*decoder);
            }
            Step::Refused(id, _, Refusal::Differs(why)) => {
                return Err(format!("{} has other catalogs than the pass: {why}", ours[ids[&id]].form.name));
            }
            Step::Lost(id, why) => return Err(format!("{}, in one pass: {why}", ours[ids[&id]].form.name)),
            Step::Failed(id, error) => {
                return Err(format!(
                    "{}, in one pass: {}",
                    ours[ids[&id]].form.name,
                    base::with_causes(&error)
                ));
            }
        }
    }
    Ok(())
}
