//! Why pgsluice did not use a connection that was established: it would not or could not
//! authenticate or encrypt, or the server is not of the requested kind.

use std::fmt;
use std::path::PathBuf;

/// Why pgsluice did not authenticate.
#[derive(Debug)]
pub(crate) enum Unauthenticated {
    /// The server asks for a password by this method, and there is none.
    NoPassword {
        method: &'static str,
        passfile: Option<PathBuf>,
    },
    /// `require_auth` does not allow this method.
    NotAllowed {
        method: &'static str,
    },
    /// GSSAPI, SSPI or Kerberos.
    NotSupported,
    /// `channel_binding=require`, and the server let us in without SCRAM.
    NotAsked,
    /// `channel_binding=require`, and the method cannot bind.
    CannotBind {
        method: &'static str,
    },
    /// `channel_binding=require`, and the server or its certificate cannot.
    NoBinding,
    /// The server offers only these mechanisms.
    Mechanisms(String),
    ZeroByte,
    Scram(std::io::Error),
}

/// Why TLS was not agreed on.
#[derive(Debug)]
pub(crate) enum Tls {
    /// The server does not offer TLS.
    NotOffered,
    /// The server does not know `sslnegotiation=direct`.
    NotDirect,
    /// None of these roots signed the certificate.
    UnknownAuthority {
        roots: String,
    },
    WrongName {
        host: String,
        error: rustls::Error,
    },
    OutOfTime(rustls::Error),
    /// A certificate without extensions.
    Version1,
    NotAccepted {
        error: rustls::Error,
        roots: String,
    },
    Handshake(rustls::Error),
    /// A later error of the server or of the library.
    Alert(rustls::Error),
}

/// Why a server does not satisfy `target_session_attrs`.
#[derive(Debug)]
pub(crate) enum Unsuitable {
    /// The server does not report the parameter.
    TooOld,
    /// The server is of this kind.
    Is(&'static str),
}

impl fmt::Display for Unauthenticated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unauthenticated::NoPassword { method, passfile } => {
                let file = passfile.as_ref().map(|path| path.display().to_string());
                let file = file.unwrap_or_else(|| "the password file".to_owned());
                write!(
                    f,
                    "the server asks for a password ({method}) and there is none; give it in the connection string, \
                     in PGPASSWORD or in {file}"
                )
            }
            Unauthenticated::NotAllowed { method } => write!(
                f,
                "the server asks for authentication method {method}, which require_auth does not allow; let \
                 pg_hba.conf ask for one that it does"
            ),
            Unauthenticated::NotSupported => f.write_str(
                "the server asks for GSSAPI, SSPI or Kerberos, which are not supported; let pg_hba.conf offer \
                 scram-sha-256 or cert",
            ),
            Unauthenticated::NotAsked => f.write_str(
                "channel_binding=require, but the server let us in without SCRAM; let pg_hba.conf ask for \
                 scram-sha-256",
            ),
            Unauthenticated::CannotBind { method } => write!(
                f,
                "channel_binding=require, but the server asks for method {method}; it must be scram-sha-256"
            ),
            Unauthenticated::NoBinding => f.write_str(
                "channel_binding=require, but the server does not offer it on this connection; it needs TLS, and a \
                 certificate signed with a SHA-2 hash",
            ),
            Unauthenticated::Mechanisms(offered) => write!(
                f,
                "the server offers only {offered}; supported are SCRAM-SHA-256 and SCRAM-SHA-256-PLUS; let \
                 pg_hba.conf ask for scram-sha-256"
            ),
            Unauthenticated::ZeroByte => f.write_str(
                "the password contains a zero byte; correct it in the connection string, PGPASSWORD or the password file",
            ),
            Unauthenticated::Scram(error) => {
                write!(f, "the SCRAM exchange failed: {error}; is this the right server?")
            }
        }
    }
}

impl fmt::Display for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tls::NotOffered => f.write_str(
                "the server does not offer it; set ssl = on there, or connect with a weaker sslmode",
            ),
            Tls::NotDirect => f.write_str(
                "sslnegotiation=direct needs a server that knows it, PostgreSQL 17 or later",
            ),
            Tls::UnknownAuthority { roots } => write!(
                f,
                "the server's certificate is not signed by an authority in {roots}; give its root with sslrootcert"
            ),
            Tls::WrongName { host, error } => write!(
                f,
                "the server's certificate is not for host {host}: {error}; connect by the name in the certificate \
                 (hostaddr can say where it is), or check only its authority with sslmode=verify-ca"
            ),
            Tls::OutOfTime(error) => write!(
                f,
                "the server's certificate is outside its time: {error}; renew it, or check this machine's clock"
            ),
            Tls::Version1 => f.write_str(
                "the server's certificate is of X.509 version 1, which cannot be verified; issue it with extensions \
                 (subjectAltName, by `openssl x509 -req -extfile`), or use sslmode=require without a root certificate",
            ),
            Tls::NotAccepted { error, roots } => {
                write!(f, "the server's certificate is not accepted: {error} (trusted: {roots})")
            }
            Tls::Handshake(error) => write!(
                f,
                "the handshake failed: {error}; compare ssl_min_protocol_version and ssl_max_protocol_version of \
                 both sides"
            ),
            Tls::Alert(error) => write!(f, "{error}; the server's log says more"),
        }
    }
}

impl fmt::Display for Unsuitable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsuitable::TooOld => f.write_str(
                "target_session_attrs needs a server that reports in_hot_standby, PostgreSQL 14 or later",
            ),
            Unsuitable::Is(what) => {
                write!(f, "the server is {what}, target_session_attrs asks for another")
            }
        }
    }
}
