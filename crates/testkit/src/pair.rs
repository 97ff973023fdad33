//! Two clusters: the source that is written to and the target that follows.

use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::archive::Archive;
use crate::cluster::{Builder, Cluster};
use crate::major::Major;
use crate::sluice::{SourceMode, source_mode};

/// A source and a target, started side by side.
#[derive(Debug)]
pub struct Pair {
    /// Ends before the source does.
    archive: Option<Archive>,
    /// The publisher.
    pub source: Cluster,
    /// The subscriber.
    pub target: Cluster,
    state: TempDir,
}

impl Pair {
    /// Both ends with default settings.
    ///
    /// # Errors
    /// See [`Builder::start`].
    pub fn start(source: Major, target: Major) -> Result<Pair> {
        Pair::with(Cluster::builder(source), Cluster::builder(target))
    }

    /// Both ends with settings of their own.
    ///
    /// # Errors
    /// See [`Builder::start`].
    pub fn with(source: Builder, target: Builder) -> Result<Pair> {
        let is_archived = source_mode() == Some(SourceMode::Archive);
        // Nothing else keeps WAL until it is there.
        let source = if is_archived { source.setting("wal_keep_size", "1GB") } else { source };
        let (source, target) = std::thread::scope(|scope| {
            let target = scope.spawn(|| target.start());
            (source.start(), target.join().expect("starting a cluster does not panic"))
        });
        let state = tempfile::Builder::new().prefix("pgsluice-state-").tempdir()?;
        let (source, target) = (source.context("the source")?, target.context("the target")?);
        let archive = match is_archived {
            true => Some(Archive::start(&source.data_dir())?),
            false => None,
        };
        Ok(Pair { archive, source, target, state })
    }

    /// Runs `sql` in `db` on both ends: schemas, mostly.
    ///
    /// # Errors
    /// What either server answers.
    pub fn both(&self, db: &str, sql: &str) -> Result<()> {
        self.source.sql(db, sql).context("on the source")?;
        self.target.sql(db, sql).context("on the target")?;
        Ok(())
    }

    /// The source's, while it is what changes are read from.
    pub fn archive(&self) -> Option<&Archive> {
        self.archive.as_ref()
    }

    /// Where pgsluice keeps its files while it runs on this pair; removed with it.
    pub fn state_dir(&self) -> &Path {
        self.state.path()
    }
}
