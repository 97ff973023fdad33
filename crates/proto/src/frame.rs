//! The envelope of every backend message: a tag, a length, a body.
//!
//! This module is handed bytes from a socket, in chunks of any size. It promises whole messages in
//! order, never a part of one. Bodies share the buffer's memory and are not copied. A length is
//! checked before it is believed. Errors and notices of the server (`ErrorResponse`,
//! `NoticeResponse`) are parsed here, because every stage reads them. The meaning of other bodies
//! belongs elsewhere.
//!
//! Source: "Frontend/Backend Protocol", chapters "Message Formats" and "Error and Notice Message
//! Fields".

use std::fmt;

use bytes::{Buf, Bytes, BytesMut};

/// Tag of `CopyData`.
pub const COPY_DATA: u8 = b'd';
/// Tag of `ErrorResponse`.
pub const ERROR_RESPONSE: u8 = b'E';
/// Tag of `NoticeResponse`.
pub const NOTICE_RESPONSE: u8 = b'N';

/// The size of tag and length, which begin every message.
pub const HEADER_SIZE: usize = 5;

/// A longer message shows that the stream is out of step. One row of COPY or one change has at most
/// 1 GiB on the server (`MaxAllocSize` in `utils/memutils.h`), and its buffers have the same limit.
pub const LENGTH_MAX: usize = 1 << 30;

/// One message of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The kind of message, as a byte of the protocol such as `b'd'`.
    pub tag: u8,
    /// Everything behind the length.
    pub body: Bytes,
}

/// The bytes are not a message of this protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Length { tag: u8, length: u32 },
    Fields,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Length { tag, length } => write!(
                f,
                "message '{}' claims a length of {length} bytes, outside 4 to {LENGTH_MAX}: \
                 the peer is not a PostgreSQL server, or the stream is out of step",
                tag.escape_ascii()
            ),
            Kind::Fields => f.write_str("an error message of the server ends in the middle of a field"),
        }
    }
}

impl std::error::Error for Error {}

/// The size of the first message with its header, once the header is there.
///
/// # Errors
/// The length is shorter than its own field or above [`LENGTH_MAX`].
pub fn first_size(buf: &[u8]) -> Result<Option<usize>, Error> {
    let Some((&[tag, a, b, c, d], _)) = buf.split_first_chunk::<HEADER_SIZE>() else { return Ok(None) };
    let length = u32::from_be_bytes([a, b, c, d]);
    // The length counts itself but not the tag.
    if length < 4 || length as usize > LENGTH_MAX {
        return Err(Error { kind: Kind::Length { tag, length } });
    }
    Ok(Some(length as usize + 1))
}

/// Takes the first message from `buf`; `None` while it is not whole.
///
/// # Errors
/// As [`first_size`]; the buffer is then unusable.
pub fn next(buf: &mut BytesMut) -> Result<Option<Frame>, Error> {
    match first_size(buf)? {
        Some(size) if buf.len() >= size => {
            let mut message = buf.split_to(size).freeze();
            let tag = message[0];
            message.advance(HEADER_SIZE);
            Ok(Some(Frame { tag, body: message }))
        }
        _ => Ok(None),
    }
}

/// The number of bytes at the start of `buf` that are whole messages with tag `tag`, and the number
/// of these messages. Stops at the first other tag, and at the first message that is not whole.
/// Only looks at headers.
///
/// # Errors
/// As [`first_size`].
pub fn run_of(tag: u8, buf: &[u8]) -> Result<(usize, u64), Error> {
    let mut size = 0;
    let mut messages = 0;
    while buf.get(size) == Some(&tag) {
        match first_size(&buf[size..])? {
            Some(message) if buf.len() - size >= message => {
                size += message;
                messages += 1;
            }
            _ => break,
        }
    }
    Ok((size, messages))
}

/// The header of a `CopyData` with a body of `size` bytes; `None` if that is too long for a
/// message.
#[must_use]
pub fn copy_data_header(size: usize) -> Option<[u8; HEADER_SIZE]> {
    let length = u32::try_from(size.checked_add(4)?).ok().filter(|&length| length as usize <= LENGTH_MAX)?;
    let [a, b, c, d] = length.to_be_bytes();
    Some([COPY_DATA, a, b, c, d])
}

/// An error or a notice from the server. Fields that were not sent are empty or `None`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerError {
    /// `ERROR`, `FATAL`, `PANIC`, or a notice's level; never translated.
    pub severity: String,
    /// SQLSTATE, five characters.
    pub code: String,
    /// The primary message.
    pub message: String,
    /// Detail. May quote values of the row.
    pub detail: Option<String>,
    /// What to do about it, if the server knows.
    pub hint: Option<String>,
    /// Position of the error in the query text, counted in characters from 1.
    pub position: Option<u32>,
    /// Call stack or COPY line. May quote values of the row.
    pub context: Option<String>,
    /// Schema of the object concerned.
    pub schema: Option<String>,
    /// Table concerned.
    pub table: Option<String>,
    /// Column concerned.
    pub column: Option<String>,
    /// Data type concerned.
    pub data_type: Option<String>,
    /// Constraint concerned.
    pub constraint: Option<String>,
    /// Function of the server's source that reported it.
    pub routine: Option<String>,
}

impl ServerError {
    /// An error with only the fields that every error has.
    #[must_use]
    pub fn new(severity: &str, code: &str, message: &str) -> ServerError {
        let [severity, code, message] = [severity, code, message].map(str::to_owned);
        ServerError { severity, code, message, ..ServerError::default() }
    }

    /// Reads the body of an `ErrorResponse` or a `NoticeResponse`. Unknown fields are skipped, as
    /// the protocol requires.
    ///
    /// # Errors
    /// A field has no end, or the list has none.
    pub fn parse(body: &[u8]) -> Result<ServerError, Error> {
        let mut error = ServerError::default();
        let mut rest = body;
        let mut severity_is_untranslated = false;
        loop {
            let (&field, after) = rest.split_first().ok_or(Error { kind: Kind::Fields })?;
            if field == 0 {
                return Ok(error);
            }
            let end = after.iter().position(|&b| b == 0).ok_or(Error { kind: Kind::Fields })?;
            // Before the session has an encoding, the server's messages may have any.
            let text = String::from_utf8_lossy(&after[..end]).into_owned();
            rest = &after[end + 1..];
            match field {
                b'S' if !severity_is_untranslated => error.severity = text,
                b'V' => {
                    error.severity = text;
                    severity_is_untranslated = true;
                }
                b'C' => error.code = text,
                b'M' => error.message = text,
                b'D' => error.detail = Some(text),
                b'H' => error.hint = Some(text),
                b'P' => error.position = text.parse().ok(),
                b'W' => error.context = Some(text),
                b's' => error.schema = Some(text),
                b't' => error.table = Some(text),
                b'c' => error.column = Some(text),
                b'd' => error.data_type = Some(text),
                b'n' => error.constraint = Some(text),
                b'R' => error.routine = Some(text),
                _ => {}
            }
        }
    }

    /// Whether the server closes the connection after this.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        matches!(self.severity.as_str(), "FATAL" | "PANIC")
    }

    /// Whether the detail may quote values of a row. It may for data exceptions and integrity
    /// violations, classes 22 and 23.
    fn detail_may_quote_rows(&self) -> bool {
        self.code.starts_with("22") || self.code.starts_with("23")
    }
}

/// Message, SQLSTATE, detail and hint on one line, without a detail that may quote values of a row.
/// The field has that.
impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (SQLSTATE {})", self.severity, self.message, self.code)?;
        if let Some(detail) = self.detail.as_ref().filter(|_| !self.detail_may_quote_rows()) {
            write!(f, "; detail: {detail}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "; hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ServerError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    fn stream() -> (Vec<u8>, Vec<(u8, Vec<u8>)>) {
        let messages: Vec<(u8, Vec<u8>)> = vec![
            (b'd', b"one".to_vec()),
            (b'd', Vec::new()),
            (b'N', vec![7; 300]),
            (b'd', vec![1; 40]),
            (b'Z', b"I".to_vec()),
        ];
        (messages.iter().flat_map(|(tag, body)| message(*tag, body)).collect(), messages)
    }

    #[test]
    fn every_chunk_size_gives_the_same_frames() {
        let (bytes, expected) = stream();
        for chunk_size in 1..=bytes.len() {
            let mut buf = BytesMut::new();
            let mut seen = Vec::new();
            for chunk in bytes.chunks(chunk_size) {
                buf.extend_from_slice(chunk);
                while let Some(frame) = next(&mut buf).unwrap() {
                    seen.push((frame.tag, frame.body.to_vec()));
                }
            }
            assert_eq!(seen, expected, "chunks of {chunk_size}");
            assert!(buf.is_empty());
        }
    }

    #[test]
    fn every_split_point_yields_only_whole_messages() {
        let (bytes, expected) = stream();
        for split in 0..=bytes.len() {
            let mut buf = BytesMut::from(&bytes[..split]);
            let mut seen = 0;
            let mut size = 0;
            while let Some(frame) = next(&mut buf).unwrap() {
                assert_eq!(frame.body, expected[seen].1);
                size += frame.body.len() + HEADER_SIZE;
                seen += 1;
            }
            assert!(size <= split);
            assert_eq!(size + buf.len(), split, "nothing lost at {split}");
        }
    }

    #[test]
    fn a_run_ends_at_another_tag_or_a_part() {
        let (bytes, _) = stream();
        assert_eq!(run_of(b'd', &bytes).unwrap(), (8 + 5, 2));
        assert_eq!(run_of(b'd', &bytes[..8]).unwrap(), (8, 1));
        assert_eq!(run_of(b'd', &bytes[..12]).unwrap(), (8, 1), "a header one byte short");
        assert_eq!(run_of(b'd', &bytes[..7]).unwrap(), (0, 0));
        assert_eq!(run_of(b'Z', &bytes).unwrap(), (0, 0));
        assert_eq!(run_of(b'd', &[]).unwrap(), (0, 0));
    }

    #[test]
    fn lengths_are_not_believed() {
        for length in [0u32, 3, LENGTH_MAX as u32 + 1, u32::MAX] {
            let mut buf = BytesMut::from(&[b'd'][..]);
            buf.extend_from_slice(&length.to_be_bytes());
            let error = next(&mut buf).unwrap_err();
            assert!(error.to_string().contains(&length.to_string()), "{error}");
            assert!(run_of(b'd', &buf).is_err());
        }
        let mut shortest = BytesMut::from(&[b'c', 0, 0, 0, 4][..]);
        assert_eq!(next(&mut shortest).unwrap(), Some(Frame { tag: b'c', body: Bytes::new() }));
    }

    #[test]
    fn error_fields() {
        let body = b"SFEHLER\0VERROR\0C23505\0Mduplicate key\0DKey (a)=(secret) already exists.\0ta\0nb\0zfuture\0\0";
        let error = ServerError::parse(body).unwrap();
        assert_eq!((error.severity.as_str(), error.code.as_str()), ("ERROR", "23505"));
        assert_eq!(error.table.as_deref(), Some("a"));
        assert_eq!(error.constraint.as_deref(), Some("b"));
        assert!(!error.is_fatal());
        assert_eq!(error.to_string(), "ERROR: duplicate key (SQLSTATE 23505)");
        for end in 0..body.len() {
            assert!(ServerError::parse(&body[..end]).is_err(), "cut at {end}");
        }
    }
}
