//! What is written in a run: rows of one shape, in transactions of a thousand, by one session.
//!
//! The number of rows follows from the WAL that is wanted, so that both sides and a run without
//! slots write the same. The measured WAL is a little more or less.

use std::time::Instant;

use anyhow::Result;
use bench_report::table::grouped;

use super::OTHER;
use crate::lab::rig::{DB, Rig, first};

/// Rows of a transaction.
const PER_TRANSACTION: u64 = 1_000;

/// What a row is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Two integers and a short text, with a primary key.
    Narrow,
    /// The same with 1 KB of text.
    Kilobyte,
    /// The same with 1.9 KB of text, which is just not stored out of line.
    Wide,
    /// Ten words under a GIN index without a pending list: a record for nearly each word.
    Gin,
}

/// SQL for the tables of all shapes.
pub(super) const SCHEMA: &str = "CREATE TABLE t (id integer PRIMARY KEY, n integer, v text); \
    CREATE TABLE docs (words integer[]); \
    CREATE INDEX docs_words ON docs USING gin (words) WITH (fastupdate = off);";

impl Shape {
    fn name(self) -> &'static str {
        match self {
            Shape::Narrow => "narrow rows",
            Shape::Kilobyte => "rows of 1 KB",
            Shape::Wide => "rows of 1.9 KB",
            Shape::Gin => "rows of ten words under a GIN index with `fastupdate = off`",
        }
    }

    /// WAL of a row with its index entries, as measured.
    fn wal_bytes(self) -> u64 {
        match self {
            Shape::Narrow => 130,
            Shape::Kilobyte => 1_180,
            Shape::Wide => 2_100,
            Shape::Gin => 1_000,
        }
    }

    fn table(self) -> &'static str {
        if self == Shape::Gin { "docs" } else { "t" }
    }

    /// The columns of row `i`.
    fn row(self) -> &'static str {
        match self {
            Shape::Narrow => "i, i, 'value'",
            Shape::Kilobyte => "i, i, repeat(md5(i::text), 32)",
            Shape::Wide => "i, i, repeat(md5(i::text), 60)",
            Shape::Gin => "ARRAY(SELECT hashint4(i * 16 + word) & 1048575 FROM generate_series(0, 9) word)",
        }
    }
}

/// The load of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    database: &'static str,
    shape: Shape,
    pub(super) rows: u64,
}

/// What writing it took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    pub(super) seconds: f64,
    pub(super) wal_bytes: f64,
}

impl Load {
    /// Rows in the database of the subscribers, which get them.
    pub(super) fn published(shape: Shape, wal_bytes: u64) -> Load {
        Load::of(DB, shape, wal_bytes)
    }

    /// Rows in another database.
    pub(super) fn elsewhere(shape: Shape, wal_bytes: u64) -> Load {
        Load::of(OTHER, shape, wal_bytes)
    }

    fn of(database: &'static str, shape: Shape, wal_bytes: u64) -> Load {
        let transactions = (wal_bytes / shape.wal_bytes()).div_ceil(PER_TRANSACTION).max(1);
        Load { database, shape, rows: transactions * PER_TRANSACTION }
    }

    /// In words, for a list.
    pub(super) fn words(&self, wal_bytes: f64) -> String {
        let place = if self.database == DB { "published, in their database" } else { "in another database" };
        format!(
            "{} {} {place}, in transactions of {}; {:.0} MB of WAL",
            grouped(self.rows as f64),
            self.shape.name(),
            grouped(PER_TRANSACTION as f64),
            wal_bytes / 1e6
        )
    }

    /// Removes the rows of an earlier run.
    pub(super) fn clear(&self, rig: &Rig) -> Result<()> {
        rig.pair.source.sql(self.database, &format!("TRUNCATE {}", self.shape.table()))?;
        Ok(())
    }

    /// Writes all rows.
    pub(super) fn write(&self, rig: &Rig) -> Result<Written> {
        let before = insert_position(rig)?;
        let started = Instant::now();
        rig.pair.source.sql(self.database, &self.sql())?;
        let seconds = started.elapsed().as_secs_f64();
        Ok(Written { seconds, wal_bytes: insert_position(rig)? - before })
    }

    /// One statement: a block that commits may not be part of a larger transaction.
    fn sql(&self) -> String {
        format!(
            "DO $$ BEGIN FOR part IN 0..{} LOOP \
             INSERT INTO {} SELECT {} FROM \
             generate_series(part * {PER_TRANSACTION} + 1, (part + 1) * {PER_TRANSACTION}) i; \
             COMMIT; END LOOP; END $$",
            self.rows / PER_TRANSACTION - 1,
            self.shape.table(),
            self.shape.row()
        )
    }
}

/// Bytes of WAL that the publisher has written so far.
pub(super) fn insert_position(rig: &Rig) -> Result<f64> {
    Ok(first(rig.pair.source.sql(DB, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")?).parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_has_whole_transactions_and_at_least_one() {
        assert_eq!(Load::published(Shape::Narrow, 1).rows, 1_000);
        assert_eq!(Load::published(Shape::Narrow, 130_000_001).rows, 1_000_000);
        assert!(Load::elsewhere(Shape::Narrow, 1).sql().contains("IN 0..0 LOOP"));
        assert!(Load::elsewhere(Shape::Gin, 1).words(2e6).contains("another database"));
    }
}
