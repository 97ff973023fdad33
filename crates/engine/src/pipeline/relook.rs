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
//!   position. The survey names the tables that they wrote. These tables take no part until
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

use apply::Target;
use base::Lsn;
use source::end::SourceEnd;
use state::TableKey;

use super::attempt::{Attempt, Cause, Ends};
use super::beginning::furthest;
use crate::error::Error;
use crate::refusal::Refusal;
use crate::{Phase, history};

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
        tracing::info!(
            subscription = %name,
            "reading the source's catalogs again: the target has everything before {applied}"
        );
        let looked = self.wal(ends).look_anew(&kept, applied, cause.lost).await?;
        let again = self.to_copy_again(ends, &looked.affected).await?;
        let look = kept.looked();
        let is_allowed = ends.state.is_relook_allowed(look).await?;
        if !again.is_empty() {
            self.must_be_allowed(ends, (look, is_allowed), cause, &again).await?;
            ends.state.copy_again(&again, true).await?;
        }
        let at = looked.at();
        self.wal(ends).go_on_from(looked, kept, applied)?;
        if is_allowed {
            ends.state.has_relooked().await?;
        }
        match shown(&again) {
            None => tracing::info!(
                subscription = %name,
                "read the catalogs again at {at}: nothing that is replicated was written since {applied}"
            ),
            Some(tables) => tracing::warn!(
                subscription = %name,
                "read the catalogs again at {at}; pgsluice copies again: {tables}"
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
