//! The running stream: messages flow from the source to the applier, and watchers run beside them,
//! until one of these ends.

use std::sync::Arc;
use std::time::Duration;

use apply::{Joins, Target};
use base::{Lsn, Progress};
use source::end::{FAREWELL, SourceEnd};
use source::queue::queue;
use source::stream::Heard;
use state::{JoinedTables, State, TableKey};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use txn::Block;
use wal_source::{Begun, Beside, WalSource};

use super::attempt::{Attempt, Ends, Past};
use super::beginning::furthest;
use crate::error::{Error, Kind};
use crate::message_source::{Logical, MessageSource};
use crate::refresh::{Refreshing, StreamKind};
use crate::refusal::Refusal;
use crate::retry::Backoff;
use crate::spooling::Watched;
use crate::{Phase, SourceMode, Status, history};
use tokio_util::task::AbortOnDropHandle;

/// How often the status gets figures that the stages do not push themselves.
const STATUS_INTERVAL: Duration = Duration::from_millis(200);

/// How long the applier may take to report why the target went away, after the control session was
/// lost.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Attempt<'_> {
    /// Attaches to the target, starts the stream where it left off, and runs it until something
    /// ends it.
    pub(super) async fn stream(
        &self,
        mut ends: Ends,
        joined: JoinedTables,
        (backoff, past): (&mut Backoff, &Past),
    ) -> Result<(), Error> {
        let settings = self.settings;
        // Notices a `skip` from here on; the row holds an earlier one.
        let mut skip = self.status.skip_lsn();
        skip.mark_unchanged();
        let mut row = ends.state.load().await?.ok_or_else(|| Error::refused(Refusal::Dropped))?;
        // The applier records conflicts, whatever the rules are.
        ends.state.make_conflict_history().await?;
        let mut options = self.apply_options(&ends, row.skip_lsn.take()).await?;
        if options.unconverted {
            ends.source.wire.query("SET client_encoding TO 'SQL_ASCII'").await?;
        }
        let binary = options.binary;
        let restart = match settings.source_mode {
            SourceMode::Logical => None,
            SourceMode::Wal => Some(self.wal(&ends).restart()?),
        };
        options.copied_from = self.copied_from(&ends, restart.as_ref()).await?;
        let kind = StreamKind {
            binary,
            adopted: ends.adopted.is_some(),
            keeps_partitions: restart.is_none() && ends.source.wire.version().major() < 15,
        };
        let copied = furthest(&joined);
        let takes_part: Vec<TableKey> = joined.keys().cloned().collect();
        if self.status.retention().is_some() {
            self.status.set_target_started(retention::started(ends.state.session()).await?);
        }
        let target = Target::attach(&settings.target, &ends.state, &options, joined).await?;
        self.note_origins(&ends.state).await?;
        self.status.set_backends(target.backends());
        let reached = target.reached();
        let Ends { source: SourceEnd { wire, session, .. }, state, .. } = &mut ends;
        let start = history::start_position(wire, session, state, &row, (reached, copied)).await?;
        let progress = Arc::new(Progress::starting_at(start));
        self.tell_positions(&ends, restart.as_ref(), &progress).await?;
        let tables = (takes_part.into_iter().collect(), past.refused_before.clone());
        let decoding = self.decode_from(&ends, restart, (&progress, binary), tables).await?;
        let (stream, beside) = self.messages(ends.source, (start, binary), decoding).await?;
        let spool = Watched::open(settings.spool_dir(), self.status.spooling()).map_err(Kind::Spool)?;
        self.status.set_phase(Phase::Streaming);
        self.tell_start(start, binary);
        backoff.reset();
        let (blocks, inputs) = queue();
        let (joins, join_requests) = apply::joins();
        let stopping = CancellationToken::new();
        let counters = Arc::clone(self.status.counters());
        let metered = Arc::clone(&counters);
        let applying = apply::apply(
            target,
            apply::Feed { blocks: inputs, joins: join_requests, spool: Box::new(spool) },
            options,
            Arc::clone(&progress),
            counters,
            stopping.clone(),
        );
        let flow = Flow {
            stream,
            beside,
            applying: AbortOnDropHandle::new(tokio::spawn(
                async move { metered.plan_cpu.of(applying).await },
            )),
            progress,
            state: ends.state,
            joins,
            kind,
        };
        flow.run(self, blocks, stopping, skip).await
    }

    /// Starts what hands over messages from `start` on: the stream of a logical slot, or the
    /// decoding of WAL.
    async fn messages(
        &self,
        source: SourceEnd,
        (start, binary): (Lsn, bool),
        decoding: Option<Begun>,
    ) -> Result<(Box<dyn MessageSource>, Option<Beside>), Error> {
        let SourceEnd { wire, identity, slot_name, session, .. } = source;
        // This session is not needed any more.
        drop(session);
        let Some(begun) = decoding else {
            let stream = Logical::start(self.settings, wire, slot_name, (start, binary)).await?;
            return Ok((Box::new(stream), None));
        };
        let wire = (wire, (identity.system_id, identity.timeline));
        let (stream, beside) =
            WalSource::start(self.of_wal, self.status.decoded(), wire, slot_name, begun).await?;
        Ok((Box::new(stream), Some(beside)))
    }
}

/// Everything in motion.
struct Flow {
    stream: Box<dyn MessageSource>,
    /// Watchers that only a source with WAL decoded here needs.
    beside: Option<Beside>,
    applying: AbortOnDropHandle<Result<(), apply::Error>>,
    progress: Arc<Progress>,
    state: State,
    joins: Joins,
    kind: StreamKind,
}

impl Flow {
    async fn run(
        mut self,
        attempt: &Attempt<'_>,
        blocks: mpsc::Sender<Block>,
        stopping: CancellationToken,
        mut skip: watch::Receiver<Lsn>,
    ) -> Result<(), Error> {
        let heard = Arc::<Heard>::default();
        let (asks, judge, followed, left) = match self.beside.take() {
            Some(Beside { asks, judge, followed, left_slot }) => {
                (Some(asks), Some(judge), followed, left_slot)
            }
            None => (None, None, None, None),
        };
        let refreshing = Refreshing::new(attempt, &self.state, self.joins.clone(), (self.kind, judge));
        let lost = self.state.session().ended();
        let (age, rows) = (attempt.settings.conflict_history_age, attempt.settings.conflict_history_rows);
        let receiving = self.stream.run(&self.progress, &heard, &blocks, &stopping);
        tokio::select! {
            ended = attempt.status.receive_cpu().of(receiving) => {
                // The applier refused a block, so it has an error to report.
                ended?;
                return Err(applier_end((&mut self.applying).await));
            }
            ended = &mut self.applying => return Err(applier_end(ended)),
            failed = state::flush_continuously(&self.state, &self.progress) => {
                let Err(error) = failed else { return Ok(()) };
                return Err(self.reason(error.into()).await);
            }
            failed = self.state.prune_conflict_history_continuously(age, rows) => {
                let Err(error) = failed else { return Ok(()) };
                return Err(self.reason(error.into()).await);
            }
            // Notices a lost session even while nobody uses it.
            error = lost => return Err(self.reason(error.into()).await),
            failed = wal_source::compare_catalogs(attempt.of_wal, attempt.status.decoded(), asks) => {
                let Err(error) = failed;
                return Err(error.into());
            }
            failed = wal_source::watch_identity(attempt.of_wal, followed) => {
                let Err(error) = failed;
                return Err(error.into());
            }
            never = wal_source::drop_left_slot(attempt.of_wal, left, &self.progress) => match never {},
            silence = attempt.status.target_silent() => return Err(Kind::Silent(silence).into()),
            () = carry_figures(attempt.status, &heard) => {}
            () = attempt.stop.cancelled() => {}
            // A table needs another stream; the next attempt begins it.
            () = refreshing.run() => {}
            // A transaction is to be skipped; the next attempt reads which.
            _ = skip.changed() => {}
        }
        self.stop(blocks, &stopping).await
    }

    /// Stops in order: ends the input, finishes the batch in hand, flushes it, reports.
    async fn stop(mut self, blocks: mpsc::Sender<Block>, stopping: &CancellationToken) -> Result<(), Error> {
        stopping.cancel();
        drop(blocks);
        if let Ok(Err(error)) = (&mut self.applying).await {
            tracing::warn!("while stopping: {}", base::with_causes(&error));
            return Ok(());
        }
        state::flush_now(&self.state, &self.progress).await?;
        // The source may be gone; it gets the report next time.
        let _ = tokio::time::timeout(FAREWELL, self.stream.finish(&self.progress)).await;
        Ok(())
    }

    /// Finds the applier's reason for a lost session. A crash of the target ends all sessions, but
    /// the server gives the reason only to some of them, mostly to those that write.
    async fn reason(&mut self, lost: apply::Error) -> Error {
        if lost.is_unexplained()
            && let Ok(ended) = tokio::time::timeout(LAST_WORDS, &mut self.applying).await
        {
            return applier_end(ended);
        }
        lost.into()
    }
}

fn applier_end(ended: Result<Result<(), apply::Error>, tokio::task::JoinError>) -> Error {
    match ended {
        Ok(Err(error)) => error.into(),
        Ok(Ok(())) => Error::refused(Refusal::ApplierEnded),
        Err(error) => Error::refused(Refusal::ApplierBroke(error.to_string())),
    }
}

/// Copies figures to the status; never returns.
async fn carry_figures(status: &Status, heard: &Heard) {
    loop {
        tokio::time::sleep(STATUS_INTERVAL).await;
        if let Some(time) = heard.last_commit_time() {
            status.note_received_commit(time);
        }
        let counters = status.counters();
        if let Some((lsn, time)) = counters.last_part_handed() {
            status.note_part_handed(lsn, time);
        }
        if let Some((lsn, time)) = counters.last_handed() {
            status.note_handed(lsn, time);
        }
        counters.conflict_log.tell_rest(false);
        if let Some(time) = counters.last_commit_time() {
            status.note_applied_commit(time);
        }
        status.settle_consistency();
    }
}
