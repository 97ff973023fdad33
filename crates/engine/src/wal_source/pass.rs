//! One pass over WAL for all subscriptions of this process that follow the same server.
//!
//! ```text
//!   alone:   walsender + slot --> Decoding of one subscription --> its applier
//!   shared:  walsender --> output::Pass --+--> Seat --> its applier       each slot is moved by SQL meanwhile,
//!                                         '--> Seat --> its applier       and keeps the WAL that its restart needs
//! ```
//! Each begins alone: what it lags behind is its own affair, and so are transactions that its look at the catalogs may have
//! seen. Who has come near the end of WAL is *ready*. Where two are, the first lets the others in: it *founds* the pass, which
//! has a walsender without a slot. The next asks the pass to *hold*, reads on alone until it is not behind it any more, and is
//! taken over at the very record that it has come to.
//!
//! Nobody waits for anybody for long: whose queue stays full goes on alone, from the record that the pass has come to, and joins
//! again later. So does everybody when the pass's stream ends, and finds out by itself what is the matter. The stream is one of
//! a member's: when it leaves, another's takes its place.

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

/// Behind the end of WAL by less, one is near it.
const NEAR_BYTES: u64 = 4 << 20;
/// For how long the pass waits for who asked it to: in this time who is near it reads what it lacks.
const HOLD_MAX: Duration = Duration::from_secs(2);
/// Who asked gives up earlier, so that it never comes too late.
const HOLD_USED: Duration = Duration::from_millis(1500);
/// Until one tries again that could not join, or that went on alone because its queue was full; doubled each time, up to
/// [`RESTS_MAX`] times, unless it took part for [`SETTLED`].
const REST: Duration = Duration::from_secs(10);
const RESTS_MAX: u32 = 5;
const SETTLED: Duration = Duration::from_secs(60);
/// How long all wait for a queue that is full.
const FULL_MAX: Duration = Duration::from_millis(300);
/// What it may take to connect.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// What may wait for a queue that is full.
const BACKLOG_BYTES: usize = 16 << 20;

/// The passes of a process.
#[derive(Debug, Default)]
pub struct Passes {
    servers: Mutex<HashMap<Server, Weak<Followers>>>,
    /// What each subscription's last attempt still has.
    parts: Mutex<HashMap<SubscriptionName, Weak<()>>>,
}

/// Who ships WAL. The address is as it was given: a standby, or a server that took its place, has the same identity. An
/// archive's is its directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Server {
    system_id: u64,
    timeline: u32,
    address: String,
}

/// What the subscriptions that follow one server know of one another.
#[derive(Debug, Default)]
struct Followers {
    /// So many could read the same WAL at the same place, or do.
    ready: AtomicUsize,
    /// Where the pass is spoken to, if there is one.
    pass: Mutex<Option<mpsc::UnboundedSender<Command>>>,
}

impl Passes {
    /// The part of one subscription that follows this server. A pass may still have something of its last attempt, above all
    /// the directory that it spills to: that is waited for.
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

/// One subscription's way to others.
#[derive(Debug)]
pub(crate) struct Sharing {
    followers: Arc<Followers>,
    /// See [`Passes`]; it goes with whatever else there is.
    _part: Arc<()>,
    is_ready: bool,
    not_before: Instant,
    rests: u32,
    hold: Option<Hold>,
    figures: Arc<Decoded>,
}

/// The pass was asked to wait.
#[derive(Debug)]
struct Hold {
    answer: oneshot::Receiver<Lsn>,
    /// Where it waits.
    at: Option<Lsn>,
    until: Instant,
    /// It waits no longer than this is there.
    _held: oneshot::Sender<()>,
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum SharingStep {
    /// Go on alone.
    Alone,
    /// Begin a pass, which will be spoken to here.
    Found(mpsc::UnboundedReceiver<Command>),
    /// It takes over who is where it is.
    Join(mpsc::UnboundedSender<Command>),
}

/// What is said to a pass.
pub(crate) enum Command {
    /// Say where it is, and wait there for who is near it.
    Hold {
        near: Lsn,
        answer: oneshot::Sender<Lsn>,
        held: oneshot::Receiver<()>,
    },
    Join(Box<Joining>),
    /// Somebody has gone.
    Look,
}

impl Sharing {
    /// What to do for one that decodes alone and has come to `place`.
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
        // Or the pass lags behind: who waited for it would, too.
        if now >= hold.until || ahead.is_some() {
            drop(pass);
            self.rest();
        }
        SharingStep::Alone
    }

    /// Nothing before `lsn` is needed any more, whenever it ends.
    pub(crate) fn needs_from(&self, lsn: Lsn) {
        self.figures.needs_from(lsn);
    }

    /// Whether somebody waits for this one.
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

/// One that is to become part of a pass.
pub(crate) struct Joining {
    decoding: Decoding,
    out: mpsc::Sender<Block>,
    heard: Arc<Heard>,
    streams: Arc<dyn Streams>,
    done: oneshot::Sender<Outcome>,
}

/// How it ended for one of them.
#[derive(Debug)]
enum Outcome {
    Alone(Box<Decoding>),
    /// Nobody takes what comes out.
    Gone,
    Failed(Error),
}

/// Tells the pass when its owner goes.
struct Leaving(mpsc::UnboundedSender<Command>);

impl Drop for Leaving {
    fn drop(&mut self) {
        // It may have gone itself.
        let _ = self.0.send(Command::Look);
    }
}

/// Where one takes part from.
pub(crate) struct MemberLinks<'a> {
    pub(crate) out: &'a mpsc::Sender<Block>,
    pub(crate) heard: &'a Arc<Heard>,
    pub(crate) streams: &'a Arc<dyn Streams>,
}

/// Begins what ships WAL and needs no slot.
pub(crate) trait Streams: Send + Sync {
    /// From `at` on, which is behind the record at `last`.
    fn start(&self, at: Lsn, last: Lsn) -> Starting;
}

pub(crate) type Starting = Pin<Box<dyn Future<Output = Result<Shipping, Error>> + Send>>;

/// Takes part in a pass until it is better to go on alone; `None` if nobody takes what comes out. Dropped before, it leaves.
///
/// # Errors
/// What decoding for this one fails with, or for all.
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

/// The same for who begins it.
///
/// # Errors
/// As of [`take_part`].
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
    // From now on the pass's stream says that.
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

/// A subscription that takes part.
struct Seat {
    outlet: Outlet,
    out: mpsc::Sender<Block>,
    heard: Arc<Heard>,
    streams: Arc<dyn Streams>,
    done: oneshot::Sender<Outcome>,
}

/// A pass under way.
struct Hub {
    pass: Pass,
    seats: HashMap<MemberId, Seat>,
    /// Whose stream it is.
    owner: MemberId,
    commands: mpsc::UnboundedReceiver<Command>,
    /// What is said of the stream: the least of what all say of theirs.
    progress: Arc<Progress>,
    heard: Arc<Heard>,
    /// Who waits, and for how long at most.
    holds: Vec<(Instant, oneshot::Receiver<()>)>,
    /// What of the archive is waited for, as the owner says and all were told.
    awaited: Option<String>,
}

/// What a stream hands over, until this goes.
struct Source {
    wal: mpsc::Receiver<Block>,
    _stopping: DropGuard,
}

impl Hub {
    async fn run(mut self, stream: Shipping) {
        let mut source = self.source(stream);
        while !self.seats.is_empty() {
            if !self.seats.contains_key(&self.owner) {
                // What it connected as and to is nobody's any more: its database may be dropped.
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
                    // It failed.
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
            // Nothing more comes, whatever the server says to the farewell, if it says anything.
            drop(blocks);
            let _ = tokio::time::timeout(FAREWELL, stream.finish(&progress)).await;
        });
        Source { wal, _stopping: stopping }
    }

    /// Another's stream from where the pass is.
    async fn next_owner(&mut self) -> Option<Shipping> {
        let (id, seat) = self.seats.iter().next()?;
        let last =
            self.pass.place(*id).map_or_else(|| self.pass.decoded(), |place| last_record(place.catalog));
        match start(&*seat.streams, self.pass.position(), last).await {
            Ok(stream) => {
                // From now on it says that itself.
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

    /// Hands WAL to the pass, and what comes out to whose it is.
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
                        // It may take its time, and the others go on.
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

    /// What has to be done for each, beside handing over.
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
            // It may wait to join still.
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

    /// Everybody goes on alone, also who has just come.
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
                // It goes on from what was kept.
                Ok(None) => {}
                Err(error) => seat.end(Outcome::Failed(error.into())),
            }
        }
    }

    /// What concerns all each finds out by itself, from what it has kept. Nobody joins any more.
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

    /// Waits a little for a queue that is full.
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
        // Who it is for may have gone.
        let _ = done.send(Outcome::Alone(Box::new(Decoding::of(decoder, outlet))));
    }

    fn end(self, outcome: Outcome) {
        let _ = self.done.send(outcome);
    }

    /// It ends with `error`, once what it can still hand over is where it belongs.
    async fn fail(self, error: Error) {
        let Seat { mut outlet, out, mut done, .. } = self;
        let error = tokio::select! {
            error = outlet.drained(error, &out) => error,
            // Nobody waits for that.
            () = done.closed() => return,
        };
        let _ = done.send(Outcome::Failed(error));
    }
}
