//! The databases that the relay decodes: their anchors, and the forms that are asked of them.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{Lsn, Oid, PgVersion, with_causes};
use catalog::{Catalog, Look};
use client::ConnInfo;
use output::{Decoder, Options, Publications, RefusedTable};
use tokio::sync::oneshot;
use track::{Cursor, Limits, TrackMemory};
use txn::DirSpool;
use types::Settings;
use wal_dir::Readers;

use crate::anchors::Anchors;
use crate::decoding::{Decoding, SharedAnchors, Starting};
use crate::feed::{FormHandle, FormId};
use crate::form::Form;
use crate::told::{Told, code};

/// How long a look waits for transactions that began before it.
const LOOK_MAX: Duration = Duration::from_secs(300);
/// Between two anchors.
const ANCHOR_DISTANCE: u64 = 16 << 20;
/// Slots that begin again within this number of bytes of WAL are decoded for together.
pub(crate) const GROUP_BYTES: u64 = 64 << 20;
/// `logical_decoding_work_mem` for each form.
const WORK_MEM_BYTES: usize = 16 << 20;

/// Limits of the forms' tracks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackLimits {
    /// Of all tracks together; see [`TrackMemory`].
    pub memory_bytes: usize,
    /// Of each; see [`Limits::file_bytes`].
    pub file_bytes: u64,
}

impl Default for TrackLimits {
    fn default() -> TrackLimits {
        TrackLimits { memory_bytes: 96 << 20, file_bytes: 1 << 30 }
    }
}

/// All databases. There is one for a relay.
pub struct Databases {
    dir: PathBuf,
    publisher: ConnInfo,
    version: PgVersion,
    segment_size: u64,
    decoding: Decoding,
    /// Of all tracks.
    memory: TrackMemory,
    /// Of each track.
    file_bytes: u64,
    known: Mutex<HashMap<Oid, SharedAnchors>>,
    forms: Mutex<Forms>,
    /// Only one look at a time: it waits for transactions anyway.
    looking: tokio::sync::Mutex<()>,
    /// How many slots are being made in a database.
    held: Arc<Mutex<HashMap<Oid, usize>>>,
    /// What was received is being taken back: no form begins.
    is_left: AtomicBool,
}

/// While it lives, no anchor of its database goes, and no WAL.
pub(crate) struct Hold {
    held: Arc<Mutex<HashMap<Oid, usize>>>,
    database: Oid,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.get_mut(&self.database) {
            *count -= 1;
        }
        held.retain(|_, count| *count > 0);
    }
}

#[derive(Default)]
struct Forms {
    /// More than one of a key while a subscriber that was far behind catches up.
    known: HashMap<FormKey, Vec<(FormId, FormHandle)>>,
    /// For directories of spools.
    next: u64,
}

impl Forms {
    /// Enters the form that has come farthest of those from which a subscriber gets all that it
    /// lacks, and that have come to `near`. It would wait longer for the others than for a form of
    /// its own.
    fn enter(&self, key: &FormKey, confirmed: Lsn, near: Lsn) -> Option<(Cursor, FormHandle)> {
        let live = self.known.get(key)?.iter().map(|(_, handle)| handle);
        let mut live: Vec<&FormHandle> =
            live.filter(|handle| handle.end.why().is_none() && handle.position.get() >= near).collect();
        live.sort_by_key(|handle| std::cmp::Reverse(handle.position.get()));
        live.into_iter().find_map(|handle| Some((handle.entrance.enter(confirmed).ok()?, handle.clone())))
    }
}

/// What makes two subscribers' streams the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FormKey {
    /// The database.
    pub database: Oid,
    /// pgoutput's options.
    pub form: Form,
    /// From here on, prepared transactions come when they are prepared.
    pub two_phase_at: Option<Lsn>,
}

/// Decoding of a database could not begin: its first look goes back to a checkpoint before the WAL
/// that is here.
fn lacks_wal(name: &str, needed: Lsn, readers: &Readers, why: &dyn std::fmt::Display) -> Told {
    let message = format!(
        "the relay has WAL from {} on, and the publisher's last checkpoint before a look at database \"{name}\" began \
         at {needed}: {why}",
        readers.oldest()
    );
    Told::new(code::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
        .hint("Run CHECKPOINT on the publisher, and try again.")
}

impl Databases {
    /// Finds what `dir` has of earlier processes.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn open(
        dir: &Path,
        publisher: ConnInfo,
        (version, segment_size): (PgVersion, u64),
        decoding: Decoding,
        limits: TrackLimits,
    ) -> io::Result<Databases> {
        let anchors = dir.join("anchors");
        std::fs::create_dir_all(&anchors)?;
        // Nothing in it outlives a process.
        let spool = dir.join("spool");
        if spool.exists() {
            std::fs::remove_dir_all(&spool)?;
        }
        std::fs::create_dir_all(&spool)?;
        let mut known = HashMap::new();
        for entry in std::fs::read_dir(&anchors)? {
            let entry = entry?;
            if let Some(oid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                let anchors = Anchors::open(&entry.path(), ANCHOR_DISTANCE)?;
                known.insert(Oid(oid), Arc::new(Mutex::new(anchors)));
            }
        }
        Ok(Databases {
            dir: dir.to_owned(),
            publisher,
            version,
            segment_size,
            decoding,
            memory: TrackMemory::new(limits.memory_bytes),
            file_bytes: limits.file_bytes,
            known: Mutex::new(known),
            forms: Mutex::default(),
            looking: tokio::sync::Mutex::new(()),
            held: Arc::default(),
            is_left: AtomicBool::new(false),
        })
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Oid, SharedAnchors>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forms(&self) -> MutexGuard<'_, Forms> {
        self.forms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that a slot is being made in a database.
    pub(crate) fn hold(&self, database: Oid) -> Hold {
        let held = Arc::clone(&self.held);
        *held.lock().unwrap_or_else(PoisonError::into_inner).entry(database).or_default() += 1;
        Hold { held, database }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<Oid, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at a database's catalogs, unless it is known. Slots can be made there afterwards.
    ///
    /// # Errors
    /// The catalogs cannot be looked at or kept.
    pub async fn prepare(&self, database: Oid, name: &str, readers: &Readers) -> Result<(), Told> {
        // A look at another database must not delay this one.
        if self.known().contains_key(&database) {
            return Ok(());
        }
        let _one = self.looking.lock().await;
        if self.known().contains_key(&database) {
            return Ok(());
        }
        let failed = |error: &dyn std::error::Error| {
            let message = format!(
                "the relay cannot look at the catalogs of database \"{name}\": {}",
                with_causes(error)
            );
            Told::new(code::CONNECTION_FAILURE, message)
        };
        let info = self.publisher.with_dbname(name);
        let session =
            client::connect(&info, "pgsluice relay look", &[]).await.map_err(|error| failed(&error))?;
        let look = Look { redo: None, wait_max: LOOK_MAX };
        let mut catalog = Catalog::look(&[session], &look).await.map_err(|error| failed(&error))?;
        if !readers.can_read(catalog.needs_from()) {
            // The relay began to receive, or the publisher was promoted, after its last checkpoint.
            let session = client::connect(&info, "pgsluice relay look", &[]).await;
            let session = session.map_err(|error| failed(&error))?;
            let checkpoint = session.batch_execute("CHECKPOINT").await;
            checkpoint
                .map_err(|error| lacks_wal(name, catalog.needs_from(), readers, &session.error(error)))?;
            catalog = Catalog::look(&[session], &look).await.map_err(|error| failed(&error))?;
        }
        if !readers.can_read(catalog.needs_from()) {
            return Err(lacks_wal(name, catalog.needs_from(), readers, &"so does its latest one"));
        }
        let dir = self.dir.join("anchors").join(database.0.to_string());
        let kept = || -> io::Result<Anchors> {
            let mut anchors = Anchors::open(&dir, ANCHOR_DISTANCE)?;
            anchors.add(&catalog, catalog.looked())?;
            Ok(anchors)
        };
        let anchors = kept().map_err(|error| failed(&error))?;
        self.known().insert(database, Arc::new(Mutex::new(anchors)));
        Ok(())
    }

    /// Where a slot of a database begins again that has confirmed everything before `confirmed`.
    #[must_use]
    pub fn restart_of(&self, database: Oid, confirmed: Lsn) -> Option<Lsn> {
        let anchors = Arc::clone(self.known().get(&database)?);
        let anchors = anchors.lock().unwrap_or_else(PoisonError::into_inner);
        anchors.restart_of(confirmed)
    }

    /// Lets a subscriber enter a form that has confirmed everything before `confirmed`. If nobody
    /// else reads the form, or not from there, or is far behind, it is decoded for what ends behind
    /// the first position of `from`, from the anchor at the second one (rule L4).
    ///
    /// # Errors
    /// The catalogs of the anchor cannot be read, or pgoutput's options contradict one another.
    pub fn enter(
        &self,
        key: &FormKey,
        confirmed: Lsn,
        from: (Lsn, Lsn),
    ) -> Result<(Cursor, FormHandle), Told> {
        let near = Lsn::new(from.1.as_u64().saturating_sub(GROUP_BYTES));
        self.enter_near(key, confirmed, from, near)
    }

    /// [`Databases::enter`] for a subscriber whose form has failed before it had anything to send:
    /// perhaps at what ended before `confirmed`. So nothing is decoded of that now. `restart` is
    /// the anchor of the subscriber's own slot.
    ///
    /// # Errors
    /// As [`Databases::enter`].
    pub fn enter_alone(
        &self,
        key: &FormKey,
        confirmed: Lsn,
        restart: Lsn,
    ) -> Result<(Cursor, FormHandle), Told> {
        self.enter_near(key, confirmed, (confirmed, restart), confirmed)
    }

    fn enter_near(
        &self,
        key: &FormKey,
        confirmed: Lsn,
        from: (Lsn, Lsn),
        near: Lsn,
    ) -> Result<(Cursor, FormHandle), Told> {
        let mut forms = self.forms();
        if self.is_left.load(Ordering::Relaxed) {
            return Err(Told::new(code::CONNECTION_FAILURE, "the publisher has failed over; try again"));
        }
        if let Some(entered) = forms.enter(key, confirmed, near) {
            return Ok(entered);
        }
        forms.next += 1;
        let spool = self.dir.join("spool").join(forms.next.to_string());
        // What was prepared before two-phase commit began comes late, and must not be streamed.
        let begins_at = from.0.max(key.two_phase_at.unwrap_or_default()).min(confirmed);
        let starting = self.form(key, begins_at, from.1, &spool)?;
        // Before it is decoded: a track keeps only what somebody needs.
        let cursor =
            starting.handle().entrance.enter(confirmed).map_err(|_| {
                Told::new(code::INTERNAL_ERROR, format!("the relay cannot begin at {confirmed}"))
            })?;
        let (id, handle) = starting.start();
        // What ends before that, nobody needs.
        handle.position.came_to(from.1);
        forms.known.entry(key.clone()).or_default().push((id, handle.clone()));
        Ok((cursor, handle))
    }

    /// See [`Decoding::refused`].
    pub(crate) fn refused(&self, form: FormId) -> oneshot::Receiver<Vec<RefusedTable>> {
        self.decoding.refused(form)
    }

    /// A form that decodes what ends at or behind `begins_at`, from the anchor at `restart`.
    fn form(&self, key: &FormKey, begins_at: Lsn, restart: Lsn, spool: &Path) -> Result<Starting, Told> {
        let failed = |error: &dyn std::error::Error| Told::new(code::INTERNAL_ERROR, with_causes(error));
        let anchors = self.known().get(&key.database).cloned().ok_or_else(|| {
            Told::new(code::INTERNAL_ERROR, format!("no catalogs are kept of database {}", key.database.0))
        })?;
        let catalog = {
            let anchors = anchors.lock().unwrap_or_else(PoisonError::into_inner);
            anchors.load(restart).map_err(|error| failed(&error))?
        };
        let Form { proto_version, publications, binary, streaming, messages, .. } = key.form.clone();
        let publications = Publications::Named(publications);
        let mut options = Options::new(key.database, publications, begins_at, Settings::new(self.version));
        options.proto_version = proto_version;
        options.binary = binary;
        options.streaming = streaming.into();
        options.messages = messages;
        options.origin = key.form.origin();
        options.two_phase_at = key.two_phase_at;
        options.work_mem_bytes = WORK_MEM_BYTES;
        options.segment_size = self.segment_size;
        options.read_by_many = true;
        let spool = DirSpool::open(spool.to_owned()).map_err(|error| failed(&error))?.with_own_dir();
        let decoder = Decoder::new(catalog, options, Box::new(spool)).map_err(|error| failed(&error))?;
        let limits = Limits {
            memory: self.memory.clone(),
            file_bytes: self.file_bytes,
            chapter_bytes: 256 << 10,
            dir: self.dir.join("spool"),
        };
        Ok(self.decoding.add(decoder, (key.database, anchors), begins_at, limits))
    }

    /// Whether an anchor knows of WAL behind `fork`.
    pub(crate) fn have_more_than(&self, fork: Lsn) -> bool {
        let known: Vec<SharedAnchors> = self.known().values().cloned().collect();
        known
            .iter()
            .any(|anchors| anchors.lock().unwrap_or_else(PoisonError::into_inner).greatest() > Some(fork))
    }

    /// Forms may begin again after [`Databases::leave_behind`].
    pub(crate) fn begin_again(&self) {
        self.is_left.store(false, Ordering::Relaxed);
    }

    /// Ends all forms, and removes anchors that know of WAL behind `fork`. No form begins until
    /// [`Databases::begin_again`].
    ///
    /// # Errors
    /// A file cannot be removed.
    pub(crate) async fn leave_behind(&self, fork: Lsn) -> io::Result<()> {
        let forms = {
            let mut forms = self.forms();
            self.is_left.store(true, Ordering::Relaxed);
            std::mem::take(&mut *forms)
        };
        // Directories of spools are never used again.
        self.forms().next = forms.next;
        let why = "the publisher has failed over";
        for (_, handle) in forms.known.values().flatten() {
            handle.end.set(why.to_owned());
        }
        self.decoding.end_all(why).await;
        let known: Vec<SharedAnchors> = self.known().values().cloned().collect();
        for anchors in known {
            anchors.lock().unwrap_or_else(PoisonError::into_inner).remove_behind(fork)?;
        }
        self.known()
            .retain(|_, anchors| anchors.lock().unwrap_or_else(PoisonError::into_inner).least().is_some());
        Ok(())
    }

    /// Ends forms that nobody reads, and removes anchors that no slot names: those before `least`
    /// of each database, and all of a database without a slot. Returns the least place from which
    /// WAL is needed for any of them.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn tidy(&self, least: impl Fn(Oid) -> Option<Lsn>) -> io::Result<Option<Lsn>> {
        let mut forms = self.forms();
        let stays = |(id, handle): &(FormId, FormHandle)| {
            let ends = handle.entrance.cursors() == 0;
            if ends {
                // Also for one that is decoded alone, of which the pass does not know.
                handle.end.set("nobody reads it".to_owned());
                self.decoding.remove(*id);
            }
            !ends
        };
        let known = &mut forms.known;
        known.retain(|_, forms| {
            forms.retain(&stays);
            !forms.is_empty()
        });
        let read: HashSet<Oid> = known.keys().map(|key| key.database).collect();
        drop(forms);
        // Locked to the end: who makes a slot holds first, and then looks for anchors.
        let held = self.held();
        let mut needed = None;
        // The first look at a database needs WAL from a checkpoint on that may not be the latest.
        if held.keys().any(|oid| !self.known().contains_key(oid)) {
            needed = Some(Lsn::INVALID);
        }
        let mut gone = Vec::new();
        let known: Vec<(Oid, SharedAnchors)> =
            self.known().iter().map(|(oid, anchors)| (*oid, Arc::clone(anchors))).collect();
        for (oid, anchors) in known {
            let mut anchors = anchors.lock().unwrap_or_else(PoisonError::into_inner);
            if !held.contains_key(&oid) {
                match least(oid) {
                    Some(least) => anchors.remove_before(least)?,
                    None if !read.contains(&oid) => {
                        anchors.remove_all()?;
                        gone.push(oid);
                    }
                    None => {}
                }
            }
            needed = needed.into_iter().chain(anchors.least()).min();
        }
        self.known().retain(|oid, _| !gone.contains(oid));
        Ok(needed)
    }
}
