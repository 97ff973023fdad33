//! What changes the catalogs of the source while things are killed: for who follows them through the WAL.
//!
//! Tables that nobody replicates come, change and go, published ones and catalogs get new files, publications change, and
//! checkpoints say what is running. Nothing of it changes a published row.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::conn::Conn;

/// Each a statement, or a transaction that ends itself.
const STATEMENTS: [&str; 14] = [
    "CREATE TEMP TABLE passing (a int PRIMARY KEY, b text); INSERT INTO passing SELECT i, 'x' FROM generate_series(1, 99) i; \
     DROP TABLE passing",
    "DROP TABLE IF EXISTS other; CREATE TABLE other (a int PRIMARY KEY, b text DEFAULT 'b')",
    "ALTER TABLE IF EXISTS other ADD COLUMN c numeric DEFAULT 7.5",
    "ALTER TABLE IF EXISTS other ALTER a TYPE int8",
    "BEGIN; CREATE TABLE undone (a int); INSERT INTO undone SELECT generate_series(1, 500); ROLLBACK",
    "BEGIN; SAVEPOINT s; ALTER TABLE loose ADD COLUMN undone int; INSERT INTO loose VALUES (99, 1, 'x', 1); ROLLBACK TO s; COMMIT",
    "DROP PUBLICATION IF EXISTS other; CREATE PUBLICATION other FOR TABLE journal",
    "ALTER PUBLICATION other SET TABLE journal, ledger",
    "VACUUM FULL pg_attribute",
    "VACUUM FULL pg_class",
    "VACUUM (FULL, ANALYZE) churn",
    "CLUSTER keyed USING keyed_pkey",
    "ANALYZE",
    "CHECKPOINT",
];
/// At least so often it is said what is running, without which nothing is kept.
const CHECKPOINT_EACH: u64 = 20;

/// One session, until stopped.
pub(crate) struct Ddl {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Ddl {
    pub(crate) fn start(url: String, seed: u64) -> Ddl {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let (mut conn, mut random, mut done) = (Conn::new(url), StdRng::seed_from_u64(seed), 0);
                for number in 0_u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(random.random_range(20..200)));
                    let chosen = match number.is_multiple_of(CHECKPOINT_EACH) {
                        true => "CHECKPOINT",
                        false => STATEMENTS[random.random_range(0..STATEMENTS.len())],
                    };
                    // It may fail: for the crash, or for what an earlier one left.
                    match conn.run(chosen) {
                        Ok(_) => done += 1,
                        Err(_) => drop(conn.run("ROLLBACK")),
                    }
                }
                done
            }
        });
        Ddl { stop, thread }
    }

    /// How many statements were done.
    pub(crate) fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("who changes catalogs does not panic")
    }
}
