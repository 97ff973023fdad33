//! A new look at the catalogs, where they cannot be followed any further.
//!
//! ```text
//!   kept      applied    ended at    redo of a checkpoint       new look    to: end of WAL
//!    |-----------|----------|-----------------|---------------------|-----------|
//!    |<- surveyed: which tables were written by what is not on the target? ---->|
//! ```
//! The crate `engine` knows why nothing is lost by that, and asks the operator before tables are
//! copied again.

use std::sync::Arc;

use base::crash_phases::{self, Phase};
use base::{Lsn, Progress};
use catalog::{Catalog, Look};
use output::{Lost, Survey, TakesPart};
use source::end::{FAREWELL, LOOK_WAIT_MAX, end_of_flushed, end_of_wal, flush, snapshot_session};
use source::queue::queue;
use source::slot;
use source::stream::Heard;
use state::TableKey;
use tokio_util::sync::CancellationToken;
use txn::Input;

use crate::Context;
use crate::archive::{self, WAITS_BETWEEN_WARNINGS};
use crate::error::{Error, Kind};
use crate::restart::Restart;

/// The result of a new look.
pub struct NewLook {
    catalog: Catalog,
    /// Everything that the look saw had committed before this position, and is flushed.
    seen: Lsn,
    /// Tables that were written by what the target does not have. They must be copied again.
    pub affected: Vec<TableKey>,
}

impl NewLook {
    /// The place in the WAL that the look belongs to.
    #[must_use]
    pub fn at(&self) -> Lsn {
        self.catalog.looked()
    }
}

impl Context<'_> {
    /// Looks at the catalogs anew, behind the place where they were `lost`. `kept` is where
    /// decoding would have gone on, and the target has everything before `applied`.
    ///
    /// # Errors
    /// The look is not possible now, or the source failed.
    pub async fn look_anew(&self, kept: &Restart, applied: Lsn, lost: Lost) -> Result<NewLook, Error> {
        let _look = crash_phases::inside(Phase::Look);
        let redo = self.redo_behind(lost.at).await?;
        let session = snapshot_session(&self.settings.source, &self.settings.subscription).await?;
        let look = Look { redo: Some(redo), wait_max: LOOK_WAIT_MAX };
        let looked = Catalog::look(std::slice::from_ref(&session), &look).await;
        let catalog = looked.map_err(|error| match error.is_unfit() {
            // The source will be fit once the operator has done what the error says.
            true => Kind::NotYet(error.to_string()).into(),
            false => Error::from(output::Error::from(error)),
        })?;
        // A crash of the source may take back unflushed transactions and give out their ids again.
        // They must not count as seen.
        let source = &self.source.session;
        let to = end_of_wal(source).await?;
        flush(source).await?;
        let seen = end_of_flushed(source).await?;
        crate::wait_for_standbys(self.settings, self.figures, source, seen).await?;
        let wanted = self.wanted((applied, false), TakesPart::default()).await?;
        let options = wanted.options(&catalog)?;
        let affected = match lost.is_proven && self.has_wal_since(kept, wanted.segment_size) {
            true => {
                let survey =
                    Survey::new(&kept.catalog, wanted.segment_size, options.database, (applied, to))?;
                let survey = self.survey(kept, wanted.segment_size, survey).await?;
                survey.affected(&kept.catalog, &catalog, &options)?.into_iter().collect()
            }
            false => output::published(&catalog, &options)?.into_iter().map(|table| table.name).collect(),
        };
        Ok(NewLook { catalog, seen, affected })
    }

    /// Makes decoding go on from the new look, for the slot of `kept`.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn go_on_from(&self, look: NewLook, kept: Restart, applied: Lsn) -> Result<(), Error> {
        let NewLook { catalog, seen, .. } = look;
        let (timeline, confirmed) = (self.source.identity.timeline, applied.min(catalog.looked()));
        let restart = Restart { slot: kept.slot, timeline, confirmed, seen, catalog };
        restart.save(&self.settings.restart_file)
    }

    /// Returns the redo position of a checkpoint of the source that lies behind `at`.
    async fn redo_behind(&self, at: Option<Lsn>) -> Result<Lsn, Error> {
        let mut waited = 0_u32;
        loop {
            let redo = match self.settings.followed_archive() {
                Some(_) => self.archived_redo().await?,
                None => slot::latest_redo(&self.source.session).await?,
            };
            let Some(at) = at.filter(|at| redo <= *at) else {
                self.figures.awaits(None);
                return Ok(redo);
            };
            let what = format!("a checkpoint of the source behind {at}: CHECKPOINT there");
            if waited.is_multiple_of(WAITS_BETWEEN_WARNINGS) {
                tracing::warn!(subscription = %self.settings.subscription, "waiting for {what}");
            }
            self.figures.awaits(Some(what));
            waited += 1;
            tokio::time::sleep(archive::POLL).await;
        }
    }

    /// Whether WAL is available from the place where the catalogs were kept.
    fn has_wal_since(&self, kept: &Restart, segment_size: u64) -> bool {
        let segment = |lsn: Lsn| lsn.as_u64() / segment_size;
        let reserved = self.source.slot.as_ref().and_then(|slot| slot.restart_lsn);
        self.settings.followed_archive().is_some()
            || reserved.is_some_and(|reserved| segment(reserved) <= segment(kept.lsn()))
    }

    /// Reads WAL until the survey is complete.
    async fn survey(&self, kept: &Restart, segment_size: u64, mut survey: Survey) -> Result<Survey, Error> {
        let from = survey.position();
        let mut shipping = self.ship_for_survey(kept, from, segment_size).await?;
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
}
