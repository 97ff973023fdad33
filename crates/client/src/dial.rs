//! Which hosts, addresses and kinds of encryption are tried, in what order,
//! until a session is ready.
//!
//! As in libpq, an unreachable server leads to the next host. A server that answers and refuses us
//! (wrong password, no such database) ends the search.
//!
//! | sslmode | first attempt | second attempt | taken after |
//! |---|---|---|---|
//! | disable, Unix socket | plain | | |
//! | allow | plain | TLS | authentication was refused |
//! | prefer | TLS if offered | plain | TLS failed, or authentication was refused under TLS |
//! | require, verify-ca, verify-full | TLS | | |

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use base::PgVersion;
use postgres_protocol::message::frontend;
use rand::seq::SliceRandom;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::conninfo::{Address, Host, SessionAttrs, Settings, SslMode};
use crate::denial::{Tls, Unsuitable};
use crate::error::Kind;
use crate::startup::{self, Purpose, Ready};
use crate::stream::Stream;
use crate::{ConnInfo, Error, tls};

/// One address at which a session can be requested.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) host: Host,
    target: Target,
}

#[derive(Debug, Clone)]
enum Target {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encryption {
    Plain,
    TlsIfOffered,
    Tls,
}

/// A ready session and how it was reached.
pub(crate) struct Established {
    pub(crate) ready: Ready,
    pub(crate) endpoint: Endpoint,
    pub(crate) encryption: Encryption,
    pub(crate) version: PgVersion,
    /// For messages.
    pub(crate) place: String,
}

/// Finds the first host that gives us a session.
pub(crate) async fn establish(info: &ConnInfo, purpose: &Purpose<'_>) -> Result<Established, Error> {
    let settings = info.settings();
    let mut hosts: Vec<&Host> = settings.hosts.iter().collect();
    if settings.balance_hosts {
        hosts.shuffle(&mut rand::rng());
    }
    let passes: &[SessionAttrs] = match settings.session_attrs {
        SessionAttrs::PreferStandby => &[SessionAttrs::Standby, SessionAttrs::Any],
        _ => std::slice::from_ref(&settings.session_attrs),
    };
    let mut errors = Vec::new();
    for &wanted in passes {
        errors.clear();
        for host in &hosts {
            match try_host(info, host, purpose, wanted, &mut errors).await {
                Some(established) => return Ok(established),
                None if errors.last().is_some_and(is_final) => return Err(combined(errors)),
                None => {}
            }
        }
    }
    Err(combined(errors))
}

/// Whether another host would not help: the server answered and refused, or pgsluice cannot do what
/// the server asks.
fn is_final(error: &Error) -> bool {
    match error.kind() {
        Kind::Several(errors) => errors.iter().any(is_final),
        Kind::Protocol(_) => false,
        _ => !error.is_connection_lost(),
    }
}

fn combined(mut errors: Vec<Error>) -> Error {
    match errors.pop() {
        Some(only) if errors.is_empty() => only,
        Some(last) => {
            errors.push(last);
            Error::new(Kind::Several(errors))
        }
        None => Error::configuration("the connection string names no host"),
    }
}

/// Tries every address of `host`. Adds what went wrong to `errors`.
async fn try_host(
    info: &ConnInfo,
    host: &Host,
    purpose: &Purpose<'_>,
    wanted: SessionAttrs,
    errors: &mut Vec<Error>,
) -> Option<Established> {
    let place = info.describe_host(host);
    let limit = info.settings().connect_timeout;
    let endpoints = match within(limit, endpoints(info.settings(), host)).await {
        Ok(endpoints) => endpoints,
        Err(error) => {
            errors.push(error.at(&place));
            return None;
        }
    };
    for endpoint in endpoints {
        let attempt = within(limit, try_endpoint(info, &endpoint, purpose)).await;
        match attempt.and_then(|established| suitable(established, wanted)) {
            Ok(established) => return Some(established),
            Err(error) => {
                errors.push(error.at(&place));
                if errors.last().is_some_and(is_final) {
                    break;
                }
            }
        }
    }
    None
}

async fn within<T>(
    limit: Option<Duration>,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let Some(limit) = limit else { return work.await };
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(Error::new(Kind::TimedOut(limit))))
}

async fn endpoints(settings: &Settings, host: &Host) -> Result<Vec<Endpoint>, Error> {
    let targets = match &host.address {
        Address::Unix(directory) => {
            let path = format!("{directory}/.s.PGSQL.{}", host.port);
            // An abstract name starts with a zero byte, which libpq writes as "@".
            let path = path.strip_prefix('@').map(|name| format!("\0{name}")).unwrap_or(path);
            vec![Target::Unix(PathBuf::from(path))]
        }
        Address::Tcp { hostaddr: Some(address), .. } => {
            vec![Target::Tcp(SocketAddr::new(*address, host.port))]
        }
        Address::Tcp { name, hostaddr: None } => {
            let name = name.as_deref().unwrap_or("localhost");
            let found = tokio::net::lookup_host((name, host.port))
                .await
                .map_err(|error| Error::new(Kind::Unreachable(error)))?;
            let mut addresses: Vec<SocketAddr> = found.collect();
            if settings.balance_hosts {
                addresses.shuffle(&mut rand::rng());
            }
            addresses.into_iter().map(Target::Tcp).collect()
        }
    };
    Ok(targets.into_iter().map(|target| Endpoint { host: host.clone(), target }).collect())
}

/// The table of the module's header.
async fn try_endpoint(
    info: &ConnInfo,
    endpoint: &Endpoint,
    purpose: &Purpose<'_>,
) -> Result<Established, Error> {
    use Encryption::{Plain, Tls, TlsIfOffered};
    let (first, second) = match info.settings().ssl.mode {
        _ if matches!(endpoint.target, Target::Unix(_)) => (Plain, None),
        SslMode::Disable => (Plain, None),
        SslMode::Allow => (Plain, Some(Tls)),
        SslMode::Prefer => (TlsIfOffered, Some(Plain)),
        SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => (Tls, None),
    };
    let error = match try_encryption(info, endpoint, purpose, first).await {
        Ok(established) => return Ok(established),
        Err(error) => error,
    };
    let Some(second) = second.filter(|_| error.is_tls() || refused_at_the_door(&error)) else {
        return Err(error);
    };
    match try_encryption(info, endpoint, purpose, second).await {
        Ok(established) => Ok(established),
        // The same answer twice says nothing new; a server without TLS
        // cannot have refused us for lack of it.
        Err(again) if again.sqlstate() == error.sqlstate() || (again.is_tls() && !error.is_tls()) => {
            Err(error)
        }
        Err(again) => Err(Error::new(Kind::Several(vec![error, again]))),
    }
}

/// What pg_hba.conf may decide by encryption.
fn refused_at_the_door(error: &Error) -> bool {
    error.sqlstate().is_some_and(|code| code.starts_with("28"))
}

async fn try_encryption(
    info: &ConnInfo,
    endpoint: &Endpoint,
    purpose: &Purpose<'_>,
    encryption: Encryption,
) -> Result<Established, Error> {
    let place = info.describe_host(&endpoint.host);
    let stream = open(info.settings(), endpoint, encryption).await?;
    let encryption = if stream.tls().is_some() { Encryption::Tls } else { Encryption::Plain };
    let ready = startup::start(stream, info, &endpoint.host, purpose).await?;
    let version = version(ready.parameters.get("server_version").map_or("", String::as_str))?;
    Ok(Established { ready, endpoint: endpoint.clone(), encryption, version, place })
}

/// Connects and, where wanted, encrypts.
pub(crate) async fn open(
    settings: &Settings,
    endpoint: &Endpoint,
    encryption: Encryption,
) -> Result<Stream, Error> {
    let unreachable = |error: io::Error| Error::new(Kind::Unreachable(error));
    let address = match &endpoint.target {
        Target::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(|error| {
                unreachable(io::Error::new(error.kind(), format!("{}: {error}", path.display())))
            })?;
            return Ok(Stream::Unix(stream));
        }
        Target::Tcp(address) => *address,
    };
    let mut stream = TcpStream::connect(address).await.map_err(unreachable)?;
    configure(&stream, settings).map_err(unreachable)?;
    if encryption == Encryption::Plain {
        return Ok(Stream::Tcp(stream));
    }
    if !settings.ssl.direct && !ask_for_tls(&mut stream).await? {
        if encryption == Encryption::TlsIfOffered {
            return Ok(Stream::Tcp(stream));
        }
        return Err(Error::new(Kind::Tls(Tls::NotOffered)));
    }
    tls::connect(stream, settings, &endpoint.host).await
}

/// Sends `SSLRequest`. Reads exactly one byte: any further bytes would have been inserted by a
/// third party ahead of the handshake.
async fn ask_for_tls(stream: &mut TcpStream) -> Result<bool, Error> {
    let mut request = bytes::BytesMut::new();
    frontend::ssl_request(&mut request);
    stream.write_all(&request).await.map_err(Error::lost)?;
    match stream.read_u8().await.map_err(Error::lost)? {
        b'S' => Ok(true),
        b'N' => Ok(false),
        // An error text at this point comes from an unauthenticated peer and cannot be trusted.
        b'E' => Err(Error::new(Kind::Handshake(io::Error::other("it answered the request with an error")))),
        other => Err(Error::protocol(format!(
            "the peer answered the request for TLS with '{}'; is it a PostgreSQL server?",
            other.escape_ascii()
        ))),
    }
}

fn configure(stream: &TcpStream, settings: &Settings) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    if let Some(wanted) = &settings.keepalives {
        let mut keepalive = TcpKeepalive::new();
        if let Some(idle) = wanted.idle {
            keepalive = keepalive.with_time(idle);
        }
        if let Some(interval) = wanted.interval {
            keepalive = keepalive.with_interval(interval);
        }
        if let Some(count) = wanted.count {
            keepalive = keepalive.with_retries(count);
        }
        socket.set_tcp_keepalive(&keepalive)?;
    }
    if let Some(limit) = settings.tcp_user_timeout {
        socket.set_tcp_user_timeout(Some(limit))?;
    }
    Ok(())
}

/// The kernel ends a session whose sent bytes stay unacknowledged for this long, as long as
/// keepalives take. By default it takes a quarter of an hour.
const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(120);

/// This applies to sessions, whose commands are short, unless the connection string says otherwise.
/// It does not apply to a [`crate::Wire`]: a backend that waits for a lock stops reading a large
/// batch, and the kernel counts that too.
pub(crate) fn limit_unacknowledged(stream: &TcpStream, settings: &Settings) -> io::Result<()> {
    match settings.tcp_user_timeout {
        None => SockRef::from(stream).set_tcp_user_timeout(Some(UNACKNOWLEDGED_LIMIT)),
        Some(_) => Ok(()),
    }
}

/// Judges `target_session_attrs` by the parameters that servers report unasked since 14.
fn suitable(established: Established, wanted: SessionAttrs) -> Result<Established, Error> {
    if wanted == SessionAttrs::Any {
        return Ok(established);
    }
    let is_on = |name: &str| established.ready.parameters.get(name).map(|value| value == "on");
    let (Some(standby), Some(read_only)) = (is_on("in_hot_standby"), is_on("default_transaction_read_only"))
    else {
        return Err(Error::new(Kind::Unsuitable(Unsuitable::TooOld)));
    };
    let (fits, what) = match wanted {
        SessionAttrs::Any => (true, ""),
        SessionAttrs::ReadWrite => (!standby && !read_only, "read-only"),
        SessionAttrs::ReadOnly => (standby || read_only, "not read-only"),
        SessionAttrs::Primary => (!standby, "a standby"),
        SessionAttrs::Standby | SessionAttrs::PreferStandby => (standby, "not a standby"),
    };
    if fits {
        return Ok(established);
    }
    Err(Error::new(Kind::Unsuitable(Unsuitable::Is(what))))
}

/// `server_version` as a number: "15.18 (Debian ...)", "19devel", "18beta2".
fn version(text: &str) -> Result<PgVersion, Error> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    let major: Option<u32> = numbers.next().and_then(|number| number.parse().ok());
    let minor = text.split_once('.').and_then(|_| numbers.next()).and_then(|number| number.parse().ok());
    match major {
        // Before 10 there were three parts; such a server is refused later by its major.
        Some(major @ 1..=9) => Ok(PgVersion::from_num(major * 10_000)),
        Some(major @ 10..=9999) => Ok(PgVersion::from_num(major * 10_000 + minor.unwrap_or(0u32) % 10_000)),
        _ => Err(Error::protocol(format!("the server reports its version as \"{text}\", which is none"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sockets_are_set_up_as_asked() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let text = "host=h user=u keepalives_idle=11 keepalives_interval=12 keepalives_count=3 tcp_user_timeout=1500";
        configure(&stream, ConnInfo::parse_with(text, &|_| None).unwrap().settings()).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(11));
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(12));
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_millis(1500)));

        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let off = ConnInfo::parse_with("host=h user=u keepalives=0", &|_| None).unwrap();
        configure(&stream, off.settings()).unwrap();
        assert!(!SockRef::from(&stream).keepalive().unwrap());
        assert_eq!(SockRef::from(&stream).tcp_user_timeout().unwrap(), None);
        limit_unacknowledged(&stream, off.settings()).unwrap();
        assert_eq!(SockRef::from(&stream).tcp_user_timeout().unwrap(), Some(UNACKNOWLEDGED_LIMIT));

        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let kernels = ConnInfo::parse_with("host=h user=u tcp_user_timeout=0", &|_| None).unwrap();
        configure(&stream, kernels.settings()).unwrap();
        limit_unacknowledged(&stream, kernels.settings()).unwrap();
        assert_eq!(SockRef::from(&stream).tcp_user_timeout().unwrap(), None);
    }

    #[test]
    fn versions_of_every_form() {
        for (text, number) in [
            ("15.18 (Debian 15.18-0+deb12u1)", 150_018),
            ("18.0", 180_000),
            ("19devel", 190_000),
            ("18beta2", 180_000),
            ("9.6.24", 90_000),
        ] {
            assert_eq!(version(text).unwrap(), PgVersion::from_num(number), "{text}");
        }
        for bad in ["", "devel", "0", "99999999999"] {
            assert!(version(bad).is_err(), "{bad}");
        }
    }
}
