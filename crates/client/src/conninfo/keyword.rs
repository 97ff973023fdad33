//! Every keyword that libpq knows, with its environment variable, and what pgsluice does with it.
//!
//! The list follows `PQconninfoOptions` in `interfaces/libpq/fe-connect.c` of PostgreSQL 18.
//! pgsluice accepts a keyword that would change nothing here. It refuses by name a keyword whose
//! promise it cannot keep, rather than ignore it.

/// What a keyword means to us.
#[derive(Debug, Clone, Copy)]
pub(super) enum Support {
    /// Behaves as in libpq.
    Used,
    /// Accepted with any value: it could not change anything here.
    Harmless,
    /// These values are accepted, others refused with the reason.
    Only(&'static [&'static str], &'static str),
    /// Refused with the reason.
    Refused(&'static str),
}

#[derive(Debug)]
pub(super) struct Keyword {
    pub(super) name: &'static str,
    /// Read when neither the connection string nor the service has the keyword.
    pub(super) env: Option<&'static str>,
    pub(super) support: Support,
}

const fn used(name: &'static str, env: Option<&'static str>) -> Keyword {
    Keyword { name, env, support: Support::Used }
}

const fn harmless(name: &'static str, env: Option<&'static str>) -> Keyword {
    Keyword { name, env, support: Support::Harmless }
}

const fn only(
    name: &'static str,
    env: Option<&'static str>,
    values: &'static [&'static str],
    reason: &'static str,
) -> Keyword {
    Keyword { name, env, support: Support::Only(values, reason) }
}

const fn refused(name: &'static str, env: Option<&'static str>, reason: &'static str) -> Keyword {
    Keyword { name, env, support: Support::Refused(reason) }
}

const NO_GSS: &str = "GSSAPI is not supported; use SCRAM or certificates, and TLS for encryption";
const NO_OAUTH: &str = "OAuth is not supported; use SCRAM or certificates";

pub(super) static KEYWORDS: &[Keyword] = &[
    used("service", Some("PGSERVICE")),
    used("user", Some("PGUSER")),
    used("password", Some("PGPASSWORD")),
    used("passfile", Some("PGPASSFILE")),
    used("channel_binding", Some("PGCHANNELBINDING")),
    used("connect_timeout", Some("PGCONNECT_TIMEOUT")),
    used("dbname", Some("PGDATABASE")),
    used("host", Some("PGHOST")),
    used("hostaddr", Some("PGHOSTADDR")),
    used("port", Some("PGPORT")),
    // PGCLIENTENCODING is not read: it is meant for terminals.
    only("client_encoding", None, &["auto", "utf8", "utf-8", "unicode"], "connections always use UTF8"),
    used("options", Some("PGOPTIONS")),
    used("application_name", Some("PGAPPNAME")),
    used("fallback_application_name", None),
    used("keepalives", None),
    used("keepalives_idle", None),
    used("keepalives_interval", None),
    used("keepalives_count", None),
    used("tcp_user_timeout", None),
    used("sslmode", Some("PGSSLMODE")),
    used("sslnegotiation", Some("PGSSLNEGOTIATION")),
    harmless("sslcompression", Some("PGSSLCOMPRESSION")),
    used("sslcert", Some("PGSSLCERT")),
    used("sslkey", Some("PGSSLKEY")),
    only(
        "sslcertmode",
        Some("PGSSLCERTMODE"),
        &["disable", "allow"],
        "whether the server asked for our certificate is not visible to us; let pg_hba.conf demand it (clientcert)",
    ),
    refused(
        "sslpassword",
        None,
        "encrypted private keys are not supported; decrypt the key with `openssl pkey`",
    ),
    used("sslrootcert", Some("PGSSLROOTCERT")),
    used("sslcrl", Some("PGSSLCRL")),
    refused(
        "sslcrldir",
        Some("PGSSLCRLDIR"),
        "directories of revocation lists are not supported; use sslcrl",
    ),
    used("sslsni", Some("PGSSLSNI")),
    refused("sslkeylogfile", None, "session keys are never written to files"),
    refused("requirepeer", Some("PGREQUIREPEER"), "the owner of a Unix socket is not checked"),
    used("require_auth", Some("PGREQUIREAUTH")),
    used("ssl_min_protocol_version", Some("PGSSLMINPROTOCOLVERSION")),
    used("ssl_max_protocol_version", Some("PGSSLMAXPROTOCOLVERSION")),
    only("min_protocol_version", Some("PGMINPROTOCOLVERSION"), &["3.0"], "connections use protocol 3.0"),
    harmless("max_protocol_version", Some("PGMAXPROTOCOLVERSION")),
    only("gssencmode", Some("PGGSSENCMODE"), &["disable", "prefer"], NO_GSS),
    harmless("krbsrvname", Some("PGKRBSRVNAME")),
    harmless("gsslib", Some("PGGSSLIB")),
    only("gssdelegation", Some("PGGSSDELEGATION"), &["0"], NO_GSS),
    refused("replication", None, "whether a connection replicates is decided by what it is used for"),
    used("target_session_attrs", Some("PGTARGETSESSIONATTRS")),
    used("load_balance_hosts", Some("PGLOADBALANCEHOSTS")),
    used("scram_client_key", None),
    used("scram_server_key", None),
    refused("oauth_issuer", None, NO_OAUTH),
    refused("oauth_client_id", None, NO_OAUTH),
    refused("oauth_client_secret", None, NO_OAUTH),
    refused("oauth_scope", None, NO_OAUTH),
];

pub(super) fn find(name: &str) -> Option<&'static Keyword> {
    KEYWORDS.iter().find(|keyword| keyword.name == name)
}
