//! The reverse of parsing: the connection string by which libpq connects as pgsluice does.
//!
//! It is for PostgreSQL's programs that pgsluice starts. It always names server, database and role,
//! because Debian's wrappers of these programs would otherwise choose a server on this machine. The
//! programs read the rest of the environment themselves; an older libpq would not know every
//! keyword that a newer one has a variable for. The password is kept apart, because every user of
//! the machine can read command lines.

use super::host::{Address, Host};
use super::keyword;
use super::settings::Settings;
use super::shown::SECRETS;
use super::value::Values;

/// For `--dbname` and the environment of such a program.
#[derive(Clone)]
pub struct Libpq {
    /// A connection string without a password.
    pub conninfo: String,
    /// For `PGPASSWORD`, unless the environment or a file has it.
    pub password: Option<String>,
}

/// Named as they were understood, wherever they came from.
const NAMED: [&str; 6] = ["host", "hostaddr", "port", "dbname", "user", "service"];

/// What else the connection string and the service say.
pub(super) fn given(values: &Values) -> Vec<(&'static str, String)> {
    let from_environment = |name: &str, from: &str| {
        from == "PGREQUIRESSL" || keyword::find(name).is_some_and(|known| known.env == Some(from))
    };
    values
        .entries()
        .filter(|(name, _, from)| !NAMED.contains(name) && !from_environment(name, from))
        .map(|(name, value, _)| (name, value.to_owned()))
        .collect()
}

pub(super) fn for_libpq(settings: &Settings) -> Libpq {
    let list = |of: fn(&Host) -> String| settings.hosts.iter().map(of).collect::<Vec<_>>().join(",");
    let named = [
        ("host", list(|host| name(host).unwrap_or_default())),
        ("hostaddr", list(|host| address(host).unwrap_or_default())),
        ("port", list(|host| host.port.to_string())),
        ("dbname", settings.dbname.clone()),
        ("user", settings.user.clone()),
    ];
    // A list of nothing but commas is none.
    let mut words: Vec<String> = named
        .iter()
        .filter(|(_, value)| value.chars().any(|c| c != ','))
        .map(|(name, value)| word(name, value))
        .collect();
    let mut password = None;
    for (name, value) in &settings.given {
        match *name {
            "password" => password = Some(value.clone()),
            // There is no variable for them, and older programs know no such keyword.
            name if SECRETS.contains(&name) => {}
            name => words.push(word(name, value)),
        }
    }
    Libpq { conninfo: words.join(" "), password }
}

fn name(host: &Host) -> Option<String> {
    match &host.address {
        Address::Unix(directory) => Some(directory.clone()),
        Address::Tcp { name: None, hostaddr: None } => Some("localhost".to_owned()),
        Address::Tcp { name, .. } => name.clone(),
    }
}

fn address(host: &Host) -> Option<String> {
    match &host.address {
        Address::Tcp { hostaddr, .. } => hostaddr.map(|address| address.to_string()),
        Address::Unix(_) => None,
    }
}

fn word(name: &str, value: &str) -> String {
    format!("{name}='{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}
