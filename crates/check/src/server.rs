//! The facts that both ends are asked for: role, limits, settings, load.

use std::collections::HashMap;
use std::time::Instant;

use base::PgVersion;
use client::Session;
use serde::Deserialize;

use crate::read::FactReader;

/// A managed service that runs the server, if it needs statements of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Service {
    /// Amazon RDS and Aurora.
    Rds,
    /// Google Cloud SQL.
    CloudSql,
    /// Azure Database, flexible server.
    Azure,
}

/// One answer of a server's clock, and when it was asked for and came, by our clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClockReading {
    /// Microseconds since the Unix epoch.
    pub(crate) us: i64,
    pub(crate) asked: Instant,
    pub(crate) came: Instant,
}

impl ClockReading {
    /// `None` where the server does not answer.
    async fn take(session: &Session) -> Option<ClockReading> {
        const SQL: &str = "SELECT (EXTRACT(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8";
        // The answer to be timed is that of a statement only.
        let statement = session.prepare(SQL).await.ok()?;
        let asked = Instant::now();
        let row = session.query_one(&statement, &[]).await.ok()?;
        Some(ClockReading { us: row.get(0), asked, came: Instant::now() })
    }

    /// How far this clock is ahead of `other`, at least and at most, in microseconds.
    pub(crate) fn ahead_of(&self, other: &ClockReading) -> (i64, i64) {
        // What this clock showed when it was read, less the time from the other reading to this
        // one. Both were read between asking and answer.
        let between = |from: Instant, to: Instant| match to.checked_duration_since(from) {
            Some(later) => i64::try_from(later.as_micros()).unwrap_or(i64::MAX),
            None => -i64::try_from((from - to).as_micros()).unwrap_or(i64::MAX),
        };
        let differ = self.us - other.us;
        (differ - between(other.asked, self.came), differ - between(other.came, self.asked))
    }
}

/// A server as its role sees it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Server {
    pub(crate) database: String,
    pub(crate) role: String,
    pub(crate) encoding: String,
    pub(crate) in_recovery: bool,
    pub(crate) superuser: bool,
    /// REPLICATION, or the service's role in its place.
    pub(crate) replication: bool,
    /// May use `reserved_connections` (16).
    pub(crate) reserved: bool,
    pub(crate) role_connections: i64,
    /// -1: no limit.
    pub(crate) role_connections_max: i64,
    pub(crate) database_connections: i64,
    /// -1: no limit.
    pub(crate) database_connections_max: i64,
    /// Without our own. Walsenders have slots of their own, but the limits of
    /// roles and databases count them, before 18.
    pub(crate) connections: i64,
    pub(crate) walsenders: i64,
    pub(crate) slots: i64,
    /// Two sessions with the same are on one server.
    pub(crate) started: String,
    pub(crate) service: Option<Service>,
    /// In base units, as `pg_settings` has them.
    settings: HashMap<String, String>,
    #[serde(skip)]
    pub(crate) clock: Option<ClockReading>,
    #[serde(skip)]
    pub(crate) system_identifier: Option<String>,
    #[serde(skip, default = "no_version")]
    pub(crate) version: PgVersion,
}

/// What two ends have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kinship {
    /// They are one server.
    OneServer,
    /// Two servers, and one is a copy of the other.
    Copies,
    /// Two clusters, as far as anybody can tell: a role may not see the system identifier.
    Unrelated,
}

fn no_version() -> PgVersion {
    PgVersion::from_num(0)
}

/// An unprivileged role sees that sessions of other roles exist, but not their kind. They count as
/// ordinary connections, which errs on the safe side.
const SERVER: &str = "
SELECT pg_catalog.current_database()::text AS database, r.rolname::text AS role,
       pg_catalog.current_setting('server_encoding') AS encoding,
       pg_catalog.pg_is_in_recovery() AS in_recovery, r.rolsuper AS superuser,
       r.rolreplication OR r.rolsuper OR EXISTS (SELECT FROM pg_catalog.pg_roles g
         WHERE g.rolname = 'rds_replication' AND pg_catalog.pg_has_role(r.oid, g.oid, 'MEMBER')) AS replication,
       EXISTS (SELECT FROM pg_catalog.pg_roles g
         WHERE g.rolname = 'pg_use_reserved_connections' AND pg_catalog.pg_has_role(r.oid, g.oid, 'USAGE')) AS reserved,
       a.own_role AS role_connections, r.rolconnlimit AS role_connections_max,
       a.own_database AS database_connections, d.datconnlimit AS database_connections_max,
       a.connections, (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication) AS walsenders,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots) AS slots,
       pg_catalog.pg_postmaster_start_time()::text AS started,
       CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname IN ('rdsadmin', 'rds_superuser', 'rds_replication')) THEN 'rds'
            WHEN EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'cloudsqlsuperuser') THEN 'cloud_sql'
            WHEN EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname IN ('azuresu', 'azure_pg_admin')) THEN 'azure' END AS service,
       (SELECT pg_catalog.jsonb_object_agg(s.name, s.setting) FROM pg_catalog.pg_settings s WHERE s.name IN (
         'wal_level', 'max_connections', 'superuser_reserved_connections', 'reserved_connections', 'max_wal_senders',
         'max_replication_slots', 'max_active_replication_origins', 'max_slot_wal_keep_size', 'wal_sender_timeout',
         'idle_replication_slot_timeout', 'default_transaction_read_only', 'synchronous_standby_names',
         'track_commit_timestamp', 'full_page_writes', 'block_size', 'wal_block_size')) AS settings
  FROM pg_catalog.pg_roles r
  JOIN pg_catalog.pg_database d ON d.datname = pg_catalog.current_database()
 CROSS JOIN (SELECT pg_catalog.count(*) FILTER (WHERE NOT walsender) AS connections,
                    pg_catalog.count(*) FILTER (WHERE usename = CURRENT_USER) AS own_role,
                    pg_catalog.count(*) FILTER (WHERE datname = pg_catalog.current_database()) AS own_database
               FROM (SELECT s.usename, s.datname, EXISTS (SELECT FROM pg_catalog.pg_stat_replication w WHERE w.pid = s.pid) AS walsender
                       FROM pg_catalog.pg_stat_activity s
                      WHERE s.pid <> pg_catalog.pg_backend_pid() AND s.datid IS NOT NULL
                        AND COALESCE(s.backend_type, 'client backend') IN ('client backend', 'walsender')) s) a
 WHERE r.rolname = CURRENT_USER";

impl Server {
    pub(crate) async fn read(reader: &mut FactReader<'_>) -> Result<Option<Server>, client::Error> {
        let Some(mut server) = reader.row::<Server>("server", SERVER, &[]).await? else { return Ok(None) };
        server.version = reader.session.version();
        server.clock = ClockReading::take(reader.session).await;
        // It serves only to tell two servers from one.
        let sql = "SELECT system_identifier::text FROM pg_catalog.pg_control_system()";
        if let Ok(row) = reader.session.query_one(sql, &[]).await {
            server.system_identifier = Some(row.get(0));
        }
        Ok(Some(server))
    }

    /// Whether `other` is the same server, or of the same cluster.
    pub(crate) fn kinship(&self, other: &Server) -> Kinship {
        let is_one_cluster =
            self.system_identifier.is_some() && self.system_identifier == other.system_identifier;
        match (is_one_cluster, self.started == other.started) {
            (true, true) => Kinship::OneServer,
            (true, false) => Kinship::Copies,
            (false, _) => Kinship::Unrelated,
        }
    }

    /// A setting's value in base units; empty if this major does not have the setting.
    pub(crate) fn setting(&self, name: &str) -> &str {
        self.settings.get(name).map_or("", String::as_str)
    }

    /// A number; `None` if this major has no such setting.
    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        self.setting(name).parse().ok()
    }

    pub(crate) fn major(&self) -> u32 {
        self.version.major()
    }

    /// Connections that the role may still open, by the tightest limit, and
    /// that limit's name.
    pub(crate) fn connections_left(&self) -> (i64, String) {
        let number = |name| self.number(name).unwrap_or(0);
        let mut left = number("max_connections") - self.connections;
        if !self.superuser {
            left -= number("superuser_reserved_connections");
            if !self.reserved {
                left -= number("reserved_connections");
            }
        }
        let mut tightest = (left, "max_connections".to_owned());
        // Superusers are above the limits of roles and databases.
        if !self.superuser {
            let limits = [
                (self.role_connections_max, self.role_connections, format!("role {}", self.role)),
                (
                    self.database_connections_max,
                    self.database_connections,
                    format!("database {}", self.database),
                ),
            ];
            for (max, used, name) in limits {
                if max >= 0 && max - used < tightest.0 {
                    tightest = (max - used, format!("CONNECTION LIMIT of {name}"));
                }
            }
        }
        (tightest.0.max(0), tightest.1)
    }
}
