//! The relay's replication slots, and what survives of them.
//!
//! Each slot has a file, which is replaced as a whole. A slot names an anchor (rule L2): the place
//! from which decoding begins again. The confirmed position is kept now and then, so after a crash
//! it may be older than what the subscriber knows; subscribers name their own position.
//!
//! A slot is used by one connection at a time. A temporary slot goes with its connection, and has
//! no file.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{Lsn, Oid, PgTimestamp};
use serde::{Deserialize, Serialize};

use crate::create::check_name;
use crate::told::{Told, code};

const ENDING: &str = ".json";
/// `invalidation_reason`, as the server has it.
const WAL_REMOVED: &str = "wal_removed";
const IDLE_TIMEOUT: &str = "idle_timeout";

/// What is kept of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotState {
    /// Its name.
    pub name: String,
    /// The database whose changes it has.
    pub database: u32,
    /// That database's name when the slot was made.
    pub database_name: String,
    /// Everything before was confirmed (`confirmed_flush_lsn`).
    #[serde(with = "lsn")]
    pub confirmed: Lsn,
    /// Decoding begins again here (`restart_lsn`).
    #[serde(with = "lsn")]
    pub restart: Lsn,
    /// Prepared transactions are sent when they are prepared, from this position on.
    #[serde(with = "lsn::optional", default)]
    pub two_phase_at: Option<Lsn>,
    /// Standbys are to keep a copy of it.
    #[serde(default)]
    pub failover: bool,
    /// Why it cannot be used any more, as `invalidation_reason` has it.
    #[serde(default)]
    pub invalidated: Option<String>,
    /// The publisher has left its timeline here, and the slot's subscriber has not come back since.
    #[serde(with = "lsn::optional", default)]
    pub left_at: Option<Lsn>,
}

/// How positions are written: as the server does.
mod lsn {
    use base::Lsn;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(lsn)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Lsn, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }

    pub(super) mod optional {
        use super::{Deserialize, Deserializer, Lsn, Serializer, de};

        pub(in super::super) fn serialize<S: Serializer>(
            lsn: &Option<Lsn>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            match lsn {
                Some(lsn) => serializer.collect_str(lsn),
                None => serializer.serialize_none(),
            }
        }

        pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<Lsn>, D::Error> {
            let text = Option::<String>::deserialize(deserializer)?;
            text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
        }
    }
}

/// All slots of a relay. Clones are the same slots.
#[derive(Debug, Clone)]
pub struct Slots {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    /// The publisher's major, whose errors clients are told.
    major: u32,
    slots: Mutex<BTreeMap<String, Entry>>,
}

#[derive(Debug, Clone)]
struct Entry {
    state: SlotState,
    is_temporary: bool,
    /// The connection that uses it.
    active: Option<u32>,
    /// Since when none does; the relay's start at the earliest.
    inactive_since: Option<PgTimestamp>,
    /// What its file says.
    kept: Option<SlotState>,
    /// The subscriber has said that it has everything before, or was sent it in a stream of this
    /// process that has ended.
    sent: Lsn,
}

impl Entry {
    /// The subscriber is asked when it comes again.
    fn leave(&mut self, fork: Lsn) {
        self.state.left_at = Some(self.state.left_at.map_or(fork, |other| other.min(fork)));
    }
}

/// When a slot is invalidated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// `max_slot_wal_keep_size`: bytes of WAL behind which a slot may be; `None`: any number.
    pub max_slot_wal_keep_bytes: Option<u64>,
    /// `idle_replication_slot_timeout`: how long a slot may have no reader; `None`: for any time.
    pub idle_replication_slot_timeout: Option<Duration>,
}

/// A slot that a connection uses. Dropping it lets others use it; a temporary one goes.
#[derive(Debug)]
pub struct ActiveSlot {
    inner: Arc<Inner>,
    name: String,
    pid: u32,
}

/// A slot as a view shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotShown {
    /// What it is.
    pub state: SlotState,
    /// It goes with its connection.
    pub is_temporary: bool,
    /// The connection that uses it.
    pub active: Option<u32>,
    /// Since when none does; the relay's start at the earliest.
    pub inactive_since: Option<PgTimestamp>,
}

impl Slots {
    /// Reads the slots that are kept in `dir`, which is made if there is none. `major` is the
    /// publisher's.
    ///
    /// # Errors
    /// The directory or one of the files cannot be read; it is named.
    pub fn open(dir: &Path, major: u32) -> io::Result<Slots> {
        let named = |path: &Path, error: &dyn std::fmt::Display| {
            io::Error::other(format!("{}: {error}", path.display()))
        };
        fs::create_dir_all(dir).map_err(|error| named(dir, &error))?;
        let mut slots = BTreeMap::new();
        for entry in fs::read_dir(dir).map_err(|error| named(dir, &error))? {
            let path = entry.map_err(|error| named(dir, &error))?.path();
            if path.extension().is_none_or(|ending| ending != "json") {
                continue;
            }
            let text = fs::read(&path).map_err(|error| named(&path, &error))?;
            let state: SlotState = serde_json::from_slice(&text).map_err(|error| named(&path, &error))?;
            let (kept, inactive_since) = (Some(state.clone()), Some(PgTimestamp::now()));
            slots.insert(
                state.name.clone(),
                Entry { state, is_temporary: false, active: None, inactive_since, kept, sent: Lsn::INVALID },
            );
        }
        Ok(Slots { inner: Arc::new(Inner { dir: dir.to_owned(), major, slots: Mutex::new(slots) }) })
    }

    /// Makes a slot, which the connection `pid` uses. It is durable when this returns.
    ///
    /// # Errors
    /// There is one of that name, no slot may have it, or its file cannot be written.
    pub fn create(&self, state: SlotState, is_temporary: bool, pid: u32) -> Result<ActiveSlot, Told> {
        check_name(&state.name, self.inner.major)?;
        let mut slots = self.inner.slots();
        let name = state.name.clone();
        if slots.contains_key(&name) {
            return Err(Told::new(
                code::DUPLICATE_OBJECT,
                format!("replication slot \"{name}\" already exists"),
            ));
        }
        let mut entry = Entry {
            state,
            is_temporary,
            active: Some(pid),
            inactive_since: None,
            kept: None,
            sent: Lsn::INVALID,
        };
        if !is_temporary {
            self.inner.keep(&mut entry)?;
        }
        slots.insert(name.clone(), entry);
        Ok(ActiveSlot { inner: Arc::clone(&self.inner), name, pid })
    }

    /// Lets the connection `pid` use a slot of this database. Its subscriber goes on from `start`,
    /// where it has everything before; zero says that it does not know.
    ///
    /// # Errors
    /// There is no such slot, another connection uses it, or it cannot be used any more: perhaps
    /// because the publisher has left its timeline before that place since the subscriber was here.
    /// Or its file cannot be written.
    pub fn acquire(&self, name: &str, database: Oid, pid: u32, start: Lsn) -> Result<ActiveSlot, Told> {
        let mut slots = self.inner.slots();
        let entry = found(&mut slots, name)?;
        if let Some(other) = entry.active {
            return Err(in_use(name, other));
        }
        if entry.state.database != database.0 {
            let message = format!("replication slot \"{name}\" was not created in this database");
            return Err(Told::new(code::OBJECT_NOT_IN_PREREQUISITE_STATE, message));
        }
        self.inner.goes_on_from(entry, start)?;
        entry.active = Some(pid);
        entry.inactive_since = None;
        Ok(ActiveSlot { inner: Arc::clone(&self.inner), name: name.to_owned(), pid })
    }

    /// Removes a slot that no other connection than `pid` uses.
    ///
    /// # Errors
    /// There is none, another connection uses it, or its file cannot be removed. In the second
    /// case, it can be tried again later (`WAIT`): see [`Slots::user`].
    pub fn remove(&self, name: &str, pid: u32) -> Result<(), Told> {
        let mut slots = self.inner.slots();
        let entry = found(&mut slots, name)?;
        if let Some(other) = entry.active.filter(|other| *other != pid) {
            return Err(in_use(name, other));
        }
        if !entry.is_temporary {
            self.inner.unlink(name)?;
        }
        slots.remove(name);
        Ok(())
    }

    /// What is known of a slot; `None` without one of that name.
    pub(crate) fn state(&self, name: &str) -> Option<SlotState> {
        Some(self.inner.slots().get(name)?.state.clone())
    }

    /// The slots that no connection uses, each with its database.
    pub(crate) fn unused(&self) -> Vec<(String, u32)> {
        let slots = self.inner.slots();
        let unused = slots.iter().filter(|(_, entry)| entry.active.is_none());
        unused.map(|(name, entry)| (name.clone(), entry.state.database)).collect()
    }

    /// The connection that uses a slot, if the slot is there.
    #[must_use]
    pub fn user(&self, name: &str) -> Option<u32> {
        self.inner.slots().get(name)?.active
    }

    /// Changes a slot that no connection uses, and keeps it.
    ///
    /// # Errors
    /// There is none, a connection uses it, or its file cannot be written.
    pub fn alter(&self, name: &str, change: impl FnOnce(&mut SlotState)) -> Result<(), Told> {
        let mut slots = self.inner.slots();
        let entry = found(&mut slots, name)?;
        if let Some(other) = entry.active {
            return Err(in_use(name, other));
        }
        change(&mut entry.state);
        if entry.is_temporary { Ok(()) } else { self.inner.keep(entry) }
    }

    /// All slots, by name.
    #[must_use]
    pub fn shown(&self) -> Vec<SlotShown> {
        let shown = |entry: &Entry| SlotShown {
            state: entry.state.clone(),
            is_temporary: entry.is_temporary,
            active: entry.active,
            inactive_since: entry.inactive_since,
        };
        self.inner.slots().values().map(shown).collect()
    }

    /// Invalidates slots that are too far behind `written`, or that nobody has read for too long.
    /// Returns their names, each with the reason.
    pub(crate) fn invalidate(&self, retention: Retention, written: Lsn) -> Vec<(String, String)> {
        let now = PgTimestamp::now();
        let mut slots = self.inner.slots();
        let mut invalidated = Vec::new();
        for (name, entry) in slots.iter_mut().filter(|(_, entry)| entry.state.invalidated.is_none()) {
            let behind = written.as_u64().saturating_sub(entry.state.restart.as_u64());
            let idle = entry.inactive_since.map(|since| now.0.saturating_sub(since.0).unsigned_abs());
            if retention.max_slot_wal_keep_bytes.is_some_and(|most| behind > most) {
                entry.state.invalidated = Some(WAL_REMOVED.to_owned());
                let limit = "max_slot_wal_keep_size";
                invalidated.push((name.clone(), format!("it is {behind} bytes of WAL behind ({limit})")));
            } else if let Some(most) = retention.idle_replication_slot_timeout
                && idle.is_some_and(|idle| u128::from(idle) > most.as_micros())
            {
                entry.state.invalidated = Some(IDLE_TIMEOUT.to_owned());
                let limit = "idle_replication_slot_timeout";
                invalidated
                    .push((name.clone(), format!("nobody has read it for {} s ({limit})", most.as_secs())));
            }
        }
        invalidated
    }

    /// Invalidates slots whose subscribers were sent more than what comes before `fork`, which the
    /// publisher does not have any more. `running` says how far those were sent that are read now.
    /// Of the others, each subscriber is asked when it comes: see [`ActiveSlot::goes_on_from`].
    ///
    /// Returns the names of those invalidated, each with the reason.
    pub(crate) fn leave_behind(&self, fork: Lsn, running: &[(String, Lsn)]) -> Vec<(String, String)> {
        let mut slots = self.inner.slots();
        let mut invalidated = Vec::new();
        for (name, entry) in slots.iter_mut().filter(|(_, entry)| entry.state.invalidated.is_none()) {
            let now = running.iter().filter(|(of, _)| of == name).map(|(_, sent)| *sent);
            let sent = now.chain([entry.sent, entry.state.confirmed]).max().unwrap_or_default();
            if sent > fork {
                let why = format!(
                    "the publisher left its timeline at {fork}; the subscriber was sent WAL up to {sent}, and has confirmed {}",
                    entry.state.confirmed
                );
                entry.state.invalidated = Some(why.clone());
                invalidated.push((name.clone(), why));
            } else {
                entry.leave(fork);
            }
        }
        invalidated
    }

    /// Notes that the publisher left its timeline at `fork`, unless the subscriber of a slot has
    /// more than what comes before it: then nothing is noted, and the answer is false. Streams go
    /// on: what they had was before.
    pub(crate) fn pass(&self, fork: Lsn) -> bool {
        let mut slots = self.inner.slots();
        let has_more =
            |entry: &Entry| entry.state.invalidated.is_none() && entry.sent.max(entry.state.confirmed) > fork;
        if slots.values().any(has_more) {
            return false;
        }
        for entry in slots.values_mut().filter(|entry| entry.active.is_none()) {
            entry.leave(fork);
        }
        true
    }

    /// Keeps every slot that has moved. One that cannot be kept does not keep others from it.
    ///
    /// # Errors
    /// A file cannot be written; the first of them.
    pub fn keep_all(&self) -> Result<(), Told> {
        let mut slots = self.inner.slots();
        let kept = slots.values_mut().filter(|entry| !entry.is_temporary).map(|entry| self.inner.keep(entry));
        kept.fold(Ok(()), Result::and)
    }

    /// The least place from which a slot that can be used may begin again, by what its file says.
    /// What comes before is not needed (rule L2, point 3).
    #[must_use]
    pub fn least_restart(&self) -> Option<Lsn> {
        self.least(|_| true)
    }

    /// The same for the slots of a database.
    #[must_use]
    pub fn least_restart_in(&self, database: Oid) -> Option<Lsn> {
        self.least(|state| state.database == database.0)
    }

    /// Where one decoding begins that serves all slots of a database which begin again at or up to
    /// `distance` bytes before `restart`: the least of their places, and the least of what they
    /// have confirmed (rule L4).
    pub(crate) fn group_of(
        &self,
        database: Oid,
        (confirmed, restart): (Lsn, Lsn),
        distance: u64,
    ) -> (Lsn, Lsn) {
        let near = Lsn::new(restart.as_u64().saturating_sub(distance));
        let slots = self.inner.slots();
        let is_near = |state: &&SlotState| {
            let is_usable = state.database == database.0 && state.invalidated.is_none();
            is_usable && near <= state.restart && state.restart <= restart
        };
        slots.values().map(|entry| &entry.state).filter(is_near).fold((confirmed, restart), |least, state| {
            (least.0.min(state.confirmed), least.1.min(state.restart))
        })
    }

    fn least(&self, counts: impl Fn(&SlotState) -> bool) -> Option<Lsn> {
        let slots = self.inner.slots();
        let needed = |entry: &Entry| {
            let state = if entry.is_temporary { &entry.state } else { entry.kept.as_ref()? };
            (state.invalidated.is_none() && counts(state)).then_some(state.restart)
        };
        slots.values().filter_map(needed).min()
    }
}

fn found<'a>(slots: &'a mut BTreeMap<String, Entry>, name: &str) -> Result<&'a mut Entry, Told> {
    slots.get_mut(name).ok_or_else(|| {
        Told::new(code::UNDEFINED_OBJECT, format!("replication slot \"{name}\" does not exist"))
    })
}

/// As a server of `major` says that a slot was invalidated.
fn unusable(state: &SlotState, major: u32) -> Result<(), Told> {
    let Some(why) = &state.invalidated else { return Ok(()) };
    let name = &state.name;
    let (message, detail) = match major {
        18.. => (
            format!("can no longer access replication slot \"{name}\""),
            format!("This replication slot has been invalidated due to \"{why}\"."),
        ),
        _ if why == WAL_REMOVED => (
            format!("can no longer get changes from replication slot \"{name}\""),
            "This slot has been invalidated because it exceeded the maximum reserved size.".to_owned(),
        ),
        // Only later servers have another reason.
        _ => (
            format!("can no longer get changes from replication slot \"{name}\""),
            format!("This slot has been invalidated due to \"{why}\"."),
        ),
    };
    Err(Told::new(code::OBJECT_NOT_IN_PREREQUISITE_STATE, message).detail(detail))
}

fn in_use(name: &str, pid: u32) -> Told {
    Told::new(code::OBJECT_IN_USE, format!("replication slot \"{name}\" is active for PID {pid}"))
}

impl Inner {
    fn slots(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}{ENDING}"))
    }

    /// See [`Slots::acquire`].
    fn goes_on_from(&self, entry: &mut Entry, start: Lsn) -> Result<(), Told> {
        unusable(&entry.state, self.major)?;
        entry.sent = entry.sent.max(start);
        let Some(fork) = entry.state.left_at else { return Ok(()) };
        let before = entry.state.clone();
        entry.state.left_at = None;
        if start > fork {
            entry.state.invalidated = Some(format!(
                "the publisher left its timeline at {fork}; the subscriber has WAL up to {start}, and has confirmed {}",
                entry.state.confirmed
            ));
        }
        // Before anything is sent: later, its place is on the new timeline.
        if !entry.is_temporary
            && let Err(told) = self.keep(entry)
        {
            if entry.state.invalidated.is_none() {
                entry.state = before;
            }
            return Err(told);
        }
        unusable(&entry.state, self.major)
    }

    /// Writes a slot's file, unless it says the same.
    fn keep(&self, entry: &mut Entry) -> Result<(), Told> {
        if entry.kept.as_ref() == Some(&entry.state) {
            return Ok(());
        }
        let path = self.path(&entry.state.name);
        let bytes = serde_json::to_vec_pretty(&entry.state).map_err(io::Error::from);
        let written = bytes.and_then(|bytes| catalog::replace_file(&path, &bytes));
        written.map_err(|error| io_error("write", &path, &error))?;
        entry.kept = Some(entry.state.clone());
        Ok(())
    }

    fn unlink(&self, name: &str) -> Result<(), Told> {
        let path = self.path(name);
        let removed = || -> io::Result<()> {
            fs::remove_file(&path)?;
            fs::File::open(&self.dir)?.sync_all()
        };
        removed().map_err(|error| io_error("remove", &path, &error))
    }
}

fn io_error(doing: &str, path: &Path, error: &io::Error) -> Told {
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => code::DISK_FULL,
        _ => code::IO_ERROR,
    };
    Told::new(code, format!("could not {doing} file \"{}\": {error}", path.display()))
}

impl ActiveSlot {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it goes with its connection.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        self.with(|entry| entry.is_temporary).unwrap_or(false)
    }

    /// Does something with the slot, unless it was removed. Another one may have its name then.
    fn with<T>(&self, act: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let mut slots = self.inner.slots();
        slots.get_mut(&self.name).filter(|entry| entry.active == Some(self.pid)).map(act)
    }

    /// What it is now; `None` if it was removed.
    #[must_use]
    pub fn state(&self) -> Option<SlotState> {
        self.with(|entry| entry.state.clone())
    }

    /// Whether it may be read: it is there, and was not invalidated.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.with(|entry| entry.state.invalidated.is_none()).unwrap_or(false)
    }

    /// Notes that everything before `confirmed` was confirmed, and that decoding may begin again at
    /// `restart`. Neither ever falls.
    pub fn advance(&self, confirmed: Lsn, restart: Lsn) {
        self.with(|entry| {
            entry.state.confirmed = entry.state.confirmed.max(confirmed);
            entry.state.restart = entry.state.restart.max(restart);
        });
    }

    /// Notes that everything before `lsn` was sent.
    pub(crate) fn was_sent(&self, lsn: Lsn) {
        self.with(|entry| entry.sent = entry.sent.max(lsn));
    }

    /// Notes that the subscriber goes on from `start`, as [`Slots::acquire`] does for a slot that
    /// no connection uses.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn goes_on_from(&self, start: Lsn) -> Result<(), Told> {
        self.with(|entry| self.inner.goes_on_from(entry, start)).unwrap_or(Ok(()))
    }

    /// Asks for two-phase commit from `at` on, and keeps that. Asking again changes nothing.
    ///
    /// # Errors
    /// The slot's file cannot be written.
    pub fn use_two_phase(&self, at: Lsn) -> Result<(), Told> {
        let kept = self.with(|entry| {
            entry.state.two_phase_at.get_or_insert(at);
            if entry.is_temporary { Ok(()) } else { self.inner.keep(entry) }
        });
        kept.unwrap_or(Ok(()))
    }

    /// Keeps it if it has moved.
    ///
    /// # Errors
    /// Its file cannot be written.
    pub fn keep(&self) -> Result<(), Told> {
        let kept = self.with(|entry| if entry.is_temporary { Ok(()) } else { self.inner.keep(entry) });
        kept.unwrap_or(Ok(()))
    }
}

impl Drop for ActiveSlot {
    fn drop(&mut self) {
        if let Err(error) = self.keep() {
            tracing::warn!("replication slot \"{}\" is not kept as it is now: {error}", self.name);
        }
        let leave = |entry: &mut Entry| {
            entry.active = None;
            entry.inactive_since = Some(PgTimestamp::now());
        };
        if self.with(leave).is_some() {
            let mut slots = self.inner.slots();
            if slots.get(&self.name).is_some_and(|entry| entry.is_temporary && entry.active.is_none()) {
                slots.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATABASE: Oid = Oid(16_384);

    fn state(name: &str) -> SlotState {
        SlotState {
            name: name.to_owned(),
            database: DATABASE.0,
            database_name: "d".to_owned(),
            confirmed: Lsn::new(200),
            restart: Lsn::new(100),
            two_phase_at: None,
            failover: false,
            invalidated: None,
            left_at: None,
        }
    }

    fn code(result: Result<impl Sized, Told>) -> (String, String) {
        let told = result.err().expect("an error");
        (told.0.code.clone(), told.0.message.clone())
    }

    #[test]
    fn l4_slots_that_are_near_one_another_begin_together() {
        let dir = tempfile::tempdir().unwrap();
        let slots = Slots::open(dir.path(), 18).unwrap();
        let at = |name: &str, restart: u64, confirmed: u64| {
            let (restart, confirmed) = (Lsn::new(restart), Lsn::new(confirmed));
            drop(slots.create(SlotState { restart, confirmed, ..state(name) }, false, 1).unwrap());
        };
        at("far", 10, 20);
        at("near", 1_000, 1_500);
        at("own", 1_050, 1_700);
        at("later", 1_100, 1_200);
        let group = |confirmed, restart| {
            let (confirmed, restart) =
                slots.group_of(DATABASE, (Lsn::new(confirmed), Lsn::new(restart)), 100);
            (confirmed.as_u64(), restart.as_u64())
        };
        assert_eq!(group(1_700, 1_050), (1_500, 1_000));
        assert_eq!(group(20, 10), (20, 10));
        assert_eq!(group(1_200, 1_100), (1_200, 1_000));
    }

    #[test]
    fn a_slot_survives_and_never_falls() {
        let dir = tempfile::tempdir().unwrap();
        let slots = Slots::open(dir.path(), 18).unwrap();
        let slot = slots.create(state("s"), false, 7).unwrap();
        assert_eq!(Slots::open(dir.path(), 18).unwrap().shown()[0].state, state("s"), "it is durable");
        slot.advance(Lsn::new(0x1_0000_0300), Lsn::new(150));
        slot.advance(Lsn::new(5), Lsn::new(5));
        assert_eq!(slots.least_restart(), Some(Lsn::new(100)), "by what the file says");
        slot.use_two_phase(Lsn::new(300)).unwrap();
        slot.use_two_phase(Lsn::new(400)).unwrap();
        drop(slot);
        assert_eq!(slots.least_restart(), Some(Lsn::new(150)));
        let expected = SlotState {
            confirmed: Lsn::new(0x1_0000_0300),
            restart: Lsn::new(150),
            two_phase_at: Some(Lsn::new(300)),
            ..state("s")
        };
        assert_eq!(Slots::open(dir.path(), 18).unwrap().shown()[0].state, expected);
        slots.remove("s", 7).unwrap();
        assert_eq!(Slots::open(dir.path(), 18).unwrap().shown(), []);
    }

    #[test]
    fn one_connection_uses_a_slot() {
        let dir = tempfile::tempdir().unwrap();
        let slots = Slots::open(dir.path(), 18).unwrap();
        let slot = slots.create(state("s"), false, 7).unwrap();
        let in_use = ("55006".to_owned(), "replication slot \"s\" is active for PID 7".to_owned());
        assert_eq!(code(slots.acquire("s", DATABASE, 8, Lsn::INVALID)), in_use);
        assert_eq!(code(slots.remove("s", 8)), in_use);
        assert_eq!(code(slots.alter("s", |_| {})), in_use);
        assert_eq!(code(slots.create(state("s"), true, 8)).0, "42710");
        drop(slot);
        assert_eq!(code(slots.acquire("s", Oid(5), 8, Lsn::INVALID)).0, "55000");
        let slot = slots.acquire("s", DATABASE, 8, Lsn::INVALID).unwrap();
        assert_eq!(slots.user("s"), Some(8));
        drop(slot);
        slots.alter("s", |state| state.invalidated = Some("wal_removed".to_owned())).unwrap();
        assert_eq!(slots.least_restart(), None, "it holds nothing any more");
        assert_eq!(code(slots.acquire("s", DATABASE, 8, Lsn::INVALID)).0, "55000");
        assert_eq!(code(slots.acquire("t", DATABASE, 8, Lsn::INVALID)).0, "42704");
        assert_eq!(code(slots.create(state("No"), false, 8)).0, "42602");
    }

    #[test]
    fn l2_after_a_fork_a_slot_is_judged_by_the_place_that_its_subscriber_names() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join("slots");
        let slots = Slots::open(&kept, 18).unwrap();
        for name in ["ahead", "behind", "full"] {
            drop(slots.create(state(name), false, 7).unwrap());
        }
        let [fork, before, after] =
            [1, 0, 2].map(|more| Lsn::new(state("s").confirmed.as_u64() + 100 * more));
        assert!(!slots.pass(Lsn::new(before.as_u64() - 1)), "all have confirmed more");
        assert!(slots.pass(fork));
        slots.keep_all().unwrap();
        assert_eq!(code(slots.acquire("ahead", DATABASE, 8, after)).0, "55000");
        let slots = Slots::open(&kept, 18).unwrap();
        assert_eq!(code(slots.acquire("ahead", DATABASE, 8, before)).0, "55000", "for good");
        drop(slots.acquire("behind", DATABASE, 8, fork).unwrap());
        let slots = Slots::open(&kept, 18).unwrap();
        let active = slots.acquire("behind", DATABASE, 8, after).unwrap();
        // One that is read now counts as well.
        assert!(!slots.pass(fork));
        drop(active);
        // What cannot be kept is asked again.
        std::fs::rename(&kept, dir.path().join("away")).unwrap();
        assert_eq!(code(slots.acquire("full", DATABASE, 8, fork)).0, "58030");
        std::fs::rename(dir.path().join("away"), &kept).unwrap();
        assert_eq!(code(slots.acquire("full", DATABASE, 8, after)).0, "55000");
    }

    #[test]
    fn a_temporary_slot_goes_with_its_connection() {
        let dir = tempfile::tempdir().unwrap();
        let slots = Slots::open(dir.path(), 18).unwrap();
        let slot = slots.create(state("t"), true, 7).unwrap();
        assert_eq!(slots.least_restart(), Some(Lsn::new(100)));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        drop(slot);
        assert_eq!(slots.shown(), []);
    }

    #[test]
    fn a_damaged_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("s.json"), "{").unwrap();
        let error = Slots::open(dir.path(), 18).unwrap_err().to_string();
        assert!(error.contains("s.json"), "{error}");
    }
}
