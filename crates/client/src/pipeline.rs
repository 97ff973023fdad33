//! Many statements in one round trip, by the extended protocol.
//!
//! The caller prepares statements once under a name, then executes them with parameters, or with
//! rows if they are a COPY. Everything up to [`Pipeline::run`] ends in one Sync. The server runs
//! the statements in order and skips those after an error. So the number of results says which
//! statement failed. A caller that must know the progress asks for the answers so far
//! ([`Pipeline::keep_up`]).

use bytes::{BufMut, Bytes, BytesMut};
use proto::frame::ServerError;

use base::Oid;

use crate::wire::{Taken, Wire, WireState, text_row};
use crate::{Error, startup};

/// Statements that will be sent together.
#[must_use = "nothing is sent before `run`"]
pub struct Pipeline<'w> {
    wire: &'w mut Wire,
    /// Statements gathered so far.
    executed: usize,
    result: PipelineResult,
    /// The last row of the statement whose results are being read.
    last_row: Option<Bytes>,
}

/// The SQLSTATE of an INFO by which a running statement reports something. Its sender and its
/// reader must agree on the words.
pub const REPORT: &str = "PGS01";

/// The outcome of a [`Pipeline`].
#[derive(Debug, Default)]
pub struct PipelineResult {
    /// Rows each completed statement reported, in order; zero for statements
    /// that report none. Preparing is not counted.
    pub rows: Vec<u64>,
    /// How many statements were prepared.
    pub prepared: usize,
    /// What running statements have reported so far, in order ([`REPORT`]).
    pub reports: Vec<String>,
    /// The last row of each completed statement, as received.
    last_rows: Vec<Option<Bytes>>,
    /// The error that ended the pipeline. The statement after the last of `rows` (or its
    /// preparation) caused it, and the server ran nothing after that.
    pub error: Option<ServerError>,
}

impl PipelineResult {
    /// The values, as text, of the last row that a completed statement returned; none if it
    /// returned no row.
    #[must_use]
    pub fn last_row(&self, statement: usize) -> Vec<Option<String>> {
        let row = self.last_rows.get(statement).and_then(Option::as_ref);
        row.and_then(|body| text_row(body).ok()).unwrap_or_default()
    }
}

impl Wire {
    /// Begins to gather statements. The connection must be idle.
    ///
    /// # Errors
    /// The connection is not idle, or was lost.
    pub async fn pipeline(&mut self) -> Result<Pipeline<'_>, Error> {
        if self.state == WireState::Draining {
            self.drain().await?;
        }
        let idle = self.expect(WireState::Idle);
        self.placed(idle)?;
        Ok(Pipeline { wire: self, executed: 0, result: PipelineResult::default(), last_row: None })
    }

    /// Whether the connection can no longer be used: it was lost, ended by the server, or given up
    /// in the middle of a command.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.state == WireState::Broken
    }
}

impl Pipeline<'_> {
    /// Prepares `sql` as `name`; the empty name is replaced by every use.
    pub fn prepare(&mut self, name: &str, sql: &str, parameter_types: &[Oid]) {
        message(&mut self.wire.link.outbox, b'P', |body| {
            put_name(body, name);
            put_name(body, sql);
            body.put_u16(u16::try_from(parameter_types.len()).expect("at most 65,535 parameters"));
            parameter_types.iter().for_each(|oid| body.put_u32(oid.0));
        });
    }

    /// Executes the prepared statement `name`. `put` appends the part of the
    /// Bind message from the formats to the values, of about `size` bytes.
    pub fn execute(&mut self, name: &str, size: usize, put: impl FnOnce(&mut BytesMut)) {
        let outbox = &mut self.wire.link.outbox;
        outbox.reserve(size + name.len() + 32);
        message(outbox, b'B', |body| {
            put_name(body, "");
            put_name(body, name);
            put(body);
            body.put_u16(0);
        });
        message(outbox, b'E', |body| {
            put_name(body, "");
            body.put_u32(0);
        });
        self.executed += 1;
    }

    /// Executes the prepared statement `name`, a `COPY ... FROM STDIN`. `put` appends the next
    /// piece of the data and returns whether there is more. The server ignores the data if the
    /// statement fails.
    pub fn execute_copy(&mut self, name: &str, mut put: impl FnMut(&mut BytesMut) -> bool) {
        self.execute(name, 4, |out| out.put_u32(0));
        let outbox = &mut self.wire.link.outbox;
        let mut more = true;
        while more {
            message(outbox, b'd', |body| more = put(body));
        }
        message(outbox, b'c', |_| ());
    }

    /// Bytes gathered so far.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.wire.link.outbox.len()
    }

    /// Sends the statements gathered so far; [`Pipeline::run`] reads the results. Not cancel safe:
    /// if the future is dropped half-way, the connection can no longer be used.
    ///
    /// # Errors
    /// A lost connection.
    pub async fn flush(&mut self) -> Result<(), Error> {
        self.wire.state = WireState::Broken;
        let sent = self.wire.link.send_while_reading(&[]).await;
        self.wire.placed(sent)
    }

    /// Sends the statements gathered so far, and waits until all but `unfinished` of them are
    /// complete. Returns true if there was no error; after an error the server runs nothing more.
    /// Calls `watch` with the outcome so far as answers arrive. Not cancel safe, like
    /// [`Pipeline::flush`].
    ///
    /// # Errors
    /// A lost connection, or an error that ends it.
    pub async fn keep_up(
        &mut self,
        unfinished: usize,
        mut watch: impl FnMut(&PipelineResult),
    ) -> Result<bool, Error> {
        self.ask_for_answers();
        self.wire.state = WireState::Broken;
        let enough = |result: &PipelineResult, executed| {
            watch(result);
            result.error.is_some() || result.rows.len() + unfinished >= executed
        };
        let done = self.read_until(enough).await;
        self.wire.placed(done)?;
        Ok(self.result.error.is_none())
    }

    /// The outcome so far.
    pub fn known(&self) -> &PipelineResult {
        &self.result
    }

    /// Asks the server to send its answers to earlier messages at once. Otherwise the server may
    /// hold them until there are many, or until the end.
    pub fn ask_for_answers(&mut self) {
        message(&mut self.wire.link.outbox, b'H', |_| ());
    }

    /// Sends everything and reads every result. Not cancel safe: if the future is dropped half-way,
    /// the connection can no longer be used.
    ///
    /// # Errors
    /// A lost connection, or an error that ends it; an error of a statement
    /// is part of the result.
    pub async fn run(self) -> Result<PipelineResult, Error> {
        self.run_watched(|_| ()).await
    }

    /// Like [`Pipeline::run`], and calls `watch` with the outcome so far as answers arrive.
    ///
    /// # Errors
    /// As [`Pipeline::run`].
    pub async fn run_watched(
        mut self,
        mut watch: impl FnMut(&PipelineResult),
    ) -> Result<PipelineResult, Error> {
        message(&mut self.wire.link.outbox, b'S', |_| ());
        self.wire.state = WireState::Broken;
        let on = |result: &PipelineResult, _| {
            watch(result);
            false
        };
        let done = self.read_until(on).await;
        self.wire.placed(done)?;
        self.wire.state = WireState::Idle;
        Ok(self.result)
    }

    /// Sends the gathered statements, and reads results until they are `enough` or the Sync is
    /// answered.
    async fn read_until(
        &mut self,
        mut enough: impl FnMut(&PipelineResult, usize) -> bool,
    ) -> Result<(), Error> {
        let Pipeline { wire, executed, result, last_row } = self;
        wire.link.send_while_reading(&[]).await?;
        while !enough(result, *executed) {
            let frame = match wire.take() {
                Ok(Taken::Frame(frame)) => Ok(frame),
                Ok(Taken::Handled) => {
                    let report = wire.take_info().filter(|info| info.code == REPORT);
                    result.reports.extend(report.map(|info| info.message));
                    continue;
                }
                Ok(Taken::Nothing) => match wire.fill().await {
                    Ok(()) => continue,
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            };
            match frame {
                Ok(frame) => match frame.tag {
                    b'C' => {
                        result.rows.push(reported_rows(&frame.body));
                        result.last_rows.push(last_row.take());
                    }
                    b'1' => result.prepared += 1,
                    // EmptyQueryResponse ends a statement as well.
                    b'I' => {
                        result.rows.push(0);
                        result.last_rows.push(None);
                    }
                    b'D' => *last_row = Some(frame.body),
                    // BindComplete, NoData, CopyInResponse.
                    b'2' | b'n' | b'G' => {}
                    b'Z' => return Ok(()),
                    _ => return Err(startup::refusal(&frame, "reading the results of a pipeline")),
                },
                Err(error) => match error.server() {
                    Some(server) if !server.is_fatal() => result.error = Some(server.clone()),
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }
}

/// Appends one message whose body `write` makes.
fn message(out: &mut BytesMut, tag: u8, write: impl FnOnce(&mut BytesMut)) {
    out.put_u8(tag);
    let start = out.len();
    out.put_u32(0);
    write(out);
    let length = u32::try_from(out.len() - start).expect("a message is below 4 GiB");
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

fn put_name(body: &mut BytesMut, name: &str) {
    body.put_slice(name.as_bytes());
    body.put_u8(0);
}

/// The count at the end of a command tag: `UPDATE 3`, `INSERT 0 3`.
fn reported_rows(body: &[u8]) -> u64 {
    let tag = body.strip_suffix(b"\0").unwrap_or(body);
    let last = tag.rsplit(|&b| b == b' ').next().unwrap_or_default();
    std::str::from_utf8(last).ok().and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_tags() {
        for (tag, rows) in [("UPDATE 3", 3), ("INSERT 0 12", 12), ("BEGIN", 0), ("SELECT 1", 1), ("", 0)] {
            assert_eq!(reported_rows(format!("{tag}\0").as_bytes()), rows, "{tag}");
        }
    }
}
