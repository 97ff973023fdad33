//! Whether values may travel in binary.
//!
//! A binary value is the output of its type's send function. It means the
//! same on the other server only if it embeds no id of an object made by a
//! user: arrays and composites embed their elements' type ids, the `reg...`
//! types are ids. pgoutput's `binary` holds for the whole stream, COPY is free
//! to decide per table.

use std::fmt;

use base::{Oid, PgVersion};

use super::{Column, DataType, PublishedTable, TableName, TargetTable};

/// Types whose binary form is the id of a catalog object while their text
/// form is its name: `regproc`, `regprocedure`, `regoper`, `regoperator`,
/// `regclass`, `regtype`, `regconfig`, `regdictionary`, `regnamespace`,
/// `regrole`, `regcollation` (`catalog/pg_type.dat`).
const OBJECT_ID_TYPES: [u32; 11] = [24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191];

/// `interval`. 17 gave it infinities, whose binary form is a finite interval
/// to an older server, while the text is refused there.
const INTERVAL: u32 = 1186;
/// `interval[]`.
const INTERVAL_ARRAY: u32 = 1187;

/// Types whose receive function refuses the empty value that their send
/// function wrote: `int2vector` and `oidvector` ("invalid oidvector data"),
/// `tsquery` ("malformed tsquery: operand not found").
const ONE_WAY_TYPES: [u32; 3] = [22, 30, 3615];

/// Arrays of [`OBJECT_ID_TYPES`] are recognised by their element; what
/// remains is whether the id stands for the same object on both servers.
fn means_objects(oid: Oid) -> bool {
    OBJECT_ID_TYPES.contains(&oid.0)
}

impl DataType {
    /// Whether a binary value of this type means the same as a value of
    /// `target`'s type on another server. Domains count as what is below
    /// them; of enums the label is sent.
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
        let unfit = |oid: Oid| means_objects(oid) || ONE_WAY_TYPES.contains(&oid.0);
        let user_element = self.element.is_some_and(|element| element.is_user_defined() || unfit(element));
        self.base == target.base
            && !self.base.is_user_defined()
            && matches!(self.base_class, 'b' | 'r' | 'm')
            && !unfit(self.base)
            && !user_element
    }
}

/// Why the stream cannot use `binary`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BinaryRefusal(Reason);

impl BinaryRefusal {
    /// One, for docs/errors.md.
    #[must_use]
    pub fn example() -> BinaryRefusal {
        let table = TableName { schema: "public".to_owned(), name: "accounts".to_owned() };
        BinaryRefusal(Reason::Column { table, column: "mood".to_owned(), why: user_defined("public.mood") })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Reason {
    Version { end: &'static str, version: PgVersion },
    Column { table: TableName, column: String, why: String },
}

impl fmt::Display for BinaryRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Reason::Version { end, version } => {
                write!(f, "the {end} is PostgreSQL {version}, and binary needs 14 or newer on both ends")
            }
            Reason::Column { table, column, why } => {
                write!(f, "column \"{column}\" of table \"{table}\" {why}")
            }
        }
    }
}

/// Whether the stream may use pgoutput's `binary` (RULES C3), which holds for
/// every column of every table: each has a base type made by initdb with a
/// binary form that embeds no object id, the target's column has the same
/// type, and that type has an array type but is none itself, because rows are
/// applied as arrays of each column's type.
///
/// # Errors
/// The first obstacle, with table and column, to be logged.
pub fn binary_allowed<'a>(
    source_version: PgVersion,
    target_version: PgVersion,
    tables: impl IntoIterator<Item = (&'a PublishedTable, &'a TargetTable)>,
) -> Result<(), BinaryRefusal> {
    for (end, version) in [("source", source_version), ("target", target_version)] {
        if version.major() < 14 {
            return Err(BinaryRefusal(Reason::Version { end, version }));
        }
    }
    for (table, target) in tables {
        for column in &table.columns {
            if let Some(why) = obstacle(column, target.column(&column.name), source_version, target_version) {
                let column = column.name.clone();
                return Err(BinaryRefusal(Reason::Column { table: table.name.clone(), column, why }));
            }
        }
    }
    Ok(())
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
    let why = if source.oid.is_user_defined() {
        user_defined(&source.name)
    } else if source.oid != target.oid {
        format!("is {} on the source and {} on the target", source.name, target.name)
    } else if source.element.is_some() {
        format!("has the array type {}", source.name)
    } else if !source.has_array_type {
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
        let mut array = Column::for_tests(1, "id", 1007);
        array.data_type.element = Some(Oid(23));
        assert!(refusal(&array, Some(&array)).unwrap().contains("array type"));
        let mut silent = int4.clone();
        silent.data_type.has_send = false;
        assert!(refusal(&silent, Some(&int4)).is_some());
    }

    #[test]
    fn copy_takes_arrays_domains_and_enums_but_no_user_ids() {
        let passes = |source: &DataType, target: &DataType| source.travels_in_binary(target, V18, V18);
        let int4 = Column::for_tests(1, "v", 23).data_type;
        let array = DataType { element: Some(Oid(23)), ..Column::for_tests(1, "v", 1007).data_type };
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
