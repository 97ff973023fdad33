//! Every failure of the program itself, for docs/errors.md.

use std::io;
use std::time::Duration;

use base::SubscriptionName;
use base::error_reference::{Doing, Entry, HeldBy, entry, nothing_of_its_own};
use tracing_subscriber::EnvFilter;

use super::Failure;
use crate::units::Bytes;

const FILE: &str = "/etc/pgsluice.toml";

const USAGE: HeldBy = ("pgsluice usage", "a_wrong_command_line_ends_with_code_2_and_names_the_remedy");
const SEVERAL: HeldBy = ("pgsluice usage", "several_subscriptions_want_a_choice_where_only_one_can_be_meant");
const FILES: HeldBy = ("pgsluice", "what_is_wrong_in_a_file_is_named_with_its_place");
const VALUES: HeldBy = ("pgsluice", "what_is_wrong_elsewhere_is_named_too");
const NAMES: HeldBy = ("pgsluice", "a_setting_with_two_names_is_given_by_one_of_them");
const RELAY: HeldBy = ("pgsluice relay", "what_a_relay_lacks_is_named");
const ADOPT: HeldBy = ("pgsluice scenarios", "what_cannot_be_adopted_is_refused_and_left_as_it_is");

base::error_reference! {
    /// Every way in which a command does not do its work.
    pub(crate) fn error_reference() -> Failure where error is error => Failure;
    Failure::ConfigFile { .. } => configuring(
        "The configuration file cannot be read",
        Failure::ConfigFile { path: FILE.into(), error: io::Error::other("No such file or directory (os error 2)") },
        "`--config` or `PGSLUICE_CONFIG` names a file that does not exist, or that the user of this process \
        may not read.",
        "Correct the path in `--config`, or the file's owner and mode.",
        &[VALUES],
    ),
    Failure::Toml { .. } => configuring(
        "The configuration file is not valid TOML",
        Failure::Toml { place: at_line(3), message: "string values must be quoted".to_owned() },
        "A quote, a bracket or an equals sign is missing at that line or just before.",
        "Correct the line. `pgsluice config-reference` shows each key.",
        &[FILES],
    ),
    Failure::UnknownKey { suggestion: Some(_), .. } => configuring(
        "A key with a spelling mistake",
        Failure::UnknownKey {
            place: at_line(3),
            key: "sourc".to_owned(),
            suggestion: Some("source".to_owned()),
        },
        "The file has a key that pgsluice does not know. pgsluice ignores no key silently.",
        "Correct the key. `pgsluice config-reference` lists them all.",
        &[FILES],
    ),
    Failure::UnknownKey { suggestion: None, .. } => configuring(
        "A key that does not exist",
        Failure::UnknownKey { place: at_line(3), key: "colour".to_owned(), suggestion: None },
        "The file has a key that pgsluice does not know, or does not allow at this place.",
        "Remove the key, or find the right one in `pgsluice config-reference`.",
        &[FILES],
    ),
    Failure::ProcessKey { .. } => configuring(
        "A key of the process inside a subscription",
        Failure::ProcessKey { place: at_line(7), key: "log_format".to_owned() },
        "Log and metrics belong to the whole process, and a process may run several subscriptions.",
        "Move the key above the first `[[subscription]]`.",
        &[FILES],
    ),
    Failure::WrongType { .. } => configuring(
        "A value of the wrong TOML type",
        Failure::WrongType { place: at_line(3), key: "publication".to_owned(), many: true },
        "The file has a table, a date or a list where the setting takes one value.",
        "Write a text in quotes, a number, or `true`. Write a list only where `pgsluice config-reference` \
        allows several values.",
        &[FILES],
    ),
    Failure::ConflictTable { .. } => configuring(
        "A conflict rule cannot be read",
        Failure::ConflictTable { place: at_line(7), reason: "type is missing".to_owned() },
        "A `[[subscription.conflict]]` table lacks a key, or has one that it may not have.",
        "Give it `type` and `resolution`, and `table = \"schema.name\"` if it is for one table.",
        &[FILES],
    ),
    Failure::Unnamed { .. } => configuring(
        "A subscription without a name",
        Failure::Unnamed { path: FILE.into() },
        "pgsluice tells the `[[subscription]]` tables of a file apart by their `name`.",
        "Add `name = \"...\"` to each.",
        &[FILES],
    ),
    Failure::TwoForms { .. } => configuring(
        "Two forms of a configuration file in one",
        Failure::TwoForms { path: FILE.into() },
        "A file either describes one subscription, named at its top, or has `[[subscription]]` tables.",
        "Move the top-level `subscription` into a `[[subscription]]` as its `name`.",
        &[FILES],
    ),
    Failure::NamedTwice { .. } => configuring(
        "Two subscriptions with the same name",
        Failure::NamedTwice { path: FILE.into(), name: "orders".to_owned() },
        "The slot, the origin and the files carry the name of the subscription, so two subscriptions cannot \
        share one.",
        "Give one of them another `name`.",
        &[FILES],
    ),
    Failure::TwoNames { .. } => configuring(
        "A setting under both of its names",
        Failure::TwoNames {
            place: at_line(7),
            names: ["retain_dead_tuples", "detect_update_deleted"].map(str::to_owned),
        },
        "The file has the setting under two names, or the environment has both variables. They could \
        contradict each other.",
        "Remove `detect_update_deleted`, or the other name that the message has.",
        &[NAMES],
    ),
    Failure::NotInFile { .. } => configuring(
        "A subscription that the file does not have",
        Failure::NotInFile {
            path: FILE.into(),
            wanted: "ordres".to_owned(),
            names: vec!["orders".to_owned(), "stock".to_owned()],
        },
        "`--subscription` chooses a subscription of the file, and the file has none with this name.",
        "Correct `--subscription`, or add a `[[subscription]]` with this name.",
        &[FILES],
    ),
    Failure::Value { .. } => configuring(
        "A setting with a value that it cannot have",
        Failure::Value {
            value: "3KB".to_owned(),
            place: "--batch-bytes-max".to_owned(),
            reason: "3KB".parse::<Bytes>().expect_err("the unit is kB").to_string(),
        },
        "The value is not a number, has an unknown unit, or is not one of the setting's words. The message \
        names the flag, variable or line that it came from.",
        "Correct the value there. `pgsluice config-reference` shows what each setting takes.",
        &[VALUES, USAGE],
    ),
    // No two settings exclude one another so far.
    Failure::Together(_) => nothing_of_its_own(),
    Failure::LogLevel { .. } => configuring(
        "A log level that does not exist",
        Failure::LogLevel {
            level: "info=loud".to_owned(),
            error: EnvFilter::try_new("info=loud").expect_err("there is no such level").to_string(),
        },
        "`log_level` takes error, warn, info, debug or trace, or directives such as `info,apply=debug`.",
        "Correct `--log-level`.",
        &[],
    ),
    Failure::NoName => configuring(
        "No subscription is named",
        Failure::NoName,
        "No flag, environment variable or file names a subscription or a publication.",
        "Give `--subscription`; or give `--publication`, and the subscription takes that name.",
        &[USAGE],
    ),
    Failure::BadName(_) => configuring(
        "A name that cannot be a subscription's",
        Failure::BadName("Orders-2".parse::<SubscriptionName>().expect_err("names are in lower case")),
        "The slot and the origins carry the subscription's name, and PostgreSQL allows only these characters \
        in a slot's name. Without `--subscription` the subscription takes the publication's name.",
        "Give another name with `--subscription`. The publication may keep its own.",
        &[USAGE],
    ),
    Failure::Missing { .. } => configuring(
        "A required setting is missing",
        Failure::Missing { key: "source" },
        "The command needs this setting, and no flag, environment variable or file has it.",
        "Give it as a flag, here `--source`, as an environment variable, or in the file.",
        &[USAGE],
    ),
    Failure::HiddenSource => entry(
        Doing::Adopting,
        "The native subscription's connection string cannot be read",
        Failure::HiddenSource,
        "The connection string may have a password, and PostgreSQL shows it to superusers only.",
        "Give the same connection string with `--source`.",
        &[],
    ),
    Failure::Conninfo { .. } => client::misread_error_reference()
        .into_iter()
        .map(|entry| entry.map(|error| Failure::Conninfo { key: "source", error })),
    Failure::NoStateDir => configuring(
        "There is no place for the state directory",
        Failure::NoStateDir,
        "The default state directory is below `XDG_STATE_HOME` or the home directory, and a service without \
        a home directory has neither.",
        "Give `--state-dir`, for example `/var/lib/pgsluice`.",
        &[("pgsluice", "state_dir_follows_the_xdg_specification")],
    ),
    Failure::Several(_) => configuring(
        "One of several subscriptions must be chosen",
        Failure::Several(vec!["orders".to_owned(), "stock".to_owned()]),
        "The file has several subscriptions, and this command works on one.",
        "Name one with `--subscription`.",
        &[SEVERAL],
    ),
    Failure::NoPublications { .. } => configuring(
        "The publications are unknown",
        Failure::NoPublications { name: name() },
        "The command line names no publication, and the target has stored none for this subscription.",
        "Give `--publication`; or give the `--subscription` that exists on the target.",
        &[],
    ),
    Failure::NoPage(_) => configuring(
        "The manual has no such page",
        Failure::NoPage("pgsluice-explode".to_owned()),
        "Each command has a manual page, and no command has this name.",
        "Run `pgsluice --help` to see the commands.",
        &[USAGE],
    ),
    Failure::NoDatabase { .. } => configuring(
        "The catalogs are of another database",
        Failure::NoDatabase { wanted: "shop".to_owned(), names: vec!["stock".to_owned()] },
        "`pgsluice catalog export` read another database than `--database` names.",
        "Name a database that the message lists, or leave `--database` out.",
        &[("pgsluice decode", "ranges_of_wal_are_printed_without_a_slot")],
    ),
    Failure::NoNative { .. } => entry(
        Doing::Adopting,
        "There is no such native subscription",
        Failure::NoNative { native: "orders".to_owned(), place: "db2:5432/shop as repl".to_owned() },
        "A subscription belongs to one database. The name is wrong, or `--target` leads to another database. \
        Without `--native`, pgsluice looks for the name of its own subscription.",
        "Give the name with `--native`, and the database in `--target`. `SELECT subname FROM \
        pg_subscription` shows the names.",
        &[ADOPT],
    ),
    Failure::Adopted { .. } => entry(
        Doing::Adopting,
        "The subscription to drop was adopted",
        Failure::Adopted { name: name(), native: "orders_native".to_owned() },
        "The slot belongs to the native subscription, which `drop` would leave without one.",
        "Hand it back with `pgsluice release`. `pgsluice drop --force` removes it with its slot.",
        &[],
    ),
    Failure::NoConflict { .. } => operating(
        "The history has no such conflict",
        Failure::NoConflict { name: name(), id: 12 },
        "The number is wrong or of another subscription, or the record was older than \
        `conflict_history_age`, or one too many for `conflict_history_rows`.",
        "Run `pgsluice conflicts` to see the conflicts that are there.",
        &[("pgsluice scenarios", "what_cannot_be_listed_is_refused_by_name")],
    ),
    Failure::StillRuns { .. } => operating(
        "The process does not end",
        Failure::StillRuns { name: name(), pid: 4711, bound: Duration::from_secs(30) },
        "The process was asked to stop and still writes. Its last batch waits for the target, or the machine \
        is overloaded.",
        "Look at its log. A second SIGTERM ends it at once, and so does `kill -9`; neither loses anything.",
        &[],
    ),
    Failure::NotLooked { .. } => operating(
        "The publication was not looked at",
        Failure::NotLooked { name: name(), phase: "waiting".to_owned(), bound: Duration::from_secs(60) },
        "The process copies, or waits after an error. It looks at the publication's tables only while it \
        streams.",
        "Read `pgsluice status`, repair what the process waits for, and repeat `pgsluice refresh`.",
        &[],
    ),
    Failure::Metrics { .. } => operating(
        "The metrics address cannot be used",
        Failure::Metrics {
            address: ([127, 0, 0, 1], 9187).into(),
            error: io::Error::other("Address already in use (os error 98)"),
        },
        "Another process listens at this address, or this machine does not have it.",
        "Give another address with `--metrics`.",
        &[],
    ),
    Failure::Listen { .. } => entry(
        Doing::Relaying,
        "The relay's address cannot be used",
        Failure::Listen {
            address: ([127, 0, 0, 1], 5433).into(),
            error: io::Error::other("Address already in use (os error 98)"),
        },
        "Another process listens at this address, or this machine does not have it.",
        "Give another address with `--listen`.",
        &[RELAY],
    ),
    Failure::RelayFile { .. } => entry(
        Doing::Relaying,
        "A file that says who may connect cannot be used",
        Failure::RelayFile {
            path: "/etc/pgsluice/hba.conf".into(),
            why: "line 3: type \"hostssh\" is none of local, host, hostssl and hostnossl".to_owned(),
        },
        "The file is not there, others may read it though it has passwords, or a line has a mistake. At SIGHUP \
        the old rules stay.",
        "Correct the line. `pgsluice user add` writes the file of users.",
        &[RELAY, ("pgsluice relay", "rules_are_read_again_at_sighup_and_a_mistake_keeps_the_old_ones")],
    ),
    Failure::NoUser { .. } => entry(
        Doing::Relaying,
        "The relay has no such user",
        Failure::NoUser { path: "/var/lib/pgsluice/users".into(), name: "sub".to_owned() },
        "The name is wrong, or the file is that of another relay.",
        "Run `pgsluice user list` to see the users, and give the relay's `--data-dir` or `--users-file`.",
        &[("pgsluice relay", "users_are_added_listed_and_removed")],
    ),
    Failure::NoVerifier { .. } => entry(
        Doing::Relaying,
        "The publisher gives no verifier",
        Failure::NoVerifier { name: "sub".to_owned(), why: "it has no password".to_owned() },
        "The role is not there, has no password or one that was stored with `password_encryption = md5`, or \
        the role of `--source` is no superuser.",
        "Set the role's password again with `password_encryption = 'scram-sha-256'`, or leave out \
        `--from-source` and type the password.",
        &[RELAY],
    ),
}

fn at_line(line: usize) -> String {
    format!("{FILE}, line {line}")
}

fn name() -> SubscriptionName {
    "orders".parse().expect("a name as in the manual")
}

fn configuring(
    title: &'static str,
    failure: Failure,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<Failure>; 1] {
    entry(Doing::Configuring, title, failure, cause, remedy, held_by)
}

fn operating(
    title: &'static str,
    failure: Failure,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<Failure>; 1] {
    entry(Doing::Operating, title, failure, cause, remedy, held_by)
}
