//! `pgsluice catalog export --source URL --file FILE`.

use std::time::Duration;

use catalog::{Catalog, Look};
use client::ConnInfo;

use crate::cli::{CatalogArgs, CatalogCommand};
use crate::exit::{Code, exit};
use crate::settings::SettingsTable;
use crate::subject::end;

/// The session's application name on the source.
const APPLICATION_NAME: &str = "pgsluice_catalog";

/// Reads the catalogs and writes them to a file.
pub(crate) async fn catalog(table: &SettingsTable, args: &CatalogArgs) -> anyhow::Result<Code> {
    let CatalogCommand::Export(args) = &args.command;
    let source = end("source", table.ends.source.as_deref())?;
    let catalog = look(&source, args.timeout.0).await?;
    catalog.save(&args.file).map_err(|error| from_catalog(&error))?;
    let databases: Vec<&str> = catalog.databases().into_iter().map(|(_, name)| name).collect();
    super::say(format_args!(
        "{}: catalogs of database {} of PostgreSQL {}, read at {}; decoding needs WAL from {} on",
        args.file.display(),
        databases.join(", "),
        catalog.server().major,
        catalog.looked(),
        catalog.start()
    ));
    Ok(Code::Done)
}

/// Reads the catalogs of a database once, after waiting at most `wait_max` for running
/// transactions.
pub(super) async fn look(source: &ConnInfo, wait_max: Duration) -> anyhow::Result<Catalog> {
    let session = client::connect(source, APPLICATION_NAME, &[]).await;
    let session = session.map_err(|error| {
        exit(Code::Failed, format!("cannot connect to the source: {}", base::with_causes(&error)))
    })?;
    let look = Look { redo: None, wait_max };
    Catalog::look(&[session], &look).await.map_err(|error| from_catalog(&error))
}

/// An error of catalogs with its exit code.
pub(super) fn from_catalog(error: &catalog::Error) -> anyhow::Error {
    exit(Code::Failed, base::with_causes(error))
}
