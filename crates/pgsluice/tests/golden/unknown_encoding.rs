//! Two databases in SQL_ASCII: no server knows what the bytes of their text mean, and they arrive
//! unchanged.

use crate::support::{Scenario, scenario_in};
use crate::{BEHIND, STRATEGIES};

const ASCII: &str = "ENCODING 'SQL_ASCII' TEMPLATE template0";

const TABLES: &str = "
    CREATE TABLE t (id int PRIMARY KEY, v text, c char(4), a text[], big text);
    CREATE TABLE keyed (k text PRIMARY KEY, n int);
    CREATE TABLE whole (v text, n int)";

const ROWS: &str = r"
    INSERT INTO t SELECT i, E'\xff' || chr(i), E'\xe4', ARRAY[E'\x80,', 'a', NULL], repeat(E'\xfe\xff', 2000) FROM generate_series(1, 20) i;
    INSERT INTO keyed VALUES (E'\xff', 1), (E'\xff\\', 2), (E'it''s \xe9', 3), ('plain', 4);
    INSERT INTO whole VALUES (E'\x90', 1), (E'\x90', 1), ('ä', 2)";

/// Each sent as one transaction.
const STEPS: [&str; 6] = [
    r"INSERT INTO t SELECT i, repeat(E'\xc3', i), E'\xff\xff', '{}', NULL FROM generate_series(21, 200) i",
    r"UPDATE t SET v = v || E'\x81' WHERE id % 2 = 0; UPDATE t SET id = -id WHERE id < 5",
    r"UPDATE keyed SET n = -n; UPDATE keyed SET k = E'\xfe' WHERE k = E'\xff'; DELETE FROM keyed WHERE k = E'\xff\\'",
    r"INSERT INTO keyed VALUES (E'\xff', 9); UPDATE keyed SET n = 10 WHERE k = E'\xff'",
    r"UPDATE whole SET v = v || E'\xff' WHERE ctid = (SELECT min(ctid) FROM whole WHERE v = E'\x90'); DELETE FROM whole WHERE v = 'ä'",
    r#"INSERT INTO whole VALUES (E'\xb0', NULL); UPDATE t SET a[1] = E'\xff"\\' WHERE id > 190"#,
];

/// The bytes of every row, in characters that can be sent.
fn same_bytes(s: &Scenario) {
    for table in ["t", "keyed", "whole"] {
        let rows = format!(
            "SELECT string_agg(encode(convert_to(t::text, 'SQL_ASCII'), 'escape'), '|' ORDER BY t::text COLLATE \"C\") FROM {table} t"
        );
        let expected = s.source_one(&rows);
        assert!(expected.contains("\\3"), "{table} has no high bytes: {expected}");
        assert_eq!(s.target_one(&rows), expected, "{table}");
    }
}

#[test]
fn bytes_of_no_encoding_arrive_as_they_are() {
    scenario_in(ASCII, ASCII, STRATEGIES, |s| {
        s.both(TABLES);
        s.source("ALTER TABLE whole REPLICA IDENTITY FULL");
        s.source(ROWS);
        s.follow();
        same_bytes(s);
        s.stop_from(BEHIND);
        STEPS.iter().for_each(|step| s.source(step));
        s.follow();
        same_bytes(s);
        verified(s);
    });
}

/// Verify compares them, and names rows by what can be shown of them.
fn verified(s: &Scenario) {
    let verify = |args: &[&str]| s.call(0, &[&["verify", "--publication", "p"], args].concat());
    let equal = verify(&["--chunk-bytes", "16kB"]);
    assert!(equal.status.success(), "{equal:?}");
    s.target(r"UPDATE keyed SET n = 0 WHERE k = E'it''s \xe9'; UPDATE t SET v = E'\xfb' WHERE id = 7; DELETE FROM whole WHERE v = E'\xb0'");
    let differs = verify(&[]);
    assert_eq!(differs.status.code(), Some(6), "{differs:?}");
    for words in [r#"k=it's \351: column "n""#, r#"id=7: column "v""#, r"'\373'", r"(\260,)"] {
        assert!(differs.stdout.contains(words), "{words} in {differs:?}");
    }
}
