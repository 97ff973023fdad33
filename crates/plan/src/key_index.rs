//! The unique index by which rows are found, as the target has it.

/// A column of the unique index by which rows are found, as that index has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyColumn {
    /// Its position in the source's tuple.
    pub position: usize,
    /// Operators of the index's own class as SQL.
    pub bounds: Bounds,
}

/// How an index orders a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// `>=`
    pub at_least: String,
    /// `<=`
    pub at_most: String,
    /// The column's clause in ORDER BY, behind its name.
    pub order: String,
}

/// The unique index by which rows are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyIndex {
    /// In the order of the index.
    pub columns: Vec<KeyColumn>,
    /// Another index has a column of the key and does not begin with all columns of the key. The
    /// planner might take that index.
    pub has_rival: bool,
}
