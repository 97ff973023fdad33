//! A blocking session that comes back after its server does.

use std::time::Duration;

use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// Rows as text; `None` is NULL.
pub(crate) type Rows = Vec<Vec<Option<String>>>;

/// How long one statement may take, and a connection: longer than any lock a held process keeps, so
/// that only a hang is cut short.
const STATEMENT_BOUND: Duration = Duration::from_secs(60);

pub(crate) struct Conn {
    url: String,
    runtime: Runtime,
    client: Option<Client>,
    bound: Duration,
}

impl Conn {
    pub(crate) fn new(url: String) -> Conn {
        Conn::within(STATEMENT_BOUND, url)
    }

    /// A session that waits this long for an answer, also when it connects.
    pub(crate) fn within(bound: Duration, url: String) -> Conn {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Conn { url, runtime: runtime.expect("a runtime"), client: None, bound }
    }

    /// Runs `sql`; a lost connection is an error once, also one that was seen
    /// to be lost when the last answer came, and the next call connects again.
    pub(crate) fn run(&mut self, sql: &str) -> anyhow::Result<Rows> {
        let Conn { url, runtime, client, bound } = self;
        runtime.block_on(async {
            let open = match client.take() {
                Some(open) if open.is_closed() => anyhow::bail!("the connection was lost"),
                Some(open) => open,
                None => {
                    let connected = tokio_postgres::connect(url, NoTls);
                    let (open, connection) = tokio::time::timeout(*bound, connected).await??;
                    tokio::spawn(connection);
                    open
                }
            };
            let messages = tokio::time::timeout(*bound, open.simple_query(sql)).await?;
            *client = Some(open);
            Ok(messages.map(rows)?)
        })
    }

    /// The first row as numbers; NULL is 0.
    pub(crate) fn numbers(&mut self, sql: &str) -> anyhow::Result<Vec<i64>> {
        let rows = self.run(sql)?;
        let row = rows.into_iter().next().unwrap_or_default();
        row.into_iter().map(|value| Ok(value.map_or(Ok(0), |value| value.parse())?)).collect()
    }
}

fn rows(messages: Vec<SimpleQueryMessage>) -> Rows {
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
        }
        _ => None,
    };
    messages.into_iter().filter_map(row).collect()
}
