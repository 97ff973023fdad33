//! How rows are found: replica identities, keys that are not compared byte by byte, and TOAST
//! values that are not sent.

use crate::support::{FOLDED, ONE_BY_ONE, scenario, scenario_with};

#[test]
fn identity_by_an_index_and_key_changes() {
    scenario(|s| {
        s.both(
            "CREATE TABLE t (a int NOT NULL, b text NOT NULL, c text, id int PRIMARY KEY); \
             CREATE UNIQUE INDEX t_by ON t (b, a); ALTER TABLE t REPLICA IDENTITY USING INDEX t_by",
        );
        s.source("INSERT INTO t SELECT i, 'b' || i, 'c', i FROM generate_series(1, 100) i");
        s.live(&[
            "UPDATE t SET c = 'd' WHERE id % 2 = 0",
            "UPDATE t SET b = b || 'x' WHERE id % 3 = 0",
            "UPDATE t SET id = id + 1000 WHERE id % 5 = 0",
            "DELETE FROM t WHERE id % 7 = 0",
            "UPDATE t SET a = a + 1, c = NULL WHERE id < 50; UPDATE t SET a = a - 1 WHERE id < 50",
        ]);
        s.backlog(&[
            "UPDATE t SET a = -a",
            "UPDATE t SET b = 'y' || b, id = -id",
            "DELETE FROM t WHERE a % 4 = 0",
        ]);
    });
}

/// The index has a different collation than its column, and finds rows only under its own.
#[test]
fn identity_by_an_index_of_another_collation() {
    scenario_with(&[FOLDED, ONE_BY_ONE], |s| {
        s.both(
            "CREATE TABLE t (name text COLLATE \"POSIX\" NOT NULL, v int); \
             CREATE UNIQUE INDEX t_by ON t (name COLLATE \"C\"); ALTER TABLE t REPLICA IDENTITY USING INDEX t_by",
        );
        s.source("INSERT INTO t SELECT 'name ' || i, i FROM generate_series(1, 2000) i");
        s.follow();
        s.source("UPDATE t SET v = -v");
        s.source("UPDATE t SET name = name || '!' WHERE v % 2 = 0");
        s.source("DELETE FROM t WHERE v % 3 = 0");
        s.catch_up();
        s.same();
        for number in 0..s.followers() {
            let log = s.log(number);
            assert!(!log.contains("reads the whole table"), "{log}");
        }
    });
}

/// The target lacks the index that is the source's replica identity.
#[test]
fn identity_that_is_not_unique_on_the_target() {
    scenario(|s| {
        s.source("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.target("CREATE TABLE t (id int, v text)");
        s.source("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 50) i");
        s.live(&[
            "UPDATE t SET v = 'w' WHERE id % 2 = 0",
            "DELETE FROM t WHERE id % 5 = 0",
            "UPDATE t SET id = -id WHERE id < 9",
        ]);
        s.target("INSERT INTO t VALUES (21, 'duplicate')");
        // Like native apply, one of the matching rows is deleted.
        s.source("DELETE FROM t WHERE id = 21");
        s.catch_up();
        assert_eq!(s.target_one("SELECT count(*) FROM t WHERE id = 21"), "1");
        assert_eq!(s.conflicts("delete_missing"), 0);
    });
}

#[test]
fn identity_full_with_duplicates_and_nulls() {
    scenario(|s| {
        s.both("CREATE TABLE t (a int, b text, c float8); ALTER TABLE t REPLICA IDENTITY FULL");
        s.source("INSERT INTO t SELECT 1, NULL, 'NaN' FROM generate_series(1, 5)");
        s.source(
            "INSERT INTO t VALUES (NULL, NULL, NULL), (NULL, NULL, NULL), (2, 'x', -0.0), (2, 'x', 0.0)",
        );
        s.live(&[
            "UPDATE t SET b = 'one' WHERE ctid = (SELECT min(ctid) FROM t WHERE a = 1)",
            "DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t WHERE a = 1 AND b IS NULL)",
            "UPDATE t SET a = 7 WHERE ctid = (SELECT min(ctid) FROM t WHERE a IS NULL)",
            "DELETE FROM t WHERE a IS NULL",
            "INSERT INTO t SELECT 9, 'n', i % 2 FROM generate_series(1, 10) i; DELETE FROM t WHERE a = 9 AND c = 1",
        ]);
        s.backlog(&[
            "UPDATE t SET b = coalesce(b, 'was null')",
            "DELETE FROM t WHERE a = 1",
            "INSERT INTO t VALUES (1, 'n', 1)",
        ]);
        assert_eq!(s.conflicts("update_missing") + s.conflicts("delete_missing"), 0);
    });
}

#[test]
fn identity_full_of_types_without_equality() {
    scenario(|s| {
        s.both(
            "CREATE TABLE t (j json, p point, x xml, pa point[], ja json[], b box); ALTER TABLE t REPLICA IDENTITY FULL",
        );
        s.source(
            "INSERT INTO t SELECT ('{\"a\":  ' || i || '}')::json, point(i, 0.1), '<a/>', ARRAY[point(i, 1)], \
             ARRAY['1'::json, NULL], box(point(i, i), point(0, 0)) FROM generate_series(1, 6) i",
        );
        s.source("INSERT INTO t VALUES (NULL, NULL, NULL, NULL, NULL, NULL)");
        s.live(&[
            "UPDATE t SET p = point(-1, -1) WHERE p[0] = 1",
            "DELETE FROM t WHERE p[0] IN (2, 3)",
            "UPDATE t SET j = '[1]' WHERE j IS NULL",
            "DELETE FROM t WHERE p[0] = 4; UPDATE t SET x = '<b/>'",
        ]);
        s.backlog(&["UPDATE t SET pa = NULL", "DELETE FROM t"]);
        assert_eq!(s.conflicts("update_missing") + s.conflicts("delete_missing"), 0);
    });
}

/// The old row has the columns of the target's key.
#[test]
fn identity_full_into_a_table_with_a_key() {
    scenario(|s| {
        s.both("CREATE TABLE t (v text, id int PRIMARY KEY, big text)");
        s.source("ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE t ALTER big SET STORAGE EXTERNAL");
        s.source("INSERT INTO t SELECT 'v', i, repeat('x', 4000) FROM generate_series(1, 30) i");
        s.live(&[
            "UPDATE t SET v = 'w' WHERE id % 2 = 0",
            "UPDATE t SET id = -id WHERE id % 3 = 0",
            "DELETE FROM t WHERE id % 5 = 0",
        ]);
        s.backlog(&[
            "UPDATE t SET v = id::text",
            "DELETE FROM t WHERE id < 0",
            "INSERT INTO t VALUES ('n', -3, NULL)",
        ]);
    });
}

#[test]
fn identity_nothing_takes_inserts_and_truncate() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t REPLICA IDENTITY NOTHING");
        s.publish("FOR TABLE t, mark WITH (publish = 'insert, truncate')");
        s.source("INSERT INTO t VALUES (1, 'a')");
        s.live(&["INSERT INTO t VALUES (2, 'b'), (3, 'c')"]);
        s.source("UPDATE t SET v = 'not published'; DELETE FROM t WHERE id = 1");
        s.catch_up();
        assert_eq!(s.target_one("SELECT string_agg(v, '' ORDER BY id) FROM t"), "abc");
        s.backlog(&["TRUNCATE t", "INSERT INTO t VALUES (1, 'again')"]);
    });
}

/// Keys with equal values that have different bytes: one row on the source must be one row on the
/// target.
#[test]
fn a2_keys_that_are_not_compared_byte_by_byte() {
    // Only the server can render citext, so it cannot be decoded outside.
    scenario_with(&[FOLDED, ONE_BY_ONE], |s| {
        s.both(
            "CREATE EXTENSION citext; \
             CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false); \
             CREATE TABLE n (k numeric PRIMARY KEY, v int); CREATE TABLE n2 (k numeric(8, 2) PRIMARY KEY, v int); \
             CREATE TABLE f (k float8 PRIMARY KEY, v int); CREATE TABLE c (k citext PRIMARY KEY, v int); \
             CREATE TABLE d (k text COLLATE nocase PRIMARY KEY, v int); CREATE TABLE b (k char(5) PRIMARY KEY, v int); \
             CREATE TABLE i (k interval PRIMARY KEY, v int); CREATE TABLE z (k timetz PRIMARY KEY, v int); \
             CREATE TABLE j (k jsonb PRIMARY KEY, v int); CREATE TABLE a (k numeric[] PRIMARY KEY, v int); \
             CREATE TABLE r (k numrange PRIMARY KEY, v int); CREATE TABLE inet4 (k inet PRIMARY KEY, v int)",
        );
        let pairs = [
            ("n", "1.0", "1.00"),
            ("n2", "1.0", "1.00"),
            ("f", "-0", "0"),
            ("c", "Abc", "aBC"),
            ("d", "Abc", "aBC"),
            ("b", "ab", "ab   "),
            ("i", "1 day", "24:00:00"),
            ("z", "12:00+00", "12:00+00"),
            ("j", "1.0", "1.00"),
            ("a", "{1.0}", "{1.00}"),
            ("r", "[1.0,2)", "[1.00,2.0)"),
            ("inet4", "10.0.0.1", "10.0.0.1/32"),
        ];
        let mut live = Vec::new();
        let mut backlog = Vec::new();
        for (table, one, other) in pairs {
            // One transaction changes the same row under both spellings of its key.
            live.push(format!(
                "INSERT INTO {table} VALUES ('{one}', 1); UPDATE {table} SET k = '{other}', v = 2; DELETE FROM {table}; \
                 INSERT INTO {table} VALUES ('{other}', 3)"
            ));
            live.push(format!("DELETE FROM {table}; INSERT INTO {table} VALUES ('{one}', 4)"));
            backlog.push(format!("UPDATE {table} SET k = '{other}'"));
            backlog.push(format!("UPDATE {table} SET v = v + 1"));
            backlog.push(format!("DELETE FROM {table} WHERE k = '{one}'"));
            backlog.push(format!("INSERT INTO {table} VALUES ('{one}', 5)"));
            backlog.push(format!("UPDATE {table} SET k = '{other}', v = 6 WHERE k = '{other}'"));
        }
        s.live(&live.iter().map(String::as_str).collect::<Vec<_>>());
        s.backlog(&backlog.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(
            s.conflicts("insert_exists") + s.conflicts("update_missing") + s.conflicts("delete_missing"),
            0
        );
    });
}

#[test]
fn keys_of_many_types_and_columns() {
    scenario(|s| {
        s.both(
            "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy'); CREATE DOMAIN code AS text CHECK (value ~ '^[a-z]+$'); \
             CREATE TABLE t (m mood, u uuid, b bytea, d date, ts timestamptz, c code, o bool, i8 int8, ch \"char\", \
                             na name, l pg_lsn, ma macaddr, v text, PRIMARY KEY (m, u, b, d, ts, c, o, i8, ch, na, l, ma))",
        );
        s.source(
            "INSERT INTO t SELECT (ARRAY['sad', 'ok', 'happy'])[1 + i % 3]::mood, md5(i::text)::uuid, decode(md5(i::text), 'hex'), \
                    '2000-01-01'::date + i, '2000-01-01'::timestamptz + i * '1 us'::interval, 'abc', i % 2 = 0, i, 'c', \
                    'n' || i, '0/1'::pg_lsn + i, '08:00:2b:01:02:03', 'v' FROM generate_series(1, 60) i",
        );
        s.live(&[
            "UPDATE t SET v = 'w' WHERE i8 % 2 = 0; UPDATE t SET v = v || 'x'",
            "UPDATE t SET m = 'happy' WHERE m = 'sad'; UPDATE t SET i8 = -i8 WHERE o",
            "DELETE FROM t WHERE i8 % 7 = 0",
        ]);
        s.backlog(&[
            "UPDATE t SET v = 'y'",
            "UPDATE t SET ts = 'infinity', d = '-infinity' WHERE i8 % 5 = 0",
            "UPDATE t SET v = 'z' WHERE o",
        ]);
    });
}

/// Key changes that pass a value on, in one transaction and in several.
#[test]
fn a_key_is_passed_on() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.source("INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 10) i");
        let chain: Vec<String> =
            (1..=10).rev().map(|id| format!("UPDATE t SET id = {} WHERE id = {id}", id + 1)).collect();
        s.live(&[&chain.join("; "), "UPDATE t SET id = -1 WHERE id = 2; UPDATE t SET id = 2 WHERE id = 3; UPDATE t SET id = 3 WHERE id = -1"]);
        let back: Vec<String> =
            (2..=11).map(|id| format!("UPDATE t SET id = {} WHERE id = {id}", id - 1)).collect();
        s.backlog(&back.iter().map(String::as_str).collect::<Vec<_>>());
    });
}

#[test]
fn unchanged_toast_stays_as_it_is() {
    scenario_with(&[FOLDED, ONE_BY_ONE, &["--binary", "off"]], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, a text, b bytea, c jsonb, n int)");
        s.source("ALTER TABLE t ALTER a SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL");
        let big = "repeat(md5(random()::text), 200)";
        s.source(&format!(
            "INSERT INTO t SELECT i, {big}, {big}::bytea, jsonb_build_object('k', (SELECT string_agg(md5(random()::text), '') \
             FROM generate_series(1, 300))), 0 FROM generate_series(1, 30) i"
        ));
        // Each subset of the columns changes, in one transaction and folded with others.
        let subsets = [
            "UPDATE t SET n = n + 1 WHERE id % 2 = 0".to_owned(),
            format!("UPDATE t SET a = {big} WHERE id % 3 = 0"),
            format!("UPDATE t SET b = {big}::bytea WHERE id % 5 = 0"),
            "UPDATE t SET c = c || '{\"x\": 1}' WHERE id % 7 = 0".to_owned(),
            "UPDATE t SET a = NULL WHERE id = 1; UPDATE t SET n = 9 WHERE id = 1".to_owned(),
            format!("UPDATE t SET a = {big}, c = NULL, n = n + 1 WHERE id % 4 = 0"),
            "UPDATE t SET id = id + 100 WHERE id = 12; UPDATE t SET n = -1 WHERE id = 112".to_owned(),
            format!(
                "INSERT INTO t VALUES (500, {big}, {big}::bytea, '1', 0); UPDATE t SET n = 1 WHERE id = 500"
            ),
            format!(
                "DELETE FROM t WHERE id = 20; INSERT INTO t VALUES (20, {big}); UPDATE t SET n = 3 WHERE id = 20"
            ),
        ];
        let statements: Vec<&str> = subsets.iter().map(String::as_str).collect();
        s.live(&statements);
        s.live(&[&statements[..6].join("; ")]);
        s.backlog(&statements[..6]);
    });
}

/// A key stored out of line: the new row omits it, the old row has it.
#[test]
fn unchanged_toast_in_the_key() {
    scenario(|s| {
        s.both("CREATE TABLE t (k text PRIMARY KEY, v int, filler text)");
        // Both together are too large for a page, and only the key may be stored out of line.
        s.source("ALTER TABLE t ALTER filler SET STORAGE PLAIN");
        s.source(
            "INSERT INTO t SELECT i || (SELECT string_agg(md5(j::text), '') FROM generate_series(i, i + 59) j), 0, repeat('f', 1500) \
             FROM generate_series(1, 5) i",
        );
        let toast = s.source_one("SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 't'");
        assert_eq!(s.source_one(&format!("SELECT count(DISTINCT chunk_id) FROM {toast}")), "5");
        s.live(&[
            "UPDATE t SET v = v + 1",
            "UPDATE t SET v = 5 WHERE k LIKE '1%'; UPDATE t SET v = v + 1 WHERE k LIKE '1%'",
            "DELETE FROM t WHERE k LIKE '2%'",
        ]);
        s.backlog(&[
            "UPDATE t SET v = v + 1",
            "UPDATE t SET k = 'short' WHERE k LIKE '3%'",
            "UPDATE t SET v = -1",
            "DELETE FROM t WHERE k LIKE '4%'",
        ]);
    });
}
