//! A connection that speaks frames: SQL as text, replication streams, COPY.
//!
//! tokio-postgres has no replication commands and no COPY in both directions, so
//! this is our own; ordinary SQL goes through tokio-postgres ([`crate::Session`]).
//!
//! A connection runs one command at a time. The last command decides what may come next:
//!
//! ```text
//!            query
//!          ┌──────┐
//!          ▼      │       copy_out   ┌─────────┐ CommandComplete
//!        ┌──────────┐ ─────────────► │ CopyOut │ ─────────────────► Idle
//!        │   Idle   │     copy_in    ├─────────┤ copy_in_finish,
//!        │          │ ─────────────► │ CopyIn  │ ─ copy_in_fail ──► Idle
//!        │          │     copy_both  ├─────────┤   or an error
//!        └──────────┘ ─────────────► │ CopyBoth│ ─ copy_both_finish ► Idle
//!          ▲                         └─────────┘
//!          │ ReadyForQuery    ┌──────────┐ ErrorResponse in any state
//!          └───────────────── │ Draining │ ◄─────────
//!                             └──────────┘
//! ```
//!
//! A command whose future is dropped half-way leaves the connection `Broken`, and every later call
//! reports that. `read_frame`, `copy_out_block` and `send_copy_data` are exceptions: their futures
//! may be dropped.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use base::PgVersion;
use postgres_protocol::message::frontend;
use proto::frame::{self, Frame, ServerError};

use crate::cancel::Canceller;
use crate::dial::{self, Established};
use crate::error::Kind;
use crate::farewell::{self, Entry};
use crate::link::Link;
use crate::startup::{self, Purpose, Replication};
use crate::{ConnInfo, Error};

/// A connection that speaks frames: replication protocol and raw COPY.
///
/// Dropping it closes the socket, and cancels what the server is doing for it; [`Wire::close`] says
/// goodbye first.
pub struct Wire {
    pub(crate) link: Link,
    pub(crate) state: WireState,
    parameters: BTreeMap<String, String>,
    version: PgVersion,
    pid: i32,
    canceller: Canceller,
    place: String,
    warning: Option<ServerError>,
    /// The last INFO, which a statement sends by itself.
    info: Option<ServerError>,
    /// The server has closed its side.
    ended: bool,
    entry: Option<Entry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WireState {
    Idle,
    CopyBoth,
    CopyOut,
    CopyIn,
    /// An error was returned and its `ReadyForQuery` is still to come.
    Draining,
    /// The connection can no longer be used.
    Broken,
}

impl fmt::Display for WireState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WireState::Idle => "idle",
            WireState::CopyBoth => "streaming",
            WireState::CopyOut => "receiving a COPY",
            WireState::CopyIn => "sending a COPY",
            WireState::Draining => "behind an error",
            WireState::Broken => "broken",
        })
    }
}

/// The result of looking for one message.
pub(crate) enum Taken {
    /// The buffer holds no whole message.
    Nothing,
    /// The message was a notice or the like, and is handled.
    Handled,
    Frame(Frame),
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Wire({}, pid {}, {:?})", self.place, self.pid, self.state)
    }
}

impl Wire {
    /// Connects as `info` says. `settings` are configuration parameters for
    /// the session (name, value); they win over the connection string's
    /// `options`. `application_name` is used unless the connection string or
    /// `PGAPPNAME` has one.
    ///
    /// # Errors
    /// See the predicates of [`Error`].
    pub async fn connect(
        info: &ConnInfo,
        application_name: &str,
        replication: Replication,
        settings: &[(&str, &str)],
    ) -> Result<Wire, Error> {
        let purpose = Purpose { application_name, replication, settings };
        let Established { ready, endpoint, encryption, version, place } =
            dial::establish(info, &purpose).await?;
        let canceller = Canceller::new(info.clone(), endpoint, encryption, ready.pid, ready.secret);
        Ok(Wire {
            link: ready.link,
            state: WireState::Idle,
            parameters: ready.parameters,
            version,
            pid: ready.pid,
            entry: Some(Entry::new(canceller.clone())),
            canceller,
            place,
            warning: None,
            info: None,
            ended: false,
        })
    }

    /// The server's version.
    #[must_use]
    pub fn version(&self) -> PgVersion {
        self.version
    }

    /// The process id of the server's backend.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// A parameter the server reports unasked, such as `server_encoding`.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    /// All parameters that the server has reported.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parameters.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Which server, database and user this is, safe to log.
    #[must_use]
    pub fn describe(&self) -> &str {
        &self.place
    }

    /// The server's last WARNING since the previous call. It came before the frame that was read
    /// last.
    pub fn take_warning(&mut self) -> Option<ServerError> {
        self.warning.take()
    }

    pub(crate) fn take_info(&mut self) -> Option<ServerError> {
        self.info.take()
    }

    /// The counter of bytes sent and received, by which a watcher sees whether they still move.
    #[must_use]
    pub fn traffic(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.link.traffic)
    }

    /// What can cancel the running command from another task.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// Runs `sql`, or a replication command, by the simple protocol. Rows of
    /// all its statements, values as text.
    ///
    /// # Errors
    /// The server's error, or a lost connection. After an error of the
    /// server that is not fatal the connection can be used again.
    pub async fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, Error> {
        let result = self.query_inner(sql).await;
        self.placed(result)
    }

    async fn query_inner(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, Error> {
        self.send_query(sql).await?;
        let mut rows = Vec::new();
        loop {
            let frame = self.next().await?;
            match frame.tag {
                b'D' => rows.push(text_row(&frame.body)?),
                // RowDescription, CommandComplete, EmptyQueryResponse.
                b'T' | b'C' | b'I' => {}
                b'Z' => {
                    self.state = WireState::Idle;
                    return Ok(rows);
                }
                _ => return Err(startup::refusal(&frame, "reading the result of a query")),
            }
        }
    }

    /// Sends a command that turns the connection into a stream both ways
    /// (`START_REPLICATION`) and waits until the server agrees.
    ///
    /// # Errors
    /// As [`Wire::query`].
    pub async fn copy_both(&mut self, command: &str) -> Result<(), Error> {
        let result = self.start_copy(command, b'W', WireState::CopyBoth).await;
        self.placed(result)
    }

    /// Ends the stream of [`Wire::copy_both`] in order: tells the server, then reads and discards
    /// what is still under way. Returns the rows of the command's result: one if a timeline has
    /// ended, otherwise none. Call it also when the server has ended its side.
    ///
    /// # Errors
    /// As [`Wire::query`].
    pub async fn copy_both_finish(&mut self) -> Result<Vec<Vec<Option<String>>>, Error> {
        let result = self.copy_both_finish_inner().await;
        self.placed(result)
    }

    async fn copy_both_finish_inner(&mut self) -> Result<Vec<Vec<Option<String>>>, Error> {
        self.expect(WireState::CopyBoth)?;
        self.state = WireState::Broken;
        frontend::copy_done(&mut self.link.outbox);
        self.link.send_while_reading(&[]).await?;
        let mut rows = Vec::new();
        loop {
            let frame = self.next().await?;
            match frame.tag {
                b'Z' => break,
                b'D' => rows.push(text_row(&frame.body)?),
                // Data, CopyDone, and what else belongs to the result.
                b'd' | b'c' | b'C' | b'T' => {}
                _ => return Err(startup::refusal(&frame, "ending the replication stream")),
            }
        }
        self.state = WireState::Idle;
        Ok(rows)
    }

    /// The next frame, waiting for it. Cancel safe. Notices, notifications
    /// and parameter changes are handled here and not returned.
    ///
    /// # Errors
    /// The server's error, or a lost connection.
    pub async fn read_frame(&mut self) -> Result<Frame, Error> {
        let result = self.next().await;
        self.placed(result)
    }

    /// The next frame if it has been received already; never waits.
    ///
    /// # Errors
    /// The server's error, or bytes that are no message.
    pub fn buffered_frame(&mut self) -> Result<Option<Frame>, Error> {
        let result = self.buffered();
        self.placed(result)
    }

    /// Sends `payload` as one `CopyData` and flushes it. If this is given up
    /// half-way, the rest goes out ahead of the next message.
    ///
    /// # Errors
    /// A lost connection.
    pub async fn send_copy_data(&mut self, payload: &[u8]) -> Result<(), Error> {
        if !matches!(self.state, WireState::CopyBoth | WireState::CopyIn) {
            let result = self.expect(WireState::CopyBoth);
            return self.placed(result);
        }
        let result = match frame::copy_data_header(payload.len()) {
            Some(header) => {
                self.link.outbox.extend_from_slice(&header);
                self.link.outbox.extend_from_slice(payload);
                self.link.flush().await
            }
            None => Err(Error::protocol("a message to the server would be longer than 1 GiB")),
        };
        self.placed(result)
    }

    /// Says goodbye and closes.
    pub async fn close(mut self) {
        if self.link.outbox.is_empty() {
            frontend::terminate(&mut self.link.outbox);
            // A peer that is gone needs no goodbye.
            let _ = self.link.flush().await;
        }
        self.link.shutdown().await;
    }

    /// Sends `command` and waits for the answer that starts a copy.
    pub(crate) async fn start_copy(
        &mut self,
        command: &str,
        answer: u8,
        state: WireState,
    ) -> Result<(), Error> {
        self.send_query(command).await?;
        loop {
            let frame = self.next().await?;
            match frame.tag {
                tag if tag == answer => {
                    self.state = state;
                    return Ok(());
                }
                // A statement before it in the same text.
                b'T' | b'D' | b'C' => {}
                b'Z' => {
                    self.state = WireState::Idle;
                    return Err(Error::protocol("the command was carried out but did not start a copy"));
                }
                _ => return Err(startup::refusal(&frame, "starting a copy")),
            }
        }
    }

    async fn send_query(&mut self, sql: &str) -> Result<(), Error> {
        if self.state == WireState::Draining {
            self.drain().await?;
        }
        self.expect(WireState::Idle)?;
        frontend::query(sql, &mut self.link.outbox)
            .map_err(|_| Error::protocol("a command contains a zero byte"))?;
        // Until its result has been read to the end.
        self.state = WireState::Broken;
        self.link.flush().await
    }

    /// Reads up to `ReadyForQuery` after an error.
    pub(crate) async fn drain(&mut self) -> Result<(), Error> {
        while self.next().await?.tag != b'Z' {}
        self.state = WireState::Idle;
        Ok(())
    }

    pub(crate) fn expect(&self, wanted: WireState) -> Result<(), Error> {
        if self.state == wanted {
            return Ok(());
        }
        Err(Error::protocol(match self.state {
            WireState::Broken => {
                "an earlier command on this connection failed or was given up half-way; open a new connection"
                    .to_owned()
            }
            state => format!("the connection is {state} and should be {wanted}"),
        }))
    }

    pub(crate) async fn next(&mut self) -> Result<Frame, Error> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }

    /// Waits for more bytes. Cancel safe.
    pub(crate) async fn fill(&mut self) -> Result<(), Error> {
        let filled = self.link.fill().await;
        if filled.is_err() {
            self.state = WireState::Broken;
            self.ended = true;
        }
        filled
    }

    pub(crate) fn buffered(&mut self) -> Result<Option<Frame>, Error> {
        loop {
            match self.take()? {
                Taken::Nothing => return Ok(None),
                Taken::Handled => {}
                Taken::Frame(frame) => return Ok(Some(frame)),
            }
        }
    }

    /// Takes one message out of the buffer.
    pub(crate) fn take(&mut self) -> Result<Taken, Error> {
        let Some(frame) = frame::next(&mut self.link.inbox)? else { return Ok(Taken::Nothing) };
        match frame.tag {
            frame::NOTICE_RESPONSE => {
                let notice = ServerError::parse(&frame.body)?;
                tracing::debug!(server = %self.place, code = %notice.code, "{}", notice.message);
                match notice.severity.as_str() {
                    "WARNING" => self.warning = Some(notice),
                    "INFO" => self.info = Some(notice),
                    _ => {}
                }
                Ok(Taken::Handled)
            }
            // NotificationResponse: nobody here listens.
            b'A' => Ok(Taken::Handled),
            b'S' => {
                let (name, value) = startup::parameter_status(&frame.body)?;
                self.parameters.insert(name, value);
                Ok(Taken::Handled)
            }
            frame::ERROR_RESPONSE => {
                let error = ServerError::parse(&frame.body)?;
                self.state = if error.is_fatal() { WireState::Broken } else { WireState::Draining };
                self.ended |= error.is_fatal();
                Err(Error::new(Kind::Server(Box::new(error))))
            }
            _ => Ok(Taken::Frame(frame)),
        }
    }

    pub(crate) fn placed<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.map_err(|error| error.at(&self.place))
    }
}

/// Nobody needs the result of a command whose connection is dropped, so it is cancelled.
impl Drop for Wire {
    fn drop(&mut self) {
        let idle = matches!(self.state, WireState::Idle | WireState::Draining);
        if let Some(entry) = self.entry.take().filter(|_| !idle && !self.ended) {
            farewell::wind_up(self.link.stream(), self.canceller.clone(), entry);
        }
    }
}

/// The values of a `DataRow` that are text.
///
/// # Errors
/// The bytes are no row, or a value is not UTF-8.
pub fn text_row(body: &[u8]) -> Result<Vec<Option<String>>, Error> {
    let cut = || Error::protocol("a row ends in the middle of a value");
    let (count, mut rest) = body.split_first_chunk::<2>().ok_or_else(cut)?;
    let count = u16::from_be_bytes(*count);
    let mut row = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let (size, after) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        rest = after;
        // -1 is NULL.
        let Ok(size) = usize::try_from(i32::from_be_bytes(*size)) else {
            row.push(None);
            continue;
        };
        let (value, after) = rest.split_at_checked(size).ok_or_else(cut)?;
        rest = after;
        let text = std::str::from_utf8(value).map_err(|_| {
            Error::protocol("the server sent text that is not UTF-8; its database has encoding SQL_ASCII")
        })?;
        row.push(Some(text.to_owned()));
    }
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_text() {
        let body = [0, 3, 0, 0, 0, 2, b'a', b'b', 255, 255, 255, 255, 0, 0, 0, 0];
        assert_eq!(text_row(&body).unwrap(), vec![Some("ab".to_owned()), None, Some(String::new())]);
        for end in 0..body.len() {
            assert!(text_row(&body[..end]).is_err(), "cut at {end}");
        }
        assert!(text_row(&[0, 1, 0, 0, 0, 1, 0xff]).unwrap_err().to_string().contains("UTF-8"));
    }
}
