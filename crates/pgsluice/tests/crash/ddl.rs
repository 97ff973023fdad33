//! Changes the catalogs of the source while processes are killed, for a pgsluice that follows them
//! through the WAL.
//!
//! One session leaves no lasting change in published tables. Unpublished tables come, change and
//! go, published ones and catalogs get new files, publications change, and checkpoints say what is
//! running.
//!
//! Once everything was copied, another session adds one column after the other to the published
//! table `shaped`, on both ends, and removes each again. Only this session writes rows of the
//! table: before, in and after each of these transactions.
//!
//! | a column | first changes on | because |
//! | --- | --- | --- |
//! | comes, with a default or without | the target | values for it may come as soon as the source has it |
//! | is widened | the target | wider values may come as soon as the source takes them |
//! | goes | the source | values for it come until the target has all that was written before |
//!
//! Each step is tried until it has succeeded, through all kills. It may have been done although its
//! answer was lost, so each may be done twice. A step on the target is durable before the source
//! continues, which relies on it. Every transaction on the source updates row 0. So they come in
//! order even where others may overtake, and row 0 on the target shows how many it has.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::{Pair, wait_for};

use crate::MOVING_BOUND;
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
/// Steps between checkpoints, which say what is running. Without one, pgsluice stores no catalogs.
const CHECKPOINT_EACH: u64 = 20;

/// A table has 1,600 at most, and those count that were dropped.
const COLUMNS_MAX: u64 = 1_000;

/// Sessions, until stopped.
pub(crate) struct Ddl {
    stop: Arc<AtomicBool>,
    passing: JoinHandle<u64>,
    lasting: Option<JoinHandle<u64>>,
}

impl Ddl {
    pub(crate) fn start(url: String, seed: u64) -> Ddl {
        let stop = Arc::new(AtomicBool::new(false));
        let passing = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let (mut conn, mut random, mut done) = (Conn::new(url), StdRng::seed_from_u64(seed), 0);
                for number in 0_u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    // The pace of a load; no test waits for it.
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
        Ddl { stop, passing, lasting: None }
    }

    /// Begins with what lasts.
    pub(crate) fn reshape(&mut self, pair: &Pair, seed: u64) {
        let [source, target] = [&pair.source, &pair.target].map(|end| Conn::new(end.url("postgres")));
        let mut reshaping = Reshaping { source, target, random: StdRng::seed_from_u64(!seed), step: 0 };
        let stop = Arc::clone(&self.stop);
        self.lasting = Some(std::thread::spawn(move || {
            let mut number = 0;
            while number < COLUMNS_MAX && !stop.load(Ordering::Relaxed) {
                reshaping.column(number);
                number += 1;
            }
            number
        }));
    }

    /// Stops once both ends have the same columns. Returns the number of statements, and of columns
    /// that came and went.
    pub(crate) fn stop(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        let joined = |thread: JoinHandle<u64>| thread.join().expect("who changes catalogs does not panic");
        (joined(self.passing), self.lasting.map_or(0, joined))
    }
}

/// What changes `shaped`; see the module.
struct Reshaping {
    source: Conn,
    target: Conn,
    random: StdRng,
    /// Of the source's transactions, the last.
    step: u64,
}

impl Reshaping {
    /// One that comes, is widened and goes.
    fn column(&mut self, number: u64) {
        let name = format!("c{number}");
        // Values for some rows; before it is widened they are rounded.
        let fill = format!("UPDATE shaped SET {name} = id / 7.0 WHERE id % 5 = {number} % 5");
        let default = if number.is_multiple_of(2) { "" } else { "DEFAULT 7.25" };
        let add = format!("ALTER TABLE shaped ADD COLUMN IF NOT EXISTS {name} numeric(9, 2) {default}");
        self.on_target(&add, None);
        self.on_source(&format!("{add}; {fill}"));
        // New files, if no lock is in the way.
        for conn in [&mut self.source, &mut self.target] {
            let _ = conn.run("VACUUM FULL shaped");
        }
        let widen = format!("ALTER TABLE shaped ALTER {name} TYPE numeric(12, 4)");
        self.on_target(&widen, None);
        self.on_source(&format!("{fill}; {widen}; {fill}"));
        let drop = format!("ALTER TABLE shaped DROP COLUMN IF EXISTS {name}");
        self.on_source(&drop);
        self.on_target(&drop, Some(self.step));
    }

    /// Rows, rows with `change` in the middle of their transaction, and rows.
    fn on_source(&mut self, change: &str) {
        for change in ["", change, ""] {
            self.step += 1;
            let rows = rows(self.step);
            let sql = format!("{rows}; {change}; {rows}");
            let done = wait_for(&sql, MOVING_BOUND, || Ok(self.source.run(&sql).is_ok()));
            done.expect("the source comes back");
            // The pace of a load; no test waits for it.
            std::thread::sleep(Duration::from_millis(self.random.random_range(20..200)));
        }
    }

    /// Behind the source's transaction `after`, if there is one to wait for.
    fn on_target(&mut self, sql: &str, after: Option<u64>) {
        // In the same transaction: a crash may take back what was seen before it.
        let is_there =
            after.map_or("true".to_owned(), |step| format!("(SELECT n FROM shaped WHERE id = 0) >= {step}"));
        // Who applies may wait for this lock, and this for what was executed ahead of him.
        let sql = format!(
            "SET synchronous_commit = on; SET lock_timeout = '2s'; \
             DO $$ BEGIN IF {is_there} THEN {sql}; ELSE RAISE 'not yet'; END IF; END $$"
        );
        let done = wait_for(&sql, MOVING_BOUND, || Ok(self.target.run(&sql).is_ok()));
        done.expect("the target comes back, and has what it waits for");
    }
}

/// Adds some rows, removes as many, and changes row 0. It does not name columns that come and go,
/// and tries again where they may have gone.
fn rows(step: u64) -> String {
    format!(
        "UPDATE shaped SET n = {step}, note = md5(note) WHERE id = 0; \
         INSERT INTO shaped (id, n, note) SELECT max(id) + i, {step}, repeat('x', {step} % 60) \
           FROM shaped, generate_series(1, 3) i GROUP BY i; \
         DELETE FROM shaped WHERE id IN (SELECT id FROM shaped WHERE id > 0 ORDER BY id LIMIT 3)"
    )
}
