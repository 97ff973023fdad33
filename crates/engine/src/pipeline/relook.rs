//! The way back when the catalogs cannot be followed any further: a new look at them.
//!
//! ```text
//!   kept      applied    ended at    redo of a checkpoint       new look    to: end of WAL
//!    |-----------|----------|-----------------|---------------------|-----------|
//!    |<- surveyed: which tables were written by what is not on the target? ---->|
//!                                             |<- decoded: transactions not seen by the look ->
//! ```
//! Why nothing is lost. There are three kinds of transactions:
//!
//! - Transactions that committed before the applied position are on the target.
//! - Transactions that the look does not see began after its redo position. All of their records
//!   are decoded behind it.
//! - The look saw the remaining transactions, and they had not committed before the applied
//!   position. The [`Survey`] names the tables that they wrote. These tables take no part until
//!   they have been copied again, under a snapshot that sees all of these transactions.
//!
//! If it is not known since when the catalogs were followed wrongly, every table counts as written.
//!
//! | what ended the following | proven until then | the new look begins |
//! | --- | --- | --- |
//! | `full_page_writes` off, `wal_level` lowered, the database moved | yes, by the record that says so | behind that record |
//! | a record about a catalog that does not fit, files that nobody has | no | behind that record |
//! | a comparison with the source that differs | no | anywhere |
//!
//! If no table has to be copied, pgsluice goes on by itself. Otherwise the operator must allow the
//! new look with `pgsluice relook`. The copy removes the rows that the target has first, and
//! pgsluice may not have written all of them. The permission holds for one look only.
//!
//! What a kill leaves. The target is told of the tables first; then the file of catalogs is
//! replaced as a whole.
//!
//! - A kill before both steps leaves the old file. The next start decodes up to the same record and
//!   begins again, with these tables and perhaps more.
//! - A kill between the steps leaves tables to copy, although the look is made again.
//! - A kill after both steps leaves an ordinary start with tables to copy.

use std::sync::Arc;

use apply::Target;
use base::crash_phases::{self, Phase as Doing};
use base::{Lsn, Progress};
use catalog::{Catalog, Look};
use output::{Lost, Survey, TakesPart};
use source::queue::queue;
use source::slot;
use source::stream::Heard;
use state::TableKey;
use tokio_util::sync::CancellationToken;
use txn::Input;

use super::beginning::furthest;
use super::{Attempt, Ends};
use crate::error::{Error, Kind};
use crate::refusal::Refusal;
use crate::source_end::{
    FAREWELL, LOOK_WAIT_MAX, SourceEnd, end_of_flushed, end_of_wal, flush, snapshot_session,
};
use crate::wal_source::archive::{self, WAITS_BETWEEN_WARNINGS};
use crate::wal_source::{self, Restart};
use crate::{Phase, history};

/// Why a new look is needed.
#[derive(Debug, Clone)]
pub(super) struct Cause {
    pub(super) lost: Lost,
    /// The cause in words.
    pub(super) told: String,
}

/// The result of the new look.
struct Looked {
    catalog: Catalog,
    /// Everything that the look saw had committed before this position, and is flushed.
    seen: Lsn,
    /// Tables that must be copied again.
    affected: Vec<TableKey>,
}

impl Attempt<'_> {
    /// Looks at the catalogs anew, and makes decoding go on from there.
    ///
    /// # Errors
    /// The look is not possible now, or tables would have to be copied again and the operator has
    /// not allowed it.
    pub(super) async fn relook(&self, ends: &mut Ends, cause: &Cause) -> Result<(), Error> {
        let name = &self.settings.subscription;
        self.status.set_phase(Phase::Starting);
        let kept = self.wal(ends).restart()?;
        let applied = self.applied(ends).await?;
        tracing::info!(subscription = %name, "looking at the source's catalogs anew: the target has all before {applied}");
        let looked = self.look_anew(ends, &kept, applied, cause.lost).await?;
        let again = self.to_copy_again(ends, &looked.affected).await?;
        let look = kept.catalog.looked();
        let is_allowed = ends.state.is_relook_allowed(look).await?;
        if !again.is_empty() {
            self.must_be_allowed(ends, (look, is_allowed), cause, &again).await?;
            ends.state.copy_again(&again, true).await?;
        }
        let (at, timeline) = (looked.catalog.looked(), ends.source.identity.timeline);
        let (slot, seen, catalog) = (kept.slot, looked.seen, looked.catalog);
        let restart = Restart { slot, timeline, confirmed: applied.min(at), seen, catalog };
        restart.save(&self.settings.restart_file()).map_err(Kind::Spool)?;
        if is_allowed {
            ends.state.has_relooked().await?;
        }
        match shown(&again) {
            None => tracing::info!(
                subscription = %name,
                "the catalogs were looked at anew at {at}: nothing that is replicated was written since {applied}"
            ),
            Some(tables) => tracing::warn!(
                subscription = %name,
                "the catalogs were looked at anew at {at}; copied again: {tables}"
            ),
        }
        Ok(())
    }

    /// Returns the position up to which the target has everything. This is behind the fence: no
    /// earlier session applies what was sent before.
    async fn applied(&self, ends: &mut Ends) -> Result<Lsn, Error> {
        let row = ends.state.load().await?.ok_or_else(|| Error::refused(Refusal::Dropped))?;
        let (joined, options) = (self.joined(ends).await?, self.apply_options(ends, None).await?);
        let copied = furthest(&joined);
        let target = Target::attach(&self.settings.target, &ends.state, &options, joined).await?;
        let Ends { source: SourceEnd { wire, session, .. }, state, .. } = &mut *ends;
        history::start_position(wire, session, state, &row, (target.reached(), copied)).await
    }

    async fn look_anew(
        &self,
        ends: &Ends,
        kept: &Restart,
        applied: Lsn,
        lost: Lost,
    ) -> Result<Looked, Error> {
        let _look = crash_phases::inside(Doing::Look);
        let redo = self.redo_behind(ends, lost.at).await?;
        let session = snapshot_session(self.settings).await?;
        let look = Look { redo: Some(redo), wait_max: LOOK_WAIT_MAX };
        let looked = Catalog::look(std::slice::from_ref(&session), &look).await;
        let catalog = looked.map_err(|error| match error.is_unfit() {
            // The source will be fit once the operator has done what the error says.
            true => Kind::NotYet(error.to_string()).into(),
            false => Error::from(output::Error::from(error)),
        })?;
        // A crash of the source may take back unflushed transactions and give out their ids again.
        // They must not count as seen.
        let to = end_of_wal(&ends.source.session).await?;
        flush(&ends.source.session).await?;
        let seen = end_of_flushed(&ends.source.session).await?;
        wal_source::wait_for_standbys(self.settings, self.status, &ends.source.session, seen).await?;
        let wal = self.wal(ends);
        let wanted = wal.wanted((applied, false), TakesPart::default()).await?;
        let options = wanted.options(&catalog)?;
        let affected = match lost.is_proven && self.has_wal_since(ends, kept, wanted.segment_size) {
            true => {
                let survey =
                    Survey::new(&kept.catalog, wanted.segment_size, options.database, (applied, to))?;
                let survey = self.read(ends, kept, wanted.segment_size, survey).await?;
                survey.affected(&kept.catalog, &catalog, &options)?.into_iter().collect()
            }
            false => output::published(&catalog, &options)?.into_iter().map(|table| table.name).collect(),
        };
        Ok(Looked { catalog, seen, affected })
    }

    /// Returns the redo position of a checkpoint of the source that lies behind `at`.
    async fn redo_behind(&self, ends: &Ends, at: Option<Lsn>) -> Result<Lsn, Error> {
        let mut waited = 0_u32;
        loop {
            let redo = match self.settings.followed_archive() {
                Some(_) => self.wal(ends).archived_redo().await?,
                None => slot::latest_redo(&ends.source.session).await?,
            };
            let Some(at) = at.filter(|at| redo <= *at) else {
                self.status.decoded().awaits(None);
                return Ok(redo);
            };
            let what = format!("a checkpoint of the source behind {at}: CHECKPOINT there");
            if waited.is_multiple_of(WAITS_BETWEEN_WARNINGS) {
                tracing::warn!(subscription = %self.settings.subscription, "waiting for {what}");
            }
            self.status.decoded().awaits(Some(what));
            waited += 1;
            tokio::time::sleep(archive::POLL).await;
        }
    }

    /// Whether WAL is available from the place where the catalogs were kept.
    fn has_wal_since(&self, ends: &Ends, kept: &Restart, segment_size: u64) -> bool {
        let segment = |lsn: Lsn| lsn.as_u64() / segment_size;
        let reserved = ends.source.slot.as_ref().and_then(|slot| slot.restart_lsn);
        self.settings.followed_archive().is_some()
            || reserved.is_some_and(|reserved| segment(reserved) <= segment(kept.lsn()))
    }

    /// Reads WAL until the survey is complete.
    async fn read(
        &self,
        ends: &Ends,
        kept: &Restart,
        segment_size: u64,
        mut survey: Survey,
    ) -> Result<Survey, Error> {
        let from = survey.position();
        let mut shipping = self.wal(ends).ship_for_survey(kept, from, segment_size).await?;
        let (progress, heard) = (Progress::starting_at(from), Arc::<Heard>::default());
        let (blocks, mut wal) = queue();
        let stop = CancellationToken::new();
        let surveying = async {
            while let Some(block) = wal.recv().await {
                for input in &block.inputs {
                    let Input::Bytes(bytes) = input else { continue };
                    if survey.push(bytes)? {
                        return Ok(());
                    }
                }
            }
            Err(Error::from(Kind::Pass("the WAL to be surveyed has ended".to_owned())))
        };
        let surveyed = tokio::select! {
            surveyed = surveying => surveyed,
            ended = shipping.run(&progress, &heard, &blocks, &stop) => {
                ended.and_then(|()| Err(Kind::Pass("the WAL to be surveyed has ended".to_owned()).into()))
            }
        };
        let _ = tokio::time::timeout(FAREWELL, shipping.finish(&progress)).await;
        surveyed.map(|()| survey)
    }

    /// Returns the tables of `affected` that take part.
    async fn to_copy_again(&self, ends: &Ends, affected: &[TableKey]) -> Result<Vec<TableKey>, Error> {
        let joined = self.joined(ends).await?;
        Ok(affected.iter().filter(|table| joined.contains_key(*table)).cloned().collect())
    }

    /// # Errors
    /// The operator has not allowed it; the error asks for that.
    async fn must_be_allowed(
        &self,
        ends: &Ends,
        (look, is_allowed): (Lsn, bool),
        cause: &Cause,
        again: &[TableKey],
    ) -> Result<(), Error> {
        if is_allowed && self.settings.copy_data {
            return Ok(());
        }
        ends.state.ask_for_relook(look).await?;
        Err(Error::refused(Refusal::Relook {
            cause: cause.told.clone(),
            is_proven: cause.lost.is_proven,
            tables: again.iter().map(|table| format!("{}.{}", table.0, table.1)).collect(),
            copy_data: self.settings.copy_data,
        }))
    }
}

/// The tables' names; `None` if there are no tables.
fn shown(tables: &[TableKey]) -> Option<String> {
    let names: Vec<String> = tables.iter().map(|table| format!("{}.{}", table.0, table.1)).collect();
    (!names.is_empty()).then(|| crate::refusal::shown(&names))
}
