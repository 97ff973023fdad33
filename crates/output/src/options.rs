//! What is decoded, and how it is written.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use base::{Lsn, Oid};
use types::Settings;

use crate::error::{Error, Result};

/// What is decoded, and how it is written: pgoutput's options, and what a slot knows.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whose tables.
    pub database: Oid,
    /// Which tables, and what of them.
    pub publications: Publications,
    /// The protocol's version, 1 to 4; [`Options::streaming`] needs 2 (parallel: 4), [`Options::two_phase_at`] 3.
    pub proto_version: u32,
    /// Values in the form of their types' send functions.
    pub binary: bool,
    /// What becomes of transactions that are larger than the memory.
    pub streaming: Streaming,
    /// Prepared transactions come out when they are prepared, from this position on (the slot's `two_phase_at`).
    pub two_phase_at: Option<Lsn>,
    /// Messages of `pg_logical_emit_message` come out.
    pub messages: bool,
    /// Which changes, by where they were made.
    pub origin: OriginFilter,
    /// `logical_decoding_work_mem`, in bytes.
    pub work_mem_bytes: usize,
    /// Nothing comes out that committed (was prepared) before this position; a slot's `confirmed_flush_lsn`.
    pub start: Lsn,
    /// `wal_segment_size`, in bytes.
    pub segment_size: u64,
    /// The session that values are rendered for.
    pub settings: Settings,
    /// What becomes of tables that cannot be rendered or filtered.
    pub refused: OnRefused,
    /// Records that nobody wants are dropped before they are taken apart. What comes out is the same without; it is there to
    /// measure what the filter costs where everything is wanted.
    pub early_filter: bool,
    /// A change while one of the publications is not there is an error on every major. Servers from 18 on only warn, and
    /// leave out what the publication might have published.
    pub all_publications: bool,
}

/// Which tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Publications {
    /// Every table that could be published, as if a publication were of all tables.
    EveryTable,
    /// Those that publications of these names publish, as they are at each change.
    Named(Vec<String>),
}

/// `streaming`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streaming {
    /// They are spilled.
    Off,
    /// They come out in blocks while they are open.
    On,
    /// As `On`, and aborts say when and where.
    Parallel,
}

/// `origin`. pgoutput has the option from version 16 on; here every version has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OriginFilter {
    /// All changes.
    Any,
    /// Those that no origin is named for.
    None,
}

/// What becomes of a published table that has a type that cannot be rendered, or a row filter that cannot be evaluated.
#[derive(Debug, Clone)]
pub enum OnRefused {
    /// Its first change that would come out is an error.
    Stop,
    /// Its changes are left out, and [`crate::Decoder::refused`] names it.
    LeaveOut,
    /// An error for tables that take part at that moment; changes of the others are left out.
    LeaveOutOthers(TakesPart),
}

/// The tables whose changes are needed, by schema and name as they are published. Clones are the same set, which may
/// change while it is decoded.
#[derive(Debug, Clone, Default)]
pub struct TakesPart(Arc<RwLock<HashSet<(String, String)>>>);

impl TakesPart {
    /// From now on changes of this table must come out.
    pub fn insert(&self, table: (String, String)) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(table);
    }

    /// Changes of this table are nobody's any more.
    pub fn remove(&self, table: &(String, String)) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(table);
    }

    pub(crate) fn has(&self, table: &(String, String)) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains(table)
    }
}

impl FromIterator<(String, String)> for TakesPart {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(tables: I) -> TakesPart {
        TakesPart(Arc::new(RwLock::new(tables.into_iter().collect())))
    }
}

impl Options {
    /// Transactions that commit from `start` on, whole, as text, in protocol version 1.
    #[must_use]
    pub fn new(database: Oid, publications: Publications, start: Lsn, settings: Settings) -> Options {
        Options {
            database,
            publications,
            proto_version: 1,
            binary: false,
            streaming: Streaming::Off,
            two_phase_at: None,
            messages: false,
            origin: OriginFilter::Any,
            work_mem_bytes: 64 << 20,
            start,
            segment_size: 16 << 20,
            settings,
            refused: OnRefused::Stop,
            early_filter: true,
            all_publications: false,
        }
    }

    /// Whether pgoutput of that major would take them.
    pub(crate) fn check(&self, major: u32) -> Result<()> {
        let version = self.proto_version;
        let max = self.settings.version.pgoutput_protocol_max();
        if self.settings.version.major() != major {
            let other = self.settings.version.major();
            return Err(Error::options(format!(
                "values are to be rendered as by PostgreSQL {other}, and the catalogs are of {major}"
            )));
        }
        if !(1..=max).contains(&version) {
            return Err(Error::options(format!(
                "PostgreSQL {major} has versions 1 to {max} of the protocol, and not {version}"
            )));
        }
        let needs = |what: &str, wanted: u32| {
            Err(Error::options(format!("{what} needs version {wanted} of the protocol, and not {version}")))
        };
        match self.streaming {
            Streaming::On if version < 2 => return needs("streaming", 2),
            Streaming::Parallel if version < 4 => return needs("streaming = parallel", 4),
            _ => {}
        }
        if self.two_phase_at.is_some() && version < 3 {
            return needs("two_phase", 3);
        }
        Ok(())
    }

    pub(crate) fn reorder(&self) -> txn::reorder::Options {
        txn::reorder::Options {
            work_mem_bytes: self.work_mem_bytes,
            streaming: self.streaming != Streaming::Off,
            two_phase_at: self.two_phase_at,
            start: self.start,
            database: self.database,
            local_only: self.origin == OriginFilter::None,
            messages: self.messages,
        }
    }
}
