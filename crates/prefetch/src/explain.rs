//! Reads the plan that the server's planner makes of a statement.

use client::Wire;
use plan::sql::Shape;

/// Returns the lines of the plan of `shape` in this session. If a transaction is open, an error
/// aborts it.
///
/// # Errors
/// The server's: the table may have been dropped, or the role may not read it.
pub async fn explain(wire: &mut Wire, shape: &Shape) -> Result<Vec<String>, client::Error> {
    let types: Vec<String> = shape.parameter_types.iter().map(|oid| oid.0.to_string()).collect();
    // A statement prepared by the protocol cannot be explained before its first execution, so this
    // explains its twin in SQL.
    let types = format!(
        "SELECT pg_catalog.string_agg(pg_catalog.format_type(x.oid, NULL), ', ' ORDER BY x.n) \
         FROM pg_catalog.unnest('{{{}}}'::pg_catalog.oid[]) WITH ORDINALITY x (oid, n)",
        types.join(", ")
    );
    let named = wire.query(&types).await?;
    let types = named.into_iter().next().and_then(|row| row.into_iter().next()).flatten().unwrap_or_default();
    let nulls = vec!["NULL"; shape.parameter_types.len()].join(", ");
    wire.query(&format!("PREPARE plan_check ({types}) AS {}", shape.sql)).await?;
    let explained = wire.query(&format!("EXPLAIN (COSTS OFF) EXECUTE plan_check ({nulls})")).await;
    wire.query("DEALLOCATE plan_check").await?;
    Ok(explained?.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect())
}

/// Returns the line of `plan` that reads a whole table or a whole index. No statement whose rows an
/// index finds may do that.
pub fn whole_scan(plan: &[String]) -> Option<&str> {
    let plain = |line: &'_ str| -> usize { line.len() - line.trim_start_matches([' ', '-', '>']).len() };
    plan.iter().enumerate().find_map(|(at, line)| {
        let scan = &line[plain(line)..];
        let whole_table = scan.starts_with("Seq Scan on ") || scan.starts_with("Parallel Seq Scan on ");
        let by_index = scan.starts_with("Index Scan ") || scan.starts_with("Index Only Scan ");
        let has_condition = plan.get(at + 1).is_some_and(|next| next.trim_start().starts_with("Index Cond:"));
        (whole_table || by_index && !has_condition).then_some(scan)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_read_whole_is_named() {
        let plan = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let by_index = "Update on t\n  ->  Nested Loop\n        ->  Index Scan using t_pkey on t";
        assert_eq!(whole_scan(&plan(by_index)), Some("Index Scan using t_pkey on t"));
        let looked_up = format!("{by_index}\n              Index Cond: (id = s.c0)");
        assert_eq!(whole_scan(&plan(&looked_up)), None);
        let whole =
            plan("Update on t\n  ->  Nested Loop\n        ->  Seq Scan on t\n              Filter: (a = b)");
        assert_eq!(whole_scan(&whole), Some("Seq Scan on t"));
    }
}
