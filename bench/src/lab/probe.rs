//! One session that stays open during a measurement, so that sampling costs the servers next to
//! nothing.

use anyhow::{Context, Result};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// A blocking session.
pub(crate) struct Probe {
    runtime: Runtime,
    client: Client,
}

impl Probe {
    pub(crate) fn connect(url: &str) -> Result<Probe> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let connecting = tokio_postgres::connect(url, NoTls);
        let (client, connection) = runtime.block_on(connecting).context("connecting the probe")?;
        runtime.spawn(connection);
        Ok(Probe { runtime, client })
    }

    /// The first row that `sql` returns, as text; empty if it returns none.
    pub(crate) fn row(&self, sql: &str) -> Result<Vec<Option<String>>> {
        let answer = self.runtime.block_on(self.client.simple_query(sql));
        let messages = answer.map_err(|error| {
            let words = error.as_db_error().map_or_else(|| error.to_string(), |db| db.message().to_owned());
            anyhow::anyhow!("{words}, in: {sql}")
        })?;
        let row = messages.into_iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let text = |row: &tokio_postgres::SimpleQueryRow, column| row.get(column).map(str::to_owned);
        Ok(row.map(|row| (0..row.len()).map(|column| text(&row, column)).collect()).unwrap_or_default())
    }
}
