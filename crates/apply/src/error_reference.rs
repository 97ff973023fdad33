//! Every error of applying, for docs/errors.md.

use std::io;
use std::time::Duration;

use base::error_reference::{Doing, Entry, HeldBy, carried, entry, nothing_of_its_own};
use base::{Lsn, Xid};
use conflict::{Conflict, ConflictType, Met};
use plan::MappingError;
use proto::frame::ServerError;

use crate::Error;
use crate::error::Kind;

const TABLE: &str = "public.accounts";
const XID: Xid = Xid(742);
const FINISHED_AT: Lsn = Lsn::new(0x16_B374_D848);

const COLUMN: HeldBy = ("pgsluice scenarios", "a_column_that_appears_on_the_source_only_is_named");
const SKIP: HeldBy = ("pgsluice scenarios", "skip_passes_over_what_the_target_has_no_column_for");
const EXISTS: HeldBy = ("pgsluice scenarios", "insert_exists_stops_until_it_is_resolved");

base::error_reference! {
    /// Lists every reason for which applying stops.
    #[must_use]
    pub fn error_reference() -> Error where error is error.kind() => Kind;
    // Documented with connections.
    Kind::Client(_) => nothing_of_its_own(),
    Kind::Assembly(_) => carried(txn::error_reference()),
    Kind::State(_) => carried(state::error_reference()),
    Kind::Mapping { error: MappingError::MissingTable { .. }, .. } => mapping(
        "The target lacks a table that has changes",
        MappingError::MissingTable { table: TABLE.to_owned() },
        "The table was dropped or renamed on the target, or it joined the publication through \
        `publish_via_partition_root`.",
        "Create the table on the target with the source's columns. Or run `ALTER PUBLICATION ... DROP \
        TABLE`, and skip what the source has sent already with `pgsluice skip --lsn LSN`.",
        &[],
    ),
    Kind::Mapping { error: MappingError::MissingColumns { .. }, .. } => mapping(
        "The target's table lacks a column",
        MappingError::MissingColumns { table: TABLE.to_owned(), columns: vec!["balance".to_owned()] },
        "The source publishes a column that the target's table lacks. Usually somebody added it on the \
        source only. No row of the transaction was written.",
        "Add the column on the target with `ALTER TABLE ... ADD COLUMN`; pgsluice then continues by itself. \
        Or leave it out of the publication's column list, and skip what the source has sent already with \
        `pgsluice skip --lsn LSN`.",
        &[COLUMN, SKIP],
    ),
    Kind::Mapping { error: MappingError::GeneratedColumn { .. }, .. } => mapping(
        "A published column is generated on the target",
        MappingError::GeneratedColumn { table: TABLE.to_owned(), column: "total".to_owned() },
        "The source sends values for a column that the target computes itself.",
        "Run `ALTER TABLE ... ALTER COLUMN ... DROP EXPRESSION` on the target, or leave the column out of \
        the publication's column list.",
        &[("pgsluice scenarios", "generated_columns_are_computed_on_each_end")],
    ),
    Kind::Mapping { error: MappingError::Rule { .. }, .. } => mapping(
        "A rule of the target fires for replicated changes",
        MappingError::Rule { table: TABLE.to_owned(), rule: "log_it".to_owned() },
        "The rule is `ENABLE REPLICA` or `ENABLE ALWAYS`. PostgreSQL's own worker writes below the level of \
        rules; SQL cannot.",
        "Run `ALTER TABLE ... DISABLE RULE` on the target, or replace the rule with a trigger.",
        &[("pgsluice scenarios", "f5_rules_for_replicas_are_refused_by_name")],
    ),
    Kind::Change { .. } => applying(
        "The target rejects a change",
        Kind::Change {
            table: TABLE.to_owned(),
            operation: "INSERT",
            xid: XID,
            finished_at: FINISHED_AT,
            error: ServerError::new("ERROR", "23514", "new row violates check constraint \"positive\""),
        },
        "A constraint, a trigger, row security or a type on the target rejects the row. The source has none \
        that does.",
        "Alter or drop what rejects the row on the target. Or skip the transaction with `pgsluice skip --lsn \
        LSN`, at the LSN in the message.",
        &[
            ("pgsluice scenarios", "other_constraints_of_the_target_are_errors"),
            ("pgsluice scenarios", "a_value_that_does_not_fit_is_not_cut_short"),
        ],
    ),
    Kind::Conflict { .. } => conflict(
        "A row to insert exists already",
        ConflictType::InsertExists,
        "accounts_pkey",
        "Another writer inserted a row with this key on the target.",
        &[EXISTS],
    ),
    Kind::Conflict { .. } => conflict(
        "An update leads to a key that exists already",
        ConflictType::UpdateExists,
        "accounts_email_key",
        "A row that only the target has holds the new value of a unique key.",
        &[("pgsluice scenarios", "update_exists_names_the_index")],
    ),
    Kind::Conflict { .. } => conflict(
        "A change conflicts with several unique keys",
        ConflictType::MultipleUniqueConflicts,
        "accounts_pkey, accounts_email_key",
        "Rows that only the target has hold values of several unique keys of the new row.",
        &[("pgsluice scenarios", "several_keys_are_named_together")],
    ),
    Kind::Commit { .. } => applying(
        "The target rejects a commit",
        Kind::Commit {
            xid: XID,
            finished_at: FINISHED_AT,
            error: ServerError::new("ERROR", "23505", "duplicate key value violates \"accounts_rank_key\""),
        },
        "The target checks a deferred constraint or a constraint trigger at the commit, and it does not \
        hold.",
        "Repair the rows on the target, or drop the constraint there. Or skip the transaction with `pgsluice \
        skip --lsn LSN`.",
        &[("pgsluice scenarios", "an_error_at_commit_names_its_transaction")],
    ),
    Kind::Statement { .. } => applying(
        "A statement of pgsluice itself fails on the target",
        Kind::Statement {
            what: "recording a table as joined",
            error: ServerError::new("ERROR", "53100", "could not extend file \"base/16384/16385\""),
        },
        "The target is short of a resource, or somebody altered what pgsluice keeps there in schema \
        `pgsluice`.",
        "Do what the server's message says: make room, or raise the limit that it names. `pgsluice check` \
        looks at both ends.",
        &[("pgsluice scenarios", "a_full_disk_of_the_target_is_waited_for")],
    ),
    Kind::NoIdentity { .. } => applying(
        "A change for a table without a replica identity",
        Kind::NoIdentity { table: TABLE.to_owned(), operation: "UPDATE", xid: XID, finished_at: FINISHED_AT },
        "Without a primary key, a named index or FULL, the source cannot say which row it changed.",
        "Run `ALTER TABLE ... REPLICA IDENTITY FULL` (or `USING INDEX`) on the source. Then skip what the \
        source has sent already with `pgsluice skip --lsn LSN`.",
        &[],
    ),
    Kind::NoCommitTimes { .. } => applying(
        "A conflict rule needs commit times",
        Kind::NoCommitTimes { rule: "insert_exists=last_update_wins".to_owned() },
        "The rule compares commit times, or is about rows that another origin wrote. A server knows both only with \
         `track_commit_timestamp = on`.",
        "Run on the target `ALTER SYSTEM SET track_commit_timestamp = on` and restart it, or choose another \
         resolution.",
        &[("pgsluice scenarios", "a_rule_that_needs_commit_times_is_refused_without_them")],
    ),
    Kind::ClockSkew { .. } => applying(
        "A commit time is far ahead of the target's clock",
        Kind::ClockSkew {
            ahead: Duration::from_secs(3600),
            max: Duration::from_secs(30),
            xid: XID,
            finished_at: FINISHED_AT,
        },
        "A conflict rule compares commit times, so pgsluice holds each transaction until the target's clock has \
         passed its commit time. The clock of the server that wrote it is ahead by more than `clock_skew_max`.",
        "Correct the clocks of both servers (`chronyc tracking` shows the offset of each). pgsluice tries again and \
         goes on by itself. It waits longer with a larger `--clock-skew-max`. Or skip the transaction with \
         `pgsluice skip --lsn LSN`.",
        &[("pgsluice scenarios", "a_commit_time_far_ahead_is_an_error_until_the_clocks_agree")],
    ),
    Kind::Incomplete { .. } => applying(
        "An update cannot be inserted instead",
        Kind::Incomplete { table: TABLE.to_owned(), xid: XID, finished_at: FINISHED_AT },
        "The rule `update_missing=apply_remote` inserts the row, and the source did not send a large value that the \
         update left as it was.",
        "Run on the source `ALTER TABLE ... REPLICA IDENTITY FULL`; insert the row on the target, or skip the \
         transaction with `pgsluice skip --lsn LSN`.",
        &[("pgsluice scenarios", "an_update_that_lacks_a_large_value_is_not_inserted")],
    ),
    Kind::Unsettled { .. } => applying(
        "A change meets other rows each time it is tried",
        Kind::Unsettled { table: TABLE.to_owned(), operation: "UPDATE", xid: XID, finished_at: FINISHED_AT },
        "Other sessions of the target insert and delete rows of the same key without a pause, or something on the \
         target keeps the row as it is without an error.",
        "Look in `pg_stat_activity` of the target at what writes the table. pgsluice tries again, and goes on by itself \
         once that pauses.",
        &[],
    ),
    Kind::PutAside(_) => entry(
        Doing::KeepingState,
        "Changes cannot be written to the spool directory, or read back",
        Kind::PutAside(io::Error::other("Input/output error (os error 5)")),
        "Unapplied changes wait in the spool directory, and the disk failed or is full. With `commit_order = \
        relaxed`, each transaction that is larger than a batch waits there as a whole.",
        "Make room, repair the disk, or give another place with `--state-dir`. The source sends the changes \
        again.",
        &[],
    ),
    Kind::NotReplica => entry(
        Doing::Starting,
        "The target's role may not apply as a replica",
        Kind::NotReplica,
        "Without `session_replication_role` the target's ordinary triggers and foreign keys would fire for \
        changes that the source's triggers and keys have already handled.",
        "Run `GRANT SET ON PARAMETER session_replication_role TO` the role on the target (15 and later). \
        Before 15, use a superuser. Or accept the triggers with `--allow-triggers`.",
        &[("pgsluice scenarios", "f6_without_the_right_to_be_a_replica_it_refuses")],
    ),
    Kind::OtherTypes { .. } => applying(
        "A column had another type",
        Kind::OtherTypes { table: TABLE.to_owned(), column: "balance".to_owned() },
        "The column's type was changed on both ends while older rows were still unapplied. pgsluice decides \
        at the start whether values come in binary, from the types that both ends have then.",
        "Leave it: the stream restarts with values as text, the form that `--binary off` always uses.",
        &[("pgsluice scenarios", "a_column_that_was_widened_on_both_ends_takes_what_came_before")],
    ),
    Kind::Forgotten { .. } => applying(
        "A table was removed while it joined",
        Kind::Forgotten { table: TABLE.to_owned() },
        "The table's row in `pgsluice.copied_table` was removed while the table was copied.",
        "Leave it: the stream restarts without the table. If the table is published, `pgsluice refresh` adds \
        it again.",
        &[],
    ),
    Kind::LostTask => applying(
        "The applier's task is lost",
        Kind::LostTask,
        "This is a defect of pgsluice.",
        "Report it with the log of a run with `--log-level debug`.",
        &[],
    ),
}

fn applying(
    title: &'static str,
    kind: Kind,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<Error>; 1] {
    entry(Doing::Applying, title, kind, cause, remedy, held_by)
}

/// An entry for an error that a transaction of the stream meets.
fn mapping(
    title: &'static str,
    error: MappingError,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<Error>; 1] {
    applying(title, Kind::Mapping { error, transaction: Some((XID, FINISHED_AT)) }, cause, remedy, held_by)
}

fn conflict(
    title: &'static str,
    kind: ConflictType,
    index: &str,
    cause: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<Error>; 1] {
    let met =
        index.split(", ").map(|index| Met { index: Some(index.to_owned()), ..Met::default() }).collect();
    let conflict = Conflict { kind, relation: TABLE.to_owned(), met };
    applying(
        title,
        Kind::Conflict { conflict, xid: XID, finished_at: FINISHED_AT },
        cause,
        "Remove or change the row on the target; pgsluice then continues by itself. Or skip the whole \
        transaction with `pgsluice skip --lsn LSN`.",
        held_by,
    )
}
