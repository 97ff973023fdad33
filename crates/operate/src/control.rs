//! One process per subscription, and how other processes on this machine reach it.
//!
//! A running subscription has two files in the state directory:
//! - `NAME.lock`, locked with flock as long as the process lives, contains its pid. The kernel
//!   releases the lock however the process ends, so a `kill -9` leaves nothing to clean up.
//! - `NAME.sock`, a Unix socket of mode 0600 in a directory of mode 0700. Only the lock's holder
//!   makes or removes it. A socket found while taking the lock belongs to a dead process, and is
//!   replaced.
//!
//! The protocol is one JSON object per line, a request from the caller and an answer from the
//! process:
//!
//! ```text
//! {"command":"status"}                     {"ok":true,"pid":7,"status":{...}}
//! {"command":"stop"}                       {"ok":true,"pid":7}
//! {"command":"skip","lsn":"16/B374D848"}   {"ok":true,"pid":7}
//! {"command":"reload-skip"}                {"ok":true,"pid":7}
//! {"command":"refresh"}                    {"ok":true,"pid":7,"refresh_number":2}
//! {"command":"hold"}                       {"ok":true,"pid":7}
//! {"command":"advance","snapshot":"7:9:7","lsn":"16/B374D848"}
//!                                          {"ok":true,"pid":7,"advanced":"exact"}
//! {"command":"release"}                    {"ok":true,"pid":7}
//! anything else                            {"ok":false,"pid":7,"error":"..."}
//! ```
//!
//! - `skip` says that the target's state now names a transaction to skip. `reload-skip` says that
//!   the one it names may have changed.
//! - `refresh` asks for a look at the publication's tables. The status shows the result under the
//!   answered number or a higher one.
//! - `stop` answers at once; the process has ended when its lock is free.
//! - `hold` stops the stream between two transactions. `advance` lets through exactly what a
//!   snapshot of the source sees (`apply::SnapshotGate`), which may take as long as the target lags
//!   behind. The hold ends by `release`, when its connection closes, or after [`HOLD_MAX`] without
//!   a request.
//!
//! The lock covers one state directory on one machine. The target's advisory lock, which the
//! applier takes, keeps two machines apart.
//!
//! ## Hazards
//! 1. One process removes a lock file while another is about to lock it. Both would then hold a
//!    lock, on two files of one name. So a holder checks that the file it locked still has that
//!    name, and tries again if not.
//! 2. A caller connects and sends nothing, or never ends its line. It costs a task and at most
//!    `LINE_BYTES_MAX`, and never holds up the pipeline.
//! 3. A caller holds the stream and dies, or hangs. If it dies, the kernel closes its socket; if it
//!    hangs, the time limit ends the hold.

mod error_reference;

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use apply::{Advance, GateHold};
use base::{Lsn, PgSnapshot, SubscriptionName};
use engine::{Status, StatusSnapshot};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use error_reference::error_reference;

/// The longest request: a snapshot with some thousand running transactions. Other requests are
/// under 60 bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// The longest answer: a status of a hundred thousand tables.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// How long a caller waits for an answer. Most answers need no I/O.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a caller may hold the stream without a request: short against every timeout of a
/// walsender.
pub const HOLD_MAX: Duration = Duration::from_secs(10);

/// How long the stream may take to reach a snapshot's position.
const ADVANCE_MAX: Duration = Duration::from_secs(60);

/// Interval between checks of whether what passed has been applied.
const APPLIED_POLL: Duration = Duration::from_millis(1);

/// A request to a running process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Request {
    /// Report the status.
    Status,
    /// Stop.
    Stop,
    /// Skip this transaction, which the target's state now names.
    Skip {
        /// Commit LSN of the transaction, as text.
        lsn: String,
    },
    /// Read again from the target's state which transaction to skip.
    ReloadSkip,
    /// Look at the publication's tables.
    Refresh,
    /// Let no further transaction through.
    Hold,
    /// Let through exactly what a snapshot of the source sees, and answer when the target has
    /// applied it.
    Advance {
        /// `pg_current_snapshot()`.
        snapshot: String,
        /// The source's end of WAL, read after the snapshot was taken.
        lsn: String,
    },
    /// End the hold.
    Release,
}

/// How a [`Request::Advance`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Advanced {
    /// The target has what the snapshot sees.
    Exact,
    /// The snapshot does not see a prefix of the commits; take another one.
    NotAPrefix,
}

/// The answer of a running process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the process did what was asked.
    pub ok: bool,
    /// The process that answered.
    pub pid: u32,
    /// Why it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The answer to [`Request::Status`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Box<StatusSnapshot>>,
    /// The answer to [`Request::Advance`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advanced: Option<Advanced>,
    /// The answer to [`Request::Refresh`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_number: Option<u64>,
}

/// Why taking the lock, or a conversation, failed.
#[derive(Debug)]
pub struct Error(Kind);

#[derive(Debug)]
enum Kind {
    InUse { subscription: SubscriptionName, pid: Option<u32> },
    NotRunning { subscription: SubscriptionName },
    PathTooLong { path: PathBuf },
    File { doing: &'static str, path: PathBuf, cause: io::Error },
    Talk { subscription: SubscriptionName, cause: io::Error },
    Refused { subscription: SubscriptionName, reason: String },
}

impl Error {
    /// Another process runs the subscription.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(self.0, Kind::InUse { .. })
    }

    /// The process answered that it refused or failed.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(self.0, Kind::Refused { .. })
    }

    /// No process runs the subscription.
    #[must_use]
    pub fn is_not_running(&self) -> bool {
        matches!(self.0, Kind::NotRunning { .. })
    }

    fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |cause| Error(Kind::File { doing, path: path.to_owned(), cause })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::InUse { subscription, pid: Some(pid) } => {
                write!(
                    f,
                    "subscription \"{subscription}\" is in use: process {pid} runs it; pgsluice stop ends that"
                )
            }
            Kind::InUse { subscription, pid: None } => {
                write!(
                    f,
                    "subscription \"{subscription}\" is in use: another process runs it; pgsluice stop ends that"
                )
            }
            Kind::NotRunning { subscription } => {
                write!(
                    f,
                    "no process on this machine runs subscription \"{subscription}\" with this state_dir; the command run starts one"
                )
            }
            Kind::PathTooLong { path } => write!(
                f,
                "the control socket's path {} is too long for a Unix socket (107 bytes): set a shorter state_dir",
                path.display()
            ),
            Kind::File { doing, path, .. } => write!(f, "could not {doing} {}", path.display()),
            Kind::Talk { subscription, .. } => {
                write!(f, "could not talk to the process that runs subscription \"{subscription}\"")
            }
            Kind::Refused { subscription, reason } => {
                write!(f, "the process that runs subscription \"{subscription}\" refused: {reason}")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Kind::File { cause, .. } | Kind::Talk { cause, .. } => Some(cause),
            _ => None,
        }
    }
}

/// The right to run a subscription with one state directory on this machine.
#[derive(Debug)]
pub struct Lock {
    subscription: SubscriptionName,
    state_dir: PathBuf,
    // Held for its flock.
    file: File,
}

fn lock_path(state_dir: &Path, subscription: &SubscriptionName) -> PathBuf {
    state_dir.join(format!("{subscription}.lock"))
}

fn socket_path(state_dir: &Path, subscription: &SubscriptionName) -> PathBuf {
    state_dir.join(format!("{subscription}.sock"))
}

impl Lock {
    /// Takes the lock, and creates the state directory if it is missing. If another process has the
    /// lock, this fails at once and names its pid.
    pub fn acquire(state_dir: &Path, subscription: &SubscriptionName) -> Result<Lock, Error> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(state_dir)
            .map_err(Error::file("create the state directory", state_dir))?;
        let path = lock_path(state_dir, subscription);
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)
                .map_err(Error::file("open the lock file", &path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let mut pid = String::new();
                    // If the pid cannot be read, it is unknown, and the message leaves it out.
                    let _ = file.read_to_string(&mut pid);
                    let pid = pid.trim().parse().ok();
                    return Err(Error(Kind::InUse { subscription: subscription.clone(), pid }));
                }
                Err(TryLockError::Error(cause)) => return Err(Error::file("lock", &path)(cause)),
            }
            if !is_still(&file, &path) {
                // Hazard 1: the file was removed between open and lock.
                continue;
            }
            let written = file
                .set_len(0)
                .and_then(|()| file.rewind())
                .and_then(|()| writeln!(file, "{}", std::process::id()));
            written.map_err(Error::file("write the lock file", &path))?;
            let lock = Lock { subscription: subscription.clone(), state_dir: state_dir.to_owned(), file };
            lock.remove_socket()?;
            return Ok(lock);
        }
    }

    /// Releases the lock and removes its file.
    pub fn remove(self) -> Result<(), Error> {
        let path = lock_path(&self.state_dir, &self.subscription);
        std::fs::remove_file(&path).map_err(Error::file("remove the lock file", &path))
    }

    fn remove_socket(&self) -> Result<(), Error> {
        let path = socket_path(&self.state_dir, &self.subscription);
        match std::fs::remove_file(&path) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                Err(Error::file("remove the old control socket", &path)(cause))
            }
            _ => Ok(()),
        }
    }
}

/// Whether `path` still names the open `file`.
fn is_still(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// A process's end of the control socket. Dropping it closes and removes the socket.
#[derive(Debug)]
pub struct Server {
    lock: Lock,
    task: JoinHandle<()>,
}

impl Server {
    /// Answers callers until dropped. Cancels `stop` when a caller asks to stop.
    pub fn start(lock: Lock, status: Arc<Status>, stop: CancellationToken) -> Result<Server, Error> {
        let path = socket_path(&lock.state_dir, &lock.subscription);
        // sun_path has 108 bytes with its terminator (unix(7)).
        if path.as_os_str().len() > 107 {
            return Err(Error(Kind::PathTooLong { path }));
        }
        let listener = UnixListener::bind(&path).map_err(Error::file("listen at", &path))?;
        // Until here the directory's mode protects it.
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))
            .map_err(Error::file("set the permissions of", &path))?;
        let task = tokio::spawn(accept(listener, status, stop));
        Ok(Server { lock, task })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        if let Err(error) = self.lock.remove_socket() {
            tracing::warn!("{error}");
        }
        // Empties the file, so that nobody reads a pid that has since been given to another
        // process.
        let _ = self.lock.file.set_len(0);
    }
}

async fn accept(listener: UnixListener, status: Arc<Status>, stop: CancellationToken) {
    let mut callers = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let caller = Caller { status: Arc::clone(&status), stop: stop.clone(), hold: None };
                    callers.spawn(async move {
                        if let Err(error) = converse(stream, caller).await {
                            tracing::debug!("a control connection ended: {error}");
                        }
                    });
                }
                Err(error) => {
                    // Most likely out of file descriptors; other connections may close.
                    tracing::warn!("could not accept a control connection: {error}");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            },
            Some(_) = callers.join_next() => {}
        }
    }
}

/// Serves one caller: each line is a request or an answer.
async fn converse(stream: UnixStream, mut caller: Caller) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = String::new();
        let mut bounded = (&mut reader).take(LINE_BYTES_MAX);
        if caller.keep_time(bounded.read_line(&mut line)).await? == 0 {
            return Ok(());
        }
        let answer = tokio::select! {
            // In this order: a caller may close its half behind a request that is answered at once.
            biased;
            answer = caller.answer(&line) => answer,
            () = gone(&mut reader) => return Ok(()),
        };
        let mut answer = serde_json::to_vec(&answer)?;
        answer.push(b'\n');
        writer.write_all(&answer).await?;
        if !line.ends_with('\n') {
            // The line was too long or cut off, so the start of the next request is unknown.
            return Ok(());
        }
    }
}

/// Waits until the caller has hung up. Leaves a further request unread.
async fn gone(reader: &mut BufReader<OwnedReadHalf>) {
    if reader.fill_buf().await.is_ok_and(|bytes| !bytes.is_empty()) {
        std::future::pending::<()>().await;
    }
}

/// A caller, with what it may reach and what it holds.
struct Caller {
    status: Arc<Status>,
    stop: CancellationToken,
    hold: Option<(GateHold, tokio::time::Instant)>,
}

impl Caller {
    /// Waits for `reading`, and ends a hold that expires meanwhile.
    async fn keep_time<T>(&mut self, reading: impl Future<Output = T>) -> T {
        tokio::pin!(reading);
        let Some((_, deadline)) = self.hold else { return reading.await };
        if let Ok(read) = tokio::time::timeout_at(deadline, &mut reading).await {
            return read;
        }
        tracing::warn!("a caller held the stream for {} s: pgsluice released it", HOLD_MAX.as_secs());
        self.hold = None;
        reading.await
    }

    async fn answer(&mut self, line: &str) -> Answer {
        let mut answer = Answer {
            ok: true,
            pid: std::process::id(),
            error: None,
            status: None,
            advanced: None,
            refresh_number: None,
        };
        let request = serde_json::from_str::<Request>(line).map_err(|error| error.to_string());
        let done = match request {
            Ok(request) => self.carry_out(request, &mut answer).await,
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            answer.ok = false;
            answer.error = Some(error);
        }
        answer
    }

    async fn carry_out(&mut self, request: Request, answer: &mut Answer) -> Result<(), String> {
        match request {
            Request::Status => answer.status = Some(Box::new(self.status.snapshot())),
            Request::Stop => {
                tracing::info!("asked to stop through the control socket");
                self.stop.cancel();
            }
            Request::Skip { lsn } => self.status.request_skip(parse(&lsn)?),
            Request::ReloadSkip => self.status.request_skip(Lsn::INVALID),
            Request::Refresh => answer.refresh_number = Some(self.status.request_refresh()),
            Request::Hold => {
                self.hold = None;
                let hold = self.status.gate().hold().map_err(|error| error.to_string())?;
                self.hold = Some((hold, tokio::time::Instant::now() + HOLD_MAX));
            }
            Request::Advance { snapshot, lsn } => {
                answer.advanced = Some(self.advance(parse(&snapshot)?, parse(&lsn)?).await?);
            }
            Request::Release => self.hold = None,
        }
        Ok(())
    }

    async fn advance(&mut self, snapshot: PgSnapshot, end: Lsn) -> Result<Advanced, String> {
        const LOST: &str = "the stream is not held any more: it ended, or was held too long";
        let (hold, deadline) = self.hold.as_mut().ok_or(LOST)?;
        let advancing = async {
            let handed = match hold.advance(snapshot, end).await {
                Advance::Exact(handed) => handed,
                Advance::NotPrefix => return Ok(Advanced::NotAPrefix),
                Advance::Lost => return Err(LOST.to_owned()),
            };
            while self.status.progress().snapshot().applied < handed {
                if !hold.holds() {
                    return Err(LOST.to_owned());
                }
                tokio::time::sleep(APPLIED_POLL).await;
            }
            Ok(Advanced::Exact)
        };
        let advanced = tokio::time::timeout(ADVANCE_MAX, advancing).await;
        *deadline = tokio::time::Instant::now() + HOLD_MAX;
        advanced.unwrap_or_else(|_| {
            Err(format!("the target did not catch up with the source within {} s", ADVANCE_MAX.as_secs()))
        })
    }
}

fn parse<T: FromStr<Err: fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

/// Sends one request to the process that runs `subscription` with this state directory.
pub async fn ask(
    state_dir: &Path,
    subscription: &SubscriptionName,
    request: &Request,
) -> Result<Answer, Error> {
    Conversation::open(state_dir, subscription).await?.ask(request).await
}

/// A connection to the process that runs a subscription.
#[derive(Debug)]
pub struct Conversation {
    subscription: SubscriptionName,
    stream: BufReader<UnixStream>,
}

impl Conversation {
    /// Connects to the process that runs `subscription` with this state
    /// directory.
    pub async fn open(state_dir: &Path, subscription: &SubscriptionName) -> Result<Conversation, Error> {
        let subscription = subscription.clone();
        match UnixStream::connect(socket_path(state_dir, &subscription)).await {
            Ok(stream) => Ok(Conversation { subscription, stream: BufReader::new(stream) }),
            Err(cause)
                if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                Err(Error(Kind::NotRunning { subscription }))
            }
            Err(cause) => Err(Error(Kind::Talk { subscription, cause })),
        }
    }

    /// Sends a request and returns its answer. After an error other than a refusal, the
    /// conversation cannot be used any more.
    pub async fn ask(&mut self, request: &Request) -> Result<Answer, Error> {
        let bound = match request {
            Request::Advance { .. } => ADVANCE_MAX + ANSWER_TIMEOUT,
            _ => ANSWER_TIMEOUT,
        };
        let late =
            || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", bound.as_secs()));
        let answered = tokio::time::timeout(bound, self.exchange(request)).await;
        let answer = answered
            .unwrap_or_else(|_| Err(late()))
            .map_err(|cause| Error(Kind::Talk { subscription: self.subscription.clone(), cause }))?;
        match answer.error {
            Some(reason) if !answer.ok => {
                Err(Error(Kind::Refused { subscription: self.subscription.clone(), reason }))
            }
            _ => Ok(answer),
        }
    }

    async fn exchange(&mut self, request: &Request) -> io::Result<Answer> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).await?;
        let mut text = String::new();
        (&mut self.stream).take(ANSWER_BYTES_MAX).read_line(&mut text).await?;
        Ok(serde_json::from_str(&text)?)
    }
}

/// Waits for at most `bound` until no process holds the subscription's lock. Returns false if one
/// still does.
pub async fn wait_until_free(
    state_dir: &Path,
    subscription: &SubscriptionName,
    bound: Duration,
) -> Result<bool, Error> {
    let path = lock_path(state_dir, subscription);
    let deadline = tokio::time::Instant::now() + bound;
    loop {
        let free = match File::open(&path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => true,
            Err(cause) => return Err(Error::file("open the lock file", &path)(cause)),
            // The shared lock is released at once. A run that starts at this instant is refused
            // only if it hits this microsecond.
            Ok(file) => file.try_lock_shared().is_ok(),
        };
        if free || tokio::time::Instant::now() >= deadline {
            return Ok(free);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[cfg(test)]
mod tests;
