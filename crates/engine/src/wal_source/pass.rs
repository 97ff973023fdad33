//! One pass over WAL for all subscriptions of this process that follow the same server.
//!
//! ```text
//!   alone:   walsender + slot --> Decoding of one subscription --> its applier
//!   shared:  walsender --> output::Pass --+--> Seat --> its applier       SQL moves each slot meanwhile,
//!                                         '--> Seat --> its applier       which keeps the WAL for a restart
//! ```
//! Each subscription begins alone, so its backlog delays no other. The transactions that its look
//! at the catalogs may have seen also concern it alone. A subscription near the end of WAL is
//! *ready*. When two are ready, the first one *founds* the pass, which has a walsender without a
//! slot. A later subscription, a *joiner*, asks the pass to *hold*. It reads on alone until it has
//! come to the pass's position, and the pass takes it over at that record.
//!
//! No subscription waits for another for long. A member whose queue stays full goes on alone, from
//! the record that the pass has come to, and joins again later. If the pass's stream ends, all
//! members go on alone, and each finds the cause by itself. The stream belongs to one member; when
//! that member leaves, another member's stream replaces it.

use std::collections::HashMap;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use base::{Lsn, Progress, SubscriptionName, with_causes};
use output::{MemberId, Pass, Place, Refusal, Step};
use source::queue::queue;
use source::stream::Heard;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use txn::{Block, Input};

use super::decoding::{Decoding, Handed, LOOK, LOOK_OFTEN, Outlet};
use super::restart::last_record;
use super::shipping::Shipping;
use crate::error::{Error, Kind};
use crate::source_end::FAREWELL;
use crate::status::Decoded;

/// A subscription is near the end of WAL if it is behind by less than this.
const NEAR_BYTES: u64 = 4 << 20;
/// Longest time for which the pass waits for a joiner. A joiner that is near can read in this time
/// what it lacks.
const HOLD_MAX: Duration = Duration::from_secs(2);
/// A joiner gives up earlier, so that it never joins after the pass's hold has expired.
const HOLD_USED: Duration = Duration::from_millis(1500);
/// Rest before a subscription tries to join again, if it could not join, or if its queue was full.
/// The rest doubles each time, up to [`RESTS_MAX`] times, unless the subscription took part for
/// [`SETTLED`].
const REST: Duration = Duration::from_secs(10);
const RESTS_MAX: u32 = 5;
const SETTLED: Duration = Duration::from_secs(60);
/// How long all members wait for one full queue.
const FULL_MAX: Duration = Duration::from_millis(300);
/// Longest time to connect.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Bytes that may wait for a full queue.
const BACKLOG_BYTES: usize = 16 << 20;

/// The passes of a process.
#[derive(Debug, Default)]
pub struct Passes {
    servers: Mutex<HashMap<Server, Weak<Followers>>>,
    /// For each subscription, whether a part of its last attempt still exists.
    parts: Mutex<HashMap<SubscriptionName, Weak<()>>>,
}

/// The server that ships the WAL. The address is the one that was given, because a standby, or the
/// server that replaces the source, has the same identity. For an archive, it is the directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Server {
    system_id: u64,
    timeline: u32,
    address: String,
}

/// What the subscriptions that follow one server share.
#[derive(Debug, Default)]
struct Followers {
    /// The number of subscriptions that read the same WAL at the same place, or could.
    ready: AtomicUsize,
    /// The way to send commands to the pass, if there is one.
    pass: Mutex<Option<mpsc::UnboundedSender<Command>>>,
}

impl Passes {
    /// Registers one subscription that follows this server. A pass may still hold parts of the
    /// subscription's last attempt, above all its spool directory. This waits until they are gone.
    pub(crate) async fn sharing(
        &self,
        name: &SubscriptionName,
        (address, system_id, timeline): (String, u64, u32),
        figures: &Arc<Decoded>,
    ) -> Sharing {
        let lock = || self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        while lock().get(name).is_some_and(|part| part.strong_count() > 0) {
            tokio::time::sleep(LOOK_OFTEN).await;
        }
        let part = Arc::new(());
        lock().insert(name.clone(), Arc::downgrade(&part));
        let server = Server { system_id, timeline, address };
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers.retain(|_, followers| followers.strong_count() > 0);
        let known = servers.get(&server).and_then(Weak::upgrade);
        let followers = known.unwrap_or_else(|| {
            let followers = Arc::<Followers>::default();
            servers.insert(server, Arc::downgrade(&followers));
            followers
        });
        let not_before = Instant::now();
        let figures = Arc::clone(figures);
        Sharing { followers, _part: part, is_ready: false, not_before, rests: 0, hold: None, figures }
    }
}

/// One subscription's link to the others.
#[derive(Debug)]
pub(crate) struct Sharing {
    followers: Arc<Followers>,
    /// See [`Passes`]; dropped together with the rest of the attempt.
    _part: Arc<()>,
    is_ready: bool,
    not_before: Instant,
    rests: u32,
    hold: Option<Hold>,
    figures: Arc<Decoded>,
}

/// The request that the pass hold.
#[derive(Debug)]
struct Hold {
    answer: oneshot::Receiver<Lsn>,
    /// Where the pass holds.
    at: Option<Lsn>,
    until: Instant,
    /// The pass stops holding when this is dropped.
    _held: oneshot::Sender<()>,
}

/// What a subscription that decodes alone does next.
#[derive(Debug)]
pub(crate) enum SharingStep {
    /// Go on alone.
    Alone,
    /// Found a pass, which gets its commands from this channel.
    Found(mpsc::UnboundedReceiver<Command>),
    /// Join the pass, which takes over a subscription that is where the pass is.
    Join(mpsc::UnboundedSender<Command>),
}

/// A command to a pass.
pub(crate) enum Command {
    /// Answer with the pass's position, and hold there for a joiner that is near.
    Hold {
        near: Lsn,
        answer: oneshot::Sender<Lsn>,
        held: oneshot::Receiver<()>,
    },
    Join(Box<Joining>),
    /// A member has gone.
    Look,
}

impl Sharing {
    /// Decides what a subscription that decodes alone does at `place`.
    pub(crate) fn look(&mut self, place: Place<'_>, wal_end: Lsn) -> SharingStep {
        let now = Instant::now();
        let behind = wal_end.as_u64().saturating_sub(place.decoded.as_u64());
        let is_near = wal_end.is_valid() && behind <= NEAR_BYTES;
        let is_ready = is_near && now >= self.not_before && place.catalog.is_past_look();
        self.set_ready(is_ready);
        if !is_ready || self.followers.ready.load(Ordering::Acquire) < 2 {
            self.hold = None;
            return SharingStep::Alone;
        }
        let mut pass = self.followers.pass.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(commands) = pass.as_ref().filter(|commands| !commands.is_closed()) else {
            let (commands, said) = mpsc::unbounded_channel();
            *pass = Some(commands);
            self.hold = None;
            return SharingStep::Found(said);
        };
        let Some(hold) = &mut self.hold else {
            let ((say, answer), (holding, held)) = (oneshot::channel(), oneshot::channel());
            if commands.send(Command::Hold { near: place.decoded, answer: say, held }).is_ok() {
                self.hold = Some(Hold { answer, at: None, until: now + HOLD_USED, _held: holding });
            }
            return SharingStep::Alone;
        };
        match hold.answer.try_recv() {
            Ok(at) => hold.at = Some(at),
            Err(TryRecvError::Closed) if hold.at.is_none() => {
                self.hold = None;
                return SharingStep::Alone;
            }
            Err(_) => {}
        }
        let ahead = hold.at.and_then(|at| place.decoded.as_u64().checked_sub(at.as_u64()));
        if now < hold.until && ahead.is_some_and(|bytes| bytes <= NEAR_BYTES) {
            return SharingStep::Join(commands.clone());
        }
        // In the other case the pass lags behind, and would delay a subscription that waited for
        // it.
        if now >= hold.until || ahead.is_some() {
            drop(pass);
            self.rest();
        }
        SharingStep::Alone
    }

    /// WAL before `lsn` is not needed any more, whatever happens.
    pub(crate) fn needs_from(&self, lsn: Lsn) {
        self.figures.needs_from(lsn);
    }

    /// Whether the pass holds, or has been asked to hold, for this subscription.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.hold.is_some()
    }

    /// Stays alone for a while.
    fn rest(&mut self) {
        self.set_ready(false);
        self.hold = None;
        self.not_before = Instant::now() + REST * 2_u32.pow(self.rests);
        self.rests = (self.rests + 1).min(RESTS_MAX);
    }

    fn set_ready(&mut self, is_ready: bool) {
        match (mem::replace(&mut self.is_ready, is_ready), is_ready) {
            (false, true) => self.followers.ready.fetch_add(1, Ordering::AcqRel),
            (true, false) => self.followers.ready.fetch_sub(1, Ordering::AcqRel),
            _ => 0,
        };
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        self.set_ready(false);
    }
}

/// A subscription that is about to join a pass.
pub(crate) struct Joining {
    decoding: Decoding,
    out: mpsc::Sender<Block>,
    heard: Arc<Heard>,
    streams: Arc<dyn Streams>,
    done: oneshot::Sender<Outcome>,
}

/// How taking part ended for one subscription.
#[derive(Debug)]
enum Outcome {
    Alone(Box<Decoding>),
    /// The receiver of the messages has gone.
    Gone,
    Failed(Error),
}

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

/// Starts a stream of WAL that needs no slot.
pub(crate) trait Streams: Send + Sync {
    /// Starts at `at`, which is behind the record at `last`.
    fn start(&self, at: Lsn, last: Lsn) -> Starting;
}

pub(crate) type Starting = Pin<Box<dyn Future<Output = Result<Shipping, Error>> + Send>>;

/// Takes part in a pass until the subscription goes on alone. Returns `None` if the receiver of the
/// messages has gone. Dropping the future leaves the pass.
///
/// # Errors
/// An error in decoding for this subscription, or for all.
pub(crate) async fn take_part(
    commands: mpsc::UnboundedSender<Command>,
    decoding: Decoding,
    links: &MemberLinks<'_>,
) -> Result<Option<Decoding>, Error> {
    let (done, outcome) = oneshot::channel();
    let _leaving = Leaving(commands.clone());
    let (out, heard, streams) = (links.out.clone(), Arc::clone(links.heard), Arc::clone(links.streams));
    let joining = Joining { decoding, out, heard, streams, done };
    let since = Instant::now();
    if let Err(mpsc::error::SendError(Command::Join(joining))) =
        commands.send(Command::Join(Box::new(joining)))
    {
        return Ok(Some(rested(joining.decoding, since)));
    }
    ended(outcome.await, since)
}

/// As [`take_part`], for the subscription that founds the pass.
///
/// # Errors
/// Those of [`take_part`].
pub(crate) async fn found(
    commands: mpsc::UnboundedReceiver<Command>,
    decoding: Decoding,
    links: &MemberLinks<'_>,
) -> Result<Option<Decoding>, Error> {
    let since = Instant::now();
    let (at, last) = (decoding.position(), decoding.last_record());
    let stream = match start(&**links.streams, at, last).await {
        Ok(stream) => stream,
        Err(error) => {
            tracing::warn!(subscription = %decoding.name(), "no stream for several subscriptions: {}", with_causes(&error));
            return Ok(Some(rested(decoding, since)));
        }
    };
    let (done, outcome) = oneshot::channel();
    let (decoder, outlet) = decoding.into_parts();
    // From now on the pass's stream reports what it waits for.
    outlet.sharing.figures.awaits(None);
    let followers = Arc::clone(&outlet.sharing.followers);
    let (pass, id) = Pass::new(decoder);
    let (out, heard, streams) = (links.out.clone(), Arc::clone(links.heard), Arc::clone(links.streams));
    let hub = Hub {
        progress: Arc::new(Progress::starting_at(outlet.flushed())),
        pass,
        seats: HashMap::from([(id, Seat { outlet, out, heard, streams, done })]),
        owner: id,
        commands,
        heard: Arc::default(),
        holds: Vec::new(),
        awaited: None,
    };
    let leaving = followers.pass.lock().unwrap_or_else(PoisonError::into_inner).clone().map(Leaving);
    tokio::spawn(hub.run(stream));
    let outcome = ended(outcome.await, since);
    drop(leaving);
    outcome
}

async fn start(streams: &dyn Streams, at: Lsn, last: Lsn) -> Result<Shipping, Error> {
    let late = |_| Error::from(Kind::Pass(format!("no stream within {} s", CONNECT_MAX.as_secs())));
    tokio::time::timeout(CONNECT_MAX, streams.start(at, last)).await.map_err(late)?
}

fn ended(
    outcome: Result<Outcome, oneshot::error::RecvError>,
    since: Instant,
) -> Result<Option<Decoding>, Error> {
    match outcome {
        Ok(Outcome::Alone(decoding)) => Ok(Some(rested(*decoding, since))),
        Ok(Outcome::Gone) => Ok(None),
        Ok(Outcome::Failed(error)) => Err(error),
        Err(_) => Err(Kind::Pass("it broke down".to_owned()).into()),
    }
}

fn rested(mut decoding: Decoding, since: Instant) -> Decoding {
    let sharing = decoding.sharing();
    sharing.figures.is_in_pass_of(0);
    sharing.figures.awaits(None);
    if since.elapsed() >= SETTLED {
        sharing.rests = 0;
    }
    sharing.rest();
    decoding
}

/// A member of the pass.
struct Seat {
    outlet: Outlet,
    out: mpsc::Sender<Block>,
    heard: Arc<Heard>,
    streams: Arc<dyn Streams>,
    done: oneshot::Sender<Outcome>,
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
                tracing::warn!("{}; each subscription goes on alone", with_causes(&error));
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
            self.pass.place(*id).map_or_else(|| self.pass.decoded(), |place| last_record(place.catalog));
        match start(&*seat.streams, self.pass.position(), last).await {
            Ok(stream) => {
                // From now on the stream reports that itself.
                seat.figures().awaits(None);
                self.owner = *id;
                Some(stream)
            }
            Err(error) => {
                tracing::warn!("{}; each subscription goes on alone", with_causes(&error));
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
                let Joining { decoding, out, heard, streams, done } = *joining;
                let (decoder, mut outlet) = decoding.into_parts();
                outlet.sharing.hold = None;
                let id = self.pass.join(decoder);
                self.seats.insert(id, Seat { outlet, out, heard, streams, done });
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
                    seat.end(Outcome::Gone);
                }
            }
            if let Some(id) = full.take()
                && let Some(seat) = seats.get_mut(&id)
                && !seat.has_room_soon().await
                && let Some(decoder) = steps.split(id)?
                && let Some(seat) = seats.remove(&id)
            {
                tracing::info!(subscription = %seat.name(), "its queue is full: it decodes alone from {} on", decoder.decoded());
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
                        if let Refusal::Differs(why) = why {
                            tracing::warn!(
                                subscription = %seat.name(),
                                "not decoded with others: its catalogs are not theirs: {why}"
                            );
                        }
                        seat.alone(*decoder);
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
                        seat.end(Outcome::Failed(Kind::Pass(why).into()));
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
                seat.end(Outcome::Failed(error));
            }
        }
        for id in gone {
            self.pass.leave(id);
            if let Some(seat) = self.seats.remove(&id) {
                seat.end(Outcome::Gone);
            }
        }
    }

    /// Makes all members go on alone, the latest joiners included.
    fn disperse(mut self) {
        self.commands.close();
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Join(joining) = command {
                let Joining { decoding, done, .. } = *joining;
                let _ = done.send(Outcome::Alone(Box::new(decoding)));
            }
        }
        let Hub { mut pass, seats, .. } = self;
        for (id, seat) in seats {
            match pass.split(id) {
                Ok(Some(decoder)) => seat.alone(decoder),
                // The member goes on from its kept catalogs.
                Ok(None) => {}
                Err(error) => seat.end(Outcome::Failed(error.into())),
            }
        }
    }

    /// Ends the pass with an error that concerns all. Each member finds the cause by itself, from
    /// its kept catalogs. Nobody can join any more.
    fn fail(&mut self, error: &output::Error) {
        self.commands.close();
        let why = with_causes(error);
        for (_, seat) in self.seats.drain() {
            seat.end(Outcome::Failed(Kind::Pass(why.clone()).into()));
        }
    }
}

impl Seat {
    fn figures(&self) -> &Decoded {
        &self.outlet.sharing.figures
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
        let Seat { outlet, done, .. } = self;
        // The subscription may have gone.
        let _ = done.send(Outcome::Alone(Box::new(Decoding::of(decoder, outlet))));
    }

    fn end(self, outcome: Outcome) {
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
        let _ = done.send(Outcome::Failed(error));
    }
}
