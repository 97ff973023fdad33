//! Every error of a first copy, for docs/errors.md.

use base::error_reference::{Doing, Entry, HeldBy, entry, nothing_of_its_own};
use proto::frame::ServerError;
use source::publication::TableName;

use crate::Error;
use crate::error::Kind;

const MISSING: HeldBy = ("pgsluice scenarios", "what_is_missing_is_named_and_nothing_is_left");
const RIGHTS: HeldBy = ("pgsluice scenarios", "f6_without_the_right_to_be_a_replica_it_refuses");
const REWRITTEN: HeldBy = (
    "pgsluice scenarios",
    "c1_a_table_that_is_written_anew_before_its_turn_is_copied_under_another_snapshot",
);
const INTERRUPTED: HeldBy = ("pgsluice scenarios", "c1_a_copy_that_was_interrupted_goes_on");

base::error_reference! {
    /// Every way in which a first copy stops.
    #[must_use]
    pub fn error_reference() -> Error where error is error.kind() => Kind;
    Kind::Client { .. } => copying(
        "The target rejects a row",
        client("write it into the target", refused_row()),
        "A value does not fit the target's column, or it violates a constraint that only the target has. The \
        message does not show the row, only its line in the COPY.",
        "Alter the table on the target so that it accepts the source's rows; or leave the row out with a row \
        filter: `ALTER PUBLICATION ... SET TABLE ... WHERE`.",
        &[("copy scenarios", "contents")],
    ),
    Kind::Client { .. } => copying(
        "A server went away during the copy",
        client(
            "read it from the source",
            ServerError::new("FATAL", "57P01", "terminating connection due to administrator command"),
        ),
        "A server was stopped, or is short of connections, memory or disk. Finished tables stay finished. \
        pgsluice empties the others and copies them under a new snapshot.",
        "Repair what the server's message and log report. Look at `max_connections` and \
        `statement_timeout`.",
        &[INTERRUPTED],
    ),
    Kind::NoTable => copying(
        "The target lacks a table",
        Kind::NoTable,
        "The publication has a table that the target lacks, or has in another schema.",
        "Create the table on the target; or give `--create-schema` if the target has none of the tables; or \
        run `ALTER PUBLICATION ... DROP TABLE`.",
        &[MISSING],
    ),
    Kind::NotATable => copying(
        "The name is not a table on the target",
        Kind::NotATable,
        "The target has a view, a foreign table or a sequence of this name.",
        "Rename one of them, for example with `ALTER VIEW ... RENAME TO`.",
        &[],
    ),
    Kind::MissingColumns(_) => copying(
        "The target's table lacks a column (first copy)",
        Kind::MissingColumns(vec!["balance".to_owned()]),
        "The source publishes columns that the target's table lacks. No row was copied.",
        "Add the columns on the target with `ALTER TABLE ... ADD COLUMN`, or publish a column list without \
        them.",
        &[MISSING],
    ),
    Kind::NotReplica => copying(
        "The target's role may not copy as a replica",
        Kind::NotReplica,
        "Without `session_replication_role` the target's ordinary triggers and foreign keys would fire for every \
         copied row.",
        "Run `GRANT SET ON PARAMETER session_replication_role TO` the role on the target (15 and later). \
        Before 15, use a superuser. Or accept the triggers with `--allow-triggers`.",
        &[RIGHTS],
    ),
    Kind::Dropped => copying(
        "A table was dropped before it was copied",
        Kind::Dropped,
        "Somebody dropped the table on the source, or dropped it and created it again, after pgsluice had \
        listed the tables.",
        "Remove the table from the publication if it will not come back: `ALTER PUBLICATION ... DROP \
        TABLE`.",
        &[],
    ),
    Kind::Rewritten => copying(
        "A table was rewritten before it was copied",
        Kind::Rewritten,
        "pgsluice copies all tables under one snapshot. A table that ALTER TABLE rewrites before its turn \
        looks empty under that snapshot. pgsluice cannot tell TRUNCATE, VACUUM FULL and CLUSTER from such an \
        ALTER TABLE. It copies the other tables, and then this one under a new snapshot.",
        "Wait: pgsluice copies the table again by itself. If this repeats, avoid `ALTER TABLE`, `TRUNCATE`, \
        `VACUUM FULL` and `CLUSTER` until `pgsluice status` reports that the first copy is done.",
        &[REWRITTEN],
    ),
    Kind::SnapshotGone(_) => copying(
        "The copy's snapshot is gone",
        Kind::SnapshotGone(ServerError::new("ERROR", "22023", "invalid snapshot identifier").into()),
        "A snapshot lives as long as the session that exported it, and that session was lost. pgsluice \
        copies unfinished tables under a new snapshot.",
        "Find out what ends idle sessions on the source if this repeats: \
        `idle_in_transaction_session_timeout`, or a firewall.",
        &[INTERRUPTED],
    ),
    // The user asked to stop, so no error is reported.
    Kind::Stopped => nothing_of_its_own(),
    Kind::Broken(_) => copying(
        "The copy broke down",
        Kind::Broken("reading ended without an end".to_owned()),
        "This is a defect of pgsluice.",
        "Report it with the log of a run with `--log-level debug`. `pgsluice run` copies unfinished tables \
        again.",
        &[],
    ),
}

fn client(attempt: &'static str, error: ServerError) -> Kind {
    Kind::Client { attempt, cause: error.into() }
}

fn refused_row() -> ServerError {
    ServerError {
        context: Some("COPY accounts, line 5, column name: \"...\"".to_owned()),
        ..ServerError::new("ERROR", "22001", "value too long for type character varying(20)")
    }
}

fn copying(
    title: &'static str,
    kind: Kind,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<Error>; 1] {
    let table = TableName { schema: "public".to_owned(), name: "accounts".to_owned() };
    entry(Doing::Copying, title, Error::new(kind).of(&table), cause, remedy, held_by)
}
