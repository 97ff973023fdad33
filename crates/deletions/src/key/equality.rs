//! Which values of a type PostgreSQL says are equal, as far as that is known without the server.
//!
//! | types | equal are |
//! | --- | --- |
//! | integers, oid, bool, uuid, bytea, date and times, text, enum and their like | equal bytes |
//! | numeric | equal numbers, whatever scale they are written with |
//! | float4, float8 | equal numbers; 0 and -0; every NaN |
//! | char(n) | equal texts without the blanks at their ends |
//! | interval | equal spans, a month being 30 days and a day 24 hours |
//! | jsonb | equal documents, with numbers as numeric has them |
//! | inet, cidr | equal addresses and lengths of the prefix |
//! | arrays | equal bounds and elements |
//!
//! A text under a nondeterministic collation, and a type of an extension such as citext, are
//! refused: only the server knows their equality. Ranges and composite types are refused because
//! nobody asked for them yet; types such as json and point have no equality.

use std::fmt;

use base::Oid;

/// A column's type as the catalogs describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnType<'a> {
    /// The type beneath all domains.
    pub oid: Oid,
    /// Its name, for messages.
    pub name: &'a str,
    /// What it is made of.
    pub shape: Shape<'a>,
    /// The column's collation is deterministic, or the type has none.
    pub is_deterministic: bool,
}

/// What a type is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape<'a> {
    /// A base type.
    Base,
    /// An enum.
    Enum,
    /// An array of elements of this type.
    Array(Box<ColumnType<'a>>),
    /// A range, a composite type or anything else.
    Other,
}

/// How values of a type are compared; which types, see the module.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are PostgreSQL's names")]
pub enum Equality {
    Bool,
    /// int2, int4 and int8, by their length in bytes.
    Integer(u8),
    /// oid, xid and cid, and xid8, by their length in bytes.
    Unsigned(u8),
    Float4,
    Float8,
    Numeric,
    /// text, varchar, name and enums.
    Text,
    /// `"char"`.
    Char,
    /// char(n).
    Blanked,
    Bytea,
    Uuid,
    Date,
    Time,
    TimeTz,
    Timestamp,
    TimestampTz,
    Interval,
    /// inet and cidr.
    Network,
    /// macaddr and macaddr8.
    MacAddress,
    /// bit and varbit.
    Bits,
    Lsn,
    Jsonb,
    Array(Box<Equality>),
}

/// A type whose equality is not known here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownEquality {
    /// The type's name.
    pub type_name: String,
    /// Why it is refused.
    pub reason: &'static str,
}

impl fmt::Display for UnknownEquality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "deletions cannot be remembered by a value of type {}: {}", self.type_name, self.reason)
    }
}

impl std::error::Error for UnknownEquality {}

const NONDETERMINISTIC: &str = "its collation is not deterministic, so only the server knows equal values";
const EXTENSION: &str = "it is a base type of an extension, whose equality only the server knows";
const COMPOUND: &str = "ranges, composite types and the like are not compared here";
const NO_EQUALITY: &str = "the type has no equality";
const LOCALE: &str = "its text depends on lc_monetary";
const NAMES: &str = "its text is a name from the catalogs";
const NOT_COMPARED: &str = "values of this type are not compared here";

/// Built-in types that are refused, by their OIDs in `pg_type.dat`.
const REFUSED: [(&[u32], &str); 4] = [
    // json, xml, the geometric types, and jsonpath.
    (&[114, 142, 600, 601, 602, 603, 604, 628, 718, 4072], NO_EQUALITY),
    (&[790], LOCALE),
    // The reg types.
    (&[24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191], NAMES),
    // tid, vectors, snapshots, text search, refcursor, ACLs, and what only catalogs hold.
    (
        &[22, 27, 30, 194, 1033, 1790, 2970, 3361, 3402, 3614, 3615, 3642, 4600, 4601, 5017, 5038],
        NOT_COMPARED,
    ),
];

impl Equality {
    /// How values of `column` are compared.
    ///
    /// # Errors
    /// Only the server knows.
    pub fn of(column: &ColumnType<'_>) -> Result<Equality, UnknownEquality> {
        let refused = |reason| UnknownEquality { type_name: column.name.to_owned(), reason };
        match &column.shape {
            Shape::Enum => Ok(Equality::Text),
            Shape::Array(element) => Equality::of(element).map(|element| Equality::Array(Box::new(element))),
            Shape::Other => Err(refused(COMPOUND)),
            Shape::Base => match base(column.oid) {
                Ok(Equality::Text | Equality::Blanked) if !column.is_deterministic => {
                    Err(refused(NONDETERMINISTIC))
                }
                known => known.map_err(refused),
            },
        }
    }
}

/// A built-in base type by its OID in `pg_type.dat`, which is the same on every server.
fn base(oid: Oid) -> Result<Equality, &'static str> {
    Ok(match oid.0 {
        16 => Equality::Bool,
        17 => Equality::Bytea,
        18 => Equality::Char,
        19 | 25 | 1043 => Equality::Text,
        20 => Equality::Integer(8),
        21 => Equality::Integer(2),
        23 => Equality::Integer(4),
        26 | 28 | 29 => Equality::Unsigned(4),
        650 | 869 => Equality::Network,
        700 => Equality::Float4,
        701 => Equality::Float8,
        774 | 829 => Equality::MacAddress,
        1042 => Equality::Blanked,
        1082 => Equality::Date,
        1083 => Equality::Time,
        1114 => Equality::Timestamp,
        1184 => Equality::TimestampTz,
        1186 => Equality::Interval,
        1266 => Equality::TimeTz,
        1560 | 1562 => Equality::Bits,
        1700 => Equality::Numeric,
        2950 => Equality::Uuid,
        3220 => Equality::Lsn,
        3802 => Equality::Jsonb,
        5069 => Equality::Unsigned(8),
        other => {
            let known = REFUSED.iter().find(|(oids, _)| oids.contains(&other));
            return Err(known.map_or(EXTENSION, |(_, reason)| reason));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(oid: u32, name: &'static str) -> ColumnType<'static> {
        ColumnType { oid: Oid(oid), name, shape: Shape::Base, is_deterministic: true }
    }

    #[test]
    fn a_type_is_refused_by_its_name() {
        let citext = Equality::of(&column(16_500, "citext")).unwrap_err();
        assert!(citext.to_string().contains("of type citext"), "{citext}");
        let text = ColumnType { is_deterministic: false, ..column(25, "text") };
        assert_eq!(Equality::of(&text).unwrap_err().reason, NONDETERMINISTIC);
        let texts = ColumnType { shape: Shape::Array(Box::new(text)), ..column(1009, "text[]") };
        assert_eq!(Equality::of(&texts).unwrap_err().type_name, "text");
        assert_eq!(Equality::of(&column(114, "json")).unwrap_err().reason, NO_EQUALITY);
        let range = ColumnType { shape: Shape::Other, ..column(3904, "int4range") };
        assert_eq!(Equality::of(&range).unwrap_err().reason, COMPOUND);
    }

    #[test]
    fn an_array_is_compared_as_its_elements_are() {
        let element = Box::new(column(1700, "numeric"));
        let array = ColumnType { shape: Shape::Array(element), ..column(1231, "numeric[]") };
        assert_eq!(Equality::of(&array).unwrap(), Equality::Array(Box::new(Equality::Numeric)));
    }
}
