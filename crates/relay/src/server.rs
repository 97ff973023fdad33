//! The relay as a whole: WAL comes, clients come, and what nobody needs goes.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{Lsn, PgVersion, with_causes};
use client::{ConnInfo, Replication, Wire};
use listener::{Arrival, Door, Limits, Rules, Socket, Tls, UserMap};
use proto::frame::ServerError;
use proto::startup::Purpose;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wal_dir::Writer;

use crate::archive::WalArchive;
use crate::cancel::Cancels;
use crate::databases::{Databases, TrackLimits};
use crate::decoding::Decoding;
use crate::fork::{leave_timeline, take_back};
use crate::passthrough;
use crate::receiver::{Received, Receiver, ReceiverError, ReceiverSettings};
use crate::senders::Senders;
use crate::session::{Context, MAKING_MAX, serve_replication};
use crate::slots::{Retention, Slots};
use crate::standbys;
use crate::tidy::tidy;
use crate::together::Together;
use crate::trim::{WalKeep, trim};
use crate::upstream::Upstream;
use crate::views::Views;

/// Between two attempts to receive WAL.
const RETRY: Duration = Duration::from_secs(1);
/// Between two warnings of the same segment that the archive lacks.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// How long the relay waits for its publisher when it starts.
const FIRST_WAL: Duration = Duration::from_secs(60);

/// What a relay is made of.
pub struct RelaySettings {
    /// The publisher, as the relay connects.
    pub source: ConnInfo,
    /// The physical slot at the publisher, and the connection's name.
    pub name: String,
    /// Where everything is kept.
    pub data_dir: PathBuf,
    /// Who may connect.
    pub rules: Rules,
    /// Users that have another login at the publisher.
    pub user_map: UserMap,
    /// What encrypts connections.
    pub tls: Option<Tls>,
    /// How many may connect.
    pub limits: Limits,
    /// What each form's track may keep.
    pub tracks: TrackLimits,
    /// `wal_receiver_status_interval`, `wal_receiver_timeout`, `wal_sender_timeout`.
    pub timeouts: Timeouts,
    /// When slots are given up.
    pub retention: Retention,
    /// What has WAL that neither the publisher nor the data directory has any more.
    pub archive: Option<ArchiveSettings>,
    /// `synchronized_standby_slots`: physical slots whose standbys must have WAL first.
    pub synchronized_standby_slots: Vec<String>,
}

/// The archive that a relay falls back on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveSettings {
    /// `wal_archive`: the directory that the publisher's `archive_command` fills.
    pub dir: PathBuf,
    /// How much WAL stays in the data directory nevertheless.
    pub keep: WalKeep,
}

/// Times of PostgreSQL's settings of the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Report to the publisher at least this often.
    pub wal_receiver_status_interval: Duration,
    /// Give the publisher up after this much silence.
    pub wal_receiver_timeout: Duration,
    /// Give a subscriber up after this much silence.
    pub wal_sender_timeout: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            wal_receiver_status_interval: Duration::from_secs(10),
            wal_receiver_timeout: Duration::from_secs(60),
            wal_sender_timeout: Duration::from_secs(60),
        }
    }
}

/// Why a relay does not start, or ends.
#[derive(Debug)]
pub enum RelayError {
    /// The publisher cannot be used.
    Publisher(client::Error),
    /// It does not say who it is.
    Source(source::Error),
    /// The publisher answers what no server answers.
    Answer(String),
    /// A file or directory cannot be used.
    Files(PathBuf, io::Error),
    /// The directory belongs to another publisher.
    OtherSystem {
        /// The directory.
        dir: PathBuf,
        /// The system identifier that it has.
        known: String,
        /// That of the publisher.
        system: u64,
    },
    /// What was given as an archive is a server's own WAL.
    ArchiveIsPgWal(PathBuf),
    /// WAL cannot be kept.
    Wal(wal_dir::Error),
    /// WAL cannot be received.
    Receiver(ReceiverError),
}

impl RelayError {
    /// Whether a relay that serves tries again by itself.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            RelayError::Receiver(error) => error.is_passing(),
            RelayError::Wal(error) => error.is_full(),
            _ => false,
        }
    }
}

impl fmt::Display for RelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RelayError::Publisher(error) => write!(f, "cannot use the publisher: {error}"),
            RelayError::Source(error) => error.fmt(f),
            RelayError::Answer(what) => write!(f, "the publisher answered {what}"),
            RelayError::Files(path, error) => write!(f, "cannot use {}: {error}", path.display()),
            RelayError::OtherSystem { dir, known, system } => write!(
                f,
                "{} has WAL and slots of the system {known}, and the publisher is the system {system}: \
                 give another --data-dir, or the publisher that this one is of",
                dir.display()
            ),
            RelayError::ArchiveIsPgWal(dir) => write!(
                f,
                "{} is a server's own pg_wal, which has WAL that may not be flushed: give the directory that \
                 archive_command or pg_receivewal fills as wal_archive",
                dir.display()
            ),
            RelayError::Wal(error) => error.fmt(f),
            RelayError::Receiver(error) => error.fmt(f),
        }
    }
}

impl From<wal_dir::Error> for RelayError {
    fn from(error: wal_dir::Error) -> RelayError {
        RelayError::Wal(error)
    }
}

impl std::error::Error for RelayError {}

/// A relay that is ready for clients.
pub struct Relay {
    synchronized_standby_slots: Vec<String>,
    trims: Option<(WalArchive, WalKeep)>,
    context: Arc<Context>,
    door: Arc<Door>,
    receiver: Receiver,
}

/// Who may connect to a relay, and as whom they log in at the publisher.
pub struct RelayAccess {
    door: Arc<Door>,
    context: Arc<Context>,
}

impl RelayAccess {
    /// Replaces the rules. Connections that are there stay.
    pub fn reload(&self, rules: Rules, tls: Option<Tls>, user_map: UserMap) {
        self.door.reload(rules, tls);
        self.context.upstream.reload(user_map);
    }
}

/// What the publisher says of itself.
struct Publisher {
    version: PgVersion,
    system: u64,
    segment_size: u64,
    parameters: Vec<(String, String)>,
}

impl Relay {
    /// Opens the data directory and connects. `stop` ends everything later.
    ///
    /// # Errors
    /// The publisher or the directory cannot be used.
    pub async fn open(settings: RelaySettings, stop: CancellationToken) -> Result<Relay, RelayError> {
        let publisher = ask(&settings.source).await?;
        let dir = &settings.data_dir;
        let files = |path: PathBuf| move |error| RelayError::Files(path, error);
        let opened = Writer::open(&dir.join("wal"), publisher.segment_size).map_err(RelayError::Wal)?;
        belongs_to(dir, publisher.system)?;
        let readers = opened.0.readers();
        let archive = settings.archive.as_ref().map(|archive| archived(archive, publisher.segment_size));
        let archive = archive.transpose()?;
        if let Some(archive) = &archive {
            readers.fall_back_on(Arc::new(archive.clone()));
        }
        let keep = settings.archive.map(|archive| archive.keep).filter(|keep| keep.is_limited());
        let trims = archive.clone().zip(keep);
        if !settings.synchronized_standby_slots.is_empty() {
            readers.limit(Lsn::INVALID);
        }
        let decoding = Decoding::start(readers.clone());
        let slots = dir.join("slots");
        let slots = Slots::open(&slots, publisher.version.major()).map_err(files(slots.clone()))?;
        let source = settings.source.clone();
        let servers = (publisher.version, publisher.segment_size);
        let databases = Databases::open(dir, source, servers, decoding, settings.tracks);
        let databases = databases.map_err(files(dir.clone()))?;
        let received: Arc<Received> = Arc::default();
        let receiver = ReceiverSettings {
            source: settings.source.clone(),
            slot: settings.name.clone(),
            application_name: settings.name.clone(),
            status_interval: settings.timeouts.wal_receiver_status_interval,
            timeout: settings.timeouts.wal_receiver_timeout,
            archive,
        };
        let system = Some(publisher.system);
        let receiver = Receiver::new(receiver, opened, system, Arc::clone(&received));
        let senders = Senders::default();
        let limit = settings.retention.max_slot_wal_keep_bytes;
        let limit = limit.map(|most| (Arc::clone(&received), most));
        let context = Context {
            upstream: Upstream::new(settings.source, settings.user_map),
            major: publisher.version.major(),
            system: publisher.system,
            parameters: publisher.parameters,
            views: Views::limited(slots.clone(), senders.clone(), limit),
            slots,
            databases,
            senders,
            cancels: Cancels::default(),
            received,
            readers,
            together: Together::new(MAKING_MAX),
            waits_for_standbys: !settings.synchronized_standby_slots.is_empty(),
            retention: settings.retention,
            wal_sender_timeout: settings.timeouts.wal_sender_timeout,
            epoch: Mutex::new(stop.child_token()),
            stop,
        };
        let door = Arc::new(Door::new(settings.rules, settings.tls, settings.limits));
        let context = Arc::new(context);
        let synchronized_standby_slots = settings.synchronized_standby_slots;
        Ok(Relay { synchronized_standby_slots, trims, context, door, receiver })
    }

    /// Who may connect, to reload it.
    #[must_use]
    pub fn access(&self) -> RelayAccess {
        RelayAccess { door: Arc::clone(&self.door), context: Arc::clone(&self.context) }
    }

    /// What all connections share.
    #[must_use]
    pub fn context(&self) -> Arc<Context> {
        Arc::clone(&self.context)
    }

    /// Serves clients that come to `socket`, until it is stopped.
    ///
    /// # Errors
    /// WAL cannot be received or kept any more.
    pub async fn run(self, socket: TcpListener) -> Result<(), RelayError> {
        let Relay { synchronized_standby_slots, trims, context, door, mut receiver } = self;
        let receiving = {
            let context = Arc::clone(&context);
            async move { receive(&mut receiver, &context).await }
        };
        let receiving = tokio::spawn(receiving);
        // The first commands of a client need WAL to be coming.
        let come = async {
            while !context.received.written().is_valid() && !receiving.is_finished() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = tokio::time::timeout(FIRST_WAL, come).await;
        tokio::spawn(tidy(Arc::clone(&context)));
        if let Some((archive, keep)) = trims {
            tokio::spawn(trim(Arc::clone(&context), archive, keep));
        }
        if !synchronized_standby_slots.is_empty() {
            let readers = context.readers.clone();
            tokio::spawn(standbys::hold(Arc::clone(&context), synchronized_standby_slots, readers));
        }
        let mut receiving = receiving;
        loop {
            tokio::select! {
                client = socket.accept() => match client {
                    Ok((stream, from)) => {
                        let (door, context) = (Arc::clone(&door), Arc::clone(&context));
                        tokio::spawn(async move { serve(&door, &context, stream, from).await });
                    }
                    Err(error) => {
                        tracing::warn!("cannot accept a connection: {error}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
                ended = &mut receiving => {
                    context.stop.cancel();
                    let _ = context.slots.keep_all();
                    return match ended {
                        Ok(result) => result,
                        Err(error) => Err(RelayError::Answer(error.to_string())),
                    };
                }
            }
        }
    }
}

/// Receives WAL, again and again, until stopped.
async fn receive(receiver: &mut Receiver, context: &Context) -> Result<(), RelayError> {
    let stop = &context.stop;
    let mut warned: Option<(String, Instant)> = None;
    loop {
        let ended = receiver.run(stop).await;
        if let Err(error) = &ended
            && let Some(fork) = error.fork()
        {
            tracing::warn!("{}; the relay takes it back", with_causes(error));
            match take_back(context, fork).await {
                Ok(()) => {
                    receiver.cut(fork).map_err(RelayError::Receiver)?;
                    receiver.goes_on_behind(fork);
                    context.begin_epoch();
                }
                Err(told) => tracing::warn!("{told}; trying again"),
            }
        }
        if let Err(error) = &ended
            && let Some(fork) = error.left()
        {
            match leave_timeline(context, fork).await {
                Ok(()) => {
                    receiver.goes_on_behind(fork);
                    continue;
                }
                Err(told) => tracing::warn!("{told}; trying again"),
            }
        }
        match ended {
            Ok(()) => return Ok(()),
            Err(error) if error.fork().or(error.left()).is_some() => {}
            Err(error) if error.is_passing() => {
                let told = with_causes(&error);
                let is_known =
                    |(before, at): &(String, Instant)| *before == told && at.elapsed() < WARN_EVERY;
                if !error.waits_for_archive() || !warned.as_ref().is_some_and(is_known) {
                    tracing::warn!("{told}; trying again");
                    warned = Some((told, Instant::now()));
                }
            }
            Err(error) => return Err(RelayError::Receiver(error)),
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

async fn serve(door: &Door, context: &Arc<Context>, stream: tokio::net::TcpStream, from: SocketAddr) {
    let _ = stream.set_nodelay(true);
    match door.open(Socket::Tcp(stream, from.ip())).await {
        Ok(Arrival::Client(client)) => match client.startup.purpose {
            Purpose::Logical => serve_replication(*client, context).await,
            Purpose::Sql => {
                let Context { upstream, cancels, views, .. } = &**context;
                drop(passthrough::serve(*client, upstream, cancels, views).await);
            }
            Purpose::Physical => {
                let message = "the relay serves logical replication only";
                drop(passthrough::refuse(client.link, ServerError::new("FATAL", "0A000", message)).await);
            }
        },
        Ok(Arrival::Cancel { pid, key }) => {
            if let Some(canceller) = context.cancels.find(pid, &key)
                && let Err(error) = canceller.cancel().await
            {
                tracing::debug!("a statement was not cancelled: {error}");
            }
        }
        Err(refused) if refused.said_nothing() => {}
        Err(refused) => tracing::info!("{refused}"),
    }
}

/// The archive to fall back on. One that is not there now may be there when it is needed.
fn archived(settings: &ArchiveSettings, segment_size: u64) -> Result<WalArchive, RelayError> {
    let dir = &settings.dir;
    if source::segments::is_pg_wal(dir) {
        return Err(RelayError::ArchiveIsPgWal(dir.clone()));
    }
    if let Err(error) = std::fs::read_dir(dir) {
        tracing::warn!("cannot read {}, which is to be the archive of WAL: {error}", dir.display());
    }
    Ok(WalArchive::new(dir.clone(), segment_size))
}

/// Checks that what the directory has is of this system, which an empty one remembers.
fn belongs_to(dir: &Path, system: u64) -> Result<(), RelayError> {
    let path = dir.join("system");
    let failed = |error| RelayError::Files(path.clone(), error);
    match std::fs::read_to_string(&path) {
        Ok(known) if known.trim() == system.to_string() => Ok(()),
        Ok(known) => {
            Err(RelayError::OtherSystem { dir: dir.to_owned(), known: known.trim().to_owned(), system })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            catalog::replace_file(&path, format!("{system}\n").as_bytes()).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

async fn ask(source: &ConnInfo) -> Result<Publisher, RelayError> {
    let wire = Wire::connect(source, "pgsluice relay", Replication::Database, &[]).await;
    let mut wire = wire.map_err(RelayError::Publisher)?;
    let identity = source::slot::identify_system(&mut wire).await.map_err(RelayError::Source)?;
    let system = identity.system_id;
    let sql = "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_segment_size'";
    let rows = wire.query(sql).await.map_err(RelayError::Publisher)?;
    let size = rows.first().and_then(|row| row.first()?.as_deref()?.parse().ok());
    let segment_size = size.ok_or_else(|| RelayError::Answer(source::slot::shown(&rows)))?;
    let parameters = wire.parameters().map(|(name, value)| (name.to_owned(), value.to_owned()));
    let parameters = parameters.filter(|(name, _)| name != "application_name").collect();
    Ok(Publisher { version: wire.version(), system, segment_size, parameters })
}
