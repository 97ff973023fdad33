//! Tables of a source that ships WAL whose values only the server can render, or whose row filter only it can evaluate.
//!
//! ```text
//!   takes no part --- decodable where decoding has come to ---> joins, by a copy
//!        ^                                                          |
//!        '---- a change of it cannot come out: the attempt ends ----'
//! ```
//! Such a table costs itself: its changes are left out, and the others stream. Nothing is lost by that, because who takes no
//! part is copied before it does.
//!
//! Hazards, each with its remedy:
//! 1. A change of a table that takes part must never be left out. Decoding asks the set of those ([`TakesPart`]) for each
//!    change that cannot come out, and ends with an error if the table is among them. The target is told that the table
//!    takes no part any more before anything is decoded again, so that a kill in between repeats the error and loses
//!    nothing.
//! 2. A table that joins is added to the set before its snapshot is asked for. What was left out before was written by
//!    transactions that had ended then, or that the snapshot waits for: the copy has it.
//! 3. Decoding may be behind: the server says that the table can be decoded, and a change comes that was written when it
//!    could not. So decoding is asked, not the server. A table that was refused once in this process waits until decoding
//!    has come to where the source is now, or the same change would end attempt after attempt.

use std::collections::{BTreeSet, HashMap};

use base::Lsn;
use client::Session;
use output::{PublishedTable, TakesPart};
use state::TableKey;
use tokio::sync::{mpsc, oneshot};

use super::decoding::{Ask, AtPlace};
use crate::error::Error;
use crate::error::broke;
use crate::source_end::{end_of_wal, flush};

/// Says of tables whether they can be decoded.
pub(crate) struct Judge {
    pub(crate) asks: mpsc::Sender<Ask>,
    pub(crate) takes_part: TakesPart,
    pub(crate) options: output::Options,
    /// Tables of which a change could not come out, since this process began.
    pub(crate) refused_before: BTreeSet<TableKey>,
}

impl Judge {
    /// Those of `tables` that cannot join now, and why. `source` is any session of the source.
    pub(crate) async fn refused(
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
            // Behind the end a record is written, so that decoding gets there.
            flush(source).await?;
            published = self.published(now).await?;
        }
        let why = |table: &TableKey| match published.iter().find(|own| own.name == *table) {
            Some(own) => own.refused.as_ref().map(reason),
            None => Some(format!(
                "table \"{}.{}\" is not published where decoding has come to; it is looked at again",
                table.0, table.1
            )),
        };
        Ok(tables.iter().filter_map(|table| Some((table.clone(), why(table)?))).collect())
    }

    /// What is published where decoding has come to, once it is past `to`.
    async fn published(&self, to: Lsn) -> Result<Vec<PublishedTable>, Error> {
        let (answer, answered) = oneshot::channel();
        // Nobody takes it, or answers, when the stream has ended: that says why.
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
fn reason(refused: &output::Refused) -> String {
    let remedy = match (&refused.column, refused.is_filter) {
        (_, true) => "publish it without the row filter",
        (Some(_), _) => "change the column's type, publish the table with a column list without it",
        (None, _) => "change its columns",
    };
    format!(
        "{refused}. The other tables go on without it. To have it join, by a copy: {remedy}, or use --source-mode logical"
    )
}
