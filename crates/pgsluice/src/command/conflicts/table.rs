//! The table of conflicts for people.

use operate::conflicts::StoredConflict;

/// Columns of a terminal that the text fits in.
pub(super) const WIDTH: usize = 100;

const HEADS: [&str; 6] = ["id", "at (UTC)", "type", "table", "outcome", "rule"];

/// The column that is cut where the others leave too little room.
const TABLE: usize = 3;
/// Width that the table's name has at least.
const TABLE_MIN: usize = 10;
/// Spaces between two columns.
const GAP: usize = 2;

/// All of `found`, which is not empty, and how to see more.
pub(super) fn text(found: &[StoredConflict], more: bool) -> String {
    let rows: Vec<[String; 6]> = found.iter().map(cells).collect();
    let length = |text: &str| text.chars().count();
    let mut widths = HEADS.map(length);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(length(cell));
        }
    }
    let others: usize = widths.iter().sum::<usize>() - widths[TABLE] + GAP * (HEADS.len() - 1);
    widths[TABLE] = widths[TABLE].min(WIDTH.saturating_sub(others).max(TABLE_MIN));
    let mut out = line(&HEADS.map(str::to_owned), widths);
    rows.iter().for_each(|row| out.push_str(&line(row, widths)));
    if more {
        out.push_str("The history has more: give a greater --limit, or a filter.\n");
    }
    let newest = found[0].id;
    out.push_str(&format!("To see what was done about one of them: pgsluice conflicts --id {newest}"));
    out
}

fn cells(conflict: &StoredConflict) -> [String; 6] {
    let (schema, table) = &conflict.table;
    [
        conflict.id.to_string(),
        seconds(&conflict.at),
        conflict.kind.clone(),
        format!("{schema}.{table}"),
        conflict.outcome.clone(),
        conflict.resolution.clone(),
    ]
}

/// `2026-11-25T18:00:00.123456Z` without what a table has no room for.
fn seconds(at: &str) -> String {
    at.split('.').next().unwrap_or(at).replace('T', " ")
}

fn line(cells: &[String; 6], widths: [usize; 6]) -> String {
    let mut out = String::new();
    for (position, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let cell = shortened(cell, width);
        match position {
            0 => out.push_str(&format!("{cell:>width$}")),
            _ => out.push_str(&format!("{:GAP$}{cell:<width$}", "")),
        }
    }
    format!("{}\n", out.trim_end())
}

/// The end of a name tells more than its beginning.
fn shortened(cell: &str, width: usize) -> String {
    let length = cell.chars().count();
    match length <= width {
        true => cell.to_owned(),
        false => std::iter::once('…').chain(cell.chars().skip(length - width + 1)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use base::Lsn;

    use super::*;

    pub(crate) fn conflict(id: i64, kind: &str, table: &str) -> StoredConflict {
        StoredConflict {
            id,
            at: "2026-11-25T18:00:00.123456Z".to_owned(),
            kind: kind.to_owned(),
            table: ("public".to_owned(), table.to_owned()),
            index: None,
            resolution: "first_update_wins".to_owned(),
            outcome: "applied".to_owned(),
            remote_xid: 742,
            finished_at: Lsn::new(0x16_B374_D848),
            remote_time: "2026-11-25T17:59:59.000000Z".to_owned(),
            remote_origin: None,
            local_xid: None,
            local_origin: None,
            local_time: None,
            key: None,
            local_row: None,
            remote_row: None,
            replica_identity: None,
            detail: String::new(),
        }
    }

    #[test]
    fn the_table_fits_a_terminal_whatever_its_names_are() {
        let long = "a_name_of_a_table_that_leaves_no_room_for_anything_else_beside_it";
        let found =
            [conflict(9_999_999_999, "multiple_unique_conflicts", long), conflict(1, "insert_exists", "t")];
        let text = text(&found, true);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("…"), "{text}");
        assert!(text.contains("2026-11-25 18:00:00  multiple_unique_conflicts"), "{text}");
        assert!(text.ends_with("pgsluice conflicts --id 9999999999"), "{text}");
    }

    #[test]
    fn short_names_are_whole() {
        let text = text(&[conflict(7, "insert_exists", "orders")], false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "id  at (UTC)             type           table          outcome  rule");
        assert_eq!(
            lines[1],
            " 7  2026-11-25 18:00:00  insert_exists  public.orders  applied  first_update_wins"
        );
        assert_eq!(lines.len(), 3);
    }
}
