//! Every error of bringing a schema over, for docs/errors.md.

use base::error_reference::{Doing, Entry, HeldBy, entry};
use client::SqlState;
use proto::frame::ServerError;

use crate::error::Kind;
use crate::{Error, PgDump};

const PG_DUMP: HeldBy =
    ("pgsluice scenarios", "a_pg_dump_that_will_not_do_is_refused_before_anything_is_made");
const REFUSED: HeldBy = ("pgsluice scenarios", "what_the_target_does_not_take_is_named_and_nothing_is_left");
const RIGHTS: HeldBy = ("pgsluice scenarios", "rights_that_are_missing_are_named_and_nothing_is_left");

base::error_reference! {
    /// Every way in which a schema is not created.
    #[must_use]
    pub fn error_reference() -> Error where error is error.kind() => Kind;
    Kind::NotPgDump { .. } => creating(
        "The program that --pg-dump names is not pg_dump",
        Kind::NotPgDump {
            path: "/usr/bin/psql".into(),
            why: "it is no pg_dump: to --version it says \"psql (PostgreSQL) 18.0\"".to_owned(),
            source_major: 17,
        },
        "The path does not exist, is not executable, or is another program.",
        "Correct `--pg-dump`.",
        &[PG_DUMP],
    ),
    Kind::NoPgDump { .. } => creating(
        "pg_dump is not installed",
        Kind::NoPgDump { source_major: 17 },
        "`--create-schema` reads the source's schema with PostgreSQL's own pg_dump. This machine has none, \
        neither in PATH nor where packages install it.",
        "Install the client programs of the source's version or newer (`apt install postgresql-client-17`), or give \
         `--pg-dump`.",
        &[PG_DUMP],
    ),
    Kind::OldPgDump { .. } => creating(
        "pg_dump is too old for the source",
        Kind::OldPgDump { found: vec![pg_dump()], source_major: 18 },
        "pg_dump cannot read a server that is newer than itself.",
        "Install a newer pg_dump, or give its path with `--pg-dump`.",
        &[PG_DUMP],
    ),
    Kind::DumpFailed { .. } => creating(
        "pg_dump fails",
        Kind::DumpFailed {
            program: pg_dump(),
            words: "pg_dump: error: query failed: ERROR:  permission denied for schema app".to_owned(),
            passing: false,
        },
        "pg_dump reads every object of the source's database, not only the published ones. The source's role \
        may not read one of them; or the connection was lost, and `run` then tries again.",
        "Do what pg_dump's message says. Usually the source's role needs `GRANT USAGE ON SCHEMA` and `GRANT \
        SELECT`.",
        &[],
    ),
    Kind::NotUtf8 { .. } => creating(
        "Names that are not UTF-8",
        Kind::NotUtf8 { program: pg_dump() },
        "In a database with encoding SQL_ASCII, a name may be any sequence of bytes.",
        "Rename them on the source with `ALTER TABLE ... RENAME`.",
        &[],
    ),
    Kind::CutDump { .. } => creating(
        "pg_dump printed half a schema",
        Kind::CutDump { within: "TABLE public.accounts".to_owned() },
        "The output ends in the middle of a statement. Somebody ended pg_dump, or it printed a form that \
        pgsluice does not know.",
        "Give another version with `--pg-dump`, or create the tables yourself with `pg_dump --schema-only`.",
        &[],
    ),
    Kind::UnknownCommand { .. } => creating(
        "pg_dump printed an unknown command",
        Kind::UnknownCommand { line: "\\connect shop".to_owned() },
        "This pg_dump is newer than the versions that this pgsluice knows.",
        "Give an older version with `--pg-dump`, but not one older than the source.",
        &[],
    ),
    Kind::MissingRoles { .. } => creating(
        "The target lacks roles that policies name",
        Kind::MissingRoles { roles: "\"clerk\", \"auditor\"".to_owned() },
        "A row security policy that is created without its role would show rows to other roles.",
        "Create each of the roles on the target with `CREATE ROLE`.",
        &[RIGHTS],
    ),
    Kind::Client { .. } => creating(
        "The target rejects a statement of the schema",
        Kind::Client {
            attempt: "create EXTENSION hstore on the target (CREATE EXTENSION IF NOT EXISTS hstore)".to_owned(),
            cause: ServerError::new("ERROR", "0A000", "extension \"hstore\" is not available").into(),
            remedy: crate::refusal::remedy(SqlState::FEATURE_NOT_SUPPORTED.code(), "EXTENSION hstore"),
        },
        "An extension is not installed there, an object exists already, the role may not create the object, \
        or the target has another version. Before the copy, a failure leaves nothing behind.",
        "Do what the message says. If it does not help, create the schema yourself with `pg_dump \
        --schema-only`, and run without `--create-schema`.",
        &[REFUSED, RIGHTS],
    ),
    Kind::Broken(_) => creating(
        "Creating the schema broke down",
        Kind::Broken("task 7 panicked".to_owned()),
        "This is a defect of pgsluice.",
        "Report it with the log of a run with `--log-level debug`. `pgsluice run` continues where it \
        stopped.",
        &[],
    ),
}

fn pg_dump() -> PgDump {
    PgDump::known("/usr/lib/postgresql/17/bin/pg_dump", "17.6", 17)
}

fn creating(
    title: &'static str,
    kind: Kind,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<Error>; 1] {
    entry(Doing::CreatingSchema, title, kind, cause, remedy, held_by)
}
