//! The relay as a whole: WAL comes, clients come, and what nobody needs goes.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::{Lsn, Oid, PgVersion, with_causes};
use client::{ConnInfo, Replication, Wire};
use listener::{Arrival, Door, Limits, Rules, Socket, Tls};
use proto::frame::ServerError;
use proto::startup::Purpose;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use wal_dir::Writer;

use crate::cancel::Cancels;
use crate::databases::{Databases, TrackLimits};
use crate::decoding::Decoding;
use crate::passthrough;
use crate::receiver::{Received, Receiver, ReceiverError, ReceiverSettings};
use crate::session::{Context, serve_replication};
use crate::slots::Slots;

/// Between two rounds of tidying.
const TIDY: Duration = Duration::from_secs(5);
/// Between two attempts to receive WAL.
const RETRY: Duration = Duration::from_secs(1);
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
    /// What encrypts connections.
    pub tls: Option<Tls>,
    /// How many may connect.
    pub limits: Limits,
    /// What each form's track may keep.
    pub tracks: TrackLimits,
    /// `wal_receiver_status_interval`, `wal_receiver_timeout`, `wal_sender_timeout`.
    pub timeouts: Timeouts,
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
    /// WAL cannot be kept.
    Wal(wal_dir::Error),
    /// WAL cannot be received.
    Receiver(ReceiverError),
}

impl fmt::Display for RelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RelayError::Publisher(error) => write!(f, "cannot use the publisher: {error}"),
            RelayError::Source(error) => error.fmt(f),
            RelayError::Answer(what) => write!(f, "the publisher answered {what}"),
            RelayError::Files(path, error) => write!(f, "cannot use {}: {error}", path.display()),
            RelayError::Wal(error) => error.fmt(f),
            RelayError::Receiver(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RelayError {}

/// A relay that is ready for clients.
pub struct Relay {
    context: Arc<Context>,
    door: Arc<Door>,
    receiver: Receiver,
}

/// What the publisher says of itself.
struct Publisher {
    version: PgVersion,
    system: (u64, u32),
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
        let decoding = Decoding::start(opened.0.readers());
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
        };
        let receiver = Receiver::new(receiver, opened, None, Arc::clone(&received));
        let context = Context {
            publisher: settings.source,
            major: publisher.version.major(),
            system: publisher.system,
            parameters: publisher.parameters,
            slots,
            databases,
            cancels: Cancels::default(),
            received,
            wal_sender_timeout: settings.timeouts.wal_sender_timeout,
            stop,
        };
        let door = Arc::new(Door::new(settings.rules, settings.tls, settings.limits));
        Ok(Relay { context: Arc::new(context), door, receiver })
    }

    /// Lets clients in, to reload the rules.
    #[must_use]
    pub fn door(&self) -> Arc<Door> {
        Arc::clone(&self.door)
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
        let Relay { context, door, mut receiver } = self;
        let receiving = {
            let context = Arc::clone(&context);
            async move { receive(&mut receiver, &context.stop).await }
        };
        let receiving = tokio::spawn(receiving);
        // The first commands of a client need WAL to be coming.
        let come = async {
            while !context.received.written().is_valid() && !receiving.is_finished() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = tokio::time::timeout(FIRST_WAL, come).await;
        let mut tick = tokio::time::interval(TIDY);
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
                _ = tick.tick() => tidy(&context),
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
async fn receive(receiver: &mut Receiver, stop: &CancellationToken) -> Result<(), RelayError> {
    loop {
        match receiver.run(stop).await {
            Ok(()) => return Ok(()),
            Err(error) if error.is_passing() => tracing::warn!("{}; trying again", with_causes(&error)),
            Err(error) => return Err(RelayError::Receiver(error)),
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

/// Keeps what has moved, and lets go of what nobody needs, in this order (rule L2, point 3).
fn tidy(context: &Context) {
    if let Err(told) = context.slots.keep_all() {
        tracing::warn!("{told}");
        return;
    }
    if let Err(error) = context.databases.tidy(|database: Oid| context.slots.least_restart_in(database)) {
        tracing::warn!("cannot tidy up: {error}");
        return;
    }
    let needed = context.databases.least().unwrap_or(Lsn::INVALID);
    context.received.needs_from(needed);
}

async fn serve(door: &Door, context: &Arc<Context>, stream: tokio::net::TcpStream, from: SocketAddr) {
    let _ = stream.set_nodelay(true);
    match door.open(Socket::Tcp(stream, from.ip())).await {
        Ok(Arrival::Client(client)) => match client.startup.purpose {
            Purpose::Logical => serve_replication(*client, context).await,
            Purpose::Sql => drop(passthrough::serve(*client, &context.publisher, &context.cancels).await),
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

async fn ask(source: &ConnInfo) -> Result<Publisher, RelayError> {
    let wire = Wire::connect(source, "pgsluice relay", Replication::Database, &[]).await;
    let mut wire = wire.map_err(RelayError::Publisher)?;
    let identity = source::slot::identify_system(&mut wire).await.map_err(RelayError::Source)?;
    let system = (identity.system_id, identity.timeline);
    let sql = "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_segment_size'";
    let rows = wire.query(sql).await.map_err(RelayError::Publisher)?;
    let size = rows.first().and_then(|row| row.first()?.as_deref()?.parse().ok());
    let segment_size = size.ok_or_else(|| RelayError::Answer(source::slot::shown(&rows)))?;
    let parameters = wire.parameters().map(|(name, value)| (name.to_owned(), value.to_owned()));
    let parameters = parameters.filter(|(name, _)| name != "application_name").collect();
    Ok(Publisher { version: wire.version(), system, segment_size, parameters })
}
