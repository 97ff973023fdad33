//! Every SQL statement that a message or a document tells to run, run on a real server.
//!
//! The test finds the statements in `pgsluice error-reference` and in the documents for operators.
//! The list here has each of them with the names of the case filled in. A statement that is not on
//! the list fails the test, so a new remedy brings its statement along. The tests in `check` run
//! the SQL of the findings of `pgsluice check`.

use testkit::{Cluster, Major, StopMode, workspace_dir};

use crate::commands::pages;
use crate::errors::{become_standby, promote};

const DB: &str = "postgres";

/// A written statement, and the statement to run in its place, in this order. If nothing is
/// written, the statement only prepares the next one. If nothing is run, the text mentions the
/// statement and does not ask for it.
const STATEMENTS: &[(&str, &str)] = &[
    (
        "",
        "CREATE TABLE public.accounts (id int PRIMARY KEY, balance int, total int GENERATED ALWAYS AS (balance) STORED)",
    ),
    ("", "CREATE VIEW v AS SELECT 1 AS id"),
    (
        "",
        "CREATE RULE log_it AS ON INSERT TO accounts DO ALSO SELECT 1; ALTER TABLE accounts ENABLE REPLICA RULE log_it",
    ),
    ("CREATE PUBLICATION", "CREATE PUBLICATION p FOR TABLE accounts"),
    ("ALTER PUBLICATION ... SET TABLE", "ALTER PUBLICATION p SET TABLE accounts (id, balance)"),
    ("ALTER PUBLICATION ... SET TABLE ... WHERE", "ALTER PUBLICATION p SET TABLE accounts WHERE (id > 0)"),
    ("ALTER PUBLICATION ... DROP TABLE", "ALTER PUBLICATION p DROP TABLE accounts"),
    ("", "CREATE TABLE orders (); CREATE PUBLICATION shop"),
    ("ALTER PUBLICATION shop ADD TABLE orders;", "ALTER PUBLICATION shop ADD TABLE orders"),
    ("", "DROP PUBLICATION shop; DROP TABLE orders"),
    ("", "DROP PUBLICATION p"),
    ("CREATE PUBLICATION p FOR ALL TABLES", "CREATE PUBLICATION p FOR ALL TABLES"),
    ("", "DROP PUBLICATION p; CREATE TABLE a (); CREATE TABLE b ()"),
    ("CREATE PUBLICATION p FOR TABLE a, b", "CREATE PUBLICATION p FOR TABLE a, b"),
    ("ALTER TABLE ... ADD COLUMN", "ALTER TABLE accounts ADD COLUMN note text"),
    (
        "ALTER TABLE ... ALTER COLUMN ... DROP EXPRESSION",
        "ALTER TABLE accounts ALTER COLUMN total DROP EXPRESSION",
    ),
    ("ALTER TABLE ... REPLICA IDENTITY FULL", "ALTER TABLE accounts REPLICA IDENTITY FULL"),
    (
        "ALTER TABLE \"public\".\"accounts\" REPLICA IDENTITY FULL",
        "ALTER TABLE \"public\".\"accounts\" REPLICA IDENTITY FULL",
    ),
    ("ALTER TABLE ... DISABLE RULE", "ALTER TABLE accounts DISABLE RULE log_it"),
    (
        "ALTER TABLE \"public\".\"accounts\" DISABLE RULE \"log_it\"",
        "ALTER TABLE \"public\".\"accounts\" DISABLE RULE \"log_it\"",
    ),
    (
        "ALTER TABLE ... RENAME",
        "ALTER TABLE accounts RENAME TO accounts2; ALTER TABLE accounts2 RENAME TO accounts",
    ),
    ("ALTER VIEW ... RENAME TO", "ALTER VIEW v RENAME TO w"),
    ("ALTER TABLE", "ALTER TABLE accounts ALTER COLUMN balance TYPE bigint"),
    ("TRUNCATE", "TRUNCATE accounts"),
    ("VACUUM", "VACUUM accounts"),
    ("VACUUM FULL", "VACUUM FULL accounts"),
    ("CREATE ROLE", "CREATE ROLE policies"),
    ("CREATE ROLE sluice LOGIN REPLICATION", "CREATE ROLE sluice LOGIN REPLICATION; DROP ROLE sluice"),
    ("CREATE ROLE sluice LOGIN;", "CREATE ROLE sluice LOGIN"),
    ("ALTER ROLE ... REPLICATION", "ALTER ROLE sluice REPLICATION"),
    ("ALTER ROLE ... PASSWORD", "ALTER ROLE sluice PASSWORD 'changed'"),
    ("GRANT", "GRANT sluice TO CURRENT_USER"),
    ("GRANT USAGE ON SCHEMA", "GRANT USAGE ON SCHEMA public TO sluice"),
    ("GRANT SELECT", "GRANT SELECT ON accounts TO sluice"),
    ("GRANT SELECT ON", "GRANT SELECT ON accounts TO sluice"),
    ("GRANT pg_read_all_data", "GRANT pg_read_all_data TO sluice"),
    ("GRANT TEMPORARY ON DATABASE", "GRANT TEMPORARY ON DATABASE postgres TO sluice"),
    (
        "GRANT SET ON PARAMETER session_replication_role TO",
        "GRANT SET ON PARAMETER session_replication_role TO sluice",
    ),
    (
        "GRANT EXECUTE ON FUNCTION",
        "GRANT EXECUTE ON FUNCTION pg_replication_origin_session_setup(text) TO sluice",
    ),
    (
        "GRANT EXECUTE ON FUNCTION pg_replication_origin_advance(text, pg_lsn) TO \"repl\"",
        "CREATE ROLE repl; GRANT EXECUTE ON FUNCTION pg_replication_origin_advance(text, pg_lsn) TO \"repl\"",
    ),
    ("GRANT CREATE ON DATABASE db TO sluice;", "GRANT CREATE ON DATABASE postgres TO sluice;"),
    ("GRANT USAGE ON SCHEMA public TO sluice;", "GRANT USAGE ON SCHEMA public TO sluice;"),
    (
        "GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA public TO sluice;",
        "GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA public TO sluice;",
    ),
    (
        "GRANT EXECUTE ON FUNCTION pg_replication_origin_create(text), pg_replication_origin_drop(text), \
         pg_replication_origin_session_setup(text), pg_replication_origin_xact_setup(pg_lsn, timestamptz), \
         pg_replication_origin_session_reset(), pg_replication_origin_progress(text, boolean) TO sluice;",
        "GRANT EXECUTE ON FUNCTION pg_replication_origin_create(text), pg_replication_origin_drop(text), \
         pg_replication_origin_session_setup(text), pg_replication_origin_xact_setup(pg_lsn, timestamptz), \
         pg_replication_origin_session_reset(), pg_replication_origin_progress(text, boolean) TO sluice;",
    ),
    (
        "GRANT SET ON PARAMETER session_replication_role TO sluice;",
        "GRANT SET ON PARAMETER session_replication_role TO sluice;",
    ),
    (
        "ALTER DEFAULT PRIVILEGES",
        "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON TABLES TO sluice",
    ),
    ("CREATE DATABASE", "CREATE DATABASE shop"),
    ("ALTER DATABASE ... SET", "ALTER DATABASE shop SET work_mem = '8MB'"),
    ("SELECT pg_reload_conf()", "SELECT pg_reload_conf()"),
    ("ALTER SYSTEM SET wal_level = 'logical'", "ALTER SYSTEM SET wal_level = 'logical'"),
    ("ALTER SYSTEM SET track_commit_timestamp = on", "ALTER SYSTEM SET track_commit_timestamp = on"),
    // Run where there is a history, in `resolutions`.
    (crate::resolutions::HISTORY, ""),
    ("CHECKPOINT", "CHECKPOINT"),
    ("SELECT pg_switch_wal()", "SELECT pg_switch_wal()"),
    ("SELECT pg_terminate_backend(...)", "SELECT pg_terminate_backend(4711)"),
    ("SELECT pg_terminate_backend(4711)", "SELECT pg_terminate_backend(4711)"),
    ("", "SELECT pg_replication_origin_create('pgsluice_orders_0')"),
    ("SELECT pg_replication_origin_drop('...')", "SELECT pg_replication_origin_drop('pgsluice_orders_0')"),
    (
        "SELECT pg_create_physical_replication_slot('pgsluice_NAME', true)",
        "SELECT pg_create_physical_replication_slot('pgsluice_orders', true)",
    ),
    (
        "SELECT pg_replication_slot_advance('pgsluice_NAME', '...')",
        "SELECT pg_replication_slot_advance('pgsluice_orders', pg_current_wal_flush_lsn())",
    ),
    ("SELECT pg_drop_replication_slot('...')", "SELECT pg_drop_replication_slot('pgsluice_orders')"),
    // A native subscription, whose slot needs no creation here.
    (
        "CREATE SUBSCRIPTION",
        "CREATE SUBSCRIPTION orders_native CONNECTION 'host=127.0.0.1 password=x' PUBLICATION p WITH (connect = false, \
         slot_name = 'orders_native')",
    ),
    ("SELECT subname FROM pg_subscription", "SELECT subname FROM pg_subscription"),
    (
        "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'",
        "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'",
    ),
    ("ALTER SUBSCRIPTION \"orders_native\" DISABLE", "ALTER SUBSCRIPTION \"orders_native\" DISABLE"),
    ("ALTER SUBSCRIPTION", "ALTER SUBSCRIPTION orders_native SET (streaming = on)"),
    ("ALTER SUBSCRIPTION ... SKIP", "ALTER SUBSCRIPTION orders_native SKIP (lsn = '16/B374D848')"),
    ("ALTER SUBSCRIPTION ... SKIP (lsn = NONE)", "ALTER SUBSCRIPTION orders_native SKIP (lsn = NONE)"),
    (
        "ALTER SUBSCRIPTION \"orders_native\" SKIP (lsn = NONE)",
        "ALTER SUBSCRIPTION \"orders_native\" SKIP (lsn = NONE)",
    ),
    (
        "ALTER SUBSCRIPTION \"orders_native\" SET (password_required = true)",
        "ALTER SUBSCRIPTION \"orders_native\" SET (password_required = true)",
    ),
    (
        "ALTER SUBSCRIPTION ... SET (password_required = true)",
        "ALTER SUBSCRIPTION orders_native SET (password_required = true)",
    ),
    ("ALTER SUBSCRIPTION \"orders_native\" ENABLE", "ALTER SUBSCRIPTION \"orders_native\" ENABLE"),
    ("ALTER SUBSCRIPTION ... ENABLE", "ALTER SUBSCRIPTION orders_native ENABLE"),
    ("", "ALTER SUBSCRIPTION orders_native DISABLE"),
    (
        "ALTER SUBSCRIPTION \"orders_native\" SET (slot_name = NONE)",
        "ALTER SUBSCRIPTION \"orders_native\" SET (slot_name = NONE)",
    ),
    ("SET (slot_name = NONE)", "ALTER SUBSCRIPTION orders_native SET (slot_name = NONE)"),
    (
        "ALTER SUBSCRIPTION \"orders_native\" SET (slot_name = 'its name')",
        "ALTER SUBSCRIPTION \"orders_native\" SET (slot_name = 'orders_native')",
    ),
    (
        "ALTER SUBSCRIPTION ... SET (slot_name = '...')",
        "ALTER SUBSCRIPTION orders_native SET (slot_name = 'orders_native')",
    ),
    ("", "ALTER SUBSCRIPTION orders_native SET (slot_name = NONE)"),
    ("DROP SUBSCRIPTION", "DROP SUBSCRIPTION orders_native"),
    ("", "CREATE SCHEMA pgsluice"),
    ("DROP SCHEMA pgsluice CASCADE", "DROP SCHEMA pgsluice CASCADE"),
    ("REFRESH MATERIALIZED VIEW", "CREATE MATERIALIZED VIEW m AS SELECT 1; REFRESH MATERIALIZED VIEW m"),
    ("CREATE EXTENSION IF NOT EXISTS hstore", ""),
    ("CREATE SCHEMA during recovery", ""),
];

/// Statements that contact another server, for a native subscription that is connected to its
/// publisher.
const CONNECTED: &[(&str, &str)] = &[
    ("ALTER SUBSCRIPTION ... REFRESH PUBLICATION", "ALTER SUBSCRIPTION orders_native REFRESH PUBLICATION"),
    (
        "ALTER SUBSCRIPTION \"orders_native\" REFRESH PUBLICATION",
        "ALTER SUBSCRIPTION \"orders_native\" REFRESH PUBLICATION",
    ),
    (
        "ALTER SUBSCRIPTION \"orders_native\" SET (two_phase = false)",
        "ALTER SUBSCRIPTION \"orders_native\" SET (two_phase = false)",
    ),
    (
        "ALTER SUBSCRIPTION ... SET (two_phase = false)",
        "ALTER SUBSCRIPTION orders_native SET (two_phase = false)",
    ),
];

/// Run on a standby.
const PROMOTION: &str = "SELECT pg_promote()";

/// How a statement begins.
const VERBS: [&str; 14] = [
    "ALTER",
    "CHECKPOINT",
    "CREATE",
    "DELETE",
    "DROP",
    "GRANT",
    "INSERT",
    "REFRESH",
    "REINDEX",
    "REVOKE",
    "SELECT",
    "SET",
    "TRUNCATE",
    "VACUUM",
];

/// What follows the verb in the middle of a message, where words in capitals are many.
const OBJECTS: [&str; 13] = [
    "DATABASE",
    "EXECUTE",
    "EXTENSION",
    "FUNCTION",
    "MATERIALIZED",
    "PUBLICATION",
    "ROLE",
    "SCHEMA",
    "SUBSCRIPTION",
    "SYSTEM",
    "TABLE",
    "VIEW",
    "subname",
];

fn known() -> impl Iterator<Item = &'static str> {
    STATEMENTS
        .iter()
        .chain(CONNECTED)
        .map(|(written, _)| *written)
        .filter(|written| !written.is_empty())
        .chain([PROMOTION])
}

fn first(text: &str) -> &str {
    text.split([' ', '(']).next().unwrap_or_default()
}

/// What is quoted in prose and is SQL, in one line.
fn quoted(text: &str) -> Vec<String> {
    let quoted = text
        .split('`')
        .skip(1)
        .step_by(2)
        .map(|quoted| quoted.split_whitespace().collect::<Vec<_>>().join(" "));
    quoted.filter(|quoted| VERBS.contains(&first(quoted))).collect()
}

/// Where in a message a statement begins.
fn in_message(message: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for verb in VERBS {
        for (at, _) in message.match_indices(&format!("{verb} ")) {
            let after = &message[at + verb.len() + 1..];
            let object = after.split([' ', '(', ')']).next().unwrap_or_default();
            // What is refreshed of a subscription stands behind its own verb.
            let is_own = verb != "REFRESH" || object == "MATERIALIZED";
            let is_one = is_own && (OBJECTS.contains(&object) || object.starts_with("pg_"));
            if is_one && !message[..at].ends_with(|c: char| c.is_alphanumeric()) {
                found.push(&message[at..]);
            }
        }
    }
    found
}

/// Statements in the texts that no entry of the list runs.
fn unknown() -> Vec<String> {
    let program = std::process::Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .arg("error-reference")
        .env_clear()
        .output();
    let reference = String::from_utf8(program.unwrap().stdout).unwrap();
    let mut unknown = Vec::new();
    let (mut prose, mut messages) = (String::new(), String::new());
    for (number, part) in reference.split("\n```").enumerate() {
        let all = if number % 2 == 0 { &mut prose } else { &mut messages };
        all.push_str(part);
        all.push('\n');
    }
    for statement in in_message(&messages) {
        if !known().any(|written| statement.starts_with(written)) {
            unknown.push(statement.lines().next().unwrap_or_default().to_owned());
        }
    }
    let mut documents = vec![
        workspace_dir().join("README.md"),
        workspace_dir().join("docs/concepts.md"),
        workspace_dir().join("docs/why.md"),
    ];
    documents.extend(pages("docs/operations"));
    for document in documents {
        let text = std::fs::read_to_string(document).unwrap();
        for (number, part) in text.split("\n```").enumerate() {
            match (number % 2, part.strip_prefix("sql\n")) {
                (0, _) => prose.push_str(part),
                (_, Some(block)) => {
                    let lines = block.lines().map(|line| line.split("--").next().unwrap().trim());
                    let block = lines.collect::<Vec<_>>().join(" ");
                    let statements = block.split_inclusive(';').map(str::trim).filter(|own| !own.is_empty());
                    unknown.extend(
                        statements
                            .filter(|own| !known().any(|written| own.starts_with(written)))
                            .map(str::to_owned),
                    );
                }
                _ => {}
            }
        }
    }
    unknown.extend(quoted(&prose).into_iter().filter(|own| !known().any(|written| written == own)));
    unknown
}

/// Whether `filled` is the statement `written`, with a value for each `...` and each placeholder.
fn fills(written: &str, filled: &str) -> bool {
    let mut rest = filled;
    let stand_ins = ["...", "pgsluice_NAME", "its name", " db "];
    let mut pieces = vec![written.trim_end_matches(';')];
    for stand_in in stand_ins {
        pieces = pieces.into_iter().flat_map(|piece| piece.split(stand_in)).collect();
    }
    pieces.into_iter().map(|piece| piece.trim_matches(['\'', ')'])).all(|piece| match rest.find(piece) {
        Some(at) => {
            rest = &rest[at + piece.len()..];
            true
        }
        None => false,
    })
}

#[track_caller]
fn run(cluster: &Cluster, (written, filled): (&str, &str)) {
    assert!(filled.is_empty() || fills(written, filled), "{written} is not {filled}");
    for statement in filled.split("; ").filter(|statement| !statement.is_empty()) {
        cluster.sql(DB, statement).unwrap_or_else(|error| panic!("{written}: {statement}: {error:#}"));
    }
}

#[test]
fn every_statement_that_is_told_to_be_run_can_be() {
    let unknown = unknown();
    assert!(unknown.is_empty(), "nobody runs:\n{}", unknown.join("\n"));
    let mut cluster = Cluster::builder(Major::V18).setting("wal_level", "logical").start().unwrap();
    STATEMENTS.iter().for_each(|pair| run(&cluster, *pair));
    let publisher = Cluster::builder(Major::V18).setting("wal_level", "logical").start().unwrap();
    publisher.sql(DB, "CREATE TABLE accounts (id int PRIMARY KEY)").unwrap();
    publisher.sql(DB, "CREATE PUBLICATION p FOR TABLE accounts").unwrap();
    let subscribe = format!(
        "CREATE SUBSCRIPTION orders_native CONNECTION '{}' PUBLICATION p WITH (copy_data = false)",
        publisher.url(DB)
    );
    cluster.sql(DB, &subscribe).unwrap();
    for pair in &CONNECTED[..2] {
        run(&cluster, *pair);
    }
    cluster.sql(DB, "ALTER SUBSCRIPTION orders_native DISABLE").unwrap();
    for pair in &CONNECTED[2..] {
        // Its worker may not have gone yet.
        testkit::wait_for(pair.0, crate::support::BOUND, || Ok(cluster.sql(DB, pair.1).is_ok())).unwrap();
        assert!(fills(pair.0, pair.1));
    }
    cluster.sql(DB, "DROP SUBSCRIPTION orders_native").unwrap();
    cluster.stop(StopMode::Fast).unwrap();
    become_standby(&mut cluster);
    promote(&cluster);
}

#[test]
fn a_statement_is_filled_in_and_not_another() {
    assert!(fills("ALTER TABLE ... ADD COLUMN", "ALTER TABLE t ADD COLUMN v text"));
    assert!(!fills("ALTER TABLE ... ADD COLUMN", "ALTER TABLE t DROP COLUMN v"));
    assert!(fills("SELECT pg_drop_replication_slot('...')", "SELECT pg_drop_replication_slot('s')"));
    assert_eq!(in_message("remove it with DROP SCHEMA x; see ALTER TABLE, TRUNCATE").len(), 1);
    assert_eq!(quoted("with `GRANT SELECT` or `grants`"), ["GRANT SELECT"]);
}
