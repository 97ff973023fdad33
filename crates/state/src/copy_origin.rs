//! The replication origin under which a copy commits.
//!
//! Copied rows came by replication, and their transactions must say so. Without an origin, a
//! subscription in the other direction with `origin = none` would send the rows back, and the
//! TRUNCATE of a repeated copy with them. And the first change of a copied row would count as a
//! conflict with a local write.
//!
//! Before 19, one session at a time can have an origin, and an origin takes one of few places in
//! the server. So the connections of a copy share one. Each attaches it for its COMMIT alone, which
//! is what logical decoding and commit timestamps look at.

use base::quote_literal;
use client::SqlState;
use tokio::time::Instant;

use crate::error::{Error, Kind};
use crate::state::{FENCE_POLL, FENCE_WAIT, State, is_without_room};

impl State {
    /// Returns the origin under which a copy is to commit, once no session of an earlier process
    /// has it. `worker` is the number of an apply worker that does not run meanwhile. `None` where
    /// nobody could tell the difference, or where the server has no place for another origin.
    ///
    /// # Errors
    /// A session keeps the origin, or a query failed. Or there is no place, and it is `needed`.
    pub async fn copy_origin(&self, worker: usize, needed: bool) -> Result<Option<String>, Error> {
        let is_seen = "SELECT pg_catalog.current_setting('wal_level') = 'logical' \
                       OR pg_catalog.current_setting('track_commit_timestamp') = 'on'";
        let is_seen =
            self.session.query_one(is_seen, &[]).await.map_err(|error| self.session.error(error))?;
        if !is_seen.get::<_, bool>(0) {
            return Ok(None);
        }
        let origin = self.name.origin(worker);
        self.create_origin(&origin).await?;
        match self.wait_until_free(&origin).await {
            Ok(()) => Ok(Some(origin)),
            Err(error) if is_without_room(error.sqlstate()) && needed => {
                Err(Kind::NoPlace { name: self.name.to_string() }.into())
            }
            Err(error) if is_without_room(error.sqlstate()) => {
                tracing::warn!(
                    subscription = %self.name,
                    "copied rows have no replication origin, because the target has no place for another: a \
                     subscription in the other direction would send them back; set max_replication_slots \
                     (from 18 on max_active_replication_origins) higher and restart the target"
                );
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The server's numbers of the origins that the subscription has now.
    ///
    /// # Errors
    /// A query failed.
    pub async fn own_origins(&self) -> Result<Vec<u32>, Error> {
        let own = crate::origins::own_origins(&**self.session(), &self.name).await;
        own.map_err(|error| self.session.error(error).into())
    }

    /// Makes an origin unless it exists.
    pub(crate) async fn create_origin(&self, origin: &str) -> Result<(), Error> {
        let sql = "SELECT pg_catalog.pg_replication_origin_create($1) \
                    WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_replication_origin o WHERE o.roname = $1)";
        let created = self.session.query_opt(sql, &[&origin]).await;
        created.map(drop).map_err(|error| self.session.error(error).into())
    }

    /// Waits until no other session has the origin.
    async fn wait_until_free(&self, origin: &str) -> Result<(), Error> {
        let attach = format!(
            "SELECT pg_catalog.pg_replication_origin_session_setup({}); \
             SELECT pg_catalog.pg_replication_origin_session_reset()",
            quote_literal(origin)
        );
        let start = Instant::now();
        while let Err(error) = self.session.batch_execute(&attach).await {
            let error = self.session.error(error);
            if error.sqlstate() != Some(SqlState::OBJECT_IN_USE.code()) {
                return Err(error.into());
            }
            if start.elapsed() > FENCE_WAIT {
                return Err(self.held(origin, &error).await);
            }
            tokio::time::sleep(FENCE_POLL).await;
        }
        Ok(())
    }
}

/// Commits the open transaction under `origin`, which no other session has meanwhile.
#[must_use]
pub fn commit_under(origin: &str) -> String {
    format!(
        "SELECT pg_catalog.pg_replication_origin_session_setup({}); COMMIT; \
         SELECT pg_catalog.pg_replication_origin_session_reset()",
        quote_literal(origin)
    )
}
