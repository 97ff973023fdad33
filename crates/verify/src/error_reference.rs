//! Every error of a comparison, for docs/errors.md.

use base::error_reference::{Doing, entry, nothing_of_its_own};
use proto::frame::ServerError;

use crate::Error;
use crate::error::Kind;

base::error_reference! {
    /// Every way in which a comparison cannot be made.
    #[must_use]
    pub fn error_reference() -> Error where error is error.kind() => Kind;
    Kind::Client { .. } => entry(
        Doing::Verifying,
        "A server fails while it is compared",
        Error::client("lock table public.accounts")(
            ServerError::new("ERROR", "55P03", "canceling statement due to lock timeout").into(),
        ),
        "What the message names failed, in the server's words: a lock that somebody holds, a right, or a lost \
         connection.",
        "Repair what it says and repeat `pgsluice verify`; it reads only, so that nothing is left.",
        &[],
    ),
    // Told where the source tells them.
    Kind::Source(_) => nothing_of_its_own(),
    Kind::Pin(_) => entry(
        Doing::Verifying,
        "The running process cannot hold its stream",
        Kind::Pin(
            "the process that runs subscription \"orders\" refused: another verify holds the subscription at present"
                .to_owned(),
        ),
        "To compare under equal states `verify` asks the process that runs the subscription to stand still for a \
         moment, and that copies, waits after an error, or serves another `verify`.",
        "Repeat it when `pgsluice status` says that it streams.",
        &[("pgsluice scenarios", "a_verify_that_dies_does_not_stall_the_stream")],
    ),
    Kind::NoPrefix { .. } => entry(
        Doing::Verifying,
        "No snapshot fits the stream",
        Kind::NoPrefix { tries: 50 },
        "A snapshot is of use if it sees exactly the first commits of the stream. Under many short transactions, or \
         with a synchronous standby that lags, one after another does not.",
        "Repeat `pgsluice verify` at a quieter time, or see what `synchronous_standby_names` of the source waits for.",
        &[("pgsluice scenarios", "v1_a_snapshot_that_is_no_prefix_of_the_commits_is_not_used")],
    ),
}
