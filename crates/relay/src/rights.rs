//! Whether a role may replicate from a database, as the publisher would decide.

use base::Oid;
use proto::frame::ServerError;

use crate::told::{code, fatal};
use crate::upstream::Upstream;

/// Whether the role may replicate from the database. Returns the OIDs of the database and the role.
pub(crate) async fn may_replicate(
    (upstream, major): (&Upstream, u32),
    user: &String,
    database: &String,
) -> Result<(Oid, u32), Box<ServerError>> {
    let fatal = |code, message: String| fatal(code, &message);
    let unreachable = |error: &dyn std::error::Error| {
        let why = base::with_causes(error);
        fatal(code::CONNECTION_FAILURE, format!("the relay cannot use the publisher: {why}"))
    };
    let session = client::connect(upstream.publisher(), "pgsluice relay", &[]).await;
    let session = session.map_err(|error| unreachable(&error))?;
    let sql = "SELECT r.rolreplication OR r.rolsuper, d.oid, \
                      pg_catalog.has_database_privilege(r.oid, d.oid, 'CONNECT'), \
                      pg_catalog.pg_encoding_to_char(d.encoding)::text, r.oid \
                 FROM (VALUES (1)) one \
                 LEFT JOIN pg_catalog.pg_roles r ON r.rolname = $1 \
                 LEFT JOIN pg_catalog.pg_database d ON d.datname = $2";
    let row = session.query_one(sql, &[user, database]).await.map_err(|error| unreachable(&error))?;
    let (replicates, oid): (Option<bool>, Option<u32>) = (row.get(0), row.get(1));
    let (connects, encoding): (Option<bool>, Option<String>) = (row.get(2), row.get(3));
    let role_oid: Option<u32> = row.get(4);
    let Some((replicates, role_oid)) = replicates.zip(role_oid) else {
        return Err(fatal("28000", format!("role \"{user}\" does not exist")));
    };
    let Some(oid) = oid else {
        return Err(fatal("3D000", format!("database \"{database}\" does not exist")));
    };
    if connects != Some(true) {
        let mut error =
            fatal(code::INSUFFICIENT_PRIVILEGE, format!("permission denied for database \"{database}\""));
        error.detail = Some("User does not have CONNECT privilege.".to_owned());
        return Err(error);
    }
    if !replicates {
        let mut error =
            fatal(code::INSUFFICIENT_PRIVILEGE, "permission denied to start WAL sender".to_owned());
        let detail = "Only roles with the REPLICATION attribute may start a WAL sender process.";
        if major >= 16 {
            error.detail = Some(detail.to_owned());
        } else {
            error.message = "must be superuser or replication role to start walsender".to_owned();
        }
        return Err(error);
    }
    if encoding.as_deref() != Some("UTF8") {
        let what = encoding.unwrap_or_default();
        let message = format!("the relay decodes databases in UTF8 only, and \"{database}\" is in {what}");
        return Err(fatal(code::FEATURE_NOT_SUPPORTED, message));
    }
    Ok((Oid(oid), role_oid))
}
