//! Reads the descriptions that `types` needs from a server's catalogs.

use std::collections::HashMap;

use base::Oid;
use testkit::{Cluster, Rows};
use types::{Align, Attribute, Generated, TypeInfo, TypeKind};

/// Every type of a database.
pub(crate) fn types(cluster: &Cluster, db: &str) -> HashMap<Oid, TypeInfo> {
    let columns = by_first(cluster.sql(db, COLUMNS_OF_TYPES).unwrap());
    let labels = by_first(cluster.sql(db, "SELECT enumtypid, oid, enumlabel FROM pg_enum").unwrap());
    let mut types = HashMap::new();
    for row in cluster.sql(db, TYPES).unwrap() {
        let text = |index: usize| row[index].clone().unwrap_or_default();
        let oid = number(&text(0));
        let kind = match text(4).as_str() {
            "a" => TypeKind::Array { element: Oid(number(&text(5))) },
            "b" => TypeKind::Base,
            "c" => TypeKind::Composite {
                attributes: columns.get(&oid).into_iter().flatten().map(|row| attribute(row)).collect(),
            },
            "d" => TypeKind::Domain { base: Oid(number(&text(6))) },
            "e" => {
                let label = |row: &Vec<String>| (Oid(number(&row[0])), row[1].clone());
                TypeKind::Enum { labels: labels.get(&oid).into_iter().flatten().map(label).collect() }
            }
            "r" => TypeKind::Range { subtype: Oid(number(&text(7))) },
            "m" => TypeKind::Multirange { range: Oid(number(&text(8))) },
            "p" => TypeKind::Pseudo,
            other => panic!("typtype {other}"),
        };
        let info = TypeInfo {
            oid: Oid(oid),
            name: text(1),
            len: text(2).parse().unwrap(),
            align: Align::from_letter(text(3).as_bytes()[0]).unwrap(),
            delimiter: text(9).as_bytes()[0],
            kind,
        };
        types.insert(Oid(oid), info);
    }
    types
}

const TYPES: &str = "SELECT t.oid, format_type(t.oid, NULL), typlen, typalign, \
       CASE WHEN typsubscript = 'array_subscript_handler'::regproc AND typlen = -1 AND typoutput = 'array_out'::regproc \
            THEN 'a' ELSE typtype::text END, typelem, typbasetype, r.rngsubtype, m.rngtypid, typdelim \
  FROM pg_type t LEFT JOIN pg_range r ON r.rngtypid = t.oid LEFT JOIN pg_range m ON m.rngmultitypid = t.oid";

const COLUMNS_OF_TYPES: &str = "SELECT t.oid, atttypid, attlen, attalign, attisdropped, attgenerated FROM pg_type t \
    JOIN pg_attribute a ON a.attrelid = t.typrelid WHERE attnum > 0 AND typtype = 'c' ORDER BY t.oid, attnum";

/// A column from its type, length, alignment, dropped and generated.
pub(crate) fn attribute(row: &[String]) -> Attribute {
    Attribute {
        type_oid: Oid(number(&row[0])),
        len: row[1].parse().unwrap(),
        align: Align::from_letter(row[2].as_bytes()[0]).unwrap(),
        dropped: row[3] == "t",
        generated: match row[4].as_str() {
            "s" => Generated::Stored,
            "v" => Generated::Virtual,
            _ => Generated::No,
        },
        missing: None,
    }
}

fn number(text: &str) -> u32 {
    text.parse().unwrap()
}

fn by_first(rows: Rows) -> HashMap<u32, Vec<Vec<String>>> {
    let mut groups: HashMap<u32, Vec<Vec<String>>> = HashMap::new();
    for row in rows {
        let mut row = row.into_iter().map(Option::unwrap_or_default);
        let first = number(&row.next().unwrap());
        groups.entry(first).or_default().push(row.collect());
    }
    groups
}
