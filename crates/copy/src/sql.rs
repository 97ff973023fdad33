//! The COPY statements of both ends.

use base::quote_ident;
use source::publication::TableKind;

use crate::CopyJob;
use crate::plan::{CopyUnit, PageRange};

/// Reads `unit` on the source.
pub(crate) fn copy_out(job: &CopyJob, unit: &CopyUnit) -> String {
    let columns = quoted_columns(&job.columns);
    let format = job.format.option();
    let relation = unit.relation.quoted();
    let conditions = conditions(unit, job.table.row_filter.as_deref());
    // COPY of a table is the cheapest way to read it, but it takes neither
    // conditions nor partitioned tables nor generated columns.
    if conditions.is_empty() && !unit.is_root && !job.reads_generated {
        return format!("COPY {relation}{} TO STDOUT WITH {format}", column_list(&columns));
    }
    let only = if unit.is_root { "" } else { "ONLY " };
    let condition = if conditions.is_empty() { String::new() } else { format!(" WHERE {conditions}") };
    format!("COPY (SELECT {columns} FROM {only}{relation}{condition}) TO STDOUT WITH {format}")
}

/// Writes into the job's table on the target.
pub(crate) fn copy_in(job: &CopyJob) -> String {
    let columns = column_list(&quoted_columns(&job.columns));
    format!("COPY {}{columns} FROM STDIN WITH {}", job.table.name.quoted(), job.format.option())
}

/// How the target's table is named where its inheritance children, which are
/// tables of their own, must stay out of it.
pub(crate) fn target_only(job: &CopyJob) -> String {
    let only = if job.target.kind == TableKind::Partitioned { "" } else { "ONLY " };
    format!("{only}{}", job.table.name.quoted())
}

fn quoted_columns(names: &[String]) -> String {
    names.iter().map(|name| quote_ident(name)).collect::<Vec<_>>().join(", ")
}

/// An empty list is a syntax error; left out it means all columns, which are
/// none as well.
fn column_list(columns: &str) -> String {
    if columns.is_empty() { String::new() } else { format!(" ({columns})") }
}

/// Which rows of its relation belong to `unit`, as SQL; empty for all.
pub(crate) fn conditions(unit: &CopyUnit, row_filter: Option<&str>) -> String {
    let PageRange { from, to } = unit.pages;
    let mut conditions = Vec::new();
    // Line pointers count from 1, so (n,0) is before the first row of page n.
    conditions.extend(from.map(|page| format!("ctid >= '({page},0)'")));
    conditions.extend(to.map(|page| format!("ctid < '({page},0)'")));
    conditions.extend(row_filter.map(|filter| format!("({filter})")));
    conditions.join(" AND ")
}
