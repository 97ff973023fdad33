//! psql and libpq of every major: SQL, TLS, logins, and what they are told when that fails.
//!
//! The words of an error are those of the publisher to the same client, but for the port.

use std::path::Path;
use std::process::Command;

use testkit::{Major, Output, Sluice, client_dir, wait_for};

use crate::stage::{BOUND, End, Stage, interrupt, program, run};

const TABLES: &str = "
    CREATE TABLE orders (id int PRIMARY KEY, placed timestamptz DEFAULT '2026-11-28', total numeric(10, 2),
                         CHECK (total >= 0));
    CREATE INDEX ON orders (placed);
    COMMENT ON TABLE orders IS 'what was asked for';
    CREATE VIEW expensive AS SELECT * FROM orders WHERE total > 100;
    CREATE FUNCTION shout(what text) RETURNS void LANGUAGE plpgsql AS
      $$ BEGIN RAISE NOTICE '%', what USING HINT = 'It is only a test.'; END $$;
    INSERT INTO orders (id, total) SELECT n, n * 1.5 FROM generate_series(1, 3000) n;
    CREATE SCHEMA closed;
    CREATE TABLE closed.t (id int);
    CREATE PUBLICATION p FOR TABLE orders;
    REVOKE CREATE ON SCHEMA public FROM PUBLIC";

/// What a session does. Everything that it changes is temporary, so that it can be done again.
const SCRIPT: &str = r"
\set VERBOSITY verbose
\d
\d orders
\d+ expensive
\dt+ orders
\df shout
\dRp+
SELECT current_user, current_database(), count(*), sum(total) FROM orders;
CREATE TEMP TABLE mine (id int, v text);
COPY mine FROM STDIN;
1	one
2	two\nlines
3	\N
\.
\copy mine TO PSTDOUT CSV HEADER
COPY (SELECT id, repeat('x', 500) FROM orders) TO STDOUT (FORMAT csv);
\set FETCH_COUNT 100
SELECT * FROM expensive ORDER BY id;
\unset FETCH_COUNT
BEGIN;
SELECT shout('heard');
SAVEPOINT a;
SELECT 1 / 0;
ROLLBACK TO a;
UPDATE mine SET v = 'changed' WHERE id = 1 RETURNING *;
COMMIT;
SELECT id, v FROM mine ORDER BY id \gdesc
SET datestyle = 'German';
SELECT placed FROM orders WHERE id = 1;
SHOW application_name;
SELECT no_such_column FROM orders;
CREATE TABLE not_allowed (id int);
SELECT * FROM pg_stat_replication_slots WHERE false;
DO $$ BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = 'P0001', DETAIL = 'a detail'; END $$;
SELECT 'the end';
";

/// psql of one major at one end.
struct Psql<'a> {
    stage: &'a Stage,
    major: Major,
}

impl Psql<'_> {
    fn command(&self, conninfo: &str, args: &[&str]) -> Command {
        let mut command = program(&client_dir(self.major).unwrap().join("bin/psql"));
        command.args(["--no-psqlrc", "--no-align", "--no-password", "--dbname", conninfo]).args(args);
        command
    }

    /// What it prints with `words` in the connection string, which count more than `conninfo`.
    fn at(&self, end: End, database: &str, words: &str, args: &[&str]) -> Output {
        let conninfo = format!("{} {words}", self.stage.conninfo(end, database));
        run(self.command(&conninfo, args))
    }

    /// The same with encryption, at the relay.
    fn encrypted(&self, database: &str, words: &str, sql: &str) -> Output {
        let conninfo = format!("{} {words}", self.stage.encrypted(database));
        run(self.command(&conninfo, &["--tuples-only", "--command", sql]))
    }

    /// Does the same at both ends, where the same must be printed.
    fn same(&self, database: &str, words: &str, args: &[&str]) -> Output {
        let [publisher, relay] = End::BOTH.map(|end| {
            let output = self.at(end, database, words, args);
            let port = self.stage.port(end).to_string();
            Output { stderr: output.stderr.replace(&port, "PORT"), ..output }
        });
        let what = format!("psql {} of {}: {words} {args:?}", self.major, self.stage.publisher.major());
        assert_eq!(publisher.status.code(), relay.status.code(), "{what}: {relay:?}");
        assert_lines(&format!("{what}, standard error"), &publisher.stderr, &relay.stderr);
        assert_lines(&format!("{what}, standard output"), &publisher.stdout, &relay.stdout);
        relay
    }
}

/// Compares line by line, because a difference in a long text is not found otherwise.
fn assert_lines(what: &str, publisher: &str, relay: &str) {
    for (number, (ours, theirs)) in publisher.lines().zip(relay.lines()).enumerate() {
        assert_eq!(ours, theirs, "{what}, line {}: publisher, relay", number + 1);
    }
    assert_eq!(publisher, relay, "{what}: publisher, relay");
}

fn each(test: impl Fn(&Stage, Psql<'_>) + Sync, clients: &[Major], database: &str) {
    Major::each(1, |major| {
        let stage = Stage::of(major);
        stage.database(database, TABLES);
        for &client in clients {
            test(&stage, Psql { stage: &stage, major: client });
        }
    });
}

/// The oldest and the newest client: those between them say the same.
const ENDS: [Major; 2] = [Major::V14, Major::V18];

#[test]
fn a_session_sees_what_it_sees_at_the_publisher() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script.sql");
    std::fs::write(&script, SCRIPT).unwrap();
    let file = script.to_str().unwrap();
    let session = |_: &Stage, psql: Psql<'_>| {
        let said = psql.same("psql_session", "application_name=mine", &["--echo-all", "--file", file]);
        assert!(said.status.success() && said.stdout.ends_with("the end\n(1 row)\n"), "{said:?}");
        for expected in ["NOTICE:  00000: heard", "ERROR:  22012: division by zero", "DETAIL:  a detail"] {
            assert!(said.stderr.contains(expected), "{expected}: {}", said.stderr);
        }
        for expected in ["orders_pkey", "what was asked for", "3000", "28.11.2026", "\nmine\n"] {
            assert!(said.stdout.contains(expected), "{expected}: {}", said.stdout);
        }
        let closed = psql.same("psql_session", "user=reader", &["--command", "SELECT * FROM closed.t"]);
        assert!(closed.stderr.contains("permission denied for schema closed"), "{closed:?}");
        let words = "options='-c search_path=pg_catalog -c statement_timeout=20ms'";
        let late = psql.same("psql_session", words, &["--command", "SELECT pg_sleep(60)"]);
        assert!(late.stderr.contains("statement timeout"), "{late:?}");
    };
    each(session, &Major::ALL, "psql_session");
}

#[test]
fn a_statement_ends_at_sigint() {
    let cancel = |stage: &Stage, psql: Psql<'_>| {
        let newest = psql.major >= Major::V18;
        let words = if newest { "max_protocol_version=latest" } else { "" };
        let said = End::BOTH.map(|end| {
            let name = format!("cancel_{}", psql.major);
            let words = format!("application_name={name} {words}");
            let conninfo = format!("{} {words}", stage.conninfo(end, "psql_cancel"));
            let args = ["--command", "SELECT pg_sleep(600)"];
            let mut running = Sluice::start(psql.command(&conninfo, &args)).unwrap();
            wait_for("the statement to run", BOUND, || {
                let sql = format!(
                    "SELECT count(*) FROM pg_stat_activity
                      WHERE application_name = '{name}' AND state = 'active' AND query LIKE '%pg_sleep%'"
                );
                assert!(running.is_running(), "{}", running.stderr());
                Ok(stage.publisher.one("postgres", &sql) == "1")
            })
            .unwrap();
            interrupt(&running);
            let status = running.wait(BOUND).unwrap().expect("it ends at SIGINT");
            (status.code(), running.stdout(), running.stderr())
        });
        assert_eq!(said[0], said[1], "psql {}: publisher, relay", psql.major);
        assert!(said[1].2.contains("canceling statement due to user request"), "{said:?}");
    };
    each(cancel, &ENDS, "psql_cancel");
}

#[test]
fn logins_fail_with_the_words_of_the_publisher() {
    let failing = |_: &Stage, psql: Psql<'_>| {
        let select = ["--command", "SELECT 1"];
        for (database, words, expected) in [
            ("psql_logins", "password=wrong", "password authentication failed for user \"sub\""),
            ("psql_logins", "user=unknown", "password authentication failed for user \"unknown\""),
            ("nowhere", "", "database \"nowhere\" does not exist"),
            ("nowhere", "replication=database", "database \"nowhere\" does not exist"),
            ("psql_logins", "replication=database user=reader", "FATAL:"),
            ("psql_logins", "options='-c work_mem=much'", "invalid value for parameter \"work_mem\""),
        ] {
            let said = psql.same(database, words, &select);
            assert!(said.stderr.contains(expected) && said.status.code() == Some(2), "{words}: {said:?}");
        }
        // libpq itself refuses this.
        let said = psql.same("psql_logins", "channel_binding=require", &select);
        assert!(!said.status.success(), "{said:?}");
    };
    each(failing, &ENDS, "psql_logins");
}

/// libpq connects again without application_name if it is told of something unknown behind
/// `AuthenticationOk`, so it prints the error twice.
#[test]
fn an_error_of_the_sessions_start_comes_behind_the_login() {
    let failing = |_: &Stage, psql: Psql<'_>| {
        let words = "options='-c no_such_setting=1'";
        let said = psql.same("psql_start", words, &["--command", "SELECT 1"]);
        assert!(said.stderr.contains("\"no_such_setting\""), "{said:?}");
    };
    each(failing, &ENDS, "psql_start");
}

#[test]
fn an_encrypted_session_knows_the_relay() {
    let encrypted = |stage: &Stage, psql: Psql<'_>| {
        let database = "psql_tls";
        let number = psql.major.number();
        let sql = "SELECT current_user, count(*) FROM orders";
        let mut allowed = vec!["", "user=reader"];
        if number >= 16 {
            allowed.extend(["require_auth=scram-sha-256", "require_auth=!password,!md5,!none"]);
        }
        if number >= 17 {
            allowed.push("sslnegotiation=direct");
        }
        if number >= 18 {
            allowed.push("sslnegotiation=direct max_protocol_version=latest min_protocol_version=3.2");
        }
        for words in allowed {
            let said = psql.encrypted(database, words, sql);
            let user = if words.contains("reader") { "reader" } else { "sub" };
            assert_eq!(said.stdout, format!("{user}|3000\n"), "psql {number} with {words}: {}", said.stderr);
        }
        if number >= 18 {
            let words = "max_protocol_version=latest";
            let said = psql.encrypted(database, words, r"\conninfo").stdout;
            assert!(said.contains("Protocol Version|3.2") && said.contains("SSL Connection|true"), "{said}");
        }
        let stranger = stage.file("stranger.crt");
        let stranger = format!("sslrootcert={}", stranger.display());
        let mut refused = vec![
            ("host=other.example", "does not match host name"),
            (&stranger, "certificate verify failed"),
        ];
        if number >= 16 {
            refused.push(("require_auth=md5", "authentication method requirement \"md5\" failed"));
        }
        // The relay turns an address away that fails too often.
        if number >= 18 {
            refused.push(("password=wrong", "password authentication failed for user \"sub\""));
        }
        for (words, expected) in refused {
            let said = psql.encrypted(database, words, sql);
            assert!(
                said.stderr.contains(expected) && said.stdout.is_empty(),
                "psql {number}, {words}: {said:?}"
            );
        }
    };
    each(encrypted, &Major::ALL, "psql_tls");
}

/// A script of a replication connection, which is simple queries only.
#[test]
fn a_replication_connection_answers_sql_as_the_publisher_does() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script.sql");
    let text = "SELECT current_user, count(*) FROM orders;\nSHOW work_mem;\nSELECT 1 / 0;\n\
                BEGIN;\nSELECT 1;\nSELECT oops;\nSELECT 2;\nROLLBACK;\nCOPY (SELECT 3) TO STDOUT;\n\
                START_REPLICATION SLOT none LOGICAL 0/0;\nDROP_REPLICATION_SLOT none;\nSELECT 1; SELECT 2;\n";
    std::fs::write(&script, text).unwrap();
    let file = Path::to_str(&script).unwrap();
    let ask = |_: &Stage, psql: Psql<'_>| {
        let said = psql.same("psql_replication", "replication=database", &["--echo-all", "--file", file]);
        assert!(said.stdout.contains("sub|3000") && said.stderr.contains("division by zero"), "{said:?}");
    };
    each(ask, &ENDS, "psql_replication");
}
