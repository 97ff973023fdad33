//! One table of the source matched with the table of the target.

use base::PgVersion;
use source::publication::{Generated, PublishedTable, TableKind, TargetTable};

use crate::error::{Error, Kind};

/// COPY's format. The same on both ends, so that blocks need no reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Binary,
    Text,
}

impl Format {
    /// The option of a COPY statement.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Format::Binary => "(FORMAT binary)",
            Format::Text => "(FORMAT text)",
        }
    }
}

/// A table to be copied, after the check that the target has every published column.
#[derive(Debug, Clone)]
pub struct CopyJob {
    pub(crate) table: PublishedTable,
    pub(crate) target: TargetTable,
    /// Names of the columns that are copied, in the source's order.
    pub(crate) columns: Vec<String>,
    /// The source computes one of the columns: COPY of a table refuses them,
    /// COPY of a query does not.
    pub(crate) reads_generated: bool,
    pub(crate) format: Format,
}

impl CopyJob {
    /// Matches columns by name. Leaves out columns that the target computes itself. Columns that
    /// only the target has get their defaults.
    ///
    /// # Errors
    /// The target has no such table, it is not a table, or columns are
    /// missing there; all missing columns are named.
    pub fn new(
        table: PublishedTable,
        target: Option<&TargetTable>,
        source_version: PgVersion,
        target_version: PgVersion,
    ) -> Result<CopyJob, Error> {
        let name = table.name.clone();
        let Some(target) = target else { return Err(Error::new(Kind::NoTable).of(&name)) };
        if target.kind == TableKind::Other {
            return Err(Error::new(Kind::NotATable).of(&name));
        }
        let missing: Vec<String> = table
            .columns
            .iter()
            .filter(|column| target.column(&column.name).is_none())
            .map(|column| column.name.clone())
            .collect();
        if !missing.is_empty() {
            return Err(Error::new(Kind::MissingColumns(missing)).of(&name));
        }
        let pairs: Vec<_> = table
            .columns
            .iter()
            .filter_map(|column| Some((column, target.column(&column.name)?)))
            .filter(|(_, target)| target.generated == Generated::No)
            .collect();
        let binary = pairs.iter().all(|(source, target)| {
            source.data_type.travels_in_binary(&target.data_type, source_version, target_version)
        });
        let columns = pairs.iter().map(|(source, _)| source.name.clone()).collect();
        let reads_generated = pairs.iter().any(|(source, _)| source.generated != Generated::No);
        let format = if binary { Format::Binary } else { Format::Text };
        Ok(CopyJob { columns, reads_generated, format, target: target.clone(), table })
    }

    /// The table of the target.
    #[must_use]
    pub fn target(&self) -> &TargetTable {
        &self.target
    }

    /// The table as published.
    #[must_use]
    pub fn table(&self) -> &PublishedTable {
        &self.table
    }

    /// Whether its rows travel in binary.
    #[must_use]
    pub fn is_binary(&self) -> bool {
        self.format == Format::Binary
    }
}
