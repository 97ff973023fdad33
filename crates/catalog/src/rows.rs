//! The catalogs that are followed, and the parts of their rows that decoding needs.
//!
//! A catalog's columns are found by name in its own `pg_attribute` rows. Majors differ in the
//! places and the number of columns, and no table here says how. A column that a major does not
//! have is NULL.

use base::Oid;
use types::{Attribute as Column, Value};
use wal::Fields;

use crate::cell::{Bytes, Cell, MissingArray, Numbers, Present, Text};
use crate::field::Field;

macro_rules! catalogs {
    ($($(#[$doc:meta])* $row:ident = $name:literal, $oid:literal, $place:ident, since $since:literal {
        $($field:ident: $form:ty = $column:literal $(since $column_since:literal)?),* $(,)?
    })*) => {
        /// A followed catalog.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) enum Kind { $($(#[$doc])* $row),* }

        /// A row of one of them.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub(crate) enum CatalogRow { $($row($row)),* }

        $(
            $(#[$doc])*
            #[derive(Debug, Clone, PartialEq, Eq)]
            pub(crate) struct $row { $(pub(crate) $field: $form),* }

            impl Is for $row {
                const KIND: Kind = Kind::$row;

                fn of(row: &CatalogRow) -> Option<&$row> {
                    match row {
                        CatalogRow::$row(row) => Some(row),
                        _ => None,
                    }
                }
            }
        )*

        impl Kind {
            pub(crate) const ALL: &[Kind] = &[$(Kind::$row),*];

            pub(crate) fn name(self) -> &'static str {
                match self { $(Kind::$row => $name),* }
            }

            pub(crate) fn oid(self) -> Oid {
                match self { $(Kind::$row => Oid($oid)),* }
            }

            pub(crate) fn place(self) -> Place {
                match self { $(Kind::$row => Place::$place),* }
            }

            /// The first major that has it.
            pub(crate) fn since(self) -> u32 {
                match self { $(Kind::$row => $since),* }
            }

            /// The expressions that SQL selects, one for each column.
            pub(crate) fn select(self, major: u32) -> Vec<String> {
                match self {
                    $(Kind::$row => vec![$({
                        #[allow(unused_mut, unused_assignments, reason = "few columns are younger")]
                        let mut since = 0;
                        $(since = $column_since;)?
                        if major >= since { <$form as Cell>::sql($column) } else { "NULL".to_owned() }
                    }),*]),*
                }
            }

            fn columns(self) -> &'static [&'static str] {
                match self { $(Kind::$row => &[$($column),*]),* }
            }

            /// A row from the results of SQL.
            pub(crate) fn row_of_sql(self, mut texts: impl Iterator<Item = Option<String>>) -> Option<CatalogRow> {
                match self {
                    $(Kind::$row => Some(CatalogRow::$row($row {
                        $($field: Cell::from_sql(texts.next()?.as_deref())?),*
                    }))),*
                }
            }

            fn row_of_disk<'a>(self, mut values: impl Iterator<Item = Value<'a>>) -> Option<CatalogRow> {
                match self {
                    $(Kind::$row => Some(CatalogRow::$row($row { $($field: Cell::from_disk(&values.next()?)?),* }))),*
                }
            }

            pub(crate) fn read_row(self, fields: &mut Fields<'_>) -> Option<CatalogRow> {
                match self {
                    $(Kind::$row => Some(CatalogRow::$row($row { $($field: Field::read(fields)?),* }))),*
                }
            }
        }

        impl CatalogRow {
            pub(crate) fn write(&self, out: &mut Vec<u8>) {
                match self { $(CatalogRow::$row(row) => { $(row.$field.write(out);)* }),* }
            }
        }
    };
}

/// The databases that have the files of a catalog, and may read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Each database has its own.
    Database,
    /// As `Database`, and ordinary roles may not read it.
    Hidden,
    /// All databases share it.
    Shared,
}

/// A kind of row.
pub(crate) trait Is: Sized {
    const KIND: Kind;
    fn of(row: &CatalogRow) -> Option<&Self>;
}

catalogs! {
    /// Relations.
    Class = "pg_class", 1259, Database, since 0 {
        oid: Oid = "oid",
        name: String = "relname",
        namespace: Oid = "relnamespace",
        row_type: Oid = "reltype",
        file: u32 = "relfilenode",
        tablespace: Oid = "reltablespace",
        toast: Oid = "reltoastrelid",
        persistence: u8 = "relpersistence",
        kind: u8 = "relkind",
        identity: u8 = "relreplident",
        is_partition: bool = "relispartition",
        rewrite: Oid = "relrewrite",
    }
    /// Columns.
    Attribute = "pg_attribute", 1249, Database, since 0 {
        relation: Oid = "attrelid",
        name: String = "attname",
        type_oid: Oid = "atttypid",
        len: i16 = "attlen",
        number: i16 = "attnum",
        typmod: i32 = "atttypmod",
        align: u8 = "attalign",
        not_null: bool = "attnotnull",
        has_missing: bool = "atthasmissing",
        generated: u8 = "attgenerated",
        is_dropped: bool = "attisdropped",
        missing: Option<MissingArray> = "attmissingval",
    }
    /// Types.
    Type = "pg_type", 1247, Database, since 0 {
        oid: Oid = "oid",
        name: String = "typname",
        namespace: Oid = "typnamespace",
        len: i16 = "typlen",
        kind: u8 = "typtype",
        delimiter: u8 = "typdelim",
        relation: Oid = "typrelid",
        subscript: Oid = "typsubscript::oid",
        element: Oid = "typelem",
        output: Oid = "typoutput::oid",
        align: u8 = "typalign",
        base: Oid = "typbasetype",
    }
    /// Schemas.
    Namespace = "pg_namespace", 2615, Database, since 0 {
        oid: Oid = "oid",
        name: String = "nspname",
    }
    /// Indexes, for the replica identity.
    Index = "pg_index", 2610, Database, since 0 {
        index: Oid = "indexrelid",
        relation: Oid = "indrelid",
        key_columns: i16 = "indnkeyatts",
        is_unique: bool = "indisunique",
        is_primary: bool = "indisprimary",
        is_immediate: bool = "indimmediate",
        is_valid: bool = "indisvalid",
        is_live: bool = "indislive",
        is_identity: bool = "indisreplident",
        columns: Numbers = "indkey",
        predicate: Present = "indpred",
    }
    /// Partitions and their parents.
    Inherits = "pg_inherits", 2611, Database, since 0 {
        child: Oid = "inhrelid",
        parent: Oid = "inhparent",
        is_detached: bool = "inhdetachpending",
    }
    /// Labels of enums.
    Enum = "pg_enum", 3501, Database, since 0 {
        oid: Oid = "oid",
        type_oid: Oid = "enumtypid",
        label: String = "enumlabel",
    }
    /// Ranges and their multiranges.
    Range = "pg_range", 3541, Database, since 0 {
        range: Oid = "rngtypid",
        subtype: Oid = "rngsubtype",
        multirange: Oid = "rngmultitypid",
    }
    /// Publications.
    Publication = "pg_publication", 6104, Database, since 0 {
        oid: Oid = "oid",
        name: String = "pubname",
        all_tables: bool = "puballtables",
        insert: bool = "pubinsert",
        update: bool = "pubupdate",
        delete: bool = "pubdelete",
        truncate: bool = "pubtruncate",
        via_root: bool = "pubviaroot",
        generated: Option<u8> = "pubgencols" since 18,
    }
    /// Tables of publications, with their filters and columns.
    PublicationTable = "pg_publication_rel", 6106, Database, since 0 {
        oid: Oid = "oid",
        publication: Oid = "prpubid",
        relation: Oid = "prrelid",
        filter: Option<Text> = "prqual" since 15,
        columns: Option<Numbers> = "prattrs" since 15,
    }
    /// Schemas of publications.
    PublicationSchema = "pg_publication_namespace", 6237, Database, since 15 {
        oid: Oid = "oid",
        publication: Oid = "pnpubid",
        namespace: Oid = "pnnspid",
    }
    /// The parts of `pg_publication_rel` that are out of line: long filters.
    FilterChunk = "pg_toast_6106", 6228, Hidden, since 15 {
        value: Oid = "chunk_id",
        sequence: i32 = "chunk_seq",
        data: Bytes = "chunk_data",
    }
    /// Databases.
    Database = "pg_database", 1262, Shared, since 0 {
        oid: Oid = "oid",
        name: String = "datname",
        tablespace: Oid = "dattablespace",
    }
    /// Replication origins.
    Origin = "pg_replication_origin", 6000, Shared, since 0 {
        id: Oid = "roident",
        name: Text = "roname",
    }
}

/// The number of keys by which rows are found.
pub(crate) const KEYS: usize = 3;

impl Kind {
    pub(crate) fn of_oid(oid: Oid) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|kind| kind.oid() == oid)
    }

    /// The catalogs of a server that are in one of these places.
    pub(crate) fn of_place(major: u32, places: &'static [Place]) -> impl Iterator<Item = Kind> {
        let is_there = move |kind: &Kind| kind.since() <= major && places.contains(&kind.place());
        Kind::ALL.iter().copied().filter(is_there)
    }
}

impl CatalogRow {
    /// The keys by which the row is found. 0 means none.
    pub(crate) fn keys(&self) -> [u32; KEYS] {
        match self {
            CatalogRow::Class(row) => [row.oid.0, row.file, row.toast.0],
            CatalogRow::Attribute(row) => [row.relation.0, 0, 0],
            CatalogRow::Type(row) => [row.oid.0, 0, 0],
            CatalogRow::Namespace(row) => [row.oid.0, 0, 0],
            CatalogRow::Index(row) => [row.relation.0, row.index.0, 0],
            CatalogRow::Inherits(row) => [row.child.0, row.parent.0, 0],
            CatalogRow::Enum(row) => [row.type_oid.0, 0, 0],
            CatalogRow::Range(row) => [row.range.0, row.multirange.0, 0],
            CatalogRow::Publication(row) => [row.oid.0, 0, 0],
            CatalogRow::PublicationTable(row) => [row.relation.0, row.publication.0, 0],
            CatalogRow::PublicationSchema(row) => [row.namespace.0, row.publication.0, 0],
            CatalogRow::FilterChunk(row) => [row.value.0, 0, 0],
            CatalogRow::Database(row) => [row.oid.0, 0, 0],
            CatalogRow::Origin(row) => [row.id.0, 0, 0],
        }
    }
}

/// How the rows of a catalog lie on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    kind: Kind,
    columns: Vec<Column>,
    /// The place of each column that is read; `None` if this major does not have it.
    picked: Vec<Option<usize>>,
}

impl Shape {
    /// Makes a shape from the catalog's own columns in the order of their numbers.
    pub(crate) fn new(kind: Kind, attributes: &[&Attribute]) -> Option<Shape> {
        let columns = attributes.iter().map(|attribute| attribute.column()).collect::<Option<_>>()?;
        // Only SQL needs the cast.
        let name = |column: &'static str| column.split("::").next().unwrap_or(column);
        let place =
            |column: &&'static str| attributes.iter().position(|attribute| attribute.name == name(column));
        let picked = kind.columns().iter().map(place).collect();
        Some(Shape { kind, columns, picked })
    }

    /// The row in a tuple; `None` if it cannot be a row of this catalog.
    pub(crate) fn row(&self, tuple: &decode::RawTuple<'_>) -> Option<CatalogRow> {
        let tuple = types::HeapTuple::new(tuple.infomask2, tuple.infomask, tuple.hoff, tuple.bytes).ok()?;
        let mut values = Vec::new();
        tuple.deform(&self.columns, &mut values).ok()?;
        let value = |place: &Option<usize>| place.map_or(Value::Null, |place| values[place]);
        self.kind.row_of_disk(self.picked.iter().map(value))
    }
}

impl Attribute {
    /// The column for taking tuples apart, without its missing value.
    pub(crate) fn column(&self) -> Option<Column> {
        use types::{Align, Generated};
        Some(Column {
            type_oid: self.type_oid,
            len: self.len,
            align: Align::from_letter(self.align)?,
            dropped: self.is_dropped,
            generated: match self.generated {
                b's' => Generated::Stored,
                b'v' => Generated::Virtual,
                _ => Generated::No,
            },
            missing: None,
        })
    }
}
