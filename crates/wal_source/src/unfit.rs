//! What keeps WAL from being decoded until a person has changed it: the restart file, the archive,
//! the source's history, the tables.
//!
//! Each message says what is wrong and what to do.

use std::fmt;
use std::path::PathBuf;

use base::Lsn;

/// Something that does not fit.
#[derive(Debug)]
pub(crate) enum Unfit {
    /// The restart file is missing or does not fit. Only it says what the catalogs were where WAL
    /// is needed from.
    NoRestart {
        path: PathBuf,
        why: String,
    },
    /// The restart file is not of this source's history.
    OtherTimeline {
        before: u32,
        now: u32,
        fork: Option<Lsn>,
        kept: Lsn,
    },
    /// The directory that is configured as an archive is a `pg_wal`.
    ArchiveIsPgWal(PathBuf),
    ArchiveOfAnother {
        dir: PathBuf,
        own: u64,
        found: u64,
    },
    /// Tables that cannot be decoded outside the server, one text for each.
    Undecodable(Vec<String>),
}

/// Advice for a source whose history is not the one that the target has.
const COPY_AGAIN: &str = "the target may hold rows that the source lacks: pgsluice drop, empty the tables and copy \
                          again; pgsluice verify shows what differs";

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::NoRestart { path, why } => write!(
                f,
                "{} does not say what the catalogs were at the position where decoding must continue: {why}; WAL \
                 alone does not say it; put the file back, give the --state-dir that it is in, or drop the \
                 subscription and copy again",
                path.display()
            ),
            Unfit::ArchiveIsPgWal(dir) => write!(
                f,
                "{} is the pg_wal of a server, and has WAL that is not flushed yet: a crash would take it back after it was \
                 applied; give the directory that archive_command or pg_receivewal fills as wal_archive",
                dir.display()
            ),
            Unfit::ArchiveOfAnother { dir, own, found } => write!(
                f,
                "{} has WAL of the cluster with the system identifier {found}, and the source is {own}; give the directory that \
                 has the source's as wal_archive",
                dir.display()
            ),
            Unfit::OtherTimeline { before, now, fork: Some(fork), kept } => write!(
                f,
                "the source is on timeline {now}, which left timeline {before} at {fork}, and WAL of timeline {before} was \
                 decoded up to {kept}: the source was restored, or failed over to a standby that had not received it; \
                 {COPY_AGAIN}"
            ),
            Unfit::OtherTimeline { before, now, fork: None, kept } => write!(
                f,
                "the source is on timeline {now}, and WAL was decoded up to {kept} of timeline {before}, which is not part \
                 of its history: it was restored to an earlier state, or is an old primary; give the right --source; if \
                 this is the one, {COPY_AGAIN}"
            ),
            Unfit::Undecodable(reasons) => {
                f.write_str("published tables cannot be decoded outside the server; ")?;
                f.write_str("use --source-mode logical, or do not publish them:")?;
                reasons.iter().try_for_each(|reason| write!(f, "\n  {reason}"))
            }
        }
    }
}
