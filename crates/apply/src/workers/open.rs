//! How the workers handle a streamed transaction that is executed while it is open
//! ([`crate::open_transaction`]).

use std::time::Duration;

use tokio::time::Instant;

use super::Workers;
use super::command::Command;
use super::in_flight::{InFlight, InFlightChunk, OpenTransaction};
use super::questions::Question;
use crate::lock_watch::Wait;
use crate::open_transaction::Tell;

/// Interval between checks whether a session waits for the open transaction.
const LOOKS_APART: Duration = Duration::from_millis(500);

impl Workers {
    /// Begins the next streamed transaction, if none is open.
    pub(super) fn begin_open(&mut self) {
        if let (None, Some(worker)) = (&self.open_transaction, self.open_session)
            && let Some(start) = self.waiting.take().or_else(|| self.starts.try_recv().ok())
        {
            let tell = start.tell.clone();
            let look = Some(Instant::now() + LOOKS_APART);
            let open = OpenTransaction {
                tell,
                lets_go: false,
                stumbled: None,
                turn: None,
                look,
                waited_for_since: None,
            };
            self.open_transaction = Some(open);
            let _ = self.sessions[worker].commands.try_send((0, Command::Open(start)));
        }
    }

    /// Tells the worker that has this chunk open that its turn has come. Returns false if no worker
    /// has it open.
    pub(super) fn give_turn(&mut self, number: u64, worker: usize) -> bool {
        let Some(InFlight { chunk: InFlightChunk::Ended(Some(ended)), .. }) = self.chunks.get(&number) else {
            return false;
        };
        let tell = match self.open_transaction.as_mut().filter(|open| ended.is_of(&open.tell)) {
            Some(open) => {
                open.turn = Some((number, worker));
                Tell::Turn(number, ended.end())
            }
            None => {
                self.waiting.take_if(|start| ended.is_of(&start.tell));
                Tell::Abandon
            }
        };
        let has_turn = matches!(tell, Tell::Turn(..));
        // A worker that has left reports it soon.
        let _ = ended.tell.send(tell);
        has_turn
    }

    /// Requests a rollback: a session may wait for the open transaction (rule A3).
    pub(super) fn let_open_go(&mut self) {
        if let Some(open) = &mut self.open_transaction
            && !std::mem::replace(&mut open.lets_go, true)
        {
            let _ = open.tell.send(Tell::LetGo);
        }
    }

    /// When to ask next whether a session waits for the open transaction, whose turn may depend on
    /// that session.
    pub(super) fn open_look(&self) -> Option<Instant> {
        self.open_transaction.as_ref().filter(|open| open.turn.is_none() && !open.lets_go)?.look
    }

    pub(super) fn look_at_open(&mut self) {
        if let (Some(open), Some(worker)) = (&mut self.open_transaction, self.open_session)
            && self.questions.send(Question::Open { pid: self.sessions[worker].pid }).is_ok()
        {
            open.look = None;
        }
    }

    pub(super) fn open_is_waited_for(&mut self, wait: Wait) {
        let patience = self.patience;
        // An answer about the previous one does no harm.
        let Some(open) = &mut self.open_transaction else { return };
        let now = Instant::now();
        open.look = Some(now + LOOKS_APART);
        match wait {
            Wait::Ours | Wait::Others => {
                let until = *open.waited_for_since.get_or_insert(now) + patience;
                open.look = Some(until.min(now + LOOKS_APART));
                if now >= until {
                    tracing::debug!("what was executed while it is open is waited for: it is rolled back");
                    self.let_open_go();
                }
            }
            Wait::None => open.waited_for_since = None,
            Wait::Unknown => {}
        }
    }

    pub(super) fn open_has_left(&mut self) {
        let Some(open) = self.open_transaction.take() else { return };
        if let (Some(number), Some(schedule)) = (open.stumbled, self.schedule.preserve()) {
            schedule.stumbled_beside(number, true);
        }
        if let Some((number, worker)) = open.turn {
            let command = self.ended(number);
            let _ = self.sessions[worker].commands.try_send((number, command));
        }
    }
}
