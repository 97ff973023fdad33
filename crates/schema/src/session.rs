//! Sessions that create things on the target.

use client::{ConnInfo, Session};

use crate::Error;

/// The settings at the head of pg_dump's output. They include none that only some versions know. An
/// object that is reported as created is durable.
const SETTINGS: [(&str, &str); 12] = [
    ("search_path", ""),
    ("standard_conforming_strings", "on"),
    ("check_function_bodies", "off"),
    ("xmloption", "content"),
    ("client_min_messages", "warning"),
    ("row_security", "off"),
    ("synchronous_commit", "on"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
    ("default_transaction_isolation", "read committed"),
];

/// First half of our advisory locks' keys, "pgss"; `apply` and `copy` have
/// others. The second half stands for the subscription and the step.
pub(crate) const LOCK_CLASS: i32 = 0x7067_7373;

pub(crate) async fn connect(info: &ConnInfo, application_name: &str) -> Result<Session, Error> {
    let failed = |error| Error::client("connect to the target", error);
    let session = client::connect(info, application_name, &SETTINGS).await.map_err(failed)?;
    let failed = |error| Error::client("set up a session on the target", session.error(error));
    if session.version().major() >= 17 {
        session.batch_execute("SET transaction_timeout = 0").await.map_err(failed)?;
    }
    // So that a killed process does not leave an index half a day in the
    // making. Not every system the server runs on can do it.
    let _ = session.batch_execute("SET client_connection_check_interval = '2s'").await;
    Ok(session)
}

/// Takes the lock of `step` until the transaction's end: a predecessor's
/// backend that is still at it is waited for.
pub(crate) async fn lock(session: &Session, step: &str) -> Result<(), tokio_postgres::Error> {
    let sql = "SELECT pg_catalog.pg_advisory_xact_lock($1, pg_catalog.hashtext($2))";
    session.execute(sql, &[&LOCK_CLASS, &step]).await.map(drop)
}

/// One after the other; the one that was refused.
pub(crate) async fn run_all(
    session: &Session,
    statements: &[String],
) -> Result<(), (String, tokio_postgres::Error)> {
    for statement in statements {
        session.batch_execute(statement).await.map_err(|error| (statement.clone(), error))?;
    }
    Ok(())
}
