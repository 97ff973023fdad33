//! Replication slots of a relay or of a server: who reads them, and what they hold.

use base::error_reference::{Doing, Entry, entry};
use client::{ConnInfo, Replication, Session, Wire};
use proto::frame::ServerError;
use serde::Serialize;

/// The sessions' application name.
const APPLICATION_NAME: &str = "pgsluice slots";

/// One slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Slot {
    /// Its name.
    pub name: String,
    /// The database whose changes it has; none for a physical slot.
    pub database: Option<String>,
    /// It goes with its connection.
    pub temporary: bool,
    /// Prepared transactions come when they are prepared.
    pub two_phase: bool,
    /// Who reads it.
    pub reader: Option<Reader>,
    /// Everything before was confirmed (`confirmed_flush_lsn`).
    pub confirmed: Option<String>,
    /// Decoding begins again here (`restart_lsn`).
    pub restart: Option<String>,
    /// Bytes of WAL behind the confirmed position.
    pub behind_bytes: Option<i64>,
    /// Bytes of WAL that are kept for it.
    pub held_bytes: Option<i64>,
    /// No other slot needs older WAL.
    pub holds_most: bool,
    /// Since when nobody reads it.
    pub inactive_since: Option<String>,
    /// Why it cannot be used any more.
    pub invalidation: Option<String>,
}

/// Who reads a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reader {
    /// The connection's process.
    pub pid: i32,
    /// Its role.
    pub user: Option<String>,
    /// What it calls itself.
    pub application_name: Option<String>,
    /// Where it is.
    pub address: Option<String>,
    /// `streaming`, `catchup` or another state of the stream.
    pub state: Option<String>,
}

impl Slot {
    /// Why the slot holds what it holds, in a few words.
    #[must_use]
    pub fn reason(&self) -> String {
        if let Some(why) = &self.invalidation {
            return format!("cannot be used any more ({why}): drop it");
        }
        let Some(reader) = &self.reader else {
            let since = self.inactive_since.as_deref().map(|since| format!(" since {since}"));
            return format!("nobody reads it{}", since.unwrap_or_default());
        };
        match reader.state.as_deref() {
            Some("streaming") => "is level, or waits for its subscriber".to_owned(),
            Some("catchup") => "is sent what it lacks".to_owned(),
            Some(state) => state.to_owned(),
            None => "is read".to_owned(),
        }
    }
}

/// What `error` was about.
#[derive(Debug)]
pub struct Error {
    doing: String,
    cause: client::Error,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "could not {}", self.doing)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

fn failed(doing: &str) -> impl FnOnce(client::Error) -> Error {
    move |cause| Error { doing: doing.to_owned(), cause }
}

/// Every way in which a command about slots fails.
#[must_use]
pub fn error_reference() -> [Entry<Error>; 1] {
    let cause = ServerError::new("ERROR", "55006", "replication slot \"s\" is active for PID 4711");
    entry(
        Doing::Relaying,
        "A command about slots fails",
        failed("drop slot \"s\"")(cause.into()),
        "The relay's words say why. Here a subscriber reads the slot.",
        "Repair what they name, and repeat `pgsluice slots`. `pgsluice slots list` shows who reads a slot.",
        &[],
    )
}

/// All slots, by name. Columns that older majors do not have are null through JSON.
const LIST: &str = "
SELECT s.slot_name::text, s.database::text, s.temporary,
       coalesce((pg_catalog.to_jsonb(s)->>'two_phase')::boolean, false),
       s.active_pid, r.usename::text, r.application_name, r.client_addr::text, r.state,
       s.confirmed_flush_lsn::text, s.restart_lsn::text,
       pg_catalog.pg_wal_lsn_diff(here.lsn, s.confirmed_flush_lsn)::bigint,
       pg_catalog.pg_wal_lsn_diff(here.lsn, s.restart_lsn)::bigint,
       coalesce(s.restart_lsn = min(s.restart_lsn) OVER (), false),
       pg_catalog.to_jsonb(s)->>'inactive_since',
       coalesce(pg_catalog.to_jsonb(s)->>'invalidation_reason',
                CASE WHEN s.wal_status = 'lost' THEN 'wal_status = lost' END)
  FROM pg_replication_slots s
  LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid,
       (SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                    ELSE pg_catalog.pg_current_wal_lsn() END AS lsn) here
 ORDER BY s.slot_name";

/// The slots of a relay or a server.
///
/// # Errors
/// It cannot be asked.
pub async fn list(place: &ConnInfo) -> Result<Vec<Slot>, Error> {
    let session: Session = client::connect(place, APPLICATION_NAME, &[]).await.map_err(failed("connect"))?;
    let rows = session.query(LIST, &[]).await;
    let rows = rows.map_err(|error| failed("list the slots")(session.error(error)))?;
    let slot = |row: &tokio_postgres::Row| Slot {
        name: row.get(0),
        database: row.get(1),
        temporary: row.get(2),
        two_phase: row.get(3),
        reader: row.get::<_, Option<i32>>(4).map(|pid| Reader {
            pid,
            user: row.get(5),
            application_name: row.get(6),
            address: row.get(7),
            state: row.get(8),
        }),
        confirmed: row.get(9),
        restart: row.get(10),
        behind_bytes: row.get(11),
        held_bytes: row.get(12),
        holds_most: row.get(13),
        inactive_since: row.get(14),
        invalidation: row.get(15),
    };
    Ok(rows.iter().map(slot).collect())
}

/// Makes a logical slot of pgoutput. Returns its consistent point.
///
/// # Errors
/// It cannot be made.
pub async fn create(place: &ConnInfo, name: &str, two_phase: bool) -> Result<String, Error> {
    let mut wire = connect(place).await?;
    let options = match (wire.version().major(), two_phase) {
        (15.., true) => "(TWO_PHASE, SNAPSHOT 'nothing')",
        (15.., false) => "(SNAPSHOT 'nothing')",
        (_, true) => "TWO_PHASE NOEXPORT_SNAPSHOT",
        (_, false) => "NOEXPORT_SNAPSHOT",
    };
    let command = format!("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput {options}", base::quote_ident(name));
    let rows = wire.query(&command).await.map_err(failed(&format!("make slot \"{name}\"")))?;
    let point = rows.into_iter().next().and_then(|row| row.into_iter().nth(1).flatten());
    Ok(point.unwrap_or_default())
}

/// Drops a slot; with `wait`, once nobody reads it any more.
///
/// # Errors
/// It cannot be dropped.
pub async fn drop(place: &ConnInfo, name: &str, wait: bool) -> Result<(), Error> {
    let mut wire = connect(place).await?;
    let wait = if wait { " WAIT" } else { "" };
    let command = format!("DROP_REPLICATION_SLOT {}{wait}", base::quote_ident(name));
    wire.query(&command).await.map(|_| ()).map_err(failed(&format!("drop slot \"{name}\"")))
}

async fn connect(place: &ConnInfo) -> Result<Wire, Error> {
    let wire = Wire::connect(place, APPLICATION_NAME, Replication::Database, &[]).await;
    wire.map_err(failed("connect for replication"))
}
