//! A range of a table's key.

/// A range of keys: above `after`, up to and with `through`, each by the first
/// columns of the key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) after: Option<Vec<String>>,
    pub(crate) through: Option<Vec<String>>,
}

impl KeyRange {
    pub(crate) fn is_all(&self) -> bool {
        *self == KeyRange::default()
    }
}
