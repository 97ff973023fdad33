//! Rules F1 to F4: which changes may be folded, and that folding hides nothing.

use crate::support::{FOLDED, scenario, scenario_with};

#[test]
fn a_table_is_copied_and_then_followed() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, a text, b numeric)");
        s.source("INSERT INTO t SELECT i, 'row ' || i, i / 7.0 FROM generate_series(1, 5000) i");
        let changes = [
            "INSERT INTO t SELECT i, 'new', NULL FROM generate_series(5001, 6000) i",
            "UPDATE t SET a = a || '!' WHERE id % 3 = 0",
            "DELETE FROM t WHERE id % 5 = 0",
            "UPDATE t SET id = -id WHERE id % 7 = 0",
            "DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (1, 'again', 1)",
        ];
        s.live(&changes[..4]);
        s.backlog(&changes[4..]);
    });
}

/// A key that is inserted and deleted within one batch must still be absent before.
#[test]
fn f1_insert_then_delete_does_not_hide_insert_exists() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.follow();
        s.target("INSERT INTO t VALUES (1, 'local')");
        s.source("INSERT INTO t VALUES (1, 'source'); DELETE FROM t WHERE id = 1");
        s.wait_for_log("conflict=insert_exists: Key already exists in unique index \"t_pkey\"");
        assert_eq!(s.target_one("SELECT v FROM t WHERE id = 1"), "local");
        s.target("DELETE FROM t");
        s.catch_up();
        s.same();
    });
}

/// A missing row of one key and an extra row of another do not cancel out.
#[test]
fn f1_expectations_are_checked_per_key() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int, v text); ALTER TABLE t REPLICA IDENTITY FULL");
        s.source("INSERT INTO t VALUES (1, 'a'), (2, 'b')");
        s.follow();
        // Two rows match the first key, none the second.
        s.target("DELETE FROM t; INSERT INTO t VALUES (1, 'a'), (1, 'a')");
        s.source("UPDATE t SET v = v || '!'");
        s.catch_up();
        assert_eq!(s.conflicts("update_missing"), 1);
        assert_eq!(s.target_one("SELECT string_agg(v, ' ' ORDER BY v COLLATE \"C\") FROM t"), "a a!");
    });
}

#[test]
fn f1_delete_then_insert_of_a_missing_row_reports_the_delete() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.source("INSERT INTO t VALUES (1, 'a'), (2, 'b')");
        s.follow();
        s.target("DELETE FROM t WHERE id = 1");
        s.source("DELETE FROM t; INSERT INTO t VALUES (1, 'c'), (2, 'd')");
        s.catch_up();
        assert_eq!((s.conflicts("delete_missing"), s.conflicts("insert_exists")), (1, 0));
        s.same();
    });
}

/// Every valid order of three operations on one key.
#[test]
fn f1_every_sequence_on_one_key() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text, w int DEFAULT 7)");
        s.source("INSERT INTO t SELECT i, 'old' FROM generate_series(1, 100) i");
        let insert = |id: usize, n: usize| format!("INSERT INTO t VALUES ({id}, 'i{n}', {n})");
        let update = |id: usize, n: usize| format!("UPDATE t SET v = 'u{n}' WHERE id = {id}");
        let delete = |id: usize, _: usize| format!("DELETE FROM t WHERE id = {id}");
        let mut statements = Vec::new();
        // The bits of `n` choose between update and delete if the row exists.
        for start_present in [true, false] {
            for n in 0..16 {
                let id = if start_present { n + 1 } else { n + 201 };
                let mut present = start_present;
                for step in 0..4 {
                    let remove = n >> step & 1 == 1;
                    statements.push(match (present, remove) {
                        (false, _) => insert(id, step),
                        (true, false) => update(id, step),
                        (true, true) => delete(id, step),
                    });
                    present = !(present && remove);
                }
            }
        }
        let one_transaction = [statements.join(";")];
        s.live(&one_transaction.iter().map(String::as_str).collect::<Vec<_>>());
        s.source("DELETE FROM t; INSERT INTO t SELECT i, 'old' FROM generate_series(1, 100) i");
        s.backlog(&statements.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(
            s.conflicts("insert_exists") + s.conflicts("update_missing") + s.conflicts("delete_missing"),
            0
        );
    });
}

/// A row that was deleted and inserted again is new: columns that the source lacks get their
/// defaults again.
#[test]
fn f2_delete_and_insert_resets_extra_columns() {
    scenario(|s| {
        s.source("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.target("CREATE TABLE t (extra int DEFAULT 42, v text, id int PRIMARY KEY, note text)");
        s.source("INSERT INTO t VALUES (1, 'a'), (2, 'b')");
        s.follow();
        s.target("UPDATE t SET extra = 1, note = 'local'");
        s.live(&["DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (1, 'again'); UPDATE t SET v = 'c' WHERE id = 2"]);
        assert_eq!(
            s.target_one(
                "SELECT string_agg(id || ':' || extra || coalesce(note, '-'), ' ' ORDER BY id) FROM t"
            ),
            "1:42- 2:1local"
        );
    });
}

#[test]
fn f2_swapped_values_of_a_secondary_unique_key() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, u int, UNIQUE (u))");
        s.source("INSERT INTO t SELECT i, i FROM generate_series(1, 20) i");
        let swap = "UPDATE t SET u = -1 WHERE id = 1; UPDATE t SET u = 1 WHERE id = 2; UPDATE t SET u = 2 WHERE id = 1";
        s.live(&[swap]);
        s.backlog(&[
            "UPDATE t SET u = -1 WHERE id = 3",
            "UPDATE t SET u = 3 WHERE id = 4",
            "UPDATE t SET u = 4 WHERE id = 3",
            // A chain of values, freed from its end.
            "UPDATE t SET u = 100 WHERE id = 10",
            "UPDATE t SET u = 10 WHERE id = 9",
            "UPDATE t SET u = 9 WHERE id = 8",
            "DELETE FROM t WHERE id = 15",
            "UPDATE t SET u = 15 WHERE id = 16",
            "INSERT INTO t VALUES (15, 16)",
        ]);
        assert_eq!(s.conflicts("update_exists") + s.conflicts("insert_exists"), 0);
    });
}

/// An UPDATE that changes the key keeps the values that it did not send.
#[test]
fn f2_a_changed_key_keeps_unchanged_toast() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, big text, small text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL");
        s.source("INSERT INTO t SELECT i, repeat(i::text, 5000), 's' FROM generate_series(1, 4) i");
        let changes = "UPDATE t SET id = id + 10 WHERE id < 3; UPDATE t SET small = 'x' WHERE id = 11; \
                       UPDATE t SET id = 1 WHERE id = 11; UPDATE t SET small = 'y' WHERE id = 1";
        s.live(&[changes]);
        s.backlog(&[
            "UPDATE t SET id = 11 WHERE id = 1",
            "UPDATE t SET id = 1 WHERE id = 12",
            "UPDATE t SET small = 'z'",
        ]);
    });
}

/// A conflict in the middle of a large batch: earlier changes are kept, later ones wait, and
/// nothing is applied twice.
#[test]
fn f4_a_conflict_keeps_the_clean_prefix() {
    scenario(|s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int)");
        s.source("INSERT INTO t SELECT i, 0 FROM generate_series(1, 50) i");
        s.follow();
        s.stop();
        s.target("INSERT INTO t VALUES (1000, -1)");
        for id in 1..=50 {
            s.source(&format!("UPDATE t SET n = n + 1 WHERE id = {id}"));
        }
        s.source("INSERT INTO t VALUES (1000, 1)");
        s.source("UPDATE t SET n = n + 1");
        s.run();
        s.wait_for_log("conflict=insert_exists");
        assert_eq!(s.target_one("SELECT sum(n) FROM t WHERE id <= 50"), "50");
        s.target("DELETE FROM t WHERE id = 1000");
        s.catch_up();
        s.same();
    });
}

/// In tables without a key, a row that was inserted twice appears twice.
#[test]
fn f2_a_table_without_identity_is_appended_to() {
    scenario_with(&[FOLDED, &["--batch-rows-max", "3"], &["--binary", "off"]], |s| {
        s.both("CREATE TABLE t (a int, b text)");
        s.source("INSERT INTO t VALUES (1, 'x'), (1, 'x')");
        s.live(&[
            "INSERT INTO t SELECT 1, 'x' FROM generate_series(1, 10)",
            "INSERT INTO t VALUES (NULL, NULL)",
        ]);
        s.backlog(&[
            "INSERT INTO t VALUES (1, 'x')",
            "INSERT INTO t VALUES (1, 'x')",
            "TRUNCATE t",
            "INSERT INTO t VALUES (2)",
        ]);
    });
}
