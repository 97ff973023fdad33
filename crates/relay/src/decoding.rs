//! One pass over the kept WAL for all forms.
//!
//! ```text
//! anchor --> Decoder --alone, up to the pass--> hold --> join --> Hub: Pass --> Feed, Feed, ...
//!                        ^------ was too late ------'             '--> anchors
//! ```
//! The hub is a thread that has the pass. A form that is new, or that somebody comes back to who is
//! far behind, is decoded by a thread of its own until it is where the pass is. Then the hub holds
//! still for a moment and takes it over. So a subscriber that is 100 GB behind costs time, and
//! nobody waits for it. A form that is decoded alone runs only a little ahead of its readers. The
//! pass waits for no reader.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use base::{Lsn, Oid, PgTimestamp, with_causes};
use output::{Decoder, MemberId, Pass, RefusedTable, Step};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use track::Limits;
use wal_dir::{Piece, Reader, Readers};

use crate::anchors::Anchors;
use crate::feed::{Feed, FormHandle, FormId};

/// How long the hub holds still for a form that wants to join.
const HOLD_MAX: Duration = Duration::from_millis(500);
/// How long a form that is decoded alone waits for its readers before it looks whether it has
/// ended.
const LOOK: Duration = Duration::from_millis(100);

/// The anchors of a database, which the hub makes and slots use.
pub type SharedAnchors = Arc<Mutex<Anchors>>;

/// Counts of what decoding did.
#[derive(Debug, Default)]
pub struct DecodingFigures {
    /// Forms that were decoded alone until they joined.
    pub joined: AtomicU64,
    /// Attempts to join that came too late.
    pub refused: AtomicU64,
    /// Bytes of WAL that the pass has read.
    pub pass_bytes: AtomicU64,
    /// Bytes of WAL that forms have read alone.
    pub alone_bytes: AtomicU64,
}

/// Decodes the WAL of a directory. Dropping it ends all forms.
pub struct Decoding {
    commands: mpsc::UnboundedSender<Command>,
    readers: Readers,
    figures: Arc<DecodingFigures>,
    next: AtomicU64,
}

enum Command {
    /// Hold still until the other end is dropped, and say how far the pass has read.
    Hold {
        answer: oneshot::Sender<Option<Lsn>>,
        held: oneshot::Receiver<()>,
    },
    Join(Box<Joining>),
    Leave(FormId),
    /// Once the form is in the pass, say which published tables it cannot send rows of.
    Survey(FormId, oneshot::Sender<Vec<RefusedTable>>),
    /// End all forms of the pass, and answer.
    EndAll {
        why: String,
        answer: oneshot::Sender<()>,
    },
}

struct Joining {
    form: FormId,
    database: Oid,
    anchors: SharedAnchors,
    decoder: Decoder,
    feed: Feed,
    /// Gets both back if they come too late.
    refused: oneshot::Sender<(Decoder, Feed)>,
}

/// A form that is a member of the pass, or waits to be one.
struct Seat {
    form: FormId,
    database: Oid,
    anchors: SharedAnchors,
    feed: Feed,
    refused: Option<oneshot::Sender<(Decoder, Feed)>>,
}

impl Decoding {
    /// Starts the hub. Must be called in a tokio runtime.
    #[must_use]
    pub fn start(readers: Readers) -> Decoding {
        let (commands, received) = mpsc::unbounded_channel();
        let figures: Arc<DecodingFigures> = Arc::default();
        let hub = Hub {
            runtime: Handle::current(),
            readers: readers.clone(),
            commands: received,
            figures: Arc::clone(&figures),
            running: None,
            seats: HashMap::new(),
            surveys: Vec::new(),
        };
        spawn("relay hub", move || hub.run());
        Decoding { commands, readers, figures, next: AtomicU64::new(0) }
    }

    /// Counts of what was done.
    #[must_use]
    pub fn figures(&self) -> &DecodingFigures {
        &self.figures
    }

    /// Adds a form, which `decoder` decodes from an anchor on once it is started. Its track has
    /// every transaction that ends at or behind `begins_at`.
    pub fn add(
        &self,
        decoder: Decoder,
        (database, anchors): (Oid, SharedAnchors),
        begins_at: Lsn,
        limits: Limits,
    ) -> Starting {
        let form = FormId(self.next.fetch_add(1, Ordering::Relaxed));
        let from = decoder.position();
        tracing::debug!("form {} is decoded alone from {from}, for what ends behind {begins_at}", form.0);
        let feed = Feed::new(form, begins_at, decoder.options().two_phase_at, limits);
        let alone = Alone {
            form,
            database,
            anchors,
            readers: self.readers.clone(),
            commands: self.commands.clone(),
            figures: Arc::clone(&self.figures),
        };
        Starting { alone, decoder, feed }
    }

    /// Ends all forms. Those that are decoded alone must have been told before.
    pub(crate) async fn end_all(&self, why: &str) {
        let (answer, answered) = oneshot::channel();
        let _ = self.commands.send(Command::EndAll { why: why.to_owned(), answer });
        let _ = answered.await;
    }

    /// Published tables of which a form cannot send rows, by the catalogs of the pass. The answer
    /// comes once the form has joined the pass, and never if it ends before.
    pub fn refused(&self, form: FormId) -> oneshot::Receiver<Vec<RefusedTable>> {
        let (answer, answered) = oneshot::channel();
        let _ = self.commands.send(Command::Survey(form, answer));
        answered
    }

    /// Ends a form that nobody reads.
    pub fn remove(&self, form: FormId) {
        let _ = self.commands.send(Command::Leave(form));
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) {
    if let Err(error) = thread::Builder::new().name(name.to_owned()).spawn(run) {
        tracing::error!("no thread for {name}: {error}");
    }
}

/// A form that nothing is decoded for yet, so that readers can enter who need all of it.
#[must_use = "nothing is decoded before it is started"]
pub struct Starting {
    alone: Alone,
    decoder: Decoder,
    feed: Feed,
}

impl Starting {
    /// What its senders need.
    #[must_use]
    pub fn handle(&self) -> FormHandle {
        self.feed.handle()
    }

    /// Begins to decode.
    pub fn start(self) -> (FormId, FormHandle) {
        let Starting { alone, decoder, feed } = self;
        let (form, handle) = (alone.form, feed.handle());
        spawn("relay form", move || alone.run(decoder, feed));
        (form, handle)
    }
}

/// A form that is decoded alone.
struct Alone {
    form: FormId,
    database: Oid,
    anchors: SharedAnchors,
    readers: Readers,
    commands: mpsc::UnboundedSender<Command>,
    figures: Arc<DecodingFigures>,
}

impl Alone {
    fn run(self, mut decoder: Decoder, mut feed: Feed) {
        loop {
            match self.try_to_join(decoder, feed) {
                Some(back) => {
                    self.figures.refused.fetch_add(1, Ordering::Relaxed);
                    (decoder, feed) = back;
                }
                None => return,
            }
        }
    }

    /// Reads up to the pass and joins it. Returns both if it was too late for that.
    fn try_to_join(&self, mut decoder: Decoder, mut feed: Feed) -> Option<(Decoder, Feed)> {
        let mut reader = match self.readers.reader(decoder.position()) {
            Ok(reader) => reader,
            Err(error) => return self.failed(feed, error.to_string()),
        };
        if let Err(why) = self.read(&mut reader, &mut decoder, &mut feed, None) {
            return self.failed(feed, why);
        }
        // The pass will be asked, and has the answers then. What is wrong here is wrong there.
        let _ = decoder.refused();
        // It is at the end of what is written. The pass holds still while the last bit is read.
        let (answer, at) = oneshot::channel();
        let (hold, held) = oneshot::channel();
        self.commands.send(Command::Hold { answer, held }).ok()?;
        let at = at.blocking_recv().ok()?;
        if let Err(why) = self.read(&mut reader, &mut decoder, &mut feed, at) {
            return self.failed(feed, why);
        }
        let (refused, back) = oneshot::channel();
        let (form, database, anchors) = (self.form, self.database, Arc::clone(&self.anchors));
        let joining = Joining { form, database, anchors, decoder, feed, refused };
        self.commands.send(Command::Join(Box::new(joining))).ok()?;
        drop(hold);
        let back = back.blocking_recv().ok();
        if back.is_none() {
            self.figures.joined.fetch_add(1, Ordering::Relaxed);
            let bytes = self.figures.alone_bytes.load(Ordering::Relaxed);
            tracing::debug!("form {} has joined the pass; forms have read {bytes} bytes alone", self.form.0);
        }
        back
    }

    fn failed(&self, feed: Feed, why: String) -> Option<(Decoder, Feed)> {
        feed.fail(why);
        None
    }

    /// Reads everything that is written, or up to a place.
    fn read(
        &self,
        reader: &mut Reader,
        decoder: &mut Decoder,
        feed: &mut Feed,
        until: Option<Lsn>,
    ) -> Result<(), String> {
        while until.is_none_or(|until| decoder.decoded() < until) {
            if feed.has_ended() {
                return Err("the form was ended".to_owned());
            }
            // Nobody waits for what comes next while all its readers are far behind.
            if until.is_none() && !feed.wait_for_readers(LOOK) {
                continue;
            }
            match reader.next().map_err(|error| with_causes(&error))? {
                Piece::Bytes(_, bytes) => {
                    self.figures.alone_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    feed.decode(decoder, bytes, until.is_none())?;
                    self.look_for_anchor(decoder, feed);
                }
                Piece::Dry => break,
            }
        }
        Ok(())
    }
}

impl Alone {
    /// A subscriber that is far behind confirms as it goes. What it has confirmed need not be
    /// decoded again, and its WAL need not stay.
    fn look_for_anchor(&self, decoder: &Decoder, feed: &Feed) {
        let mut anchors = self.anchors.lock().unwrap_or_else(PoisonError::into_inner);
        // Forms are ended before anchors go that know of WAL which is taken back.
        if feed.has_ended() {
            return;
        }
        if let Err(error) = anchors.look(decoder.place()) {
            warn_of_anchor(self.database, &error);
        }
    }
}

fn warn_of_anchor(database: Oid, error: &std::io::Error) {
    tracing::warn!(
        "cannot keep the catalogs of the database with OID {}: {error}; WAL is kept until they can be; make room in \
         the data directory",
        database.0
    );
}

/// See the module.
struct Hub {
    runtime: Handle,
    readers: Readers,
    commands: mpsc::UnboundedReceiver<Command>,
    figures: Arc<DecodingFigures>,
    /// The pass and its place in the WAL, if there are members.
    running: Option<(Pass, Reader)>,
    seats: HashMap<MemberId, Seat>,
    /// Questions about forms that are not in the pass yet.
    surveys: Vec<(FormId, oneshot::Sender<Vec<RefusedTable>>)>,
}

impl Hub {
    fn run(mut self) {
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.command(command),
                Err(mpsc::error::TryRecvError::Disconnected) => return,
                Err(mpsc::error::TryRecvError::Empty) => {
                    if !self.go_on() && !self.wait() {
                        return;
                    }
                }
            }
        }
    }

    /// Takes the next piece of WAL. Returns whether there was one.
    fn go_on(&mut self) -> bool {
        let Some((pass, reader)) = &mut self.running else { return false };
        let taken = match reader.next() {
            Ok(Piece::Dry) => return false,
            Ok(Piece::Bytes(_, bytes)) => {
                self.figures.pass_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                take(pass, &mut self.seats, bytes).map_err(|error| with_causes(&error))
            }
            Err(error) => Err(error.to_string()),
        };
        match taken {
            Ok(()) => {
                self.anchors();
                self.survey();
                self.rest_if_empty();
            }
            Err(why) => self.fail(&why),
        }
        true
    }

    /// Waits for WAL or a command. Returns false when nobody commands any more.
    fn wait(&mut self) -> bool {
        let Hub { runtime, running, commands, .. } = self;
        let command = runtime.block_on(async {
            match running {
                None => Some(commands.recv().await),
                Some((_, reader)) => tokio::select! {
                    command = commands.recv() => Some(command),
                    () = reader.more() => None,
                },
            }
        });
        match command {
            None => true,
            Some(Some(command)) => {
                self.command(command);
                true
            }
            Some(None) => false,
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Hold { answer, held } => {
                let at = self.running.as_ref().map(|(pass, _)| pass.decoded());
                if answer.send(at).is_ok() && at.is_some() {
                    let hold = async { tokio::time::timeout(HOLD_MAX, held).await };
                    let _ = self.runtime.block_on(hold);
                }
            }
            Command::Join(joining) if joining.feed.has_ended() => {}
            Command::Join(joining) => {
                self.join(*joining);
                self.survey();
            }
            Command::Survey(form, answer) => {
                self.surveys.push((form, answer));
                self.survey();
            }
            Command::EndAll { why, answer } => {
                self.fail(&why);
                let _ = answer.send(());
            }
            Command::Leave(form) => {
                let gone: Vec<MemberId> =
                    self.seats.iter().filter(|(_, seat)| seat.form == form).map(|(id, _)| *id).collect();
                for id in gone {
                    self.seats.remove(&id);
                    if let Some((pass, _)) = &mut self.running {
                        pass.leave(id);
                    }
                }
                self.rest_if_empty();
            }
        }
    }

    fn join(&mut self, joining: Joining) {
        let Joining { form, database, anchors, decoder, feed, refused } = joining;
        let seat = Seat { form, database, anchors, feed, refused: Some(refused) };
        if let Some((pass, _)) = &mut self.running {
            let id = pass.join(decoder);
            self.seats.insert(id, seat);
            // It may be there already.
            let joined = take(pass, &mut self.seats, &[]);
            if let Err(error) = joined {
                self.fail(&with_causes(&error));
            }
            return;
        }
        let (pass, id) = Pass::new(decoder);
        match self.readers.reader(pass.position()) {
            Ok(reader) => {
                self.seats.insert(id, Seat { refused: None, ..seat });
                self.running = Some((pass, reader));
            }
            Err(error) => seat.feed.fail(error.to_string()),
        }
    }

    /// Looks for anchors, once for each database. Without room for one, slots go on naming those
    /// that are there, and the server's next report of running transactions brings another attempt.
    fn anchors(&self) {
        let Some((pass, _)) = &self.running else { return };
        let mut seen: Vec<Oid> = Vec::new();
        for (id, seat) in &self.seats {
            if seen.contains(&seat.database) {
                continue;
            }
            let Some(place) = pass.place(*id) else { continue };
            seen.push(seat.database);
            let mut anchors = seat.anchors.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = anchors.look(place) {
                warn_of_anchor(seat.database, &error);
            }
        }
    }

    /// Answers questions about forms that are in the pass.
    fn survey(&mut self) {
        let Hub { running, seats, surveys, .. } = self;
        let Some((pass, _)) = running.as_mut().filter(|_| !surveys.is_empty()) else { return };
        for (form, answer) in std::mem::take(surveys) {
            let seated = seats.iter().find(|(_, seat)| seat.form == form && seat.refused.is_none());
            match seated.map(|(id, _)| pass.refused(*id)) {
                Some(Ok(tables)) => drop(answer.send(tables)),
                // The stream says what is wrong with the catalogs.
                Some(Err(_)) => {}
                None if answer.is_closed() => {}
                None => surveys.push((form, answer)),
            }
        }
    }

    /// Without members there is no pass.
    fn rest_if_empty(&mut self) {
        if self.running.as_ref().is_some_and(|(pass, _)| pass.is_empty()) {
            self.running = None;
        }
    }

    /// Ends all forms of the pass.
    fn fail(&mut self, why: &str) {
        self.running = None;
        self.seats.drain().for_each(|(_, seat)| seat.feed.fail(why.to_owned()));
    }
}

/// Hands bytes to the pass, and what comes out to the feeds.
fn take(pass: &mut Pass, seats: &mut HashMap<MemberId, Seat>, bytes: &[u8]) -> Result<(), output::Error> {
    let now = PgTimestamp::now();
    let mut steps = pass.push(bytes)?;
    let (mut describes, mut failed) = (None, None);
    loop {
        if let Some((id, why)) = failed.take() {
            steps.leave(id);
            if let Some(seat) = seats.remove(&id) {
                seat.feed.fail(why);
            }
        }
        if let Some(id) = describes.take() {
            steps.describe_again(id);
        }
        let Some(step) = steps.next()? else { break };
        match step {
            Step::Output(id, output) => match seats.get_mut(&id).map(|seat| seat.feed.take(&output, now)) {
                Some(Ok(true)) => describes = Some(id),
                Some(Err(why)) => failed = Some((id, why)),
                Some(Ok(false)) | None => {}
            },
            Step::Joined(id) => {
                if let Some(seat) = seats.get_mut(&id) {
                    seat.refused = None;
                }
            }
            Step::Refused(id, decoder, _) => {
                if let Some(Seat { feed, refused: Some(refused), .. }) = seats.remove(&id) {
                    let _ = refused.send((*decoder, feed));
                }
            }
            Step::Failed(id, error) => {
                if let Some(seat) = seats.remove(&id) {
                    seat.feed.fail(with_causes(&error));
                }
            }
            Step::Lost(id, why) => {
                if let Some(seat) = seats.remove(&id) {
                    seat.feed.fail(why);
                }
            }
        }
    }
    let decoded = pass.decoded();
    for seat in seats.values_mut().filter(|seat| seat.refused.is_none()) {
        seat.feed.flush(decoded);
    }
    Ok(())
}
