//! From a client's first byte to the moment when it is known who it is.
//!
//! ```text
//! first byte --TLS?--> packet: encrypt? cancel? --> startup --> access table --> SCRAM or certificate --> Client
//! ```
//! Everything happens within one time limit, and nothing that a client claims is believed with more
//! memory than the protocol allows. What a client is told is worded as a server words it; the log
//! says more.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use proto::backend::{self, SCRAM_SHA_256, SCRAM_SHA_256_PLUS};
use proto::frame::ServerError;
use proto::scram::{self, Binding, ClientKeys, Exchange, Verifier};
use proto::startup::{self, FirstPacket, Purpose, Refusal, Startup};
use rand::RngCore;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use crate::access::{AccessTable, Asking, Method, OwnNetworks, Place};
use crate::limits::{Counts, Limits, Reached, Seat};
use crate::link::{Link, LinkError, Transport};
use crate::tls::{ALPN, Tls};
use crate::users::{CertificateMaps, Users};

/// `PG_MAX_SASL_MESSAGE_LENGTH`, with the message's header.
const SASL_SIZE_MAX: usize = 1024 + 5;
const SASL_RESPONSE: u8 = b'p';
/// The first byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// Who may connect, and what they know. A reload replaces the whole.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Who may connect from where.
    pub access: AccessTable,
    /// Those who have a password.
    pub users: Users,
    /// Those who have a certificate.
    pub maps: CertificateMaps,
}

/// Lets clients in.
pub struct Door {
    rules: Mutex<Arc<Rules>>,
    tls: Mutex<Option<Tls>>,
    counts: Counts,
    limits: Limits,
    /// Makes the verifiers of unknown users.
    secret: [u8; 32],
}

/// A connection before anything was read.
pub enum Socket {
    /// From this address.
    Tcp(TcpStream, IpAddr),
    /// From this machine.
    Unix(UnixStream),
}

/// Who came.
pub enum Arrival {
    /// A client that was authenticated, and waits for the answer.
    Client(Box<Client>),
    /// Somebody who wants the statement of another connection to end.
    Cancel {
        /// That connection's process.
        pid: u32,
        /// That connection's key.
        key: Bytes,
    },
}

/// A client that was authenticated.
pub struct Client {
    /// Whom it said to be, and where it wants to go.
    pub startup: Startup,
    /// Where it is.
    pub place: Place,
    /// What it needs to log in with its own rights to a server that has the same verifier. Only a
    /// password gives that.
    pub keys: Option<ClientKeys>,
    /// The connection. The client waits for `AuthenticationOk`.
    pub link: Link,
    /// Its place among the connections, to be kept as long as it is connected.
    pub seat: Seat,
}

/// Why a client was not let in. Says for the log what the client is not told.
#[derive(Debug)]
pub struct Refused {
    who: String,
    why: Why,
}

#[derive(Debug)]
enum Why {
    Link(LinkError),
    Packet(Refusal),
    Told(Box<ServerError>),
    Scram(scram::Error),
    Tls(std::io::Error),
    NoTls,
    NoAlpn,
    /// Bytes came unencrypted behind the request to encrypt.
    Smuggled,
    Late,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a connection from {} was refused: ", self.who)?;
        match &self.why {
            Why::Link(error) => error.fmt(f),
            Why::Packet(refusal) => refusal.fmt(f),
            Why::Told(error) => error.fmt(f),
            Why::Scram(error) => error.fmt(f),
            Why::Tls(error) => write!(f, "the TLS handshake failed: {error}"),
            Why::NoTls => f.write_str("direct TLS, and there is no certificate here"),
            Why::NoAlpn => f.write_str("direct TLS without the protocol's name in ALPN"),
            Why::Smuggled => f.write_str("received unencrypted data after SSL request"),
            Why::Late => f.write_str("it was not authenticated in time"),
        }
    }
}

impl std::error::Error for Refused {}

impl Refused {
    /// Whether the client went before it said anything, as a check of the port does.
    #[must_use]
    pub fn said_nothing(&self) -> bool {
        matches!(self.why, Why::Link(LinkError::Closed))
    }
}

impl Door {
    /// A door with these rules. Without `tls`, connections cannot be encrypted.
    #[must_use]
    pub fn new(rules: Rules, tls: Option<Tls>, limits: Limits) -> Door {
        let mut secret = [0; 32];
        rand::rng().fill_bytes(&mut secret);
        let counts = Counts::new(limits);
        Door { rules: Mutex::new(Arc::new(rules)), tls: Mutex::new(tls), counts, limits, secret }
    }

    /// Replaces the rules, for connections that come from now on.
    pub fn reload(&self, rules: Rules, tls: Option<Tls>) {
        *self.rules.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
        *self.tls.lock().unwrap_or_else(PoisonError::into_inner) = tls;
    }

    fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn tls(&self) -> Option<Tls> {
        self.tls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Finds out who it is.
    ///
    /// # Errors
    /// It is not let in. It was told why, if a server would tell it, and the connection is closed.
    pub async fn open(&self, socket: Socket) -> Result<Arrival, Refused> {
        let address = match &socket {
            Socket::Tcp(_, address) => Some(address.to_canonical()),
            Socket::Unix(_) => None,
        };
        let who = || address.map_or_else(|| "this machine".to_owned(), |address| address.to_string());
        let seat = match self.counts.sit(address, Instant::now()) {
            Ok(seat) => seat,
            Err(reached) => {
                let error = too_many(reached, "");
                tell(Link::new(transport(socket)), &error).await;
                return Err(Refused { who: who(), why: Why::Told(error) });
            }
        };
        let mut visit = Visit { door: self, address, seat };
        match tokio::time::timeout(self.limits.time_to_authenticate, visit.receive(socket)).await {
            Ok(Ok(Received::Cancel { pid, key })) => Ok(Arrival::Cancel { pid, key }),
            Ok(Ok(Received::Client(known))) => {
                let Visit { seat, .. } = visit;
                let Known { startup, place, keys, link } = *known;
                Ok(Arrival::Client(Box::new(Client { startup, place, keys, link, seat })))
            }
            Ok(Err(why)) => Err(Refused { who: who(), why }),
            Err(_) => Err(Refused { who: who(), why: Why::Late }),
        }
    }
}

fn transport(socket: Socket) -> Box<dyn Transport> {
    match socket {
        Socket::Tcp(stream, _) => Box::new(stream),
        Socket::Unix(stream) => Box::new(stream),
    }
}

enum Received {
    Client(Box<Known>),
    Cancel { pid: u32, key: Bytes },
}

/// Who a client is.
struct Known {
    startup: Startup,
    place: Place,
    keys: Option<ClientKeys>,
    link: Link,
}

/// One connection on its way in.
struct Visit<'a> {
    door: &'a Door,
    address: Option<IpAddr>,
    seat: Seat,
}

/// What TLS told about the client.
struct Encrypted {
    end_point: Option<Arc<[u8]>>,
    /// The certificate that the client showed, which was verified.
    certificate: Option<Vec<u8>>,
}

impl Visit<'_> {
    async fn receive(&mut self, socket: Socket) -> Result<Received, Why> {
        let tls = self.door.tls();
        let is_direct = match &socket {
            Socket::Tcp(stream, _) => begins_with_tls(stream).await?,
            Socket::Unix(_) => false,
        };
        let (mut link, mut encrypted) = if is_direct {
            let Some(tls) = &tls else { return Err(Why::NoTls) };
            let (link, encrypted, has_alpn) = handshake(tls, transport(socket)).await?;
            if !has_alpn {
                return Err(Why::NoAlpn);
            }
            (link, Some(encrypted))
        } else {
            (Link::new(transport(socket)), None)
        };
        let mut asked_gss = false;
        let mut asked_tls = encrypted.is_some();
        loop {
            match packet(&mut link).await? {
                Ok(FirstPacket::Cancel { pid, key }) => return Ok(Received::Cancel { pid, key }),
                Ok(FirstPacket::Startup(startup)) => {
                    return self.authenticate(link, encrypted.as_ref(), startup).await;
                }
                Ok(FirstPacket::Ssl) if !asked_tls => {
                    asked_tls = true;
                    let tls = tls.as_ref().filter(|_| self.address.is_some());
                    link.outbox.push(if tls.is_some() { b'S' } else { b'N' });
                    link.flush().await.map_err(Why::Link)?;
                    if let Some(tls) = tls {
                        if !link.inbox().is_empty() {
                            return Err(Why::Smuggled);
                        }
                        let (over, by, _) = handshake(tls, link.into_stream()).await?;
                        (link, encrypted) = (over, Some(by));
                    }
                }
                Ok(FirstPacket::Gss) if !asked_gss => {
                    asked_gss = true;
                    link.outbox.push(b'N');
                    link.flush().await.map_err(Why::Link)?;
                }
                // The same question a second time.
                Ok(FirstPacket::Ssl | FirstPacket::Gss) => {
                    let message = "unsupported frontend protocol 1234.5679: server supports 3.0 to 3.2";
                    return refuse(link, fatal("0A000", message)).await;
                }
                Err(Refusal::Told(error)) => return refuse(link, error).await,
                Err(refusal) => return Err(Why::Packet(refusal)),
            }
        }
    }

    async fn authenticate(
        &mut self,
        mut link: Link,
        encrypted: Option<&Encrypted>,
        startup: Startup,
    ) -> Result<Received, Why> {
        if let Some(negotiation) = &startup.negotiation {
            backend::negotiate_protocol_version(&mut link.outbox, negotiation.minor, &negotiation.unknown);
        }
        let place = match self.address {
            None => Place::Local,
            Some(address) => Place::Network { address, tls: encrypted.is_some() },
        };
        if let Err(reached) = self.seat.belongs_to(&startup.user) {
            return refuse(link, too_many(reached, &startup.user)).await;
        }
        let rules = self.door.rules();
        let method = match self.method(&rules, place, &startup) {
            Ok(method) => method,
            Err(error) => return refuse(link, error).await,
        };
        let keys = match method {
            Method::Trust | Method::Reject => None,
            Method::Cert { map } => {
                if let Err(error) = certificate_fits(&rules.maps, map.as_deref(), encrypted, &startup.user) {
                    self.seat.failed(Instant::now());
                    return refuse(link, error).await;
                }
                None
            }
            Method::Scram => match self.scram(&mut link, &rules, encrypted, &startup.user).await? {
                Ok(keys) => Some(keys),
                Err(why) => {
                    self.seat.failed(Instant::now());
                    tell(link, &scram_error(&why, &startup.user)).await;
                    return Err(Why::Scram(why));
                }
            },
        };
        Ok(Received::Client(Box::new(Known { startup, place, keys, link })))
    }

    /// How the client has to show who it is.
    fn method(&self, rules: &Rules, place: Place, startup: &Startup) -> Result<Method, Box<ServerError>> {
        let Startup { user, database, purpose, .. } = startup;
        let asking = Asking { place, user, database, purpose: *purpose };
        // They may change, so they are looked up at each login that may need them.
        let asks = rules.access.asks_for_own();
        let own = if asks { OwnNetworks::look() } else { OwnNetworks::default() };
        let found = rules.access.find(&asking, &own);
        let refusal = match found {
            Some((Method::Reject, _)) => "pg_hba.conf rejects connection",
            Some((method, _)) => return Ok(method.clone()),
            None => "no pg_hba.conf entry",
        };
        Err(fatal("28000", &not_allowed(refusal, place, startup)))
    }

    /// The exchange, or why it failed.
    async fn scram(
        &self,
        link: &mut Link,
        rules: &Rules,
        encrypted: Option<&Encrypted>,
        user: &str,
    ) -> Result<Result<ClientKeys, scram::Error>, Why> {
        let end_point = encrypted.and_then(|encrypted| encrypted.end_point.as_deref());
        let offered: &[&str] = match end_point {
            Some(_) => &[SCRAM_SHA_256_PLUS, SCRAM_SHA_256],
            None => &[SCRAM_SHA_256],
        };
        backend::authentication_sasl(&mut link.outbox, offered);
        link.flush().await.map_err(Why::Link)?;
        let first = sasl_message(link).await?;
        let (mechanism, message) = match initial_response(&first) {
            Ok(parts) => parts,
            Err(error) => return Ok(Err(error)),
        };
        let binding = match (mechanism, end_point) {
            (SCRAM_SHA_256_PLUS, Some(hash)) => Binding::Chosen(hash),
            (SCRAM_SHA_256, Some(_)) => Binding::Offered,
            (SCRAM_SHA_256, None) => Binding::Impossible,
            _ => {
                let why = "The client selected an authentication mechanism that was not offered.";
                return Ok(Err(scram::Error::Malformed(why)));
            }
        };
        let mock = || Verifier::mock(user, &self.door.secret);
        let verifier = rules.users.verifier(user).cloned().unwrap_or_else(mock);
        let (exchange, answer) = match Exchange::begin(verifier, binding, message) {
            Ok(begun) => begun,
            Err(error) => return Ok(Err(error)),
        };
        backend::authentication_sasl_continue(&mut link.outbox, &answer);
        link.flush().await.map_err(Why::Link)?;
        let last = sasl_message(link).await?;
        Ok(exchange.finish(&last).map(|(answer, keys)| {
            backend::authentication_sasl_final(&mut link.outbox, &answer);
            keys
        }))
    }
}

/// Whether the client begins to encrypt without asking.
async fn begins_with_tls(stream: &TcpStream) -> Result<bool, Why> {
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(0) => Err(Why::Link(LinkError::Closed)),
        Ok(_) => Ok(first[0] == TLS_HANDSHAKE),
        Err(error) => Err(Why::Link(LinkError::Lost(error))),
    }
}

/// Encrypts the connection. Also returns whether the client named the protocol.
async fn handshake(tls: &Tls, stream: Box<dyn Transport>) -> Result<(Link, Encrypted, bool), Why> {
    let stream: TlsStream<Box<dyn Transport>> = tls.acceptor.accept(stream).await.map_err(Why::Tls)?;
    let (_, session) = stream.get_ref();
    let certificate = session.peer_certificates().and_then(|chain| chain.first()).map(|first| first.to_vec());
    let alpn = session.alpn_protocol() == Some(ALPN);
    let encrypted = Encrypted { end_point: tls.end_point.clone(), certificate };
    Ok((Link::new(Box::new(stream)), encrypted, alpn))
}

/// The next packet, or why it is refused.
async fn packet(link: &mut Link) -> Result<Result<FirstPacket, Refusal>, Why> {
    loop {
        match startup::next(link.inbox()) {
            Ok(None) => link.fill().await.map_err(Why::Link)?,
            Ok(Some(packet)) => return Ok(Ok(packet)),
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
}

async fn sasl_message(link: &mut Link) -> Result<Bytes, Why> {
    let frame = link.frame(SASL_SIZE_MAX).await.map_err(Why::Link)?;
    if frame.tag != SASL_RESPONSE {
        let message = format!("expected SASL response, got message type {}", frame.tag);
        let error = fatal("08P01", &message);
        backend::error_response(&mut link.outbox, &error);
        let _ = link.flush().await;
        return Err(Why::Told(error));
    }
    Ok(frame.body)
}

/// Mechanism and message of a `SASLInitialResponse`.
fn initial_response(body: &[u8]) -> Result<(&str, &[u8]), scram::Error> {
    const WRONG: scram::Error = scram::Error::Malformed("The initial response is cut short.");
    let end = body.iter().position(|&byte| byte == 0).ok_or(WRONG)?;
    let mechanism = std::str::from_utf8(&body[..end]).map_err(|_| WRONG)?;
    let (length, message) = body[end + 1..].split_first_chunk::<4>().ok_or(WRONG)?;
    // A client may send nothing with it; no mechanism here begins like that.
    if usize::try_from(i32::from_be_bytes(*length)) != Ok(message.len()) {
        return Err(WRONG);
    }
    Ok((mechanism, message))
}

fn certificate_fits(
    maps: &CertificateMaps,
    map: Option<&str>,
    encrypted: Option<&Encrypted>,
    user: &str,
) -> Result<(), Box<ServerError>> {
    let refused = |message: &str| Err(fatal("28000", message));
    let Some(certificate) = encrypted.and_then(|encrypted| encrypted.certificate.as_deref()) else {
        return refused("connection requires a valid client certificate");
    };
    let fits = client::common_name(certificate).is_some_and(|name| maps.allow(map, &name, user));
    if fits { Ok(()) } else { refused(&format!("certificate authentication failed for user \"{user}\"")) }
}

fn scram_error(error: &scram::Error, user: &str) -> Box<ServerError> {
    let (code, message) = error.told();
    match error {
        scram::Error::Proof => {
            let message = format!("{message} for user \"{user}\"");
            fatal(code, &message)
        }
        scram::Error::Malformed(detail) => {
            let mut error = fatal(code, message);
            error.detail = Some((*detail).to_owned());
            error
        }
        _ => fatal(code, message),
    }
}

/// As `ClientAuthentication` words it.
fn not_allowed(refusal: &str, place: Place, startup: &Startup) -> String {
    let (host, encryption) = match place {
        Place::Local => ("[local]".to_owned(), "no encryption"),
        Place::Network { address, tls: true } => (address.to_string(), "SSL encryption"),
        Place::Network { address, tls: false } => (address.to_string(), "no encryption"),
    };
    let Startup { user, database, purpose, .. } = startup;
    if *purpose == Purpose::Physical {
        let refusal = refusal.replace("rejects connection", "rejects replication connection");
        let what = if refusal.starts_with("no ") { " for replication connection from" } else { " for" };
        return format!("{refusal}{what} host \"{host}\", user \"{user}\", {encryption}");
    }
    format!("{refusal} for host \"{host}\", user \"{user}\", database \"{database}\", {encryption}")
}

fn too_many(reached: Reached, user: &str) -> Box<ServerError> {
    let mut error = match reached {
        Reached::User => {
            return fatal("53300", &format!("too many connections for role \"{user}\""));
        }
        Reached::Connections => fatal("53300", "sorry, too many clients already"),
        Reached::Address => fatal("53300", "too many connections from this address"),
        Reached::Failures => fatal("28000", "too many failed logins from this address"),
    };
    if reached == Reached::Failures {
        error.hint = Some("Wait a minute before you try again.".to_owned());
    }
    error
}

async fn refuse<T>(link: Link, error: Box<ServerError>) -> Result<T, Why> {
    tell(link, &error).await;
    Err(Why::Told(error))
}

fn fatal(code: &str, message: &str) -> Box<ServerError> {
    Box::new(ServerError::new("FATAL", code, message))
}

async fn tell(mut link: Link, error: &ServerError) {
    backend::error_response(&mut link.outbox, error);
    link.close().await;
}
