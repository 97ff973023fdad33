//! A target that may be applied to: its sessions, their settings, the fences
//! they passed.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64};

use base::Lsn;
use client::{ConnInfo, Wire};

use crate::applier::Options;
use crate::catalog::{Catalog, JoinedTables};
use crate::error::{Error, Kind};
use crate::state::State;

/// A target that is attached and may be applied to.
pub struct Target {
    pub(crate) wire: Wire,
    pub(crate) catalog: Catalog,
    /// How far the target is.
    pub(crate) progress: Lsn,
}

/// The backends of a target.
#[derive(Debug, Clone)]
pub struct Backends {
    /// The one that applies.
    pub applying: i32,
    /// Bytes that went to it and came.
    pub traffic: Arc<AtomicU64>,
    /// The one that is asked for a table's description at this moment; 0 for
    /// none.
    pub asked: Arc<AtomicI32>,
}

/// Settings of a session that applies. The planner is told to join a set to
/// the table by its index, whatever the statistics say: a set is small beside
/// a table, and without statistics a hash join would read all of it.
fn session_settings(options: &Options) -> Vec<(&str, &str)> {
    vec![
        ("search_path", ""),
        ("row_security", "off"),
        ("synchronous_commit", &options.synchronous_commit),
        ("client_encoding", "UTF8"),
        ("datestyle", "ISO"),
        ("intervalstyle", "postgres"),
        ("extra_float_digits", "3"),
        ("array_nulls", "on"),
        ("xmloption", "content"),
        ("statement_timeout", "0"),
        ("lock_timeout", "0"),
        ("idle_in_transaction_session_timeout", "0"),
        ("idle_session_timeout", "0"),
        ("plan_cache_mode", "force_generic_plan"),
        ("default_transaction_isolation", "read committed"),
        ("default_transaction_read_only", "off"),
        ("enable_nestloop", "on"),
        ("enable_indexscan", "on"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
        ("enable_seqscan", "off"),
        ("jit", "off"),
        ("tcp_keepalives_idle", "30"),
        ("tcp_keepalives_interval", "10"),
        ("tcp_keepalives_count", "6"),
    ]
}

impl Target {
    /// Connects the session that applies, passes the fence of the origin and
    /// reads how far it came.
    ///
    /// # Errors
    /// The session may not be a replica and triggers are not allowed, the
    /// origin cannot be had, or a connection failed.
    pub async fn attach(
        info: &ConnInfo,
        state: &State,
        options: &Options,
        joined: JoinedTables,
    ) -> Result<Target, Error> {
        let settings = session_settings(options);
        let name = options.subscription.application_name("apply");
        let mut wire = Wire::connect(info, &name, client::Replication::Off, &settings).await?;
        if wire.version().major() >= 17 {
            wire.query("SET transaction_timeout = 0").await?;
        }
        if options.unconverted {
            wire.query("SET client_encoding TO 'SQL_ASCII'").await?;
        }
        let replica = become_replica(&mut wire, options.allow_triggers).await?;
        let progress = state.attach_origin(&mut wire).await?;
        let name = options.subscription.application_name("catalog");
        let session =
            client::connect(info, &name, &[("search_path", ""), ("idle_session_timeout", "0")]).await?;
        Ok(Target { wire, catalog: Catalog::new(session, joined, !replica), progress })
    }

    /// Its backends, for who looks whether they are heard of.
    #[must_use]
    pub fn backends(&self) -> Backends {
        let asked = Arc::clone(&self.catalog.asked);
        Backends { applying: self.wire.pid(), traffic: self.wire.traffic(), asked }
    }

    /// Everything up to here is on the target and flushed.
    #[must_use]
    pub fn progress(&self) -> Lsn {
        self.progress
    }
}

/// Sets `session_replication_role`; false where it may not be set and
/// triggers are allowed.
async fn become_replica(wire: &mut Wire, allow_triggers: bool) -> Result<bool, Error> {
    match wire.query("SET session_replication_role = replica").await {
        Ok(_) => Ok(true),
        // insufficient_privilege
        Err(error) if error.sqlstate() == Some("42501") && allow_triggers => Ok(false),
        Err(error) if error.sqlstate() == Some("42501") => Err(Kind::NotReplica.into()),
        Err(error) => Err(error.into()),
    }
}
