//! A target that is ready for applying: its sessions, their settings, and the fences that they
//! passed.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64};

use client::{ConnInfo, SqlState, Wire};
use schedule::CommittedRanges;
use state::{JoinedTables, State, is_without_room};

use crate::applier::Options;
use crate::error::{Error, Kind};
use crate::lock_watch::LockWatch;
use crate::mapping::Mappings;

/// A target that is attached and ready for applying.
pub struct Target {
    pub(crate) sessions: Sessions,
    pub(crate) mappings: Mappings,
    /// The committed ranges that it had when it was attached.
    pub(crate) reached: CommittedRanges,
}

/// The sessions that apply; at least one.
pub(crate) struct Sessions {
    pub(crate) wires: Vec<Wire>,
    /// The process ids of their backends on the target.
    pub(crate) pids: Vec<i32>,
    pub(crate) lock_watch: LockWatch,
    /// The backend whose answer the applier waits for.
    pub(crate) applying: Arc<AtomicI32>,
}

/// The backends of a target.
#[derive(Debug, Clone)]
pub struct Backends {
    /// The backend that applies; with several, the one whose turn it is to commit.
    pub applying: Arc<AtomicI32>,
    /// For each session that applies, the bytes sent and received.
    pub traffic: Vec<Arc<AtomicU64>>,
    /// The backend that is asked for a table's description at present; 0 for none.
    pub asked: Arc<AtomicI32>,
}

/// Settings of a session that applies. They leave the server's planner no way to find a row but by
/// an index, whatever the statistics say ([`plan::search`] has the argument). Costs are the ones
/// that we count on, not ones set for other queries.
pub(crate) fn session_settings(synchronous_commit: &str) -> Vec<(&str, &str)> {
    vec![
        ("search_path", ""),
        ("row_security", "off"),
        ("synchronous_commit", synchronous_commit),
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
        ("enable_tidscan", "on"),
        ("enable_partition_pruning", "on"),
        ("enable_indexonlyscan", "off"),
        ("enable_bitmapscan", "off"),
        ("enable_seqscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
        ("enable_material", "off"),
        ("enable_memoize", "off"),
        ("enable_sort", "off"),
        ("enable_incremental_sort", "off"),
        ("max_parallel_workers_per_gather", "0"),
        ("seq_page_cost", "1"),
        ("random_page_cost", "1"),
        ("cpu_tuple_cost", "0.01"),
        ("cpu_index_tuple_cost", "0.005"),
        ("cpu_operator_cost", "0.0025"),
        ("jit", "off"),
        ("tcp_keepalives_idle", "30"),
        ("tcp_keepalives_interval", "10"),
        ("tcp_keepalives_count", "6"),
    ]
}

impl Target {
    /// Connects the sessions that apply, passes the fence of their origins, and reads how far they
    /// came. If the target has no room for all of them, there are fewer.
    ///
    /// # Errors
    /// The session may not be a replica and triggers are not allowed, an origin cannot be attached,
    /// or a connection failed.
    pub async fn attach(
        info: &ConnInfo,
        state: &State,
        options: &Options,
        joined: JoinedTables,
    ) -> Result<Target, Error> {
        let (mut wire, replica) = session(info, options).await?;
        if options.is_relaxed(options.workers) {
            state.make_ahead().await?;
        }
        let reached = state.attach_origin(&mut wire).await?;
        let name = options.subscription.application_name("catalog");
        // This session records that a table is left out. The record must be durable before anything
        // behind it is confirmed.
        let settings = [
            ("search_path", ""),
            ("idle_session_timeout", "0"),
            ("synchronous_commit", "on"),
            ("default_transaction_read_only", "off"),
        ];
        let mut mappings = Mappings::new(client::connect(info, &name, &settings).await?, joined, !replica);
        mappings.types.clone_from(&options.types);
        let needing = options.conflict_rules.needing_commit_times().next();
        if needing.is_some() || options.detect_origin_differs {
            match (knows_writers(&mut wire).await?, needing) {
                (true, _) => mappings.tells_writers = Some(options.subscription.clone()),
                (false, Some(rule)) => return Err(Kind::NoCommitTimes { rule }.into()),
                (false, None) => {}
            }
        }
        mappings.copied_from.clone_from(&options.copied_from);
        let mut pids = vec![backend(&mut wire).await?];
        let mut wires = vec![wire];
        let wanted = options.sessions();
        while wires.len() < wanted {
            match worker(info, state, options, &pids).await {
                Ok((wire, pid)) => {
                    wires.push(wire);
                    pids.push(pid);
                }
                Err(error) if is_without_room(error.sqlstate()) => {
                    tracing::warn!(
                        "pgsluice applies with {} of {wanted} sessions, because the target has no room for more: \
                         {error}",
                        wires.len()
                    );
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        let sql = "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'deadlock_timeout'";
        let timeout = wires[0].query(sql).await?.into_iter().flatten().next().flatten();
        let name = options.subscription.application_name("watch");
        let lock_watch = LockWatch::new(info.clone(), name, timeout.as_deref());
        let applying = Arc::new(AtomicI32::new(pids[0]));
        Ok(Target { sessions: Sessions { wires, pids, lock_watch, applying }, mappings, reached })
    }

    /// The backends of the target, for callers that check whether they answer.
    #[must_use]
    pub fn backends(&self) -> Backends {
        Backends {
            applying: Arc::clone(&self.sessions.applying),
            traffic: self.sessions.wires.iter().map(Wire::traffic).collect(),
            asked: Arc::clone(&self.mappings.asked),
        }
    }

    /// The ranges that are on the target and flushed.
    #[must_use]
    pub fn reached(&self) -> &CommittedRanges {
        &self.reached
    }
}

/// Connects a session that applies, and tells whether it is a replica.
async fn session(info: &ConnInfo, options: &Options) -> Result<(Wire, bool), Error> {
    let settings = session_settings(&options.synchronous_commit);
    let name = options.subscription.application_name("apply");
    let mut wire = Wire::connect(info, &name, client::Replication::Off, &settings).await?;
    if wire.version().major() >= 17 {
        wire.query("SET transaction_timeout = 0").await?;
    }
    if options.unconverted {
        wire.query("SET client_encoding TO 'SQL_ASCII'").await?;
    }
    let replica = become_replica(&mut wire, options.allow_triggers).await?;
    Ok((wire, replica))
}

/// Connects another session that applies, beside those of `pids`; returns its backend too.
async fn worker(
    info: &ConnInfo,
    state: &State,
    options: &Options,
    pids: &[i32],
) -> Result<(Wire, i32), Error> {
    let (mut wire, _) = session(info, options).await?;
    let pid = backend(&mut wire).await?;
    state.attach_worker(&mut wire, pids.len(), &[pids, &[pid]].concat()).await?;
    Ok((wire, pid))
}

/// Whether the target knows who wrote a row last.
async fn knows_writers(wire: &mut Wire) -> Result<bool, Error> {
    let rows = wire.query("SHOW track_commit_timestamp").await?;
    Ok(rows.into_iter().flatten().next().flatten().as_deref() == Some("on"))
}

/// Asks the session itself for its backend: a proxy between may have reported another one.
async fn backend(wire: &mut Wire) -> Result<i32, Error> {
    let rows = wire.query("SELECT pg_catalog.pg_backend_pid()").await?;
    let pid = rows.into_iter().flatten().next().flatten().and_then(|pid| pid.parse().ok());
    Ok(pid.unwrap_or_else(|| wire.pid()))
}

/// Sets `session_replication_role`. Returns false where it may not be set and triggers are allowed.
async fn become_replica(wire: &mut Wire, allow_triggers: bool) -> Result<bool, Error> {
    match wire.query("SET session_replication_role = replica").await {
        Ok(_) => Ok(true),
        Err(error) if error.sqlstate() == Some(SqlState::INSUFFICIENT_PRIVILEGE.code()) && allow_triggers => {
            Ok(false)
        }
        Err(error) if error.sqlstate() == Some(SqlState::INSUFFICIENT_PRIVILEGE.code()) => {
            Err(Kind::NotReplica.into())
        }
        Err(error) => Err(error.into()),
    }
}
