//! A value of 200 MB is copied, streamed, and left alone where it does not change.

use testkit::{Cluster, Major, Pair, Sluice, wait_for};

use crate::support::BOUND;

const MEGABYTES: usize = 200;

/// Each major in one form: text is half as long again, because a bytea is written in hexadecimal.
#[test]
fn a_value_of_200_mb_passes() {
    for (major, column) in Major::under_test().into_iter().zip(["text", "bytea"].into_iter().cycle()) {
        pass(major, column);
    }
}

fn pass(major: Major, column: &str) {
    let pair = Pair::with(Cluster::builder(major), Cluster::builder(major)).unwrap();
    let table = format!(
        "CREATE TABLE t (id int PRIMARY KEY, n int, v {column}); ALTER TABLE t ALTER v SET STORAGE EXTERNAL"
    );
    pair.both("postgres", &table).unwrap();
    pair.source.sql("postgres", "CREATE PUBLICATION p FOR TABLE t").unwrap();
    let value = match column {
        "bytea" => format!("decode(repeat('00ff5c27', {MEGABYTES} << 18), 'hex')"),
        _ => format!("repeat('0123456789abcdef', {MEGABYTES} << 16)"),
    };
    let write = |sql: &str| pair.source.sql("postgres", sql).unwrap();
    write(&format!("INSERT INTO t VALUES (1, 0, {value})"));
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_pgsluice"));
    let args = ["run", "--publication", "p", "--subscription", "s"];
    let mut sluice = Sluice::start(Sluice::command_of(program, &pair, &args)).unwrap();
    let rows =
        "SELECT string_agg(format('%s %s %s %s', id, n, octet_length(v), md5(v)), ';' ORDER BY id) FROM t";
    // The values themselves are looked at once, for they are large.
    let there = "SELECT string_agg(format('%s %s', id, n), ';' ORDER BY id) FROM t";
    let mut level = || {
        let expected = pair.source.one("postgres", there);
        let same = || {
            assert!(sluice.is_running(), "pgsluice ended");
            Ok(pair.target.one("postgres", there) == expected)
        };
        wait_for("the value on the target", BOUND * 4, same)
            .unwrap_or_else(|error| panic!("{error}\n{}", sluice.stderr()));
        let expected = pair.source.one("postgres", rows);
        assert_eq!(pair.target.one("postgres", rows), expected);
        expected
    };
    level();
    write(&format!("INSERT INTO t VALUES (2, 0, {value})"));
    level();
    write("UPDATE t SET n = 1 WHERE id = 1");
    write("UPDATE t SET id = 3, v = NULL WHERE id = 2");
    let found = level();
    assert!(found.starts_with(&format!("1 1 {} ", MEGABYTES << 20)), "{found}");
    sluice.terminate(std::time::Duration::from_secs(20)).unwrap();
}
