//! What a published table consists of on the source: the relations with storage, and their sizes.

use std::collections::HashMap;

use client::Wire;
use source::publication::{TableKind, TableName};

use crate::plan::{CopyUnit, Heap, PageRange, heap_units};
use crate::{CopyJob, Error};

/// What is below a published table.
#[derive(Default)]
pub(crate) struct Layout {
    heaps: Vec<Heap>,
    /// A leaf cannot be read by itself with the same result: it is a foreign
    /// table, has policies or rights of its own.
    root_only: bool,
}

impl Layout {
    /// Of all heaps.
    pub(crate) fn bytes(&self) -> u64 {
        self.heaps.iter().map(|heap| heap.bytes).sum()
    }

    /// What can be read by itself.
    pub(crate) fn readable(&self) -> &[Heap] {
        if self.root_only { &[] } else { &self.heaps }
    }

    /// What is copied by one COPY each.
    pub(crate) fn units(&self, job: &CopyJob, range_bytes: u64) -> Vec<CopyUnit> {
        let is_root = job.table.kind == TableKind::Partitioned;
        if is_root && (self.root_only || self.heaps.is_empty()) {
            let relation = job.table.name.clone();
            return vec![CopyUnit { relation, is_root, pages: PageRange::default(), bytes: self.bytes() }];
        }
        self.heaps.iter().flat_map(|heap| heap_units(heap, range_bytes)).collect()
    }
}

/// One row per relation with storage: root, schema, name, pages, bytes,
/// access method is heap, readable by itself, rows by the statistics.
fn layout_sql(oids: &str) -> String {
    format!(
        "SELECT c.oid, n.nspname, l.relname, \
                COALESCE(pg_catalog.pg_relation_size(l.oid), 0) / pg_catalog.current_setting('block_size')::int8, \
                COALESCE(pg_catalog.pg_table_size(l.oid), 0), COALESCE(m.amname = 'heap', false), \
                l.relkind = 'r' AND NOT pg_catalog.row_security_active(l.oid) \
                    AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') \
                    AND pg_catalog.has_table_privilege(l.oid, 'SELECT'), \
                CASE WHEN l.reltuples >= 0 AND l.relpages > 0 \
                     THEN l.reltuples::float8 / l.relpages \
                          * (pg_catalog.pg_relation_size(l.oid) / pg_catalog.current_setting('block_size')::int8) END \
         FROM pg_catalog.pg_class c \
         CROSS JOIN LATERAL (SELECT c.oid AS relid WHERE c.relkind <> 'p' UNION ALL \
                             SELECT p.relid::oid FROM pg_catalog.pg_partition_tree(c.oid) p \
                             WHERE p.isleaf AND c.relkind = 'p') x \
         JOIN pg_catalog.pg_class l ON l.oid = x.relid \
         JOIN pg_catalog.pg_namespace n ON n.oid = l.relnamespace \
         LEFT JOIN pg_catalog.pg_am m ON m.oid = l.relam \
         WHERE c.oid IN ({oids})"
    )
}

/// Looks at the tables on the source; gives each one's layout, by its OID.
pub(crate) async fn layouts(source: &mut Wire, jobs: &[CopyJob]) -> Result<HashMap<u32, Layout>, Error> {
    let oids = jobs.iter().map(|job| job.table.oid.to_string()).collect::<Vec<_>>().join(",");
    // The transaction lasts as long as the copy and must not keep the catalogs locked. Otherwise a
    // `VACUUM FULL` of a catalog would wait for the copy, and new connections, such as those of
    // further workers, would wait for the `VACUUM FULL`. Rolling back to a savepoint releases the
    // locks taken since.
    let sql =
        format!("SAVEPOINT look; {}; ROLLBACK TO SAVEPOINT look; RELEASE SAVEPOINT look", layout_sql(&oids));
    let rows = source.query(&sql).await.map_err(Error::client("look at the tables of the source"))?;
    let mut layouts: HashMap<u32, Layout> = HashMap::new();
    for row in rows {
        let text = |index: usize| row.get(index).and_then(Option::as_deref).unwrap_or_default();
        let number = |index: usize| text(index).parse::<u64>().unwrap_or(0);
        let root = u32::try_from(number(0)).unwrap_or(0);
        let layout = layouts.entry(root).or_default();
        layout.root_only |= text(6) != "t";
        layout.heaps.push(Heap {
            name: TableName::new(text(1), text(2)),
            pages: number(3),
            bytes: number(4),
            has_pages: text(5) == "t",
            rows: text(7).parse().ok(),
        });
    }
    // A partitioned table without leaves has no row of its own.
    for job in jobs.iter().filter(|job| job.table.kind == TableKind::Partitioned) {
        layouts.entry(job.table.oid.0).or_default();
    }
    Ok(layouts)
}
