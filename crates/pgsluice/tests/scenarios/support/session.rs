//! One connection of a test.

use testkit::Rows;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// One connection that stays: open transactions, and questions asked often.
pub(crate) struct Session {
    url: String,
    runtime: tokio::runtime::Runtime,
    client: Option<Client>,
}

impl Session {
    pub(crate) fn to(url: &str) -> Session {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Session { url: url.to_owned(), runtime: runtime.expect("a runtime"), client: None }
    }

    /// Connects if necessary and runs `sql`. Returns the rows of its last statement that returns
    /// any.
    pub(crate) fn query(&mut self, sql: &str) -> Result<Rows, String> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            let connected = self.runtime.block_on(tokio_postgres::connect(&self.url, NoTls));
            let (client, connection) =
                connected.map_err(|error| format!("connecting to {}: {error}", self.url))?;
            self.runtime.spawn(connection);
            self.client = Some(client);
        }
        let client = self.client.as_ref().expect("just connected");
        let messages = self.runtime.block_on(client.simple_query(sql)).map_err(|error| {
            let words = error.as_db_error().map_or(error.to_string(), |db| {
                format!("{} {} {}", db.code().code(), db.message(), db.detail().unwrap_or_default())
            });
            format!("{words}, in: {}", sql.chars().take(400).collect::<String>())
        })?;
        let mut rows = Rows::new();
        for message in &messages {
            match message {
                SimpleQueryMessage::RowDescription(_) => rows.clear(),
                SimpleQueryMessage::Row(row) => {
                    rows.push((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect());
                }
                _ => {}
            }
        }
        Ok(rows)
    }

    /// [`Session::query`] that must succeed.
    #[track_caller]
    pub(crate) fn run(&mut self, sql: &str) {
        self.query(sql).unwrap_or_else(|error| panic!("{error}"));
    }
}
