//! Asks a server to cancel the command of another connection.
//!
//! The request travels on a connection of its own, to the same server, and is encrypted if the
//! session is. It carries a secret, so an encrypted session never sends it in the clear.

use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::dial::{self, Encryption, Endpoint};
use crate::{ConnInfo, Error};

/// Cancels the command of one session. Cheap to clone, usable from any task.
#[derive(Clone)]
pub struct Canceller {
    info: ConnInfo,
    endpoint: Endpoint,
    encryption: Encryption,
    pid: i32,
    secret: i32,
}

impl std::fmt::Debug for Canceller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Canceller({}, pid {})", self.info.describe_host(&self.endpoint.host), self.pid)
    }
}

impl Canceller {
    pub(crate) fn new(
        info: ConnInfo,
        endpoint: Endpoint,
        encryption: Encryption,
        pid: i32,
        secret: i32,
    ) -> Canceller {
        Canceller { info, endpoint, encryption, pid, secret }
    }

    /// Sends the request and waits until the server has taken it. The server does not say whether
    /// there was something to cancel. The command fails with SQLSTATE 57014, or has ended before.
    ///
    /// # Errors
    /// The server could not be reached.
    pub async fn cancel(&self) -> Result<(), Error> {
        self.send().await.map_err(|error| error.at(&self.info.describe_host(&self.endpoint.host)))
    }

    async fn send(&self) -> Result<(), Error> {
        let mut stream = dial::open(self.info.settings(), &self.endpoint, self.encryption).await?;
        let mut request = bytes::BytesMut::new();
        frontend::cancel_request(self.pid, self.secret, &mut request);
        stream.write_all(&request).await.map_err(Error::lost)?;
        stream.flush().await.map_err(Error::lost)?;
        // The server closes once the signal is sent; how it closes, with or
        // without TLS's goodbye, does not matter.
        let mut rest = Vec::new();
        let _ = stream.take(64).read_to_end(&mut rest).await;
        Ok(())
    }
}
