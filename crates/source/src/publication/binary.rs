//! Whether values may travel in binary.
//!
//! A binary value is the output of its type's send function. It means the same on the other server
//! only if it contains no OID of an object that a user made. Arrays and composites contain their
//! elements' type OIDs, and the `reg...` types are OIDs. A range contains none (flags and bounds,
//! `range_send`), and neither does a multirange. pgoutput's `binary` holds for the whole stream;
//! COPY can decide for each table.
//!
//! | type                                              | stream | COPY   |
//! |---------------------------------------------------|--------|--------|
//! | built-in base type, range, multirange             | binary | binary |
//! | array of one of these                             | binary | binary |
//! | `reg...`, what its own receive function refuses, what has no send function; arrays of these | text | text |
//! | domain over what is binary, enum                  | text   | binary |
//! | row type, those of catalogs included; arrays of row types, enums and domains; an extension's type; a user's range | text | text |
//!
//! A type is built in if its OID is written down in the server's own catalogs
//! ([`Oid::is_built_in`]). Only these OIDs are the same from 14 to 18.

use std::fmt;

use base::{Oid, PgVersion};

use super::{Column, DataType, PublishedTable, TableName, TargetTable};

/// Types whose binary form is the OID of a catalog object, while their text form is its name:
/// `regproc`, `regprocedure`, `regoper`, `regoperator`, `regclass`, `regtype`, `regconfig`,
/// `regdictionary`, `regnamespace`, `regrole`, `regcollation` (`catalog/pg_type.dat`).
const OBJECT_ID_TYPES: [u32; 11] = [24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191];

/// `interval`. 17 gave it infinities. Their binary form is a finite interval to an older server,
/// which refuses their text form.
const INTERVAL: u32 = 1186;
/// `interval[]`.
const INTERVAL_ARRAY: u32 = 1187;

/// Types whose receive function refuses the empty value that their send function wrote. These are
/// `int2vector` and `oidvector` ("invalid oidvector data") and `tsquery` ("malformed tsquery:
/// operand not found").
const ONE_WAY_TYPES: [u32; 3] = [22, 30, 3615];

/// Whether values of this type are OIDs of objects, which may stand for other objects on another
/// server. Arrays of [`OBJECT_ID_TYPES`] are recognized by their element.
fn means_objects(oid: Oid) -> bool {
    OBJECT_ID_TYPES.contains(&oid.0)
}

impl DataType {
    /// Whether a binary value of this type means the same as a value of `target`'s type on another
    /// server. A domain counts as the type below it. An enum is sent as its label.
    #[must_use]
    pub fn travels_in_binary(
        &self,
        target: &DataType,
        source_version: PgVersion,
        target_version: PgVersion,
    ) -> bool {
        let interval = |oid: Oid| matches!(oid.0, INTERVAL | INTERVAL_ARRAY);
        if !self.has_send || !target.has_receive {
            return false;
        }
        if self.base_class == 'e' && target.base_class == 'e' {
            return true;
        }
        if interval(self.base) && source_version.major() >= 17 && target_version.major() < 17 {
            return false;
        }
        let fits = |oid: Oid, class: char| {
            oid.is_built_in()
                // Row types of catalogs have other columns in other versions.
                && matches!(class, 'b' | 'r' | 'm')
                && !means_objects(oid)
                && !ONE_WAY_TYPES.contains(&oid.0)
        };
        let element_fits =
            self.element.is_none_or(|oid| self.element_class.is_some_and(|class| fits(oid, class)));
        self.base == target.base && fits(self.base, self.base_class) && element_fits
    }
}

/// Why the stream cannot use `binary`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BinaryRefusal {
    reason: Reason,
    /// The number of further columns that prevent it.
    others: usize,
}

impl BinaryRefusal {
    /// An example for docs/errors.md.
    #[must_use]
    pub fn example() -> BinaryRefusal {
        let table = TableName { schema: "public".to_owned(), name: "accounts".to_owned() };
        let column = "mood".to_owned();
        Reason::Column { table, column, why: user_defined("public.mood") }.into()
    }

    /// The refusal if the target's role may not make the types that apply arrays; `why` is the
    /// server's message.
    #[must_use]
    pub fn no_holders(why: impl fmt::Display) -> BinaryRefusal {
        Reason::NoHolders(why.to_string()).into()
    }

    /// The first column that prevents binary, with its table.
    #[must_use]
    pub fn column(&self) -> Option<(&TableName, &str)> {
        match &self.reason {
            Reason::Column { table, column, .. } => Some((table, column)),
            Reason::Version { .. } | Reason::NoHolders(_) => None,
        }
    }
}

impl From<Reason> for BinaryRefusal {
    fn from(reason: Reason) -> BinaryRefusal {
        BinaryRefusal { reason, others: 0 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Reason {
    Version { end: &'static str, version: PgVersion },
    Column { table: TableName, column: String, why: String },
    NoHolders(String),
}

impl fmt::Display for BinaryRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Reason::Version { end, version } => {
                write!(f, "the {end} is PostgreSQL {version}, and binary needs 14 or newer on both ends")
            }
            Reason::Column { table, column, why } => {
                write!(f, "column \"{column}\" of table \"{table}\" {why}")?;
                match self.others {
                    0 => Ok(()),
                    1 => f.write_str(" (and 1 more column is in the way)"),
                    others => write!(f, " (and {others} more columns are in the way)"),
                }
            }
            Reason::NoHolders(why) => {
                write!(
                    f,
                    "arrays need types in schema pgsluice, which the target's role may not create ({why})"
                )
            }
        }
    }
}

/// Whether the stream may use pgoutput's `binary` (rule C3), which holds for every column of every
/// table. Each column needs a built-in type whose binary form means the same on the target, and the
/// target's column must have that type. Rows are applied as arrays of each column's type, so that
/// array type must exist. For a column that is an array itself, the applier makes a type that holds
/// it.
///
/// # Errors
/// The first obstacle, with table and column, and the number of further ones; for the log.
pub fn binary_allowed<'a>(
    source_version: PgVersion,
    target_version: PgVersion,
    tables: impl IntoIterator<Item = (&'a PublishedTable, &'a TargetTable)>,
) -> Result<(), BinaryRefusal> {
    for (end, version) in [("source", source_version), ("target", target_version)] {
        if version.major() < 14 {
            return Err(Reason::Version { end, version }.into());
        }
    }
    let mut refusal: Option<BinaryRefusal> = None;
    for (table, target) in tables {
        for column in &table.columns {
            let obstacle = obstacle(column, target.column(&column.name), source_version, target_version);
            match (obstacle, &mut refusal) {
                (None, _) => {}
                (Some(_), Some(first)) => first.others += 1,
                (Some(why), None) => {
                    let (table, column) = (table.name.clone(), column.name.clone());
                    refusal = Some(Reason::Column { table, column, why }.into());
                }
            }
        }
    }
    refusal.map_or(Ok(()), Err)
}

/// Returns the array types of the columns of `tables`, each once. The applier needs holders for
/// them if values come in binary.
#[must_use]
pub fn array_types<'a>(tables: impl IntoIterator<Item = &'a PublishedTable>) -> Vec<Oid> {
    let columns = tables.into_iter().flat_map(|table| &table.columns);
    let arrays = columns.filter(|column| column.data_type.element.is_some());
    let mut types: Vec<Oid> = arrays.map(|column| column.data_type.oid).collect();
    types.sort_unstable();
    types.dedup();
    types
}

fn obstacle(
    column: &Column,
    target: Option<&Column>,
    source_version: PgVersion,
    target_version: PgVersion,
) -> Option<String> {
    let source = &column.data_type;
    let Some(target) = target.map(|column| &column.data_type) else {
        return Some("does not exist on the target".into());
    };
    let why = if !source.oid.is_built_in() {
        user_defined(&source.name)
    } else if source.oid != target.oid {
        format!("is {} on the source and {} on the target", source.name, target.name)
    } else if !source.has_send || !target.has_receive {
        format!("has the type {}, which has no binary form", source.name)
    } else if !source.has_array_type && source.element.is_none() {
        format!("has the type {}, of which there is no array type", source.name)
    } else if !source.travels_in_binary(target, source_version, target_version) {
        format!("has the type {}, whose binary form does not mean the same on the target", source.name)
    } else {
        return None;
    };
    Some(why)
}

fn user_defined(name: &str) -> String {
    format!("has the user-defined type {name}")
}

#[cfg(test)]
mod tests {
    use super::super::{ReplicaIdentity, TableKind};
    use super::*;

    const V15: PgVersion = PgVersion::from_num(150_018);
    const V18: PgVersion = PgVersion::from_num(180_004);

    fn refusal(source: &Column, target: Option<&Column>) -> Option<String> {
        obstacle(source, target, V18, V18)
    }

    #[test]
    fn built_in_base_types_pass_and_everything_else_is_named() {
        let int4 = Column::for_tests(1, "id", 23);
        assert_eq!(refusal(&int4, Some(&int4)), None);
        assert_eq!(refusal(&int4, None).unwrap(), "does not exist on the target");
        let int8 = Column::for_tests(1, "id", 20);
        assert_eq!(
            refusal(&int4, Some(&int8)).unwrap(),
            "is type 23 on the source and type 20 on the target"
        );
        let user = Column::for_tests(1, "id", 16_400);
        assert!(refusal(&user, Some(&user)).unwrap().contains("user-defined"));
        let class = Column::for_tests(1, "id", 2205);
        assert!(refusal(&class, Some(&class)).unwrap().contains("does not mean the same"));
        let mut silent = int4.clone();
        silent.data_type.has_send = false;
        assert!(refusal(&silent, Some(&int4)).unwrap().contains("no binary form"));
        // information_schema.sql_identifier has this OID on some server.
        let assigned = Column::for_tests(1, "id", 13_500);
        assert!(refusal(&assigned, Some(&assigned)).unwrap().contains("user-defined"));
    }

    /// An array has no array type of its own.
    fn array(oid: u32, element: u32, class: char) -> Column {
        let mut array = Column::for_tests(1, "v", oid);
        array.data_type.element = Some(Oid(element));
        array.data_type.element_class = Some(class);
        array.data_type.has_array_type = false;
        array
    }

    #[test]
    fn arrays_of_what_is_built_in_pass_and_arrays_of_what_is_not_do_not() {
        for (oid, element, class) in [(1007, 23, 'b'), (3905, 3904, 'r'), (6150, 4451, 'm')] {
            let column = array(oid, element, class);
            assert_eq!(refusal(&column, Some(&column)), None, "{oid}");
        }
        // pg_class[], regclass[], tsquery[], and one that initdb gave an OID.
        for (oid, element, class) in
            [(273, 83, 'c'), (2210, 2205, 'b'), (3645, 3615, 'b'), (9_999, 10_100, 'b')]
        {
            let column = array(oid, element, class);
            assert!(refusal(&column, Some(&column)).unwrap().contains("does not mean the same"), "{oid}");
        }
        let of_users = array(16_500, 16_400, 'e');
        assert!(refusal(&of_users, Some(&of_users)).unwrap().contains("user-defined"));
        for (class, oid) in [('r', 3904), ('m', 4451)] {
            let mut range = Column::for_tests(1, "v", oid);
            (range.data_type.class, range.data_type.base_class) = (class, class);
            assert_eq!(refusal(&range, Some(&range)), None, "{oid}");
        }
    }

    #[test]
    fn the_first_column_is_named_and_the_others_are_counted() {
        let fits = Column::for_tests(1, "id", 23);
        let unfit = |name: &str| Column::for_tests(2, name, 16_400);
        let columns = vec![fits, unfit("a"), unfit("b"), unfit("c")];
        let name = TableName::new("s", "t");
        let target =
            TargetTable { oid: Oid(1), name: name.clone(), kind: TableKind::Plain, columns: columns.clone() };
        let table = |columns| PublishedTable {
            oid: Oid(1),
            name: name.clone(),
            kind: TableKind::Plain,
            columns,
            row_filter: None,
            identity: ReplicaIdentity::Default,
            bytes: 0,
            rows_estimate: 0,
            publications: Vec::new(),
        };
        let refused =
            |columns| binary_allowed(V18, V18, [(&table(columns), &target)]).unwrap_err().to_string();
        let first = "column \"a\" of table \"s.t\" has the user-defined type type 16400";
        assert_eq!(refused(columns.clone()), format!("{first} (and 2 more columns are in the way)"));
        assert_eq!(refused(columns[..2].to_vec()), first);
        assert_eq!(array_types([&table(vec![array(1007, 23, 'b'), array(1007, 23, 'b')])]), [Oid(1007)]);
    }

    #[test]
    fn copy_takes_arrays_domains_and_enums_but_no_user_ids() {
        let passes = |source: &DataType, target: &DataType| source.travels_in_binary(target, V18, V18);
        let int4 = Column::for_tests(1, "v", 23).data_type;
        let array = array(1007, 23, 'b').data_type;
        assert!(passes(&array, &array));
        let of_users = DataType { element: Some(Oid(16_500)), ..array.clone() };
        assert!(!passes(&of_users, &of_users));
        let of_classes = DataType { element: Some(Oid(2205)), ..array };
        assert!(!passes(&of_classes, &of_classes));
        let domain = DataType { oid: Oid(16_600), class: 'd', ..int4.clone() };
        assert!(passes(&domain, &int4) && passes(&int4, &domain));
        let label =
            DataType { oid: Oid(16_700), base: Oid(16_700), class: 'e', base_class: 'e', ..int4.clone() };
        let other = DataType { oid: Oid(16_701), base: Oid(16_701), ..label.clone() };
        assert!(passes(&label, &other) && !passes(&label, &int4));
        let composite = DataType { oid: Oid(16_800), base: Oid(16_800), class: 'c', base_class: 'c', ..int4 };
        assert!(!passes(&composite, &composite));
    }

    #[test]
    fn intervals_of_17_are_text_to_an_older_server() {
        let interval = Column::for_tests(1, "v", INTERVAL).data_type;
        assert!(!interval.travels_in_binary(&interval, V18, V15));
        assert!(
            interval.travels_in_binary(&interval, V15, V18)
                && interval.travels_in_binary(&interval, V18, V18)
        );
    }
}
