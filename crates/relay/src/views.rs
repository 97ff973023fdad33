//! What `pg_replication_slots`, `pg_stat_replication` and `pg_stat_replication_slots` show to who
//! asks the relay: its own slots and streams.
//!
//! The rows go into the statement as JSON, and the publisher makes them rows of its own view's
//! type. So the columns are those of its major, and a column that the relay does not know is null.

use std::sync::Arc;

use base::{Lsn, PgTimestamp, quote_literal};
use listener::Place;
use serde_json::{Value, json};
use types::utc;

use crate::receiver::Received;
use crate::senders::{Senders, Stream};
use crate::shadow::shadow;
use crate::slots::{SlotShown, Slots};

/// The views that are shown.
const SLOTS: &str = "pg_replication_slots";
const SENDERS: &str = "pg_stat_replication";
const SLOT_STATISTICS: &str = "pg_stat_replication_slots";

/// What the views show. Clones are the same.
#[derive(Debug, Clone)]
pub struct Views {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    slots: Slots,
    senders: Senders,
    since: PgTimestamp,
    /// How much WAL there is, and how far a slot may be behind: see
    /// [`Retention`](crate::Retention).
    limit: Option<(Arc<Received>, u64)>,
}

impl Views {
    /// Views of these slots and streams.
    #[must_use]
    pub fn new(slots: Slots, senders: Senders) -> Views {
        Views { inner: Arc::new(Inner { slots, senders, since: PgTimestamp::now(), limit: None }) }
    }

    /// The same, beside a limit on how far slots may be behind what was received.
    pub(crate) fn limited(slots: Slots, senders: Senders, limit: Option<(Arc<Received>, u64)>) -> Views {
        Views { inner: Arc::new(Inner { slots, senders, since: PgTimestamp::now(), limit }) }
    }

    /// A client's statements with the relay's rows in place of the publisher's views; `None` if
    /// they name none of these.
    #[must_use]
    pub fn put_into(&self, sql: &str) -> Option<String> {
        // Nearly all statements end here.
        if !mentions(sql.as_bytes()) {
            return None;
        }
        shadow(sql, &|name| self.rows_of(name))
    }

    /// A query that has the rows of a view.
    fn rows_of(&self, view: &str) -> Option<String> {
        let Inner { slots, senders, since, limit } = &*self.inner;
        match view {
            SLOTS => {
                let limit = limit.as_ref().map(|(received, most)| (received.written(), *most));
                Some(rows(SLOTS, slots.shown().iter().map(|shown| slot(shown, limit)).collect()))
            }
            SENDERS => Some(protected_rows(senders.running().iter().map(stream).collect())),
            SLOT_STATISTICS => {
                let statistics = |slot: &SlotShown| {
                    let name = &slot.state.name;
                    let bytes = senders.bytes_of(name);
                    json!({"slot_name": name, "total_bytes": bytes, "stats_reset": utc(*since)})
                };
                Some(rows(SLOT_STATISTICS, slots.shown().iter().map(statistics).collect()))
            }
            _ => None,
        }
    }
}

/// Whether a part of one of the names is in it, which all have.
fn mentions(sql: &[u8]) -> bool {
    let has = |part: &[u8]| sql.windows(part.len()).any(|found| found.eq_ignore_ascii_case(part));
    has(b"replication")
}

fn rows(view: &str, rows: Vec<Value>) -> String {
    format!(
        "SELECT * FROM pg_catalog.jsonb_populate_recordset(NULL::pg_catalog.{view}, {}::pg_catalog.jsonb)",
        quote_literal(&Value::Array(rows).to_string())
    )
}

/// As the server does, details are shown to those who may read all statistics.
fn protected_rows(rows: Vec<Value>) -> String {
    format!(
        "SELECT v.* FROM pg_catalog.jsonb_array_elements({}::pg_catalog.jsonb) e, \
         LATERAL pg_catalog.jsonb_populate_record(NULL::pg_catalog.{SENDERS}, \
         CASE WHEN pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE') THEN e.value \
         ELSE pg_catalog.jsonb_build_object('pid', e.value->'pid', 'usesysid', e.value->'usesysid', \
         'usename', e.value->'usename') END) v",
        quote_literal(&Value::Array(rows).to_string())
    )
}

/// `limit`: how much WAL there is, and how many bytes of it a slot may be behind.
fn slot(slot: &SlotShown, limit: Option<(Lsn, u64)>) -> Value {
    let state = &slot.state;
    let safe_wal_size = limit.filter(|_| state.invalidated.is_none()).map(|(written, most)| {
        let behind = written.as_u64().saturating_sub(state.restart.as_u64());
        i128::from(most) - i128::from(behind)
    });
    let wal_status = match safe_wal_size {
        _ if state.invalidated.is_some() => "lost",
        Some(..0) => "unreserved",
        _ => "reserved",
    };
    json!({
        "slot_name": state.name,
        "plugin": "pgoutput",
        "slot_type": "logical",
        "datoid": state.database,
        "database": state.database_name,
        "temporary": slot.is_temporary,
        "active": slot.active.is_some(),
        "active_pid": slot.active,
        "restart_lsn": lsn(state.restart),
        "confirmed_flush_lsn": lsn(state.confirmed),
        "wal_status": wal_status,
        "safe_wal_size": safe_wal_size.map(|bytes| bytes.to_string()),
        "two_phase": state.two_phase_at.is_some(),
        "two_phase_at": state.two_phase_at.and_then(lsn),
        "inactive_since": slot.inactive_since.map(utc),
        "conflicting": false,
        "invalidation_reason": state.invalidated,
        "failover": state.failover,
        "synced": false,
    })
}

fn stream(stream: &Stream) -> Value {
    let shown = stream.sent.shown();
    let address = match stream.place {
        Place::Local => None,
        Place::Network { address, .. } => Some(address.to_string()),
    };
    let [write_lag, flush_lag, replay_lag] =
        shown.lags.map(|lag| lag.map(|lag| format!("{} microseconds", lag.as_micros())));
    json!({
        "pid": stream.pid,
        "usesysid": stream.user.1,
        "usename": stream.user.0,
        "application_name": stream.application_name,
        "client_addr": address,
        "client_port": if address.is_none() { json!(-1) } else { Value::Null },
        "backend_start": utc(stream.since),
        "state": if shown.has_caught_up { "streaming" } else { "catchup" },
        "sent_lsn": lsn(shown.sent),
        "write_lsn": lsn(shown.written),
        "flush_lsn": lsn(shown.flushed),
        "replay_lsn": lsn(shown.applied),
        "write_lag": write_lag,
        "flush_lag": flush_lag,
        "replay_lag": replay_lag,
        "sync_priority": 0,
        "sync_state": "async",
        "reply_time": shown.replied.map(utc),
    })
}

fn lsn(lsn: Lsn) -> Option<String> {
    lsn.is_valid().then(|| lsn.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::SlotState;

    #[test]
    fn the_bytes_that_a_slot_may_still_fall_behind() {
        let state = SlotState {
            name: "s".to_owned(),
            database: 5,
            database_name: "d".to_owned(),
            confirmed: Lsn::new(1_000),
            restart: Lsn::new(900),
            two_phase_at: None,
            failover: false,
            invalidated: None,
            left_at: None,
        };
        let shown = |state: &SlotState, limit| {
            let shown =
                SlotShown { state: state.clone(), is_temporary: false, active: None, inactive_since: None };
            let row = slot(&shown, limit);
            (row["wal_status"].as_str().unwrap().to_owned(), row["safe_wal_size"].clone())
        };
        assert_eq!(shown(&state, None), ("reserved".to_owned(), Value::Null));
        assert_eq!(shown(&state, Some((Lsn::new(1_100), 500))), ("reserved".to_owned(), json!("300")));
        assert_eq!(shown(&state, Some((Lsn::new(1_400), 500))), ("reserved".to_owned(), json!("0")));
        // Until the next look at it, as between two checkpoints of a server.
        assert_eq!(shown(&state, Some((Lsn::new(1_500), 500))), ("unreserved".to_owned(), json!("-100")));
        let lost = SlotState { invalidated: Some("wal_removed".to_owned()), ..state };
        assert_eq!(shown(&lost, Some((Lsn::new(1_500), 500))), ("lost".to_owned(), Value::Null));
    }
}
