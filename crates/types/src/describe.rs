//! Descriptions of types, as rendering needs them: the parts of `pg_type`, `pg_enum`, `pg_range`
//! and of a composite type's columns that the output depends on. The code that reads catalogs fills
//! them in.

use std::collections::HashMap;
use std::hash::BuildHasher;

use base::Oid;

use crate::tuple::{Align, Attribute};

/// One row of `pg_type`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeInfo {
    /// `oid`.
    pub oid: Oid,
    /// `typname`, or a longer name, for messages.
    pub name: String,
    /// `typlen`.
    pub len: i16,
    /// `typalign`.
    pub align: Align,
    /// `typdelim`: the delimiter between the elements of an array of this type.
    pub delimiter: u8,
    /// The kind of type, with its parts.
    pub kind: TypeKind,
}

/// `typtype`, with the parts of the type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TypeKind {
    /// A base type. Built-in ones are known by their OIDs; no others can be rendered.
    Base,
    /// An array: a base type of variable length whose `typsubscript` is `array_subscript_handler`.
    Array {
        /// `typelem`.
        element: Oid,
    },
    /// An enum.
    Enum {
        /// `oid` and `enumlabel` of its rows in `pg_enum`.
        labels: Vec<(Oid, String)>,
    },
    /// A domain, stored like its base type.
    Domain {
        /// `typbasetype`.
        base: Oid,
    },
    /// A composite type, or the row type of a table.
    Composite {
        /// The columns of `typrelid`, including dropped ones.
        attributes: Vec<Attribute>,
    },
    /// A range.
    Range {
        /// `rngsubtype`.
        subtype: Oid,
    },
    /// A multirange.
    Multirange {
        /// `rngtypid`.
        range: Oid,
    },
    /// A pseudo-type, which no column has.
    Pseudo,
}

/// Where descriptions come from.
pub trait Types {
    /// The type with that OID.
    fn get(&self, oid: Oid) -> Option<&TypeInfo>;
}

impl<S: BuildHasher> Types for HashMap<Oid, TypeInfo, S> {
    fn get(&self, oid: Oid) -> Option<&TypeInfo> {
        HashMap::get(self, &oid)
    }
}
