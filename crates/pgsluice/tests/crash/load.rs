//! The load on the source while processes are killed.
//!
//! Every transaction that commits takes the next number of `clock` as its last statement, so the
//! numbers are the commit order. It leaves one row in `ledger`, which has no key, so a transaction
//! that is applied twice or not at all shows.
//!
//! Transactions also move money and record that in `journal`. They churn keys, swap unique values
//! and change wide rows in part. Some are large enough to be streamed while open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::conn::Conn;

/// Workers that write small transactions; each has rows of its own, so that
/// only `clock` makes them wait for one another.
const SMALL: u32 = 3;
/// Workers whose transactions are streamed.
const LARGE: u32 = 2;
const VICTIM: u32 = SMALL + LARGE;
const WORKERS: u32 = VICTIM + 1;

/// A small transaction takes so long only on a machine that has more to do than it can.
const BUSY: Duration = Duration::from_millis(20);
/// A writer pauses this many times as long as its last transaction took: replication must do the
/// same work, twice.
const YIELD: u32 = 5;
const YIELD_MAX: Duration = Duration::from_secs(2);

/// Every published table.
pub(crate) const TABLES: [&str; 15] = [
    "clock", "tally", "ledger", "checking", "saving", "journal", "keyed", "churn", "wide", "loose", "bulk",
    "victim", "archive", "annex", "shaped",
];

/// The money in all accounts, always.
pub(crate) const MONEY: i64 = 2 * 40 * OPENING;

/// The money in each account at the start: what it has now is this and all of
/// its entries in `journal`.
pub(crate) const OPENING: i64 = 1_000;

/// On both ends.
pub(crate) const SCHEMA: &str = "
    CREATE TABLE clock (id int PRIMARY KEY, n int8 NOT NULL);
    CREATE TABLE tally (worker int PRIMARY KEY, n int8 NOT NULL);
    CREATE TABLE ledger (at int8, worker int, seq int8, note text);
    CREATE TABLE checking (id int PRIMARY KEY, balance int8 NOT NULL);
    CREATE TABLE saving (id int PRIMARY KEY, balance int8 NOT NULL);
    CREATE TABLE journal (saving bool, account int, amount int8);
    CREATE TABLE keyed (id int PRIMARY KEY, a text, b numeric, v int NOT NULL DEFAULT 0);
    CREATE TABLE churn (id int PRIMARY KEY, u int NOT NULL UNIQUE);
    CREATE TABLE wide (id int PRIMARY KEY, n int NOT NULL, big text NOT NULL);
    ALTER TABLE wide ALTER big SET STORAGE EXTERNAL;
    CREATE TABLE loose (k int, v int, t text);
    ALTER TABLE loose REPLICA IDENTITY FULL;
    CREATE TABLE bulk (owner int, batch int8, i int, t text, PRIMARY KEY (owner, batch, i));
    CREATE TABLE victim (id int8 PRIMARY KEY, v int NOT NULL);
    CREATE TABLE archive (id int PRIMARY KEY, t text);
    CREATE TABLE annex (id int PRIMARY KEY, t text);
    CREATE TABLE shaped (id int8 PRIMARY KEY, n int8 NOT NULL, note text)";

/// On the source only. `shaped` is written by who changes its columns
/// ([`crate::ddl`]).
pub(crate) fn rows() -> String {
    format!(
        "INSERT INTO clock VALUES (1, 0);
         INSERT INTO tally SELECT i, 0 FROM generate_series(0, {WORKERS} - 1) i;
         INSERT INTO checking SELECT i, {OPENING} FROM generate_series(0, 39) i;
         INSERT INTO saving SELECT i, {OPENING} FROM generate_series(0, 39) i;
         INSERT INTO churn SELECT i, i + 1 FROM generate_series(0, 149) i;
         INSERT INTO wide SELECT i, 0, repeat(md5(i::text), 200) FROM generate_series(0, 59) i;
         INSERT INTO shaped SELECT i, 0, 'row ' || i FROM generate_series(0, 99) i"
    )
}

/// On the source only, for a first copy: long enough to be killed several times.
pub(crate) const LONG_ROWS: &str = "
    INSERT INTO archive SELECT i, repeat(md5(i::text), 8) FROM generate_series(1, 200000) i;
    INSERT INTO annex SELECT i, repeat(md5(i::text), 8) FROM generate_series(1, 40000) i";

/// Writers until stopped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    ebb: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl Load {
    /// `slow`: as much as fewer than ten rows at a time can follow.
    pub(crate) fn start(url: &str, seed: u64, slow: bool) -> Load {
        let (stop, ebb) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let start = |number| {
            let (stop, ebb) = (Arc::clone(&stop), Arc::clone(&ebb));
            let random = StdRng::seed_from_u64(seed ^ (u64::from(number) + 1) << 32);
            let mut worker =
                Worker { number, seq: 0, uncertain: true, slow, random, conn: Conn::new(url.to_owned()) };
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if ebb.load(Ordering::Relaxed) {
                        worker.pause(5..10);
                    } else {
                        worker.transaction();
                    }
                }
                worker.seq
            })
        };
        let threads = (0..WORKERS).map(start).collect();
        Load { stop, ebb, threads }
    }

    /// While true, no transaction begins.
    pub(crate) fn ebb(&self, ebb: bool) {
        self.ebb.store(ebb, Ordering::Relaxed);
    }

    /// Ends every writer; how many transactions they committed.
    pub(crate) fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().expect("a writer does not panic")).sum()
    }
}

struct Worker {
    number: u32,
    /// Its transactions that have committed.
    seq: u64,
    /// What became of the last transaction is not known.
    uncertain: bool,
    /// It pauses longer, and its large transactions are smaller.
    slow: bool,
    random: StdRng,
    conn: Conn,
}

impl Worker {
    /// One transaction, whatever becomes of it.
    fn transaction(&mut self) {
        if self.uncertain && !self.recover() {
            return;
        }
        let seq = self.seq + 1;
        let done = match self.number {
            number if number < SMALL => self.small(seq),
            VICTIM => self.victim(seq),
            _ => self.large(seq),
        };
        match done {
            Ok(true) => self.seq = seq,
            Ok(false) => {}
            Err(_) => self.uncertain = true,
        }
    }

    /// After an error it is unknown whether the COMMIT arrived, so this asks the source once it
    /// answers again.
    fn recover(&mut self) -> bool {
        let sql = format!("ROLLBACK; SELECT n FROM tally WHERE worker = {}", self.number);
        match self.conn.numbers(&sql) {
            Ok(n) => {
                self.seq = n[0].unsigned_abs();
                self.uncertain = false;
                true
            }
            Err(_) => {
                self.pause(20..60);
                false
            }
        }
    }

    /// Runs `sql`, and leaves the machine to others as long as that says that it is busy.
    fn run(&mut self, sql: &str) -> anyhow::Result<()> {
        let began = Instant::now();
        self.conn.run(sql)?;
        let took = began.elapsed();
        if took > BUSY {
            // The load yields to what is slow already.
            std::thread::sleep((took * YIELD).min(YIELD_MAX));
        }
        Ok(())
    }

    fn pause(&mut self, milliseconds: std::ops::Range<u64>) {
        let pause = self.random.random_range(milliseconds) * if self.slow { 6 } else { 1 };
        // The pace of a load; no test waits for it.
        std::thread::sleep(Duration::from_millis(pause));
    }

    /// The end of every transaction that commits.
    fn end(&mut self, seq: u64) -> String {
        let (worker, width) = (self.number, self.random.random_range(0..60));
        format!(
            "UPDATE tally SET n = {seq} WHERE worker = {worker}; UPDATE clock SET n = n + 1; \
             INSERT INTO ledger SELECT n, {worker}, {seq}, repeat('x', {width}) FROM clock; COMMIT"
        )
    }

    /// From one account to another; every transfer locks in the same order.
    fn transfer(&mut self) -> String {
        let random = &mut self.random;
        let (from, to, amount) =
            (random.random_range(0..40), random.random_range(0..40), random.random_range(-50..50));
        format!(
            "UPDATE checking SET balance = balance - {amount} WHERE id = {from}; \
             UPDATE saving SET balance = balance + {amount} WHERE id = {to}; \
             INSERT INTO journal VALUES (false, {from}, -({amount})), (true, {to}, {amount}); "
        )
    }

    fn small(&mut self, seq: u64) -> anyhow::Result<bool> {
        let mut sql = "BEGIN; ".to_owned() + &self.transfer();
        for _ in 0..self.random.random_range(0..3) {
            let more = self.small_change();
            sql.push_str(&more);
        }
        sql.push_str(&self.end(seq));
        self.run(&sql)?;
        self.pause(5..25);
        Ok(true)
    }

    /// A row of this worker: no other touches it.
    fn own(&mut self, below: u32) -> u32 {
        self.number + SMALL * self.random.random_range(0..below)
    }

    fn small_change(&mut self) -> String {
        let (w, id, other) = (self.number, self.own(300), self.own(300));
        let (a, b) = (self.own(50), self.own(50));
        match self.random.random_range(0..100) {
            0..15 => format!(
                "INSERT INTO keyed VALUES ({id}, 'a{id}', {id} / 7.0) ON CONFLICT (id) DO UPDATE SET v = keyed.v + 1; "
            ),
            15..30 => format!(
                "UPDATE keyed SET v = v + 1, a = md5(a) WHERE id % {SMALL} = {w} AND id % 11 = {id} % 11; "
            ),
            30..45 => format!("DELETE FROM keyed WHERE id = {id}; "),
            45..60 => format!(
                "UPDATE keyed SET id = {other} WHERE id = {id} AND NOT EXISTS (SELECT FROM keyed WHERE id = {other}); "
            ),
            60..72 => {
                format!("DELETE FROM keyed WHERE id = {id}; INSERT INTO keyed VALUES ({id}, NULL, {other}); ")
            }
            // A swap: no set-based UPDATE can do it under an immediate key.
            72 if a != b => format!(
                "UPDATE churn SET u = -u WHERE id IN ({a}, {b}); UPDATE churn c SET u = -(SELECT o.u FROM churn o \
                 WHERE o.id = CASE c.id WHEN {a} THEN {b} ELSE {a} END) WHERE id IN ({a}, {b}); "
            ),
            73..83 => format!("UPDATE wide SET n = n + 1 WHERE id = {id} % 60 / {SMALL} * {SMALL} + {w}; "),
            83..90 => format!(
                "UPDATE wide SET big = repeat(md5('{other}'), 150 + {other}) WHERE id = {id} % 60 / {SMALL} * {SMALL} + {w}; "
            ),
            90..97 => format!(
                "INSERT INTO loose VALUES ({w}, {id} % 3, NULL), ({w}, {id} % 3, 'twin'), ({w}, {id} % 3, 'twin'); \
                 UPDATE loose SET v = v + 1 WHERE ctid = (SELECT ctid FROM loose WHERE k = {w} AND v < 9 LIMIT 1); \
                 DELETE FROM loose WHERE ctid = ANY (ARRAY(SELECT ctid FROM loose WHERE k = {w} ORDER BY v OFFSET 20)); "
            ),
            _ => String::new(),
        }
    }

    /// Rows that live for three transactions and that somebody deletes on the
    /// target meanwhile: `update_missing` and `delete_missing`, and yet both
    /// ends are equal once all of them are deleted.
    fn victim(&mut self, seq: u64) -> anyhow::Result<bool> {
        let n = seq * 20;
        let end = self.end(seq);
        self.run(&format!(
            "BEGIN; INSERT INTO victim SELECT i, 0 FROM generate_series({n}, {n} + 19) i; \
             UPDATE victim SET v = v + 1 WHERE id BETWEEN {n} - 40 AND {n} - 1; \
             DELETE FROM victim WHERE id < {n} - 40; {end}"
        ))?;
        self.pause(30..120);
        Ok(true)
    }

    /// Open for a while, with subtransactions; one in four is rolled back.
    fn large(&mut self, seq: u64) -> anyhow::Result<bool> {
        let w = self.number;
        self.conn.run("BEGIN")?;
        for part in 0..self.random.random_range(2..5) {
            let rows = if self.slow { 100..300 } else { 200..900 };
            let (from, rows) = (part * 2_000, self.random.random_range(rows));
            let kept = if self.random.random_ratio(1, 4) { "ROLLBACK TO s" } else { "RELEASE s" };
            self.conn.run(&format!(
                "SAVEPOINT s; INSERT INTO bulk SELECT {w}, {seq}, {from} + i, md5(i::text) || repeat('-', i % 80) \
                 FROM generate_series(1, {rows}) i; \
                 UPDATE bulk SET t = t || '!' WHERE owner = {w} AND batch = {seq} AND i % 5 = {part}; {kept}"
            ))?;
            self.pause(0..15);
        }
        self.conn.run(&format!(
            "DELETE FROM bulk WHERE owner = {w} AND batch < {seq} - 2; \
             UPDATE bulk SET t = reverse(t) WHERE owner = {w} AND batch < {seq} AND i % 7 = 0"
        ))?;
        let commits = !self.random.random_ratio(1, 4);
        let end = if commits { self.transfer() + &self.end(seq) } else { "ROLLBACK".to_owned() };
        self.conn.run(&end)?;
        // Often enough that some are open at any time.
        self.pause(if self.slow { 40..200 } else { 100..500 });
        Ok(commits)
    }
}
