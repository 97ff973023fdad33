//! From where a slot must keep WAL: for the stream that it belongs to, and for whatever reads the
//! same WAL beside it.
//!
//! ```text
//! the stream: RestartLsn ---.
//!                           +-- the lesser one --> restart_lsn of the slot
//! beside it: KeptBeside ----'
//! ```
//! A slot never moves back. Somebody who needs WAL from a position that he finds out only now must
//! ask first that everything be kept ([`KeptBeside::hold`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::Lsn;

/// The position from which a stream needs WAL after a restart; it only moves forward.
#[derive(Debug, Default)]
pub struct RestartLsn {
    own: AtomicU64,
    beside: Option<Arc<KeptBeside>>,
}

impl RestartLsn {
    /// The position of a stream whose slot also keeps WAL for `beside`.
    #[must_use]
    pub fn beside(beside: Option<Arc<KeptBeside>>) -> RestartLsn {
        RestartLsn { own: AtomicU64::default(), beside }
    }

    /// Notes that the stream does not need WAL before `lsn` any more.
    pub fn advance(&self, lsn: Lsn) {
        self.own.fetch_max(lsn.as_u64(), Ordering::AcqRel);
    }

    /// The position.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        Lsn::new(self.own.load(Ordering::Acquire))
    }

    /// Where the slot may be moved to. Invalid: nowhere yet.
    #[must_use]
    pub fn slot_lsn(&self) -> Lsn {
        self.beside.as_ref().map_or_else(|| self.lsn(), |beside| beside.lets_move(self.lsn()))
    }
}

/// What a slot keeps WAL for beside the stream that it belongs to. At first that is everything.
#[derive(Debug, Default)]
pub struct KeptBeside(Mutex<Kept>);

#[derive(Debug)]
struct Kept {
    /// `None`: no WAL is needed.
    from: Option<Lsn>,
    /// Where the slot may have been moved to.
    moved: Lsn,
}

impl Default for Kept {
    fn default() -> Kept {
        Kept { from: Some(Lsn::INVALID), moved: Lsn::INVALID }
    }
}

impl KeptBeside {
    /// WAL is needed from `lsn` on.
    pub fn keep_from(&self, lsn: Lsn) {
        self.kept().from = Some(lsn);
    }

    /// No WAL is needed.
    pub fn keep_nothing(&self) {
        self.kept().from = None;
    }

    /// The slot stays where it is. It may have been moved up to the returned position, even if the
    /// server does not show that yet.
    pub fn hold(&self) -> Lsn {
        let mut kept = self.kept();
        kept.from = Some(Lsn::INVALID);
        kept.moved
    }

    /// Where the slot may be moved to, if its stream needs WAL from `own` on.
    fn lets_move(&self, own: Lsn) -> Lsn {
        let mut kept = self.kept();
        let to = kept.from.map_or(own, |from| own.min(from));
        kept.moved = kept.moved.max(to);
        kept.moved
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_moves_as_far_as_both_let_it() {
        let beside = Arc::<KeptBeside>::default();
        let stream = RestartLsn::beside(Some(Arc::clone(&beside)));
        stream.advance(Lsn::new(500));
        assert_eq!(stream.slot_lsn(), Lsn::INVALID);
        beside.keep_from(Lsn::new(300));
        assert_eq!((stream.slot_lsn(), stream.lsn()), (Lsn::new(300), Lsn::new(500)));
        beside.keep_nothing();
        assert_eq!(stream.slot_lsn(), Lsn::new(500));
    }

    #[test]
    fn a_hold_says_where_the_slot_may_be_by_then() {
        let beside = Arc::<KeptBeside>::default();
        beside.keep_nothing();
        let stream = RestartLsn::beside(Some(Arc::clone(&beside)));
        stream.advance(Lsn::new(500));
        assert_eq!(stream.slot_lsn(), Lsn::new(500));
        assert_eq!(beside.hold(), Lsn::new(500));
        // It never moves back, and the next attempt's stream does not move it either.
        let next = RestartLsn::beside(Some(Arc::clone(&beside)));
        next.advance(Lsn::new(900));
        assert_eq!((stream.slot_lsn(), next.slot_lsn()), (Lsn::new(500), Lsn::new(500)));
        assert_eq!(beside.hold(), Lsn::new(500));
    }

    #[test]
    fn a_stream_alone_moves_its_slot_to_its_own_position() {
        let stream = RestartLsn::default();
        stream.advance(Lsn::new(500));
        stream.advance(Lsn::new(400));
        assert_eq!(stream.slot_lsn(), Lsn::new(500));
    }
}
