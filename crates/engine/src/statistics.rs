//! Fresh statistics for tables that were just copied, beside the stream.
//!
//! Whoever queries them next wants them; the stream does not, so it does not
//! wait for them, and with `--create-schema` they come after the indexes,
//! whose expressions have statistics too. Not worth failing for: autovacuum
//! gets to a new table as well. A role that may not ANALYZE a table is only
//! warned by the server, which passes over it; that is told with the command.

use std::sync::Arc;

use source::publication::TableName;
use tokio_util::sync::CancellationToken;

use crate::Settings;

/// A table that is locked longer is left to autovacuum, and so are those of
/// a run that stops.
const SESSION_SETTINGS: [(&str, &str); 3] =
    [("search_path", ""), ("statement_timeout", "0"), ("lock_timeout", "5s")];

/// More tables are not listed, the whole database is as quick.
const LISTED_MAX: usize = 20;

/// $1 schema, $2 table: whether the role may ANALYZE it, before 17 and since.
const MAY: &str = "\
SELECT pg_catalog.pg_has_role(c.relowner, 'USAGE') OR pg_catalog.pg_has_role(d.datdba, 'USAGE')
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_catalog.pg_database d ON d.datname = pg_catalog.current_database()
 WHERE n.nspname = $1 AND c.relname = $2";
const MAY_MAINTAIN: &str = "\
SELECT pg_catalog.has_table_privilege(c.oid, 'MAINTAIN') OR pg_catalog.pg_has_role(d.datdba, 'USAGE')
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_catalog.pg_database d ON d.datname = pg_catalog.current_database()
 WHERE n.nspname = $1 AND c.relname = $2";

/// ANALYZEs the target's `tables`, one after the other, until `stop`.
pub(crate) fn analyze(settings: &Arc<Settings>, tables: Vec<TableName>, stop: &CancellationToken) {
    if tables.is_empty() {
        return;
    }
    let (settings, stop) = (Arc::clone(settings), stop.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = analyze_all(&settings, &tables) => {}
        }
    });
}

async fn analyze_all(settings: &Settings, tables: &[TableName]) {
    let name = settings.subscription.application_name("analyze");
    let session = match client::connect(&settings.target, &name, &SESSION_SETTINGS).await {
        Ok(session) => session,
        Err(error) => {
            tracing::warn!(subscription = %settings.subscription, %error, "no ANALYZE after the copy");
            return;
        }
    };
    let mut passed_over = Vec::new();
    for table in tables {
        if !may_analyze(&session, table).await {
            passed_over.push(table.quoted());
        } else if let Err(error) = session.batch_execute(&format!("ANALYZE {}", table.quoted())).await {
            let error = session.error(error);
            tracing::warn!(subscription = %settings.subscription, %table, %error, "ANALYZE after the copy failed");
        }
    }
    if !passed_over.is_empty() {
        tracing::warn!(
            subscription = %settings.subscription,
            "tables have no statistics after their copy, because the target's role may not ANALYZE them; queries of them \
             are slow until autovacuum gets to them: run there, as their owner, {}",
            command(&passed_over)
        );
    }
}

/// What does not answer is tried, and told by what that answers.
async fn may_analyze(session: &client::Session, table: &TableName) -> bool {
    let sql = if session.version().major() >= 17 { MAY_MAINTAIN } else { MAY };
    let row = session.query_opt(sql, &[&table.schema, &table.name]).await;
    row.ok().flatten().and_then(|row| row.try_get(0).ok()).unwrap_or(true)
}

fn command(tables: &[String]) -> String {
    match tables.len() {
        ..=LISTED_MAX => format!("ANALYZE {};", tables.join(", ")),
        _ => "ANALYZE;".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_tables_are_listed_and_many_are_all() {
        let tables = |count| vec!["\"s\".\"t\"".to_owned(); count];
        assert_eq!(command(&tables(2)), "ANALYZE \"s\".\"t\", \"s\".\"t\";");
        assert_eq!(command(&tables(LISTED_MAX + 1)), "ANALYZE;");
    }
}
