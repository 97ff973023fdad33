//! Where an attempt begins: what the memory has, what the kept catalogs allow, and a new look where
//! they do not.
//!
//! | memory | kept catalogs and slot | capture begins |
//! | --- | --- | --- |
//! | has captured up to `c` | fit the target | behind `c`, without a gap |
//! | any | are missing, lost, or of another history | behind a new look; what came before is a cut |
//!
//! A target may have been restored since. What is kept is doubted until WAL
//! has proved the history (see `proof`). Where that WAL is lost, the memory is emptied.
//!
//! A new look sees transactions that had committed by some position. Those do not come out of WAL,
//! so capture begins behind what was flushed after the look.

use std::fs;

use base::{Lsn, Oid, PgTimestamp};
use catalog::{Catalog, Look};
use client::{Replication, Session, SqlState, Wire};
use deletions::{Discarded, Landmark, Memory, Opened, Server};
use source::end::{LOOK_WAIT_MAX, SOURCE_SETTINGS, end_of_flushed, end_of_wal, flush, snapshot_session};
use source::segments::Lineage;
use source::slot::{self, SystemIdentity};
use wal_source::Restart;

use crate::condition::{Condition, Unfit};
use crate::error::Error;
use crate::handle::Retention;
use crate::settings::Settings;
use crate::slots::{Keeps, Slots, wait_for_shared};
use crate::started::{STARTED, started};

/// The target as an attempt finds it.
pub(crate) struct TargetEnd {
    pub(crate) session: Session,
    pub(crate) wire: Wire,
    pub(crate) identity: SystemIdentity,
    pub(crate) lineage: Lineage,
    /// When the server was started.
    pub(crate) started: PgTimestamp,
    server: Server,
    role: String,
    slots_max: i64,
}

/// Where capture begins.
pub(crate) struct Begun {
    pub(crate) restart: Restart,
    /// What keeps WAL from there on.
    pub(crate) keeps: Keeps,
    /// There is an own slot, whether it keeps that WAL or not.
    pub(crate) has_own_slot: bool,
    /// Every transaction that commits behind this comes out.
    pub(crate) from: Lsn,
    /// The record that WAL must have before anything is answered; `None` if that is known.
    pub(crate) landmark: Option<Landmark>,
}

const SERVER: &str = "\
SELECT pg_catalog.current_setting('wal_level'), pg_catalog.pg_is_in_recovery(),
       pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size')),
       (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()),
       CURRENT_USER::text, pg_catalog.current_setting('max_replication_slots')::int8,
       pg_catalog.current_setting('max_wal_senders')::int8";

const WALSENDERS: &str = "SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication";

/// Connects to the target, and finds out whether it can be captured.
pub(crate) async fn connect(retention: &Retention) -> Result<TargetEnd, Error> {
    let settings = retention.settings();
    let name = settings.subscription.application_name("deletions");
    let session = client::connect(&settings.target, &name, &SOURCE_SETTINGS).await?;
    let row = session.query_once(SERVER).await?;
    let wal_level: String = row.get(0);
    if row.get(1) {
        return Err(Error::unfit(Unfit::Standby));
    }
    if wal_level != "logical" {
        return Err(Error::unfit(Unfit::WalLevel(wal_level)));
    }
    let segment_size = row.get::<_, i64>(2).cast_unsigned();
    let database = Oid(row.get(3));
    let (role, senders_max): (String, i64) = (row.get(4), row.get(6));
    let wire = Wire::connect(&settings.target, &name, Replication::Database, &SOURCE_SETTINGS).await;
    let mut wire = match wire {
        Ok(wire) => wire,
        Err(error) => return Err(refused(&session, role, senders_max, error).await),
    };
    let started = started(&session).await?;
    let of_wire = wire.query(STARTED).await?;
    if of_wire.first().and_then(|row| row.first()?.as_deref()) != Some(started.0.to_string().as_str()) {
        return Err(Error::two_servers());
    }
    let identity = slot::identify_system(&mut wire).await?;
    let forks = slot::timeline_forks(&mut wire, identity.timeline).await?;
    let timeline_start = forks.iter().map(|fork| fork.end).max().unwrap_or(Lsn::INVALID);
    let wal_end = end_of_wal(&session).await?;
    let server = Server {
        system_id: identity.system_id,
        database,
        timeline: identity.timeline,
        timeline_start,
        wal_end,
        clock: session.clock().await?,
    };
    let lineage = Lineage { timeline: identity.timeline, forks, segment_size };
    Ok(TargetEnd { session, wire, identity, lineage, started, server, role, slots_max: row.get(5) })
}

/// Why the target lets no walsender begin. Its limit has the code of other limits on connections,
/// so the walsenders are counted.
async fn refused(session: &Session, role: String, senders_max: i64, error: client::Error) -> Error {
    let is = |code: SqlState| error.sqlstate() == Some(code.code());
    if is(SqlState::INSUFFICIENT_PRIVILEGE) {
        return Error::unfit(Unfit::NoReplication(role));
    }
    if is(SqlState::TOO_MANY_CONNECTIONS)
        && let Ok(row) = session.query_once(WALSENDERS).await
        && row.get::<_, i64>(0) >= senders_max
    {
        return Error::unfit(Unfit::NoSender(senders_max));
    }
    error.into()
}

/// Why no slot can be made. Where none is allowed at all, the server calls that a wrong state.
fn no_slot(target: &TargetEnd, error: source::Error) -> Error {
    let is = |code: SqlState| error.sqlstate() == Some(code.code());
    if is(SqlState::INSUFFICIENT_PRIVILEGE) {
        return Error::unfit(Unfit::NoReplication(target.role.clone()));
    }
    let max = target.slots_max;
    if is(SqlState::CONFIGURATION_LIMIT_EXCEEDED)
        || is(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) && max == 0
    {
        return Error::unfit(Unfit::NoSlot(max));
    }
    error.into()
}

/// What is known of deletions before this attempt.
struct Found {
    memory: Memory,
    /// The kept catalogs, and up to where everything is remembered; `None` without both.
    kept: Option<(Restart, Keeps, Lsn)>,
    /// Why there is a gap, where there is one.
    gap: Option<String>,
}

/// Opens the memory, and decides where capture begins.
pub(crate) async fn begin(retention: &Retention, target: &TargetEnd) -> Result<Begun, Error> {
    let settings = retention.settings();
    fs::create_dir_all(&settings.dir)?;
    wait_for_shared(settings, &target.session).await?;
    let slots = Slots::look(settings, &target.session).await?;
    let Found { mut memory, kept, gap } = open(retention, target, &slots)?;
    let own = state::own_origins(&*target.session, &settings.subscription)
        .await
        .map_err(|error| target.session.error(error))?;
    let landmark = memory.landmark().filter(|_| kept.is_some());
    if landmark.is_some() {
        memory.doubt();
    }
    retention.open_memory(memory, own);
    if let Some(why) = gap {
        retention.set_gap(why);
    }
    let (restart, keeps, from) = match kept {
        Some(kept) => kept,
        None => {
            retention.set_condition(Condition::Looking);
            look(settings, target, &slots).await?
        }
    };
    if let (Keeps::Shared, Some(shared)) = (keeps, &settings.shared_slot) {
        shared.kept.keep_from(restart.lsn());
        tracing::debug!(subscription = %settings.subscription, "slot {} keeps WAL for capture", shared.name);
    }
    // Read after WAL had reached that position.
    let clock = target.session.clock().await?;
    if let Some(memory) = retention.memory().as_mut() {
        memory.begin(from, clock);
    }
    retention.tell_begun(target.started);
    if landmark.is_none() {
        retention.tell_captured(from);
    }
    Ok(Begun { restart, keeps, has_own_slot: slots.has_own(), from, landmark })
}

/// Opens the memory. Where WAL cannot tell whether it is of the target's history, it is emptied. It
/// would not cover what came before the gap, either.
fn open(retention: &Retention, target: &TargetEnd, slots: &Slots) -> Result<Found, Error> {
    let settings = retention.settings();
    let (memory, opened) = Memory::open(&settings.memory_file(), target.server, settings.bounds)?;
    let discarded = |why: &str| {
        let why = format!("what was remembered before was discarded: {why}");
        tracing::warn!("what the target deleted before capture begins anew is not known: {why}");
        why
    };
    let anew = |memory, gap| Ok(Found { memory, kept: None, gap: Some(gap) });
    let captured = match opened {
        Opened::Resumed { captured, .. } => captured,
        // An attempt before this one may have emptied it, and failed.
        Opened::New => {
            let gap = retention.gap().unwrap_or_else(|| "capture had not begun before".to_owned());
            return anew(memory, gap);
        }
        Opened::Discarded(why) => return anew(memory, discarded(&why.to_string())),
    };
    let empty = |memory: Memory| {
        drop(memory);
        Memory::remove(&settings.memory_file())?;
        Memory::open(&settings.memory_file(), target.server, settings.bounds).map(|(memory, _)| memory)
    };
    if retention.take_disproved() {
        return anew(empty(memory)?, discarded(&Discarded::OtherHistory.to_string()));
    }
    let kept = kept(settings, target, slots).filter(|_| memory.landmark().is_some());
    if let Some((restart, keeps)) = kept {
        return Ok(Found { memory, kept: Some((restart, keeps, captured)), gap: None });
    }
    let slot = settings.shared_slot.as_ref().map_or_else(|| settings.slot(), |shared| shared.name.clone());
    let lost = "the target's WAL or the kept catalogs were lost";
    let why = format!("{lost}; keep slot {slot}, and see max_slot_wal_keep_size");
    anew(empty(memory)?, discarded(&why))
}

/// The kept catalogs, if a slot of the target has the WAL behind them.
fn kept(settings: &Settings, target: &TargetEnd, slots: &Slots) -> Option<(Restart, Keeps)> {
    let restart = Restart::open(&settings.catalogs_file()).ok()?;
    let is_of_history = match target.lineage.forks.iter().find(|fork| fork.timeline == restart.timeline) {
        Some(fork) => restart.is_within(fork.end),
        None => restart.timeline == target.identity.timeline,
    };
    let keeps = slots.covers(restart.lsn(), target.lineage.segment_size).filter(|_| is_of_history)?;
    Some((restart, keeps))
}

/// Looks at the catalogs, behind a slot that keeps WAL from before the look. Also returns where the
/// deletions begin that come out.
async fn look(
    settings: &Settings,
    target: &TargetEnd,
    slots: &Slots,
) -> Result<(Restart, Keeps, Lsn), Error> {
    let (name, session) = (settings.slot(), &target.session);
    let redo = slot::latest_redo(session).await?;
    let (keeps, redo) = if slots.is_shared_behind(redo) {
        (Keeps::Shared, redo)
    } else {
        // It may keep WAL for catalogs that are lost, or have lost the WAL for those that are kept.
        let refused = |error| no_slot(target, error);
        slot::drop_slot(session, &name).await.map_err(refused)?;
        (Keeps::Own, slot::create_physical_slot(session, &name).await.map_err(refused)?)
    };
    let looking = snapshot_session(&settings.target, &settings.subscription).await?;
    let look = Look { redo: Some(redo), wait_max: LOOK_WAIT_MAX };
    let looked = Catalog::look(std::slice::from_ref(&looking), &look).await;
    let catalog = looked.map_err(output::Error::from)?;
    // A crash of the target may take back unflushed transactions, which the look has seen.
    flush(session).await?;
    let seen = end_of_flushed(session).await?;
    let timeline = target.identity.timeline;
    let restart = Restart { slot: name, timeline, confirmed: seen, seen, catalog };
    restart.save(&settings.catalogs_file())?;
    Ok((restart, keeps, seen))
}
