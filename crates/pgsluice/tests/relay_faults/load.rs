//! What the publisher is written while everybody is killed.
//!
//! Every transaction leaves a row in `ledger`, which has no key. So a transaction that is lost or
//! comes twice shows, and the publisher's own rows say which were committed. Writers have rows of
//! their own, so nobody waits for another.
//!
//! | writer | writes |
//! | --- | --- |
//! | small | rows of several tables, keys that change, money from one account to another |
//! | large | more than the relay keeps in memory, with parts that are rolled back |
//! | two-phase | transactions that are prepared, and end later |
//! | DDL | a published table whose columns come and go, rewrites, TRUNCATE, checkpoints |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::conn::Conn;

/// Every published table.
pub(crate) const TABLES: [&str; 7] = ["t", "ledger", "mark", "account", "large", "shaped", "gone"];

/// On both ends, beside the tables of [`crate::stage`].
pub(crate) const SCHEMA: &str = "
    CREATE TABLE account (id int PRIMARY KEY, balance int8 NOT NULL);
    CREATE TABLE large (seq int8, id int, v text, PRIMARY KEY (seq, id));
    ALTER TABLE large ALTER v SET STORAGE PLAIN;
    CREATE TABLE shaped (id int8 PRIMARY KEY, note text);
    CREATE TABLE gone (id int PRIMARY KEY, v text)";

/// On the publisher only.
pub(crate) const ROWS: &str = "
    GRANT SELECT ON ALL TABLES IN SCHEMA public TO sub;
    INSERT INTO account SELECT n, 1000 FROM generate_series(0, 39) n;
    INSERT INTO gone SELECT n, 'row ' || n FROM generate_series(1, 50) n;
    ALTER PUBLICATION p ADD TABLE account, large, shaped, gone";

/// Columns that come to `shaped` and go. Subscribers have all of them from the beginning, with the
/// same default, so that rows of before have the same value on both ends.
const COLUMNS: u64 = 200;

/// The columns of `shaped` on subscribers.
pub(crate) fn columns() -> String {
    let add = |number: u64| format!("ADD COLUMN c{number} int DEFAULT 7");
    format!("ALTER TABLE shaped {}", (0..COLUMNS).map(add).collect::<Vec<_>>().join(", "))
}

/// Where a transaction is in the WAL, for those who look for a lost one.
const HERE: &str = "pg_current_wal_insert_lsn() - '0/0'";

/// Which writer it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Small,
    Large,
    TwoPhase,
    Ddl,
}

/// Writers until stopped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl Load {
    pub(crate) fn new() -> Load {
        Load { stop: Arc::default(), threads: Vec::new() }
    }

    /// Adds a writer of a database.
    pub(crate) fn add(&mut self, url: String, kind: Kind, seed: u64) {
        let number = self.threads.len() as u64;
        let random = StdRng::seed_from_u64(seed ^ (number + 1) << 32);
        let mut writer = Writer { kind, number, seq: 0, random, conn: Conn::new(url), is_lost: false };
        let stop = Arc::clone(&self.stop);
        self.threads.push(std::thread::spawn(move || writer.run(&stop)));
    }

    /// Ends every writer, and returns how many transactions they tried.
    pub(crate) fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().expect("a writer does not panic")).sum()
    }
}

struct Writer {
    kind: Kind,
    number: u64,
    seq: u64,
    random: StdRng,
    conn: Conn,
    /// What became of the last transaction is not known.
    is_lost: bool,
}

impl Writer {
    fn run(&mut self, stop: &AtomicBool) -> u64 {
        while !stop.load(Ordering::Relaxed) {
            if self.is_lost && !self.recover() {
                self.pause(20..60);
                continue;
            }
            self.seq += 1;
            let done = match self.kind {
                Kind::Small => self.small(),
                Kind::Large => self.large(),
                Kind::TwoPhase => self.two_phase(),
                Kind::Ddl => self.ddl(),
            };
            self.is_lost = done.is_err();
        }
        while self.is_lost && !self.recover() {
            self.pause(20..60);
        }
        self.seq
    }

    fn pause(&mut self, milliseconds: std::ops::Range<u64>) {
        // The pace of a load; no test waits for it.
        std::thread::sleep(Duration::from_millis(self.random.random_range(milliseconds)));
    }

    /// Ends what an error left behind. Whether the last transaction was committed is the
    /// publisher's to say.
    fn recover(&mut self) -> bool {
        if self.conn.run("ROLLBACK").is_err() {
            return false;
        }
        if self.kind == Kind::TwoPhase {
            let own = format!("SELECT gid FROM pg_prepared_xacts WHERE gid LIKE 'g{}\\_%'", self.number);
            let Ok(rows) = self.conn.run(&own) else { return false };
            for gid in rows.into_iter().flatten().flatten() {
                if self.conn.run(&format!("COMMIT PREPARED '{gid}'")).is_err() {
                    return false;
                }
            }
        }
        self.is_lost = false;
        true
    }

    fn small_rows(&mut self) -> String {
        let (number, seq) = (self.number, self.seq);
        let random = &mut self.random;
        let (from, to) = (random.random_range(0..40), random.random_range(0..40));
        let amount = random.random_range(-50..50);
        let id = 1000 + number * 1000 + random.random_range(0..200);
        let other = id + 300;
        let change = match random.random_range(0..4) {
            0 => format!("DELETE FROM t WHERE id = {id}"),
            1 => format!(
                "UPDATE t SET id = {other} WHERE id = {id} AND NOT EXISTS (SELECT FROM t WHERE id = {other})"
            ),
            2 => format!("UPDATE t SET v = v || '!' WHERE id BETWEEN {id} AND {id} + 9"),
            _ => format!("DELETE FROM t WHERE id BETWEEN {other} AND {other} + 20"),
        };
        let (low, high) = (from.min(to), from.max(to));
        format!(
            "INSERT INTO t VALUES ({id}, '{seq}') ON CONFLICT (id) DO UPDATE SET v = excluded.v || t.v; {change}; \
             UPDATE account SET balance = balance - {amount} WHERE id = {low}; \
             UPDATE account SET balance = balance + {amount} WHERE id = {high}; \
             INSERT INTO ledger VALUES ({number}, {seq}, {HERE})"
        )
    }

    fn small(&mut self) -> anyhow::Result<()> {
        let rows = self.small_rows();
        self.conn.run(&format!("BEGIN; {rows}; COMMIT"))?;
        self.pause(20..70);
        Ok(())
    }

    /// Rows of this writer only, because its locks stay for a while.
    fn two_phase(&mut self) -> anyhow::Result<()> {
        let (number, seq) = (self.number, self.seq);
        let gid = format!("g{number}_{seq}");
        let id = 1000 + number * 1000 + seq % 50;
        self.conn.run(&format!(
            "BEGIN; INSERT INTO t VALUES ({id}, 'p') ON CONFLICT (id) DO UPDATE SET v = t.v || 'p'; \
             INSERT INTO ledger VALUES ({number}, {seq}, {HERE}); PREPARE TRANSACTION '{gid}'"
        ))?;
        self.pause(50..400);
        let end = if self.random.random_ratio(1, 4) { "ROLLBACK" } else { "COMMIT" };
        self.conn.run(&format!("{end} PREPARED '{gid}'"))?;
        self.pause(50..200);
        Ok(())
    }

    /// Open for a while. The relay keeps 16 MiB of a form in memory, and streams from there on.
    fn large(&mut self) -> anyhow::Result<()> {
        let (number, seq) = (self.number, self.seq);
        let digit = seq % 10;
        let rows = |from: u32, count: u32| {
            format!(
                "INSERT INTO large SELECT {seq}, n, repeat('{digit}', 1900) \
                 FROM generate_series({from} + 1, {from} + {count}) n"
            )
        };
        self.conn.run(&format!("BEGIN; TRUNCATE large; {}", rows(0, 9_500)))?;
        self.pause(50..300);
        let (undone, kept) = (rows(10_000, 200), rows(20_000, 20));
        self.conn.run(&format!("SAVEPOINT s; {undone}; ROLLBACK TO s; SAVEPOINT s; {kept}"))?;
        self.pause(50..300);
        let end = if self.random.random_ratio(1, 4) { "ROLLBACK" } else { "COMMIT" };
        self.conn.run(&format!("INSERT INTO ledger VALUES ({number}, {seq}, {HERE}); {end}"))?;
        self.pause(1_500..3_000);
        Ok(())
    }

    /// Each step can be done again: its answer may be lost.
    fn ddl(&mut self) -> anyhow::Result<()> {
        let (number, seq) = (self.number, self.seq);
        // One that has gone does not come back: subscribers still have its old values.
        let column = (seq / 2).min(COLUMNS - 1);
        let is_last = column == COLUMNS - 1;
        let row = |at: u64| format!("INSERT INTO shaped (id, note) VALUES ({seq} * 10 + {at}, '{seq}')");
        let ledger = format!("INSERT INTO ledger VALUES ({number}, {seq}, {HERE})");
        let sql = match seq % 8 {
            1 => "CHECKPOINT".to_owned(),
            3 => "VACUUM FULL shaped".to_owned(),
            5 => format!(
                "BEGIN; {}; SAVEPOINT s; ALTER TABLE shaped ADD COLUMN undone int; {}; ROLLBACK TO s; {}; {ledger}; COMMIT",
                row(1),
                row(2),
                row(3)
            ),
            7 => format!(
                "BEGIN; TRUNCATE gone; INSERT INTO gone SELECT n, '{seq}' FROM generate_series(1, 50) n; {ledger}; COMMIT"
            ),
            0 if column > 4 && !is_last => format!(
                "ALTER TABLE shaped DROP COLUMN IF EXISTS c{}; CREATE TABLE IF NOT EXISTS other (a int); DROP TABLE other",
                column - 4
            ),
            _ => format!(
                "BEGIN; {}; ALTER TABLE shaped ADD COLUMN IF NOT EXISTS c{column} int DEFAULT 7; {}; \
                 UPDATE shaped SET c{column} = id WHERE id % 7 = 0; {ledger}; COMMIT",
                row(1),
                row(2)
            ),
        };
        self.conn.run(&sql)?;
        self.pause(60..250);
        Ok(())
    }
}
