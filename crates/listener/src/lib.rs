//! Connections of clients, as a PostgreSQL server takes them: encrypted, allowed by the access
//! table, authenticated. What comes after that belongs to the caller.
//!
//! ```text
//! Socket --> Door: TLS, startup packet, access table, SCRAM or certificate --> Client: a Link of messages
//! ```
//! | file | has |
//! | --- | --- |
//! | `door` | the steps, and what a client is told that is not let in |
//! | `access` | the access table, in the manner of `pg_hba.conf` |
//! | `users` | verifiers of passwords, maps of certificates |
//! | `logins` | which users log in elsewhere as somebody else |
//! | `limits` | how many connections there may be, how often a login may fail |
//! | `tls`, `link` | encryption; messages |
//! | `lines` | lines of the files of rules and users |
//!
//! A client's password never comes here: SCRAM shows that the client knows it. The listener keeps
//! no more than a server does (rule L1). Only a file of logins has passwords.

mod access;
mod door;
mod limits;
mod lines;
mod link;
mod logins;
mod tls;
mod users;

pub use access::{AccessTable, Asking, Method, OwnNetworks, Place};
pub use door::{Arrival, Client, Door, Refused, Rules, Socket};
pub use limits::{Limits, Reached, Seat};
pub use lines::TableError;
pub use link::{Link, LinkError, LinkReader, LinkWriter, Transport};
pub use logins::{Login, UserMap};
pub use tls::{Tls, TlsError, TlsFiles};
pub use users::{CertificateMaps, Users};
