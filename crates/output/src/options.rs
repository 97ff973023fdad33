//! Options: what is decoded, and in which form it comes out.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use base::{Lsn, Oid};
use types::Settings;

use crate::error::{Error, Result};

/// What is decoded, and in which form it comes out: pgoutput's options, and what a slot knows.
#[derive(Debug, Clone)]
pub struct Options {
    /// The database whose tables are decoded.
    pub database: Oid,
    /// The publications to decode.
    pub publications: Publications,
    /// The protocol's version, 1 to 4. [`Options::streaming`] needs 2 (parallel: 4),
    /// [`Options::two_phase_at`] needs 3.
    pub proto_version: u32,
    /// Values come out in the form of their types' send functions.
    pub binary: bool,
    /// What happens with transactions that are larger than the memory limit.
    pub streaming: Streaming,
    /// From this position on, prepared transactions come out when they are prepared (the slot's
    /// `two_phase_at`).
    pub two_phase_at: Option<Lsn>,
    /// Messages of `pg_logical_emit_message` come out.
    pub messages: bool,
    /// Which changes come out, by their origins.
    pub origin: OriginFilter,
    /// `logical_decoding_work_mem`, in bytes.
    pub work_mem_bytes: usize,
    /// No transaction comes out that committed (or was prepared) before this position; a slot's
    /// `confirmed_flush_lsn`.
    pub start: Lsn,
    /// `wal_segment_size`, in bytes.
    pub segment_size: u64,
    /// The settings of the session for which values are rendered.
    pub settings: Settings,
    /// What happens with tables that cannot be rendered or filtered.
    pub refused: OnRefused,
    /// Drops records that no member wants before they are decoded. The output is the same without
    /// it. It exists to measure what the filter costs when every change is wanted.
    pub early_filter: bool,
    /// What comes out is kept for readers who enter later. What a streamed transaction describes
    /// then counts for that transaction only, also after its commit: a reader may not get it.
    pub read_by_many: bool,
    /// If one of the publications does not exist, a change is an error on every major. Servers from
    /// 18 on only warn, and leave out what the publication might have published.
    pub all_publications: bool,
    /// Deletions come out instead of messages ([`crate::DeletionDecoder`]), but none of these
    /// origins.
    pub(crate) deletions: Option<Vec<u16>>,
}

/// Which tables are decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Publications {
    /// Every table that can be published, as by a publication for all tables.
    EveryTable,
    /// The tables of the publications with these names, as the publications are at each change.
    Named(Vec<String>),
}

/// pgoutput's option `streaming`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streaming {
    /// Large transactions are spilled.
    Off,
    /// Large transactions come out in blocks while they are open.
    On,
    /// As `On`, and aborts say when and where they happened.
    Parallel,
}

/// pgoutput's option `origin`, which it has from version 16 on. Here every version has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OriginFilter {
    /// All changes.
    Any,
    /// Changes without an origin.
    None,
}

/// What happens with a published table that has a type that cannot be rendered, or a row filter
/// that cannot be evaluated.
#[derive(Debug, Clone)]
pub enum OnRefused {
    /// The first change of the table that would come out is an error.
    Stop,
    /// Its changes are left out, and [`crate::Decoder::refused`] names the table.
    LeaveOut,
    /// An error for tables that take part at that moment. Changes of other tables are left out.
    LeaveOutOthers(TakesPart),
}

/// The tables whose changes are needed, by schema and name as they are published. Clones are the
/// same set, which may change during decoding.
#[derive(Debug, Clone, Default)]
pub struct TakesPart(Arc<RwLock<HashSet<(String, String)>>>);

impl TakesPart {
    /// Adds a table: from now on its changes must come out.
    pub fn insert(&self, table: (String, String)) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(table);
    }

    /// Removes a table: its changes are not needed any more.
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
    /// Options for transactions that commit from `start` on: not streamed, as text, in protocol
    /// version 1.
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
            read_by_many: false,
            all_publications: false,
            deletions: None,
        }
    }

    /// Checks whether pgoutput of that major would accept these options.
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
