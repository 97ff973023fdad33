//! Fresh statistics for tables that were just copied, beside the stream.
//!
//! Whoever queries them next wants them; the stream does not, so it does not
//! wait for them, and with `--create-schema` they come after the indexes,
//! whose expressions have statistics too. Not worth failing for: autovacuum
//! gets to a new table as well.

use std::sync::Arc;

use source::publication::TableName;
use tokio_util::sync::CancellationToken;

use crate::Settings;

/// A table that is locked longer is left to autovacuum, and so are those of
/// a run that stops.
const SESSION_SETTINGS: [(&str, &str); 3] =
    [("search_path", ""), ("statement_timeout", "0"), ("lock_timeout", "5s")];

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
    for table in tables {
        if let Err(error) = session.batch_execute(&format!("ANALYZE {}", table.quoted())).await {
            let error = session.error(error);
            tracing::warn!(subscription = %settings.subscription, %table, %error, "ANALYZE after the copy failed");
        }
    }
}
