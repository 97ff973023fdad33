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
        "The server's words say why the operation failed: another session holds a lock, a right is missing, \
        or the connection was lost.",
        "Repair the cause and repeat `pgsluice verify`. It only reads, so it leaves nothing behind.",
        &[],
    ),
    // Told where the source tells them.
    Kind::Source(_) => nothing_of_its_own(),
    Kind::Applier(_) => entry(
        Doing::Verifying,
        "The running process cannot hold its stream",
        Kind::Applier(
            "the process that runs subscription \"orders\" refused: another verify holds the subscription at present"
                .to_owned(),
        ),
        "To compare equal states, `verify` asks the process that runs the subscription to pause its stream \
        for a moment. That process is copying, waits after an error, or serves another `verify`.",
        "Repeat the command when `pgsluice status` reports that the subscription streams.",
        &[("pgsluice scenarios", "a_verify_that_dies_does_not_stall_the_stream")],
    ),
    Kind::NoPrefix { .. } => entry(
        Doing::Verifying,
        "No snapshot fits the stream",
        Kind::NoPrefix { tries: 50 },
        "`verify` needs a snapshot that sees exactly the first commits of the stream. Under many short \
        transactions, or with a synchronous standby that lags, one snapshot after another does not.",
        "Repeat `pgsluice verify` at a quieter time, or find out what `synchronous_standby_names` on the \
        source waits for.",
        &[("pgsluice scenarios", "v1_a_snapshot_that_is_no_prefix_of_the_commits_is_not_used")],
    ),
}
