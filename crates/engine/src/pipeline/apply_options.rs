//! The options that the applier gets.

use std::sync::Arc;

use base::Lsn;
use conflict::Node;
use source::publication::{PublishedTable, TableName};

use super::attempt::{Attempt, Ends};
use crate::Binary;
use crate::Origin;
use crate::error::Error;

impl Attempt<'_> {
    pub(super) async fn apply_options(
        &self,
        ends: &Ends,
        skip_lsn: Option<Lsn>,
    ) -> Result<apply::Options, Error> {
        let settings = self.settings;
        let binary = self.binary(ends).await?;
        Ok(apply::Options {
            subscription: settings.subscription.clone(),
            binary,
            local_only: settings.origin == Origin::None,
            types: (binary && settings.binary == Binary::Auto)
                .then(|| Arc::new(source_types(&ends.source.published))),
            synchronous_commit: settings.synchronous_commit.as_str().to_owned(),
            batch_rows_max: settings.batch_rows_max,
            batch_bytes_max: settings.batch_bytes_max,
            // rule F3: a commit timestamp belongs to one source transaction.
            keep_transactions: match settings.keep_commit_timestamps {
                Some(keep) => keep,
                None => ends.state.tracks_commit_timestamps().await?,
            },
            exact_only: settings.exact_only,
            allow_triggers: settings.allow_triggers,
            unconverted: unconverted(ends),
            workers: settings.max_parallel_apply_workers_per_subscription,
            commit_order: settings.commit_order,
            streaming: settings.streaming,
            copied_from: state::CopiedFrom::default(),
            skip_lsn,
            conflict_rules: settings.conflict_rules.clone(),
            detect_origin_differs: settings.detect_origin_differs,
            conflict_nodes: nodes(ends).await?,
            clock_skew_max: settings.clock_skew_max,
            retention: self.status.retention().cloned(),
            gate: Arc::clone(self.status.gate()),
            conflict_history: settings.conflict_history_rows > 0,
            conflict_log_values: settings.conflict_log_values,
            prefetch: Some(apply::PrefetchOptions {
                target: settings.target.clone(),
                subscription: settings.subscription.clone(),
                mode: settings.prefetch,
                workers: settings.max_parallel_prefetch_workers_per_subscription,
                binary,
            }),
        })
    }
}

/// The two databases, as both directions of a pair know them.
async fn nodes(ends: &Ends) -> Result<Option<(Node, Node)>, Error> {
    let identity = &ends.source.identity;
    let Some(database) = identity.dbname.clone() else { return Ok(None) };
    let source = Node { system: identity.system_id, database };
    let target = ends.state.target_node().await?;
    Ok(target.map(|(system, database)| (source, Node { system, database })))
}

/// The column types by which the applier decides on the binary form.
fn source_types(published: &[PublishedTable]) -> apply::SourceTypes {
    let columns = |table: &PublishedTable| {
        table.columns.iter().map(|column| (column.name.clone(), column.data_type.oid)).collect()
    };
    let key = |name: &TableName| (name.schema.clone(), name.name.clone());
    published.iter().map(|table| (key(&table.name), columns(table))).collect()
}

/// Whether both databases use SQL_ASCII. The encoding of their bytes is then unknown, so values
/// must not be converted. The first copy decides in the same way.
fn unconverted(ends: &Ends) -> bool {
    const UNKNOWN: &str = "SQL_ASCII";
    let target = ends.state.session().parameter("server_encoding");
    ends.source.wire.parameter("server_encoding") == Some(UNKNOWN) && target.as_deref() == Some(UNKNOWN)
}
