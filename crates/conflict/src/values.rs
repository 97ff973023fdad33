//! The values of a conflict: its key and its rows, as the user may ask for them.
//!
//! Each value is the text that the server writes for it, so an undo can give it back unchanged,
//! whatever its type is. `None` is NULL. As JSON, a row is one object with a string for each value.
//! In a message it is as in PostgreSQL's DETAIL, where long values are cut.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// A message has this many bytes of a value; PostgreSQL shows as many.
const SHOWN_BYTES_MAX: usize = 64;

/// A value with more bytes is left out of the JSON, so that no record is too large to be written.
pub const RECORDED_BYTES_MAX: usize = 1 << 20;

/// Columns of one row, with their values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ColumnValues {
    /// Names and values, in the table's order.
    pub columns: Vec<(String, Option<String>)>,
    /// It is the whole row. A message then shows the values without names.
    pub whole: bool,
}

impl ColumnValues {
    /// The value of the column `name`: `None` without the column, `Some(None)` for NULL.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Option<&str>> {
        self.columns.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_deref())
    }

    /// One JSON object. It lacks values of more than [`RECORDED_BYTES_MAX`].
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a map of texts is JSON")
    }
}

impl Serialize for ColumnValues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fits =
            |value: &Option<String>| value.as_ref().is_none_or(|text| text.len() <= RECORDED_BYTES_MAX);
        let recorded = self.columns.iter().filter(|(_, value)| fits(value));
        serializer.collect_map(recorded.map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for ColumnValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = ColumnValues;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a text or null for each column")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ColumnValues, A::Error> {
                let mut columns = Vec::new();
                while let Some(column) = map.next_entry()? {
                    columns.push(column);
                }
                Ok(ColumnValues { columns, whole: false })
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// As in PostgreSQL's DETAIL: `(id, v)=(1, x)`, or `(1, x)` of a whole row.
impl fmt::Display for ColumnValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.whole {
            let names: Vec<&str> = self.columns.iter().map(|(name, _)| name.as_str()).collect();
            write!(f, "({})=", names.join(", "))?;
        }
        let values: Vec<String> = self.columns.iter().map(|(_, value)| shown(value.as_deref())).collect();
        write!(f, "({})", values.join(", "))
    }
}

/// A value in a message. A line break would end the line of the log, so it is written as `\n`.
fn shown(value: Option<&str>) -> String {
    let Some(text) = value else { return "null".to_owned() };
    let end = (0..=text.len().min(SHOWN_BYTES_MAX)).rfind(|&at| text.is_char_boundary(at)).unwrap_or(0);
    let beginning = &text[..end];
    let mut shown = String::with_capacity(beginning.len());
    for letter in beginning.chars() {
        match letter.is_control() {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    if beginning.len() < text.len() {
        shown.push_str("...");
    }
    shown
}

/// What was met, and what met it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values {
    /// The key by which the change met the row: of the unique index, or of the replica identity.
    pub key: Option<ColumnValues>,
    /// The target's row before the change.
    pub local_row: Option<ColumnValues>,
    /// The row as the source sent it. It lacks the columns that the source did not send.
    pub remote_row: Option<ColumnValues>,
    /// The replica identity that the source sent.
    pub replica_identity: Option<ColumnValues>,
}

impl Values {
    /// The end of PostgreSQL's DETAIL, without a full stop. `of_index` shows the key of the unique
    /// index; the replica identity has its own words.
    pub(crate) fn tell(&self, of_index: bool) -> String {
        let Values { key, local_row, remote_row, replica_identity } = self;
        let identity = match replica_identity {
            Some(identity) if identity.whole => "replica identity full",
            _ => "replica identity",
        };
        let parts = [
            ("key", key.as_ref().filter(|_| of_index)),
            ("existing local row", local_row.as_ref()),
            ("remote row", remote_row.as_ref()),
            (identity, replica_identity.as_ref()),
        ];
        let told = parts.into_iter().filter_map(|(what, values)| Some(format!("{what} {}", values?)));
        let mut told = told.collect::<Vec<_>>().join("; ");
        if let Some(first) = told.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(columns: &[(&str, Option<&str>)], whole: bool) -> ColumnValues {
        let columns = columns.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)));
        ColumnValues { columns: columns.collect(), whole }
    }

    #[test]
    fn values_are_told_as_postgresql_tells_them() {
        let values = Values {
            key: Some(row(&[("id", Some("1"))], false)),
            local_row: Some(row(&[("id", Some("1")), ("v", None)], true)),
            remote_row: Some(row(&[("id", Some("1")), ("v", Some("x"))], true)),
            replica_identity: None,
        };
        assert_eq!(values.tell(true), "Key (id)=(1); existing local row (1, null); remote row (1, x)");
        let of_row = Values { replica_identity: values.key.clone(), ..values };
        assert_eq!(
            of_row.tell(false),
            "Existing local row (1, null); remote row (1, x); replica identity (id)=(1)"
        );
        let full = Values { replica_identity: of_row.local_row.clone(), ..Values::default() };
        assert_eq!(full.tell(false), "Replica identity full (1, null)");
    }

    #[test]
    fn a_message_cuts_what_is_long_between_letters() {
        let long = row(&[("v", Some(&"é".repeat(40)))], true);
        assert_eq!(long.to_string(), format!("({}...)", "é".repeat(32)));
        let odd = row(&[("v", Some(&format!("a{}", "é".repeat(40))))], true);
        assert_eq!(odd.to_string(), format!("(a{}...)", "é".repeat(31)));
        assert_eq!(row(&[("v", Some("a\nb"))], true).to_string(), "(a\\nb)");
    }

    #[test]
    fn json_keeps_order_and_null_and_leaves_out_what_is_huge() {
        let huge = "x".repeat(RECORDED_BYTES_MAX + 1);
        let values = row(&[("z", Some("a\"\\\n")), ("b", None), ("h", Some(&huge))], false);
        let json = values.json();
        assert_eq!(json, r#"{"z":"a\"\\\n","b":null}"#);
        let read: ColumnValues = serde_json::from_str(&json).unwrap();
        assert_eq!(read.columns, values.columns[..2]);
        assert_eq!((read.get("b"), read.get("h")), (Some(None), None));
    }
}
