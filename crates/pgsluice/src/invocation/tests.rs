//! How commands in messages are completed.

use clap::Parser as _;

use super::*;

fn said(key: &str, value: &str, by_flag: bool) -> Said {
    Said { key: key.to_owned(), values: vec![value.into()], by_flag }
}

fn told(said: &[Said], env: &[(&str, &str)]) -> Invocation {
    let words = said.iter().flat_map(|own| {
        own.values.iter().map(|value| format!("--{}={}", own.key.replace('_', "-"), value.to_string_lossy()))
    });
    let table = crate::settings::SettingsTable::read(words.map(Into::into)).unwrap();
    let env = |name: &str| env.iter().find(|(own, _)| *own == name).map(|(_, value)| OsString::from(value));
    Invocation::new(said, &Subject::new(table).unwrap(), &env)
}

fn completed(own: &Invocation, text: &str) -> String {
    own.complete(text, Clone::clone)
}

const TARGET: &str = "postgres://u@h/db";

#[test]
fn a_command_gets_what_the_process_was_given_and_it_takes() {
    let given = [
        said("target", TARGET, true),
        said("source", "host=s dbname=d", true),
        said("publication", "p", true),
        said("batch_rows_max", "10", true),
        said("state_dir", "/s", true),
    ];
    let own = told(&given, &[]);
    let common = "--state-dir /s --subscription p";
    let cases = [
        ("pgsluice skip --lsn 1/2", format!("pgsluice skip --lsn 1/2 --target {TARGET} {common}")),
        ("pgsluice stop", format!("pgsluice stop {common}")),
        (
            "pgsluice drop --force",
            format!("pgsluice drop --force --source 'host=s dbname=d' --target {TARGET} {common}"),
        ),
    ];
    for (text, expected) in &cases {
        let got = completed(&own, &format!("it failed; to go on: {text}, then wait"));
        let (_, rest) = got.split_once("to go on: `").unwrap();
        let (command, rest) = rest.split_once('`').unwrap();
        let sorted = |command: &str| {
            let mut parts: Vec<String> = command.split(" --").map(str::to_owned).collect();
            parts.sort();
            parts
        };
        assert_eq!(sorted(command), sorted(expected));
        assert_eq!(rest, ", then wait");
        assert_eq!(completed(&own, &got), got, "once is enough");
    }
    let run = completed(&own, "pgsluice run --source-mode logical.");
    assert!(
        run.contains("--batch-rows-max 10") && run.contains("--publication p") && run.ends_with("`."),
        "{run}"
    );
}

#[test]
fn variables_stand_before_the_command_and_passwords_nowhere() {
    let given = [
        said("target", "postgres://u:sesame@h/db", false),
        said("subscription", "s", false),
        said("config", "/etc/a b.toml", true),
    ];
    let own = told(&given, &[("PGSSLMODE", "require"), ("PGPASSWORD", "sesame")]);
    let text = completed(&own, "pgsluice enable; or pgsluice stop; or pgsluice disable");
    assert!(!text.contains("sesame"), "{text}");
    assert_eq!(
        text,
        "`PGSSLMODE=require PGSLUICE_TARGET='user=u host=h dbname=db' pgsluice enable --config '/etc/a b.toml' \
         --subscription s` (its password is left out: set PGPASSWORD, or keep it in ~/.pgpass); or `pgsluice stop \
         --config '/etc/a b.toml' --subscription s`; or `PGSSLMODE=require PGSLUICE_TARGET='user=u host=h dbname=db' \
         pgsluice disable --config '/etc/a b.toml' --subscription s`"
    );
}

#[test]
fn what_is_no_command_or_cannot_be_completed_stays() {
    let own = told(&[said("subscription", "s", true), said("target", TARGET, true)], &[]);
    for text in [
        "pgsluice keeps open transactions",
        "`pgsluice skip --lsn 1/2`",
        "process 4711 (pgsluice orders control)",
        "it ran pgsluice skip --lsn 1/2 --subscription other",
        "to begin anew: pgsluice run",
        "/usr/bin/pgsluice-drop",
    ] {
        assert_eq!(completed(&own, text), text);
    }
    assert_eq!(completed(&own, "see pgsluice config-reference."), "see `pgsluice config-reference`.");
}

#[test]
fn lines_of_json_stay_json() {
    let own = told(&[said("subscription", "s", true), said("target", "host=h dbname='a \"b'", true)], &[]);
    let line = serde_json::json!({"message": "to go on: pgsluice enable", "subscription": "s"}).to_string();
    let written = own.complete(&line, |command| {
        let quoted = serde_json::Value::from(command.as_str()).to_string();
        quoted[1..quoted.len() - 1].to_owned()
    });
    let read: serde_json::Value = serde_json::from_str(&written).unwrap();
    let message = read["message"].as_str().unwrap();
    assert!(message.contains("--target 'host=h dbname='\\''a \"b'\\''' --subscription s`"), "{message}");
}

#[test]
fn a_line_of_the_log_tells_its_subscription() {
    let cases = [
        ("WARN told subscription=orders\n", Some("orders")),
        ("WARN told \x1b[3msubscription\x1b[0m\x1b[2m=\x1b[0morders\n", Some("orders")),
        ("{\"subscription\":\"orders\",\"message\":\"x\"}\n", Some("orders")),
        ("WARN subscription \"x\" is gone subscription=orders\n", Some("orders")),
        ("WARN no subscription is named\n", None),
    ];
    for (line, expected) in cases {
        assert_eq!(subscription_of(line), expected, "{line}");
    }
}

#[test]
fn the_example_of_the_reference_is_understood() {
    let own = Invocation::example();
    let text = completed(&own, "pgsluice skip --lsn 16/B374D848");
    let words = text.trim_matches('`').split(' ');
    assert!(Cli::try_parse_from(words).is_ok(), "{text}");
}
