//! The first packet of a connection, as a server reads it.
//!
//! It has a length and no tag. It asks for encryption, cancels the statement of another connection,
//! or says who connects to which database. Parameters that the protocol does not know are settings
//! of the session.
//!
//! Source: "Frontend/Backend Protocol", chapters "Message Flow" and "Message Formats";
//! `ProcessStartupPacket` in `backend_startup.c` (`postmaster.c` to 16).

use std::fmt;

use bytes::{Buf, Bytes, BytesMut};

use crate::frame::ServerError;

/// `MAX_STARTUP_PACKET_LENGTH`, which counts the length's own four bytes.
pub const PACKET_SIZE_MAX: usize = 10_000;
/// The newest minor version of protocol 3 that is spoken here. Version 3.1 does not exist.
pub const MINOR_MAX: u16 = 2;
/// The longest key of a cancel request, in bytes (protocol 3.2).
const CANCEL_KEY_MAX: usize = 256;

const MAJOR: u16 = 3;
const CODE_CANCEL: u32 = 80_877_102;
const CODE_SSL: u32 = 80_877_103;
const CODE_GSS: u32 = 80_877_104;

/// The first packet, or the one behind a refused encryption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstPacket {
    /// `SSLRequest`: answered by `S` or `N`.
    Ssl,
    /// `GSSENCRequest`: answered by `G` or `N`.
    Gss,
    /// `CancelRequest`: never answered.
    Cancel {
        /// The process of the connection whose statement is to end.
        pid: u32,
        /// The key that this connection was told.
        key: Bytes,
    },
    /// `StartupMessage`.
    Startup(Startup),
}

/// What a connection is for (parameter `replication`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// SQL only.
    Sql,
    /// Replication commands of logical slots, and SQL.
    Logical,
    /// Physical replication: no database, no SQL.
    Physical,
}

/// Who connects, and to what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Startup {
    /// The minor version of protocol 3 that both sides speak.
    pub minor: u16,
    /// The role.
    pub user: String,
    /// The database; the role's name if none was given. Empty for physical replication.
    pub database: String,
    /// What the connection is for.
    pub purpose: Purpose,
    /// Settings for the session in the manner of a command line, such as `-c datestyle=ISO`.
    pub options: String,
    /// Other settings for the session, `application_name` and `client_encoding` among them.
    pub settings: Vec<(String, String)>,
    /// What the client has to be told, if anything, before it is authenticated.
    pub negotiation: Option<Negotiation>,
}

/// What the client asked for that is not spoken here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiation {
    /// The newest minor version that both sides speak.
    pub minor: u16,
    /// Options of the protocol (`_pq_.`) that are unknown here.
    pub unknown: Vec<String>,
}

/// Why a packet is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The connection is closed without an answer, as a server does.
    Silent(&'static str),
    /// The connection is closed with this error, worded as a server's.
    Told(Box<ServerError>),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Silent(why) => f.write_str(why),
            Refusal::Told(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refusal {}

/// Takes the first packet from `buf`; `None` while it is not whole.
///
/// # Errors
/// The packet is none of the protocol, or asks for what no server gives. `buf` is then unusable.
pub fn next(buf: &mut BytesMut) -> Result<Option<FirstPacket>, Refusal> {
    let Some(&length) = buf.first_chunk::<4>() else { return Ok(None) };
    let size = u32::from_be_bytes(length) as usize;
    if !(8..=PACKET_SIZE_MAX).contains(&size) {
        return Err(Refusal::Silent("invalid length of startup packet"));
    }
    if buf.len() < size {
        return Ok(None);
    }
    let mut packet = buf.split_to(size).freeze();
    packet.advance(4);
    let code = packet.get_u32();
    match code {
        CODE_SSL | CODE_GSS if !packet.is_empty() => Err(Refusal::Silent("invalid length of startup packet")),
        CODE_SSL => Ok(Some(FirstPacket::Ssl)),
        CODE_GSS => Ok(Some(FirstPacket::Gss)),
        CODE_CANCEL => cancel(packet).map(Some),
        version => startup(version, &packet).map(|startup| Some(FirstPacket::Startup(startup))),
    }
}

fn cancel(mut packet: Bytes) -> Result<FirstPacket, Refusal> {
    if packet.len() <= 4 || packet.len() > 4 + CANCEL_KEY_MAX {
        return Err(Refusal::Silent("invalid length of query cancel packet"));
    }
    let pid = packet.get_u32();
    Ok(FirstPacket::Cancel { pid, key: packet })
}

fn startup(version: u32, parameters: &[u8]) -> Result<Startup, Refusal> {
    let (major, minor) = ((version >> 16) as u16, version as u16);
    if major != MAJOR {
        return Err(told(
            "0A000",
            format!("unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.{MINOR_MAX}"),
        ));
    }
    let mut startup = Startup {
        minor: minor.min(MINOR_MAX),
        user: String::new(),
        database: String::new(),
        purpose: Purpose::Sql,
        options: String::new(),
        settings: Vec::new(),
        negotiation: None,
    };
    let mut unknown = Vec::new();
    for (name, value) in pairs(parameters)? {
        match name {
            "user" => startup.user = value.to_owned(),
            "database" => startup.database = value.to_owned(),
            "options" => startup.options = value.to_owned(),
            "replication" => startup.purpose = purpose(value)?,
            name if name.starts_with("_pq_.") => unknown.push(name.to_owned()),
            name => startup.settings.push((name.to_owned(), value.to_owned())),
        }
    }
    if startup.user.is_empty() {
        return Err(told("28000", "no PostgreSQL user name specified in startup packet".to_owned()));
    }
    if startup.purpose == Purpose::Physical {
        startup.database.clear();
    } else if startup.database.is_empty() {
        startup.database.clone_from(&startup.user);
    }
    if minor > MINOR_MAX || !unknown.is_empty() {
        startup.negotiation = Some(Negotiation { minor: startup.minor, unknown });
    }
    Ok(startup)
}

/// Names and values, each with a zero byte behind it; one more zero byte ends the list.
fn pairs(parameters: &[u8]) -> Result<Vec<(&str, &str)>, Refusal> {
    let layout = || {
        let message = "invalid startup packet layout: expected terminator as last byte";
        told("08P01", message.to_owned())
    };
    let text = std::str::from_utf8(parameters).map_err(|_| {
        told("22021", "invalid byte sequence for encoding \"UTF8\" in startup packet".to_owned())
    })?;
    let mut pairs = Vec::new();
    let mut rest = text;
    loop {
        let (name, after) = rest.split_once('\0').ok_or_else(layout)?;
        if name.is_empty() {
            return if after.is_empty() { Ok(pairs) } else { Err(layout()) };
        }
        let (value, after) = after.split_once('\0').ok_or_else(layout)?;
        pairs.push((name, value));
        rest = after;
    }
}

fn purpose(value: &str) -> Result<Purpose, Refusal> {
    if value == "database" {
        return Ok(Purpose::Logical);
    }
    match boolean(value) {
        Some(true) => Ok(Purpose::Physical),
        Some(false) => Ok(Purpose::Sql),
        None => {
            let message = format!("invalid value for parameter \"replication\": \"{value}\"");
            let mut error = ServerError::new("FATAL", "22023", &message);
            error.hint = Some("Valid values are: \"false\", 0, \"true\", 1, \"database\".".to_owned());
            Err(Refusal::Told(Box::new(error)))
        }
    }
}

/// A boolean as `parse_bool` reads it: any unambiguous beginning of a word, in any case.
#[must_use]
pub fn boolean(word: &str) -> Option<bool> {
    let word = word.to_ascii_lowercase();
    let begins = |whole: &str, least: usize| word.len() >= least && whole.starts_with(&word);
    match word.as_str() {
        "1" => Some(true),
        "0" => Some(false),
        _ if begins("true", 1) || begins("yes", 1) || begins("on", 2) => Some(true),
        _ if begins("false", 1) || begins("no", 1) || begins("off", 2) => Some(false),
        _ => None,
    }
}

fn told(code: &str, message: String) -> Refusal {
    Refusal::Told(Box::new(ServerError::new("FATAL", code, &message)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet(code: u32, body: &[u8]) -> BytesMut {
        let mut packet = BytesMut::from(&(body.len() as u32 + 8).to_be_bytes()[..]);
        packet.extend_from_slice(&code.to_be_bytes());
        packet.extend_from_slice(body);
        packet
    }

    fn startup(minor: u32, body: &[u8]) -> Result<Startup, Refusal> {
        match next(&mut packet((3 << 16) | minor, body))? {
            Some(FirstPacket::Startup(startup)) => Ok(startup),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_subscriber_connects() {
        let body = b"user\0sub\0database\0a\0replication\0database\0options\0 -c datestyle=ISO\0\
                     application_name\0s\0client_encoding\0UTF8\0\0";
        let startup = startup(0, body).unwrap();
        assert_eq!((startup.user.as_str(), startup.database.as_str()), ("sub", "a"));
        assert_eq!(startup.purpose, Purpose::Logical);
        assert_eq!(startup.options, " -c datestyle=ISO");
        let settings = [("application_name", "s"), ("client_encoding", "UTF8")];
        assert_eq!(startup.settings, settings.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!((startup.minor, startup.negotiation), (0, None));
    }

    #[test]
    fn the_database_is_the_users_name_unless_it_is_given() {
        assert_eq!(startup(0, b"user\0u\0\0").unwrap().database, "u");
        assert_eq!(startup(0, b"user\0u\0database\0\0\0").unwrap().database, "u");
        let physical = startup(0, b"user\0u\0database\0d\0replication\0on\0\0").unwrap();
        assert_eq!((physical.purpose, physical.database.as_str()), (Purpose::Physical, ""));
    }

    #[test]
    fn what_is_not_spoken_is_negotiated() {
        let newer = startup(9, b"user\0u\0_pq_.shiny\0on\0\0").unwrap();
        let unknown = vec!["_pq_.shiny".to_owned()];
        assert_eq!((newer.minor, newer.negotiation), (2, Some(Negotiation { minor: 2, unknown })));
        assert_eq!(startup(2, b"user\0u\0\0").unwrap().negotiation, None);
    }

    #[test]
    fn refusals_are_worded_as_the_servers() {
        for (version, body, code, message) in [
            (
                2 << 16,
                &b"user\0u\0\0"[..],
                "0A000",
                "unsupported frontend protocol 2.0: server supports 3.0 to 3.2",
            ),
            (3 << 16, b"\0", "28000", "no PostgreSQL user name specified in startup packet"),
            (
                3 << 16,
                b"user\0u\0",
                "08P01",
                "invalid startup packet layout: expected terminator as last byte",
            ),
            (
                3 << 16,
                b"user\0u\0\0x",
                "08P01",
                "invalid startup packet layout: expected terminator as last byte",
            ),
            (
                3 << 16,
                b"user\0u\0replication\0perhaps\0\0",
                "22023",
                "invalid value for parameter \"replication\": \"perhaps\"",
            ),
        ] {
            let Err(Refusal::Told(error)) = next(&mut packet(version, body)) else { panic!("{message}") };
            assert_eq!((error.code.as_str(), error.message.as_str()), (code, message));
            assert!(error.is_fatal());
        }
    }

    #[test]
    fn lengths_are_not_believed() {
        for size in [0, 7, PACKET_SIZE_MAX as u32 + 1, u32::MAX] {
            let mut buf = BytesMut::from(&size.to_be_bytes()[..]);
            assert!(matches!(next(&mut buf), Err(Refusal::Silent(_))), "{size}");
        }
        let mut whole = packet(CODE_SSL, b"");
        for end in 0..whole.len() {
            assert_eq!(next(&mut BytesMut::from(&whole[..end])), Ok(None), "cut at {end}");
        }
        assert_eq!(next(&mut whole), Ok(Some(FirstPacket::Ssl)));
        assert_eq!(next(&mut packet(CODE_GSS, b"")), Ok(Some(FirstPacket::Gss)));
    }

    #[test]
    fn keys_of_cancel_requests_have_any_length_that_clients_may_have() {
        for length in [4, 32, CANCEL_KEY_MAX] {
            let body = [&7_u32.to_be_bytes()[..], &vec![9; length]].concat();
            let key = Bytes::from(vec![9; length]);
            assert_eq!(next(&mut packet(CODE_CANCEL, &body)), Ok(Some(FirstPacket::Cancel { pid: 7, key })));
        }
        for length in [0, CANCEL_KEY_MAX + 1] {
            let body = [&7_u32.to_be_bytes()[..], &vec![9; length]].concat();
            assert!(matches!(next(&mut packet(CODE_CANCEL, &body)), Err(Refusal::Silent(_))));
        }
    }

    #[test]
    fn booleans_are_the_servers() {
        for (word, expected) in [
            ("on", Some(true)),
            ("o", None),
            ("T", Some(true)),
            ("yes", Some(true)),
            ("OFF", Some(false)),
            ("fal", Some(false)),
            ("1", Some(true)),
            ("2", None),
            ("", None),
            ("truely", None),
        ] {
            assert_eq!(boolean(word), expected, "{word}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_packet_or_refused(code in any::<u32>(), body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = next(&mut packet(code, &body));
            let _ = next(&mut packet(3 << 16, &body));
        }
    }
}
