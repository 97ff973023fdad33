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
        "`sslrootcert`, `sslcert`, `sslkey`, `passfile` or a service file is missing or belongs to somebody else.",
        "Correct the path, or let the user who runs pgsluice read it: `chown` and `chmod 600` for a key.",
        &[ROOTS_AND_NAMES],
    ),
    Kind::Unreachable(_) => connecting(
        "Nothing answers at the server's address",
        Kind::Unreachable(io::Error::other("Connection refused (os error 111)")),
        "No server listens at this host and port, it is stopped, a firewall rejects the connection, or the name leads \
         elsewhere.",
        "Check `host` and `port` in the connection string, that the server runs, and its `listen_addresses`.",
        &[REFUSALS, RESTARTED],
    ),
    Kind::TimedOut(_) => connecting(
        "The server does not answer in time",
        Kind::TimedOut(Duration::from_secs(10)),
        "Packets are dropped on the way, or the machine is overloaded or gone.",
        "Check that the server can be reached from this machine; raise `connect_timeout` in the connection string if \
         it is only slow.",
        &[SILENT],
    ),
    Kind::Lost(None) => connecting(
        "The server closed the connection",
        Kind::Lost(None),
        "A server process crashed, was killed, or the stream ended inside a message.",
        "Read the server's log, `log_destination` says where it is; nothing has to be repaired here.",
        &[
            LOST,
            ("pgsluice scenarios", "a_stream_that_is_altered_or_cut_is_read_again"),
        ],
    ),
    Kind::Lost(Some(_)) => connecting(
        "The network broke the connection",
        Kind::Lost(Some(io::Error::new(io::ErrorKind::ConnectionReset, "Connection reset by peer (os error 104)"))),
        "A server was restarted, or something between here and it dropped the connection.",
        "Look for what stands between if it repeats: a firewall that forgets idle connections wants a smaller \
         `keepalives_idle` in the connection string.",
        &[("pgsluice scenarios", "terminated_sessions_on_either_end_are_replaced")],
    ),
    Kind::Tls(Tls::NotOffered) => connecting(
        "TLS is asked for and not offered",
        Kind::Tls(Tls::NotOffered),
        "`sslmode` is `require` or stronger and the server has `ssl = off`, or a proxy between does not pass TLS on.",
        "Set `ssl = on` with a certificate on the server, or give a weaker `sslmode` where the network can be \
         trusted.",
        &[TLS, ROOTS_AND_NAMES],
    ),
    Kind::Tls(Tls::NotDirect) => connecting(
        "Direct TLS is not known to the server",
        Kind::Tls(Tls::NotDirect),
        "`sslnegotiation=direct` leaves out the question for TLS, which servers before 17 need.",
        "Remove `sslnegotiation` from the connection string.",
        &[],
    ),
    Kind::Tls(Tls::UnknownAuthority { .. }) => connecting(
        "The certificate's authority is not known",
        Kind::Tls(certificate(CertificateError::UnknownIssuer)),
        "The server's certificate was signed by an authority that is not among the root certificates in use, or \
         somebody else answers.",
        "Give the authority's certificate by `sslrootcert` (`sslrootcert=system` for public ones).",
        &[ROOTS_AND_NAMES],
    ),
    Kind::Tls(Tls::WrongName { .. }) => connecting(
        "The certificate is for another host",
        Kind::Tls(certificate(CertificateError::NotValidForName)),
        "`sslmode=verify-full` compares the host of the connection string with the names in the certificate.",
        "Give the name in the certificate as `host`, with `hostaddr` for where it is; or issue a certificate with \
         this name as `subjectAltName`.",
        &[TLS, ROOTS_AND_NAMES],
    ),
    Kind::Tls(Tls::OutOfTime(_)) => connecting(
        "The certificate is outside its time",
        Kind::Tls(certificate(CertificateError::Expired)),
        "It has expired, is not valid yet, or this machine's clock is wrong.",
        "Renew the certificate on the server and `SELECT pg_reload_conf()` there, or set the clock.",
        &[],
    ),
    Kind::Tls(Tls::Version1) => connecting(
        "The certificate is of version 1",
        Kind::Tls(certificate(version_1())),
        "It was made without extensions, as `openssl x509 -req` does by default; nobody can verify its names.",
        "Issue it again with `openssl x509 -req -extfile` and a `subjectAltName`.",
        &[],
    ),
    Kind::Tls(Tls::NotAccepted { .. }) => connecting(
        "The certificate is not accepted",
        Kind::Tls(certificate(CertificateError::Revoked)),
        "It is revoked, badly signed or damaged, as the message says.",
        "Issue a new certificate, or correct `sslcrl` if the list is out of date.",
        &[ROOTS_AND_NAMES],
    ),
    Kind::Tls(Tls::Handshake(_)) => connecting(
        "No version of TLS fits both sides",
        Kind::Tls(Tls::Handshake(rustls::Error::AlertReceived(rustls::AlertDescription::ProtocolVersion))),
        "The limits of both sides for TLS versions or ciphers have nothing in common.",
        "Compare `ssl_min_protocol_version` and `ssl_max_protocol_version` in the connection string with the \
         server's settings of the same names.",
        &[ROOTS_AND_NAMES],
    ),
    Kind::Tls(Tls::Alert(_)) => connecting(
        "The server does not accept our certificate",
        Kind::Tls(Tls::Alert(rustls::Error::AlertReceived(rustls::AlertDescription::UnknownCA))),
        "The client certificate was signed by an authority that is not in the server's `ssl_ca_file`, has expired, \
         or was revoked.",
        "Give the right certificate and key by `sslcert` and `sslkey`, or add its authority to `ssl_ca_file`.",
        &[("client tls", "our_own_certificate_lets_us_in")],
    ),
    Kind::Handshake(_) => connecting(
        "The server broke off the TLS handshake",
        Kind::Handshake(io::Error::new(io::ErrorKind::UnexpectedEof, "tls handshake eof")),
        "The server was being stopped, or it did not like what it was offered.",
        "Read the server's log; compare `ssl_min_protocol_version` and `ssl_ciphers` there with what is asked for.",
        &[],
    ),
    Kind::Authentication(Unauthenticated::NoPassword { .. }) => denied(
        "A password is asked for and there is none",
        Unauthenticated::NoPassword { method: "scram-sha-256", passfile: Some("/etc/pgsluice/pgpass".into()) },
        "`pg_hba.conf` asks this role for a password, and neither connection string nor environment nor password \
         file has one for this host, port, database and user.",
        "Add a line `host:port:database:user:password` to the password file, or set `PGPASSWORD`.",
        &[REFUSALS],
    ),
    Kind::Authentication(Unauthenticated::NotAllowed { .. }) => denied(
        "The method of authentication is not allowed here",
        Unauthenticated::NotAllowed { method: "md5" },
        "`require_auth` in the connection string excludes what the server asks for, so that no password goes to a \
         server that should not have it.",
        "Let `pg_hba.conf` ask for an allowed method, or add this one to `require_auth`.",
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
        "`channel_binding=require`, and `pg_hba.conf` trusts this role.",
        "Let `pg_hba.conf` ask for `scram-sha-256`, or remove `channel_binding` from the connection string.",
        &[],
    ),
    Kind::Authentication(Unauthenticated::CannotBind { .. }) => denied(
        "The method cannot bind to the channel",
        Unauthenticated::CannotBind { method: "md5" },
        "`channel_binding=require`, and `pg_hba.conf` or the role's stored password is of another method.",
        "Set `password_encryption = 'scram-sha-256'` and the role's password again, and let `pg_hba.conf` ask for \
         `scram-sha-256`.",
        &[],
    ),
    Kind::Authentication(Unauthenticated::NoBinding) => denied(
        "The server offers no channel binding",
        Unauthenticated::NoBinding,
        "`channel_binding=require` without TLS, or with a certificate whose signature has no SHA-2 hash.",
        "Connect with `sslmode=require` or stronger; issue the server's certificate with SHA-256.",
        &[],
    ),
    Kind::Authentication(Unauthenticated::Mechanisms(_)) => denied(
        "None of the server's SCRAM mechanisms is known",
        Unauthenticated::Mechanisms("OAUTHBEARER".to_owned()),
        "`pg_hba.conf` asks for `oauth`, or for something newer.",
        "Add a line before it in `pg_hba.conf` that offers this role `scram-sha-256` or `cert`.",
        &[],
    ),
    Kind::Authentication(Unauthenticated::ZeroByte) => denied(
        "A password that cannot be sent",
        Unauthenticated::ZeroByte,
        "The password has a byte of zero, which the protocol ends texts with.",
        "Correct the password in the connection string, `PGPASSWORD` or the password file.",
        &[],
    ),
    Kind::Authentication(Unauthenticated::Scram(_)) => denied(
        "The server cannot prove that it knows the password",
        Unauthenticated::Scram(io::Error::other("server provided an invalid signature")),
        "In SCRAM the server proves itself too. This one does not hold the role's password: it may be another \
         server, or somebody between.",
        "Check `host` and `port`, and what stands between; use `sslmode=verify-full`.",
        &[],
    ),
    Kind::Server(_) => said(
        "A wrong password",
        "FATAL",
        &SqlState::INVALID_PASSWORD,
        "password authentication failed for user \"repl\"",
        "The password given is not the role's, the role has none or an expired one, or the role does not exist.",
        "Correct it in the connection string, `PGPASSWORD` or the password file; or set the role's by `ALTER ROLE \
         ... PASSWORD`.",
        &[PASSWORD, REFUSALS],
    ),
    Kind::Server(_) => said(
        "The server admits only connections with TLS",
        "FATAL",
        &SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        "no pg_hba.conf entry for host \"192.0.2.7\", user \"repl\", database \"shop\", no encryption",
        "The lines of `pg_hba.conf` for this role and database are `hostssl`, and the connection was made without \
         TLS.",
        "Give `sslmode=require` or stronger.",
        &[TLS],
    ),
    Kind::Server(_) => said(
        "The server does not admit this role from here",
        "FATAL",
        &SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        "no pg_hba.conf entry for host \"192.0.2.7\", user \"repl\", database \"shop\", SSL encryption",
        "No line of `pg_hba.conf` is for this role, database and address. A source needs one whose database is \
         the one that is published: `replication` is for physical connections only.",
        "Add a line to `pg_hba.conf` on the server, and `SELECT pg_reload_conf()`.",
        &[REFUSALS],
    ),
    Kind::Server(_) => said(
        "The database does not exist",
        "FATAL",
        &SqlState::INVALID_CATALOG_NAME,
        "database \"shop\" does not exist",
        "The name in the connection string is wrong, or the database was dropped; without one the user's name \
         counts.",
        "Correct `dbname` in the connection string, or `CREATE DATABASE` it.",
        &[REFUSALS],
    ),
    Kind::Server(_) => said(
        "The role lacks a right",
        "ERROR",
        &SqlState::INSUFFICIENT_PRIVILEGE,
        "permission denied for table accounts",
        "The role may not do what replication needs: `REPLICATION` and SELECT on the source; to write, to create \
         the schema `pgsluice` and to use replication origins on the target.",
        "Run `pgsluice check`, which names each right that is missing with its GRANT.",
        &[("pgsluice check", "the_remedies_lead_an_unprivileged_role_to_replication")],
    ),
    Kind::Server(_) => said(
        "The server is out of connections",
        "FATAL",
        &SqlState::TOO_MANY_CONNECTIONS,
        "sorry, too many clients already",
        "`max_connections`, or the role's or the database's own limit, is used up. The source needs a few for the \
         stream and the copy, the target too; `pgsluice check` counts them.",
        "Raise `max_connections`, end idle sessions, or lower `max_sync_workers_per_subscription`.",
        &[("pgsluice check", "limits_and_settings")],
    ),
    Kind::Server(_) => said(
        "The server is starting up or shutting down",
        "FATAL",
        &SqlState::CANNOT_CONNECT_NOW,
        "the database system is starting up",
        "It recovers after a stop or a crash, or is just being stopped.",
        "Wait; read the server's log if it stays so, `log_destination` says where that is.",
        &[RESTARTED],
    ),
    Kind::Server(_) => said(
        "The server ended the session",
        "FATAL",
        &SqlState::ADMIN_SHUTDOWN,
        "terminating connection due to administrator command",
        "The server was stopped, or somebody called `pg_terminate_backend`.",
        "Start the server again if it was stopped; nothing else has to be done. `pgsluice disable` keeps it off \
         where somebody ends it on purpose.",
        &[("client sessions", "a_session_ended_by_the_server_says_why")],
    ),
    Kind::Server(_) => said(
        "The target cannot be written to",
        "ERROR",
        &SqlState::READ_ONLY_SQL_TRANSACTION,
        "cannot execute CREATE SCHEMA during recovery",
        "The target is a standby: it was not promoted yet, or the address leads to the wrong one of several. \
         `default_transaction_read_only` alone does no harm.",
        "Give the primary as `--target`, or several hosts with `target_session_attrs=read-write`; or promote it: \
         `SELECT pg_promote()`.",
        &[READ_ONLY],
    ),
    Kind::Server(_) => said(
        "The server's disk is full",
        "ERROR",
        &SqlState::DISK_FULL,
        "could not extend file \"base/16384/16385\": No space left on device",
        "A table, its indexes, or WAL that nobody has taken fill the server's disk.",
        "Make room there; `pgsluice status` tells how much WAL the slot keeps, and `max_slot_wal_keep_size` bounds \
         it.",
        &[FULL],
    ),
    Kind::Server(_) => said(
        "Another error of a server",
        "ERROR",
        &SqlState::DATA_CORRUPTED,
        "could not read blocks 7..7 in file \"base/16384/16385\": read only 0 of 8192 bytes",
        "Whatever the server says: its words, its SQLSTATE, its detail and its hint are passed on as they came.",
        "Look up the SQLSTATE in PostgreSQL's manual, and read the server's log where `log_destination` leads.",
        &[],
    ),
    Kind::Unsuitable(Unsuitable::Is(_)) => connecting(
        "The server is not of the kind that was asked for",
        Kind::Unsuitable(Unsuitable::Is("a standby")),
        "`target_session_attrs` asks for a primary, a standby, or one that can be written to, and no host is that \
         now: as a rule a failover is under way.",
        "Wait for the promotion, or correct `target_session_attrs` and the hosts in the connection string.",
        &[HOSTS],
    ),
    Kind::Unsuitable(Unsuitable::TooOld) => connecting(
        "The server does not say of which kind it is",
        Kind::Unsuitable(Unsuitable::TooOld),
        "Servers before 14 do not report whether they are standbys.",
        "Remove `target_session_attrs`, and name the one host in the connection string.",
        &[HOSTS],
    ),
    Kind::Protocol(_) => connecting(
        "The peer does not speak the protocol",
        Kind::Protocol("the peer answered the request for TLS with 'H'; is it a PostgreSQL server?".to_owned()),
        "What listens there is no PostgreSQL server, a proxy does not pass everything on, or bytes were altered on the \
         way.",
        "Check `host` and `port`; connect to the server itself rather than through a pooler, which does not know \
         replication.",
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
        "The connection string names several hosts, and each of them failed, for the reason that is given with it.",
        "Repair one of them, or correct the list in `host`, and `target_session_attrs`; the reasons have entries of \
         their own.",
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
        "A word of the connection string is none of libpq's options.",
        "Correct the name; the options of `--source` and `--target` are those of libpq.",
        &[DAMAGED],
    ),
    Kind::Configuration(_) => entry(
        Doing::Configuring,
        "A connection option with a value that it cannot have",
        misread("host=db1 user=repl sslmode=maybe"),
        "The option exists, but not this value of it.",
        "Correct the value where the message says it comes from: the connection string, a variable such as \
         `PGSSLMODE`, or a service.",
        &[DAMAGED],
    ),
    Kind::Configuration(_) => entry(
        Doing::Configuring,
        "A connection option that is not supported",
        misread("host=db1 user=repl requirepeer=postgres"),
        "libpq knows this option, and pgsluice refuses what it would not keep rather than passing over it.",
        "Remove the option from the connection string, or unset its variable, here `PGREQUIREPEER`.",
        &[],
    ),
    Kind::Configuration(_) => entry(
        Doing::Configuring,
        "A connection string that cannot be taken apart",
        misread("db1 user=repl"),
        "Neither `keyword=value` pairs nor a `postgres://` address: often a value with a blank that is not quoted.",
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
