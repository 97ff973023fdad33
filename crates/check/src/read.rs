//! Asks a server, and accepts a refusal.
//!
//! If the role may not run a query, or the query takes too long, this module notes that and returns
//! no rows. Only a lost session is an error. Rows come as JSON, so that facts are read by name.

use client::Session;
use serde::de::DeserializeOwned;
use tokio_postgres::types::ToSql;

use crate::finding::{End, Finding};

/// A session, and the objects that it could not read.
pub(crate) struct FactReader<'a> {
    pub(crate) end: End,
    pub(crate) session: &'a Session,
    untold: Vec<Finding>,
}

impl<'a> FactReader<'a> {
    pub(crate) fn new(end: End, session: &'a Session) -> Self {
        FactReader { end, session, untold: Vec::new() }
    }

    pub(crate) fn into_findings(self) -> Vec<Finding> {
        self.untold
    }

    /// The rows of `sql`, which is about `object`.
    pub(crate) async fn rows<T: DeserializeOwned>(
        &mut self,
        object: &str,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<T>, client::Error> {
        let sql = format!("SELECT pg_catalog.to_jsonb(q)::pg_catalog.text FROM ({sql}) q");
        let rows = self.session.query(&sql, parameters).await;
        let Some(rows) = self.told(object, rows)? else { return Ok(Vec::new()) };
        let parsed: Result<Vec<T>, serde_json::Error> =
            rows.iter().map(|row| serde_json::from_str(row.get(0))).collect();
        Ok(parsed.unwrap_or_else(|error| {
            self.not_told(object, &format!("the answer is not understood: {error}"));
            Vec::new()
        }))
    }

    /// The first row of `sql`.
    pub(crate) async fn row<T: DeserializeOwned>(
        &mut self,
        object: &str,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<T>, client::Error> {
        Ok(self.rows(object, sql, parameters).await?.into_iter().next())
    }

    fn told<T>(
        &mut self,
        object: &str,
        answer: Result<T, tokio_postgres::Error>,
    ) -> Result<Option<T>, client::Error> {
        match answer.map_err(|error| self.session.error(error)) {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.is_connection_lost() => Err(error),
            Err(error) => {
                self.not_told(object, &error.to_string());
                Ok(None)
            }
        }
    }

    /// Notes that `object` could not be read.
    pub(crate) fn not_told(&mut self, object: &str, why: &str) {
        let what = format!("could not be read, so nothing is known of it: {why}");
        let remedy = "check again when what it waits for has ended, or let the role read the system catalogs";
        self.untold.push(Finding::warning(self.end, object, what).remedy(remedy));
    }
}
