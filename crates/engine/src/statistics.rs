//! Fresh statistics for tables that were just copied, gathered beside the stream.
//!
//! The next queries need these statistics; the stream does not, and so does not wait for them. With
//! `--create-schema` they are gathered after the indexes are built, because expressions in indexes
//! have statistics, too. A failure here is not worth stopping for, since autovacuum also analyzes
//! new tables. If the role may not ANALYZE a table, the server only warns and skips it; the log
//! then names the command to run.

use std::sync::Arc;

use source::publication::TableName;
use tokio_util::sync::CancellationToken;

use crate::Settings;

/// Leaves a table to autovacuum if it stays locked for longer, or if the run stops.
const SESSION_SETTINGS: [(&str, &str); 3] =
    [("search_path", ""), ("statement_timeout", "0"), ("lock_timeout", "5s")];

/// Most tables that the message lists by name; beyond that, analyzing the whole database is as
/// quick.
const LISTED_MAX: usize = 20;

/// $1 schema, $2 table: whether the role may ANALYZE it. `MAY` is for servers before 17,
/// `MAY_MAINTAIN` for later ones.
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

/// Runs ANALYZE on the target's `tables`, one after the other, until `stop`.
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
            tracing::warn!(subscription = %settings.subscription, %error, "could not ANALYZE after the copy");
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

/// Counts a failed query as permission, so that ANALYZE itself reports the cause.
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
