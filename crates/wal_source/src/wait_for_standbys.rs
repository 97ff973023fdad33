//! Holds WAL back until the standbys that may take the source's place have it (rule W3).
//!
//! ```text
//!   stream or archive --blocks--> behind_standbys --blocks--> decoding
//!                                  ^ restart_lsn of the standbys' slots, asked while something waits
//! ```
//! A source shows its WAL as soon as it has flushed it. A standby may be promoted without having
//! received all of that WAL. If pgsluice had applied the missing part, the target would keep
//! changes that the new source never had, and could not follow the failover. So WAL waits here for
//! the slots that `synchronized_standby_slots` names. A walsender of 17 makes its logical slots
//! wait in the same way for the server's setting of that name. A physical slot stands where its
//! standby has reported that it flushed. The first copy also waits, until the standbys have
//! everything that its snapshot sees.
//!
//! A missing or unused slot holds everything up. The log and `status` name it; pgsluice can do no
//! more about it.

use std::sync::Arc;
use std::time::Duration;

use base::Lsn;
use client::Session;
use source::end::SOURCE_SETTINGS;
use source::queue::queue;
use source::standby_slots::{self, Late};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use txn::{Block, Input};

use crate::decoded::Decoded;
use crate::error::Error;
use crate::{Settings, identity};

/// Interval between questions for slots that are waited for.
const POLL: Duration = Duration::from_millis(5);
/// The same once the slots have not moved for [`PATIENCE`]; from then on it is reported, too.
const POLL_LONG: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval between attempts to reach the server.
const AGAIN: Duration = Duration::from_secs(1);
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The standbys that must have WAL first.
#[derive(Clone)]
pub(super) struct Standbys {
    settings: Arc<Settings>,
    /// Tells the status what is waited for.
    figures: Arc<Decoded>,
    /// System identifier and timeline of the source. Slots of another server say nothing of this
    /// source's WAL.
    source: (u64, u32),
}

impl Standbys {
    /// The standbys that the settings name, for a source with this system identifier and timeline.
    pub(super) fn new(settings: &Arc<Settings>, figures: &Arc<Decoded>, source: (u64, u32)) -> Standbys {
        Standbys { settings: Arc::clone(settings), figures: Arc::clone(figures), source }
    }

    /// Returns when all of the standbys have flushed everything before `lsn`.
    ///
    /// # Errors
    /// Another server answers for the source by now.
    pub(super) async fn wait_for(&self, lsn: Lsn) -> Result<(), Error> {
        let mut asking = Asking::new(self);
        while asking.have < lsn {
            asking.wait_past(asking.have).await?;
        }
        Ok(())
    }

    /// Hands over the incoming blocks as far as the standbys have them. The first byte is at `at`.
    /// Ends when nothing more comes, or when `out` is closed.
    ///
    /// # Errors
    /// Another server answers for the source by now.
    async fn hold(
        &self,
        mut at: Lsn,
        mut come: mpsc::Receiver<Block>,
        out: &mpsc::Sender<Block>,
    ) -> Result<(), Error> {
        let mut asking = Asking::new(self);
        while let Some(Block { inputs, mut room }) = come.recv().await {
            let end = behind(at, inputs.iter().map(size).sum());
            if end <= asking.have {
                at = end;
                if out.send(Block { inputs, room }).await.is_err() {
                    return Ok(());
                }
                continue;
            }
            for input in inputs {
                // Other inputs say how far the source is, but hold none of its WAL.
                let Input::Bytes(mut wal) = input else { continue };
                while !wal.is_empty() {
                    if asking.have <= at {
                        tokio::select! {
                            passed = asking.wait_past(at) => passed?,
                            () = out.closed() => return Ok(()),
                        }
                    }
                    let had = usize::try_from(asking.have.bytes_since(at)).unwrap_or(usize::MAX);
                    let piece = wal.split_to(had.min(wal.len()));
                    at = behind(at, piece.len());
                    // The last piece takes the block's room.
                    let room = if at == end { room.take() } else { None };
                    if out.send(Block { inputs: vec![Input::Bytes(piece)], room }).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

/// Runs `ship` and hands its blocks, whose first byte is at `at`, to `out` as `standbys` have them.
///
/// # Errors
/// Those of `ship`; or another server answers for the source by now. Blocks that are held then are
/// not handed over.
pub(super) async fn behind_standbys<F: Future<Output = Result<(), Error>>>(
    standbys: Option<&Standbys>,
    at: Lsn,
    out: &mpsc::Sender<Block>,
    stop: &CancellationToken,
    ship: impl FnOnce(mpsc::Sender<Block>) -> F,
) -> Result<(), Error> {
    let Some(standbys) = standbys else { return ship(out.clone()).await };
    let (blocks, come) = queue();
    let mut holding = Box::pin(standbys.hold(at, come, out));
    tokio::select! {
        ended = ship(blocks) => ended?,
        ended = &mut holding => return ended,
    }
    // An archive may end before all of its blocks are handed over.
    tokio::select! {
        ended = holding => ended,
        () = stop.cancelled() => Ok(()),
    }
}

fn behind(at: Lsn, bytes: usize) -> Lsn {
    Lsn::new(at.as_u64() + bytes as u64)
}

fn size(input: &Input) -> usize {
    match input {
        Input::Bytes(bytes) => bytes.len(),
        Input::CaughtUp(_) => 0,
    }
}

/// A session that asks for the slots, and the answers.
struct Asking<'s> {
    standbys: &'s Standbys,
    session: Option<Session>,
    /// All of the standbys have flushed everything before this position.
    have: Lsn,
}

impl<'s> Asking<'s> {
    fn new(standbys: &'s Standbys) -> Asking<'s> {
        Asking { standbys, session: None, have: Lsn::INVALID }
    }

    /// Returns when all of the standbys have flushed beyond `lsn`.
    async fn wait_past(&mut self, lsn: Lsn) -> Result<(), Error> {
        let began = Instant::now();
        let mut warned: Option<Instant> = None;
        loop {
            let (late, poll) = match self.ask().await {
                Ok(Late { have, why }) => {
                    self.have = self.have.max(have);
                    (why, if began.elapsed() < PATIENCE { POLL } else { POLL_LONG })
                }
                Err(error) if error.is_of_another_source() => {
                    return Err(error);
                }
                // If the source has gone, the stream reports that itself.
                Err(error) => {
                    self.session = None;
                    (base::with_causes(&error), AGAIN)
                }
            };
            if self.have > lsn {
                break;
            }
            if began.elapsed() >= PATIENCE && warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
                warned = Some(Instant::now());
                tracing::warn!(
                    subscription = %self.standbys.settings.subscription,
                    "pgsluice decodes no WAL from {lsn} on before the standbys have it: {late}"
                );
                self.standbys.figures.awaits(Some(format!("WAL from {lsn} on on the standbys: {late}")));
            }
            tokio::time::sleep(poll).await;
        }
        if warned.is_some() {
            self.standbys.figures.awaits(None);
        }
        Ok(())
    }

    async fn ask(&mut self) -> Result<Late, Error> {
        let settings = &self.standbys.settings;
        let session = match &self.session {
            Some(session) => session,
            None => {
                let name = settings.subscription.application_name("standbys");
                let session = client::connect(&settings.source, &name, &SOURCE_SETTINGS).await?;
                // A primary stays on its timeline as long as a session lasts.
                let found = identity::of(&session).await?;
                identity::is_still(&settings.subscription, self.standbys.source, found)?;
                self.session.insert(session)
            }
        };
        Ok(standby_slots::latest(session, &settings.synchronized_standby_slots).await?)
    }
}
