//! How large the target's planner takes a table to be, asked now and then.
//!
//! Sets of rows have the fastest form ([`Search::Plain`](plan::search::Search)) only on tables
//! that look large, because there the look-up costs a fraction of every other plan. The size that
//! the planner sees can change without our doing: a user truncates the table, or autovacuum counts
//! it while it is empty. So each answer holds for [`LOOK_AGE`], or less if we delete rows
//! ourselves. A table that was not asked for, or was truncated, looks small. A wrong answer costs
//! time but no row, and [`crate::runaway`] notices that cost.
//!
//! The same question tells whether the table's columns, indexes, triggers or rules have changed. If
//! they have, the table is mapped anew.

use std::time::{Duration, Instant};

use base::Oid;
use plan::Table;
use rustc_hash::FxHashMap;

/// How long an answer is believed. One question takes the server about 100 us, for all tables of a
/// chunk.
pub(crate) const LOOK_AGE: Duration = Duration::from_secs(5);

/// The target's answer for a table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Size {
    pub(crate) oid: Oid,
    /// A number of rows that the planner's own estimate is never below.
    pub(crate) rows: f64,
    /// A digest that differs when columns, indexes, triggers or rules differ.
    pub(crate) definition: String,
}

/// The query for these tables.
pub(crate) fn question(tables: &[Oid]) -> String {
    let oids: Vec<String> = tables.iter().map(|oid| oid.0.to_string()).collect();
    format!("{SIZES} WHERE c.oid IN ({})", oids.join(", "))
}

const SIZES: &str = "
SELECT c.oid, c.reltuples, c.relpages,
       pg_catalog.md5(pg_catalog.concat_ws(',',
         (SELECT pg_catalog.string_agg(pg_catalog.concat(a.attnum, ':', a.xmin), ',' ORDER BY a.attnum)
            FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0),
         (SELECT pg_catalog.string_agg(pg_catalog.concat(i.indexrelid, ':', i.xmin), ',' ORDER BY i.indexrelid)
            FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid),
         (SELECT pg_catalog.string_agg(pg_catalog.concat(t.oid, ':', t.xmin), ',' ORDER BY t.oid)
            FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid),
         (SELECT pg_catalog.string_agg(pg_catalog.concat(r.oid, ':', r.xmin), ',' ORDER BY r.oid)
            FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid)))
  FROM pg_catalog.pg_class c";

/// Reads a row of the answer; `None` where it is malformed.
pub(crate) fn answer(row: &[Option<String>]) -> Option<Size> {
    let number = |at: usize| row.get(at)?.as_deref()?.parse::<f64>().ok();
    let oid = row.first()?.as_deref()?.parse().ok()?;
    let (tuples, pages) = (number(1)?, number(2)?);
    Some(Size { oid: Oid(oid), rows: rows(tuples, pages), definition: row.get(3)?.clone()? })
}

/// The fewest rows that the planner assumes. `estimate_rel_size` in the server's `plancat.c`
/// multiplies the present number of pages by the rows per page at the last count. The number of
/// pages shrinks only where `pg_class` notes it, too. The present number is not asked for: that
/// would wait for any session that has the table locked.
fn rows(tuples: f64, pages: f64) -> f64 {
    if pages > 0.0 { tuples.max(0.0) } else { 0.0 }
}

/// The answers that one session has for its tables.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    known: FxHashMap<Oid, Known>,
}

#[derive(Debug)]
struct Known {
    at: Instant,
    definition: String,
}

impl Sizes {
    /// The tables whose answer is missing or old at `now`.
    pub(crate) fn due<'t>(&self, tables: impl Iterator<Item = &'t Table>, now: Instant) -> Vec<Oid> {
        let mut due: Vec<Oid> = tables
            .filter(|table| table.key_index.is_some() && !table.partitioned)
            .map(|table| table.oid)
            .filter(|oid| self.known.get(oid).is_none_or(|known| now.duration_since(known.at) >= LOOK_AGE))
            .collect();
        due.sort_unstable_by_key(|oid| oid.0);
        due.dedup();
        due
    }

    /// Takes an answer. Returns whether the table's definition has changed since the answer before.
    pub(crate) fn know(&mut self, size: &Size, now: Instant) -> bool {
        let known = Known { at: now, definition: size.definition.clone() };
        let before = self.known.insert(size.oid, known);
        before.is_some_and(|before| before.definition != size.definition)
    }

    /// Whether all answers are old at `now`.
    pub(crate) fn are_old(&self, now: Instant) -> bool {
        self.known.values().all(|known| now.duration_since(known.at) >= LOOK_AGE)
    }

    /// Forgets every answer.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }
}

#[cfg(test)]
mod tests {

    use plan::fixtures;

    use super::*;

    #[test]
    fn rows_are_no_more_than_the_planner_reckons_with() {
        assert!((rows(3e6, 1000.0) - 3e6).abs() < 1.0, "counted large");
        assert!(rows(0.0, 1000.0) < 1.0, "dead rows only when they were counted");
        assert!(rows(-1.0, 0.0) < 1.0, "never counted, or truncated");
        assert!(rows(5.0, 0.0) < 1.0, "no page to have them in");
    }

    #[test]
    fn a_table_is_asked_for_again_when_the_answer_is_old() {
        let (mut sizes, table, now) = (Sizes::default(), fixtures::table(), Instant::now());
        let due = |sizes: &Sizes, now| sizes.due([&*table, &*table].into_iter(), now);
        assert_eq!(due(&sizes, now), [table.oid]);
        let mut size = Size { oid: table.oid, rows: 1.0, definition: "a".to_owned() };
        assert!(!sizes.know(&size, now), "it was not known before");
        assert!(due(&sizes, now).is_empty());
        assert_eq!(due(&sizes, now + LOOK_AGE), [table.oid]);
        assert!(!sizes.know(&size, now));
        size.definition = "b".to_owned();
        assert!(sizes.know(&size, now), "an index came or went");
        sizes.forget();
        assert_eq!(due(&sizes, now), [table.oid]);
    }

    #[test]
    fn an_answer_is_read() {
        let row = ["16385", "3", "1", "d"].map(|text| Some(text.to_owned()));
        let size = answer(&row).unwrap();
        assert_eq!((size.oid, size.definition.as_str()), (Oid(16385), "d"));
        assert!((size.rows - 3.0).abs() < 0.1);
        assert_eq!(answer(&row[..3]), None);
    }
}
