//! Capture itself: WAL of the target in, deletions into the memory.
//!
//! Each block of WAL is decoded and recorded before the next one is taken. Every 100 ms the memory
//! commits. A position counts as captured once everything that committed up to there is recorded;
//! the catalogs for a restart follow what is durable.
//!
//! | ends | then |
//! | --- | --- |
//! | the connection, the server, the slot | tried again after a pause |
//! | decoding, or the kept catalogs | the same, with a new look, and a cut |
//! | WAL is of another history | the same, and what was remembered is discarded |
//! | the memory's files are damaged | they are removed, and capture begins anew |
//! | the target does not fit | tried again after a longer pause, and the condition says so |

use std::sync::Arc;
use std::time::Duration;

use base::{Lsn, PgTimestamp, Progress, Xid};
use client::Session;
use deletions::{Deletion, Kind, Landmark, Memory, RowKey, Tombstone, Value};
use output::{Deleted, DeletedWhat, DeletionDecoder, Publications};
use source::queue::queue;
use source::restart_lsn::RestartLsn;
use source::stream::{Heard, Stream, StreamOptions, What};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use txn::{Block, DirSpool, Input};
use wal_source::Keeper;

use crate::beginning::{self, Begun, TargetEnd};
use crate::condition::{Condition, Unfit};
use crate::error::Error;
use crate::handle::Retention;
use crate::identities::{Identities, root_of, wait_until_visible};
use crate::proof::Proof;
use crate::slots::{Keeps, Slots, drop_own};

/// Interval between commits of the memory. What was not committed is read again after a crash.
const COMMIT_INTERVAL: Duration = Duration::from_millis(100);
/// How often it is found out whether the slot of the other direction suffices by now.
const SLOTS_LOOKED_AT: Duration = Duration::from_secs(2);
/// The shortest and longest pause between two attempts.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Captures deletions until `stop` is cancelled. Its errors are in [`Retention::condition`].
pub async fn run(retention: Arc<Retention>, stop: CancellationToken) {
    let mut pause = PAUSE_MIN;
    while !stop.is_cancelled() {
        let began = Instant::now();
        let ended = tokio::select! {
            ended = attempt(&retention) => ended,
            () = stop.cancelled() => Ok(()),
        };
        let closed = retention.close();
        let Err(error) = ended.and(closed) else { continue };
        clean_up_after(&retention, &error);
        let condition = match error.as_unfit() {
            Some(unfit) => {
                keep_nothing_for(&retention, &unfit);
                Condition::Unfit(unfit)
            }
            None => Condition::Failed(base::with_causes(&error)),
        };
        if retention.condition() != condition {
            tracing::warn!(subscription = %retention.settings().subscription, "{}", base::with_causes(&error));
        }
        retention.set_condition(condition);
        pause = if began.elapsed() > PAUSE_MAX { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// A target that has nothing to capture need not keep WAL. All walsenders may be in use only for a
/// moment.
fn keep_nothing_for(retention: &Retention, unfit: &Unfit) {
    let is_brief = matches!(unfit, Unfit::NoSender(_));
    if let Some(shared) = retention.settings().shared_slot.as_ref().filter(|_| !is_brief) {
        shared.kept.keep_nothing();
    }
}

/// Removes the files that the next attempt cannot use.
fn clean_up_after(retention: &Retention, error: &Error) {
    let settings = retention.settings();
    if error.is_damaged_memory()
        && let Err(error) = Memory::remove(&settings.memory_file())
    {
        tracing::warn!("{}", base::with_causes(&error));
    }
    if error.is_other_history() {
        retention.disprove();
    }
    if error.has_lost_catalogs()
        && let Err(error) = std::fs::remove_file(settings.catalogs_file())
    {
        tracing::debug!("{}: {error}", settings.catalogs_file().display());
    }
}

async fn attempt(retention: &Arc<Retention>) -> Result<(), Error> {
    let target = beginning::connect(retention).await?;
    let begun = beginning::begin(retention, &target).await?;
    let settings = retention.settings();
    let TargetEnd { session, wire, lineage, identity, .. } = target;
    let Begun { restart, keeps, has_own_slot, from, landmark } = begun;
    let restart_lsn = Arc::<RestartLsn>::default();
    restart_lsn.advance(restart.lsn());
    let saved = restart.lsn();
    let keeper = Keeper::new(
        settings.catalogs_file(),
        (restart.slot, identity.timeline, restart.seen),
        Arc::clone(&restart_lsn),
        saved,
    );
    let database = restart.catalog.databases().first().map(|(oid, _)| *oid).unwrap_or_default();
    let rendering = types::Settings::new(session.version());
    let mut options = output::Options::new(database, Publications::EveryTable, from, rendering);
    let segment_size = lineage.segment_size;
    options.segment_size = segment_size;
    let own = state::own_origins(&*session, &settings.subscription).await;
    let own = own.map_err(|error| session.error(error))?;
    let own = own.into_iter().filter_map(|origin| u16::try_from(origin).ok()).collect();
    let spool = Box::new(DirSpool::open(settings.spool_dir())?);
    let decoder = DeletionDecoder::new(restart.catalog, options, own, spool)?;
    let proof =
        landmark.map(|landmark| Proof::new(decoder.position(), segment_size, landmark)).transpose()?;
    let progress = Progress::starting_at(from);
    let stream = StreamOptions {
        slot: (keeps == Keeps::Own).then(|| settings.slot()),
        start: decoder.position(),
        what: What::Wal { lineage, restart_lsn: Arc::clone(&restart_lsn) },
        status_interval: settings.status_interval,
        timeout: settings.timeout,
    };
    let mut stream = Stream::start(wire, stream).await?;
    retention.set_condition(Condition::Capturing);
    let (heard, (blocks, wal), stop) = (Heard::default(), queue(), CancellationToken::new());
    let capture = Capture {
        retention,
        session,
        decoder,
        proof,
        keeper,
        identities: Identities::default(),
        key: RowKey::default(),
        committed: Instant::now(),
        from,
        keeping: Keeping { keeps, has_own_slot, restart_lsn, segment_size, looked: None },
    };
    tokio::select! {
        ended = stream.run(&progress, &heard, &blocks, &stop) => {
            ended?;
            Err(Error::ended())
        }
        ended = capture.run(wal, &progress) => ended,
    }
}

struct Capture<'r> {
    retention: &'r Arc<Retention>,
    session: Session,
    decoder: DeletionDecoder,
    /// Until WAL has shown that it is of the memory's history.
    proof: Option<Proof>,
    keeper: Keeper,
    identities: Identities,
    key: RowKey,
    committed: Instant,
    /// Where this attempt began.
    from: Lsn,
    keeping: Keeping,
}

/// What keeps WAL, and from where it must.
struct Keeping {
    keeps: Keeps,
    has_own_slot: bool,
    restart_lsn: Arc<RestartLsn>,
    segment_size: u64,
    /// When the slots were looked at last.
    looked: Option<Instant>,
}

impl Keeping {
    /// Lets the shared slot follow capture, and drops an own slot that is not needed. Returns
    /// whether the next attempt can do without the one that this attempt uses.
    async fn look(&mut self, retention: &Retention, session: &Session) -> Result<bool, Error> {
        let settings = retention.settings();
        let Some(shared) = &settings.shared_slot else { return Ok(false) };
        let lsn = self.restart_lsn.lsn();
        if self.keeps == Keeps::Shared {
            shared.kept.keep_from(lsn);
        }
        let is_due = self.looked.is_none_or(|at| at.elapsed() >= SLOTS_LOOKED_AT);
        if !self.has_own_slot && self.keeps == Keeps::Shared || !is_due {
            return Ok(false);
        }
        self.looked = Some(Instant::now());
        if self.keeps == Keeps::Shared {
            self.has_own_slot = !drop_own(settings, session).await?;
            return Ok(false);
        }
        let slots = Slots::look(settings, session).await?;
        Ok(slots.covers(lsn, self.segment_size) == Some(Keeps::Shared))
    }
}

impl Capture<'_> {
    async fn run(mut self, mut wal: mpsc::Receiver<Block>, progress: &Progress) -> Result<(), Error> {
        loop {
            let due = self.committed + COMMIT_INTERVAL;
            match tokio::time::timeout_at(due, wal.recv()).await {
                Ok(Some(block)) => {
                    for input in &block.inputs {
                        let Input::Bytes(bytes) = input else { continue };
                        self.prove(bytes)?;
                        self.take(bytes).await?;
                    }
                }
                Ok(None) => return Err(Error::ended()),
                Err(_) => {}
            }
            let decoded = self.decoder.place().decoded;
            progress.advance_received(decoded);
            self.passed(decoded);
            if self.committed.elapsed() >= COMMIT_INTERVAL {
                self.commit(decoded, progress).await?;
            }
            self.keeper.look(self.decoder.place(), progress)?;
            if self.keeping.look(self.retention, &self.session).await? {
                return Ok(());
            }
        }
    }

    /// Looks for the landmark, until it is found.
    fn prove(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(proof) = &mut self.proof else { return Ok(()) };
        if proof.take(bytes)? {
            self.proof = None;
            if let Some(memory) = self.retention.memory().as_mut() {
                memory.prove();
            }
        }
        Ok(())
    }

    /// Decodes WAL, and records the deletions that come out.
    async fn take(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Capture { retention, session, decoder, identities, key, .. } = self;
        let mut recorded = 0;
        let mut deletions = decoder.push(bytes)?;
        while let Some(Deleted { what, xid, commit }) = deletions.next()? {
            let Some(kind) = name(session, identities, (&what, xid), key).await? else { continue };
            let tombstone =
                Tombstone { lsn: commit.end_lsn, xid, origin: commit.origin, time: commit.time, kind };
            if let Some(memory) = retention.memory().as_mut() {
                memory.record(&Deletion { key, tombstone })?;
                recorded += 1;
            }
        }
        if recorded > 0 {
            retention.tell_recorded(recorded);
        }
        Ok(())
    }

    /// Everything that committed up to `decoded` is recorded.
    fn passed(&self, decoded: Lsn) {
        if let Some(memory) = self.retention.memory().as_mut() {
            memory.passed(decoded, self.keeper.saved());
            if let Some((lsn, crc)) = self.decoder.last_record().filter(|_| decoded >= memory.captured()) {
                memory.mark(Landmark { lsn, crc });
            }
            if self.proof.is_none() {
                self.retention.tell_captured(memory.captured());
            }
        }
    }

    /// Makes durable what was recorded up to `decoded`. Before decoding has come to where this
    /// attempt began there is nothing, and no landmark.
    async fn commit(&mut self, decoded: Lsn, progress: &Progress) -> Result<(), Error> {
        self.committed = Instant::now();
        if decoded < self.from || self.proof.is_some() {
            return Ok(());
        }
        let retention = Arc::clone(self.retention);
        let committing = tokio::task::spawn_blocking(move || match retention.memory().as_mut() {
            Some(memory) => memory.commit(PgTimestamp::now()).map(|()| memory.committed()),
            None => Ok(Lsn::INVALID),
        });
        // Only a panic breaks it, which the memory's lock then shows.
        let committed = committing.await.map_err(std::io::Error::other)??;
        // Catalogs are kept from before the landmark, so that reading finds it.
        progress.advance_flushed(committed);
        self.committed = Instant::now();
        Ok(())
    }
}

/// Makes `key` the key of what is gone. `None` if the target does not have the table any more, so
/// that nobody can miss a row of it.
///
/// A row that cannot be named is remembered as one of its table. So are the rows of a partition
/// that was emptied alone, because nobody knows which partition a missing row was in.
async fn name(
    session: &Session,
    identities: &mut Identities,
    (what, xid): (&DeletedWhat, Xid),
    key: &mut RowKey,
) -> Result<Option<Kind>, Error> {
    let (named, table) = match what {
        DeletedWhat::Row { table, .. } | DeletedWhat::Unnamed(table) => {
            let Some(named) = identities.of(session, table, xid).await? else { return Ok(None) };
            (named, table)
        }
        DeletedWhat::Table(relation) => {
            wait_until_visible(session, xid).await?;
            let Some(root) = root_of(session, *relation).await? else { return Ok(None) };
            let is_whole = root == *relation;
            *key = if is_whole { RowKey::of_emptied(root, root) } else { RowKey::of_unnamed(root) };
            return Ok(Some(if is_whole { Kind::Truncate } else { Kind::Unnamed }));
        }
    };
    if let (DeletedWhat::Row { values, is_key_change, .. }, Some(identity)) = (what, &named.identity) {
        let values =
            named.places.iter().map(|place| values[*place].as_deref().map_or(Value::Null, Value::Binary));
        match identity.write(named.root, values, key) {
            Ok(()) => return Ok(Some(if *is_key_change { Kind::KeyChange } else { Kind::Delete })),
            Err(malformed) => {
                let (schema, table) = &table.name;
                tracing::warn!("a deletion of \"{schema}\".\"{table}\" has no key: {malformed}");
            }
        }
    }
    *key = RowKey::of_unnamed(named.root);
    Ok(Some(Kind::Unnamed))
}
