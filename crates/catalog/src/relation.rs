//! A relation as a transaction sees it.

use base::Oid;

use crate::error::{Error, Result};
use crate::missing::Missing;
use crate::rows::{Attribute, Class, Index, Is};
use crate::typing::unknown_align;
use crate::view::View;

/// A relation, with everything that decoding its rows needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation {
    /// `oid`.
    pub oid: Oid,
    /// The name of its schema.
    pub schema: String,
    /// `relname`.
    pub name: String,
    /// `relkind`.
    pub kind: u8,
    /// `relpersistence`.
    pub persistence: u8,
    /// `relispartition`.
    pub is_partition: bool,
    /// `relreplident`, with the index that it stands for.
    pub identity: Identity,
    /// `reltoastrelid`; 0 for none.
    pub toast: Oid,
    /// All columns, also dropped ones. Column n is at n - 1.
    pub columns: Vec<Column>,
}

/// The replica identity: which part of the old row is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// Nothing, by choice or because there is no such index.
    Nothing {
        /// The letter in `relreplident`.
        letter: u8,
    },
    /// The columns of this index.
    Index {
        /// The letter in `relreplident`.
        letter: u8,
        /// The index.
        index: Oid,
    },
    /// The whole row.
    Full,
}

impl Identity {
    /// `relreplident`.
    #[must_use]
    pub fn letter(self) -> u8 {
        match self {
            Identity::Full => b'f',
            Identity::Nothing { letter } | Identity::Index { letter, .. } => letter,
        }
    }
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// `attnum`.
    pub number: i16,
    /// `attname`.
    pub name: String,
    /// `atttypmod`.
    pub typmod: i32,
    /// `attnotnull`.
    pub not_null: bool,
    /// Whether it is one of the columns of the replica identity's index.
    pub in_identity: bool,
    /// Type, length and alignment, whether it was dropped or is generated, and its missing value if
    /// the stored form is known.
    pub stored: types::Attribute,
    /// The value in rows that are older than the column.
    pub missing: Option<Missing>,
}

const PARTITIONED: u8 = b'p';

impl<'a> View<'a> {
    /// A relation; `None` if this transaction sees none.
    ///
    /// # Errors
    /// Rows of catalogs contradict one another.
    pub fn relation(&self, oid: Oid) -> Result<Option<Relation>> {
        let Some(row) = self.class(oid) else { return Ok(None) };
        let unfit =
            |what: &str| Error::row(Class::KIND.name(), format!("relation {oid} ({}) {what}", row.name));
        let schema = self.schema(row.namespace).ok_or_else(|| unfit("is in no schema"))?;
        let index = self.identity_index(row);
        let letter = row.identity;
        let identity = match (letter, index) {
            (b'f', _) => Identity::Full,
            (_, Some(index)) => Identity::Index { letter, index: index.index },
            (_, None) => Identity::Nothing { letter },
        };
        let keys = index.map_or(&[][..], Index::keys);
        let rows = self.columns_of(oid);
        let in_order = (1..).zip(&rows).all(|(number, row)| row.number == number);
        if !in_order {
            return Err(unfit("lacks a column"));
        }
        let columns = rows.into_iter().map(|row| self.column(row, keys)).collect::<Result<_>>()?;
        Ok(Some(Relation {
            oid,
            schema: schema.to_owned(),
            name: row.name.clone(),
            kind: row.kind,
            persistence: row.persistence,
            is_partition: row.is_partition,
            identity,
            toast: row.toast,
            columns,
        }))
    }

    fn column(&self, row: &Attribute, keys: &[i16]) -> Result<Column> {
        let mut stored = row.column().ok_or_else(|| unknown_align(row))?;
        let array = row.missing.as_ref().filter(|_| row.has_missing && !row.is_dropped);
        let missing = array.map(|array| self.missing(row, array)).transpose()?;
        stored.missing = missing.as_ref().and_then(|missing| missing.stored.clone());
        Ok(Column {
            number: row.number,
            name: row.name.clone(),
            typmod: row.typmod,
            not_null: row.not_null,
            in_identity: keys.contains(&row.number),
            stored,
            missing,
        })
    }

    /// The index that is the replica identity, by the rules of `RelationGetIndexList`.
    fn identity_index(&self, class: &Class) -> Option<&'a Index> {
        let named = |row: &&Index| match class.identity {
            b'd' => row.is_primary,
            b'i' => row.is_identity && row.is_valid,
            _ => false,
        };
        // From 17 on, a partitioned table's key counts even before all of its partitions have it.
        let may_be_invalid = class.kind == PARTITIONED && self.major() >= 17;
        let is_sound = |row: &&Index| {
            row.is_live
                && row.is_unique
                && row.is_immediate
                && !row.predicate.0
                && (row.is_valid || may_be_invalid)
        };
        self.find::<Index>(0, class.oid).find(|row| named(row) && is_sound(row))
    }
}

impl Index {
    /// The columns of its key, without included ones.
    fn keys(&self) -> &[i16] {
        let count = usize::try_from(self.key_columns).unwrap_or(0);
        self.columns.0.get(..count).unwrap_or(&self.columns.0)
    }
}
