//! One subscription's link to the others of this process that follow the same server.
//!
//! A subscription near the end of WAL is *ready*. When two are ready, the first one *founds* a
//! pass. A later subscription, a *joiner*, asks the pass to *hold*. It reads on alone until it has
//! come to the pass's position, and the pass takes it over at that record. The module `pass` has
//! the pass itself.
//!
//! [`Passes`] is what the subscriptions of a process share. What goes to a pass and comes back from
//! it is here, too: a [`Joining`], and its [`SeatOutcome`].

use std::collections::HashMap;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use base::{Lsn, SubscriptionName};
use output::Place;
use source::stream::Heard;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use txn::Block;

use crate::decoding::{Decoding, LOOK_OFTEN, Others};
use crate::error::Error;
use crate::shipping::Shipping;

/// A subscription is near the end of WAL if it is behind by less than this.
pub(crate) const NEAR_BYTES: u64 = 4 << 20;
/// A joiner gives up earlier, so that it never joins after the pass's hold has expired.
const HOLD_USED: Duration = Duration::from_millis(1500);
/// Rest before a subscription tries to join again, if it could not join, or if its queue was full.
/// The rest doubles each time, up to [`RESTS_MAX`] times, unless the subscription took part for
/// [`SETTLED`].
const REST: Duration = Duration::from_secs(10);
const RESTS_MAX: u32 = 5;
const SETTLED: Duration = Duration::from_secs(60);

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
        Sharing { followers, _part: part, is_ready: false, not_before, rests: 0, hold: None }
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

/// What a subscription that decoded alone does next.
#[derive(Debug)]
pub(crate) enum SharingStep {
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

impl Others for Sharing {
    type Step = SharingStep;

    /// Whether the pass holds, or has been asked to hold, for this subscription.
    fn is_waited_for(&self) -> bool {
        self.hold.is_some()
    }

    fn look(&mut self, place: Place<'_>, wal_end: Lsn) -> Option<SharingStep> {
        let now = Instant::now();
        let behind = wal_end.as_u64().saturating_sub(place.decoded.as_u64());
        let is_near = wal_end.is_valid() && behind <= NEAR_BYTES;
        let is_ready = is_near && now >= self.not_before && place.catalog.is_past_look();
        self.set_ready(is_ready);
        if !is_ready || self.followers.ready.load(Ordering::Acquire) < 2 {
            self.hold = None;
            return None;
        }
        let mut pass = self.followers.pass.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(commands) = pass.as_ref().filter(|commands| !commands.is_closed()) else {
            let (commands, said) = mpsc::unbounded_channel();
            *pass = Some(commands);
            self.hold = None;
            return Some(SharingStep::Found(said));
        };
        let Some(hold) = &mut self.hold else {
            let ((say, answer), (holding, held)) = (oneshot::channel(), oneshot::channel());
            if commands.send(Command::Hold { near: place.decoded, answer: say, held }).is_ok() {
                self.hold = Some(Hold { answer, at: None, until: now + HOLD_USED, _held: holding });
            }
            return None;
        };
        match hold.answer.try_recv() {
            Ok(at) => hold.at = Some(at),
            Err(TryRecvError::Closed) if hold.at.is_none() => {
                self.hold = None;
                return None;
            }
            Err(_) => {}
        }
        let ahead = hold.at.and_then(|at| place.decoded.as_u64().checked_sub(at.as_u64()));
        if now < hold.until && ahead.is_some_and(|bytes| bytes <= NEAR_BYTES) {
            return Some(SharingStep::Join(commands.clone()));
        }
        // In the other case the pass lags behind, and would delay a subscription that waited for
        // it.
        if now >= hold.until || ahead.is_some() {
            drop(pass);
            self.rest();
        }
        None
    }
}

impl Sharing {
    /// The way to send commands to the pass, if there is one.
    pub(crate) fn commands(&self) -> Option<mpsc::UnboundedSender<Command>> {
        self.followers.pass.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that the pass has taken over the subscription, and need not hold for it any more.
    pub(crate) fn has_joined(&mut self) {
        self.hold = None;
    }

    /// Notes that the subscription decodes alone again, after it took part in a pass since `since`,
    /// or tried to.
    pub(crate) fn is_alone_since(&mut self, since: Instant) {
        if since.elapsed() >= SETTLED {
            self.rests = 0;
        }
        self.rest();
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

/// One subscription's decoding, and its link to the others.
#[derive(Debug)]
pub(crate) struct LinkedDecoding {
    pub(crate) decoding: Decoding,
    pub(crate) sharing: Sharing,
}

/// A subscription that is about to join a pass.
pub(crate) struct Joining {
    pub(crate) linked: LinkedDecoding,
    pub(crate) out: mpsc::Sender<Block>,
    pub(crate) heard: Arc<Heard>,
    pub(crate) streams: Arc<dyn Streams>,
    pub(crate) done: oneshot::Sender<SeatOutcome>,
}

/// How taking part ended for one subscription.
#[derive(Debug)]
pub(crate) enum SeatOutcome {
    Alone(Box<LinkedDecoding>),
    /// The receiver of the messages has gone.
    Gone,
    Failed(Error),
}

/// Starts a stream of WAL that needs no slot.
pub(crate) trait Streams: Send + Sync {
    /// Starts at `at`, which is behind the record at `last`.
    fn start(&self, at: Lsn, last: Lsn) -> Starting;
}

pub(crate) type Starting = Pin<Box<dyn Future<Output = Result<Shipping, Error>> + Send>>;
