//! The result: per table, the counted rows and the named differences. It is the documented JSON
//! form of `pgsluice verify --json`.

use std::fmt;

use serde::{Serialize, Serializer};

/// Columns and values that name a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyValues(pub(crate) Vec<(String, Option<String>)>);

impl fmt::Display for KeyValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (column, value)) in self.0.iter().enumerate() {
            let comma = if position > 0 { ", " } else { "" };
            write!(f, "{comma}{column}={}", shown(value.as_deref()))?;
        }
        Ok(())
    }
}

impl Serialize for KeyValues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(column, value)| (column, value)))
    }
}

/// One difference between the ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Difference {
    /// Both ends have the row, with different values in this column; long values are cut off.
    Changed {
        /// Which row.
        key: KeyValues,
        /// Which column.
        column: String,
        /// The source's value, `None` for NULL.
        source: Option<String>,
        /// The target's value.
        target: Option<String>,
    },
    /// Only the source has the row.
    Missing {
        /// Which row.
        key: KeyValues,
    },
    /// Only the target has the row.
    Extra {
        /// Which row.
        key: KeyValues,
    },
    /// A row of a table without a key, which the ends have in different numbers.
    Count {
        /// The row as text, cut off if it is long.
        row: String,
        /// How often the source has it.
        source: u64,
        /// How often the target has it.
        target: u64,
    },
    /// The ends differ here, but no row could be named: values that are equal
    /// to the key's index and differ as text, or a target where several rows
    /// have one key.
    Unnamed {
        /// Rows of the chunk on the source.
        source: u64,
        /// Rows of the chunk on the target.
        target: u64,
    },
}

fn shown(value: Option<&str>) -> &str {
    value.unwrap_or("NULL")
}

/// A value in quotes, so that NULL and the empty string can be told apart.
struct Quoted<'a>(Option<&'a str>);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => write!(f, "'{value}'"),
            None => f.write_str("NULL"),
        }
    }
}

impl Difference {
    /// Takes out values of columns that are not part of a key.
    pub fn hide_values(&mut self) {
        match self {
            Difference::Changed { source, target, .. } => (*source, *target) = (None, None),
            Difference::Count { row, .. } => row.clear(),
            Difference::Missing { .. } | Difference::Extra { .. } | Difference::Unnamed { .. } => {}
        }
    }

    /// In words, without values of columns that are not part of a key.
    #[must_use]
    pub fn without_values(&self) -> String {
        match self {
            Difference::Changed { key, column, .. } => format!("{key}: column \"{column}\" differs"),
            Difference::Count { source, target, .. } => {
                format!("a row occurs {source} times on the source, {target} times on the target")
            }
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Changed { key, column, source, target } => {
                let (ours, theirs) = (Quoted(source.as_deref()), Quoted(target.as_deref()));
                write!(f, "{key}: column \"{column}\": source {ours}, target {theirs}")?;
                if source == target { f.write_str(" (differ further on)") } else { Ok(()) }
            }
            Difference::Missing { key } => write!(f, "{key}: missing on the target"),
            Difference::Extra { key } => write!(f, "{key}: only on the target"),
            Difference::Count { row, source, target } => {
                write!(f, "row {row}: {source} on the source, {target} on the target")
            }
            Difference::Unnamed { source, target } => write!(
                f,
                "a part of the table differs ({source} rows on the source, {target} on the target), but no row \
                 could be named: is the key unique on the target?"
            ),
        }
    }
}

/// What was found of one table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TableReport {
    /// Its name, as the stream names it.
    pub table: String,
    /// Rows on the source that are published.
    pub source_rows: u64,
    /// Rows on the target that belong to them.
    pub target_rows: u64,
    /// Every published row is the same on both ends, and there is no other.
    pub equal: bool,
    /// What differs besides rows: no such table or column on the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<String>,
    /// Why it could not be compared, or not to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Differences by name, up to the limit.
    pub differences: Vec<Difference>,
    /// There are more differences than those named.
    pub more: bool,
    /// Remarks for the reader on how the table was compared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl TableReport {
    pub(crate) fn new(table: String) -> TableReport {
        TableReport {
            table,
            source_rows: 0,
            target_rows: 0,
            equal: true,
            mismatch: None,
            error: None,
            differences: Vec::new(),
            more: false,
            notes: Vec::new(),
        }
    }
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Each pair of snapshots held the same commits, so every difference is real.
    pub pinned: bool,
    /// Pairs of snapshots that were taken.
    pub snapshots: u64,
    /// Longest time in milliseconds that the stream stood still for a pair.
    pub held_ms_max: u64,
    /// Longest time in milliseconds that a pair was kept.
    pub snapshot_ms_max: u64,
    /// Snapshots that were thrown away because what they saw was no prefix of
    /// the commits.
    pub not_a_prefix: u64,
    /// Tables in the order of their names.
    pub tables: Vec<TableReport>,
}

impl Report {
    /// Every table was compared to its end and is equal.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.tables.iter().all(|table| table.equal && table.error.is_none())
    }

    /// Some table differs.
    #[must_use]
    pub fn differs(&self) -> bool {
        self.tables.iter().any(|table| !table.equal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(values: &[(&str, Option<&str>)]) -> KeyValues {
        KeyValues(values.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned))).collect())
    }

    #[test]
    fn differences_read_well_and_hide_values_when_told_to() {
        let changed = Difference::Changed {
            key: key(&[("id", Some("7")), ("sub", Some("a"))]),
            column: "note".to_owned(),
            source: None,
            target: Some(String::new()),
        };
        assert_eq!(changed.to_string(), "id=7, sub=a: column \"note\": source NULL, target ''");
        assert_eq!(changed.without_values(), "id=7, sub=a: column \"note\" differs");
        let json = serde_json::to_value(&changed).unwrap();
        assert_eq!((&json["kind"], &json["key"]["id"]), (&"changed".into(), &"7".into()));
    }
}
