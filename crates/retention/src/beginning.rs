//! Where an attempt begins: what the memory has, what the kept catalogs allow, and a new look where
//! they do not.
//!
//! | memory | kept catalogs and slot | capture begins |
//! | --- | --- | --- |
//! | has captured up to `c` | fit the target | behind `c`, without a gap |
//! | any | are missing, lost, or of another history | behind a new look; what came before is a cut |
//!
//! A new look sees transactions that had committed by some position. Those do not come out of WAL,
//! so capture begins behind what was flushed after the look.

use std::fs;

use base::{Lsn, Oid, PgTimestamp};
use catalog::{Catalog, Look};
use client::{Replication, Session, Wire};
use deletions::{Memory, Opened, Server};
use source::end::{LOOK_WAIT_MAX, SOURCE_SETTINGS, end_of_flushed, end_of_wal, flush, snapshot_session};
use source::segments::Lineage;
use source::slot::{self, SystemIdentity};
use wal_source::Restart;

use crate::condition::{Condition, Unfit};
use crate::error::Error;
use crate::handle::Retention;
use crate::settings::Settings;
use crate::slots::{Keeps, Slots, wait_for_shared};

/// The target as an attempt finds it.
pub(crate) struct TargetEnd {
    pub(crate) session: Session,
    pub(crate) wire: Wire,
    pub(crate) identity: SystemIdentity,
    pub(crate) lineage: Lineage,
    server: Server,
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
}

const SERVER: &str = "\
SELECT pg_catalog.current_setting('wal_level'), pg_catalog.pg_is_in_recovery(),
       pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size')),
       (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())";

// In microseconds since PostgreSQL's epoch.
const CLOCK: &str = "\
SELECT (EXTRACT(epoch FROM pg_catalog.clock_timestamp() - '2000-01-01 00:00:00+00'::timestamptz) * 1000000)::int8";

/// What the server's clock says.
pub(crate) async fn clock(session: &Session) -> Result<PgTimestamp, Error> {
    let row = session.query_once(CLOCK).await?;
    Ok(PgTimestamp(row.get(0)))
}

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
    let mut wire = Wire::connect(&settings.target, &name, Replication::Database, &SOURCE_SETTINGS).await?;
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
        clock: clock(&session).await?,
    };
    let lineage = Lineage { timeline: identity.timeline, forks, segment_size };
    Ok(TargetEnd { session, wire, identity, lineage, server })
}

/// Opens the memory, and decides where capture begins.
pub(crate) async fn begin(retention: &Retention, target: &TargetEnd) -> Result<Begun, Error> {
    let settings = retention.settings();
    fs::create_dir_all(&settings.dir)?;
    let (mut memory, opened) = Memory::open(&settings.memory_file(), target.server, settings.bounds)?;
    let own = state::own_origins(&*target.session, &settings.subscription)
        .await
        .map_err(|error| target.session.error(error))?;
    memory.set_own_origins(own.into_iter().filter_map(|origin| u16::try_from(origin).ok()).collect());
    if let Opened::Discarded(why) = opened {
        tracing::warn!("what was known of the target's deletions was discarded: {why}");
    }
    wait_for_shared(settings, &target.session).await?;
    let slots = Slots::look(settings, &target.session).await?;
    let kept = match opened {
        Opened::Resumed { captured, .. } => {
            kept(settings, target, &slots).map(|(restart, keeps)| (restart, keeps, captured))
        }
        Opened::New | Opened::Discarded(_) => None,
    };
    *retention.memory() = Some(memory);
    match (opened, &kept) {
        (_, Some(_)) => {}
        (Opened::New, None) => retention.set_gap("capture had not begun before".to_owned()),
        (Opened::Discarded(why), None) => {
            retention.set_gap(format!("what was remembered before was discarded: {why}"));
        }
        (Opened::Resumed { .. }, None) => {
            let why = format!(
                "the target's WAL or the kept catalogs were lost; keep slot {}, and see max_slot_wal_keep_size",
                settings.shared_slot.as_ref().map_or_else(|| settings.slot(), |shared| shared.name.clone())
            );
            tracing::warn!("what the target deleted before capture begins anew is not known: {why}");
            retention.set_gap(why);
        }
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
    let clock = clock(&target.session).await?;
    if let Some(memory) = retention.memory().as_mut() {
        memory.begin(from, clock);
    }
    retention.tell_captured(from);
    Ok(Begun { restart, keeps, has_own_slot: slots.has_own(), from })
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
        slot::drop_slot(session, &name).await?;
        (Keeps::Own, slot::create_physical_slot(session, &name).await?)
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
