//! SQL from a test: blocking, rows as text, callable from inside and outside of an async runtime.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio_postgres::{NoTls, SimpleQueryMessage};

/// A server that says nothing for so long says nothing at all.
const CONNECT_BOUND: Duration = Duration::from_secs(300);

/// Rows as the server prints them; `None` is NULL.
pub type Rows = Vec<Vec<Option<String>>>;

/// Runs `sql` at `url` on a connection of its own and returns the rows of its last statement.
///
/// Several statements are one implicit transaction, as the simple protocol has it: `VACUUM` or
/// `CREATE DATABASE` wants a call of its own.
///
/// # Errors
/// What the server answers, with the statement.
pub fn query(url: &str, sql: &str) -> Result<Rows> {
    // A thread of its own, because a test's thread may already be driving a runtime.
    std::thread::scope(|scope| {
        scope.spawn(|| block_on(url, sql)).join().expect("the query thread does not panic")
    })
}

fn block_on(url: &str, sql: &str) -> Result<Rows> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let connected = tokio::time::timeout(CONNECT_BOUND, tokio_postgres::connect(url, NoTls)).await;
        let connected = connected.with_context(|| format!("{url} answers nothing for {CONNECT_BOUND:?}"))?;
        let (client, connection) = connected.with_context(|| format!("connecting to {url}"))?;
        let driver = tokio::spawn(connection);
        let messages = client.simple_query(sql).await.map_err(|error| explain(error, sql))?;
        drop(client);
        driver.await?.ok();
        Ok(last_rows(&messages))
    })
}

/// An error that shows the server's words first; the driver's own `Display` hides them.
fn explain(error: tokio_postgres::Error, sql: &str) -> anyhow::Error {
    let statement: String = sql.chars().take(400).collect();
    let words = error.as_db_error().map(|db| {
        let detail = db.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
        format!("{} {}{detail}", db.code().code(), db.message())
    });
    let words = words.unwrap_or_else(|| error.to_string());
    anyhow::Error::new(error).context(format!("{words}, in: {statement}"))
}

fn last_rows(messages: &[SimpleQueryMessage]) -> Rows {
    let mut rows = Rows::new();
    let mut ended = false;
    for message in messages {
        match message {
            SimpleQueryMessage::Row(row) => {
                rows.push((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect());
            }
            SimpleQueryMessage::RowDescription(_) => {
                rows.clear();
                ended = false;
            }
            SimpleQueryMessage::CommandComplete(_) => {
                if ended {
                    rows.clear();
                }
                ended = true;
            }
            _ => {}
        }
    }
    rows
}
