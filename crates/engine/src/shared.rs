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
//! Nobody waits for anybody: whose queue stays full goes on alone, from the record that the pass has come to, and joins again
//! later. So does everybody when the pass's stream ends, and finds out by itself what is the matter.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use base::{Lsn, Progress, SubscriptionName};
use client::ConnInfo;
use output::{MemberId, Pass, Place, Refusal, Step};
use source::stream::{Heard, QUEUE_BLOCKS, Stream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use txn::{Block, Input};

use crate::decoding::{Decoding, Handed, Outlet};
use crate::error::{Error, Kind};

/// Behind the end of WAL by less, one is near it.
const NEAR_BYTES: u64 = 4 << 20;
/// For how long the pass waits for who asked it to: in this time who is near it reads what it lacks.
const HOLD_MAX: Duration = Duration::from_secs(2);
/// Who asked gives up earlier, so that it never comes too late.
const HOLD_USED: Duration = Duration::from_millis(1500);
/// Until one tries again that could not join, or that went on alone because its queue was full.
const REST: Duration = Duration::from_secs(10);
/// What may wait for a queue that is full.
const BACKLOG_BYTES: usize = 16 << 20;
/// How often those are looked at that nothing comes for.
const LOOK: Duration = Duration::from_millis(500);
/// The same while something waits for a queue.
const LOOK_OFTEN: Duration = Duration::from_millis(5);

/// The passes of a process.
#[derive(Debug, Default)]
pub struct Passes(Mutex<HashMap<Server, Weak<Shared>>>);

/// Who ships WAL. The address is as it was given: a standby, or a server that took its place, has the same identity.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Server {
    system_id: u64,
    timeline: u32,
    address: String,
}

/// What the subscriptions that follow one server know of one another.
#[derive(Debug, Default)]
struct Shared {
    /// So many could read the same WAL at the same place, or do.
    ready: AtomicUsize,
    /// Where the pass is spoken to, if there is one.
    pass: Mutex<Option<mpsc::UnboundedSender<Command>>>,
}

impl Passes {
    /// The part of one subscription that follows this server.
    pub(crate) fn sharing(&self, source: &ConnInfo, system_id: u64, timeline: u32) -> Sharing {
        let server = Server { system_id, timeline, address: source.address() };
        let mut servers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        servers.retain(|_, shared| shared.strong_count() > 0);
        let known = servers.get(&server).and_then(Weak::upgrade);
        let shared = known.unwrap_or_else(|| {
            let shared = Arc::<Shared>::default();
            servers.insert(server, Arc::downgrade(&shared));
            shared
        });
        Sharing { shared, is_ready: false, not_before: Instant::now(), hold: None }
    }
}

/// One subscription's way to others.
#[derive(Debug)]
pub(crate) struct Sharing {
    shared: Arc<Shared>,
    is_ready: bool,
    not_before: Instant,
    hold: Option<Hold>,
}

/// The pass was asked to wait.
#[derive(Debug)]
struct Hold {
    answer: oneshot::Receiver<Lsn>,
    /// Where it waits.
    at: Option<Lsn>,
    until: Instant,
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Way {
    /// Go on alone.
    Alone,
    /// Begin a pass, which will be spoken to here.
    Found(mpsc::UnboundedReceiver<Command>),
    /// It takes over who is where it is.
    Join(mpsc::UnboundedSender<Command>),
}

/// What is said to a pass.
#[derive(Debug)]
pub(crate) enum Command {
    /// Wait, and say where.
    Hold(oneshot::Sender<Lsn>),
    Join(Box<Joining>),
    /// Somebody has gone.
    Look,
}

impl Sharing {
    /// What to do for one that decodes alone and has come to `place`.
    pub(crate) fn look(&mut self, place: Place<'_>, wal_end: Lsn) -> Way {
        let now = Instant::now();
        let behind = wal_end.as_u64().saturating_sub(place.decoded.as_u64());
        let is_near = wal_end.is_valid() && behind <= NEAR_BYTES;
        let is_ready = is_near && now >= self.not_before && place.catalog.is_past_look();
        self.set_ready(is_ready);
        if !is_ready || self.shared.ready.load(Ordering::Acquire) < 2 {
            self.hold = None;
            return Way::Alone;
        }
        let mut pass = self.shared.pass.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(commands) = pass.as_ref().filter(|commands| !commands.is_closed()) else {
            let (commands, said) = mpsc::unbounded_channel();
            *pass = Some(commands);
            self.hold = None;
            return Way::Found(said);
        };
        let Some(hold) = &mut self.hold else {
            let (hold, answer) = oneshot::channel();
            if commands.send(Command::Hold(hold)).is_ok() {
                self.hold = Some(Hold { answer, at: None, until: now + HOLD_USED });
            }
            return Way::Alone;
        };
        match hold.answer.try_recv() {
            Ok(at) => hold.at = Some(at),
            Err(oneshot::error::TryRecvError::Closed) if hold.at.is_none() => {
                self.hold = None;
                return Way::Alone;
            }
            Err(_) => {}
        }
        let ahead = hold.at.and_then(|at| place.decoded.as_u64().checked_sub(at.as_u64()));
        if ahead.is_some_and(|bytes| bytes <= NEAR_BYTES) {
            self.hold = None;
            return Way::Join(commands.clone());
        }
        // Or the pass lags behind: who waited for it would, too.
        if now >= hold.until || ahead.is_some() {
            self.hold = None;
            drop(pass);
            self.rest();
        }
        Way::Alone
    }

    /// Whether somebody waits for this one.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.hold.is_some()
    }

    /// Stays alone for a while.
    fn rest(&mut self) {
        self.set_ready(false);
        self.not_before = Instant::now() + REST;
    }

    fn set_ready(&mut self, is_ready: bool) {
        match (mem::replace(&mut self.is_ready, is_ready), is_ready) {
            (false, true) => self.shared.ready.fetch_add(1, Ordering::AcqRel),
            (true, false) => self.shared.ready.fetch_sub(1, Ordering::AcqRel),
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
#[derive(Debug)]
pub(crate) struct Joining {
    decoding: Decoding,
    out: mpsc::Sender<Block>,
    heard: Arc<Heard>,
    done: oneshot::Sender<Outcome>,
}

/// How it ended for one of them.
#[derive(Debug)]
enum Outcome {
    Alone(Box<Decoding>),
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
pub(crate) struct Part<'a> {
    pub(crate) out: &'a mpsc::Sender<Block>,
    pub(crate) heard: &'a Arc<Heard>,
}

/// Takes part in a pass until it is better to go on alone. Dropped before, it leaves.
///
/// # Errors
/// What decoding for this one fails with, or for all.
pub(crate) async fn take_part(
    commands: mpsc::UnboundedSender<Command>,
    decoding: Decoding,
    part: &Part<'_>,
) -> Result<Decoding, Error> {
    let (done, outcome) = oneshot::channel();
    let _leaving = Leaving(commands.clone());
    let joining = Joining { decoding, out: part.out.clone(), heard: Arc::clone(part.heard), done };
    if let Err(mpsc::error::SendError(Command::Join(joining))) =
        commands.send(Command::Join(Box::new(joining)))
    {
        return Ok(rested(joining.decoding));
    }
    ended(outcome.await)
}

/// The same for who begins it, with the stream that it is to read.
///
/// # Errors
/// As of [`take_part`].
pub(crate) async fn found(
    commands: mpsc::UnboundedReceiver<Command>,
    stream: Stream,
    decoding: Decoding,
    part: &Part<'_>,
) -> Result<Decoding, Error> {
    let (done, outcome) = oneshot::channel();
    let (decoder, outlet) = decoding.into_parts();
    let shared = Arc::clone(&outlet.sharing.shared);
    let (pass, id) = Pass::new(decoder);
    let seat = Seat { outlet, out: part.out.clone(), heard: Arc::clone(part.heard), done };
    let hub = Hub {
        progress: Arc::new(Progress::starting_at(pass.decoded())),
        pass,
        seats: HashMap::from([(id, seat)]),
        commands,
        heard: Arc::default(),
        held_until: None,
    };
    let leaving = shared.pass.lock().unwrap_or_else(PoisonError::into_inner).clone().map(Leaving);
    tokio::spawn(hub.run(stream));
    let outcome = ended(outcome.await);
    drop(leaving);
    outcome
}

fn ended(outcome: Result<Outcome, oneshot::error::RecvError>) -> Result<Decoding, Error> {
    match outcome {
        Ok(Outcome::Alone(decoding)) => Ok(rested(*decoding)),
        Ok(Outcome::Failed(error)) => Err(error),
        Err(_) => Err(Kind::Pass("it broke down".to_owned()).into()),
    }
}

fn rested(mut decoding: Decoding) -> Decoding {
    decoding.sharing().rest();
    decoding
}

/// A subscription that takes part.
struct Seat {
    outlet: Outlet,
    out: mpsc::Sender<Block>,
    heard: Arc<Heard>,
    done: oneshot::Sender<Outcome>,
}

/// A pass under way.
struct Hub {
    pass: Pass,
    seats: HashMap<MemberId, Seat>,
    commands: mpsc::UnboundedReceiver<Command>,
    /// What is said of the stream: the least of what all say of theirs.
    progress: Arc<Progress>,
    heard: Arc<Heard>,
    held_until: Option<Instant>,
}

impl Hub {
    async fn run(mut self, mut stream: Stream) {
        let (blocks, mut wal) = mpsc::channel(QUEUE_BLOCKS);
        let stop = CancellationToken::new();
        let _stopping = stop.clone().drop_guard();
        let (progress, heard) = (Arc::clone(&self.progress), Arc::clone(&self.heard));
        tokio::spawn(async move {
            if let Err(error) = stream.run(&progress, &heard, &blocks, &stop).await {
                tracing::warn!("{}; each subscription goes on alone", base::with_causes(&error));
            }
            // The server may be gone.
            let _ = stream.finish(&progress).await;
        });
        while !self.seats.is_empty() {
            let held = self.held_until.filter(|until| *until > Instant::now());
            let waits = self.seats.values().any(|seat| seat.outlet.waits_for_room());
            let patience = if waits { LOOK_OFTEN } else { LOOK };
            tokio::select! {
                said = self.commands.recv() => match said {
                    Some(command) => self.command(command),
                    // It failed.
                    None => break,
                },
                block = wal.recv(), if held.is_none() => {
                    let Some(block) = block else { break };
                    if let Err(error) = self.take(&block) {
                        self.fail(error);
                    }
                    drop(block);
                    self.look(wal.is_empty());
                }
                () = tokio::time::sleep(patience) => self.look(true),
            }
        }
        self.disperse();
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Hold(answer) => {
                if answer.send(self.pass.decoded()).is_ok() {
                    self.held_until = Some(Instant::now() + HOLD_MAX);
                }
            }
            Command::Join(joining) => {
                // Others that it waits for have time left to say so.
                self.held_until = None;
                let Joining { decoding, out, heard, done } = *joining;
                let (decoder, outlet) = decoding.into_parts();
                let id = self.pass.join(decoder);
                self.seats.insert(id, Seat { outlet, out, heard, done });
                if let Err(error) = self.push(&[]) {
                    self.fail(error);
                }
            }
            Command::Look => self.look(true),
        }
    }

    fn take(&mut self, block: &Block) -> Result<(), output::Error> {
        for input in &block.inputs {
            if let Input::Message(bytes) = input {
                self.push(bytes)?;
            }
        }
        Ok(())
    }

    /// Hands WAL to the pass, and what comes out to whose it is.
    fn push(&mut self, bytes: &[u8]) -> Result<(), output::Error> {
        let Hub { pass, seats, .. } = self;
        let mut steps = pass.push(bytes)?;
        let (mut gone, mut full) = (None, None);
        loop {
            if let Some(id) = gone.take() {
                steps.leave(id);
                seats.remove(&id);
            }
            if let Some(id) = full.take()
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
                        seat.end(Outcome::Failed(error.into()));
                    }
                }
            }
        }
        Ok(())
    }

    /// What has to be done for each, beside handing over.
    fn look(&mut self, nothing_waits: bool) {
        let wal_end = self.heard.wal_end();
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
            seat.outlet.came_to(place, nothing_waits, &seat.out);
            if let Err(error) = seat.outlet.look(place) {
                failed.push((*id, error));
            }
            let durable = seat.outlet.flushed();
            flushed = Some(flushed.map_or(durable, |least: Lsn| least.min(durable)));
        }
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
            self.seats.remove(&id);
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

    /// What concerns all is told to one, and the others find it out from what they have kept. Nobody joins any more.
    fn fail(&mut self, error: output::Error) {
        self.commands.close();
        let text = base::with_causes(&error);
        let mut first = Some(error);
        for (_, seat) in self.seats.drain() {
            let error = first.take().map_or_else(|| Kind::Pass(text.clone()).into(), Error::from);
            seat.end(Outcome::Failed(error));
        }
    }
}

impl Seat {
    fn name(&self) -> &SubscriptionName {
        &self.outlet.name
    }

    fn alone(self, decoder: output::Decoder) {
        let Seat { outlet, done, .. } = self;
        // Who it is for may have gone.
        let _ = done.send(Outcome::Alone(Box::new(Decoding::of(decoder, outlet))));
    }

    fn end(self, outcome: Outcome) {
        let _ = self.done.send(outcome);
    }
}
