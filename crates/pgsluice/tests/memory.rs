//! One transaction of many rows, streamed while it is open or sent after its commit: memory stays bounded.
//!
//! `PGSLUICE_MEMORY_ROWS` sets the rows: 10,000,000 is what is promised; the default is enough to exceed the limit if
//! the transaction were held in memory.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::time::Duration;

use testkit::{Builder, Cluster, Major, Pair, Sluice, assert_same_rows, wait_for};

/// What is promised.
const RESIDENT_MAX: u64 = 256 << 20;
/// Of each row, about; the default transaction is larger than what is promised.
const ROW_BYTES: u64 = 1_000;
const ROWS: u64 = 280_000;
const BOUND: Duration = Duration::from_secs(3_600);

fn rows() -> u64 {
    let text = std::env::var("PGSLUICE_MEMORY_ROWS").unwrap_or_default();
    if text.is_empty() { ROWS } else { text.parse().expect("PGSLUICE_MEMORY_ROWS is a number") }
}

/// Memory of `pgsluice` while it applies one transaction of [`rows`] rows.
fn resident_of_one_transaction(major: Major, streaming: &str) -> u64 {
    let set = |builder: Builder| builder.setting("max_wal_size", "8GB").setting("synchronous_commit", "off");
    let pair = Pair::with(set(Cluster::builder(major)), set(Cluster::builder(major))).unwrap();
    pair.both("postgres", "CREATE TABLE t (id bigint PRIMARY KEY, v text)").unwrap();
    pair.source.sql("postgres", "CREATE PUBLICATION p FOR TABLE t").unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_pgsluice"));
    let args = ["run", "--publication", "p", "--subscription", "s", "--streaming", streaming];
    let mut sluice = Sluice::start(Sluice::command_of(program, &pair, &args)).unwrap();
    // The stream, not the first copy, is to carry it.
    let streams = || {
        let sql = "SELECT count(*) FROM pg_stat_replication WHERE application_name LIKE '%s%stream'";
        Ok(pair.source.one("postgres", sql) == "1")
    };
    wait_for("the stream", BOUND, streams).unwrap_or_else(|error| panic!("{error}\n{}", sluice.stderr()));
    let rows = rows();
    let insert = format!(
        "INSERT INTO t SELECT i, repeat('x', {ROW_BYTES} - 20) || i FROM generate_series(1, {rows}) i"
    );
    pair.source.sql("postgres", &insert).unwrap();
    let level = || {
        assert!(sluice.is_running(), "pgsluice ended");
        Ok(pair.target.one("postgres", "SELECT count(*) FROM t") == rows.to_string())
    };
    wait_for("the transaction on the target", BOUND, level)
        .unwrap_or_else(|error| panic!("{error}\n{}", sluice.stderr()));
    assert_same_rows(&pair.source, &pair.target, "postgres", "t");
    let resident = sluice.resident_bytes_max();
    sluice.terminate(Duration::from_secs(10)).unwrap();
    resident
}

#[test]
fn one_large_transaction_is_not_held_in_memory() {
    let transaction = rows() * ROW_BYTES;
    assert!(transaction > RESIDENT_MAX, "a transaction of {transaction} bytes would show nothing");
    // Each major in one of the two ways: they differ here, in who keeps the open transaction.
    for (major, streaming) in Major::under_test().into_iter().zip(["on", "off"].into_iter().cycle()) {
        let resident = resident_of_one_transaction(major, streaming);
        let megabytes = resident >> 20;
        println!(
            "PostgreSQL {major}, streaming {streaming}: {} rows, {megabytes} MiB resident at most",
            rows()
        );
        assert!(resident < RESIDENT_MAX, "{megabytes} MiB resident");
    }
}
