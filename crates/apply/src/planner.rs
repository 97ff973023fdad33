//! The planner: from the stream to work for the sessions that apply.
//!
//! ```text
//!   messages --> intake --> backlog --> handover --> workers
//!              changes of    batch,      a chunk, when a
//!              tables here   folded      session is idle
//! ```
//! [`Intake`] says which changes are for this target, [`Backlog`] holds those that no session has
//! yet, and [`Handover`] says when a session gets the next of them. None of the three knows another
//! one; the loop here moves the changes on.
//!
//! The size of a batch follows from the load; no setting chooses it. The planner hands over whole
//! transactions as soon as the executor is idle. While the target keeps up, each transaction goes
//! by itself. The further the target is behind, the more transactions are folded into one. The
//! limits only bound memory.

mod backlog;
mod clock_hold;
mod handover;
mod intake;
mod joining;
mod streaming;

use plan::Digest;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use txn::Block;

pub(crate) use self::backlog::Backlog;
pub(crate) use self::clock_hold::ClockHold;
pub(crate) use self::handover::Handover;
pub(crate) use self::intake::Intake;
pub(crate) use self::streaming::StreamedExecution;
use crate::error::Error;
use crate::work::Work;

/// See the module.
pub(crate) struct Planner {
    pub(crate) intake: Intake,
    pub(crate) backlog: Backlog,
    pub(crate) handover: Handover,
}

/// The ends of the channels that the planner stands between.
struct Channels<'s> {
    blocks: mpsc::Receiver<Block>,
    work: mpsc::Sender<Work>,
    stop: &'s CancellationToken,
}

/// What follows a step of the loop.
enum Next {
    Step,
    /// The stream has ended.
    EndOfStream,
    /// The applier is to stop, or the executor is gone and reports the reason itself.
    Stop,
}

impl Planner {
    /// Hands over the transactions of `blocks` as `work`, until the stream ends or `stop` is
    /// cancelled.
    pub(crate) async fn run(
        &mut self,
        blocks: mpsc::Receiver<Block>,
        work: mpsc::Sender<Work>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let mut channels = Channels { blocks, work, stop };
        loop {
            match self.step(&mut channels).await? {
                Next::Step => {}
                Next::EndOfStream => return self.hand_over_whole(&channels.work).await,
                Next::Stop => return Ok(()),
            }
        }
    }

    async fn step(&mut self, channels: &mut Channels<'_>) -> Result<Next, Error> {
        self.intake.take_requests();
        if self.intake.has_work() {
            tokio::select! {
                biased;
                () = channels.stop.cancelled() => return Ok(Next::Stop),
                handed = self.hand_over_between(&channels.work) => handed?,
            }
        }
        // First absorb everything at hand: that costs little compared with a round trip.
        let more = match self.intake.absorb(&mut self.backlog).await {
            Ok(more) => more,
            Err(error) => {
                self.hand_over_whole(&channels.work).await?;
                return Err(error);
            }
        };
        if self.intake.streaming.has_ended() {
            return Ok(Next::Step);
        }
        let mut full = self.backlog.is_full();
        let aside = full && self.backlog.stand_aside(&mut || self.intake.scratch())?;
        full &= !aside;
        let is_taken = self.handover.is_taken(&channels.work);
        if full && is_taken && self.backlog.fold(&mut || self.intake.scratch()) {
            return Ok(Next::Step);
        }
        self.handover.look_at(&self.backlog);
        if self.backlog.is_ready() || full || aside {
            return self.hand_over(channels, aside, !full && !more).await;
        }
        // A table joins behind a transaction that had nothing for this target. The rest of the
        // block comes behind that.
        if more {
            return Ok(Next::Step);
        }
        self.wait(channels).await
    }

    /// Waits for whatever comes next; nothing is at hand.
    async fn wait(&mut self, channels: &mut Channels<'_>) -> Result<Next, Error> {
        let Channels { blocks, work, stop } = channels;
        let intake = &mut self.intake;
        let asks_at = intake.hold.asks_at();
        if asks_at.is_some_and(|at| at <= Instant::now()) {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(Next::Stop),
                asked = intake.ask_clock() => asked?,
            }
            return Ok(Next::Step);
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(Next::Stop),
            () = intake.passage.changed() => {}
            Some(request) = intake.joining.request() => intake.take_request(request),
            room = work.reserve(), if intake.caught_up.is_some() => {
                let Ok(room) = room else { return Ok(Next::Stop) };
                room.send(Work::CaughtUp(intake.caught_up.take().unwrap_or_default()));
            }
            block = blocks.recv(), if intake.wants_block() && !intake.passage.is_full() => match block {
                Some(block) => intake.begin_block(block),
                None => return Ok(Next::EndOfStream),
            },
            () = tokio::time::sleep_until(asks_at.unwrap_or_else(Instant::now)), if asks_at.is_some() => {}
        }
        Ok(Next::Step)
    }

    /// Hands over the next work when a session is idle. Meanwhile it takes in another block if it
    /// `reads`.
    async fn hand_over(
        &mut self,
        channels: &mut Channels<'_>,
        aside: bool,
        reads: bool,
    ) -> Result<Next, Error> {
        let Channels { blocks, work, stop } = channels;
        let in_parts = self.backlog.is_in_parts();
        let reads = reads && self.intake.wants_block();
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(Next::Stop),
            room = work.reserve(), if in_parts && !aside => {
                let Ok(room) = room else { return Ok(Next::Stop) };
                room.send(self.handover.work(&mut self.backlog, None)?);
            }
            (busy, room) = self.handover.when_idle(&self.backlog, work), if !in_parts => {
                let Ok(room) = room else { return Ok(Next::Stop) };
                room.send(self.handover.work(&mut self.backlog, busy)?);
            }
            block = blocks.recv(), if reads => match block {
                Some(block) => self.intake.begin_block(block),
                None => return Ok(Next::EndOfStream),
            },
            // The planner does not wait while it puts a large transaction aside.
            () = tokio::task::yield_now(), if aside => {}
        }
        Ok(Next::Step)
    }

    /// Hands over all whole transactions. If the executor is gone, it failed and reports the error
    /// itself; this holds for all work here.
    async fn hand_over_whole(&mut self, work: &mpsc::Sender<Work>) -> Result<(), Error> {
        while self.backlog.is_ready() {
            let _ = work.send(self.handover.work(&mut self.backlog, None)?).await;
        }
        Ok(())
    }

    /// Hands over what comes between two transactions of the backlog, behind everything that was
    /// passed. The end of a streamed transaction goes first: the tables join behind it.
    async fn hand_over_between(&mut self, work: &mpsc::Sender<Work>) -> Result<(), Error> {
        self.hand_over_whole(work).await?;
        if let Some(ended) = self.intake.streaming.take_ended() {
            self.handover.note(&Digest::of_ends(&[ended.end()]));
            let _ = work.send(Work::Ended(ended)).await;
        }
        while let Some(join) = self.intake.next_join() {
            let _ = work.send(Work::Join(join)).await;
        }
        Ok(())
    }
}
