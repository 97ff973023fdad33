//! Precedence, units and refusals, as tables.

use std::io::Write as _;
use std::time::Duration;

use clap::CommandFactory;

use super::*;
use crate::cli::Cli;
use crate::conflict_rule::ConflictRule;
use crate::exit::{Code, code_of};
use crate::units::{Bytes, Milliseconds, OnOff, Seconds};

/// The settings of `pgsluice run` with these flags, variables and file.
fn read(flags: &[&str], env: &[(&str, &str)], file: Option<&str>) -> anyhow::Result<Vec<SettingsTable>> {
    let mut words = vec!["pgsluice", "run"];
    words.extend(flags);
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("pgsluice.toml");
    if let Some(text) = file {
        std::fs::File::create(&path)?.write_all(text.as_bytes())?;
        words.extend(["--config", path.to_str().unwrap()]);
    }
    let matches = Cli::command().try_get_matches_from(words)?;
    let (_, own) = matches.subcommand().unwrap();
    let look_up =
        |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(*value));
    Config::gather(Setting::all(), own, &look_up)?.subscriptions()
}

/// The one subscription of valid settings.
fn one(flags: &[&str], env: &[(&str, &str)], file: Option<&str>) -> SettingsTable {
    let mut tables = read(flags, env, file).unwrap();
    assert_eq!(tables.len(), 1);
    tables.remove(0)
}

/// The message about invalid settings.
fn refused(flags: &[&str], env: &[(&str, &str)], file: Option<&str>) -> String {
    let error = read(flags, env, file).unwrap_err();
    assert_eq!(code_of(&error), Code::Usage, "{error:#}");
    format!("{error:#}")
}

#[test]
fn flag_over_environment_over_file_over_default() {
    let flag: &[&str] = &["--batch-rows-max", "1"];
    let env: &[(&str, &str)] = &[("PGSLUICE_BATCH_ROWS_MAX", "2")];
    let own = "batch_rows_max = 4\n[[subscription]]\nname = \"s\"\nbatch_rows_max = 3\n";
    let top = "batch_rows_max = 4\n[[subscription]]\nname = \"s\"\n";
    type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], Option<&'a str>, u32);
    let cases: &[Case<'_>] = &[
        (flag, env, Some(own), 1),
        (&[], env, Some(own), 2),
        (&[], &[], Some(own), 3),
        (&[], &[], Some(top), 4),
        (&[], &[], Some("batch_rows_max = \"5\""), 5),
        (&[], &[("PGSLUICE_BATCH_ROWS_MAX", "")], Some(top), 4),
        (&[], &[], None, 100_000),
        (flag, &[], None, 1),
    ];
    for (flags, env, file, expected) in cases {
        assert_eq!(one(flags, env, *file).apply.batch_rows_max, *expected, "{flags:?} {env:?} {file:?}");
    }
}

#[test]
fn lists_come_from_one_place_alone() {
    let file = "publication = [\"a\", \"b,c\"]";
    assert_eq!(one(&[], &[], Some(file)).stream.publication, ["a", "b,c"]);
    assert_eq!(one(&[], &[], Some("publication = \"a\"")).stream.publication, ["a"]);
    let env: &[(&str, &str)] = &[("PGSLUICE_PUBLICATION", "d, e")];
    assert_eq!(one(&[], env, Some(file)).stream.publication, ["d", "e"]);
    let flags = ["--publication", "f", "--publication=g"];
    assert_eq!(one(&flags, env, Some(file)).stream.publication, ["f", "g"]);
}

#[test]
fn values_have_postgresqls_units_and_switches() {
    let file = "wal_receiver_timeout = 1500\nwal_receiver_status_interval = 2\ncopy_split_bytes = \"64 MB\"\n\
                wal_retrieve_retry_interval = \"1min\"\nstreaming = false\ncopy_data = \"off\"\nbatch_bytes_max = 8192";
    let table = one(&["--disable-on-error", "--allow-triggers", "off"], &[], Some(file));
    assert_eq!(table.stream.wal_receiver_timeout, Milliseconds(Duration::from_millis(1_500)));
    assert_eq!(table.stream.wal_receiver_status_interval, Seconds(Duration::from_secs(2)));
    assert_eq!(table.stream.wal_retrieve_retry_interval, Milliseconds(Duration::from_secs(60)));
    assert_eq!(table.copy.copy_split_bytes, Bytes(64 << 20));
    assert_eq!(table.apply.batch_bytes_max, Bytes(8_192));
    assert_eq!((table.stream.streaming, table.copy.copy_data), (OnOff(false), OnOff(false)));
    assert_eq!((table.apply.disable_on_error, table.apply.allow_triggers), (OnOff(true), OnOff(false)));
}

#[test]
fn one_process_may_have_several_subscriptions() {
    let file = "source = \"dbname=a\"\ntarget = \"dbname=b\"\nmetrics = \"127.0.0.1:9187\"\n\
                [[subscription]]\nname = \"one\"\npublication = \"p\"\n\
                [[subscription]]\nname = \"two\"\npublication = [\"q\", \"r\"]\nsource = \"dbname=c\"\n";
    let tables = read(&[], &[], Some(file)).unwrap();
    let seen: Vec<_> = tables
        .iter()
        .map(|table| (table.which.subscription.as_deref().unwrap(), table.ends.source.as_deref().unwrap()))
        .collect();
    assert_eq!(seen, [("one", "dbname=a"), ("two", "dbname=c")]);
    assert!(tables.iter().all(|table| table.process.metrics.is_some()));
    for (flags, env) in
        [(vec!["--subscription", "two"], vec![]), (vec![], vec![("PGSLUICE_SUBSCRIPTION", "two")])]
    {
        let table = one(&flags, &env, Some(file));
        assert_eq!(table.stream.publication, ["q", "r"]);
    }
    let message = refused(&["--subscription", "three"], &[], Some(file));
    assert!(message.contains("\"three\"") && message.contains("one, two"), "{message}");
}

#[test]
fn what_is_wrong_in_a_file_is_named_with_its_place() {
    let cases = [
        ("sorce = \"x\"", &["line 1", "unknown key \"sorce\"", "did you mean \"source\"?"][..]),
        ("\n\npublications = [\"p\"]", &["line 3", "\"publications\"", "did you mean \"publication\"?"]),
        (
            "[[subscription]]\nname = \"s\"\nwal_reciever_timeout = 1",
            &["line 3", "did you mean \"wal_receiver_timeout\"?"],
        ),
        ("zzz = 1", &["unknown key \"zzz\"", "config-reference"]),
        ("config = \"other.toml\"", &["unknown key \"config\""]),
        ("[subscription]\nname = \"s\"", &["\"subscription\" needs a text"]),
        (
            "[[subscription]]\nname = \"s\"\nmetrics = \"127.0.0.1:1\"",
            &["line 3", "\"metrics\"", "top level"],
        ),
        ("[[subscription]]\nname = \"s\"\nsubscription = \"s\"", &["unknown key \"subscription\""]),
        ("[[subscription]]\npublication = \"p\"", &["needs a name"]),
        (
            "[[subscription]]\nname = \"s\"\n[[subscription]]\nname = \"s\"",
            &["two subscriptions are named \"s\""],
        ),
        ("source = [\"a\", \"b\"]", &["\"source\" needs a text"]),
        ("publication = [[\"a\"]]", &["or a list"]),
        ("batch_rows_max = 0", &["\"0\"", "batch_rows_max in ", "pgsluice.toml"]),
        (
            "wal_receiver_timeout = \"1 minute\"",
            &["\"1 minute\"", "wal_receiver_timeout in ", "us, ms, s, min, h, d"],
        ),
        ("binary = \"maybe\"", &["\"maybe\"", "auto, on, off"]),
        ("streaming = \"parallel\"", &["\"parallel\"", "expected on or off"]),
        ("source = ", &["line 1"]),
        ("a = 1\na = 2", &["line 2"]),
    ];
    for (file, parts) in cases {
        let message = refused(&[], &[], Some(file));
        for part in parts.iter().chain(&["pgsluice.toml"]) {
            assert!(message.contains(part), "{file:?}: {message}");
        }
    }
}

#[test]
fn what_is_wrong_elsewhere_is_named_too() {
    let message = refused(&[], &[("PGSLUICE_BATCH_BYTES_MAX", "3KB")], None);
    assert!(message.contains("PGSLUICE_BATCH_BYTES_MAX") && message.contains("kB"), "{message}");
    let message = refused(&["--config", "/nowhere/x.toml"], &[], None);
    assert!(message.contains("/nowhere/x.toml"), "{message}");
}

#[test]
fn every_setting_can_be_set_everywhere() {
    // A value that each setting accepts and that is not its default.
    let value = |setting: &Setting| match setting.key.as_str() {
        "source_mode" => "wal",
        "binary" | "keep_commit_timestamps" => "off",
        "origin" => "none",
        "commit_order" => "relaxed",
        "on_table_replaced" => "copy",
        "conflict" => "insert_exists=skip",
        "synchronous_commit" => "remote_apply",
        "log_format" => "json",
        "metrics" => "127.0.0.1:1",
        "wal_stream"
        | "streaming"
        | "copy_data"
        | "detect_origin_differs"
        | "prefetch"
        | "prefetch_replica_identity_only" => "off",
        "disable_on_error"
        | "allow_triggers"
        | "create_schema"
        | "conflict_log_values"
        | "retain_dead_tuples" => "on",
        _ => "7",
    };
    for setting in Setting::all().into_iter().filter(|setting| setting.key != "config") {
        let value = value(&setting);
        let from_flag = one(&[&setting.flag(), value], &[], None);
        let from_env = one(&[], &[(&setting.variable(), value)], None);
        let from_file = one(&[], &[], Some(&format!("{} = \"{value}\"", setting.key)));
        let mut from_file = format!("{from_file:?}");
        // Only the file's own name differs.
        let start = from_file.find("config: Some(").unwrap();
        let end = start + from_file[start..].find(')').unwrap() + 1;
        from_file.replace_range(start..end, "config: None");
        assert_eq!(format!("{from_flag:?}"), format!("{from_env:?}"), "{}", setting.key);
        assert_ne!(format!("{from_flag:?}"), format!("{:?}", one(&[], &[], None)), "{}", setting.key);
        assert!(from_file == format!("{from_flag:?}"), "{}: {from_file}", setting.key);
    }
}

/// `detect_update_deleted` is `retain_dead_tuples`.
#[test]
fn a_setting_with_two_names_is_given_by_one_of_them() {
    let retains = |table: SettingsTable| table.conflicts.retain_dead_tuples == OnOff(true);
    let alias = "PGSLUICE_DETECT_UPDATE_DELETED";
    assert!(retains(one(&["--detect-update-deleted"], &[], None)));
    assert!(retains(one(&[], &[(alias, "on")], None)));
    assert!(retains(one(&[], &[], Some("detect_update_deleted = true"))));
    let of_subscription = "detect_update_deleted = false\n[[subscription]]\nname = \"s\"\n";
    let own = |line: &str| format!("{of_subscription}{line}\n");
    assert!(retains(one(&[], &[], Some(&own("detect_update_deleted = true")))));
    // A stronger place decides, whichever name it uses.
    assert!(retains(one(&[], &[], Some(&own("retain_dead_tuples = true")))));
    assert!(retains(one(&[], &[("PGSLUICE_RETAIN_DEAD_TUPLES", "on")], Some(of_subscription))));
    assert!(!retains(one(&["--retain-dead-tuples", "off"], &[(alias, "on")], None)));
    assert!(!retains(one(&["--detect-update-deleted=off"], &[], Some("retain_dead_tuples = true"))));
    // In one place they could contradict each other.
    let both = "[[subscription]]\nname = \"s\"\nretain_dead_tuples = true\ndetect_update_deleted = false";
    for file in [both, "detect_update_deleted = true\nretain_dead_tuples = false"] {
        let message = refused(&[], &[], Some(file));
        for part in
            ["pgsluice.toml, line ", "retain_dead_tuples", "detect_update_deleted", "give one of them"]
        {
            assert!(message.contains(part), "{file}: {message}");
        }
    }
    let message = refused(&[], &[(alias, "on"), ("PGSLUICE_RETAIN_DEAD_TUPLES", "off")], None);
    for part in [alias, "PGSLUICE_RETAIN_DEAD_TUPLES", "give one of them"] {
        assert!(message.contains(part), "{message}");
    }
    let message = refused(&[], &[], Some("detect_update_delete = true"));
    assert!(message.contains("did you mean \"detect_update_deleted\"?"), "{message}");
}

#[test]
fn what_the_target_has_stored_is_weaker_than_all_but_the_default() {
    let stored = || BTreeMap::from([("batch_rows_max".to_owned(), vec![OsString::from("7")])]);
    let read = |words: &[&str]| {
        let words = [&["pgsluice", "run", "--subscription", "s"], words].concat();
        let matches = Cli::command().try_get_matches_from(words).unwrap();
        let mut config = Config::gather(Setting::all(), matches.subcommand().unwrap().1, &|_| None).unwrap();
        config.add_stored("s", stored());
        config.add_stored("other", BTreeMap::from([("batch_rows_max".to_owned(), vec!["8".into()])]));
        config.subscriptions().unwrap().remove(0).apply.batch_rows_max
    };
    assert_eq!(read(&[]), 7);
    assert_eq!(read(&["--batch-rows-max", "1"]), 1);
}

/// A file with these lines in a `[[subscription.conflict]]`, behind that of line 3.
fn with_conflict(lines: &str) -> String {
    format!("[[subscription]]\nname = \"s\"\n[[subscription.conflict]]\n{lines}\n")
}

#[test]
fn conflict_rules_stand_in_tables_or_in_texts() {
    let expected: Vec<ConflictRule> =
        ["insert_exists=last_update_wins", "update_missing=apply_remote:public.T"]
            .map(|text| text.parse().unwrap())
            .into();
    let tables = with_conflict(
        "type = \"insert_exists\"\nresolution = \"last_update_wins\"\n[[subscription.conflict]]\n\
         table = \"public.T\"\ntype = \"update_missing\"\nresolution = \"apply_remote\"",
    );
    let texts = "conflict = [\"insert_exists=last_update_wins\", \"update_missing=apply_remote:public.T\"]";
    let mixed = "conflict = [\"insert_exists=last_update_wins\", \
                 { type = \"update_missing\", resolution = \"apply_remote\", table = \"public.T\" }]";
    for file in [&tables, texts, mixed] {
        assert_eq!(one(&[], &[], Some(file)).conflicts.conflict, expected, "{file}");
    }
    let env = [("PGSLUICE_CONFLICT", "insert_exists=last_update_wins, update_missing=apply_remote:public.T")];
    assert_eq!(one(&[], &env, None).conflicts.conflict, expected);
    let flag = ["--conflict", "insert_exists=error"];
    let by_flag = one(&flag, &env, Some(&tables)).conflicts.conflict;
    assert_eq!(by_flag, ["insert_exists=error".parse().unwrap()], "a flag replaces the whole list");
}

#[test]
fn a_conflict_rule_without_a_meaning_is_refused_with_its_place() {
    let (kind, skip) = ("type = \"insert_exists\"", "resolution = \"skip\"");
    let cases = [
        (skip.to_owned(), &["line 3", "type is missing"][..]),
        (kind.to_owned(), &["line 3", "resolution is missing"]),
        (format!("type = 1\n{skip}"), &["line 3", "type must be text"]),
        (format!("{kind}\n{skip}\ntables = \"s.t\""), &["unknown key \"tables\"", "table, type, resolution"]),
        (format!("type = \"insert\"\n{skip}"), &["\"insert\" is not a conflict type", "insert_exists"]),
        (format!("{kind}\nresolution = \"newest\""), &["\"newest\"", "last_update_wins"]),
        (
            "type = \"delete_missing\"\nresolution = \"apply_remote\"".to_owned(),
            &["delete_missing cannot be resolved by apply_remote", "choose one of error, skip"],
        ),
        (format!("{kind}\n{skip}\ntable = \"t\""), &["\"t\" is no table", "schema.name"]),
    ];
    for (lines, parts) in cases {
        let message = refused(&[], &[], Some(&with_conflict(&lines)));
        for part in parts.iter().chain(&["conflict", "pgsluice.toml"]) {
            assert!(message.contains(part), "{lines}: {part}: {message}");
        }
    }
    let message = refused(&[], &[], Some("conflict = [1.5, { type = \"insert_exists\" }]"));
    assert!(message.contains("conflict"), "{message}");
}

/// Two rules for one type and table must agree; the same type of another table is another rule.
#[test]
fn a_table_twice_must_have_one_resolution() {
    let two = |resolution: &str, table: &str| {
        with_conflict(&format!(
            "type = \"insert_exists\"\nresolution = \"skip\"\ntable = \"s.t\"\n[[subscription.conflict]]\n\
             type = \"insert_exists\"\nresolution = \"{resolution}\"\ntable = \"{table}\""
        ))
    };
    let rules = |file: &str| crate::conflict_rule::rules(&one(&[], &[], Some(file)).conflicts.conflict);
    assert!(rules(&two("skip", "s.t")).is_ok());
    assert!(rules(&two("error", "s.u")).is_ok());
    let message = rules(&two("error", "s.t")).unwrap_err();
    assert!(message.contains("two resolutions for insert_exists of s.t, skip and error"), "{message}");
}
