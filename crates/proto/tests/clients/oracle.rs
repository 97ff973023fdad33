//! What must hold for any bytes of a client. Shared by the tests and the fuzz targets.

use bytes::BytesMut;
use proto::backend;
use proto::command::{self, Command, CommandOption};
use proto::frame::{self, ServerError};
use proto::scram::{Binding, Exchange, Verifier};
use proto::startup::{self, FirstPacket, MINOR_MAX, PACKET_SIZE_MAX, Purpose, Refusal};

/// `NAMEDATALEN`
const NAME_SIZE: usize = 64;
/// Of a password that no message here belongs to.
const VERIFIER: &str = "SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0c2FsdA==$\
    WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

/// Reads `data` as the first packet of a connection. Returns whether it is one.
pub(crate) fn startup(data: &[u8]) -> bool {
    let mut buf = BytesMut::from(data);
    match startup::next(&mut buf) {
        Ok(None) => {
            assert_eq!(buf, data, "what is not whole stays");
            assert!(data.len() < PACKET_SIZE_MAX, "the longest packet is not waited for");
            false
        }
        Ok(Some(packet)) => {
            let taken = data.len() - buf.len();
            // Whatever comes behind it belongs to the next message.
            assert!(data.ends_with(&buf) && (8..=PACKET_SIZE_MAX).contains(&taken));
            assert_eq!(startup::next(&mut BytesMut::from(&data[..taken - 1])), Ok(None), "cut short");
            if let FirstPacket::Startup(startup) = packet {
                assert!(!startup.user.is_empty() && startup.minor <= MINOR_MAX);
                assert_eq!(startup.database.is_empty(), startup.purpose == Purpose::Physical);
                let mut out = Vec::new();
                if let Some(negotiation) = startup.negotiation {
                    backend::negotiate_protocol_version(&mut out, negotiation.minor, &negotiation.unknown);
                    assert!(frame::next(&mut BytesMut::from(&out[..])).is_ok_and(|frame| frame.is_some()));
                }
            }
            true
        }
        Err(Refusal::Silent(why)) => {
            assert!(!why.is_empty());
            false
        }
        Err(Refusal::Told(error)) => {
            assert!(error.is_fatal(), "{error}");
            told(&error);
            false
        }
    }
}

/// An error that the client is told arrives as it is.
pub(crate) fn told(error: &ServerError) {
    let mut out = Vec::new();
    backend::error_response(&mut out, error);
    let frame = frame::next(&mut BytesMut::from(&out[..])).ok().flatten().expect("a whole message");
    let read = ServerError::parse(&frame.body).expect("an error");
    // A string of the protocol has no zero byte.
    assert_eq!((read.code.as_str(), read.message), (error.code.as_str(), error.message.replace('\0', "")));
    assert_eq!(error.code.len(), 5, "{error}");
}

/// Reads `text` as a replication command. Returns the command.
pub(crate) fn command(text: &str) -> Option<Command> {
    let command = match command::parse(text) {
        Ok(command) => command?,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return None;
        }
    };
    let names: Vec<&String> = match &command {
        Command::CreateSlot(create) => create.plugin.iter().chain([&create.slot]).collect(),
        Command::DropSlot { slot, .. }
        | Command::AlterSlot { slot, .. }
        | Command::StartLogical { slot, .. } => vec![slot],
        _ => Vec::new(),
    };
    assert!(names.iter().all(|name| name.len() < NAME_SIZE), "{command:?}");
    let options: &[CommandOption] = match &command {
        Command::CreateSlot(create) => &create.options,
        Command::AlterSlot { options, .. } | Command::StartLogical { options, .. } => options,
        _ => &[],
    };
    options.iter().for_each(|option| drop(option.boolean().map_err(|error| error.to_string())));
    // A command may end with one semicolon.
    if command != Command::Backup && !text.trim_end().ends_with(';') {
        assert_eq!(command::parse(&format!("{text} ;")), Ok(Some(command.clone())), "{text}");
    }
    Some(command)
}

/// Plays a client without a password; see [`crate::seeds::scram`]. Returns whether its first
/// message was taken.
pub(crate) fn scram(data: &[u8]) -> bool {
    let verifier = Verifier::parse(VERIFIER).expect("a verifier");
    let Some((channel, messages)) = data.split_first() else { return false };
    let (first, last) = match messages.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&messages[..end], &messages[end + 1..]),
        None => (messages, &[][..]),
    };
    let binding = match channel % 3 {
        0 => Binding::Offered,
        1 => Binding::Impossible,
        _ => Binding::Chosen(b"cert"),
    };
    let (exchange, answer) = match Exchange::begin(verifier, binding, first) {
        Ok(begun) => begun,
        Err(error) => {
            assert!(error.told().0.len() == 5 && !error.to_string().is_empty());
            return false;
        }
    };
    let nonce = answer.strip_prefix("r=").and_then(|rest| rest.split(',').next()).expect("a nonce");
    let last = String::from_utf8_lossy(last).replace('%', nonce);
    assert!(exchange.finish(last.as_bytes()).is_err(), "nobody knows the password");
    true
}
