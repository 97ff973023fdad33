//! Messages of a server, for code that takes its place.
//!
//! Every function appends one message to the caller's bytes, with its tag and length. Source:
//! "Frontend/Backend Protocol", chapter "Message Formats".

use base::Oid;

use crate::frame::{ERROR_RESPONSE, NOTICE_RESPONSE, ServerError};

/// The mechanism without channel binding.
pub const SCRAM_SHA_256: &str = "SCRAM-SHA-256";
/// The mechanism with channel binding.
pub const SCRAM_SHA_256_PLUS: &str = "SCRAM-SHA-256-PLUS";

/// Kinds of authentication request.
mod request {
    pub(super) const OK: u32 = 0;
    pub(super) const SASL: u32 = 10;
    pub(super) const SASL_CONTINUE: u32 = 11;
    pub(super) const SASL_FINAL: u32 = 12;
}

/// Whether the session is in a transaction, as `ReadyForQuery` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionStatus {
    /// In none.
    Idle,
    /// In one.
    Open,
    /// In one that has failed.
    Failed,
}

/// A column of a result that is text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// The column's name.
    pub name: &'a str,
    /// The column's type.
    pub type_oid: Oid,
    /// The type's size in bytes; -1 if it varies.
    pub type_size: i16,
}

/// Appends a message whose body `write` appends.
fn message(out: &mut Vec<u8>, tag: u8, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(tag);
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    let length = u32::try_from(out.len() - at).expect("messages of a session are small");
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

fn string(out: &mut Vec<u8>, text: &str) {
    // A zero byte inside would end the string early.
    out.extend(text.bytes().filter(|&byte| byte != 0));
    out.push(0);
}

fn count(out: &mut Vec<u8>, count: usize) {
    let count = u16::try_from(count).expect("a result has few columns");
    out.extend_from_slice(&count.to_be_bytes());
}

fn authentication(out: &mut Vec<u8>, kind: u32, write: impl FnOnce(&mut Vec<u8>)) {
    message(out, b'R', |out| {
        out.extend_from_slice(&kind.to_be_bytes());
        write(out);
    });
}

/// `AuthenticationOk`.
pub fn authentication_ok(out: &mut Vec<u8>) {
    authentication(out, request::OK, |_| {});
}

/// `AuthenticationSASL`: the mechanisms, in the order in which they are preferred.
pub fn authentication_sasl(out: &mut Vec<u8>, mechanisms: &[&str]) {
    authentication(out, request::SASL, |out| {
        mechanisms.iter().for_each(|mechanism| string(out, mechanism));
        out.push(0);
    });
}

/// `AuthenticationSASLContinue`.
pub fn authentication_sasl_continue(out: &mut Vec<u8>, data: &str) {
    authentication(out, request::SASL_CONTINUE, |out| out.extend_from_slice(data.as_bytes()));
}

/// `AuthenticationSASLFinal`.
pub fn authentication_sasl_final(out: &mut Vec<u8>, data: &str) {
    authentication(out, request::SASL_FINAL, |out| out.extend_from_slice(data.as_bytes()));
}

/// `NegotiateProtocolVersion`: the newest minor version of protocol 3 that is spoken, and the
/// options of the client that are unknown.
pub fn negotiate_protocol_version(out: &mut Vec<u8>, minor: u16, unknown: &[String]) {
    message(out, b'v', |out| {
        out.extend_from_slice(&((3 << 16) | u32::from(minor)).to_be_bytes());
        let number = u32::try_from(unknown.len()).expect("options of one packet");
        out.extend_from_slice(&number.to_be_bytes());
        unknown.iter().for_each(|name| string(out, name));
    });
}

/// `ParameterStatus`.
pub fn parameter_status(out: &mut Vec<u8>, name: &str, value: &str) {
    message(out, b'S', |out| {
        string(out, name);
        string(out, value);
    });
}

/// `BackendKeyData`: what cancels the session's statement.
pub fn backend_key_data(out: &mut Vec<u8>, pid: u32, key: &[u8]) {
    message(out, b'K', |out| {
        out.extend_from_slice(&pid.to_be_bytes());
        out.extend_from_slice(key);
    });
}

/// `ReadyForQuery`.
pub fn ready_for_query(out: &mut Vec<u8>, status: TransactionStatus) {
    message(out, b'Z', |out| {
        out.push(match status {
            TransactionStatus::Idle => b'I',
            TransactionStatus::Open => b'T',
            TransactionStatus::Failed => b'E',
        });
    });
}

/// `RowDescription`.
pub fn row_description(out: &mut Vec<u8>, fields: &[Field<'_>]) {
    message(out, b'T', |out| {
        count(out, fields.len());
        for field in fields {
            string(out, field.name);
            // Of no table.
            out.extend_from_slice(&[0; 6]);
            out.extend_from_slice(&field.type_oid.0.to_be_bytes());
            out.extend_from_slice(&field.type_size.to_be_bytes());
            // No modifier; as text.
            out.extend_from_slice(&(-1_i32).to_be_bytes());
            out.extend_from_slice(&[0; 2]);
        }
    });
}

/// `DataRow` with values as text.
pub fn data_row(out: &mut Vec<u8>, values: &[Option<&str>]) {
    message(out, b'D', |out| {
        count(out, values.len());
        for value in values {
            match value {
                Some(value) => {
                    let length = i32::try_from(value.len()).expect("values of a session are small");
                    out.extend_from_slice(&length.to_be_bytes());
                    out.extend_from_slice(value.as_bytes());
                }
                None => out.extend_from_slice(&(-1_i32).to_be_bytes()),
            }
        }
    });
}

/// `CommandComplete`.
pub fn command_complete(out: &mut Vec<u8>, tag: &str) {
    message(out, b'C', |out| string(out, tag));
}

/// `EmptyQueryResponse`.
pub fn empty_query_response(out: &mut Vec<u8>) {
    message(out, b'I', |_| {});
}

/// `CopyBothResponse` of a stream: no columns, as text.
pub fn copy_both_response(out: &mut Vec<u8>) {
    message(out, b'W', |out| out.extend_from_slice(&[0; 3]));
}

/// `CopyDone`.
pub fn copy_done(out: &mut Vec<u8>) {
    message(out, b'c', |_| {});
}

/// `ErrorResponse`.
pub fn error_response(out: &mut Vec<u8>, error: &ServerError) {
    message(out, ERROR_RESPONSE, |out| fields(out, error));
}

/// `NoticeResponse`.
pub fn notice_response(out: &mut Vec<u8>, notice: &ServerError) {
    message(out, NOTICE_RESPONSE, |out| fields(out, notice));
}

fn fields(out: &mut Vec<u8>, error: &ServerError) {
    let mut field = |kind: u8, text: &str| {
        out.push(kind);
        string(out, text);
    };
    field(b'S', &error.severity);
    field(b'V', &error.severity);
    field(b'C', &error.code);
    field(b'M', &error.message);
    let position = error.position.map(|position| position.to_string());
    for (kind, text) in [
        (b'D', &error.detail),
        (b'H', &error.hint),
        (b'P', &position),
        (b'W', &error.context),
        (b's', &error.schema),
        (b't', &error.table),
        (b'c', &error.column),
        (b'd', &error.data_type),
        (b'n', &error.constraint),
        (b'R', &error.routine),
    ] {
        if let Some(text) = text {
            field(kind, text);
        }
    }
    out.push(0);
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use fallible_iterator::FallibleIterator;
    use postgres_protocol::message::backend::Message;

    use super::*;
    use crate::frame;

    /// The one message that `write` appends, as another implementation of the protocol reads it.
    fn parsed(write: impl FnOnce(&mut Vec<u8>)) -> Message {
        let mut out = Vec::new();
        write(&mut out);
        let mut bytes = BytesMut::from(&out[..]);
        let message = Message::parse(&mut bytes).unwrap().expect("a whole message");
        assert!(bytes.is_empty(), "more than one message");
        message
    }

    #[test]
    fn authentication_is_read_by_a_client() {
        assert!(matches!(parsed(authentication_ok), Message::AuthenticationOk));
        let offered = [SCRAM_SHA_256_PLUS, SCRAM_SHA_256];
        let Message::AuthenticationSasl(sasl) = parsed(|out| authentication_sasl(out, &offered)) else {
            panic!("no SASL")
        };
        assert_eq!(sasl.mechanisms().collect::<Vec<_>>().unwrap(), offered);
        let Message::AuthenticationSaslContinue(body) =
            parsed(|out| authentication_sasl_continue(out, "r=x,s=eA==,i=1"))
        else {
            panic!("no SASL")
        };
        assert_eq!(body.data(), b"r=x,s=eA==,i=1");
        let Message::AuthenticationSaslFinal(body) = parsed(|out| authentication_sasl_final(out, "v=eA=="))
        else {
            panic!("no SASL")
        };
        assert_eq!(body.data(), b"v=eA==");
    }

    #[test]
    fn the_session_is_read_by_a_client() {
        let Message::ParameterStatus(status) = parsed(|out| parameter_status(out, "server_version", "18.4"))
        else {
            panic!("no parameter")
        };
        assert_eq!((status.name().unwrap(), status.value().unwrap()), ("server_version", "18.4"));
        let Message::BackendKeyData(key) = parsed(|out| backend_key_data(out, 7, &[0, 0, 1, 0])) else {
            panic!("no key")
        };
        assert_eq!((key.process_id(), key.secret_key()), (7, 256));
        for (status, byte) in [
            (TransactionStatus::Idle, b'I'),
            (TransactionStatus::Open, b'T'),
            (TransactionStatus::Failed, b'E'),
        ] {
            let Message::ReadyForQuery(ready) = parsed(|out| ready_for_query(out, status)) else {
                panic!("not ready")
            };
            assert_eq!(ready.status(), byte);
        }
        assert!(matches!(parsed(empty_query_response), Message::EmptyQueryResponse));
        assert!(matches!(parsed(copy_done), Message::CopyDone));
    }

    #[test]
    fn results_are_read_by_a_client() {
        let fields = [
            Field { name: "slot_name", type_oid: Oid(25), type_size: -1 },
            Field { name: "restart_tli", type_oid: Oid(20), type_size: 8 },
        ];
        let Message::RowDescription(description) = parsed(|out| row_description(out, &fields)) else {
            panic!("no description")
        };
        let seen: Vec<(String, u32, i16)> = description
            .fields()
            .map(|field| Ok((field.name().to_owned(), field.type_oid(), field.type_size())))
            .collect()
            .unwrap();
        assert_eq!(seen, [("slot_name".to_owned(), 25, -1), ("restart_tli".to_owned(), 20, 8)]);
        let Message::DataRow(row) = parsed(|out| data_row(out, &[Some("s"), None])) else { panic!("no row") };
        let values: Vec<Option<&[u8]>> =
            row.ranges().map(|range| Ok(range.map(|range| &row.buffer()[range]))).collect().unwrap();
        assert_eq!(values, [Some(&b"s"[..]), None]);
        let Message::CommandComplete(complete) = parsed(|out| command_complete(out, "IDENTIFY_SYSTEM"))
        else {
            panic!("not complete")
        };
        assert_eq!(complete.tag().unwrap(), "IDENTIFY_SYSTEM");
    }

    #[test]
    fn an_error_comes_back_as_it_was() {
        let error = ServerError {
            detail: Some("why".to_owned()),
            hint: Some("what to do".to_owned()),
            position: Some(7),
            table: Some("t".to_owned()),
            routine: Some("StartLogicalReplication".to_owned()),
            ..ServerError::new("ERROR", "42704", "replication slot \"s\" does not exist")
        };
        let mut out = Vec::new();
        error_response(&mut out, &error);
        notice_response(&mut out, &error);
        let mut bytes = BytesMut::from(&out[..]);
        for tag in [ERROR_RESPONSE, NOTICE_RESPONSE] {
            let frame = frame::next(&mut bytes).unwrap().expect("a whole message");
            assert_eq!(frame.tag, tag);
            assert_eq!(ServerError::parse(&frame.body).unwrap(), error);
        }
    }

    #[test]
    fn a_zero_byte_does_not_end_a_string_early() {
        let mut out = Vec::new();
        error_response(&mut out, &ServerError::new("ERROR", "22021", "before\0after"));
        let frame = frame::next(&mut BytesMut::from(&out[..])).unwrap().expect("a whole message");
        assert_eq!(ServerError::parse(&frame.body).unwrap().message, "beforeafter");
    }

    #[test]
    fn messages_that_only_replication_has() {
        let mut out = Vec::new();
        copy_both_response(&mut out);
        assert_eq!(out, [b'W', 0, 0, 0, 7, 0, 0, 0]);
        out.clear();
        negotiate_protocol_version(&mut out, 2, &["_pq_.x".to_owned()]);
        assert_eq!(out, *b"v\0\0\0\x13\0\x03\0\x02\0\0\0\x01_pq_.x\0");
    }
}
