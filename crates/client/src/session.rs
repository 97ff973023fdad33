//! An ordinary session: tokio-postgres on a connection of ours.
//!
//! tokio-postgres could authenticate by itself, but then hosts, TLS, passwords and their errors
//! would behave differently on the two kinds of connection. So this module starts the session and
//! hands tokio-postgres a started stream. It swallows the startup packet of tokio-postgres and
//! replays what the server sent after authentication.

use std::future::poll_fn;
use std::io;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use base::{PgTimestamp, PgVersion};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use proto::frame::ServerError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{oneshot, watch};
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{AsyncMessage, Client, NoTls, Row};

use crate::cancel::Canceller;
use crate::dial::{self, Established};
use crate::error::Kind;
use crate::farewell::Entry;
use crate::startup::{Purpose, Ready, Replication};
use crate::stream::Stream;
use crate::{ConnInfo, Error};

/// In microseconds since PostgreSQL's epoch, as commit times count.
const CLOCK: &str = "\
SELECT (EXTRACT(epoch FROM pg_catalog.clock_timestamp() - '2000-01-01 00:00:00+00'::timestamptz) * 1000000)::int8";

/// How long a dropped session may still send: its goodbye, after a command that is running.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);
/// A command that runs for longer after its session was dropped is cancelled.
const GOODBYE_SOON: Duration = Duration::from_millis(50);

type Connection = tokio_postgres::Connection<Started, NoTlsStream>;

/// A session with everything [`tokio_postgres::Client`] can do. Dropping it
/// ends the session and its background task; a command that is still running
/// is cancelled, and cut off after a second.
pub struct Session {
    client: Client,
    running: Arc<Running>,
    version: PgVersion,
    pid: i32,
    canceller: Canceller,
    place: String,
    /// Dropped with the session, which the task notices.
    _alive: oneshot::Sender<()>,
}

/// What session and task share.
struct Running {
    /// `None` once it has ended. It must not outlive its end: commands that
    /// still wait learn of the end by its being dropped.
    connection: Mutex<Option<Connection>>,
    /// The server's reason, if it gave one.
    last_words: OnceLock<ServerError>,
    /// Whether it has ended.
    ended: watch::Sender<bool>,
}

/// Opens an ordinary session. `settings` are configuration parameters (name,
/// value); they win over the connection string's `options`.
/// `application_name` is used unless the connection string or `PGAPPNAME`
/// has one.
///
/// # Errors
/// See the predicates of [`Error`].
pub async fn connect(
    info: &ConnInfo,
    application_name: &str,
    settings: &[(&str, &str)],
) -> Result<Session, Error> {
    let purpose = Purpose { application_name, replication: Replication::Off, settings };
    let Established { ready, endpoint, encryption, version, place } = dial::establish(info, &purpose).await?;
    let (pid, secret) = (ready.pid, ready.secret);
    if let Some(tcp) = ready.link.stream().tcp() {
        // If the kernel refuses the option, its own limit stays.
        let _ = dial::limit_unacknowledged(tcp, info.settings());
    }
    let mut config = tokio_postgres::Config::new();
    config.user(info.user()).dbname(info.dbname()).ssl_mode(tokio_postgres::config::SslMode::Disable);
    let (client, connection) = config
        .connect_raw(Started::new(ready), NoTls)
        .await
        .map_err(|error| Error::from(error).at(&place))?;
    let running = Arc::new(Running {
        connection: Mutex::new(Some(connection)),
        last_words: OnceLock::new(),
        ended: watch::Sender::new(false),
    });
    let (alive, closed) = oneshot::channel();
    let canceller = Canceller::new(info.clone(), endpoint, encryption, pid, secret);
    tokio::spawn(drive(Arc::clone(&running), closed, canceller.clone(), place.clone()));
    Ok(Session { client, running, version, pid, canceller, place, _alive: alive })
}

impl Session {
    /// The server's version.
    #[must_use]
    pub fn version(&self) -> PgVersion {
        self.version
    }

    /// A parameter the server reports unasked, such as `in_hot_standby`, as
    /// it is now. `None` also when the session has ended.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<String> {
        self.running.lock().as_ref()?.parameter(name).map(str::to_owned)
    }

    /// The process id of the server's backend.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Which server, database and user this is, safe to log.
    #[must_use]
    pub fn describe(&self) -> &str {
        &self.place
    }

    /// Asks the server to cancel the running command.
    ///
    /// # Errors
    /// The server could not be reached.
    pub async fn cancel(&self) -> Result<(), Error> {
        self.canceller.cancel().await
    }

    /// What can cancel the running command after the session has moved away.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// Waits until the connection has ended, idle or not, and returns the reason. Does not keep the
    /// session alive.
    pub fn ended(&self) -> impl Future<Output = Error> + Send + 'static {
        let (running, place) = (Arc::clone(&self.running), self.place.clone());
        async move {
            // The sender is shared.
            let _ = running.ended.subscribe().wait_for(|ended| *ended).await;
            let kind = match running.last_words.get() {
                Some(last_words) => Kind::Server(Box::new(last_words.clone())),
                None => Kind::Lost(None),
            };
            Error::new(kind).at(&place)
        }
    }

    /// The one row of a query without parameters, in one round trip: no statement is prepared.
    ///
    /// # Errors
    /// The session failed, or the query returned no row.
    pub async fn query_once(&self, sql: &str) -> Result<Row, Error> {
        let rows = self.client.query_typed(sql, &[]).await.map_err(|error| self.error(error))?;
        let row = rows.into_iter().next();
        row.ok_or_else(|| Error::protocol("a query that returns one row returned none").at(&self.place))
    }

    /// What the server's clock says.
    ///
    /// # Errors
    /// The session failed.
    pub async fn clock(&self) -> Result<PgTimestamp, Error> {
        Ok(PgTimestamp(self.query_once(CLOCK).await?.get(0)))
    }

    /// An error of this session in this crate's words, with the server's
    /// name. If the session was ended by the server, with its reason.
    #[must_use]
    pub fn error(&self, error: tokio_postgres::Error) -> Error {
        let error = match self.running.last_words.get().filter(|_| error.is_closed()) {
            Some(last_words) => Error::new(Kind::Server(Box::new(last_words.clone()))),
            None => Error::from(error),
        };
        error.at(&self.place)
    }
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// For transactions, which borrow the client exclusively.
impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({}, pid {})", self.place, self.pid)
    }
}

impl Running {
    /// A panic while polling leaves nothing half-written that a reader of
    /// parameters could mind.
    fn lock(&self) -> MutexGuard<'_, Option<Connection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves bytes until the session ends. The lock is held for one poll,
    /// never across a wait.
    fn poll(&self, cx: &mut Context<'_>, place: &str) -> Poll<Option<tokio_postgres::Error>> {
        let mut guard = self.lock();
        let Some(connection) = guard.as_mut() else { return Poll::Ready(None) };
        loop {
            match connection.poll_message(cx) {
                Poll::Ready(Some(Ok(AsyncMessage::Notice(notice)))) => {
                    tracing::debug!(server = %place, code = notice.code().code(), "{}", notice.message());
                }
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(error)),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// The task of a session.
async fn drive(running: Arc<Running>, closed: oneshot::Receiver<()>, canceller: Canceller, place: String) {
    let entry = Entry::new(canceller.clone());
    let mut end = poll_fn(|cx| running.poll(cx, &place));
    let ended = tokio::select! {
        ended = &mut end => Some(ended),
        _ = closed => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            entry.winds_up();
            match tokio::time::timeout(GOODBYE_SOON, &mut end).await {
                Ok(ended) => ended,
                Err(_) => {
                    let cancel = tokio::time::timeout(GOODBYE_LIMIT, canceller.cancel());
                    let ended = tokio::time::timeout(GOODBYE_LIMIT, end);
                    tokio::join!(cancel, ended).1.unwrap_or(None)
                }
            }
        }
    };
    if let Some(error) = ended {
        let error = Error::from(error);
        tracing::debug!(server = %place, "session ended: {error}");
        if let Some(last_words) = error.server() {
            let _ = running.last_words.set(last_words.clone());
        }
    }
    drop(running.lock().take());
    running.ended.send_replace(true);
}

/// A stream whose session has been started already.
struct Started {
    stream: Stream,
    /// Returned before anything is read from the stream.
    prologue: Bytes,
    packet: Packet,
}

/// The swallowed part of the startup packet, whose first four bytes are its length.
enum Packet {
    Length { bytes: [u8; 4], known: usize },
    Rest(usize),
}

impl Started {
    fn new(ready: Ready) -> Started {
        let mut prologue = BytesMut::new();
        let mut message = |tag: u8, body: &[u8]| {
            prologue.put_u8(tag);
            // Bounded: these came out of frames.
            prologue.put_u32(body.len() as u32 + 4);
            prologue.put_slice(body);
        };
        message(b'R', &0u32.to_be_bytes());
        for (name, value) in &ready.parameters {
            message(b'S', &[name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat());
        }
        message(b'K', &[ready.pid.to_be_bytes(), ready.secret.to_be_bytes()].concat());
        message(b'Z', b"I");
        let (stream, inbox) = ready.link.into_parts();
        prologue.put_slice(&inbox);
        Started { stream, prologue: prologue.freeze(), packet: Packet::Length { bytes: [0; 4], known: 0 } }
    }

    /// How many of `buf`'s first bytes belong to the startup packet.
    fn swallow(&mut self, buf: &[u8]) -> usize {
        match &mut self.packet {
            Packet::Length { bytes, known } => {
                let size = buf.len().min(4 - *known);
                bytes[*known..*known + size].copy_from_slice(&buf[..size]);
                *known += size;
                if *known == 4 {
                    let length = u32::from_be_bytes(*bytes) as usize;
                    self.packet = Packet::Rest(length.saturating_sub(4));
                }
                size
            }
            Packet::Rest(rest) => {
                let size = buf.len().min(*rest);
                *rest -= size;
                size
            }
        }
    }
}

impl AsyncRead for Started {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.prologue.is_empty() {
            let size = self.prologue.len().min(buf.remaining());
            buf.put_slice(&self.prologue[..size]);
            self.prologue.advance(size);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Started {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.swallow(buf) {
            0 => Pin::new(&mut self.stream).poll_write(cx, buf),
            size => Poll::Ready(Ok(size)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
