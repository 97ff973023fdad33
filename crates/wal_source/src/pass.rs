//! One pass over WAL for all subscriptions of this process that follow the same server.
//!
//! ```text
//!   alone:   walsender + slot --> Decoding of one subscription --> its applier
//!   shared:  walsender --> output::Pass --+--> Seat --> its applier       SQL moves each slot meanwhile,
//!                                         '--> Seat --> its applier       which keeps the WAL for a restart
//! ```
//! Each subscription begins alone, so its backlog delays no other. The transactions that its look
//! at the catalogs may have seen also concern it alone. How it comes to found or join a pass is
//! told in `sharing`. The pass has a walsender without a slot.
//!
//! No subscription waits for another for long. A member whose queue stays full goes on alone, from
//! the record that the pass has come to, and joins again later. If the pass's stream ends, all
//! members go on alone, and each finds the cause by itself. The stream belongs to one member; when
//! that member leaves, another member's stream replaces it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::{Lsn, Progress, SubscriptionName, with_causes};
use cpu_time::CpuTime;
use output::{Decoder, MemberId, Pass, Refusal, Step};
use source::end::FAREWELL;
use source::queue::queue;
use source::stream::Heard;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use txn::{Block, Input};

use crate::decoded::Decoded;
use crate::decoding::{Decoding, LOOK, LOOK_OFTEN, Outlet};
use crate::error::{Error, Kind};
use crate::gather::Handed;
use crate::sharing::{Command, Joining, LinkedDecoding, NEAR_BYTES, SeatOutcome, Sharing, Streams};
use crate::shipping::Shipping;

/// Longest time for which the pass waits for a joiner. A joiner that is near can read in this time
/// what it lacks.
const HOLD_MAX: Duration = Duration::from_secs(2);
/// How long all members wait for one full queue.
const FULL_MAX: Duration = Duration::from_millis(300);
/// Longest time to connect.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Bytes that may wait for a full queue.
const BACKLOG_BYTES: usize = 16 << 20;

/// Notifies the pass when its owner goes.
struct Leaving(mpsc::UnboundedSender<Command>);

impl Drop for Leaving {
    fn drop(&mut self) {
        // The pass may have ended, too.
        let _ = self.0.send(Command::Look);
    }
}

/// The links through which a member takes part.
pub(crate) struct MemberLinks<'a> {
    pub(crate) out: &'a mpsc::Sender<Block>,
    pub(crate) heard: &'a Arc<Heard>,
    pub(crate) streams: &'a Arc<dyn Streams>,
}

/// Takes part in a pass until the subscription goes on alone. Returns `None` if the receiver of the
/// messages has gone. Dropping the future leaves the pass.
///
/// # Errors
/// An error in decoding for this subscription, or for all.
pub(crate) async fn take_part(
    commands: mpsc::UnboundedSender<Command>,
    linked: LinkedDecoding,
    links: &MemberLinks<'_>,
) -> Result<Option<LinkedDecoding>, Error> {
    let (done, outcome) = oneshot::channel();
    let _leaving = Leaving(commands.clone());
    let (out, heard, streams) = (links.out.clone(), Arc::clone(links.heard), Arc::clone(links.streams));
    let joining = Joining { linked, out, heard, streams, done };
    let since = Instant::now();
    if let Err(mpsc::error::SendError(Command::Join(joining))) =
        commands.send(Command::Join(Box::new(joining)))
    {
        return Ok(Some(rested(joining.linked, since)));
    }
    ended(outcome.await, since)
}

/// As [`take_part`], for the subscription that founds the pass.
///
/// # Errors
/// Those of [`take_part`].
pub(crate) async fn found(
    commands: mpsc::UnboundedReceiver<Command>,
    linked: LinkedDecoding,
    links: &MemberLinks<'_>,
) -> Result<Option<LinkedDecoding>, Error> {
    let since = Instant::now();
    let (at, last) = (linked.decoding.position(), linked.decoding.last_record());
    let stream = match start(&**links.streams, at, last).await {
        Ok(stream) => stream,
        Err(error) => {
            let name = linked.decoding.name();
            tracing::warn!(
                subscription = %name,
                "could not open one stream for several subscriptions: {}",
                with_causes(&error)
            );
            return Ok(Some(rested(linked, since)));
        }
    };
    let (done, outcome) = oneshot::channel();
    let LinkedDecoding { decoding, sharing } = linked;
    let (decoder, outlet) = decoding.into_parts();
    // From now on the pass's stream reports what it waits for.
    outlet.figures.awaits(None);
    let leaving = sharing.commands().map(Leaving);
    let (pass, id) = Pass::new(decoder);
    let (out, heard, streams) = (links.out.clone(), Arc::clone(links.heard), Arc::clone(links.streams));
    let cpu = Arc::<CpuTime>::default();
    let hub = Hub {
        progress: Arc::new(Progress::starting_at(outlet.flushed())),
        pass,
        seats: HashMap::from([(id, Seat { outlet, sharing, out, heard, streams, done })]),
        owner: id,
        commands,
        heard: Arc::default(),
        holds: Vec::new(),
        awaited: None,
        cpu: Arc::clone(&cpu),
    };
    tokio::spawn(async move { cpu.of(hub.run(stream)).await });
    let outcome = ended(outcome.await, since);
    drop(leaving);
    outcome
}

async fn start(streams: &dyn Streams, at: Lsn, last: Lsn) -> Result<Shipping, Error> {
    let late = |_| Error::from(Kind::Pass(format!("no stream within {} s", CONNECT_MAX.as_secs())));
    tokio::time::timeout(CONNECT_MAX, streams.start(at, last)).await.map_err(late)?
}

fn ended(
    outcome: Result<SeatOutcome, oneshot::error::RecvError>,
    since: Instant,
) -> Result<Option<LinkedDecoding>, Error> {
    match outcome {
        Ok(SeatOutcome::Alone(linked)) => Ok(Some(rested(*linked, since))),
        Ok(SeatOutcome::Gone) => Ok(None),
        Ok(SeatOutcome::Failed(error)) => Err(error),
        Err(_) => Err(Kind::Pass("it broke down".to_owned()).into()),
    }
}

fn rested(mut linked: LinkedDecoding, since: Instant) -> LinkedDecoding {
    let figures = linked.decoding.figures();
    figures.is_in_pass_of(0);
    figures.awaits(None);
    linked.sharing.is_alone_since(since);
    linked
}

/// A member of the pass.
struct Seat {
    outlet: Outlet,
    sharing: Sharing,
    out: mpsc::Sender<Block>,
    heard: Arc<Heard>,
    streams: Arc<dyn Streams>,
    done: oneshot::Sender<SeatOutcome>,
}

/// A running pass.
struct Hub {
    pass: Pass,
    seats: HashMap<MemberId, Seat>,
    /// The member whose stream is used.
    owner: MemberId,
    commands: mpsc::UnboundedReceiver<Command>,
    /// The progress that the stream reports: the least of all members' progress.
    progress: Arc<Progress>,
    heard: Arc<Heard>,
    /// When each hold expires, and the channel that a joiner drops to end its hold.
    holds: Vec<(Instant, oneshot::Receiver<()>)>,
    /// What the stream waits for in the archive, as the owner reports it and as all members were
    /// told.
    awaited: Option<String>,
    /// CPU time of the pass that no member was told yet.
    cpu: Arc<CpuTime>,
}

/// The output of a stream, which ends when this is dropped.
struct Source {
    wal: mpsc::Receiver<Block>,
    _stopping: DropGuard,
}

impl Hub {
    async fn run(mut self, stream: Shipping) {
        let mut source = self.source(stream);
        while !self.seats.is_empty() {
            if !self.seats.contains_key(&self.owner) {
                // The owner's connection must not outlive its membership: its database may be
                // dropped.
                drop(source);
                source = match self.next_owner().await {
                    Some(stream) => self.source(stream),
                    None => break,
                };
            }
            self.holds.retain_mut(|(until, held)| {
                *until > Instant::now() && matches!(held.try_recv(), Err(TryRecvError::Empty))
            });
            let is_held = !self.holds.is_empty();
            let waits = is_held || self.seats.values().any(|seat| seat.outlet.waits_for_room());
            tokio::select! {
                said = self.commands.recv() => match said {
                    Some(command) => self.command(command).await,
                    // The pass failed.
                    None => break,
                },
                block = source.wal.recv(), if !is_held => {
                    let Some(block) = block else { break };
                    if let Err(error) = self.take(block).await {
                        self.fail(&error);
                    }
                    self.look(source.wal.is_empty());
                }
                () = tokio::time::sleep(if waits { LOOK_OFTEN } else { LOOK }) => self.look(true),
            }
        }
        self.disperse();
    }

    fn source(&self, mut stream: Shipping) -> Source {
        let (blocks, wal) = queue();
        let stop = CancellationToken::new();
        let stopping = stop.clone().drop_guard();
        let (progress, heard) = (Arc::clone(&self.progress), Arc::clone(&self.heard));
        tokio::spawn(async move {
            if let Err(error) = stream.run(&progress, &heard, &blocks, &stop).await {
                tracing::warn!("{}; each subscription continues alone", with_causes(&error));
            }
            // Nothing more comes, whatever the server answers to the farewell.
            drop(blocks);
            let _ = tokio::time::timeout(FAREWELL, stream.finish(&progress)).await;
        });
        Source { wal, _stopping: stopping }
    }

    /// Starts another member's stream where the pass is.
    async fn next_owner(&mut self) -> Option<Shipping> {
        let (id, seat) = self.seats.iter().next()?;
        let last =
            self.pass.place(*id).map_or_else(|| self.pass.decoded(), |place| place.catalog.needs_from());
        match start(&*seat.streams, self.pass.position(), last).await {
            Ok(stream) => {
                // From now on the stream reports that itself.
                seat.figures().awaits(None);
                self.owner = *id;
                Some(stream)
            }
            Err(error) => {
                tracing::warn!("{}; each subscription continues alone", with_causes(&error));
                None
            }
        }
    }

    async fn command(&mut self, command: Command) {
        match command {
            Command::Hold { near, answer, held } => {
                let at = self.pass.decoded();
                let is_near = near.as_u64().saturating_sub(at.as_u64()) <= NEAR_BYTES;
                if answer.send(at).is_ok() && is_near {
                    self.holds.push((Instant::now() + HOLD_MAX, held));
                }
            }
            Command::Join(joining) => {
                let Joining { linked, out, heard, streams, done } = *joining;
                let LinkedDecoding { decoding, mut sharing } = linked;
                let (decoder, outlet) = decoding.into_parts();
                sharing.has_joined();
                let id = self.pass.join(decoder);
                self.seats.insert(id, Seat { outlet, sharing, out, heard, streams, done });
                if let Err(error) = self.push(&[]).await {
                    self.fail(&error);
                }
            }
            Command::Look => self.look(true),
        }
    }

    async fn take(&mut self, block: Block) -> Result<(), output::Error> {
        let Block { inputs, room } = block;
        for input in inputs {
            if let Input::Bytes(bytes) = input {
                self.push(&bytes).await?;
            }
        }
        drop(room);
        Ok(())
    }

    /// Hands WAL to the pass, and the messages that come out to their members.
    async fn push(&mut self, bytes: &[u8]) -> Result<(), output::Error> {
        let Hub { pass, seats, awaited, .. } = self;
        let mut steps = pass.push(bytes)?;
        let (mut gone, mut full) = (None, None);
        loop {
            if let Some(id) = gone.take() {
                steps.leave(id);
                if let Some(seat) = seats.remove(&id) {
                    seat.end(SeatOutcome::Gone);
                }
            }
            if let Some(id) = full.take()
                && let Some(seat) = seats.get_mut(&id)
                && !seat.has_room_soon().await
                && let Some(decoder) = steps.split(id)?
                && let Some(seat) = seats.remove(&id)
            {
                tracing::info!(
                    subscription = %seat.name(),
                    "the subscription's queue is full: it decodes alone from {} on",
                    decoder.decoded()
                );
                seat.alone(decoder);
            }
            let Some(step) = steps.next()? else { break };
            match step {
                Step::Output(id, output) => {
                    let Some(seat) = seats.get_mut(&id) else {
                        gone = Some(id);
                        continue;
                    };
                    seat.heard.message(output.data);
                    match seat.outlet.add(output.data, &seat.out) {
                        Handed::Yes => {}
                        Handed::Later(waiting) if waiting < BACKLOG_BYTES => {}
                        Handed::Later(_) => full = Some(id),
                        Handed::Gone => gone = Some(id),
                    }
                }
                Step::Joined(id) => {
                    let all = seats.len();
                    if let Some(seat) = seats.get(&id) {
                        tracing::info!(subscription = %seat.name(), "decoded in one pass for {all} subscriptions");
                        seat.figures().awaits(awaited.clone());
                    }
                }
                Step::Refused(id, decoder, why) => {
                    if let Some(seat) = seats.remove(&id) {
                        refuse(seat, *decoder, why);
                    }
                }
                Step::Failed(id, error) => {
                    if let Some(seat) = seats.remove(&id) {
                        // Ending with an error may take a while, and the other members go on.
                        tokio::spawn(seat.fail(error.into()));
                    }
                }
                Step::Lost(id, why) => {
                    if let Some(seat) = seats.remove(&id) {
                        seat.end(SeatOutcome::Failed(Kind::Pass(why).into()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Looks after each member, apart from handing over messages.
    fn look(&mut self, nothing_waits: bool) {
        let wal_end = self.heard.wal_end();
        let all = self.seats.len();
        // Who caused it is not known, so each has an equal share.
        let share = self.cpu.take() / u32::try_from(all.max(1)).unwrap_or(u32::MAX);
        let awaited = self.seats.get(&self.owner).and_then(|seat| seat.figures().awaited());
        let is_news = awaited != self.awaited;
        let mut flushed = None;
        let (mut gone, mut failed) = (Vec::new(), Vec::new());
        for (id, seat) in &mut self.seats {
            if seat.done.is_closed() || seat.out.is_closed() {
                gone.push(*id);
                continue;
            }
            // The member may still be waiting to join.
            let Some(place) = self.pass.place(*id) else { continue };
            seat.heard.advance_wal_end(wal_end);
            seat.figures().is_in_pass_of(all);
            seat.figures().cpu.add(share);
            if is_news && *id != self.owner {
                seat.figures().awaits(awaited.clone());
            }
            seat.outlet.came_to(place, nothing_waits, &seat.out);
            if let Err(error) = seat.outlet.look(place) {
                failed.push((*id, error));
            }
            let durable = seat.outlet.flushed();
            flushed = Some(flushed.map_or(durable, |least: Lsn| least.min(durable)));
        }
        self.awaited = awaited;
        if let Some(flushed) = flushed {
            self.progress.advance_received(self.pass.decoded());
            self.progress.advance_flushed(flushed);
        }
        for (id, error) in failed {
            self.pass.leave(id);
            if let Some(seat) = self.seats.remove(&id) {
                seat.end(SeatOutcome::Failed(error));
            }
        }
        for id in gone {
            self.pass.leave(id);
            if let Some(seat) = self.seats.remove(&id) {
                seat.end(SeatOutcome::Gone);
            }
        }
    }

    /// Makes all members go on alone, the latest joiners included.
    fn disperse(mut self) {
        self.commands.close();
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Join(joining) = command {
                let Joining { linked, done, .. } = *joining;
                let _ = done.send(SeatOutcome::Alone(Box::new(linked)));
            }
        }
        let Hub { mut pass, seats, .. } = self;
        for (id, seat) in seats {
            match pass.split(id) {
                Ok(Some(decoder)) => seat.alone(decoder),
                // The member goes on from its kept catalogs.
                Ok(None) => {}
                Err(error) => seat.end(SeatOutcome::Failed(error.into())),
            }
        }
    }

    /// Ends the pass with an error that concerns all. Each member finds the cause by itself, from
    /// its kept catalogs. Nobody can join any more.
    fn fail(&mut self, error: &output::Error) {
        self.commands.close();
        let why = with_causes(error);
        for (_, seat) in self.seats.drain() {
            seat.end(SeatOutcome::Failed(Kind::Pass(why.clone()).into()));
        }
    }
}

/// Lets a member decode alone that cannot join the pass.
fn refuse(seat: Seat, decoder: Decoder, why: Refusal) {
    if let Refusal::Differs(why) = why {
        tracing::warn!(
            subscription = %seat.name(),
            "the subscription decodes alone, because its catalogs differ from the others': {why}"
        );
    }
    seat.alone(decoder);
}

impl Seat {
    fn figures(&self) -> &Decoded {
        &self.outlet.figures
    }

    fn name(&self) -> &SubscriptionName {
        &self.outlet.name
    }

    /// Waits briefly for room in a full queue.
    async fn has_room_soon(&mut self) -> bool {
        let until = Instant::now() + FULL_MAX;
        while self.outlet.waits_for_room() && !self.done.is_closed() {
            if Instant::now() >= until {
                return false;
            }
            tokio::time::sleep(LOOK_OFTEN).await;
            if let Handed::Gone = self.outlet.hand_over(&self.out) {
                break;
            }
        }
        true
    }

    fn alone(self, decoder: output::Decoder) {
        let Seat { outlet, sharing, done, .. } = self;
        let decoding = Decoding::of(decoder, outlet);
        // The subscription may have gone.
        let _ = done.send(SeatOutcome::Alone(Box::new(LinkedDecoding { decoding, sharing })));
    }

    fn end(self, outcome: SeatOutcome) {
        let _ = self.done.send(outcome);
    }

    /// Ends this member with `error`, once everything that can still be handed over has been.
    async fn fail(self, error: Error) {
        let Seat { mut outlet, out, mut done, .. } = self;
        let error = tokio::select! {
            error = outlet.drained(error, &out) => error,
            // The subscription does not wait for the result any more.
            () = done.closed() => return,
        };
        let _ = done.send(SeatOutcome::Failed(error));
    }
}
