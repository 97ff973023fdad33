//! A connection string with types, after everything that fills it in.

use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::scram::ClientKeys;

use super::host::{Address, DEFAULT_SOCKET_DIRECTORIES, Host};
use super::passfile::{self, Wanted};
use super::value::{ChannelBinding, RequiredAuth, SessionAttrs, Ssl};
use crate::Error;

/// Everything libpq's keywords say, with types.
#[derive(Clone)]
pub(crate) struct Settings {
    /// What the connection string and the service say, as texts.
    pub(super) given: Vec<(&'static str, String)>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) user: String,
    pub(crate) dbname: String,
    pub(super) password: Option<String>,
    /// In place of a password, where the server asks for SCRAM.
    pub(crate) scram_keys: Option<ClientKeys>,
    pub(super) passfile: Option<PathBuf>,
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
        passfile::look_up(path, Wanted { host: name, port: host.port, dbname, user: &self.user })
    }

    /// Where pgsluice looks for passwords, for messages.
    pub(crate) fn passfile(&self) -> Option<&Path> {
        self.passfile.as_deref()
    }
}
