//! What the horizon asks the publisher: its clock, who may be in commit, and where its WAL ends.
//!
//! The clock is read by a statement of its own, before locks and sessions. [`deletions::Activity`]
//! says why, and what each answer means.

use base::{Lsn, PgTimestamp, Xid};
use client::Session;
use deletions::{Activity, By, Doing, Holder, Publisher, Session as Activities};
use tokio_postgres::Row;
use tokio_postgres::types::PgLsn;

use crate::error::Error;

/// The publisher as one connection finds it.
pub(crate) struct PublisherEnd {
    session: Session,
}

const SEGMENT_SIZE: &str = "SELECT pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size'))";

// A standby has no timeline to write on, and its answers are not taken.
const CLOCK: &str = "\
SELECT (EXTRACT(epoch FROM pg_catalog.clock_timestamp() - '2000-01-01 00:00:00+00'::timestamptz) * 1000000)::int8,
       s.system_identifier, NOT pg_catalog.pg_is_in_recovery(),
       CASE WHEN NOT pg_catalog.pg_is_in_recovery()
            THEN pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()) END
FROM pg_catalog.pg_control_system() s";

// Rows that a worker copies for a new table have the publisher's own time, so such a worker counts.
const HOLDERS: &str = "\
SELECT l.pid, a.state, (EXTRACT(epoch FROM a.query_start - '2000-01-01 00:00:00+00'::timestamptz) * 1000000)::int8,
       a.wait_event, l.transactionid::text, COALESCE(
         a.backend_type LIKE 'logical replication%worker' AND NOT EXISTS (
           SELECT FROM pg_catalog.pg_stat_subscription s WHERE s.pid = a.pid AND s.relid IS NOT NULL), false)
FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted";

// COMMIT PREPARED stands alone in its query string. What cannot be seen may be one: the text of
// another role, the end of a long text. An apply worker's COMMIT PREPARED keeps the time of the
// server that it comes from.
const FINISHERS: &str = "\
SELECT a.pid, a.state, (EXTRACT(epoch FROM a.query_start - '2000-01-01 00:00:00+00'::timestamptz) * 1000000)::int8,
       a.wait_event
FROM pg_catalog.pg_stat_activity a
WHERE a.pid <> pg_catalog.pg_backend_pid()
  AND CASE WHEN a.backend_type = 'client backend'
           THEN a.state = 'active' AND (a.query ILIKE '%prepared%' OR pg_catalog.octet_length(a.query) + 1 >=
                pg_catalog.pg_size_bytes(pg_catalog.current_setting('track_activity_query_size')))
           ELSE a.backend_type IS NULL END";

const POSITION: &str = "SELECT pg_catalog.pg_current_wal_insert_lsn()";

impl PublisherEnd {
    pub(crate) fn new(session: Session) -> PublisherEnd {
        PublisherEnd { session }
    }

    /// `wal_segment_size`, in bytes.
    pub(crate) async fn segment_size(&self) -> Result<u64, Error> {
        Ok(self.one(SEGMENT_SIZE).await?.get::<_, i64>(0).cast_unsigned())
    }

    /// What happens there now.
    pub(crate) async fn activity(&self) -> Result<Activity, Error> {
        let (publisher, clock) = self.clock().await?;
        let holders: Vec<Holder> = self.all(HOLDERS).await?.iter().filter_map(holder).collect();
        let has_prepared = holders.iter().any(|holder| holder.by == By::Prepared);
        let finishers = match has_prepared {
            true => self.all(FINISHERS).await?.iter().filter_map(session).collect(),
            false => Vec::new(),
        };
        Ok(Activity { publisher, clock, holders, finishers })
    }

    /// Where its next record may start.
    pub(crate) async fn position(&self) -> Result<(Publisher, Lsn), Error> {
        let (publisher, _) = self.clock().await?;
        let row = self.one(POSITION).await?;
        Ok((publisher, Lsn::new(row.get::<_, PgLsn>(0).into())))
    }

    async fn clock(&self) -> Result<(Publisher, PgTimestamp), Error> {
        let row = self.one(CLOCK).await?;
        let file: Option<&str> = row.get(3);
        let timeline = file.and_then(|name| u32::from_str_radix(name.get(..8)?, 16).ok());
        let publisher = Publisher {
            system_id: row.get::<_, i64>(1).cast_unsigned(),
            timeline: timeline.unwrap_or_default(),
            is_primary: row.get(2),
        };
        Ok((publisher, PgTimestamp(row.get(0))))
    }

    async fn one(&self, sql: &str) -> Result<Row, Error> {
        Ok(self.session.query_one(sql, &[]).await.map_err(|error| self.session.error(error))?)
    }

    async fn all(&self, sql: &str) -> Result<Vec<Row>, Error> {
        Ok(self.session.query(sql, &[]).await.map_err(|error| self.session.error(error))?)
    }
}

fn holder(row: &Row) -> Option<Holder> {
    let xid = Xid(row.get::<_, &str>(4).parse().ok()?);
    let by = match session(row) {
        Some(worker) if row.get(5) => By::Session(Activities { doing: Doing::Applying, ..worker }),
        Some(session) => By::Session(session),
        None => By::Prepared,
    };
    Some(Holder { xid, by })
}

/// The session of a row; `None` for a prepared transaction, which has none.
fn session(row: &Row) -> Option<Activities> {
    let pid = u32::try_from(row.get::<_, Option<i32>>(0)?).ok()?;
    let doing = match (row.get::<_, Option<&str>>(1), row.get::<_, Option<i64>>(2)) {
        (Some("active"), _) if row.get::<_, Option<&str>>(3) == Some("SyncRep") => Doing::WaitingForStandby,
        (Some("active"), Some(begun)) => Doing::Statement { begun: PgTimestamp(begun) },
        (Some("idle in transaction" | "idle in transaction (aborted)"), _) => Doing::BetweenStatements,
        _ => Doing::Unknown,
    };
    Some(Activities { pid, doing })
}
