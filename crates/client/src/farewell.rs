//! Connections whose owner has gone while the server still works for them.
//!
//! A server that executes a statement does not look at its client. After the client closes the
//! socket, the statement runs to its end and keeps its locks. So a connection that is dropped in
//! the middle of a command is *wound up* by a task of its own. The task cancels the command and
//! closes our side of the socket. It then discards what the server still sends until the server
//! closes its side too. Only [`settle`] waits for that, before a process or a subscription reports
//! that it has ended.
//!
//! A connection that is dropped while idle needs none of this: the server notices the end at once.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;

use crate::cancel::Canceller;
use crate::stream::Stream;

/// The time that a server may take to notice a cancel and to roll back.
const WIND_UP: Duration = Duration::from_secs(5);

/// How long [`settle_all`] leaves connections to their owners before it cancels what they run.
const GRACE: Duration = Duration::from_millis(200);

/// Every open connection of the process.
static OPEN: LazyLock<Open> =
    LazyLock::new(|| Open { known: Mutex::default(), number: AtomicU64::new(0), changed: Notify::new() });

struct Open {
    known: Mutex<BTreeMap<u64, Known>>,
    number: AtomicU64,
    changed: Notify,
}

struct Known {
    canceller: Canceller,
    /// Its owner has gone.
    winds_up: bool,
}

impl Open {
    fn known(&self) -> MutexGuard<'_, BTreeMap<u64, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until none of the `wanted` connections is left, for `bound` at most.
    async fn until_none(&self, bound: Duration, wanted: impl Fn(&Known) -> bool) {
        let none = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if !self.known().values().any(&wanted) {
                    return;
                }
                changed.await;
            }
        };
        let _ = tokio::time::timeout(bound, none).await;
    }
}

/// An open connection, until it is dropped.
pub(crate) struct Entry(u64);

impl Entry {
    /// One whose command `canceller` can cancel.
    pub(crate) fn new(canceller: Canceller) -> Entry {
        let number = OPEN.number.fetch_add(1, Ordering::Relaxed);
        OPEN.known().insert(number, Known { canceller, winds_up: false });
        Entry(number)
    }

    /// Its owner has gone.
    pub(crate) fn winds_up(&self) {
        if let Some(known) = OPEN.known().get_mut(&self.0) {
            known.winds_up = true;
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        OPEN.known().remove(&self.0);
        OPEN.changed.notify_waiters();
    }
}

/// Waits until no server works any more for a connection that was dropped, at
/// most for `bound`.
pub async fn settle(bound: Duration) {
    OPEN.until_none(bound, |known| known.winds_up).await;
}

/// Like [`settle`], for the end of the process, which needs no connection any more: cancels the
/// statements that servers still execute for open connections.
pub async fn settle_all(bound: Duration) {
    let ending = async {
        OPEN.until_none(GRACE, |_| true).await;
        let left: Vec<Canceller> = OPEN.known().values().map(|known| known.canceller.clone()).collect();
        let mut cancels = tokio::task::JoinSet::new();
        for canceller in left {
            cancels.spawn(async move { canceller.cancel().await });
        }
        while cancels.join_next().await.is_some() {}
        settle(bound).await;
    };
    let _ = tokio::time::timeout(bound, ending).await;
}

/// Winds up the connection of `stream`, as the module describes. Its owner gave it up in the middle
/// of a command and closes it about now.
pub(crate) fn wind_up(stream: &Stream, canceller: Canceller, entry: Entry) {
    // Encrypted bytes need not be decrypted to be discarded.
    let socket = stream.socket().try_clone_to_owned().ok();
    let is_unix = matches!(stream, Stream::Unix(_));
    // Without a runtime nobody can wait for anything.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    entry.winds_up();
    runtime.spawn(async move {
        let _entry = entry;
        let ending = async {
            if let Err(error) = canceller.cancel().await {
                tracing::debug!("a statement that nobody waits for could not be cancelled: {error}");
            }
            if let Some(socket) = socket {
                let _ = read_to_end(socket, is_unix).await;
            }
        };
        let _ = tokio::time::timeout(WIND_UP, ending).await;
    });
}

/// Closes our side of the socket, and reads until the server closes its side.
async fn read_to_end(socket: OwnedFd, is_unix: bool) -> std::io::Result<()> {
    let mut stream = match is_unix {
        true => Stream::Unix(UnixStream::from_std(socket.into())?),
        false => Stream::Tcp(TcpStream::from_std(socket.into())?),
    };
    stream.shutdown().await?;
    let mut rest = vec![0; 64 << 10];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
