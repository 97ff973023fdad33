//! Every error of a connection, for docs/errors.md.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::error_reference::{Doing, Entry, HeldBy, entry, nothing_of_its_own};
use proto::frame::ServerError;
use rustls::{CertificateError, OtherError};
use tokio_postgres::error::SqlState;

use crate::conninfo::Host;
use crate::denial::{Tls, Unauthenticated, Unsuitable};
use crate::error::Kind;
use crate::tls::explain;
use crate::{ConnInfo, Error};

const PLACE: &str = "db1:5432/shop as repl";
const ROOTS: &str = "/etc/pgsluice/root.crt";

const DAMAGED: HeldBy = ("client conninfo_mutations", "damaged_connection_strings_are_read_or_refused");
const PASSWORD: HeldBy = ("pgsluice scenarios", "a_wrong_password_ends_it_with_its_place");
const TLS: HeldBy = ("pgsluice scenarios", "tls_that_is_not_offered_asked_for_or_right_ends_it");
const READ_ONLY: HeldBy = ("pgsluice scenarios", "a_target_that_cannot_be_written_to_is_waited_for");
const REFUSALS: HeldBy = ("client sessions", "refusals_name_place_cause_and_remedy");
const ROOTS_AND_NAMES: HeldBy = ("client tls", "modes_roots_and_names");
const LOST: HeldBy = ("client sessions", "a_server_that_goes_away_is_a_lost_connection");
const SILENT: HeldBy = ("client sessions", "a_silent_server_is_left_after_the_timeout");
const HOSTS: HeldBy = ("client sessions", "unix_sockets_and_lists_of_hosts");
const RESTARTED: HeldBy = ("pgsluice scenarios", "restarted_servers_under_load");
const FULL: HeldBy = ("pgsluice scenarios", "a_full_disk_of_the_target_is_waited_for");

base::error_reference! {
    /// Every way in which a connection cannot be made or used.
    #[must_use]
    pub fn error_reference() -> Error where error is error.kind() => Kind;
    Kind::Configuration(_) => entry(
        Doing::Configuring,
        "A file of the connection string that cannot be read",
        Error::configuration(format!("root certificates {ROOTS} cannot be read: Permission denied (os error 13)")),
        "A file that `sslrootcert`, `sslcert`, `sslkey`, `passfile` or a service names is missing, or \
        belongs to another user.",
        "Correct the path, or allow the user of this process to read the file: `chown`, and `chmod 600` for \
        a key.",
        &[ROOTS_AND_NAMES],
    ),
    Kind::Unreachable(_) => connecting(
        "Nothing answers at the server's address",
        Kind::Unreachable(io::Error::other("Connection refused (os error 111)")),
        "No server listens at this host and port, a firewall rejects the connection, or the host name leads \
        to another machine.",
        "Check `host` and `port` in the connection string. Check that the server runs, and its \
        `listen_addresses`.",
        &[REFUSALS, RESTARTED],
    ),
    Kind::TimedOut(_) => connecting(
        "The server does not answer in time",
        Kind::TimedOut(Duration::from_secs(10)),
        "The network drops packets, or the machine is overloaded or down.",
        "Check that this machine can reach the server. If the server is only slow, raise `connect_timeout` \
        in the connection string.",
        &[SILENT],
    ),
    Kind::Lost(None) => connecting(
        "The server closed the connection",
        Kind::Lost(None),
        "A server process crashed or was killed, or the stream ended inside a message.",
        "Read the server's log; `log_destination` says where it is. Nothing needs repair on pgsluice's \
        side.",
        &[
            LOST,
            ("pgsluice scenarios", "a_stream_that_is_altered_or_cut_is_read_again"),
        ],
    ),
    Kind::Lost(Some(_)) => connecting(
        "The network broke the connection",
        Kind::Lost(Some(io::Error::new(io::ErrorKind::ConnectionReset, "Connection reset by peer (os error 104)"))),
        "A server restarted, or a device between pgsluice and the server dropped the connection.",
        "Look at the devices between pgsluice and the server if this repeats. For a firewall that forgets \
        idle connections, set a smaller `keepalives_idle` in the connection string.",
        &[("pgsluice scenarios", "terminated_sessions_on_either_end_are_replaced")],
    ),
    Kind::Tls(Tls::NotOffered) => connecting(
        "The connection requires TLS and the server does not offer it",
        Kind::Tls(Tls::NotOffered),
        "`sslmode` is `require` or stronger, and the server has `ssl = off`, or a proxy between does not \
        pass TLS on.",
        "Set `ssl = on` with a certificate on the server; or, if you trust the network, give a weaker \
        `sslmode`.",
        &[TLS, ROOTS_AND_NAMES],
    ),
    Kind::Tls(Tls::NotDirect) => connecting(
        "The server does not know direct TLS",
        Kind::Tls(Tls::NotDirect),
        "With `sslnegotiation=direct` the client starts TLS without asking first. Servers before 17 need the \
        question.",
        "Remove `sslnegotiation` from the connection string.",
        &[],
    ),
    Kind::Tls(Tls::UnknownAuthority { .. }) => connecting(
        "The certificate's authority is unknown",
        Kind::Tls(certificate(CertificateError::UnknownIssuer)),
        "An authority that is not among the trusted root certificates signed the server's certificate, or \
        another server answers.",
        "Give the authority's certificate with `sslrootcert`, or `sslrootcert=system` for public \
        authorities.",
        &[ROOTS_AND_NAMES],
    ),
    Kind::Tls(Tls::WrongName { .. }) => connecting(
        "The certificate is for another host",
        Kind::Tls(certificate(CertificateError::NotValidForName)),
        "`sslmode=verify-full` compares the host of the connection string with the names in the certificate.",
        "Give the name in the certificate as `host`, and the address as `hostaddr`; or issue a certificate \
        with this host as `subjectAltName`.",
        &[TLS, ROOTS_AND_NAMES],
    ),
    Kind::Tls(Tls::OutOfTime(_)) => connecting(
        "The certificate has expired, or is not valid yet",
        Kind::Tls(certificate(CertificateError::Expired)),
        "The certificate has expired or is not valid yet, or this machine's clock is wrong.",
        "Renew the certificate on the server and run `SELECT pg_reload_conf()` there; or set this machine's \
        clock.",
        &[],
    ),
    Kind::Tls(Tls::Version1) => connecting(
        "The certificate has X.509 version 1",
        Kind::Tls(certificate(version_1())),
        "The certificate has no extensions, as `openssl x509 -req` makes it by default. Without them, no \
        client can verify its names.",
        "Issue it again with `openssl x509 -req -extfile` and a `subjectAltName`.",
        &[],
    ),
    Kind::Tls(Tls::NotAccepted { .. }) => connecting(
        "The certificate is not accepted",
        Kind::Tls(certificate(CertificateError::Revoked)),
        "The certificate is revoked, badly signed or damaged; the message says which.",
        "Issue a new certificate; or, if the revocation list is out of date, correct `sslcrl`.",
        &[ROOTS_AND_NAMES],
    ),
    Kind::Tls(Tls::Handshake(_)) => connecting(
        "The two sides share no version of TLS",
        Kind::Tls(Tls::Handshake(rustls::Error::AlertReceived(rustls::AlertDescription::ProtocolVersion))),
        "The limits of the two sides for TLS versions or ciphers have nothing in common.",
        "Compare `ssl_min_protocol_version` and `ssl_max_protocol_version` in the connection string with the \
         server's settings of the same names.",
        &[ROOTS_AND_NAMES],
    ),
    Kind::Tls(Tls::Alert(_)) => connecting(
        "The server does not accept our certificate",
        Kind::Tls(Tls::Alert(rustls::Error::AlertReceived(rustls::AlertDescription::UnknownCA))),
        "The client certificate has expired or was revoked, or an authority that is not in the server's \
        `ssl_ca_file` signed it.",
        "Give the right certificate and key with `sslcert` and `sslkey`, or add their authority to \
        `ssl_ca_file`.",
        &[("client tls", "our_own_certificate_lets_us_in")],
    ),
    Kind::Handshake(_) => connecting(
        "The server broke off the TLS handshake",
        Kind::Handshake(io::Error::new(io::ErrorKind::UnexpectedEof, "tls handshake eof")),
        "The server was stopping, or it rejected what the client offered.",
        "Read the server's log. Compare `ssl_min_protocol_version` and `ssl_ciphers` there with those of the \
        connection.",
        &[],
    ),
    Kind::Authentication(Unauthenticated::NoPassword { .. }) => denied(
        "The server asks for a password and there is none",
        Unauthenticated::NoPassword { method: "scram-sha-256", passfile: Some("/etc/pgsluice/pgpass".into()) },
        "`pg_hba.conf` asks this role for a password. Neither the connection string, the environment nor the \
        password file has one for this host, port, database and user.",
        "Add a line `host:port:database:user:password` to the password file, or set `PGPASSWORD`.",
        &[REFUSALS],
    ),
    Kind::Authentication(Unauthenticated::NotAllowed { .. }) => denied(
        "The method of authentication is not allowed here",
        Unauthenticated::NotAllowed { method: "md5" },
        "The server asks for a method that `require_auth` in the connection string excludes. The option \
        keeps the password from servers that should not have it.",
        "Change `pg_hba.conf` on the server so that it asks for an allowed method, or add this method to \
        `require_auth`.",
        &[REFUSALS],
    ),
    Kind::Authentication(Unauthenticated::NotSupported) => denied(
        "The method of authentication is not supported",
        Unauthenticated::NotSupported,
        "`pg_hba.conf` asks for `gss` or `sspi`.",
        "Add a line before it in `pg_hba.conf` that offers this role `scram-sha-256` or `cert`.",
        &[],
    ),
    Kind::Authentication(Unauthenticated::NotAsked) => denied(
        "The server let us in without channel binding",
        Unauthenticated::NotAsked,
        "The connection has `channel_binding=require`, and `pg_hba.conf` lets this role in without a \
        password.",
        "Change `pg_hba.conf` on the server so that it asks for `scram-sha-256`, or remove `channel_binding` \
        from the connection string.",
        &[],
    ),
    Kind::Authentication(Unauthenticated::CannotBind { .. }) => denied(
        "The method cannot bind to the channel",
        Unauthenticated::CannotBind { method: "md5" },
        "The connection has `channel_binding=require`, but `pg_hba.conf` asks for another method, or the \
        role's stored password is of another method.",
        "Set `password_encryption = 'scram-sha-256'` and set the role's password again. Make `pg_hba.conf` \
        ask for `scram-sha-256`.",
        &[],
    ),
    Kind::Authentication(Unauthenticated::NoBinding) => denied(
        "The server offers no channel binding",
        Unauthenticated::NoBinding,
        "The connection has `channel_binding=require`, but it has no TLS, or the signature of the server's \
        certificate has no SHA-2 hash.",
        "Connect with `sslmode=require` or stronger, and issue the server's certificate with SHA-256.",
        &[],
    ),
    Kind::Authentication(Unauthenticated::Mechanisms(_)) => denied(
        "pgsluice knows none of the server's SCRAM mechanisms",
        Unauthenticated::Mechanisms("OAUTHBEARER".to_owned()),
        "`pg_hba.conf` asks for `oauth`, or for a newer method.",
        "Add a line before it in `pg_hba.conf` that offers this role `scram-sha-256` or `cert`.",
        &[],
    ),
    Kind::Authentication(Unauthenticated::ZeroByte) => denied(
        "A password that cannot be sent",
        Unauthenticated::ZeroByte,
        "The password contains a zero byte, and the protocol uses that byte to end texts.",
        "Correct the password in the connection string, `PGPASSWORD` or the password file.",
        &[],
    ),
    Kind::Authentication(Unauthenticated::Scram(_)) => denied(
        "The server cannot prove that it knows the password",
        Unauthenticated::Scram(io::Error::other("server provided an invalid signature")),
        "In SCRAM the server also proves that it knows the password. This one does not: it may be another \
        server, or an attacker between.",
        "Check `host` and `port`, and the devices between. Use `sslmode=verify-full`.",
        &[],
    ),
    Kind::Server(_) => said(
        "A wrong password",
        "FATAL",
        &SqlState::INVALID_PASSWORD,
        "password authentication failed for user \"repl\"",
        "The password is wrong, the role has no password or an expired one, or the role does not exist.",
        "Correct the password in the connection string, `PGPASSWORD` or the password file; or set the role's \
        password with `ALTER ROLE ... PASSWORD`.",
        &[PASSWORD, REFUSALS],
    ),
    Kind::Server(_) => said(
        "The server admits only connections with TLS",
        "FATAL",
        &SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        "no pg_hba.conf entry for host \"192.0.2.7\", user \"repl\", database \"shop\", no encryption",
        "`pg_hba.conf` has only `hostssl` lines for this role and database, and the connection has no TLS.",
        "Give `sslmode=require` or stronger.",
        &[TLS],
    ),
    Kind::Server(_) => said(
        "The server does not admit this role from here",
        "FATAL",
        &SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        "no pg_hba.conf entry for host \"192.0.2.7\", user \"repl\", database \"shop\", SSL encryption",
        "`pg_hba.conf` has no line for this role, database and address. A source needs a line for the \
        published database: `replication` covers physical connections only.",
        "Add a line to `pg_hba.conf` on the server, and run `SELECT pg_reload_conf()` there.",
        &[REFUSALS],
    ),
    Kind::Server(_) => said(
        "The database does not exist",
        "FATAL",
        &SqlState::INVALID_CATALOG_NAME,
        "database \"shop\" does not exist",
        "The name in the connection string is wrong, or the database was dropped. A connection string \
        without a name means the database named like the user.",
        "Correct `dbname` in the connection string, or create the database with `CREATE DATABASE`.",
        &[REFUSALS],
    ),
    Kind::Server(_) => said(
        "The role lacks a right",
        "ERROR",
        &SqlState::INSUFFICIENT_PRIVILEGE,
        "permission denied for table accounts",
        "The role lacks a right that replication needs. On the source these are `REPLICATION` and SELECT. On \
        the target they are the rights to write, to create the schema `pgsluice`, and to use replication \
        origins.",
        "Run `pgsluice check`. It prints each missing right with its GRANT.",
        &[("pgsluice check", "the_remedies_lead_an_unprivileged_role_to_replication")],
    ),
    Kind::Server(_) => said(
        "The server is out of connections",
        "FATAL",
        &SqlState::TOO_MANY_CONNECTIONS,
        "sorry, too many clients already",
        "The connections that `max_connections`, the role's limit or the database's limit allows are in use. \
        Source and target each need a few for the stream and the copy; `pgsluice check` counts them.",
        "Raise `max_connections`, end idle sessions, or lower `max_sync_workers_per_subscription`.",
        &[("pgsluice check", "limits_and_settings")],
    ),
    Kind::Server(_) => said(
        "The server is starting up or shutting down",
        "FATAL",
        &SqlState::CANNOT_CONNECT_NOW,
        "the database system is starting up",
        "The server recovers after a stop or a crash, or it is stopping.",
        "Wait. If this lasts, read the server's log; `log_destination` says where it is.",
        &[RESTARTED],
    ),
    Kind::Server(_) => said(
        "The server ended the session",
        "FATAL",
        &SqlState::ADMIN_SHUTDOWN,
        "terminating connection due to administrator command",
        "An operator stopped the server, or called `pg_terminate_backend`.",
        "Start the server again if it was stopped; nothing else needs to be done. If somebody ends the \
        session on purpose, `pgsluice disable` keeps pgsluice off.",
        &[("client sessions", "a_session_ended_by_the_server_says_why")],
    ),
    Kind::Server(_) => said(
        "The target cannot be written to",
        "ERROR",
        &SqlState::READ_ONLY_SQL_TRANSACTION,
        "cannot execute CREATE SCHEMA during recovery",
        "The target is a standby: it was not promoted yet, or the address leads to the wrong one of several \
        servers. `default_transaction_read_only` alone does no harm.",
        "Give the primary as `--target`; or give several hosts with `target_session_attrs=read-write`; or \
        promote this server with `SELECT pg_promote()`.",
        &[READ_ONLY],
    ),
    Kind::Server(_) => said(
        "The server's disk is full",
        "ERROR",
        &SqlState::DISK_FULL,
        "could not extend file \"base/16384/16385\": No space left on device",
        "Tables, indexes or WAL that a slot keeps fill the server's disk.",
        "Make room there. `pgsluice status` shows how much WAL the slot keeps, and `max_slot_wal_keep_size` \
        limits it.",
        &[FULL],
    ),
    Kind::Server(_) => said(
        "Another error of a server",
        "ERROR",
        &SqlState::DATA_CORRUPTED,
        "could not read blocks 7..7 in file \"base/16384/16385\": read only 0 of 8192 bytes",
        "The message passes on the server's words, its SQLSTATE, its detail and its hint unchanged.",
        "Look up the SQLSTATE in PostgreSQL's manual, and read the server's log; `log_destination` says \
        where it is.",
        &[],
    ),
    Kind::Unsuitable(Unsuitable::Is(_)) => connecting(
        "The server does not have the role that the connection asks for",
        Kind::Unsuitable(Unsuitable::Is("a standby")),
        "`target_session_attrs` asks for a primary, a standby, or a server that accepts writes, and no host \
        is one now. Usually a failover is under way.",
        "Wait for the promotion, or correct `target_session_attrs` and the hosts in the connection string.",
        &[HOSTS],
    ),
    Kind::Unsuitable(Unsuitable::TooOld) => connecting(
        "The server does not report its role",
        Kind::Unsuitable(Unsuitable::TooOld),
        "Servers before 14 do not report whether they are standbys.",
        "Remove `target_session_attrs`, and name the one host in the connection string.",
        &[HOSTS],
    ),
    Kind::Protocol(_) => connecting(
        "The peer does not speak the protocol",
        Kind::Protocol("the peer answered the request for TLS with 'H'; is it a PostgreSQL server?".to_owned()),
        "The peer is not a PostgreSQL server, a proxy does not pass everything on, or bytes changed on the \
        way.",
        "Check `host` and `port`. Connect to the server itself: a pooler does not support replication.",
        &[("proto mutations", "damaged_streams_are_taken_apart_to_the_damage")],
    ),
    // A value that tokio-postgres could not encode or decode: our own mistake, which no server
    // leads to.
    Kind::Session(_) => nothing_of_its_own(),
    Kind::Several(_) => connecting(
        "None of several hosts can be used",
        Kind::Several(vec![
            at_host("db1", Kind::Unreachable(io::Error::other("Connection refused (os error 111)"))),
            at_host("db2", Kind::Unsuitable(Unsuitable::Is("read-only"))),
        ]),
        "The connection string names several hosts, and each of them failed. The message has the reason for \
        each.",
        "Repair one of them, or correct the list in `host`, or `target_session_attrs`. The reasons have \
        their own entries.",
        &[HOSTS],
    ),
}

base::error_reference! {
    /// Ways in which a connection string cannot be read, before anything is
    /// connected.
    #[must_use]
    pub fn misread_error_reference() -> Error where error is error.kind() => Kind;
    Kind::Configuration(_) => entry(
        Doing::Configuring,
        "A connection option that does not exist",
        misread("host=db1 user=repl conect_timeout=10"),
        "The connection string has an option that libpq does not have.",
        "Correct the name. `--source` and `--target` take the options of libpq.",
        &[DAMAGED],
    ),
    Kind::Configuration(_) => entry(
        Doing::Configuring,
        "A connection option with a value that it cannot have",
        misread("host=db1 user=repl sslmode=maybe"),
        "The option exists, but it cannot have this value.",
        "Correct the value where the message says it came from: the connection string, a variable such as \
        `PGSSLMODE`, or a service.",
        &[DAMAGED],
    ),
    Kind::Configuration(_) => entry(
        Doing::Configuring,
        "A connection option that is not supported",
        misread("host=db1 user=repl requirepeer=postgres"),
        "libpq has this option, but pgsluice does not support it. It refuses the option because ignoring it \
        would break what the option promises.",
        "Remove the option from the connection string, or unset its variable, here `PGREQUIREPEER`.",
        &[],
    ),
    Kind::Configuration(_) => entry(
        Doing::Configuring,
        "A connection string that cannot be parsed",
        misread("db1 user=repl"),
        "The string is neither `keyword=value` pairs nor a `postgres://` address. Often a value with a blank \
        has no quotes.",
        "Put values with blanks in single quotes, and write `%` in an address as `%25`.",
        &[DAMAGED],
    ),
    _ => nothing_of_its_own(),
}

/// With the place that every error of a server has.
fn connecting(
    title: &'static str,
    kind: Kind,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<Error>; 1] {
    entry(Doing::Connecting, title, Error::new(kind).at(PLACE), cause, remedy, held_by)
}

fn at_host(host: &str, kind: Kind) -> Error {
    Error::new(kind).at(&PLACE.replace("db1", host))
}

/// As the reader of connection strings words it, without the environment.
fn misread(text: &str) -> Error {
    ConnInfo::parse_with(text, &|_| None).expect_err("the example is wrong on purpose")
}

fn example_host() -> Host {
    let info =
        ConnInfo::parse_with("host=db1 user=repl", &|_| None).expect("a connection string as in the manual");
    info.settings().hosts[0].clone()
}

fn certificate(reason: CertificateError) -> Tls {
    explain(&rustls::Error::InvalidCertificate(reason), &example_host(), Some(ROOTS))
}

fn version_1() -> CertificateError {
    CertificateError::Other(OtherError(Arc::new(webpki::Error::UnsupportedCertVersion)))
}

fn denied(
    title: &'static str,
    why: Unauthenticated,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<Error>; 1] {
    connecting(title, Kind::Authentication(why), cause, remedy, held_by)
}

/// What a server says.
fn said(
    title: &'static str,
    severity: &str,
    state: &SqlState,
    message: &str,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<Error>; 1] {
    let error = Error::from(ServerError::new(severity, state.code(), message)).at(PLACE);
    entry(Doing::Connecting, title, error, cause, remedy, held_by)
}
