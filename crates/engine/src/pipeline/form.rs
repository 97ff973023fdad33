//! Whether a stream's values come in binary form (rule C3).
//!
//! The question arises when a stream begins, and for tables that are to join one. `--binary auto`
//! takes the binary form if every column allows it, and if the target has the objects that apply
//! arrays, or lets us create them. Otherwise values come as text, and `status` names the column
//! that needs it. `--binary on` fails instead.

use base::PgVersion;
use source::publication::{self, BinaryRefusal, PublishedTable, TargetTable};
use state::State;

use super::attempt::{Attempt, Ends};
use crate::Binary;
use crate::error::Error;
use crate::refusal::Refusal;
use crate::status::ValuesSnapshot;

/// Whether values of these tables may come in binary. Creates what their arrays need on the target.
///
/// # Errors
/// The inner error says why not; the outer one is a lost connection.
pub(crate) async fn may_be_binary<'a>(
    (source, state): (PgVersion, &State),
    tables: impl Iterator<Item = (&'a PublishedTable, &'a TargetTable)> + Clone,
) -> Result<Result<(), BinaryRefusal>, Error> {
    if let Err(why) = publication::binary_allowed(source, state.session().version(), tables.clone()) {
        return Ok(Err(why));
    }
    match state.make_holders(&publication::array_types(tables.map(|(table, _)| table))).await {
        Err(error) if error.is_missing_right() => {
            Ok(Err(BinaryRefusal::no_holders(base::with_causes(&error))))
        }
        made => Ok(Ok(made?)),
    }
}

impl Attempt<'_> {
    /// Whether the stream asks for values in binary form.
    pub(super) async fn binary(&self, ends: &Ends) -> Result<bool, Error> {
        let binary = self.settings.binary;
        let told = |values: ValuesSnapshot| {
            let is_binary = values.reason.is_none();
            self.status.set_values(values);
            Ok(is_binary)
        };
        if binary == Binary::Off {
            return told(ValuesSnapshot::text("--binary off"));
        }
        if ends.in_text {
            return told(ValuesSnapshot::text(
                "rows still come from before a column's type was changed; the next start decides again",
            ));
        }
        let pairs =
            ends.source.published.iter().filter_map(|table| Some((table, ends.targets.get(&table.name)?)));
        match (may_be_binary((ends.source.wire.version(), &ends.state), pairs).await?, binary) {
            (Ok(()), _) => told(ValuesSnapshot::binary()),
            (Err(why), Binary::On) => Err(Error::refused(Refusal::Binary(why))),
            (Err(why), _) => {
                if !self.repeats() {
                    tracing::info!("values come as text: {why}");
                }
                told(ValuesSnapshot::from(&why))
            }
        }
    }
}
