//! Where the two directions of a pair wait for each other; see [`crate::direction`].

use std::time::Instant;

use super::attempt::{Attempt, Ends, Past};
use super::first_copy::is_over;
use crate::error::Error;
use crate::status::Pause;

impl Attempt<'_> {
    /// Looks at both ends and checks them. The direction back looks when forth has created the
    /// tables. Also returns whether the source must have no rows.
    pub(super) async fn look_in_turn(&self, past: &mut Past) -> Result<(Ends, bool), Error> {
        let ends = self.look(past).await?;
        self.check(&ends)?;
        let Some(direction) = self.direction.filter(|own| !own.is_forth() && !ends.has_begun()) else {
            return Ok((ends, false));
        };
        drop(ends);
        let must_be_empty = direction.other_ready().await?;
        let ends = self.look(past).await?;
        self.check(&ends)?;
        Ok((ends, must_be_empty))
    }

    /// Lets back make its slot, now that the tables are there, and waits for it if `waits`, which
    /// says that rows are still to be copied.
    pub(super) async fn after_the_slot_of_back(&self, ends: &Ends, waits: bool) -> Result<(), Error> {
        let Some(direction) = self.direction.filter(|own| own.is_forth()) else { return Ok(()) };
        direction.say_ready(!ends.has_begun());
        match waits {
            true => direction.other_set_up().await,
            false => Ok(()),
        }
    }

    /// Says that this direction is set up. Back then waits until forth has copied all tables, but
    /// only before its first stream. Returns whether it has waited.
    pub(super) async fn has_waited_for_copy(&self, ends: &Ends) -> Result<bool, Error> {
        let Some(direction) = self.direction else { return Ok(false) };
        direction.say_set_up();
        if direction.is_forth() || is_over(ends.row.as_ref()) {
            return Ok(false);
        }
        let name = &self.settings.subscription;
        tracing::info!(subscription = %name, "both sides may be written: the slot of this direction is there");
        if direction.is_other_set_up() {
            return Ok(false);
        }
        let name_of_other = direction.other_name().clone();
        self.status.set_waiting(Pause::OtherCopy { name: name_of_other, since: Instant::now() });
        tracing::info!(
            subscription = %name,
            "waits until the first copy of subscription \"{}\" is over",
            direction.other_name()
        );
        direction.other_set_up().await?;
        Ok(true)
    }
}
