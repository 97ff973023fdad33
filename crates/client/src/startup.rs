//! From a connected stream to a session that is ready: startup packet,
//! authentication, the server's parameters.
//!
//! Source: "Frontend/Backend Protocol", chapter "Message Flow", "Start-up".

use std::collections::BTreeMap;

use bytes::{Buf, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, ScramSha256};
use postgres_protocol::message::backend::{AuthenticationSaslBody, Message};
use postgres_protocol::message::frontend;
use proto::frame::{Frame, HEADER_SIZE, ServerError};
use proto::scram::{self, ClientBinding, ClientKeys, KeyedExchange};

use crate::conninfo::{AuthMethod, ChannelBinding, Host, Settings, add_setting};
use crate::denial::Unauthenticated;
use crate::error::Kind;
use crate::link::Link;
use crate::stream::Stream;
use crate::{ConnInfo, Error, tls};

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replication {
    /// SQL only.
    Off,
    /// A walsender connected to the database: replication commands, logical
    /// slots, and SQL.
    Database,
    /// A walsender for physical replication: no database, no SQL.
    Physical,
}

/// What the startup packet says besides the connection string.
pub(crate) struct Purpose<'a> {
    pub(crate) application_name: &'a str,
    pub(crate) replication: Replication,
    pub(crate) settings: &'a [(&'a str, &'a str)],
}

/// A session that is ready for its first command.
pub(crate) struct Ready {
    pub(crate) link: Link,
    pub(crate) parameters: BTreeMap<String, String>,
    pub(crate) pid: i32,
    pub(crate) secret: i32,
}

/// Starts a session on `stream`.
pub(crate) async fn start(
    stream: Stream,
    info: &ConnInfo,
    host: &Host,
    purpose: &Purpose<'_>,
) -> Result<Ready, Error> {
    let mut link = Link::new(stream);
    let parameters = startup_parameters(info.settings(), purpose);
    frontend::startup_message(
        parameters.iter().map(|(name, value)| (*name, value.as_str())),
        &mut link.outbox,
    )
    .map_err(|_| Error::configuration("a connection option or setting contains a zero byte"))?;
    link.flush().await?;
    let dbname = match purpose.replication {
        // What libpq's walreceiver looks up in the password file.
        Replication::Physical => "replication",
        Replication::Off | Replication::Database => info.dbname(),
    };
    Authentication { link: &mut link, settings: info.settings(), host, dbname, used: None }.run().await?;
    ready(link).await
}

fn startup_parameters(settings: &Settings, purpose: &Purpose<'_>) -> Vec<(&'static str, String)> {
    let mut options = settings.options.clone();
    for (name, value) in purpose.settings {
        add_setting(&mut options, name, value);
    }
    // As libpqwalreceiver: our name is the fallback, the user's word counts.
    let application_name = settings
        .application_name
        .as_deref()
        .or(Some(purpose.application_name).filter(|name| !name.is_empty()))
        .or(settings.fallback_application_name.as_deref());
    let mut parameters = vec![("user", settings.user.clone())];
    match purpose.replication {
        Replication::Off => parameters.push(("database", settings.dbname.clone())),
        Replication::Database => {
            parameters.push(("database", settings.dbname.clone()));
            parameters.push(("replication", "database".to_owned()));
        }
        Replication::Physical => parameters.push(("replication", "true".to_owned())),
    }
    parameters.push(("client_encoding", "UTF8".to_owned()));
    if let Some(name) = application_name {
        parameters.push(("application_name", name.to_owned()));
    }
    if !options.is_empty() {
        parameters.push(("options", options));
    }
    parameters
}

/// The server's error, or a complaint about anything else.
pub(crate) fn refusal(frame: &Frame, doing: &str) -> Error {
    if frame.tag == proto::frame::ERROR_RESPONSE {
        return match ServerError::parse(&frame.body) {
            Ok(error) => Error::new(Kind::Server(Box::new(error))),
            Err(error) => error.into(),
        };
    }
    Error::protocol(format!("unexpected message '{}' while {doing}", frame.tag.escape_ascii()))
}

struct Authentication<'a> {
    link: &'a mut Link,
    settings: &'a Settings,
    host: &'a Host,
    dbname: &'a str,
    /// The last method that was carried out.
    used: Option<AuthMethod>,
}

impl Authentication<'_> {
    async fn run(&mut self) -> Result<(), Error> {
        loop {
            match self.message().await? {
                Message::AuthenticationOk => return self.accepted(),
                Message::AuthenticationCleartextPassword => {
                    let password = self.password(AuthMethod::Password)?;
                    self.send_password(password.as_bytes()).await?;
                }
                Message::AuthenticationMd5Password(body) => {
                    let password = self.password(AuthMethod::Md5)?;
                    let user = self.settings.user.as_bytes();
                    let hash = md5_hash(user, password.as_bytes(), body.salt());
                    self.send_password(hash.as_bytes()).await?;
                }
                Message::AuthenticationSasl(body) => self.sasl(&body).await?,
                Message::AuthenticationKerberosV5
                | Message::AuthenticationGss
                | Message::AuthenticationSspi
                | Message::AuthenticationScmCredential => {
                    return Err(refused(Unauthenticated::NotSupported));
                }
                _ => return Err(Error::protocol("the server's authentication request is out of turn")),
            }
        }
    }

    /// The next authentication message; others are handled or refused.
    async fn message(&mut self) -> Result<Message, Error> {
        loop {
            let frame = self.link.frame().await?;
            match frame.tag {
                b'R' => return authentication_message(&frame),
                // NegotiateProtocolVersion: 3.0 without options is the least
                // there is, so there is nothing to negotiate; notices before
                // a session exists concern nobody.
                b'v' | proto::frame::NOTICE_RESPONSE => {}
                _ => return Err(refusal(&frame, "authenticating")),
            }
        }
    }

    fn accepted(&self) -> Result<(), Error> {
        let method = self.used.unwrap_or(AuthMethod::None);
        self.check_method(method)?;
        if self.settings.channel_binding == ChannelBinding::Require
            && self.used != Some(AuthMethod::ScramSha256)
        {
            return Err(refused(Unauthenticated::NotAsked));
        }
        Ok(())
    }

    fn check_method(&self, method: AuthMethod) -> Result<(), Error> {
        if self.settings.require_auth.allows(method) {
            return Ok(());
        }
        Err(refused(Unauthenticated::NotAllowed { method: method.name() }))
    }

    /// The password, if it may be given away by `method`.
    fn password(&mut self, method: AuthMethod) -> Result<String, Error> {
        self.check_method(method)?;
        if self.settings.channel_binding == ChannelBinding::Require && method != AuthMethod::ScramSha256 {
            return Err(refused(Unauthenticated::CannotBind { method: method.name() }));
        }
        self.used = Some(method);
        self.settings.password_for(self.host, self.dbname)?.ok_or_else(|| {
            let passfile = self.settings.passfile().map(ToOwned::to_owned);
            refused(Unauthenticated::NoPassword { method: method.name(), passfile })
        })
    }

    async fn send_password(&mut self, password: &[u8]) -> Result<(), Error> {
        frontend::password_message(password, &mut self.link.outbox)
            .map_err(|_| refused(Unauthenticated::ZeroByte))?;
        self.link.flush().await
    }

    async fn sasl(&mut self, body: &AuthenticationSaslBody) -> Result<(), Error> {
        let offered: Vec<&str> = body.mechanisms().collect().map_err(Error::lost)?;
        let (mechanism, channel) = self.mechanism(&offered)?;
        if let Some(keys) = self.settings.scram_keys.clone() {
            return self.sasl_by_keys(keys, mechanism, &channel).await;
        }
        let password = self.password(AuthMethod::ScramSha256)?;
        let failed = |error: std::io::Error| refused(Unauthenticated::Scram(error));
        let mut scram = ScramSha256::new(password.as_bytes(), library_binding(channel));
        self.sasl_first(mechanism, scram.message()).await?;
        scram.update(&self.sasl_continue().await?).map_err(failed)?;
        self.sasl_last(scram.message()).await?;
        scram.finish(&self.sasl_final().await?).map_err(failed)
    }

    /// The exchange by keys that stand in place of a password.
    async fn sasl_by_keys(
        &mut self,
        keys: ClientKeys,
        mechanism: &str,
        channel: &ClientBinding,
    ) -> Result<(), Error> {
        self.check_method(AuthMethod::ScramSha256)?;
        self.used = Some(AuthMethod::ScramSha256);
        let failed = |error: scram::Error| refused(Unauthenticated::Scram(std::io::Error::other(error)));
        let (exchange, first) = KeyedExchange::begin(keys, channel);
        self.sasl_first(mechanism, first.as_bytes()).await?;
        let (check, last) = exchange.respond(&self.sasl_continue().await?).map_err(failed)?;
        self.sasl_last(last.as_bytes()).await?;
        check.check(&self.sasl_final().await?).map_err(failed)
    }

    async fn sasl_first(&mut self, mechanism: &str, message: &[u8]) -> Result<(), Error> {
        frontend::sasl_initial_response(mechanism, message, &mut self.link.outbox)
            .map_err(|error| refused(Unauthenticated::Scram(error)))?;
        self.link.flush().await
    }

    async fn sasl_last(&mut self, message: &[u8]) -> Result<(), Error> {
        frontend::sasl_response(message, &mut self.link.outbox)
            .map_err(|error| refused(Unauthenticated::Scram(error)))?;
        self.link.flush().await
    }

    async fn sasl_continue(&mut self) -> Result<Vec<u8>, Error> {
        match self.message().await? {
            Message::AuthenticationSaslContinue(answer) => Ok(answer.data().to_vec()),
            _ => Err(Error::protocol("the server broke off the SCRAM exchange")),
        }
    }

    async fn sasl_final(&mut self) -> Result<Vec<u8>, Error> {
        match self.message().await? {
            Message::AuthenticationSaslFinal(answer) => Ok(answer.data().to_vec()),
            _ => Err(Error::protocol("the server broke off the SCRAM exchange")),
        }
    }

    /// Which of the mechanisms offered, and the binding to the TLS channel.
    fn mechanism(&self, offered: &[&str]) -> Result<(&'static str, ClientBinding), Error> {
        let wanted = self.settings.channel_binding;
        let end_point = self.link.stream().tls().and_then(tls::server_end_point);
        let can_bind = wanted != ChannelBinding::Disable && end_point.is_some();
        if let Some(hash) = end_point.filter(|_| can_bind && offered.contains(&sasl::SCRAM_SHA_256_PLUS)) {
            return Ok((sasl::SCRAM_SHA_256_PLUS, ClientBinding::EndPoint(hash)));
        }
        if wanted == ChannelBinding::Require {
            return Err(refused(Unauthenticated::NoBinding));
        }
        if !offered.contains(&sasl::SCRAM_SHA_256) {
            return Err(refused(Unauthenticated::Mechanisms(offered.join(", "))));
        }
        // "y": we could have bound but saw no offer. A server that did make
        // one then knows that somebody took it out (RFC 5802, section 6).
        let binding = if can_bind { ClientBinding::Unrequested } else { ClientBinding::Unsupported };
        Ok((sasl::SCRAM_SHA_256, binding))
    }
}

/// The binding in the library's words.
fn library_binding(channel: ClientBinding) -> sasl::ChannelBinding {
    match channel {
        ClientBinding::Unsupported => sasl::ChannelBinding::unsupported(),
        ClientBinding::Unrequested => sasl::ChannelBinding::unrequested(),
        ClientBinding::EndPoint(hash) => sasl::ChannelBinding::tls_server_end_point(hash),
    }
}

fn refused(why: Unauthenticated) -> Error {
    Error::new(Kind::Authentication(why))
}

/// Hands the frame to the library, header restored.
fn authentication_message(frame: &Frame) -> Result<Message, Error> {
    let mut bytes = BytesMut::with_capacity(frame.body.len() + HEADER_SIZE);
    bytes.extend_from_slice(&[frame.tag]);
    // Bounded by LENGTH_MAX, which fits.
    bytes.extend_from_slice(&(frame.body.len() as u32 + 4).to_be_bytes());
    bytes.extend_from_slice(&frame.body);
    match Message::parse(&mut bytes) {
        Ok(Some(message)) => Ok(message),
        Ok(None) => Err(Error::protocol("the server's authentication request is cut short")),
        Err(error) => Err(Error::protocol(format!("the server's authentication request: {error}"))),
    }
}

/// Reads the parameters up to the first `ReadyForQuery`.
async fn ready(mut link: Link) -> Result<Ready, Error> {
    let mut parameters = BTreeMap::new();
    let (mut pid, mut secret) = (0, 0);
    loop {
        let frame = link.frame().await?;
        match frame.tag {
            b'S' => {
                let (name, value) = parameter_status(&frame.body)?;
                parameters.insert(name, value);
            }
            b'K' if frame.body.len() >= 8 => {
                let mut body = &frame.body[..];
                pid = body.get_i32();
                secret = body.get_i32();
            }
            b'Z' => return Ok(Ready { link, parameters, pid, secret }),
            b'v' | proto::frame::NOTICE_RESPONSE => {}
            _ => return Err(refusal(&frame, "starting the session")),
        }
    }
}

/// Name and value of a `ParameterStatus`.
pub(crate) fn parameter_status(body: &[u8]) -> Result<(String, String), Error> {
    let mut parts = body.split(|&b| b == 0).map(|part| String::from_utf8_lossy(part).into_owned());
    match (parts.next(), parts.next()) {
        (Some(name), Some(value)) => Ok((name, value)),
        _ => Err(Error::protocol("a parameter of the server has no value")),
    }
}
