//! Whether the findings about a table hold for the applier.

use testkit::{Pair, wait_for};

use crate::{BOUND, Ends, each_major};

/// Tables that `check` calls slow are those that the applier takes row by row, and no others.
#[test]
fn what_is_said_of_a_table_is_what_the_applier_does() {
    each_major(|major| {
        let pair = Pair::start(major, major).unwrap();
        let ends = Ends::new(&pair, "app");
        let keys = [
            ("a_int", "int"),
            ("a_text", "text"),
            ("a_varchar", "varchar(9)"),
            ("a_uuid", "uuid"),
            ("a_date", "date"),
            ("a_scaled", "numeric(9,2)"),
            ("a_char", "char(3)"),
            ("a_mood", "mood"),
            ("b_numeric", "numeric"),
            ("b_float", "float8"),
            ("b_interval", "interval"),
            ("b_odd", "text COLLATE odd"),
            ("b_jsonb", "jsonb"),
        ];
        let mut both = "CREATE TYPE mood AS ENUM ('a'); CREATE COLLATION odd (provider = icu, locale = 'und', deterministic = false);".to_owned();
        let mut names: Vec<String> = Vec::new();
        for (name, own) in keys {
            both.push_str(&format!("CREATE TABLE {name} (k {own} PRIMARY KEY, v int DEFAULT 1);"));
            names.push(name.to_owned());
        }
        pair.both("app", &both).unwrap();
        let plain = [
            "c_deferred",
            "c_nullable",
            "c_bare",
            "c_other_type",
            "c_always",
            "c_trigger",
            "c_full",
            "c_full_bare",
        ];
        for name in plain {
            pair.source
                .sql("app", &format!("CREATE TABLE {name} (k int PRIMARY KEY, v int DEFAULT 1)"))
                .unwrap();
            names.push(name.to_owned());
        }
        pair.source.sql("app", "ALTER TABLE c_full REPLICA IDENTITY FULL; ALTER TABLE c_full_bare REPLICA IDENTITY FULL; CREATE PUBLICATION p FOR ALL TABLES").unwrap();
        pair.target
            .sql(
                "app",
                "CREATE TABLE c_deferred (k int PRIMARY KEY DEFERRABLE, v int); CREATE TABLE c_nullable (k int UNIQUE, v int);
                 CREATE TABLE c_bare (k int, v int); CREATE TABLE c_other_type (k bigint PRIMARY KEY, v int);
                 CREATE TABLE c_always (k int PRIMARY KEY, v int GENERATED ALWAYS AS IDENTITY);
                 CREATE TABLE c_trigger (k int PRIMARY KEY, v int); CREATE TABLE c_full (k int PRIMARY KEY, v int);
                 CREATE TABLE c_full_bare (k int, v int); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
                 CREATE TRIGGER f BEFORE INSERT ON c_trigger FOR EACH ROW EXECUTE FUNCTION f(); ALTER TABLE c_trigger ENABLE ALWAYS TRIGGER f",
            )
            .unwrap();
        let said = ends.check(&[]);
        let slow = |name: &str| {
            said.findings().iter().any(|found| {
                let (object, what) = (found["object"].as_str().unwrap(), found["what"].as_str().unwrap());
                object.ends_with(&format!("table public.{name}"))
                    && (what.contains("one at a time") || what.contains("reads the whole table"))
            })
        };
        let running = ends.start(&["run", "--log-level", "info,apply=debug"]);
        wait_for("the stream", BOUND, || Ok(running.stderr().contains("streaming from"))).unwrap();
        let values = "INSERT INTO a_int VALUES (1); INSERT INTO a_text VALUES ('a'); INSERT INTO a_varchar VALUES ('a');
            INSERT INTO a_uuid VALUES ('c0ffee00-0000-0000-0000-000000000000'); INSERT INTO a_date VALUES ('2000-01-01');
            INSERT INTO a_scaled VALUES (1); INSERT INTO a_char VALUES ('a'); INSERT INTO a_mood VALUES ('a');
            INSERT INTO b_numeric VALUES (1); INSERT INTO b_float VALUES (1); INSERT INTO b_interval VALUES ('1 day');
            INSERT INTO b_odd VALUES ('a'); INSERT INTO b_jsonb VALUES ('1');";
        pair.source.sql("app", values).unwrap();
        for name in plain {
            pair.source.sql("app", &format!("INSERT INTO {name} VALUES (1)")).unwrap();
        }
        for name in &names {
            let mapped = || {
                running
                    .stderr()
                    .lines()
                    .find(|line| line.contains("mapped") && line.contains(&format!("public.{name} ")))
                    .map(str::to_owned)
            };
            wait_for(name, BOUND, || Ok(mapped().is_some())).unwrap();
            let line = mapped().unwrap();
            assert_eq!(
                slow(name),
                !line.contains("path=Fold"),
                "{name}: {line}\n{:#}",
                said.report["findings"]
            );
        }
    });
}
