//! The access table: who may connect to which database from where, and how they show who they are.
//!
//! It is written as `pg_hba.conf` is, and the first line that matches decides. What is not known
//! here makes the whole table an error, so that no line means less than it says.
//!
//! ```text
//! # TYPE   DATABASE  USER  ADDRESS         METHOD
//! local    all       all                   trust
//! hostssl  sales     sub   192.168.0.0/16  scram-sha-256
//! host     all       all   samenet         scram-sha-256
//! hostssl  all       all   all             cert map=machines
//! ```
//! Source: "The pg_hba.conf File" and "User Name Maps" of PostgreSQL's documentation; `hba.c`.

use std::net::IpAddr;

use ipnet::IpNet;
use proto::startup::Purpose;

use crate::lines::{Field, Line, TableError, fields};

/// How clients show who they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Method {
    /// Not at all.
    Trust,
    /// They may not connect.
    Reject,
    /// By a password that is not sent.
    Scram,
    /// By the certificate of the TLS connection, whose common name is the user's, or is mapped to
    /// it by this map.
    Cert {
        /// The map's name, if there is one.
        map: Option<String>,
    },
}

/// Where a client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At a Unix socket.
    Local,
    /// At this address.
    Network {
        /// Its address.
        address: IpAddr,
        /// Whether the connection is encrypted.
        tls: bool,
    },
}

/// A client that asks to be let in.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    /// Where the client is.
    pub place: Place,
    /// The role.
    pub user: &'a str,
    /// The database; empty for physical replication.
    pub database: &'a str,
    /// What the connection is for.
    pub purpose: Purpose,
}

/// An access table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessTable {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    line: usize,
    connection: Connection,
    databases: Vec<Database>,
    users: Vec<User>,
    method: Method,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Connection {
    Local,
    Network { tls: Tls, from: From },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tls {
    Either,
    Needed,
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    All,
    SameHost,
    SameNet,
    Net(IpNet),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Database {
    All,
    SameUser,
    Replication,
    Named(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum User {
    All,
    Named(String),
}

/// The addresses of this machine, with their networks.
#[derive(Debug, Clone, Default)]
pub struct OwnNetworks(Vec<IpNet>);

impl OwnNetworks {
    /// Asks the system. Without an answer, `samehost` and `samenet` match nothing.
    #[must_use]
    pub fn look() -> OwnNetworks {
        let interfaces = if_addrs::get_if_addrs().unwrap_or_else(|error| {
            tracing::warn!(
                "the addresses of this machine are unknown, so samehost and samenet match nothing: {error}"
            );
            Vec::new()
        });
        let net = |interface: if_addrs::Interface| {
            let prefix = match &interface.addr {
                if_addrs::IfAddr::V4(address) => address.prefixlen,
                if_addrs::IfAddr::V6(address) => address.prefixlen,
            };
            IpNet::new(interface.ip(), prefix).ok()
        };
        OwnNetworks(interfaces.into_iter().filter_map(net).collect())
    }
}

/// The table where none is given: passwords from everywhere.
impl Default for AccessTable {
    fn default() -> AccessTable {
        let rule = |connection| Rule {
            line: 0,
            connection,
            databases: vec![Database::All, Database::Replication],
            users: vec![User::All],
            method: Method::Scram,
        };
        let network = Connection::Network { tls: Tls::Either, from: From::All };
        AccessTable { rules: vec![rule(Connection::Local), rule(network)] }
    }
}

impl AccessTable {
    /// Reads a table.
    ///
    /// # Errors
    /// A line that is not understood, or that asks for something that is not supported; or no line.
    pub fn parse(text: &str) -> Result<AccessTable, TableError> {
        let mut rules = Vec::new();
        for line in fields(text) {
            let line = line?;
            rules.push(rule(&line)?);
        }
        if rules.is_empty() {
            return Err(TableError::new(1, "the table has no lines, so nobody could connect"));
        }
        Ok(AccessTable { rules })
    }

    /// Whether a line names this machine's networks.
    pub(crate) fn asks_for_own(&self) -> bool {
        let own = |rule: &Rule| {
            matches!(rule.connection, Connection::Network { from: From::SameHost | From::SameNet, .. })
        };
        self.rules.iter().any(own)
    }

    /// What the first line that matches says, and its number; `None` if no line does.
    #[must_use]
    pub fn find(&self, asking: &Asking<'_>, own: &OwnNetworks) -> Option<(&Method, usize)> {
        let rule = self.rules.iter().find(|rule| rule.matches(asking, own))?;
        Some((&rule.method, rule.line))
    }
}

impl Rule {
    fn matches(&self, asking: &Asking<'_>, own: &OwnNetworks) -> bool {
        let is_there = match (&self.connection, asking.place) {
            (Connection::Local, Place::Local) => true,
            (Connection::Network { tls, from }, Place::Network { address, tls: encrypted }) => {
                let tls_fits = match tls {
                    Tls::Either => true,
                    Tls::Needed => encrypted,
                    Tls::Refused => !encrypted,
                };
                tls_fits && from.contains(address.to_canonical(), own)
            }
            _ => false,
        };
        is_there
            && self.databases.iter().any(|database| database.is(asking))
            && self.users.iter().any(|user| match user {
                User::All => true,
                User::Named(name) => name == asking.user,
            })
    }
}

impl From {
    fn contains(self, address: IpAddr, own: &OwnNetworks) -> bool {
        match self {
            From::All => true,
            From::SameHost => own.0.iter().any(|net| net.addr() == address),
            From::SameNet => own.0.iter().any(|net| net.contains(&address)),
            From::Net(net) => net.contains(&address),
        }
    }
}

impl Database {
    /// Only `replication` stands for connections without a database.
    fn is(&self, asking: &Asking<'_>) -> bool {
        let is_physical = asking.purpose == Purpose::Physical;
        match self {
            Database::All => !is_physical,
            Database::Replication => is_physical,
            Database::SameUser => !is_physical && asking.database == asking.user,
            Database::Named(name) => !is_physical && name == asking.database,
        }
    }
}

fn rule(line: &Line) -> Result<Rule, TableError> {
    let failed = |why: String| TableError::new(line.number, why);
    let mut rest = line.fields.iter();
    let mut next = |what: &str| {
        rest.next().ok_or_else(|| {
            failed(format!("the {what} is missing; a line is TYPE DATABASE USER [ADDRESS] METHOD"))
        })
    };
    let connection = single(line, next("type")?)?;
    let databases = databases(line, next("database")?)?;
    let users = users(line, next("user")?)?;
    let tls = match connection {
        "local" => None,
        "host" => Some(Tls::Either),
        "hostssl" => Some(Tls::Needed),
        "hostnossl" => Some(Tls::Refused),
        other => {
            return Err(failed(format!("type \"{other}\" is none of local, host, hostssl and hostnossl")));
        }
    };
    let connection = match tls {
        None => Connection::Local,
        Some(tls) => {
            let address = single(line, next("address")?)?;
            let mask =
                rest.clone().next().and_then(|field| field.single()).and_then(|text| text.parse().ok());
            if mask.is_some() {
                rest.next();
            }
            Connection::Network { tls, from: from(address, mask).map_err(failed)? }
        }
    };
    let method = rest.next().ok_or_else(|| failed("the method is missing".to_owned()))?;
    let options: Vec<&Field> = rest.collect();
    let method = method_of(line, &connection, single(line, method)?, &options)?;
    Ok(Rule { line: line.number, connection, databases, users, method })
}

/// A field with one word.
fn single<'a>(line: &Line, field: &'a Field) -> Result<&'a str, TableError> {
    let list = || TableError::new(line.number, "a list stands where there can be only one word");
    field.single().ok_or_else(list)
}

fn databases(line: &Line, field: &Field) -> Result<Vec<Database>, TableError> {
    field
        .words
        .iter()
        .map(|word| match word.text.as_str() {
            _ if word.quoted => Ok(Database::Named(word.text.clone())),
            "all" => Ok(Database::All),
            "sameuser" => Ok(Database::SameUser),
            "replication" => Ok(Database::Replication),
            "samerole" | "samegroup" => Err(unsupported(line, "samerole", "name the databases")),
            text => name(line, text).map(Database::Named),
        })
        .collect()
}

fn users(line: &Line, field: &Field) -> Result<Vec<User>, TableError> {
    field
        .words
        .iter()
        .map(|word| match word.text.as_str() {
            _ if word.quoted => Ok(User::Named(word.text.clone())),
            "all" => Ok(User::All),
            text => name(line, text).map(User::Named),
        })
        .collect()
}

/// A name without quotes, where some beginnings have a meaning.
fn name(line: &Line, text: &str) -> Result<String, TableError> {
    match text.chars().next() {
        Some('+') => Err(unsupported(line, "membership in a role (+)", "name the users")),
        Some('@') => Err(unsupported(line, "a file of names (@)", "write the names into the line")),
        Some('/') => Err(unsupported(line, "a regular expression (/)", "write the names into the line")),
        _ => Ok(text.to_owned()),
    }
}

fn unsupported(line: &Line, what: &str, remedy: &str) -> TableError {
    TableError::new(line.number, format!("{what} is not supported; {remedy}"))
}

fn from(address: &str, mask: Option<IpAddr>) -> Result<From, String> {
    match address {
        "all" => return Ok(From::All),
        "samehost" => return Ok(From::SameHost),
        "samenet" => return Ok(From::SameNet),
        _ => {}
    }
    if let Ok(net) = address.parse::<IpNet>() {
        return Ok(From::Net(net));
    }
    let plain: IpAddr = address.parse().map_err(|_| {
        format!(
            "\"{address}\" is no address; give one such as 192.168.0.0/16, or all, samehost or samenet (names of hosts are \
             not supported)"
        )
    })?;
    let mask = mask
        .ok_or_else(|| format!("address {address} has no length of its network; write {address}/LENGTH"))?;
    IpNet::with_netmask(plain, mask)
        .map(From::Net)
        .map_err(|_| format!("{mask} is no mask for address {address}"))
}

fn method_of(
    line: &Line,
    connection: &Connection,
    method: &str,
    options: &[&Field],
) -> Result<Method, TableError> {
    let failed = |why: String| Err(TableError::new(line.number, why));
    let mut map = None;
    for option in options {
        let text = single(line, option)?;
        match text.split_once('=') {
            Some(("map", name)) if method == "cert" => map = Some(name.to_owned()),
            _ => return failed(format!("option \"{text}\" is not supported for method {method}")),
        }
    }
    match method {
        "trust" => Ok(Method::Trust),
        "reject" => Ok(Method::Reject),
        "scram-sha-256" => Ok(Method::Scram),
        "cert" => match connection {
            Connection::Network { tls: Tls::Needed, .. } => Ok(Method::Cert { map }),
            _ => failed("method cert needs type hostssl".to_owned()),
        },
        "md5" | "password" => failed(format!("method {method} is not supported; use scram-sha-256")),
        other => failed(format!(
            "method {other} is not supported; there are trust, reject, scram-sha-256 and cert"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> AccessTable {
        AccessTable::parse(text).unwrap_or_else(|error| panic!("{error}"))
    }

    fn own() -> OwnNetworks {
        OwnNetworks(["10.1.2.3/24", "fd00::5/64", "127.0.0.1/8"].map(|net| net.parse().unwrap()).to_vec())
    }

    fn at(address: &str, tls: bool) -> Place {
        Place::Network { address: address.parse().unwrap(), tls }
    }

    /// The line that decides about user `u` and database `d`.
    fn line(table: &AccessTable, place: Place) -> Option<usize> {
        let asking = Asking { place, user: "u", database: "d", purpose: Purpose::Logical };
        table.find(&asking, &own()).map(|(_, line)| line)
    }

    #[test]
    fn the_first_line_that_matches_decides() {
        let table = table(
            "# a comment\n\
             local all all trust\n\
             \n\
             hostssl all all 10.0.0.0/8 cert map=m # and another\n\
             host all all 10.0.0.0 255.0.0.0 reject\n\
             hostnossl all all ::1/128 scram-sha-256\n\
             host all all samehost trust\n\
             host all all samenet scram-sha-256\n",
        );
        for (place, expected) in [
            (Place::Local, Some(2)),
            (at("10.9.9.9", true), Some(4)),
            (at("10.9.9.9", false), Some(5)),
            (at("::ffff:10.9.9.9", false), Some(5)),
            (at("::1", false), Some(6)),
            (at("::1", true), None),
            (at("fd00::5", true), Some(7)),
            (at("fd00::6", true), Some(8)),
            (at("127.0.0.1", true), Some(7)),
            (at("192.0.2.1", true), None),
        ] {
            assert_eq!(line(&table, place), expected, "{place:?}");
        }
    }

    #[test]
    fn databases_and_users() {
        let table = table(
            "host a,\"all\" u 0.0.0.0/0 trust\n\
             host sameuser all 0.0.0.0/0 trust\n\
             host replication \"rep user\",v all trust\n\
             host all w all trust\n",
        );
        let line = |user, database, purpose| {
            let asking = Asking { place: at("192.0.2.1", false), user, database, purpose };
            table.find(&asking, &own()).map(|(_, line)| line)
        };
        assert_eq!(line("u", "a", Purpose::Sql), Some(1));
        assert_eq!(line("u", "all", Purpose::Logical), Some(1), "a quoted word is a name");
        assert_eq!(line("u", "u", Purpose::Sql), Some(2));
        assert_eq!(line("v", "", Purpose::Physical), Some(3));
        assert_eq!(line("rep user", "", Purpose::Physical), Some(3));
        assert_eq!(line("v", "replication", Purpose::Logical), None, "the word is no database");
        assert_eq!(line("w", "", Purpose::Physical), None, "all does not include replication");
        assert_eq!(line("w", "anything", Purpose::Logical), Some(4));
    }

    #[test]
    fn what_is_not_understood_refuses_the_table() {
        for (text, part) in [
            ("", "no lines"),
            ("# only a comment", "no lines"),
            ("local all all trust\nhostgssenc all all all trust", "line 2: type \"hostgssenc\""),
            ("host all all", "the address is missing"),
            ("host all all all", "the method is missing"),
            ("host all all db.example trust", "names of hosts"),
            ("host all all 10.0.0.1 trust", "write 10.0.0.1/LENGTH"),
            ("host all all 10.0.0.1 0.255.0.0 trust", "no mask"),
            ("host all all all md5", "use scram-sha-256"),
            ("host all all all ldap", "method ldap"),
            ("host all all all cert", "needs type hostssl"),
            ("hostssl all all all scram-sha-256 clientcert=verify-full", "option \"clientcert=verify-full\""),
            ("host all +group all trust", "membership"),
            ("host all @file all trust", "a file of names"),
            ("host /^db all all trust", "regular expression"),
            ("host samerole all all trust", "samerole"),
            ("host all all all,samenet trust", "a list stands"),
            ("host \"all all all trust", "quote"),
        ] {
            let error = AccessTable::parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn without_a_table_everybody_needs_a_password() {
        let table = AccessTable::default();
        for (place, purpose) in [
            (Place::Local, Purpose::Sql),
            (at("192.0.2.1", false), Purpose::Logical),
            (at("::1", true), Purpose::Physical),
        ] {
            let asking = Asking { place, user: "u", database: "d", purpose };
            let (method, _) = table.find(&asking, &own()).unwrap();
            assert_eq!(*method, Method::Scram);
        }
    }

    #[test]
    fn this_machine_has_an_address() {
        let own = OwnNetworks::look();
        assert!(From::SameHost.contains("127.0.0.1".parse().unwrap(), &own), "{own:?}");
    }
}
