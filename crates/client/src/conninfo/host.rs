//! Which servers a connection string names: the list of hosts, with address and port.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use super::value::{self, Values};
use crate::Error;

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

/// Where servers of Debian and of upstream put their sockets.
pub(super) const DEFAULT_SOCKET_DIRECTORIES: [&str; 2] = ["/var/run/postgresql", "/tmp"];

fn default_socket_directory() -> String {
    let [first, second] = DEFAULT_SOCKET_DIRECTORIES;
    if Path::new(first).is_dir() { first } else { second }.to_owned()
}

/// Pairs the comma-separated lists of host, hostaddr and port.
pub(super) fn hosts(values: &Values) -> Result<Vec<Host>, Error> {
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
