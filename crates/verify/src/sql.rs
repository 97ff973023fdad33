//! The queries for one table on one end.

use base::{quote_ident, quote_literal};

use crate::range::KeyRange;

/// Rows of a chunk that differs are told apart by this many values of the low
/// bits of their hashes: some hundred rows each in a chunk of usual size.
pub(crate) const BUCKETS: usize = 1024;

/// Characters of a value that are shown; one more is asked for.
const SHOWN_MAX: usize = 200;
/// Characters that are shown of a row without a key.
const ROW_SHOWN_MAX: usize = 1_000;

/// A table on one end.
#[derive(Debug, Clone)]
pub(crate) struct Side {
    /// As SQL names it, with ONLY where its children are tables of their own.
    pub(crate) relation: String,
    /// The compared columns in the source's order: expressions whose text is
    /// equal on both ends when the values are.
    pub(crate) values: Vec<String>,
    /// The key's columns, quoted; none for a table without a key.
    pub(crate) key: Vec<String>,
    /// Which of [`Side::values`] those are.
    pub(crate) key_values: Vec<usize>,
    /// The row filter: rows for which it is not true do not belong to the table.
    pub(crate) filter: Option<String>,
    pub(crate) bytes: Bytes,
}

/// How the bytes of text on both ends compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bytes {
    /// Both databases have one encoding.
    Alike,
    /// They have two: text is hashed as UTF-8.
    Converted,
    /// Both are in SQL_ASCII, and text may be anything: it is asked for with
    /// octal escapes, which literals `E'...'` understand.
    Unknown,
}

impl Side {
    /// All values of a row as one text.
    fn row_text(&self) -> String {
        format!("ROW({})::pg_catalog.text", self.values.join(", "))
    }

    /// A 64-bit hash of an expression's text. The collation says that equal
    /// means equal bytes.
    fn hash(&self, text: &str) -> String {
        match self.bytes {
            Bytes::Alike | Bytes::Unknown => {
                format!("pg_catalog.hashtextextended({text} COLLATE \"C\", 0)")
            }
            // There is no hash of bytes below 18.
            Bytes::Converted => format!(
                "pg_catalog.hashtextextended(pg_catalog.encode(pg_catalog.convert_to({text}, 'UTF8'), 'hex') \
                 COLLATE \"C\", 0)"
            ),
        }
    }

    /// An expression as it can be sent to us: itself, or `text` escaped.
    fn sent(&self, expression: &str, text: &str) -> String {
        match self.bytes {
            Bytes::Alike | Bytes::Converted => expression.to_owned(),
            Bytes::Unknown => {
                format!("pg_catalog.encode(pg_catalog.convert_to({text}, 'SQL_ASCII'), 'escape')")
            }
        }
    }

    /// A value of the key as it can be sent to us. A key has no NULL, which
    /// concat() would hide; see [`Side::values_of`].
    fn sent_key(&self, value: &str) -> String {
        self.sent(value, &format!("pg_catalog.concat({value})"))
    }

    /// The literal of what [`Side::sent_key`] gave.
    fn literal(&self, value: &str) -> String {
        match self.bytes {
            Bytes::Alike | Bytes::Converted => quote_literal(value),
            Bytes::Unknown => format!("E'{}'", value.replace('\'', "''")),
        }
    }

    /// ` WHERE ...`, or nothing.
    fn conditions(&self, range: &KeyRange) -> String {
        let row = |names: &[String]| match names {
            [one] => one.clone(),
            several => format!("({})", several.join(", ")),
        };
        // Literals take the type of the column they are compared with.
        let bound = |operator: &str, values: &Vec<String>| {
            let literals: Vec<String> = values.iter().map(|value| self.literal(value)).collect();
            format!("{} {operator} {}", row(&self.key[..values.len()]), row(&literals))
        };
        let mut conditions = Vec::new();
        conditions.extend(range.after.as_ref().map(|values| bound(">", values)));
        conditions.extend(range.through.as_ref().map(|values| bound("<=", values)));
        conditions.extend(self.filter.as_ref().map(|filter| format!("({filter})")));
        if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) }
    }

    /// Count and sum of a chunk: one row.
    pub(crate) fn digest(&self, range: &KeyRange) -> String {
        let (hash, conditions) = (self.hash(&self.row_text()), self.conditions(range));
        format!(
            "SELECT pg_catalog.count(*), pg_catalog.sum({hash})::pg_catalog.text FROM {}{conditions}",
            self.relation
        )
    }

    /// Count and sum of each bucket of a chunk. OFFSET keeps the hash from
    /// being computed for each place where it is used.
    pub(crate) fn buckets(&self, range: &KeyRange) -> String {
        let (hash, conditions) = (self.hash(&self.row_text()), self.conditions(range));
        format!(
            "SELECT h & {mask}, pg_catalog.count(*), pg_catalog.sum(h)::pg_catalog.text \
             FROM (SELECT {hash} AS h FROM {relation}{conditions} OFFSET 0) AS s GROUP BY 1",
            mask = BUCKETS - 1,
            relation = self.relation
        )
    }

    /// Hash and name of each row in `buckets` of a chunk, in order of hashes;
    /// without `buckets` in all of them.
    pub(crate) fn named_rows(&self, range: &KeyRange, buckets: Option<&[usize]>) -> String {
        let text = self.row_text();
        let (hash, conditions) = (self.hash(&text), self.conditions(range));
        let names = match self.key_values.as_slice() {
            [] => {
                let text = format!("pg_catalog.left({text}, {ROW_SHOWN_MAX})");
                format!("{} AS k0", self.sent(&text, &text))
            }
            key => {
                let sent = |value: &usize| self.sent_key(&self.values[*value]);
                let named = key.iter().map(sent).enumerate().map(|(at, sent)| format!("{sent} AS k{at}"));
                named.collect::<Vec<_>>().join(", ")
            }
        };
        let wanted = buckets.map_or_else(String::new, |buckets| {
            let list: Vec<String> = buckets.iter().map(ToString::to_string).collect();
            format!(" WHERE h & {} IN ({})", BUCKETS - 1, list.join(", "))
        });
        format!(
            "SELECT * FROM (SELECT {hash} AS h, {names} FROM {}{conditions} OFFSET 0) AS s{wanted} ORDER BY h",
            self.relation
        )
    }

    /// The rows with these keys: key, then for each column a hash, NULL for
    /// NULL, and the value, cut off. Whether the filter holds is part of the
    /// source's rows only: a row of the target that has left it differs by a
    /// value.
    pub(crate) fn values_of(&self, keys: &[Vec<String>], filtered: bool) -> String {
        let mut list: Vec<String> =
            self.key_values.iter().map(|value| self.sent_key(&self.values[*value])).collect();
        for value in &self.values {
            // concat() is the type's output function, a cast to text is not:
            // that of char(n) cuts off spaces. Compared with the literal NULL
            // no operator is needed.
            let text = format!("pg_catalog.concat({value})");
            let present = format!("CASE WHEN ({value}) IS DISTINCT FROM NULL THEN");
            list.push(format!("{present} {} END", self.hash(&text)));
            let beginning = format!("pg_catalog.left({text}, {})", SHOWN_MAX + 1);
            list.push(format!("{present} {} END", self.sent(&beginning, &beginning)));
        }
        let rows: Vec<String> = keys
            .iter()
            .map(|key| {
                format!("({})", key.iter().map(|value| self.literal(value)).collect::<Vec<_>>().join(", "))
            })
            .collect();
        let filter = self.filter.as_ref().filter(|_| filtered);
        let filter = filter.map_or_else(String::new, |filter| format!(" AND ({filter})"));
        format!(
            "SELECT {} FROM {} WHERE ({}) IN ({}){filter}",
            list.join(", "),
            self.relation,
            self.key.join(", "),
            rows.join(", ")
        )
    }

    /// Values of the first `columns` of the key at about even distances, from
    /// a sample of the table's pages.
    pub(crate) fn bounds(&self, columns: usize, chunks: u64, percent: f64) -> String {
        let key = self.key[..columns].join(", ");
        let named: Vec<String> =
            self.key[..columns].iter().enumerate().map(|(at, name)| format!("{name} AS k{at}")).collect();
        let names: Vec<String> = (0..columns).map(|at| self.sent_key(&format!("k{at}"))).collect();
        format!(
            "SELECT {} FROM (SELECT {}, pg_catalog.row_number() OVER (ORDER BY {key}) AS n, \
             pg_catalog.count(*) OVER () AS c FROM {} TABLESAMPLE SYSTEM ({percent:.6})) AS s \
             WHERE n % GREATEST(c / {chunks}, 1) = 0 AND n < c ORDER BY n",
            names.join(", "),
            named.join(", "),
            self.relation
        )
    }
}

/// A value as it is shown: cut off with a sign of it.
pub(crate) fn shown(value: Option<&str>) -> Option<String> {
    let value = value?;
    match value.char_indices().nth(SHOWN_MAX) {
        None => Some(value.to_owned()),
        Some((end, _)) => Some(format!("{}...", &value[..end])),
    }
}

/// A column's name, quoted.
pub(crate) fn column(name: &str) -> String {
    quote_ident(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side() -> Side {
        Side {
            relation: "ONLY \"s\".\"t\"".to_owned(),
            values: vec!["\"a\"".to_owned(), "\"b\"".to_owned()],
            key: vec!["\"a\"".to_owned(), "\"b\"".to_owned()],
            key_values: vec![0, 1],
            filter: Some("x > 1 OR y".to_owned()),
            bytes: Bytes::Alike,
        }
    }

    #[test]
    fn ranges_and_filters_are_conditions_of_the_key() {
        let range =
            KeyRange { after: Some(vec!["1".into(), "it's".into()]), through: Some(vec!["2".into()]) };
        let sql = side().digest(&range);
        let condition = "WHERE (\"a\", \"b\") > ('1', 'it''s') AND \"a\" <= '2' AND (x > 1 OR y)";
        assert!(sql.ends_with(condition), "{sql}");
    }

    #[test]
    fn bytes_of_no_encoding_are_escaped_on_the_way() {
        let side = Side { bytes: Bytes::Unknown, ..side() };
        let range = KeyRange { after: Some(vec![r"\377it's\\".into()]), through: None };
        let sql = side.digest(&range);
        assert!(sql.ends_with(r#"WHERE "a" > E'\377it''s\\' AND (x > 1 OR y)"#), "{sql}");
        let sent = r#"pg_catalog.encode(pg_catalog.convert_to(pg_catalog.concat("a"), 'SQL_ASCII'), 'escape') AS k0"#;
        assert!(side.named_rows(&KeyRange::default(), None).contains(sent));
    }

    #[test]
    fn values_are_cut_at_characters() {
        assert_eq!(shown(Some("ä")), Some("ä".to_owned()));
        let long = "ä".repeat(SHOWN_MAX + 1);
        assert_eq!(shown(Some(&long)), Some("ä".repeat(SHOWN_MAX) + "..."));
        assert_eq!(shown(None), None);
    }
}
