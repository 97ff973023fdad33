//! What the crew does for a streamed transaction that is executed before its end has come ([`crate::early`]).

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Crew, InFlight, Order, Piece, Question};
use crate::early::Tell;
use crate::error::Error;
use crate::lock_watch::Wait;

/// Between two looks whether somebody waits for what was executed early.
const EARLY_LOOKS_APART: Duration = Duration::from_millis(500);

/// A streamed transaction that is executed early.
pub(super) struct Early {
    pub(super) tell: mpsc::UnboundedSender<Tell>,
    /// It was told that it is in somebody's way.
    pub(super) lets_go: bool,
    /// The head that did not hold beside it, and goes on when it has left.
    pub(super) stumbled: Option<u64>,
    /// What it is as a piece, and the worker of that, once it was told that its turn has come.
    pub(super) turn: Option<(u64, usize)>,
    /// When it is looked at next; `None` while an answer is awaited.
    pub(super) look: Option<Instant>,
    /// Since when somebody was seen waiting for it.
    pub(super) waited_for_since: Option<Instant>,
}

impl Crew {
    /// Has executed early what may be.
    pub(super) fn begin_early(&mut self) {
        if let (None, Some(worker)) = (&self.early, self.early_session)
            && let Some(start) = self.waiting.take().or_else(|| self.starts.try_recv().ok())
        {
            let tell = start.tell.clone();
            let look = Some(Instant::now() + EARLY_LOOKS_APART);
            let early =
                Early { tell, lets_go: false, stumbled: None, turn: None, look, waited_for_since: None };
            self.early = Some(early);
            let _ = self.sessions[worker].orders.try_send((0, Order::Early(start)));
        }
    }

    /// Tells who executes this piece early that its turn has come; false if nobody does, or will any more.
    pub(super) fn give_turn(&mut self, number: u64, worker: usize) -> bool {
        let Some(InFlight { piece: Piece::Early(Some(ended)), .. }) = self.pieces.get(&number) else {
            return false;
        };
        let tell = match self.early.as_mut().filter(|early| ended.is_of(&early.tell)) {
            Some(early) => {
                early.turn = Some((number, worker));
                Tell::Turn(number, ended.end())
            }
            None => {
                self.waiting.take_if(|start| ended.is_of(&start.tell));
                Tell::Abandon
            }
        };
        let has_turn = matches!(tell, Tell::Turn(..));
        // Who has left is heard of soon.
        let _ = ended.tell.send(tell);
        has_turn
    }

    /// Somebody may wait for what was executed early (RULES A3).
    pub(super) fn let_early_go(&mut self) {
        if let Some(early) = &mut self.early
            && !std::mem::replace(&mut early.lets_go, true)
        {
            let _ = early.tell.send(Tell::LetGo);
        }
    }

    /// When it is to be asked whether somebody waits for what was executed early, which its turn may have to wait for.
    pub(super) fn early_look(&self) -> Option<Instant> {
        self.early.as_ref().filter(|early| early.turn.is_none() && !early.lets_go)?.look
    }

    pub(super) fn look_at_early(&mut self) {
        if let (Some(early), Some(worker)) = (&mut self.early, self.early_session)
            && self.questions.send(Question::Early { pid: self.sessions[worker].pid }).is_ok()
        {
            early.look = None;
        }
    }

    pub(super) fn early_is_waited_for(&mut self, wait: Wait) {
        let patience = self.patience;
        // An answer about the one before it does no harm.
        let Some(early) = &mut self.early else { return };
        let now = Instant::now();
        early.look = Some(now + EARLY_LOOKS_APART);
        match wait {
            Wait::Ours | Wait::Others => {
                let until = *early.waited_for_since.get_or_insert(now) + patience;
                early.look = Some(until.min(now + EARLY_LOOKS_APART));
                if now >= until {
                    tracing::debug!("what was executed while it is open is waited for: it is rolled back");
                    self.let_early_go();
                }
            }
            Wait::None => early.waited_for_since = None,
            Wait::Unknown => {}
        }
    }

    pub(super) fn early_has_left(&mut self) -> Result<(), Error> {
        let Some(early) = self.early.take() else { return Ok(()) };
        if let (Some(number), Some(schedule)) = (early.stumbled, self.schedule.preserve()) {
            schedule.stumbled_beside(number, true);
        }
        if let Some((number, worker)) = early.turn {
            let order = self.ended(number)?;
            let _ = self.sessions[worker].orders.try_send((number, order));
        }
        Ok(())
    }
}
