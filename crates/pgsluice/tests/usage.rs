//! The command line as a person or a script meets it, without a server.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Command, Output};

/// Runs the program with nothing in its environment but what is given.
fn pgsluice(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
    command.env_clear().args(args).envs(env.iter().copied()).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The flags of the configuration reference, of `run` and of `relay`.
fn flags() -> [Vec<String>; 2] {
    let reference = stdout(&pgsluice(&["config-reference"], &[]));
    let (run, relay) = reference.split_once("\n## The relay\n").unwrap();
    [run, relay].map(|part| {
        let flags = part.lines().filter_map(|line| line.strip_prefix("| `--")?.split('`').next());
        flags.map(|flag| format!("--{flag}")).collect()
    })
}

#[test]
fn help_man_and_completions_know_every_setting() {
    let completions: Vec<_> = ["bash", "zsh", "fish", "elvish", "powershell"]
        .map(|shell| stdout(&pgsluice(&["completions", shell], &[])))
        .into();
    for (command, flags) in ["run", "relay"].into_iter().zip(flags()) {
        let help = stdout(&pgsluice(&[command, "--help"], &[]));
        let man = stdout(&pgsluice(&["man", command], &[])).replace("\\-", "-");
        assert!(flags.len() > 20, "{flags:?}");
        for flag in &flags {
            let variable = format!("PGSLUICE_{}", flag[2..].replace('-', "_").to_uppercase());
            assert!(help.contains(&format!("{flag} ")) && help.contains(&variable), "{flag} in help");
            assert!(man.contains(flag.as_str()) && man.contains(&variable), "{flag} in the manual page");
            for script in &completions {
                assert!(script.contains(&flag[2..]), "{flag} in completions");
            }
        }
    }
}

/// An order that one session cannot give would otherwise be promised and not kept.
#[test]
fn a_relaxed_order_that_one_session_cannot_give_is_named() {
    let ends = ["--source", "host=127.0.0.1 port=1", "--target", "host=127.0.0.1 port=1"];
    let run =
        [&["run", "--publication", "p", "--subscription", "s", "--disable-on-error"], &ends[..]].concat();
    let dir = tempfile::tempdir().unwrap();
    let log = |workers: &[&str], order: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
        command.env_clear().args(&run).args(workers).stderr(std::process::Stdio::piped());
        command.env("PGSLUICE_STATE_DIR", dir.path()).env("PGSLUICE_COMMIT_ORDER", order);
        let mut running = command.spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_secs(1));
        let _ = running.kill();
        stderr(&running.wait_with_output().unwrap())
    };
    let named = "commit_order = relaxed preserves the order";
    let one = ["--max-parallel-apply-workers-per-subscription", "1"];
    let said = log(&one, "relaxed");
    assert!(said.contains(named), "{said}");
    for (workers, order) in [(&[][..], "relaxed"), (&one[..], "preserve")] {
        let said = log(workers, order);
        assert!(said.contains("replicating from") && !said.contains(named), "{said}");
    }
}

#[test]
fn every_command_has_help_and_a_page() {
    let help = stdout(&pgsluice(&["--help"], &[]));
    let dir = tempfile::tempdir().unwrap();
    assert!(pgsluice(&["man", "--dir", dir.path().to_str().unwrap()], &[]).status.success());
    for command in [
        "run",
        "adopt",
        "release",
        "check",
        "status",
        "stop",
        "skip",
        "enable",
        "disable",
        "drop",
        "sequences",
        "refresh",
        "verify",
        "decode",
        "catalog",
        "relay",
        "user",
        "slots",
        "man",
        "completions",
    ] {
        assert!(help.contains(&format!("  {command} ")), "{command}");
        let own = stdout(&pgsluice(&[command, "--help"], &[]));
        assert!(own.contains(&format!("Usage: pgsluice {command}")), "{own}");
        let page = std::fs::read_to_string(dir.path().join(format!("pgsluice-{command}.1"))).unwrap();
        assert!(page.contains(".TH"), "{command}");
    }
    assert!(help.contains("Exit codes:"));
    assert!(stdout(&pgsluice(&["man"], &[])).contains("Exit codes:"));
}

#[test]
fn a_wrong_command_line_ends_with_code_2_and_names_the_remedy() {
    let cases: &[(&[&str], &[&str])] = &[
        (&["run"], &["--publication", "PGSLUICE_PUBLICATION"]),
        (&["run", "--publication", "p"], &["no source is set", "--source", "PGSLUICE_SOURCE"]),
        (&["run", "--publication", "Upper"], &["\"Upper\" cannot name a subscription"]),
        (&["run", "--batch-rows-max", "x"], &["--batch-rows-max"]),
        (&["run", "--bach-rows-max", "1"], &["--batch-rows-max"]),
        (
            &["run", "--publication", "p", "--retain-dead-tuples", "off", "--detect-update-deleted", "on"],
            &["--retain-dead-tuples and --detect-update-deleted are one setting: give it once"],
        ),
        (
            &["check", "--publication", "p", "--detect-update-deleted", "--retain-dead-tuples=off"],
            &["--retain-dead-tuples and --detect-update-deleted are one setting: give it once"],
        ),
        (&["check", "--publication", "p"], &["no source is set"]),
        (&["skip", "--lsn", "xyz", "--subscription", "s"], &["not an LSN"]),
        (&["skip", "--lsn", "0/0", "--subscription", "s"], &["none"]),
        (&["skip", "--subscription", "s"], &["--lsn"]),
        (&["sequences", "--subscription", "s"], &["no target is set", "--target"]),
        (&["man", "nonsense"], &["no page"]),
        (&["explode"], &["explode"]),
    ];
    for (args, parts) in cases {
        let output = pgsluice(args, &[("HOME", "/nonexistent")]);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        for part in *parts {
            assert!(message.contains(part), "{args:?}: {message}");
        }
        assert!(stdout(&output).is_empty(), "{args:?}");
    }
}

#[test]
fn no_password_is_ever_printed() {
    let uri = "postgres://someone:sesame@127.0.0.1:1/db";
    let words = "host=127.0.0.1 port=1 dbname=db user=someone password=sesame";
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    for text in [uri, words] {
        let env = [("PGSLUICE_SOURCE", text), ("PGSLUICE_TARGET", text), ("PGSLUICE_STATE_DIR", state)];
        let broken = text.replace("port=1", "port=x").replace(":1/", ":x/");
        for (args, env) in [
            (vec!["run", "--help"], &env[..]),
            (vec!["run", text], &env[..]),
            (vec!["run", "--sorce", text], &env[..]),
            (vec!["run", &format!("--sorce={text}")], &env[..]),
            (vec!["run", "--publication", "p", "--source", &broken], &env[..]),
            (vec!["check", "--publication", "p"], &env[..]),
            (vec!["status", "--subscription", "s"], &env[..]),
            (vec!["drop", "--subscription", "s"], &env[..]),
        ] {
            let output = pgsluice(&args, env);
            let all = stdout(&output) + &stderr(&output);
            assert!(!all.is_empty() && !all.contains("sesame"), "{args:?}: {all}");
        }
    }
}

#[test]
fn what_does_not_run_is_said_to_be_so() {
    let dir = tempfile::tempdir().unwrap();
    let env = [("PGSLUICE_STATE_DIR", dir.path().to_str().unwrap()), ("PGSLUICE_SUBSCRIPTION", "s")];
    let status = pgsluice(&["status"], &env);
    assert_eq!(status.status.code(), Some(5), "{}", stderr(&status));
    let json: serde_json::Value =
        serde_json::from_slice(&pgsluice(&["status", "--json"], &env).stdout).unwrap();
    assert_eq!((&json["running"], &json["subscription"]), (&false.into(), &"s".into()));
    let stop = pgsluice(&["stop"], &env);
    assert_eq!((stop.status.code(), stdout(&stop).as_str()), (Some(0), "s: not running\n"));
}

#[test]
fn a_name_in_use_is_refused_with_its_holder() {
    let dir = tempfile::tempdir().unwrap();
    // This test process holds the lock, as a run would.
    let path = dir.path().join("s.lock");
    std::fs::write(&path, "4711\n").unwrap();
    let file = std::fs::File::open(&path).unwrap();
    file.lock().unwrap();
    let ends = "host=127.0.0.1 port=1 user=u dbname=d";
    let env = [
        ("PGSLUICE_STATE_DIR", dir.path().to_str().unwrap()),
        ("PGSLUICE_SOURCE", ends),
        ("PGSLUICE_TARGET", ends),
        ("PGSLUICE_PUBLICATION", "p"),
        ("PGSLUICE_SUBSCRIPTION", "s"),
    ];
    for command in ["run", "drop"] {
        let output = pgsluice(&[command], &env);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(3), "{message}");
        assert!(message.contains("\"s\"") && message.contains("4711"), "{message}");
    }
}

#[test]
fn several_subscriptions_want_a_choice_where_only_one_can_be_meant() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pgsluice.toml");
    let state = dir.path().display();
    let text = format!(
        "state_dir = \"{state}\"\n[[subscription]]\nname = \"one\"\n[[subscription]]\nname = \"two\"\n"
    );
    std::fs::write(&path, text).unwrap();
    let config = path.to_str().unwrap();
    let output = pgsluice(&["enable", "--config", config], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("one, two"), "{}", stderr(&output));
    let output = pgsluice(&["stop", "--config", config], &[]);
    assert_eq!(stdout(&output), "one: not running\ntwo: not running\n");
    let output = pgsluice(&["status", "--json", "--config", config], &[]);
    assert_eq!(stdout(&output).lines().count(), 2, "{}", stdout(&output));
}
