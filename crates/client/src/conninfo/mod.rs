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

mod host;
mod keyword;
mod libpq;
mod passfile;
mod service;
mod settings;
mod shown;
mod text;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use host::{Address, Host};
pub use libpq::Libpq;
pub(crate) use settings::Settings;
pub use shown::Shown;
pub(crate) use value::{AuthMethod, ChannelBinding, RootCert, SessionAttrs, Ssl, SslMode, TlsVersion};

use self::host::hosts;
use proto::scram::ClientKeys;

use self::keyword::Support;
use self::settings::Keepalives;
use self::value::Values;
use crate::Error;

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

    /// The same servers for another role, database and settings (`options`). The role logs in by
    /// `keys`. Without them it must be let in without a password: that of this connection string is
    /// not the other role's.
    #[must_use]
    pub fn as_role(&self, user: &str, dbname: &str, options: &str, keys: Option<ClientKeys>) -> ConnInfo {
        let settings = Settings {
            user: user.to_owned(),
            dbname: dbname.to_owned(),
            options: options.to_owned(),
            scram_keys: keys,
            password: None,
            passfile: None,
            application_name: None,
            ..Settings::clone(&self.settings)
        };
        ConnInfo { settings: Arc::new(settings) }
    }

    /// The same servers and role, with this password.
    #[must_use]
    pub fn with_password(&self, password: &str) -> ConnInfo {
        let password = Some(password.to_owned());
        let settings = Settings { password, scram_keys: None, ..Settings::clone(&self.settings) };
        ConnInfo { settings: Arc::new(settings) }
    }

    /// The same servers and role, and another database.
    #[must_use]
    pub fn with_dbname(&self, dbname: &str) -> ConnInfo {
        let settings = Settings { dbname: dbname.to_owned(), ..Settings::clone(&self.settings) };
        ConnInfo { settings: Arc::new(settings) }
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
            scram_keys: values.scram_keys()?,
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
