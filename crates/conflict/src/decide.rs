//! Whose version stays when commit times decide.
//!
//! Both ends of a two-way pair must come to the same answer, each with the other's version as the
//! remote one. So equal times are decided by the nodes' identities, which both know, and not by who
//! is asking.

use base::PgTimestamp;

use crate::Resolution;

/// The node that a version was first written on: its system identifier and its database.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    /// `system_identifier` of `pg_control_system()`.
    pub system: u64,
    /// The name of the database.
    pub database: String,
}

/// When and where a version of a row was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// The commit time; `None` where the server does not know it any more. Such a version counts as
    /// older than any with a time: the server keeps no time for rows from before
    /// `track_commit_timestamp` was turned on.
    pub time: Option<PgTimestamp>,
    /// `None` for a node that the target has no name for. It counts as smaller than any other.
    pub node: Option<Node>,
}

/// What becomes of the change from the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The transaction is rolled back.
    Refuse,
    /// The target's version stays.
    KeepLocal,
    /// The change is written.
    ApplyRemote,
}

impl Resolution {
    /// Decides between a change and the rows it collides with.
    #[must_use]
    pub fn decide(self, remote: &Stamp, local: &[Stamp]) -> Verdict {
        let applied_if = |wins: bool| if wins { Verdict::ApplyRemote } else { Verdict::KeepLocal };
        match self {
            Resolution::Error => Verdict::Refuse,
            Resolution::Skip | Resolution::KeepLocal => Verdict::KeepLocal,
            Resolution::ApplyRemote => Verdict::ApplyRemote,
            Resolution::LastUpdateWins => applied_if(local.iter().all(|local| remote > local)),
            Resolution::FirstUpdateWins => applied_if(local.iter().all(|local| remote < local)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stamp(time: i64, system: u64) -> Stamp {
        Stamp { time: Some(PgTimestamp(time)), node: Some(Node { system, database: "d".to_owned() }) }
    }

    #[test]
    fn the_later_one_wins_or_the_earlier_one() {
        let (earlier, later) = (stamp(1, 9), stamp(2, 1));
        let by = |resolution: Resolution, remote: &Stamp, local: &Stamp| {
            resolution.decide(remote, std::slice::from_ref(local))
        };
        assert_eq!(by(Resolution::LastUpdateWins, &later, &earlier), Verdict::ApplyRemote);
        assert_eq!(by(Resolution::LastUpdateWins, &earlier, &later), Verdict::KeepLocal);
        assert_eq!(by(Resolution::FirstUpdateWins, &later, &earlier), Verdict::KeepLocal);
        assert_eq!(by(Resolution::FirstUpdateWins, &earlier, &later), Verdict::ApplyRemote);
    }

    #[test]
    fn a_row_without_a_time_is_older_than_any() {
        let unknown = Stamp { time: None, node: None };
        let unknown = [unknown];
        assert_eq!(Resolution::LastUpdateWins.decide(&stamp(1, 1), &unknown), Verdict::ApplyRemote);
        assert_eq!(Resolution::FirstUpdateWins.decide(&stamp(1, 1), &unknown), Verdict::KeepLocal);
    }

    #[test]
    fn a_change_must_be_newer_than_all_that_it_replaces() {
        let decide = |locals: &[Stamp]| Resolution::LastUpdateWins.decide(&stamp(5, 1), locals);
        assert_eq!(decide(&[stamp(3, 2), stamp(4, 2)]), Verdict::ApplyRemote);
        assert_eq!(decide(&[stamp(3, 2), stamp(6, 2)]), Verdict::KeepLocal);
    }

    #[test]
    fn fixed_resolutions_look_at_no_time() {
        for (resolution, verdict) in [
            (Resolution::Error, Verdict::Refuse),
            (Resolution::Skip, Verdict::KeepLocal),
            (Resolution::KeepLocal, Verdict::KeepLocal),
            (Resolution::ApplyRemote, Verdict::ApplyRemote),
        ] {
            assert_eq!(resolution.decide(&stamp(1, 1), &[stamp(2, 2)]), verdict);
            assert_eq!(resolution.decide(&stamp(2, 1), &[stamp(1, 2)]), verdict);
        }
    }

    proptest! {
        /// Two nodes that wrote the same row each see the other's version as the remote one. They
        /// must keep the same version, also at equal times.
        #[test]
        fn both_ends_keep_the_same_version(a in 0..3_i64, b in 0..3_i64, last in any::<bool>()) {
            let resolution =
                if last { Resolution::LastUpdateWins } else { Resolution::FirstUpdateWins };
            let (of_a, of_b) = (stamp(a, 1), stamp(b, 2));
            let kept = |remote: &Stamp, local: &Stamp| match resolution.decide(remote, std::slice::from_ref(local)) {
                Verdict::ApplyRemote => remote.clone(),
                _ => local.clone(),
            };
            prop_assert_eq!(kept(&of_b, &of_a), kept(&of_a, &of_b));
        }
    }
}
