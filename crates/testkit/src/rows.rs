//! Whether two ends hold the same rows.
//!
//! Rows are compared as text under the same session settings, generated columns included. Columns
//! are compared by name: the two ends may hold them in another order, and the target may have more.
//! Whole tables are compared by count and by the hash of the ordered row hashes, so that one value
//! per table can be printed.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, Result, ensure};

use crate::cluster::Cluster;

/// Differing rows shown per side.
const SHOWN_MAX: usize = 10;
/// Rows read per side to find those that differ. A test's table has fewer; a benchmark's needs a
/// bound.
const READ_MAX: usize = 500_000;
const SESSION: &str = "SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET timezone = 'UTC'; \
    SET extra_float_digits = 1; SET bytea_output = 'hex'; SET search_path = public; SET xmlbinary = 'base64'; \
    SET work_mem = '256MB'; ";

/// The content of both ends, when it is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowsCompared {
    /// Rows in the table.
    pub rows: u64,
    /// MD5 over the rows' MD5s in order.
    pub md5: String,
}

/// Compares `table` (as SQL names it) in database `db` of both clusters.
///
/// # Errors
/// When the rows differ: counts, hashes and the first rows that only one side has. Or when a server
/// cannot be asked.
pub fn same_rows(source: &Cluster, target: &Cluster, db: &str, table: &str) -> Result<RowsCompared> {
    let columns = columns(source, db, table)?;
    let (ours, theirs) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| digest(target, db, table, &columns));
        (digest(source, db, table, &columns), theirs.join().expect("digest does not panic"))
    });
    let (ours, theirs) = (ours.context("on the source")?, theirs.context("on the target")?);
    if ours == theirs {
        return Ok(ours);
    }
    let mut report = format!(
        "{table} differs: source has {} rows (md5 {}), target has {} rows (md5 {})",
        ours.rows, ours.md5, theirs.rows, theirs.md5
    );
    write_difference(&mut report, &read(source, db, table, &columns)?, &read(target, db, table, &columns)?)?;
    anyhow::bail!(report)
}

/// [`same_rows`], for tests.
///
/// # Panics
/// When the rows differ or cannot be compared.
#[track_caller]
pub fn assert_same_rows(source: &Cluster, target: &Cluster, db: &str, table: &str) {
    if let Err(error) = same_rows(source, target, db, table) {
        panic!("{error:#}");
    }
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The source's columns by name, as a SQL list.
fn columns(cluster: &Cluster, db: &str, table: &str) -> Result<String> {
    let sql = format!(
        "{SESSION} SELECT coalesce(string_agg(quote_ident(attname), ', ' ORDER BY attname), '') FROM pg_attribute \
         WHERE attrelid = {}::regclass AND attnum > 0 AND NOT attisdropped",
        literal(table)
    );
    let rows = cluster.sql(db, &sql)?;
    Ok(rows[0][0].clone().unwrap_or_default())
}

fn digest(cluster: &Cluster, db: &str, table: &str, columns: &str) -> Result<RowsCompared> {
    let sql = format!(
        "{SESSION} SELECT count(*), md5(coalesce(string_agg(h, '' ORDER BY h COLLATE \"C\"), '')) \
         FROM (SELECT md5(ROW({columns})::text) AS h FROM {table}) AS hashes"
    );
    let rows = cluster.sql(db, &sql)?;
    let (Some(count), Some(md5)) = (&rows[0][0], &rows[0][1]) else {
        unreachable!("neither aggregate is NULL")
    };
    Ok(RowsCompared { rows: count.parse()?, md5: md5.clone() })
}

fn read(cluster: &Cluster, db: &str, table: &str, columns: &str) -> Result<Vec<String>> {
    let sql = format!(
        "{SESSION} SELECT ROW({columns})::text FROM {table} ORDER BY ROW({columns})::text COLLATE \"C\" LIMIT {READ_MAX}"
    );
    let rows = cluster.sql(db, &sql)?;
    ensure!(rows.iter().all(|row| row.len() == 1), "one column was asked for");
    Ok(rows.into_iter().map(|mut row| row.remove(0).unwrap_or_default()).collect())
}

fn write_difference(report: &mut String, source: &[String], target: &[String]) -> Result<()> {
    let mut balance = BTreeMap::<&str, i64>::new();
    source.iter().for_each(|row| *balance.entry(row).or_default() += 1);
    target.iter().for_each(|row| *balance.entry(row).or_default() -= 1);
    for (side, sign) in [("source", 1), ("target", -1)] {
        let only: Vec<_> = balance.iter().filter(|(_, count)| **count * sign > 0).collect();
        writeln!(report, "\nonly on the {side}: {} distinct rows", only.len())?;
        for (row, count) in only.iter().take(SHOWN_MAX) {
            writeln!(report, "  {} x {row}", count.abs())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_counts_duplicates() {
        let rows = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let mut report = String::new();
        write_difference(&mut report, &rows(&["(1)", "(2)", "(2)"]), &rows(&["(2)", "(3)"])).unwrap();
        assert!(report.contains("source: 2 distinct rows\n  1 x (1)\n  1 x (2)\n"), "{report}");
        assert!(report.contains("target: 1 distinct rows\n  1 x (3)\n"), "{report}");
    }
}
