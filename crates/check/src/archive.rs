//! The contents of an archive directory that is followed instead of a stream.

use std::path::{Path, PathBuf};

use base::Lsn;
use serde::Deserialize;
use source::segments::{self, Lineage, Segments};

use crate::read::FactReader;

/// The contents of an archive directory.
#[derive(Debug)]
pub(crate) struct Archive {
    pub(crate) dir: PathBuf,
    /// The directory is a server's own, not an archive.
    pub(crate) is_pg_wal: bool,
    /// The range of its segments, or why nothing can be read.
    pub(crate) span: Result<(Lsn, Lsn), String>,
    /// Whether the directory has the segment in which the server's latest checkpoint began, or why
    /// not.
    pub(crate) latest_checkpoint: Option<Result<(), String>>,
}

#[derive(Deserialize)]
struct Checkpoint {
    timeline: u32,
    redo: String,
    segment_size: u64,
}

const CHECKPOINT: &str = "SELECT c.timeline_id AS timeline, c.redo_lsn::text AS redo, \
    pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size')) AS segment_size \
    FROM pg_catalog.pg_control_checkpoint() c";

impl Archive {
    pub(crate) async fn read(reader: &mut FactReader<'_>, dir: &Path) -> Result<Archive, client::Error> {
        let checkpoint: Option<Checkpoint> = reader.row("latest checkpoint", CHECKPOINT, &[]).await?;
        let dir = dir.to_owned();
        let looked = tokio::task::spawn_blocking(move || Archive::look(dir, checkpoint)).await;
        Ok(looked.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())))
    }

    fn look(dir: PathBuf, checkpoint: Option<Checkpoint>) -> Archive {
        let is_pg_wal = segments::is_pg_wal(&dir);
        let Some(Checkpoint { timeline, redo, segment_size }) = checkpoint else {
            let span = Err("was not read, because the source does not tell its timeline".to_owned());
            return Archive { dir, is_pg_wal, span, latest_checkpoint: None };
        };
        // Of its own timeline, where the checkpoint is.
        let lineage = Lineage { timeline, forks: Vec::new(), segment_size };
        let found = Segments::growing(&dir, &lineage).map_err(|error| error.to_string());
        let latest_checkpoint = redo.parse().ok().and_then(|redo| {
            let found = found.as_ref().ok()?;
            Some(found.read(redo).map(drop).map_err(|error| error.to_string()))
        });
        let span = found.map(|found| found.span());
        Archive { dir, is_pg_wal, span, latest_checkpoint }
    }
}
