//! How large the target's planner takes a table to be, asked now and then.
//!
//! Sets of rows have the fastest form ([`Search::Plain`](crate::search::Search)) only on tables
//! that look large, because there the look-up costs a fraction of every other plan. What a table
//! looks like changes behind our back: somebody truncates it, autovacuum counts it while it is
//! empty. So each answer holds for [`LOOK_AGE`], and less long if we delete rows ourselves;
//! a table that was not asked for, or was truncated, looks small. A wrong answer costs time and
//! no row, and what it costs is noticed ([`crate::runaway`]).
//!
//! The same question tells whether the table's columns, indexes, triggers or rules are others than
//! they were: then it is mapped anew.

use std::time::{Duration, Instant};

use base::Oid;
use rustc_hash::FxHashMap;

use crate::table::Table;

/// An answer is believed so long. One question takes the server some 100 us, for all tables of a
/// chunk.
pub(crate) const LOOK_AGE: Duration = Duration::from_secs(5);

/// The fewest rows of a table that looks large. With the costs that the sessions set, ten look-ups (which
/// is what the planner reckons with for any set) cost about 25, and the cheapest other plan, which
/// reads the index once, more than 0.015 for each row and 0.0125 for each of ten pairs: 1,400.
pub(crate) const LARGE: f64 = 10_000.0;

/// What the target says of a table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Size {
    pub(crate) oid: Oid,
    /// No more than the planner reckons with.
    pub(crate) rows: f64,
    /// Other text for other columns, indexes, triggers and rules.
    pub(crate) definition: String,
}

/// The question for these tables.
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

/// A row of the answer; `None` where it does not look as it must.
pub(crate) fn answer(row: &[Option<String>]) -> Option<Size> {
    let number = |at: usize| row.get(at)?.as_deref()?.parse::<f64>().ok();
    let oid = row.first()?.as_deref()?.parse().ok()?;
    let (tuples, pages) = (number(1)?, number(2)?);
    Some(Size { oid: Oid(oid), rows: rows(tuples, pages), definition: row.get(3)?.clone()? })
}

/// The fewest rows that the planner reckons with. `estimate_rel_size` in the server's `plancat.c` takes as many rows for each page that there is now as
/// there were when they were counted, and pages only go where that is noted here, too. How many there are now is not
/// asked: that would wait for whoever has the table locked.
fn rows(tuples: f64, pages: f64) -> f64 {
    if pages > 0.0 { tuples.max(0.0) } else { 0.0 }
}

/// What is known of the tables of one session.
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
    /// Those of `tables` that are to be asked for at `now`.
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

    /// Takes an answer; whether the table is another one than it was.
    pub(crate) fn know(&mut self, size: &Size, now: Instant) -> bool {
        let known = Known { at: now, definition: size.definition.clone() };
        let before = self.known.insert(size.oid, known);
        before.is_some_and(|before| before.definition != size.definition)
    }

    /// Whether nothing was asked for so long that all answers are old.
    pub(crate) fn are_old(&self, now: Instant) -> bool {
        self.known.values().all(|known| now.duration_since(known.at) >= LOOK_AGE)
    }

    /// Nothing is known any more.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::fixtures;

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
