//! Remedies that an error prints work exactly as they stand in the log.
//!
//! There are two kinds here. Commands of pgsluice must be whole, however the process got its
//! servers and subscription. SQL must name the objects, and pgsluice continues by itself once it
//! was run. `commands` has every other command that a message or a document names.

use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::wait_for;

use crate::support::{BOUND, DECODED, FOLDED, Scenario, scenario_with};

/// What stands in backquotes in the last lines of `log`, and begins or goes on with `words`.
#[track_caller]
fn printed(log: &str, words: &str) -> String {
    let quoted = log.split('`').skip(1).step_by(2);
    let found = quoted.filter(|quoted| quoted.contains(words)).last();
    found.unwrap_or_else(|| panic!("{words:?} in backquotes in:\n{log}")).to_owned()
}

/// Runs a command as an operator would who has only the printed text: in a shell with an empty
/// environment.
pub(crate) fn in_a_shell(command: &str, more: &[(&str, &str)]) -> (i32, String) {
    let program = Path::new(env!("CARGO_BIN_EXE_pgsluice"));
    let path = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
    let mut shell = Command::new("/bin/sh");
    shell.env_clear().env("PATH", path).env("HOME", "/nonexistent").envs(more.iter().copied());
    let output = shell.arg("-c").arg(command).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout) + &text(&output.stderr))
}

#[track_caller]
fn succeeds(command: &str) {
    let (code, said) = in_a_shell(command, &[("PGPASSWORD", "sesame")]);
    assert_eq!(code, 0, "{command}\n{said}");
}

/// How a process is told its servers and its subscription.
#[derive(Clone, Copy, Debug)]
enum Told {
    Variables,
    Flags,
    File,
}

/// The servers' URLs with a password that no server asks for and that must not be printed.
fn with_password(url: &str) -> String {
    url.replace("postgres://postgres@", "postgres://postgres:sesame@")
}

/// The change to a command that tells it so, and nothing else.
fn telling(s: &Scenario, told: Told, file: &Path) -> impl Fn(&mut Command) + use<> {
    let (source, target) = (with_password(&s.source_url()), with_password(&s.target_url(0)));
    let (name, state) = (s.name(0).to_owned(), s.pair().state_dir().to_owned());
    let text = format!(
        "state_dir = \"{}\"\n[[subscription]]\nname = \"other\"\n[[subscription]]\nname = \"{name}\"\n\
         source = \"{source}\"\ntarget = \"{target}\"\n",
        state.display()
    );
    std::fs::write(file, text).unwrap();
    let file = file.to_owned();
    move |command: &mut Command| {
        command.arg("--disable-on-error").env("PGPASSWORD", "sesame");
        if matches!(told, Told::Variables) {
            command.env("PGSLUICE_SOURCE", &source).env("PGSLUICE_TARGET", &target);
            return;
        }
        for variable in ["SOURCE", "TARGET", "SUBSCRIPTION", "STATE_DIR"] {
            command.env_remove(format!("PGSLUICE_{variable}"));
        }
        command.arg("--subscription").arg(&name);
        match told {
            Told::Flags => {
                command.args(["--source", &source, "--target", &target]).arg("--state-dir").arg(&state)
            }
            _ => command.arg("--config").arg(&file),
        };
    }
}

/// The transaction that conflicts, in the words of `skip --lsn`.
fn lsn_in(command: &str) -> &str {
    let (_, rest) = command.split_once("skip --lsn ").unwrap();
    rest.split(' ').next().unwrap()
}

fn skip_and_enable(s: &mut Scenario) {
    let files = tempfile::tempdir().unwrap();
    let file: PathBuf = files.path().join("pgsluice it's.toml");
    s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
    s.follow();
    s.stop();
    let mut passed = "0/1".to_owned();
    for (id, told) in [Told::Variables, Told::Flags, Told::File].into_iter().enumerate() {
        s.run_with(telling(s, told, &file));
        s.target(&format!("INSERT INTO t VALUES ({id}, 'local')"));
        s.source(&format!("INSERT INTO t VALUES ({id}, 'source')"));
        let (code, log) = s.ended().remove(0);
        assert_eq!(code, 4, "{log}");
        assert!(!log.contains("sesame"), "{told:?}: {log}");
        let (skip, enable) = (printed(&log, "pgsluice skip --lsn"), printed(&log, "pgsluice enable"));
        let is_told = log.contains("its password is left out: set PGPASSWORD");
        assert_eq!(is_told, !matches!(told, Told::File) || id > 0, "{log}");
        // One that has passed, and one that does not fail.
        let lsn = lsn_in(&skip).to_owned();
        for (other, why) in
            [(passed.as_str(), "cannot be skipped any more"), ("FFFF/1", "is not the transaction that fails")]
        {
            let (code, said) = in_a_shell(&skip.replace(&lsn, other), &[("PGPASSWORD", "sesame")]);
            assert!(code == 1 && said.contains(why), "{said}");
        }
        let (_, said) = in_a_shell(&skip.replace(&lsn, "FFFF/1"), &[("PGPASSWORD", "sesame")]);
        assert_eq!(lsn_in(&printed(&said, "pgsluice skip --lsn")), lsn, "{said}");
        succeeds(&skip);
        succeeds(&enable);
        let row = format!("SELECT v FROM t WHERE id = {id}");
        s.run_with(telling(s, told, &file));
        s.catch_up();
        assert_eq!(s.target_one(&row), "local", "{told:?}");
        let (code, said) = in_a_shell(&skip, &[("PGPASSWORD", "sesame")]);
        assert!(code == 1 && said.contains("cannot be skipped any more"), "it was skipped: {said}");
        s.stop();
        passed = lsn;
    }
}

#[test]
fn what_an_error_tells_to_skip_or_enable_works_as_printed() {
    scenario_with(&[FOLDED], skip_and_enable);
    scenario_with(&[DECODED], skip_and_enable);
}

/// While the process runs, `status` has the error with the whole command. `skip` checks an LSN
/// against the transaction that fails now.
#[test]
fn what_status_tells_to_skip_works_as_printed() {
    scenario_with(&[FOLDED, DECODED], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.follow();
        s.target("INSERT INTO t VALUES (1, 'local')");
        s.source("INSERT INTO t VALUES (1, 'source')");
        s.wait_for_log("conflict=insert_exists");
        for number in 0..s.followers() {
            let status = || s.call(number, &["status"]).expect_success();
            wait_for("the error in status", BOUND, || Ok(status().contains("conflict=insert_exists")))
                .unwrap();
            let skip = printed(&status(), "pgsluice skip --lsn");
            assert!(skip.contains("PGSLUICE_TARGET=") && skip.contains("--subscription"), "{skip}");
            let json = s.status(number)["last_error"]["message"].as_str().unwrap().to_owned();
            assert_eq!(printed(&json, "pgsluice skip --lsn"), skip);
            let (code, said) = in_a_shell(&skip.replace(lsn_in(&skip), "FFFF/1"), &[]);
            assert!(code == 1 && said.contains("is not the transaction that fails"), "{said}");
            succeeds(&skip);
        }
        s.catch_up();
        assert_eq!(s.target_one("SELECT v FROM t"), "local");
    });
}

/// The text between `from` and the first of `;` and the line's end, from the log of every follower.
#[track_caller]
fn sql_in_log(s: &Scenario, from: &str) -> String {
    let log = s.log(0);
    let (_, rest) = log.rsplit_once(from).unwrap_or_else(|| panic!("{from:?} in {log}"));
    let end = rest.find([';', '\n']).unwrap_or(rest.len());
    format!("{from}{}", &rest[..end])
}

/// Runs `sql` on the targets, of which some may be done already.
fn on_targets(s: &Scenario, sql: &str) {
    for number in 0..s.followers() {
        s.pair().target.sql(s.name(number), sql).unwrap_or_else(|error| panic!("{sql}: {error:#}"));
    }
}

const PARTITIONED: &str = "CREATE TABLE \"T\" (id int, k int, PRIMARY KEY (id, k)) PARTITION BY RANGE (k); \
    CREATE TABLE t_0 PARTITION OF \"T\" FOR VALUES FROM (0) TO (10)";

/// The target refuses a row because an object is missing, and its own words do not say what to do.
#[test]
fn a_partition_that_is_missing_is_named_with_its_sql_and_waited_for() {
    scenario_with(&[FOLDED, DECODED], |s| {
        s.source("CREATE TABLE \"T\" (id int, k int, PRIMARY KEY (id, k))");
        s.target(PARTITIONED);
        s.source("INSERT INTO \"T\" VALUES (1, 1), (2, 15)");
        s.run();
        s.wait_for_log("first copy of table \"public.T\"");
        s.wait_for_log("PARTITION OF \"public\".\"T\" FOR VALUES");
        let sql =
            sql_in_log(s, "CREATE TABLE \"public\".\"T_new\" PARTITION OF \"public\".\"T\" FOR VALUES ");
        assert!(s.log(0).contains("pgsluice then goes on by itself"), "{}", s.log(0));
        on_targets(s, &sql.replace("...", "FROM (10) TO (20)"));
        s.wait_for_copy();
        s.catch_up();
        s.same();
        s.source("INSERT INTO \"T\" VALUES (3, 25)");
        s.wait_for_log("for replication target relation \"public.T\"");
        assert!(!s.log(0).contains("(25)"), "no row's value: {}", s.log(0));
        on_targets(s, &sql_in_log(s, "CREATE TABLE \"public\".\"T_default\" PARTITION OF "));
        s.catch_up();
        s.same();
    });
}

/// Functions of the target that name another without its schema; each is called for a row that is
/// written.
const UNQUALIFIED: &str = "
    CREATE FUNCTION one() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
    CREATE FUNCTION f_check(v int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN v > one() - 2; END';
    CREATE FUNCTION f_domain(v int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT v > one() - 2';
    CREATE FUNCTION f_generated(v int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN v + one(); END';
    CREATE FUNCTION f_index(v int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN v + one(); END';
    CREATE FUNCTION f_trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.v = NEW.v - one() + 1; RETURN NEW; END';
    CREATE FUNCTION f_type(v int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN v::small > -2; END';
    CREATE DOMAIN small AS int;
    CREATE DOMAIN checked AS int CHECK (f_domain(VALUE));
    CREATE TABLE \"by check\" (id int PRIMARY KEY, v int CHECK (f_check(v)));
    CREATE TABLE by_domain (id int PRIMARY KEY, v checked);
    CREATE TABLE by_generated (id int PRIMARY KEY, v int, g int GENERATED ALWAYS AS (f_generated(v)) STORED);
    CREATE TABLE by_index (id int PRIMARY KEY, v int);
    CREATE INDEX ON by_index (f_index(v));
    CREATE TABLE by_trigger (id int PRIMARY KEY, v int);
    CREATE TRIGGER t BEFORE INSERT ON by_trigger FOR EACH ROW EXECUTE FUNCTION f_trigger();
    ALTER TABLE by_trigger ENABLE ALWAYS TRIGGER t;
    CREATE TABLE by_type (id int PRIMARY KEY, v int CHECK (f_type(v)))";

#[test]
fn a_name_that_only_a_search_path_finds_is_told_with_the_function_to_alter() {
    scenario_with(&[FOLDED, DECODED], |s| {
        let tables = ["\"by check\"", "by_domain", "by_generated", "by_index", "by_trigger", "by_type"];
        for table in tables {
            s.source(&format!("CREATE TABLE {table} (id int PRIMARY KEY, v int)"));
        }
        s.target(UNQUALIFIED);
        // The first at the copy, the others at applying.
        s.source("INSERT INTO \"by check\" VALUES (1, 1)");
        s.run();
        for (table, function) in
            tables.into_iter().zip(["check", "domain", "generated", "index", "trigger", "type"])
        {
            if function != "check" {
                s.source(&format!("INSERT INTO {table} VALUES (1, 1)"));
            }
            let from = match function {
                // The server tells a function in SQL without schema and arguments.
                "domain" => "ALTER FUNCTION \"f_domain\"",
                "trigger" => "ALTER FUNCTION public.f_trigger()",
                _ => &format!("ALTER FUNCTION public.f_{function}(integer)"),
            };
            s.wait_for_log(from);
            let sql = sql_in_log(s, from);
            assert!(sql.ends_with("SET search_path FROM CURRENT"), "{sql}");
            assert!(s.log(0).contains("an empty search_path"), "{}", s.log(0));
            on_targets(s, &sql);
            if function == "check" {
                s.wait_for_copy();
            }
            s.catch_up();
        }
        for table in tables {
            assert_eq!(s.target_one(&format!("SELECT v FROM {table}")), "1", "{table}");
        }
    });
}
