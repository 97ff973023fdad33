//! Estimates the rows of a table before the first of them is read.
//!
//! The estimate comes from the source's statistics if there are any ([`Heap::rows`]). A table that
//! was never analysed has none. The planner's guess by the width of columns is then wrong by a
//! factor of four for short texts. Statistics also do not know what a row filter keeps. In both
//! cases this module samples a few pages, spread evenly over the table, under the copy's snapshot.
//! It reads as many for a terabyte as for a megabyte. While a table is copied, its ranges improve
//! the estimate (`crate::progress`).
//!
//! `pg_stat_progress_copy` does not help: for a COPY TO it has only what pgsluice counts itself,
//! and never a total.

use std::collections::HashMap;

use client::Wire;
use source::publication::TableName;

use crate::layout::Layout;
use crate::plan::{CopyUnit, Heap, PageRange};
use crate::sql::conditions;
use crate::{CopyJob, Error};

/// Pages sampled in each relation. If rows are spread as in most tables, the estimate is right to a
/// few percent.
const PAGES: u64 = 32;
/// Relations with fewer pages are not sampled: they are copied before anybody reads their figures.
const PAGES_MIN: u64 = 64;
/// Maximum number of relations that are sampled, the largest first: sampling thousands of small
/// ones would cost more than it gains.
const RELATIONS_MAX: usize = 256;
/// If a session holds a lock on a table for longer than this, the planner's guess is used.
const LOCK_TIMEOUT: &str = "100ms";

/// Rows of each job by its table's id, if the sample is better than `CopyJob::rows_estimate`.
pub(crate) async fn rows(
    source: &mut Wire,
    jobs: &[CopyJob],
    layouts: &HashMap<u32, Layout>,
) -> Result<HashMap<u32, u64>, Error> {
    let heaps = |job: &CopyJob| layouts.get(&job.table.oid.0).map_or(&[][..], Layout::readable);
    let mut wanted: Vec<(&CopyJob, &Heap)> =
        jobs.iter().flat_map(|job| heaps(job).iter().map(move |heap| (job, heap))).collect();
    wanted.retain(|(job, heap)| wants_a_look(heap, job.table.row_filter.is_some()));
    wanted.sort_by_key(|(_, heap)| std::cmp::Reverse(heap.bytes));
    wanted.truncate(RELATIONS_MAX);
    let mut seen: HashMap<(u32, &TableName), f64> = HashMap::new();
    for (job, heap) in wanted {
        if let Some(rows) = look(source, job, heap).await? {
            seen.insert((job.table.oid.0, &heap.name), rows);
        }
    }
    let mut known = HashMap::new();
    for job in jobs {
        let oid = job.table.oid.0;
        let heaps = heaps(job);
        if !heaps.iter().any(|heap| seen.contains_key(&(oid, &heap.name))) {
            continue;
        }
        let pages: u64 = heaps.iter().map(|heap| heap.pages).sum();
        let guessed = |heap: &Heap| job.table.rows_estimate as f64 * heap.pages as f64 / pages.max(1) as f64;
        let rows = |heap: &Heap| {
            seen.get(&(oid, &heap.name)).copied().or(heap.rows).unwrap_or_else(|| guessed(heap))
        };
        known.insert(oid, heaps.iter().map(rows).sum::<f64>() as u64);
    }
    Ok(known)
}

fn wants_a_look(heap: &Heap, filtered: bool) -> bool {
    heap.has_pages && heap.pages >= PAGES_MIN && (filtered || heap.rows.is_none())
}

/// Counts the rows of some pages; `None` if the server refuses. Keeps no lock.
async fn look(source: &mut Wire, job: &CopyJob, heap: &Heap) -> Result<Option<f64>, Error> {
    let failed = Error::client("look at some pages of it on the source");
    let sql = format!(
        "SAVEPOINT look; SET LOCAL lock_timeout TO '{LOCK_TIMEOUT}'; {}; ROLLBACK TO SAVEPOINT look; \
         RELEASE SAVEPOINT look",
        sample_sql(job.table.row_filter.as_deref(), heap)
    );
    match source.query(&sql).await {
        Ok(rows) => {
            let counted = rows.first().and_then(|row| row.first()?.as_deref()?.parse::<f64>().ok());
            Ok(counted.map(|counted| counted * heap.pages as f64 / PAGES as f64))
        }
        Err(error) if error.sqlstate().is_some() => {
            tracing::debug!(table = %heap.name, %error, "how many rows it has is guessed");
            let back = "ROLLBACK TO SAVEPOINT look; RELEASE SAVEPOINT look";
            source.query(back).await.map_err(|error| failed(error).of(&job.table.name))?;
            Ok(None)
        }
        Err(error) => Err(failed(error).of(&job.table.name)),
    }
}

fn sample_sql(row_filter: Option<&str>, heap: &Heap) -> String {
    let page = |number: u64| {
        let at = (2 * number + 1) * heap.pages / (2 * PAGES);
        let pages = PageRange { from: Some(at), to: Some(at + 1) };
        let unit = CopyUnit { relation: heap.name.clone(), is_root: false, pages, bytes: 0 };
        let (relation, conditions) = (unit.relation.quoted(), conditions(&unit, row_filter));
        format!("SELECT pg_catalog.count(*) AS n FROM ONLY {relation} WHERE {conditions}")
    };
    let pages: Vec<String> = (0..PAGES).map(page).collect();
    format!("SELECT pg_catalog.sum(s.n) FROM ({}) AS s", pages.join(" UNION ALL "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_spread_over_the_whole_relation() {
        let heap = |pages, rows| {
            let name = TableName::new("s", "t");
            Heap { name, pages, bytes: pages * 8192, has_pages: true, rows }
        };
        let sql = sample_sql(Some("v > 1"), &heap(6400, None));
        assert_eq!(sql.matches("UNION ALL").count(), 31);
        assert!(sql.contains("WHERE ctid >= '(100,0)' AND ctid < '(101,0)' AND (v > 1) UNION"));
        assert!(sql.contains("ctid >= '(6300,0)' AND ctid < '(6301,0)'"));
        assert!(wants_a_look(&heap(64, None), false) && !wants_a_look(&heap(63, None), true));
        assert!(wants_a_look(&heap(64, Some(1.0)), true) && !wants_a_look(&heap(64, Some(1.0)), false));
    }
}
