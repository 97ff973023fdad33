//! The connections of a worker, set up so that the same bytes mean the same on both ends.

use client::{ConnInfo, Replication, SqlState, Wire};

use crate::error::{Error, Kind};
use crate::options::{ExportedSnapshot, Options};

/// Settings that change text output and input, or could end or disturb a long COPY. Both ends use
/// this one list, because they must agree.
const SETTINGS: [(&str, &str); 13] = [
    ("search_path", ""),
    ("datestyle", "ISO"),
    ("intervalstyle", "postgres"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("timezone", "UTC"),
    ("xmloption", "content"),
    ("array_nulls", "on"),
    // A policy that would hide rows is an error instead.
    ("row_security", "off"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("jit", "off"),
];

/// Both ends in UTF-8, so that text means the same in both formats: COPY's
/// binary text values are converted as well. Only between two SQL_ASCII
/// databases nothing is known of the bytes and nothing may be converted.
const ENCODING_SQL: &str = "SELECT pg_catalog.current_setting('server_encoding')";
const SQL_ASCII: &str = "SQL_ASCII";

/// The client encoding for two databases.
pub(crate) async fn common_encoding(source: &mut Wire, target: &mut Wire) -> Result<&'static str, Error> {
    let failed = Error::client("ask for the database's encoding");
    let source = source.query(ENCODING_SQL).await.map_err(failed)?;
    let target = target.query(ENCODING_SQL).await.map_err(failed)?;
    let is_ascii = |rows: &[Vec<Option<String>>]| first_text(rows) == Some(SQL_ASCII);
    Ok(if is_ascii(&source) && is_ascii(&target) { SQL_ASCII } else { "UTF8" })
}

/// The first column of the first row.
pub(crate) fn first_text(rows: &[Vec<Option<String>>]) -> Option<&str> {
    rows.first()?.first()?.as_deref()
}

/// Sets the client encoding; the server verifies what it converts.
pub(crate) async fn set_encoding(wire: &mut Wire, encoding: &str) -> Result<(), Error> {
    let sql = format!("SET client_encoding TO '{encoding}'");
    wire.query(&sql).await.map(drop).map_err(Error::client("set the client encoding"))
}

/// The publisher's parallel workers are its own. A range is read by its page
/// numbers; an index that serves the row filter would be read in full for
/// every range.
const BEGIN_SNAPSHOT: &str = "\
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL max_parallel_workers_per_gather TO 0;
SET LOCAL enable_indexscan TO off;
SET LOCAL enable_indexonlyscan TO off;
SET LOCAL enable_bitmapscan TO off";

/// The messages of `SET TRANSACTION SNAPSHOT` for a snapshot that is no longer exported; the second
/// from 16 on.
const SNAPSHOT_GONE: [SqlState; 2] = [SqlState::INVALID_PARAMETER_VALUE, SqlState::UNDEFINED_OBJECT];

/// A connection to the source in a transaction with the given snapshot.
pub(crate) async fn connect_source(
    info: &ConnInfo,
    snapshot: &ExportedSnapshot,
    options: &Options,
) -> Result<Wire, Error> {
    let mut wire = Wire::connect(info, &options.application_name, Replication::Off, &SETTINGS)
        .await
        .map_err(Error::client("connect to the source"))?;
    let failed = Error::client("take the snapshot on the source");
    wire.query(BEGIN_SNAPSHOT).await.map_err(failed)?;
    if wire.version().major() >= 17 {
        wire.query("SET LOCAL transaction_timeout TO 0").await.map_err(failed)?;
    }
    let import = format!("SET TRANSACTION SNAPSHOT {}", base::quote_literal(&snapshot.name));
    match wire.query(&import).await {
        Ok(_) => Ok(wire),
        Err(error)
            if error.sqlstate().is_some_and(|code| SNAPSHOT_GONE.contains(&SqlState::from_code(code))) =>
        {
            Err(Error::new(Kind::SnapshotGone(error)))
        }
        Err(error) => Err(failed(error)),
    }
}

/// A connection to the target that writes as replication does: ordinary triggers, rules and foreign
/// keys do not fire.
pub(crate) async fn connect_target(info: &ConnInfo, options: &Options) -> Result<Wire, Error> {
    let mut wire = Wire::connect(info, &options.application_name, Replication::Off, &SETTINGS)
        .await
        .map_err(Error::client("connect to the target"))?;
    let failed = Error::client("set up a session on the target");
    let commit = format!("SET synchronous_commit TO {}", base::quote_literal(&options.synchronous_commit));
    wire.query(&commit).await.map_err(failed)?;
    if wire.version().major() >= 17 {
        wire.query("SET transaction_timeout TO 0").await.map_err(failed)?;
    }
    match wire.query("SET session_replication_role TO replica").await {
        Ok(_) => Ok(wire),
        Err(error)
            if error.sqlstate() == Some(SqlState::INSUFFICIENT_PRIVILEGE.code())
                && options.allow_triggers =>
        {
            Ok(wire)
        }
        Err(error) if error.sqlstate() == Some(SqlState::INSUFFICIENT_PRIVILEGE.code()) => {
            Err(Error::new(Kind::NotReplica))
        }
        Err(error) => Err(failed(error)),
    }
}
