//! One process per subscription, and how others on this machine reach it.
//!
//! In the state directory a running subscription has two files:
//! - `NAME.lock`, locked with flock as long as the process lives and holding
//!   its pid. The kernel gives the lock back however the process ends, so a
//!   `kill -9` leaves nothing that needs clearing.
//! - `NAME.sock`, a Unix socket of mode 0600 in a directory of mode 0700. Only
//!   the lock's holder makes or removes it, so a socket found while taking the
//!   lock is a dead process's and is replaced.
//!
//! The protocol is a JSON object per line, a request from the caller and an
//! answer from the process:
//!
//! ```text
//! {"command":"status"}                     {"ok":true,"pid":7,"status":{...}}
//! {"command":"stop"}                       {"ok":true,"pid":7}
//! {"command":"skip","lsn":"16/B374D848"}   {"ok":true,"pid":7}
//! {"command":"reload-skip"}                {"ok":true,"pid":7}
//! anything else                            {"ok":false,"pid":7,"error":"..."}
//! ```
//!
//! `skip` says that the target's state now names a transaction to skip,
//! `reload-skip` that what it names may have changed. `stop` answers at once;
//! the process has ended when its lock is free.
//!
//! The lock is of one state directory on one machine. What keeps two machines
//! apart is the target's advisory lock, which is the applier's.
//!
//! ## Hazards
//! 1. Removing a lock file while another process is about to lock it: both
//!    would hold a lock, on two files of one name. So a holder checks that the
//!    file it locked is still the one of that name, and tries again if not.
//! 2. A caller that connects and says nothing, or never ends its line: it
//!    costs a task and at most `LINE_BYTES_MAX`, never the pipeline.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::{Lsn, SubscriptionName};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::status::{Snapshot, Status};

/// The longest request; ours are under 60 bytes.
const LINE_BYTES_MAX: u64 = 4_096;

/// The longest answer: a status of a hundred thousand tables.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// How long a caller waits for an answer, which needs no I/O.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A question to a running process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Request {
    /// What are you doing?
    Status,
    /// End.
    Stop,
    /// The target's state now says to skip this transaction.
    Skip {
        /// Commit LSN of the transaction, as text.
        lsn: String,
    },
    /// Read again from the target's state what is to be skipped.
    ReloadSkip,
}

/// What a running process answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether it did what was asked.
    pub ok: bool,
    /// The process that answered.
    pub pid: u32,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The answer to [`Request::Status`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Box<Snapshot>>,
}

/// Why a lock or a conversation failed.
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
                write!(f, "subscription \"{subscription}\" is in use: process {pid} runs it")
            }
            Kind::InUse { subscription, pid: None } => {
                write!(f, "subscription \"{subscription}\" is in use: another process runs it")
            }
            Kind::NotRunning { subscription } => {
                write!(f, "no process on this machine runs subscription \"{subscription}\"")
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

/// The right to run a subscription, on this machine and state directory.
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
    /// Takes the lock, making the state directory if there is none. Fails at
    /// once, with the holder's pid, if another process has it.
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
                    // Unreadable means unknown, which the message can bear.
                    let _ = file.read_to_string(&mut pid);
                    let pid = pid.trim().parse().ok();
                    return Err(Error(Kind::InUse { subscription: subscription.clone(), pid }));
                }
                Err(TryLockError::Error(cause)) => return Err(Error::file("lock", &path)(cause)),
            }
            if !is_still(&file, &path) {
                // Hazard 1: removed between open and lock.
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

    /// Gives the lock up and removes its file.
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

/// A process's end of the control socket; closes and removes it when dropped.
#[derive(Debug)]
pub struct Server {
    lock: Lock,
    task: JoinHandle<()>,
}

impl Server {
    /// Answers callers until dropped; `stop` is cancelled when one asks to
    /// stop.
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
        // Emptied, so that a later reader cannot take a number that has been
        // given to another process for the holder's.
        let _ = self.lock.file.set_len(0);
    }
}

async fn accept(listener: UnixListener, status: Arc<Status>, stop: CancellationToken) {
    let mut callers = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let (status, stop) = (Arc::clone(&status), stop.clone());
                    callers.spawn(async move {
                        if let Err(error) = converse(stream, &status, &stop).await {
                            tracing::debug!("a control connection ended: {error}");
                        }
                    });
                }
                Err(error) => {
                    // Out of file descriptors, most likely: others may go.
                    tracing::warn!("could not accept a control connection: {error}");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            },
            Some(_) = callers.join_next() => {}
        }
    }
}

/// One caller: a request a line, an answer a line.
async fn converse(stream: UnixStream, status: &Status, stop: &CancellationToken) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = String::new();
        if (&mut reader).take(LINE_BYTES_MAX).read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let mut answer = serde_json::to_vec(&answer(&line, status, stop))?;
        answer.push(b'\n');
        writer.write_all(&answer).await?;
        if !line.ends_with('\n') {
            // Too long or cut off: where the next request begins is unknown.
            return Ok(());
        }
    }
}

fn answer(line: &str, status: &Status, stop: &CancellationToken) -> Answer {
    let mut answer = Answer { ok: true, pid: std::process::id(), error: None, status: None };
    let request = serde_json::from_str::<Request>(line).map_err(|error| error.to_string());
    let done = request.and_then(|request| match request {
        Request::Status => {
            answer.status = Some(Box::new(status.snapshot()));
            Ok(())
        }
        Request::Stop => {
            tracing::info!("asked to stop through the control socket");
            stop.cancel();
            Ok(())
        }
        Request::Skip { lsn } => {
            let lsn: Lsn = lsn.parse().map_err(|error: base::ParseLsnError| error.to_string())?;
            status.request_skip(lsn);
            Ok(())
        }
        Request::ReloadSkip => {
            status.request_skip(Lsn::INVALID);
            Ok(())
        }
    });
    if let Err(error) = done {
        answer.ok = false;
        answer.error = Some(error);
    }
    answer
}

/// Asks the process that runs `subscription` with this state directory.
pub async fn ask(
    state_dir: &Path,
    subscription: &SubscriptionName,
    request: &Request,
) -> Result<Answer, Error> {
    let path = socket_path(state_dir, subscription);
    let talk = |cause| Error(Kind::Talk { subscription: subscription.clone(), cause });
    let conversation = async {
        let mut stream = match UnixStream::connect(&path).await {
            Ok(stream) => stream,
            Err(cause)
                if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                return Err(Error(Kind::NotRunning { subscription: subscription.clone() }));
            }
            Err(cause) => return Err(talk(cause)),
        };
        let mut line = serde_json::to_vec(request).map_err(|error| talk(error.into()))?;
        line.push(b'\n');
        stream.write_all(&line).await.map_err(talk)?;
        let mut text = String::new();
        BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_line(&mut text).await.map_err(talk)?;
        serde_json::from_str::<Answer>(&text).map_err(|error| talk(error.into()))
    };
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, conversation)
        .await
        .map_err(|_| talk(io::Error::new(io::ErrorKind::TimedOut, "no answer within 5 s")))??;
    match answer.error {
        Some(reason) if !answer.ok => {
            Err(Error(Kind::Refused { subscription: subscription.clone(), reason }))
        }
        _ => Ok(answer),
    }
}

/// Waits until no process holds the subscription's lock, at most for `bound`;
/// false if one still does then.
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
            // Shared and given back at once: a run that starts at this
            // instant is refused only if it meets this microsecond.
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
