//! Descriptions of types for `types`.

use std::collections::HashMap;

use base::Oid;
use types::{Align, TypeInfo, TypeKind};

use crate::error::{Error, Result};
use crate::rows::{Attribute, Enum, Is, Range, Type};
use crate::view::View;

/// `array_subscript_handler` and `array_out`, which make a type of variable length an array.
const ARRAY_SUBSCRIPT: Oid = Oid(6179);
const ARRAY_OUT: Oid = Oid(751);

impl View<'_> {
    /// These types and all types that they are made of. A type that is not in the catalogs, such as
    /// a dropped column's, is left out.
    ///
    /// # Errors
    /// A row of `pg_type` is invalid.
    pub fn types(&self, oids: impl IntoIterator<Item = Oid>) -> Result<HashMap<Oid, TypeInfo>> {
        let mut wanted: Vec<Oid> = oids.into_iter().collect();
        let mut types = HashMap::new();
        while let Some(oid) = wanted.pop() {
            if oid == Oid(0) || types.contains_key(&oid) {
                continue;
            }
            let Some(row) = self.find::<Type>(0, oid).next() else { continue };
            let info = self.describe(row)?;
            match &info.kind {
                TypeKind::Array { element } => wanted.push(*element),
                TypeKind::Domain { base } => wanted.push(*base),
                TypeKind::Range { subtype } => wanted.push(*subtype),
                TypeKind::Multirange { range } => wanted.push(*range),
                TypeKind::Composite { attributes } => {
                    wanted.extend(attributes.iter().map(|attribute| attribute.type_oid));
                }
                TypeKind::Base | TypeKind::Enum { .. } | TypeKind::Pseudo => {}
            }
            types.insert(oid, info);
        }
        Ok(types)
    }

    fn describe(&self, row: &Type) -> Result<TypeInfo> {
        let unfit =
            |what: &str| Error::row(Type::KIND.name(), format!("type {} ({}) {what}", row.oid, row.name));
        let is_array = row.subscript == ARRAY_SUBSCRIPT && row.output == ARRAY_OUT && row.len == -1;
        let kind = match row.kind {
            b'b' if is_array => TypeKind::Array { element: row.element },
            b'b' => TypeKind::Base,
            b'c' => TypeKind::Composite { attributes: self.attributes(row.relation)? },
            b'd' => TypeKind::Domain { base: row.base },
            b'e' => {
                let labels = self.find::<Enum>(0, row.oid).map(|label| (label.oid, label.label.clone()));
                let mut labels: Vec<_> = labels.collect();
                labels.sort_unstable();
                TypeKind::Enum { labels }
            }
            b'r' => {
                let range = self.find::<Range>(0, row.oid).next().ok_or_else(|| unfit("has no range"))?;
                TypeKind::Range { subtype: range.subtype }
            }
            b'm' => {
                let range = self.find::<Range>(1, row.oid).next().ok_or_else(|| unfit("has no range"))?;
                TypeKind::Multirange { range: range.range }
            }
            b'p' => TypeKind::Pseudo,
            _ => return Err(unfit("is of an unknown kind")),
        };
        let align = Align::from_letter(row.align).ok_or_else(|| unfit("has an unknown alignment"))?;
        let name = row.name.clone();
        Ok(TypeInfo { oid: row.oid, name, len: row.len, align, delimiter: row.delimiter, kind })
    }

    /// The columns of a composite type.
    fn attributes(&self, relation: Oid) -> Result<Vec<types::Attribute>> {
        let column = |row: &&Attribute| row.column().ok_or_else(|| unknown_align(row));
        self.columns_of(relation).iter().map(column).collect()
    }

    /// The rows of a relation's columns, in their order.
    pub(crate) fn columns_of(&self, relation: Oid) -> Vec<&Attribute> {
        let mut rows: Vec<&Attribute> =
            self.find::<Attribute>(0, relation).filter(|row| row.number > 0).collect();
        rows.sort_unstable_by_key(|row| row.number);
        rows
    }
}

pub(crate) fn unknown_align(row: &Attribute) -> Error {
    let what = format!("column {} of relation {} has an unknown alignment", row.number, row.relation);
    Error::row(Attribute::KIND.name(), what)
}
