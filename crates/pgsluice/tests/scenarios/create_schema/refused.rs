//! What cannot be brought over is named, and nothing is left of it.

use super::{left_behind, on_an_empty_target, program_of};

/// A program that answers `answer` to everything.
fn program(dir: &tempfile::TempDir, name: &str, answer: &str) -> String {
    program_of(dir, name, &format!("#!/bin/sh\necho '{answer}'\n"))
}

#[test]
fn a_pg_dump_that_will_not_do_is_refused_before_anything_is_made() {
    on_an_empty_target(|s, _| {
        s.source("CREATE TABLE t (id int PRIMARY KEY)");
        s.publish("FOR ALL TABLES");
        let dir = tempfile::tempdir().unwrap();
        let older = s.major() - 1;
        let old = program(&dir, "old", &format!("pg_dump (PostgreSQL) {older}.3"));
        let other = program(&dir, "other", "ls (GNU coreutils) 9.1");
        let absent = dir.path().join("absent").to_str().unwrap().to_owned();
        let data = dir.path().join("data").to_str().unwrap().to_owned();
        std::fs::write(&data, "no program").unwrap();
        let (version, needed) = (format!("{older}.3"), format!("{} or newer", s.major()));
        for (path, words) in [
            (&old, [version.as_str(), "older than the server", needed.as_str()]),
            (&other, ["it is no pg_dump", "ls (GNU coreutils)", needed.as_str()]),
            (&absent, ["absent", "No such file", needed.as_str()]),
            (&data, ["data", "ermission denied", needed.as_str()]),
        ] {
            for command in ["run", "check"] {
                let args = [command, "--publication", "p", "--create-schema", "--pg-dump", path];
                let output = s.call(0, &args);
                let text = output.stdout.clone() + &output.stderr;
                assert!(!output.status.success(), "{command}: {text}");
                assert!(words.iter().all(|word| text.contains(word)), "{words:?} in: {text}");
                assert_eq!(left_behind(s), [""; 0], "{text}");
            }
        }
        // It says that it is one, and is not.
        let liar = program(&dir, "liar", "pg_dump (PostgreSQL) 99.1");
        let refused = s.call(0, &["run", "--publication", "p", "--create-schema", "--pg-dump", &liar]);
        assert!(
            !refused.status.success() && refused.stderr.contains("middle of a statement"),
            "{}",
            refused.stderr
        );
        assert_eq!(left_behind(s), [""; 0]);
    });
}

/// What the target refuses is named with the statement, and rolled back whole.
#[test]
fn what_the_target_does_not_take_is_named_and_nothing_is_left() {
    let absent = "SET allow_system_table_mods = on; INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)
                  VALUES (99999, 'absent', 10, 2200, false, '1.0')";
    let cases: &[(&str, &str, &[&str])] = &[
        (absent, "", &["extension absent", "is not available on the target", "install its package"]),
        (
            "CREATE TYPE mood AS ENUM ('a')",
            "CREATE TYPE mood AS ENUM ('b')",
            &[
                "TYPE public.mood",
                "already exists",
                "CREATE TYPE public.mood",
                "--create-schema wants a target without",
            ],
        ),
        (
            "CREATE TABLE u (id int)",
            "CREATE TABLE u (id int)",
            &["--create-schema creates all published tables or none", "public.u", "public.t"],
        ),
    ];
    for (source, target, words) in cases {
        on_an_empty_target(|s, pg_dump| {
            s.source("CREATE TABLE t (id int PRIMARY KEY)");
            s.source(source);
            s.publish("FOR ALL TABLES");
            s.target(target);
            let before = left_behind(s);
            let refused = s.call(0, &["run", "--publication", "p", "--create-schema", "--pg-dump", pg_dump]);
            assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
            assert!(
                words.iter().all(|word| refused.stderr.contains(word)),
                "{words:?} in: {}",
                refused.stderr
            );
            assert_eq!(left_behind(s), before, "{}", refused.stderr);
        });
    }
}
