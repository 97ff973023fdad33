//! What to connect to, as libpq understands it.
//!
//! Handed: a keyword/value string or a URI. The service file fills in what the string leaves open,
//! then the `PG*` environment, then libpq's defaults. This module checks everything that needs no
//! network, once, so that a typing error is found at the start and not at the first reconnect. Only
//! the password file is read at every connection, because a password may change while pgsluice
//! runs.
//!
//! No crate has libpq's surface: its keywords, URIs, service file, password file
//! and environment. `tokio_postgres::Config` knows some of the keywords and reads
//! neither file.
//!
//! Where defaults depart from libpq's: keepalives are sent after
//! [`KEEPALIVES_IDLE_S`] seconds rather than the system's two hours, because
//! nobody watches an unattended connection.

mod keyword;
mod libpq;
mod passfile;
mod service;
mod shown;
mod text;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use libpq::Libpq;
pub use shown::Shown;
pub(crate) use value::{
    AuthMethod, ChannelBinding, RequiredAuth, RootCert, SessionAttrs, SslMode, TlsVersion,
};

use crate::Error;
use keyword::Support;
use value::Values;

/// Seconds without traffic before the first keepalive, unless the connection string says otherwise.
const KEEPALIVES_IDLE_S: u64 = 60;
/// Seconds between keepalives.
const KEEPALIVES_INTERVAL_S: u64 = 10;
/// Unanswered keepalives before the kernel takes the peer for dead.
const KEEPALIVES_COUNT: u32 = 6;

/// Where, as whom and how to connect. Cheap to clone.
///
/// `Debug` and `Display` show what [`ConnInfo::describe`] says and never the
/// password.
#[derive(Clone)]
pub struct ConnInfo {
    settings: Arc<Settings>,
}

/// One entry of the list of hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) address: Address,
    pub(crate) port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// A host name or address, resolved unless `hostaddr` says where it is.
    Tcp { name: Option<String>, hostaddr: Option<IpAddr> },
    /// The directory of a Unix socket; `@` first for Linux's abstract names.
    Unix(String),
}

/// Everything libpq's keywords say, with types.
pub(crate) struct Settings {
    /// What the connection string and the service say, as texts.
    given: Vec<(&'static str, String)>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) user: String,
    pub(crate) dbname: String,
    password: Option<String>,
    passfile: Option<PathBuf>,
    pub(crate) options: String,
    pub(crate) application_name: Option<String>,
    pub(crate) fallback_application_name: Option<String>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) keepalives: Option<Keepalives>,
    /// Zero is the system's default, as in libpq.
    pub(crate) tcp_user_timeout: Option<Duration>,
    pub(crate) ssl: Ssl,
    pub(crate) channel_binding: ChannelBinding,
    pub(crate) require_auth: RequiredAuth,
    pub(crate) session_attrs: SessionAttrs,
    pub(crate) balance_hosts: bool,
}

/// `None` is the system's default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Keepalives {
    pub(crate) idle: Option<Duration>,
    pub(crate) interval: Option<Duration>,
    pub(crate) count: Option<u32>,
}

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

impl ConnInfo {
    /// Reads a connection string of either form, completed from this
    /// process's environment and the files it names.
    ///
    /// # Errors
    /// [`Error::is_configuration`]: the text, a variable or a file is wrong,
    /// or asks for what is not supported. The message says which, and quotes
    /// no password.
    pub fn parse(text: &str) -> Result<ConnInfo, Error> {
        Self::parse_with(text, &|name| std::env::var(name).ok())
    }

    /// As [`ConnInfo::parse`] with another environment.
    ///
    /// # Errors
    /// As [`ConnInfo::parse`].
    pub fn parse_with(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<ConnInfo, Error> {
        let values = collect(text, env)?;
        let settings = Settings::from_values(&values, env)?;
        Ok(ConnInfo { settings: Arc::new(settings) })
    }

    /// `host:port/dbname as user`, safe to log.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{}/{} as {}", self.address(), self.settings.dbname, self.settings.user)
    }

    /// `host:port`, all of them.
    #[must_use]
    pub fn address(&self) -> String {
        let hosts: Vec<String> = self.settings.hosts.iter().map(ToString::to_string).collect();
        hosts.join(",")
    }

    /// The database.
    #[must_use]
    pub fn dbname(&self) -> &str {
        &self.settings.dbname
    }

    /// The role.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.settings.user
    }

    /// The same for a program that uses libpq.
    #[must_use]
    pub fn for_libpq(&self) -> Libpq {
        libpq::for_libpq(&self.settings)
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// As [`ConnInfo::describe`], for one of the hosts.
    pub(crate) fn describe_host(&self, host: &Host) -> String {
        format!("{host}/{} as {}", self.settings.dbname, self.settings.user)
    }
}

impl Settings {
    /// The password for `host`: from the connection string or `PGPASSWORD`,
    /// else from the password file, which is read now.
    pub(crate) fn password_for(&self, host: &Host, dbname: &str) -> Result<Option<String>, Error> {
        if let Some(password) = &self.password {
            return Ok(Some(password.clone()));
        }
        let Some(path) = &self.passfile else { return Ok(None) };
        let hostaddr;
        let name = match &host.address {
            Address::Unix(directory) if DEFAULT_SOCKET_DIRECTORIES.contains(&directory.as_str()) => {
                "localhost"
            }
            Address::Unix(directory) => directory,
            Address::Tcp { name: Some(name), .. } => name,
            Address::Tcp { name: None, hostaddr: Some(address) } => {
                hostaddr = address.to_string();
                &hostaddr
            }
            Address::Tcp { name: None, hostaddr: None } => "localhost",
        };
        passfile::look_up(path, passfile::Wanted { host: name, port: host.port, dbname, user: &self.user })
    }

    /// Where pgsluice looks for passwords, for messages.
    pub(crate) fn passfile(&self) -> Option<&Path> {
        self.passfile.as_deref()
    }

    fn from_values(values: &Values, env: &dyn Fn(&str) -> Option<String>) -> Result<Settings, Error> {
        let home = home(env);
        let user = match values.get("user") {
            Some(user) => user.to_owned(),
            None => system_user(env).ok_or_else(|| {
                Error::configuration(
                    "the system does not know the name of this user; give `user`, or set PGUSER",
                )
            })?,
        };
        let seconds = |name| values.seconds(name);
        Ok(Settings {
            given: libpq::given(values),
            hosts: hosts(values)?,
            dbname: values.get("dbname").unwrap_or(&user).to_owned(),
            user,
            password: values.get("password").map(str::to_owned),
            passfile: values.path("passfile").or_else(|| home.as_ref().map(|home| home.join(".pgpass"))),
            options: options(values, env),
            application_name: values.get("application_name").map(str::to_owned),
            fallback_application_name: values.get("fallback_application_name").map(str::to_owned),
            // As libpq up to 16: less than two seconds is too little to be meant.
            connect_timeout: seconds("connect_timeout")?
                .flatten()
                .map(|limit| limit.max(Duration::from_secs(2))),
            keepalives: keepalives(values)?,
            tcp_user_timeout: values
                .number("tcp_user_timeout")?
                .map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0))),
            ssl: value::ssl(values, home.as_deref())?,
            channel_binding: values.channel_binding()?,
            require_auth: values.require_auth()?,
            session_attrs: values.session_attrs()?,
            balance_hosts: values.choice(
                "load_balance_hosts",
                &[("disable", false), ("random", true)],
                false,
            )?,
        })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Unix(directory) => write!(f, "{directory}:{}", self.port),
            Address::Tcp { name: Some(name), .. } if name.contains(':') => {
                write!(f, "[{name}]:{}", self.port)
            }
            Address::Tcp { name: Some(name), .. } => write!(f, "{name}:{}", self.port),
            Address::Tcp { name: None, hostaddr: Some(IpAddr::V6(address)) } => {
                write!(f, "[{address}]:{}", self.port)
            }
            Address::Tcp { name: None, hostaddr: Some(address) } => write!(f, "{address}:{}", self.port),
            Address::Tcp { name: None, hostaddr: None } => write!(f, "localhost:{}", self.port),
        }
    }
}

impl fmt::Display for ConnInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

impl fmt::Debug for ConnInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnInfo({})", self.describe())
    }
}

/// The text, then the service, then the environment: each fills only what is
/// still open.
fn collect(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Values, Error> {
    let mut values = BTreeMap::new();
    for (name, value) in text::parse(text)? {
        values.insert(name, (value, "the connection string".to_owned()));
    }
    let from_text = values.get("service").map(|(name, _)| name.clone());
    if let Some(service) = from_text.or_else(|| env("PGSERVICE")).filter(|name| !name.is_empty()) {
        for (name, value) in service::look_up(&service, env, home(env).as_deref())? {
            values.entry(name).or_insert_with(|| (value, format!("service {service}")));
        }
    }
    for keyword in keyword::KEYWORDS {
        let Some(variable) = keyword.env else { continue };
        if let Some(value) = env(variable) {
            values.entry(keyword.name).or_insert_with(|| (value, variable.to_owned()));
        }
    }
    // Older than PGSSLMODE and still read by libpq.
    if env("PGREQUIRESSL").is_some_and(|value| value.starts_with('1')) {
        values.entry("sslmode").or_insert_with(|| ("require".to_owned(), "PGREQUIRESSL".to_owned()));
    }
    // To libpq an empty value is no value.
    values.retain(|_, (value, _)| !value.is_empty());
    for (name, (value, from)) in &values {
        let reason = match keyword::find(name).map(|keyword| keyword.support) {
            Some(Support::Refused(reason)) => reason,
            Some(Support::Only(allowed, reason)) if !allowed.contains(&value.to_lowercase().as_str()) => {
                reason
            }
            _ => continue,
        };
        return Err(Error::configuration(format!("connection option {name} (from {from}): {reason}")));
    }
    Ok(Values::new(values))
}

/// Where servers of Debian and of upstream put their sockets.
const DEFAULT_SOCKET_DIRECTORIES: [&str; 2] = ["/var/run/postgresql", "/tmp"];

fn default_socket_directory() -> String {
    let [first, second] = DEFAULT_SOCKET_DIRECTORIES;
    if Path::new(first).is_dir() { first } else { second }.to_owned()
}

/// Pairs the comma-separated lists of host, hostaddr and port.
fn hosts(values: &Values) -> Result<Vec<Host>, Error> {
    let list = |name| values.get(name).map(|text| text.split(',').map(str::trim).collect::<Vec<_>>());
    let (names, addresses) = (list("host"), list("hostaddr"));
    let ports = list("port").unwrap_or_default();
    let count = addresses.as_ref().or(names.as_ref()).map_or(1, Vec::len);
    if let (Some(names), Some(addresses)) = (&names, &addresses)
        && names.len() != addresses.len()
    {
        return Err(Error::configuration(format!(
            "{} hosts but {} hostaddr values: each host needs one",
            names.len(),
            addresses.len()
        )));
    }
    if ports.len() > 1 && ports.len() != count {
        return Err(Error::configuration(format!(
            "{} ports for {count} hosts: give one for all, or one each",
            ports.len()
        )));
    }
    (0..count)
        .map(|index| {
            let entry = |list: &Option<Vec<&str>>| {
                list.as_ref().map(|list| list[index].to_owned()).filter(|text| !text.is_empty())
            };
            let hostaddr = match entry(&addresses) {
                Some(text) => Some(text.parse::<IpAddr>().map_err(|_| {
                    Error::configuration(format!(
                        "hostaddr \"{text}\" is not an IP address; names belong into host"
                    ))
                })?),
                None => None,
            };
            let address = match (entry(&names), hostaddr) {
                (None, None) => Address::Unix(default_socket_directory()),
                (Some(name), None) if name.starts_with(['/', '@']) => Address::Unix(name),
                (name, hostaddr) => Address::Tcp { name, hostaddr },
            };
            let port = ports.get(if ports.len() > 1 { index } else { 0 }).copied().unwrap_or("");
            Ok(Host { address, port: value::port(port)? })
        })
        .collect()
}

fn keepalives(values: &Values) -> Result<Option<Keepalives>, Error> {
    if values.number("keepalives")?.is_some_and(|on| on == 0) {
        return Ok(None);
    }
    let seconds =
        |name, default| Ok::<_, Error>(values.seconds(name)?.unwrap_or(Some(Duration::from_secs(default))));
    Ok(Some(Keepalives {
        idle: seconds("keepalives_idle", KEEPALIVES_IDLE_S)?,
        interval: seconds("keepalives_interval", KEEPALIVES_INTERVAL_S)?,
        count: match values.number("keepalives_count")? {
            Some(count) => u32::try_from(count).ok().filter(|&count| count > 0),
            None => Some(KEEPALIVES_COUNT),
        },
    }))
}

/// The user's command-line options, behind what libpq would set from
/// variables of its own, so that the user's win.
fn options(values: &Values, env: &dyn Fn(&str) -> Option<String>) -> String {
    let mut options = String::new();
    for (variable, setting) in [("PGDATESTYLE", "datestyle"), ("PGTZ", "timezone"), ("PGGEQO", "geqo")] {
        if let Some(value) = env(variable).filter(|value| !value.is_empty() && value != "default") {
            add_setting(&mut options, setting, &value);
        }
    }
    if let Some(own) = values.get("options") {
        if !options.is_empty() {
            options.push(' ');
        }
        options.push_str(own);
    }
    options
}

/// Appends `-c name=value`; the server splits at blanks and knows `\` as the
/// escape (`pg_split_opts` in `utils/init/postinit.c`).
pub(crate) fn add_setting(options: &mut String, name: &str, value: &str) {
    if !options.is_empty() {
        options.push(' ');
    }
    options.push_str("-c ");
    for c in name.chars().chain(['=']).chain(value.chars()) {
        if c == '\\' || c.is_ascii_whitespace() || c == '\x0b' {
            options.push('\\');
        }
        options.push(c);
    }
}

fn home(env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    env("HOME").filter(|home| !home.is_empty()).or_else(|| passwd_field(5)).map(PathBuf::from)
}

/// The name of the effective user, from the system's list, else the environment.
fn system_user(env: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    passwd_field(0).or_else(|| env("USER")).or_else(|| env("LOGNAME")).filter(|name| !name.is_empty())
}

/// One field of our own line in `/etc/passwd`: 0 is the name, 5 the home directory.
fn passwd_field(index: usize) -> Option<String> {
    let uid = rustix::process::geteuid().as_raw().to_string();
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.split(':').nth(2) == Some(uid.as_str()))?;
    line.split(':').nth(index).map(str::to_owned)
}

#[cfg(test)]
mod tests;
