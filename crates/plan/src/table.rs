//! A source relation mapped onto its target table.
//!
//! The mapping is made from the source's description of a relation and the target's catalogs of the
//! table of the same name. It decides once, for every later change, which columns correspond, how a
//! row is found and which path its changes take. Crate `apply` reads the catalogs.
//!
//! | the target table has ...                                  | path |
//! |-----------------------------------------------------------|------|
//! | a trigger that fires for replicas                          | rows, one at a time, and a barrier for every other table (the trigger may read any table) |
//! | a unique, immediate, full, NOT NULL index on the identity whose types are equal only when their bytes are, or by a rule that the source's own index follows | fold |
//! | an identity column GENERATED ALWAYS outside the key, or in any column if all columns find the row | rows |
//! | no key of its own, no partitions, and a source with REPLICA IDENTITY FULL | bag |
//! | anything else                                              | rows; runs of INSERTs are still written together |

use std::fmt;
use std::sync::Arc;

use base::{Oid, quote_ident};
use proto::pgoutput::{Relation, RelationColumn, ReplicaIdentity};

use crate::holder::{Element, Holder};
use crate::key_index::{Bounds, KeyColumn, KeyIndex};

/// Which columns, by position.
pub type Mask = Vec<bool>;

/// A column of the target as its catalogs describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetColumn {
    /// As in the catalogs.
    pub name: String,
    /// Its type beneath all domains.
    pub type_oid: Oid,
    /// The array type of that type.
    pub array_oid: Oid,
    /// The type that wraps the column's values in a set, if the column's type is an array.
    pub holder: Option<Holder>,
    /// The type beneath all domains. It has no modifier, so a cast to it never cuts a value short.
    pub type_name: String,
    /// It takes no NULL.
    pub not_null: bool,
    /// The target computes it.
    pub generated: bool,
    /// An identity column GENERATED ALWAYS.
    pub identity_always: bool,
    /// The equality operator as SQL, `None` if the type has none.
    pub equality: Option<String>,
    /// Equal values have equal bytes in both wire forms.
    pub bytewise: bool,
    /// The type's own rule decides which values are equal, so it is the same on both ends: neither
    /// a collation nor a user changes it.
    pub inherent: bool,
    /// The type is an enum.
    pub is_enum: bool,
    /// The column's own type as SQL, without its modifier.
    pub declared: String,
    /// Its modifier, -1 without one.
    pub typmod: i32,
    /// Its own type as SQL with the modifier, where that rounds stored values (numbers and times).
    pub rounded: Option<String>,
}

impl TargetColumn {
    /// The type of the parameter that carries the column in a set, in binary form, and the type of
    /// its elements.
    pub fn parameter(&self) -> (Oid, Element) {
        match &self.holder {
            Some(holder) => (holder.array_oid, Element { oid: holder.oid, holds: Some(self.type_oid) }),
            None => (self.array_oid, self.type_oid.into()),
        }
    }

    /// The element type of that parameter, as SQL.
    pub fn carried(&self) -> &str {
        self.holder.as_ref().map_or(&self.declared, |holder| &holder.name)
    }

    /// The column's value from an element of that parameter; `element` is SQL.
    pub fn value_of(&self, element: String) -> String {
        match &self.holder {
            Some(_) => format!("({element}).value"),
            None => element,
        }
    }
}

/// A target table as its catalogs describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetTable {
    /// In `pg_class`.
    pub oid: Oid,
    /// The root of its partitions; its own OID where it has none.
    pub root: Oid,
    /// Its rows are in partitions.
    pub partitioned: bool,
    /// In the order of the table.
    pub columns: Vec<TargetColumn>,
    /// The keys of every unique, valid, immediate, non-partial index without expressions. The
    /// replica identity or primary key is first.
    pub unique_keys: Vec<UniqueKey>,
    /// The first of `unique_keys` is the replica identity index or the primary key.
    pub has_identity: bool,
    /// A trigger that fires for what we write.
    pub firing_trigger: Option<String>,
    /// A rule that would rewrite what we write.
    pub firing_rule: Option<String>,
    /// At most one index of any kind is unique or excludes.
    pub sole_unique_key: bool,
    /// The number of indexes that are unique or exclude, its partitions' own included.
    pub constraints: usize,
    /// The first columns of indexes that find single values, and whether each index finds NULLs.
    /// Native apply would use the same indexes from 16 on.
    pub indexed: Vec<(String, bool)>,
    /// The subscription's replication origins, if rows that others wrote last are to be told from
    /// its own.
    pub own_origins: Option<Vec<u32>>,
}

/// The first column of an index, by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leading {
    /// Its position in the source's tuple.
    pub column: usize,
    /// The index finds NULLs.
    pub finds_nulls: bool,
}

/// The columns of a unique index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueKey {
    /// The columns, in the order of the index.
    pub names: Vec<String>,
    /// For each column, ` COLLATE ...` if the index has another collation than the column. Without
    /// it the planner would not use the index.
    pub collate: Vec<String>,
    /// For each column, how the index orders it.
    pub bounds: Vec<Bounds>,
    /// See [`KeyIndex::has_rival`].
    pub has_rival: bool,
}

impl UniqueKey {
    /// Positions of its columns in `relation`, ascending; `None` if `relation` lacks one.
    fn positions(&self, relation: &Relation) -> Option<Vec<usize>> {
        let position = |name: &String| relation.columns.iter().position(|column| column.name == *name);
        let mut found: Vec<usize> = self.names.iter().map(position).collect::<Option<_>>()?;
        found.sort_unstable();
        Some(found)
    }

    /// The index in the form by which rows of `relation` are found.
    fn index(&self, relation: &Relation) -> KeyIndex {
        let position = |name: &String| relation.columns.iter().position(|column| column.name == *name);
        let columns = self.names.iter().zip(&self.bounds).filter_map(|(name, bounds)| {
            Some(KeyColumn { position: position(name)?, bounds: bounds.clone() })
        });
        KeyIndex { columns: columns.collect(), has_rival: self.has_rival }
    }
}

/// One published column and its counterpart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Quoted.
    pub sql: String,
    /// The counterpart.
    pub target: TargetColumn,
    /// Part of the key by which rows are found.
    pub key: bool,
    /// ` COLLATE ...`, if the index that finds rows has another collation than the column.
    pub collate: String,
    /// The type to which the source's values are cast before they are compared, because storing
    /// rounded them.
    pub rounded: Option<String>,
    /// Values are equal on the target exactly if their bytes are.
    pub exact: bool,
}

impl Column {
    /// The column's equality operator as SQL.
    pub fn equality(&self) -> &str {
        self.target.equality.as_deref().unwrap_or("OPERATOR(pg_catalog.=)")
    }

    /// A value of the source in the form that is compared with the column; `value` is SQL.
    pub fn compared(&self, value: String) -> String {
        match &self.rounded {
            Some(rounded) => format!("{value}::{rounded}"),
            None => value,
        }
    }
}

/// How a row is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// By columns that are unique on the target.
    UniqueKey,
    /// By the source's identity columns, which are not unique on the target: one of the rows that
    /// match.
    Key,
    /// By all columns: one of the rows that match.
    Full,
    /// Not at all: only INSERT and TRUNCATE can come.
    None,
}

/// See the table in the module's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// The net effect per key.
    Fold,
    /// See [`crate::bag`].
    Bag,
    /// One change at a time; runs of INSERTs together.
    Rows,
    /// One change at a time, and a barrier for every other table.
    RowsAlone,
}

/// The mapping of one source relation.
#[derive(Debug)]
pub struct Table {
    /// Distinguishes mappings within one process.
    pub id: u64,
    /// `schema.table` for messages.
    pub name: String,
    /// The same in two parts.
    pub schema_and_name: (String, String),
    /// Quoted for SQL.
    pub sql: String,
    /// Its rows are in partitions.
    pub partitioned: bool,
    /// In the order of the source's tuples.
    pub columns: Vec<Column>,
    /// Quoted names of target columns that the source does not have.
    pub extras: Vec<String>,
    /// Positions of the key columns, ascending.
    pub key: Vec<usize>,
    /// The same, one flag per column.
    pub key_mask: Vec<bool>,
    /// How its rows are found.
    pub lookup: Lookup,
    /// The index by which rows are found with [`Lookup::UniqueKey`].
    pub key_index: Option<KeyIndex>,
    /// Which path its changes take.
    pub path: Path,
    /// The indexes that may lead to a row whose values are known.
    pub indexed: Vec<Leading>,
    /// Keys are equal on the target exactly if their bytes are.
    pub exact_key: bool,
    /// Rows with different keys never collide.
    pub sole_unique_key: bool,
    /// OID of the target's table.
    pub oid: Oid,
    /// OID of its root if it is a partition, and `oid` otherwise.
    pub root: Oid,
    /// What rows of different transactions can collide by (rule A2).
    pub collisions: Collisions,
    /// `None` if it does not matter who wrote a row last.
    ours: Option<Ours>,
}

/// Tells rows that the subscription wrote last from those that others wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ours {
    origins: Vec<u32>,
    /// ` AND ...` for a row `t`.
    condition: String,
}

impl Ours {
    fn new(origins: Vec<u32>) -> Ours {
        let list: Vec<String> = origins.iter().map(u32::to_string).collect();
        // NULL, where the server does not know the writer, counts as ours, as in native apply. So
        // do rows that this very transaction has written.
        let condition = format!(
            " AND ((pg_catalog.pg_xact_commit_timestamp_origin(t.xmin)).roident \
             OPERATOR(pg_catalog.=) ANY ('{{{}}}'::pg_catalog.oid[])) IS NOT FALSE",
            list.join(",")
        );
        Ours { origins, condition }
    }
}

/// See [`Table::collisions`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Collisions {
    /// Nothing: no index is unique or excludes.
    None,
    /// The key, and these other sets of columns, by position.
    Keys(Vec<Vec<usize>>),
    /// Something that changes do not show: an index with an expression or a predicate, an exclusion
    /// constraint, a type whose equality is not that of its bytes, columns that are not published
    /// or made on the target.
    Unknown,
}

/// Why a relation cannot be applied to the target's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MappingError {
    /// The target has no such table.
    MissingTable {
        /// `schema.table`
        table: String,
    },
    /// The target's table lacks published columns.
    MissingColumns {
        /// `schema.table`
        table: String,
        /// Those that it lacks.
        columns: Vec<String>,
    },
    /// The target computes a published column itself.
    GeneratedColumn {
        /// `schema.table`
        table: String,
        /// The computed one.
        column: String,
    },
    /// A rule would rewrite what is applied.
    Rule {
        /// `schema.table`
        table: String,
        /// The rule's name.
        rule: String,
    },
}

impl fmt::Display for MappingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MappingError::MissingTable { table } => {
                write!(
                    f,
                    "table \"{table}\" does not exist on the target; create it, or drop it from the publication"
                )
            }
            MappingError::MissingColumns { table, columns } => write!(
                f,
                "table \"{table}\" on the target is missing replicated column{} \"{}\"; \
                 add it there, or leave it out of the publication's column list",
                if columns.len() == 1 { "" } else { "s" },
                columns.join("\", \"")
            ),
            MappingError::GeneratedColumn { table, column } => write!(
                f,
                "column \"{column}\" of table \"{table}\" is published by the source but generated on the target; \
                 make it an ordinary column there, or do not publish it"
            ),
            MappingError::Rule { table, rule } => write!(
                f,
                "rule \"{rule}\" of table \"{table}\" fires for replicated changes, which cannot be applied as SQL; \
                 on the target: ALTER TABLE {} DISABLE RULE {}",
                quoted_name(table),
                quote_ident(rule)
            ),
        }
    }
}

impl std::error::Error for MappingError {}

/// A name made by [`display_name`], quoted for SQL.
pub fn quoted_name(shown: &str) -> String {
    match shown.split_once('.') {
        Some((schema, table)) => format!("{}.{}", quote_ident(schema), quote_ident(table)),
        None => quote_ident(shown),
    }
}

/// `schema.table` for messages.
pub fn display_name(relation: &Relation) -> String {
    format!("{}.{}", relation.namespace, relation.name)
}

impl Table {
    /// Whether both mappings lead to the same table in the same way.
    pub fn is_as(&self, other: &Table) -> bool {
        let same_place = self.sql == other.sql && self.path == other.path;
        let same_columns = self.columns == other.columns && self.extras == other.extras;
        let same_rows = self.key == other.key
            && self.lookup == other.lookup
            && self.key_index == other.key_index
            && self.indexed == other.indexed
            && self.sole_unique_key == other.sole_unique_key
            && self.ours == other.ours;
        self.id == other.id || same_place && same_columns && same_rows
    }

    /// Maps `relation` onto `target`.
    pub fn map(id: u64, relation: Arc<Relation>, target: &TargetTable) -> Result<Table, MappingError> {
        let name = display_name(&relation);
        if let Some(rule) = &target.firing_rule {
            return Err(MappingError::Rule { table: name, rule: rule.clone() });
        }
        let (lookup, key, unique) = lookup(&relation, target);
        let columns = map_columns(&relation, target, &key, unique)
            .map_err(|columns| MappingError::MissingColumns { table: name.clone(), columns })?;
        if let Some(column) = columns.iter().find(|column| column.target.generated) {
            return Err(MappingError::GeneratedColumn { table: name, column: column.target.name.clone() });
        }
        let leading = |(name, finds_nulls): &(String, bool)| {
            let column = columns.iter().position(|column| column.target.name == *name)?;
            columns[column].target.equality.as_ref()?;
            Some(Leading { column, finds_nulls: *finds_nulls })
        };
        let indexed = target.indexed.iter().filter_map(leading).collect();
        let exact_key = columns.iter().filter(|column| column.key).all(|column| column.exact);
        let published = |column: &TargetColumn| relation.columns.iter().any(|c| c.name == column.name);
        let extras = target.columns.iter().filter(|c| !c.generated && !published(c));
        let extras = extras.map(|column| quote_ident(&column.name)).collect();
        let path = path(&relation, target, &columns, lookup);
        let sql = format!("{}.{}", quote_ident(&relation.namespace), quote_ident(&relation.name));
        let key_mask = columns.iter().map(|column| column.key).collect();
        let partitioned = target.partitioned;
        let sole_unique_key = target.sole_unique_key;
        let collisions = collisions(&relation, target, &columns, &key);
        let (oid, root) = (target.oid, target.root);
        let key_index = unique.map(|unique| unique.index(&relation));
        Ok(Table {
            id,
            name,
            schema_and_name: (relation.namespace.clone(), relation.name.clone()),
            sql,
            partitioned,
            columns,
            extras,
            key,
            key_mask,
            lookup,
            key_index,
            path,
            indexed,
            exact_key,
            sole_unique_key,
            oid,
            root,
            collisions,
            ours: target.own_origins.clone().map(Ours::new),
        })
    }

    /// The condition, for a row `t`, that nobody else is known to have written it last: ` AND ...`,
    /// or nothing where that does not matter.
    pub fn and_ours(&self) -> &str {
        self.ours.as_ref().map_or("", |ours| &ours.condition)
    }

    /// The replication origins whose rows are ours; `None` if that does not matter.
    pub fn own_origins(&self) -> Option<&[u32]> {
        self.ours.as_ref().map(|ours| ours.origins.as_slice())
    }

    /// Whether the last writer of a row, a replication origin or 0, is known to be somebody else.
    /// This must agree with [`Table::and_ours`].
    pub fn is_foreign(&self, origin: Option<u32>) -> bool {
        self.ours.as_ref().zip(origin).is_some_and(|(ours, origin)| !ours.origins.contains(&origin))
    }

    /// `ONLY` for plain tables: child tables are left alone, as in native apply.
    pub fn only(&self) -> &'static str {
        if self.partitioned { "" } else { "ONLY " }
    }
}

/// How a row is found, by which columns, and by which key of the target.
///
/// As in native apply, the target's own replica identity or primary key serves even a source with
/// identity FULL, because the old row holds its columns.
fn lookup<'a>(relation: &Relation, target: &'a TargetTable) -> (Lookup, Vec<usize>, Option<&'a UniqueKey>) {
    if relation.identity == ReplicaIdentity::Full {
        let own = target.unique_keys.first().filter(|_| target.has_identity);
        return match own.and_then(|own| Some((own.positions(relation)?, own))) {
            Some((key, own)) => (Lookup::UniqueKey, key, Some(own)),
            None => (Lookup::Full, (0..relation.columns.len()).collect(), None),
        };
    }
    let identity: Vec<usize> =
        (0..relation.columns.len()).filter(|&position| relation.columns[position].identity).collect();
    if identity.is_empty() {
        return (Lookup::None, identity, None);
    }
    let unique = target.unique_keys.iter().find(|key| key.positions(relation).as_ref() == Some(&identity));
    (if unique.is_some() { Lookup::UniqueKey } else { Lookup::Key }, identity, unique)
}

/// Maps each column of `relation` onto the target's of that name. `key` are the positions of the
/// identity, which `unique` finds. The error has the names of columns that the target lacks.
fn map_columns(
    relation: &Relation,
    target: &TargetTable,
    key: &[usize],
    unique: Option<&UniqueKey>,
) -> Result<Vec<Column>, Vec<String>> {
    let (mut columns, mut missing) = (Vec::new(), Vec::new());
    for (position, column) in relation.columns.iter().enumerate() {
        let Some(target) = target.columns.iter().find(|c| c.name == column.name) else {
            missing.push(column.name.clone());
            continue;
        };
        let (sql, target) = (quote_ident(&column.name), target.clone());
        let place = unique.and_then(|unique| unique.names.iter().position(|name| *name == column.name));
        let collate = unique.zip(place).map_or_else(String::new, |(unique, at)| unique.collate[at].clone());
        let rounded = target.rounded.clone().filter(|_| rounds(column, &target));
        let exact = rounded.is_none() && target.bytewise && is_same_type(&target, column.type_oid);
        columns.push(Column { sql, target, key: key.contains(&position), collate, rounded, exact });
    }
    if missing.is_empty() { Ok(columns) } else { Err(missing) }
}

/// The statement for a bag has each column twice and a few more, and a query's list has at most
/// 1,664 entries.
const BAG_COLUMNS_MAX: usize = 800;

fn path(relation: &Relation, target: &TargetTable, columns: &[Column], lookup: Lookup) -> Path {
    if target.firing_trigger.is_some() {
        return Path::RowsAlone;
    }
    let is_whole = lookup == Lookup::Full;
    if columns.iter().any(|column| column.target.identity_always && (is_whole || !column.key)) {
        return Path::Rows;
    }
    if is_whole && !target.partitioned && (1..=BAG_COLUMNS_MAX).contains(&columns.len()) {
        return Path::Bag;
    }
    // Where an index of the source is unique by the same rule, two rows of one fold are never equal
    // at the same time.
    let unique_there = relation.identity != ReplicaIdentity::Full;
    let foldable =
        columns.iter().zip(&relation.columns).filter(|(column, _)| column.key).all(|(column, source)| {
            let inherent = unique_there && column.target.inherent && column.rounded.is_none();
            let comparable = column.exact || inherent && is_same_type(&column.target, source.type_oid);
            column.target.not_null && comparable
        });
    if lookup == Lookup::UniqueKey && foldable { Path::Fold } else { Path::Rows }
}

/// Whether the source's type is the target's. If it were not, '1' and '01' of a text key would be
/// two rows on the source and one on the target.
fn is_same_type(target: &TargetColumn, source: Oid) -> bool {
    source == target.type_oid && !source.is_user_defined() || target.is_enum && source.is_user_defined()
}

/// Whether storing a value of `source` may change it, for a column whose modifier rounds.
fn rounds(source: &RelationColumn, target: &TargetColumn) -> bool {
    const NUMERIC: Oid = Oid(1700);
    const INTERVAL: Oid = Oid(1186);
    let (from, to) = (source.typmod, target.typmod);
    match target.type_oid {
        oid if oid != source.type_oid => true,
        // The scale is in the lower eleven bits, with a sign.
        NUMERIC => from < 0 || numeric_scale(from) > numeric_scale(to),
        INTERVAL => from != to,
        // Fractional digits: six unless the modifier gives them.
        _ => (if from < 0 { 6 } else { from }) > to,
    }
}

fn numeric_scale(typmod: i32) -> i32 {
    const HEADER: i32 = 4;
    (((typmod - HEADER) & 0x7ff) ^ 1024) - 1024
}

fn collisions(relation: &Relation, target: &TargetTable, columns: &[Column], key: &[usize]) -> Collisions {
    let comparable = |&at: &usize| columns[at].exact;
    let shown = target.unique_keys.iter().filter_map(|key| key.positions(relation));
    let shown: Vec<Vec<usize>> = shown.filter(|key| key.iter().all(comparable)).collect();
    match target.constraints {
        0 => Collisions::None,
        constraints if constraints > shown.len() => Collisions::Unknown,
        _ => Collisions::Keys(shown.into_iter().filter(|other| other != key).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn each_row_of_the_table_of_paths() {
        let map = |identity, change: fn(&mut TargetTable)| {
            let mut target = fixtures::target();
            change(&mut target);
            Table::map(1, fixtures::relation(identity), &target).unwrap()
        };
        let plain = map(ReplicaIdentity::Default, |_| ());
        assert_eq!(
            (plain.path, plain.lookup, plain.key.as_slice()),
            (Path::Fold, Lookup::UniqueKey, &[0][..])
        );
        assert_eq!(plain.extras, ["\"extra\""]);

        let full = map(ReplicaIdentity::Full, |_| ());
        assert_eq!((full.path, full.lookup), (Path::Fold, Lookup::UniqueKey));
        let keyless = map(ReplicaIdentity::Full, |target| target.unique_keys.clear());
        assert_eq!((keyless.path, keyless.lookup, keyless.key.len()), (Path::Bag, Lookup::Full, 3));
        let partitioned = map(ReplicaIdentity::Full, |target| {
            target.unique_keys.clear();
            target.partitioned = true;
        });
        assert_eq!((partitioned.path, partitioned.lookup), (Path::Rows, Lookup::Full));
        let always = map(ReplicaIdentity::Full, |target| {
            target.unique_keys.clear();
            target.columns[1].identity_always = true;
        });
        assert_eq!((always.path, always.lookup), (Path::Rows, Lookup::Full));
        let not_unique = map(ReplicaIdentity::Default, |target| target.unique_keys.clear());
        assert_eq!((not_unique.path, not_unique.lookup), (Path::Rows, Lookup::Key));

        let trigger = map(ReplicaIdentity::Default, |target| target.firing_trigger = Some("t".into()));
        assert_eq!(trigger.path, Path::RowsAlone);
        for change in [
            (|target| target.columns[0].not_null = false) as fn(&mut TargetTable),
            |target| (target.columns[0].bytewise, target.columns[0].inherent) = (false, false),
            |target| {
                (target.columns[0].typmod, target.columns[0].rounded) = (2, Some("time(2)".to_owned()));
            },
            |target| target.columns[0].type_oid = Oid(25),
            |target| target.columns[1].identity_always = true,
        ] {
            assert_eq!(map(ReplicaIdentity::Default, change).path, Path::Rows);
        }
        let inherent = |target: &mut TargetTable| target.columns[0].bytewise = false;
        assert_eq!(map(ReplicaIdentity::Default, inherent).path, Path::Fold);
        assert_eq!(map(ReplicaIdentity::Full, inherent).path, Path::Rows, "nothing is unique on the source");
    }

    #[test]
    fn a_modifier_rounds_where_it_is_the_narrower_one() {
        let numeric = |precision: i32, scale: i32| (precision << 16 | scale & 0x7ff) + 4;
        let rounded = |oid: u32, from: i32, to: i32| {
            let source =
                RelationColumn { identity: true, name: "id".to_owned(), type_oid: Oid(oid), typmod: from };
            rounds(&source, &TargetColumn { typmod: to, ..fixtures::target_column("id", oid) })
        };
        for (from, to, expected) in [
            (numeric(12, 4), numeric(10, 2), true),
            (-1, numeric(10, 2), true),
            (numeric(10, 2), numeric(12, 2), false),
            (numeric(5, -3), numeric(5, 0), false),
            (numeric(5, 0), numeric(5, -3), true),
        ] {
            assert_eq!(rounded(1700, from, to), expected, "{from} {to}");
        }
        assert_eq!([rounded(1114, -1, 0), rounded(1114, -1, 6), rounded(1114, 0, 3)], [true, false, false]);
        let source = RelationColumn { identity: true, name: "id".to_owned(), type_oid: Oid(701), typmod: -1 };
        let target = TargetColumn { typmod: numeric(6, 1), ..fixtures::target_column("id", 1700) };
        assert!(rounds(&source, &target), "another type");
    }

    #[test]
    fn what_cannot_be_mapped_names_table_and_column() {
        let fails = |change: fn(&mut TargetTable)| {
            let mut target = fixtures::target();
            change(&mut target);
            Table::map(1, fixtures::relation(ReplicaIdentity::Default), &target).unwrap_err().to_string()
        };
        assert!(
            fails(|t| drop(t.columns.remove(1)))
                .contains("\"s.t\" on the target is missing replicated column \"a\"")
        );
        assert!(fails(|t| t.columns[2].generated = true).contains("column \"b\" of table \"s.t\""));
        assert!(fails(|t| t.firing_rule = Some("r".into())).contains("rule \"r\""));
    }
}
