//! Tables of a source that ships WAL that cannot be decoded here. Only the server can render their
//! values, or evaluate their row filter.
//!
//! ```text
//!   takes no part --- decodable where decoding has come to ---> joins, by a copy
//!        ^                                                          |
//!        '---- a change of it cannot come out: the attempt ends ----'
//! ```
//! The changes of the table are left out, and the other tables stream. This loses nothing, because
//! a table that takes no part is copied before it joins.
//!
//! Hazards, each with its remedy:
//! 1. Decoding must never leave out a change of a table that takes part. For each change that
//!    cannot be decoded, it looks the table up in the set of those tables ([`TakesPart`]), and ends
//!    with an error if it finds it. The target then records that the table takes no part, before
//!    anything is decoded again. A kill in between repeats the error and loses nothing.
//! 2. A table that joins is added to the set before its snapshot is requested. What was left out
//!    earlier was written by transactions that had ended by then, or that the snapshot waits for.
//!    The copy has their changes.
//! 3. Decoding may be behind. The server may say that the table can be decoded now, while decoding
//!    has yet to reach a change from before. So the question goes to decoding, not to the server. A
//!    table that was refused once in this process waits until decoding has come to where the source
//!    is now. Otherwise the same change would end one attempt after another.

use std::collections::{BTreeSet, HashMap};

use base::Lsn;
use client::Session;
use output::{PublishedTable, TakesPart};
use source::end::{end_of_wal, flush};
use state::TableKey;
use tokio::sync::{mpsc, oneshot};

use crate::decoding::{Ask, AtPlace};
use crate::error::{Error, broke};

/// Decides which tables can be decoded.
pub struct Judge {
    pub(crate) asks: mpsc::Sender<Ask>,
    /// The tables that take part, which decoding must not leave out.
    pub takes_part: TakesPart,
    pub(crate) options: output::Options,
    /// Tables that had a change that could not be decoded, since this process began.
    pub(crate) refused_before: BTreeSet<TableKey>,
}

impl Judge {
    /// Returns the tables of `tables` that cannot join now, with the reasons. `source` is any
    /// session of the source.
    ///
    /// # Errors
    /// The source failed.
    pub async fn refused(
        &self,
        tables: &[TableKey],
        source: &Session,
    ) -> Result<HashMap<TableKey, String>, Error> {
        let mut published = self.published(Lsn::INVALID).await?;
        let is_known =
            |published: &[PublishedTable], table: &TableKey| published.iter().any(|own| own.name == *table);
        let must_wait =
            |table: &TableKey| self.refused_before.contains(table) || !is_known(&published, table);
        if tables.iter().any(must_wait) {
            let now = end_of_wal(source).await?;
            // Writes a record behind the end, so that decoding gets there.
            flush(source).await?;
            published = self.published(now).await?;
        }
        let why = |table: &TableKey| match published.iter().find(|own| own.name == *table) {
            Some(own) => own.refused.as_ref().map(reason),
            None => Some(format!(
                "table \"{}.{}\" is not published where decoding has come to; pgsluice looks at it again",
                table.0, table.1
            )),
        };
        Ok(tables.iter().filter_map(|table| Some((table.clone(), why(table)?))).collect())
    }

    /// Returns what is published at the place that decoding has come to, once that is past `to`.
    async fn published(&self, to: Lsn) -> Result<Vec<PublishedTable>, Error> {
        let (answer, answered) = oneshot::channel();
        // Decoding does not take the question, or does not answer it, if the stream has ended. The
        // stream's error says why.
        if self.asks.send(Ask { to, answer }).await.is_err() {
            return std::future::pending().await;
        }
        let Ok(AtPlace { catalog, .. }) = answered.await else { return std::future::pending().await };
        let options = self.options.clone();
        let describing = tokio::task::spawn_blocking(move || output::published(&catalog, &options));
        Ok(describing.await.map_err(|error| broke(&error))??)
    }
}

/// Why a table waits, and what would let it join.
fn reason(refused: &output::RefusedTable) -> String {
    let remedy = match (&refused.column, refused.is_filter) {
        (_, true) => "publish it without the row filter",
        (Some(_), _) => "change the column's type, publish the table with a column list without it",
        (None, _) => "change its columns",
    };
    format!(
        "{refused}. The other tables go on without it. To have it join, by a copy: {remedy}, or use --source-mode logical"
    )
}
