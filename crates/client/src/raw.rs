//! A session whose messages belong to somebody else: the words of a client, passed on.

use std::collections::BTreeMap;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::cancel::Canceller;
use crate::dial::{self, Established};
use crate::link::Link;
use crate::startup::{Purpose, Replication};
use crate::{ConnInfo, Error};

/// A session that is ready for its first message. The caller reads and writes all of them.
pub struct RawSession {
    link: Link,
    parameters: BTreeMap<String, String>,
    canceller: Canceller,
}

impl RawSession {
    /// Connects as [`crate::Wire::connect`] does.
    ///
    /// # Errors
    /// As there.
    pub async fn connect(
        info: &ConnInfo,
        application_name: &str,
        replication: Replication,
        settings: &[(&str, &str)],
    ) -> Result<RawSession, Error> {
        let purpose = Purpose { application_name, replication, settings };
        let Established { ready, endpoint, encryption, .. } = dial::establish(info, &purpose).await?;
        let canceller = Canceller::new(info.clone(), endpoint, encryption, ready.pid, ready.secret);
        Ok(RawSession { link: ready.link, parameters: ready.parameters, canceller })
    }

    /// The parameters that the server reported, with their values.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parameters.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// What can cancel the running command from another task.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// The connection, and what has come over it behind the first `ReadyForQuery`.
    #[must_use]
    pub fn into_parts(self) -> (impl AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static, BytesMut) {
        self.link.into_parts()
    }
}
