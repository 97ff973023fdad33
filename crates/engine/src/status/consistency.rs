//! Whether every state of the target is one that the source had, and what is missing until it is.
//!
//! A table that was copied under a later snapshot than others is ahead of them. It already has
//! changes that the stream has yet to bring to the others. The target as a whole is at a commit of
//! the source once it has flushed the stream up to the latest of these positions. The changes must
//! be flushed and not only applied, so that no crash of the target takes the promise back. Until
//! then the stream's phase is [`Phase::CatchingUp`].
//!
//! | what is awaited | until | where it is known from |
//! | --- | --- | --- |
//! | a table that was copied later | its consistent point is flushed | the target's state |
//! | a table whose copy may have left some rows | it has joined, and then as above | the target's state, and the copying task |
//! | the first copy from a source that ships WAL | what its snapshot may have seen is flushed | the restart file |
//! | foreign keys that did not hold over these tables | they are validated | the schema's steps on the target |
//!
//! The code that begins a stream or copies a table also says what is awaited.
//! [`Status::settle_consistency`] is called again and again and ends the wait. A copied table that
//! waits for nothing is not kept here.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use base::{Lsn, PgTimestamp};
use state::{CopiedTable, TableKey};

use super::Status;
use super::awaited::{Ahead, Awaited, CatchingUp, ahead};
use super::phase::Phase;

impl Status {
    fn awaited(&self) -> MutexGuard<'_, Awaited> {
        self.consistency.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an open stream has yet to bring the target to a commit of the source.
    pub(crate) fn is_catching_up(&self) -> bool {
        self.consistency.pending.load(Ordering::Acquire)
    }

    /// Prepares for a stream. The target has `recorded` these tables, and what the snapshot of the
    /// first copy may have seen ends at `looked`. Called before the phase says that a stream is
    /// open.
    pub fn await_consistency(&self, recorded: &[CopiedTable], looked: Option<Lsn>) {
        self.awaited().looked = looked;
        self.await_recorded(recorded);
    }

    /// Updates the tables after some have joined, failed to join or left the publication. The
    /// target has `recorded` these tables now, and no copy runs.
    pub(crate) fn await_recorded(&self, recorded: &[CopiedTable]) {
        let flushed = self.progress().snapshot().flushed;
        let mut awaited = self.awaited();
        awaited.tables = ahead(recorded, flushed);
        self.tell(&mut awaited, flushed);
    }

    /// Notes that rows of these tables will soon be visible on the target, under a snapshot at
    /// `lsn`.
    pub(crate) fn await_copies(&self, tables: &[TableKey], lsn: Lsn) {
        let flushed = self.progress().snapshot().flushed;
        let mut awaited = self.awaited();
        let copied = Ahead { lsn: Some(lsn), joined: false };
        awaited.tables.extend(tables.iter().map(|(schema, table)| (format!("{schema}.{table}"), copied)));
        self.tell(&mut awaited, flushed);
    }

    /// Notes whether foreign keys wait until the stream has passed every snapshot. Nothing is
    /// logged before a stream begins.
    pub(crate) fn await_foreign_keys(&self, wait: bool) {
        let mut awaited = self.awaited();
        awaited.foreign_keys = wait;
        self.consistency.pending.store(awaited.is_any(), Ordering::Release);
    }

    /// Drops what the target has caught up with. Requests a flush if only that is missing.
    pub fn settle_consistency(&self) {
        let progress = self.progress();
        let seen = progress.snapshot();
        let mut awaited = self.awaited();
        if awaited.lsn().is_some_and(|lsn| seen.flushed < lsn && lsn <= seen.applied) {
            progress.want_flush();
        }
        self.tell(&mut awaited, seen.flushed);
    }

    /// Drops what is flushed, and logs what has begun or ended.
    fn tell(&self, awaited: &mut Awaited, flushed: Lsn) {
        let name = self.subscription();
        awaited.settle(flushed);
        if !awaited.is_any() {
            if std::mem::take(&mut awaited.logged) {
                let took =
                    awaited.since.map_or(0.0, |since| (PgTimestamp::now().0 - since.0).max(0) as f64 / 1e6);
                let at = awaited.latest.map_or_else(String::new, |lsn| format!(" at {lsn}"));
                tracing::info!(subscription = %name, "caught up to consistency{at} after {took:.1} s: no table is ahead of others");
            }
            (awaited.since, awaited.latest) = (None, None);
        } else {
            awaited.since.get_or_insert_with(PgTimestamp::now);
            let grows = awaited.lsn() > awaited.latest;
            awaited.latest = awaited.latest.max(awaited.lsn());
            if !awaited.logged || grows {
                let told = awaited.told(flushed);
                let until = match &told.lsn {
                    _ if told.is_done_but_for_foreign_keys() => String::new(),
                    Some(lsn) => format!("until the target has flushed {lsn}, "),
                    None => "until the copies are finished, ".to_owned(),
                };
                let seen = if until.is_empty() {
                    ""
                } else {
                    "its readers may see states that the source never had; "
                };
                tracing::info!(subscription = %name, "catching up to consistency: {until}{seen}{told}");
                awaited.logged = true;
            }
        }
        self.consistency.pending.store(awaited.is_any(), Ordering::Release);
    }

    /// Returns the phase, and what an open stream has to catch up with if the target has applied up
    /// to `applied`.
    pub(super) fn phase_and_wait(&self, applied: Lsn) -> (Phase, Option<CatchingUp>) {
        // Reads the phase first: it says that a stream is open only when what it awaits is known.
        match self.phase() {
            Phase::CatchingUp | Phase::Streaming => {}
            phase => return (phase, None),
        }
        let awaited = self.awaited();
        match awaited.is_any() {
            true => (Phase::CatchingUp, Some(awaited.told(applied))),
            false => (Phase::Streaming, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::Progress;
    use state::Since;

    use super::*;

    fn table(name: &str, at: u64, begun: bool, finished: bool) -> CopiedTable {
        let since = (at > 0).then(|| Since::from(Lsn::new(at)));
        let (source_oid, replaced) = (None, None);
        CopiedTable { schema: "s".into(), table: name.into(), since, begun, finished, source_oid, replaced }
    }

    fn streaming_from(at: u64, recorded: &[CopiedTable], looked: Option<Lsn>) -> Status {
        let status = Status::new("s".parse().unwrap());
        status.set_progress(Arc::new(Progress::starting_at(Lsn::new(at))));
        status.await_consistency(recorded, looked);
        status.set_phase(Phase::Streaming);
        status
    }

    /// The phase, what is awaited, and the tables.
    fn shown(status: &Status) -> (String, Option<String>, Vec<String>) {
        status.settle_consistency();
        let snapshot = status.snapshot();
        assert_eq!(snapshot.phase == "catching up to consistency", snapshot.catching_up.is_some());
        let told = snapshot.catching_up.unwrap_or_default();
        (snapshot.phase, told.lsn, told.tables.into_iter().map(|table| table.table).collect())
    }

    fn streaming() -> (String, Option<String>, Vec<String>) {
        ("streaming".to_owned(), None, Vec::new())
    }

    fn catching_up(lsn: Option<&str>, tables: &[&str]) -> (String, Option<String>, Vec<String>) {
        let tables = tables.iter().map(|table| format!("s.{table}")).collect();
        ("catching up to consistency".to_owned(), lsn.map(str::to_owned), tables)
    }

    #[test]
    fn tables_of_one_snapshot_are_level_from_the_start() {
        let status = streaming_from(16, &[table("a", 16, true, true), table("b", 16, true, true)], None);
        assert_eq!(shown(&status), streaming());
    }

    #[test]
    fn what_was_copied_later_is_waited_for_until_it_is_flushed() {
        let recorded = [table("a", 16, true, true), table("b", 48, true, true), table("c", 32, true, true)];
        let status = streaming_from(16, &recorded, None);
        assert_eq!(shown(&status), catching_up(Some("0/30"), &["b", "c"]));
        status.progress().advance_flushed(Lsn::new(32));
        assert_eq!(shown(&status), catching_up(Some("0/30"), &["b"]));
        assert!(!status.progress().take_flush_wanted());
        // A crash of the target could still take it back.
        status.progress().advance_applied(Lsn::new(48));
        assert_eq!(shown(&status), catching_up(Some("0/30"), &["b"]));
        assert!(status.progress().take_flush_wanted(), "nobody else is in a hurry");
        status.progress().advance_flushed(Lsn::new(48));
        assert_eq!(shown(&status), streaming());
    }

    #[test]
    fn a_table_that_joins_is_waited_for_from_its_first_row() {
        let status = streaming_from(16, &[table("a", 16, true, true)], None);
        assert_eq!(shown(&status), streaming());
        status.await_copies(&[("s".to_owned(), "late".to_owned())], Lsn::new(48));
        // The stream passes the table's snapshot before its rows are there.
        status.progress().advance_flushed(Lsn::new(64));
        assert_eq!(shown(&status), catching_up(Some("0/30"), &["late"]));
        status.await_recorded(&[table("a", 16, true, true), table("late", 48, true, true)]);
        assert_eq!(shown(&status), streaming());
    }

    #[test]
    fn a_copy_that_was_interrupted_is_waited_for_and_one_that_was_not_begun_is_not() {
        let recorded =
            [table("a", 16, true, true), table("cut", 48, true, false), table("new", 0, false, false)];
        let status = streaming_from(64, &recorded, None);
        assert_eq!(shown(&status), catching_up(None, &["cut"]));
        // It was dropped from the publication.
        status.await_recorded(&recorded[..1]);
        assert_eq!(shown(&status), streaming());
    }

    #[test]
    fn what_the_look_may_have_seen_and_foreign_keys_are_waited_for() {
        let status = streaming_from(16, &[table("a", 16, true, true)], Some(Lsn::new(32)));
        assert_eq!(shown(&status), catching_up(Some("0/20"), &[]));
        let text = status.snapshot().catching_up.unwrap().to_string();
        assert_eq!(text, "transactions that ran while the first copy's snapshot was made");
        status.await_foreign_keys(true);
        status.progress().advance_flushed(Lsn::new(32));
        assert_eq!(shown(&status), catching_up(None, &[]));
        assert_eq!(status.snapshot().catching_up.unwrap().to_string(), "foreign keys to be validated");
        status.await_foreign_keys(false);
        assert_eq!(shown(&status), streaming());
    }

    /// A crash of the target loses what is applied but not flushed; the next attempt begins with
    /// what is left.
    #[test]
    fn an_attempt_waits_anew_for_what_the_target_has_lost() {
        let recorded = [table("a", 16, true, true), table("b", 48, true, true)];
        let status = streaming_from(16, &recorded, None);
        status.progress().advance_applied(Lsn::new(48));
        status.set_phase(Phase::Waiting);
        assert_eq!(shown(&status).0, "waiting");
        status.set_progress(Arc::new(Progress::starting_at(Lsn::new(16))));
        status.await_consistency(&recorded, None);
        status.set_phase(Phase::Streaming);
        assert_eq!(shown(&status), catching_up(Some("0/30"), &["b"]));
    }

    #[test]
    fn many_names_are_counted() {
        let recorded: Vec<CopiedTable> =
            (0..7).map(|number| table(&format!("t{number}"), 48, true, true)).collect();
        let told = CatchingUp::stored(&recorded, Lsn::new(16)).unwrap();
        assert_eq!(told.to_string(), "copied later than the rest: s.t0, s.t1, s.t2, s.t3, s.t4 and 2 more");
        assert_eq!((told.bytes, told.since_unix_ms), (Some(32), None));
        assert_eq!(CatchingUp::stored(&recorded, Lsn::new(48)), None);
    }
}
