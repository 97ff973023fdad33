//! Connection options with types: numbers, choices, lists.
//!
//! Errors name the option, its value and where it came from. Values of
//! secret options never pass through here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::scram::ClientKeys;

use crate::Error;

/// Collected options: the value and where it came from.
pub(super) struct Values(BTreeMap<&'static str, (String, String)>);

/// `sslmode`, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SslMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// `sslrootcert`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RootCert {
    /// The system's trusted roots.
    System,
    /// A file, which may be missing when nothing has to be verified.
    File(PathBuf),
    /// No home directory to look in and no file given.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TlsVersion {
    V1_2,
    V1_3,
}

/// What is wanted of encryption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ssl {
    pub(crate) mode: SslMode,
    pub(crate) direct: bool,
    pub(crate) root_cert: RootCert,
    /// Certificate and key for ourselves; used if the certificate exists.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
    pub(crate) revocations: Option<PathBuf>,
    pub(crate) sni: bool,
    pub(crate) version_min: TlsVersion,
    pub(crate) version_max: TlsVersion,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChannelBinding {
    Disable,
    Prefer,
    Require,
}

/// The methods by which a server may ask pgsluice to authenticate, in the words of `require_auth`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthMethod {
    None,
    Password,
    Md5,
    ScramSha256,
}

impl AuthMethod {
    pub(crate) fn name(self) -> &'static str {
        match self {
            AuthMethod::None => "none",
            AuthMethod::Password => "password",
            AuthMethod::Md5 => "md5",
            AuthMethod::ScramSha256 => "scram-sha-256",
        }
    }
}

/// `require_auth`: the methods allowed, or with `!` those not allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequiredAuth {
    Any,
    Only(Vec<AuthMethod>),
    AllBut(Vec<AuthMethod>),
}

impl RequiredAuth {
    pub(crate) fn allows(&self, method: AuthMethod) -> bool {
        match self {
            RequiredAuth::Any => true,
            RequiredAuth::Only(methods) => methods.contains(&method),
            RequiredAuth::AllBut(methods) => !methods.contains(&method),
        }
    }
}

/// `target_session_attrs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionAttrs {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    PreferStandby,
}

impl Values {
    pub(super) fn new(values: BTreeMap<&'static str, (String, String)>) -> Values {
        Values(values)
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|(value, _)| value.as_str())
    }

    /// Name, value and where it came from.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'static str, &str, &str)> {
        self.0.iter().map(|(name, (value, from))| (*name, value.as_str(), from.as_str()))
    }

    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(PathBuf::from)
    }

    fn invalid(&self, name: &str, expected: &str) -> Error {
        let (value, from) = self.0.get(name).map_or(("", ""), |(value, from)| (value, from));
        Error::configuration(format!("connection option {name} (from {from}): \"{value}\" is not {expected}"))
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<i32>, Error> {
        let Some(text) = self.get(name) else { return Ok(None) };
        text.trim().parse().map(Some).map_err(|_| self.invalid(name, "a whole number"))
    }

    /// Outer `None`: not given. Inner `None`: zero or less, no limit of ours.
    pub(super) fn seconds(&self, name: &str) -> Result<Option<Option<Duration>>, Error> {
        let positive = |seconds: i32| u64::try_from(seconds).ok().filter(|&seconds| seconds > 0);
        Ok(self.number(name)?.map(|seconds| positive(seconds).map(Duration::from_secs)))
    }

    pub(super) fn choice<T: Copy>(&self, name: &str, choices: &[(&str, T)], default: T) -> Result<T, Error> {
        let Some(text) = self.get(name) else { return Ok(default) };
        choices.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            self.invalid(name, &format!("one of {}", words.join(", ")))
        })
    }

    pub(super) fn channel_binding(&self) -> Result<ChannelBinding, Error> {
        use ChannelBinding::{Disable, Prefer, Require};
        let choices = [("disable", Disable), ("prefer", Prefer), ("require", Require)];
        self.choice("channel_binding", &choices, Prefer)
    }

    /// `scram_client_key` and `scram_server_key`, which are shown to nobody.
    pub(super) fn scram_keys(&self) -> Result<Option<ClientKeys>, Error> {
        let given = [self.get("scram_client_key"), self.get("scram_server_key")];
        match given {
            [None, None] => Ok(None),
            [Some(client), Some(server)] => ClientKeys::parse(client, server).map(Some).ok_or_else(|| {
                Error::configuration("scram_client_key or scram_server_key is not 32 bytes in base64")
            }),
            _ => {
                Err(Error::configuration("scram_client_key and scram_server_key need each other; give both"))
            }
        }
    }

    pub(super) fn session_attrs(&self) -> Result<SessionAttrs, Error> {
        use SessionAttrs::{Any, PreferStandby, Primary, ReadOnly, ReadWrite, Standby};
        let choices = [
            ("any", Any),
            ("read-write", ReadWrite),
            ("read-only", ReadOnly),
            ("primary", Primary),
            ("standby", Standby),
            ("prefer-standby", PreferStandby),
        ];
        self.choice("target_session_attrs", &choices, Any)
    }

    pub(super) fn require_auth(&self) -> Result<RequiredAuth, Error> {
        let Some(text) = self.get("require_auth") else { return Ok(RequiredAuth::Any) };
        let words: Vec<&str> = text.split(',').map(str::trim).collect();
        let negated = words.iter().filter(|word| word.starts_with('!')).count();
        if negated != 0 && negated != words.len() {
            return Err(
                self.invalid("require_auth", "a list of methods that are all with or all without \"!\"")
            );
        }
        let mut methods = Vec::new();
        for word in &words {
            match word.trim_start_matches('!') {
                "none" => methods.push(AuthMethod::None),
                "password" => methods.push(AuthMethod::Password),
                "md5" => methods.push(AuthMethod::Md5),
                "scram-sha-256" => methods.push(AuthMethod::ScramSha256),
                // Methods that pgsluice never uses: nothing to allow, nothing to forbid.
                "gss" | "sspi" | "oauth" => {}
                _ => {
                    let known = "a list of none, password, md5, scram-sha-256, gss, sspi, oauth";
                    return Err(self.invalid("require_auth", known));
                }
            }
        }
        Ok(if negated == 0 { RequiredAuth::Only(methods) } else { RequiredAuth::AllBut(methods) })
    }
}

pub(super) fn port(text: &str) -> Result<u16, Error> {
    match text {
        "" => Ok(5432),
        text => text.parse().ok().filter(|&port| port > 0).ok_or_else(|| {
            Error::configuration(format!("\"{text}\" is not a port: expected a number from 1 to 65535"))
        }),
    }
}

pub(super) fn ssl(values: &Values, home: Option<&Path>) -> Result<Ssl, Error> {
    use SslMode::{Allow, Disable, Prefer, Require, VerifyCa, VerifyFull};
    // Debian's and everybody's libpq: the directory is not configurable.
    let own = |name: &str| home.map(|home| home.join(".postgresql").join(name));
    let root_cert = match values.get("sslrootcert") {
        Some("system") => RootCert::System,
        Some(path) => RootCert::File(PathBuf::from(path)),
        None => own("root.crt").map_or(RootCert::None, RootCert::File),
    };
    let modes = [
        ("disable", Disable),
        ("allow", Allow),
        ("prefer", Prefer),
        ("require", Require),
        ("verify-ca", VerifyCa),
        ("verify-full", VerifyFull),
    ];
    let default_mode = if root_cert == RootCert::System { VerifyFull } else { Prefer };
    let mode = values.choice("sslmode", &modes, default_mode)?;
    if root_cert == RootCert::System && mode != VerifyFull {
        return Err(values.invalid(
            "sslmode",
            "strong enough for sslrootcert=system, where anybody's certificate is trusted; use verify-full",
        ));
    }
    let direct = values.choice("sslnegotiation", &[("postgres", false), ("direct", true)], false)?;
    if direct && mode < Require {
        return Err(Error::configuration(
            "sslnegotiation=direct cannot fall back to a plain connection: it needs sslmode=require or stronger",
        ));
    }
    let certificate = values.path("sslcert").or_else(|| own("postgresql.crt"));
    let key = values.path("sslkey").or_else(|| own("postgresql.key"));
    let (version_min, version_max) = tls_versions(values)?;
    Ok(Ssl {
        mode,
        direct,
        root_cert,
        identity: certificate.zip(key).filter(|_| values.get("sslcertmode") != Some("disable")),
        revocations: values.path("sslcrl").or_else(|| own("root.crl").filter(|path| path.exists())),
        sni: values.choice("sslsni", &[("0", false), ("1", true)], true)?,
        version_min,
        version_max,
    })
}

fn tls_versions(values: &Values) -> Result<(TlsVersion, TlsVersion), Error> {
    use TlsVersion::{V1_2, V1_3};
    // TLS 1.0 and 1.1 do not exist here, so as a minimum they mean 1.2.
    let minima = [("TLSv1", V1_2), ("TLSv1.1", V1_2), ("TLSv1.2", V1_2), ("TLSv1.3", V1_3)];
    let min = values.choice("ssl_min_protocol_version", &minima, V1_2)?;
    let maxima = [("TLSv1.2", V1_2), ("TLSv1.3", V1_3)];
    let max = values.choice("ssl_max_protocol_version", &maxima, V1_3)?;
    if min > max {
        return Err(values.invalid("ssl_max_protocol_version", "at least ssl_min_protocol_version"));
    }
    Ok((min, max))
}
