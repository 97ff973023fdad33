//! The position from which the stream goes on in the source's WAL, and the check that this is still
//! the WAL that the target's changes came from.
//!
//! A position has a meaning in one history only. A source goes on from an earlier point if it was
//! restored from a backup, or if it is a standby that was promoted without having received
//! everything. Its new transactions then lie at positions that the target has already passed.
//! Without this check, pgsluice would skip them silently.
//!
//! | the source | then |
//! |---|---|
//! | is on the timeline of last time and not behind us | go on |
//! | is on one that branched off behind all that was applied and copied | go on, and take back what was confirmed past the fork: nothing of it was for us |
//! | is on one that branched off before, or on none of ours | refuse |
//! | is a primary on the timeline of last time, and behind us | refuse |
//! | is a standby, and behind us | wait until it has the same WAL |
//!
//! Only a primary's timelines are compared: see [`UNKNOWN`].
//!
//! One case cannot be detected. Somebody puts the files of a source back to an older state, without
//! recovery onto a new timeline, and the source writes past our position before we look.

use base::Lsn;
use client::{Session, Wire};
use schedule::CommittedRanges;
use source::slot;
use state::{State, SubscriptionRow};

use crate::Error;
use crate::refusal::Refusal;

/// The timeline that is stored while the source is a standby. A standby may be promoted while it
/// streams, so nobody could say later on which timeline the last changes were.
pub(crate) const UNKNOWN: i64 = 0;

/// Returns the position to stream from. `reached` is what the target has applied. The target also
/// has the copied tables, whose latest consistent point is `copied`. Ranges that the target applied
/// beyond a gap must be part of the source's history, too.
///
/// # Errors
/// The source's history does not contain what the target has; the error names the remedy. Or a
/// server failed.
pub(crate) async fn start_position(
    wire: &mut Wire,
    source: &Session,
    state: &State,
    row: &SubscriptionRow,
    (reached, copied): (&CommittedRanges, Lsn),
) -> Result<Lsn, Error> {
    // Asks again, because a copy may have run since the first look.
    let identity = slot::identify_system(wire).await?;
    let standby = in_recovery(source).await?;
    let mut confirmed = row.confirmed_lsn.unwrap_or(Lsn::INVALID);
    let (before, now) = (row.source_timeline, i64::from(identity.timeline));
    if now != before && before != UNKNOWN {
        let fork = slot::timeline_forks(wire, identity.timeline).await?;
        let fork = fork.into_iter().find(|fork| i64::from(fork.timeline) == before).map(|fork| fork.end);
        let at = check_fork(before, now, fork, reached.furthest().max(copied))?;
        tracing::warn!("the source is on timeline {now} now, which left timeline {before} at {at}");
        confirmed = confirmed.min(at);
    }
    let known = reached.furthest().max(copied).max(confirmed);
    let remembered = match standby {
        // A standby that is behind us may be promoted on this timeline.
        true if identity.xlogpos < known => before,
        true => UNKNOWN,
        false => now,
    };
    if remembered != before {
        state.change_timeline(remembered, confirmed).await?;
    }
    let start = reached.prefix.max(confirmed);
    let furthest = reached.furthest().max(start);
    // A standby that is behind will have the same WAL later.
    if identity.xlogpos < furthest && !standby {
        return Err(Error::refused(Refusal::SourceBehind { end: identity.xlogpos, start: furthest }));
    }
    Ok(start)
}

/// Returns where timeline `before` ended and the present one went on, if everything that the target
/// has lies before that place.
fn check_fork(before: i64, now: i64, fork: Option<Lsn>, applied: Lsn) -> Result<Lsn, Error> {
    match fork {
        Some(fork) if applied <= fork => Ok(fork),
        Some(fork) => Err(Error::refused(Refusal::Forked { before, now, fork, applied })),
        None => Err(Error::refused(Refusal::OtherHistory { before, now, applied })),
    }
}

async fn in_recovery(source: &Session) -> Result<bool, Error> {
    let row = source.query_one("SELECT pg_catalog.pg_is_in_recovery()", &[]).await;
    Ok(row.map_err(|error| source.error(error))?.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_before_the_fork_may_be_gone_on_from() {
        let fork = Some(Lsn::new(100));
        assert_eq!(check_fork(1, 2, fork, Lsn::new(99)).unwrap(), Lsn::new(100));
        assert_eq!(check_fork(1, 2, fork, Lsn::new(100)).unwrap(), Lsn::new(100));
        let past = check_fork(1, 2, fork, Lsn::new(101)).unwrap_err().to_string();
        assert!(past.contains("timeline 2, which left timeline 1 at 0/64"), "{past}");
        assert!(past.contains("pgsluice drop"), "{past}");
        let stranger = check_fork(3, 2, None, Lsn::new(1)).unwrap_err().to_string();
        assert!(stranger.contains("not part of its history") && stranger.contains("--source"), "{stranger}");
    }
}
