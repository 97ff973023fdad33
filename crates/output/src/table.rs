//! A relation in the form that its changes are written in. It is pgoutput's `RelationSyncEntry`,
//! made once for a place in the WAL.
//!
//! This module resolves everything that catalogs and publications say of a relation. That is which
//! columns are sent and how each is rendered, which filters apply, as which relation a partition is
//! sent, and the messages that announce it. It also finds what cannot be rendered or filtered,
//! which is an error only if a row would come out.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use base::Oid;
use catalog::{Column, Filters, Identity, Missing, Published, Relation, View};
use filter::{Filter, Surroundings};
use proto::pgoutput::{ReplicaIdentity, encode};
use types::{Attribute, Codec, Generated, TypeInfo};
use wal::Actions;

use crate::error::{RefusedTable, Result};
use crate::options::{Options, Publications};

/// `FirstGenbkiObjectId`: types with lower OIDs have the same OID on every server, so they are not
/// announced.
const FIRST_ANNOUNCED: Oid = Oid(10_000);
/// The first major that only warns if a publication does not exist.
const WARNS_SINCE: u32 = 18;

/// A relation at a place in the WAL. Compares by its number.
#[derive(Debug, Clone)]
pub(crate) struct Wanted(pub(crate) Arc<OutputTable>);

impl PartialEq for Wanted {
    fn eq(&self, other: &Wanted) -> bool {
        self.0.number == other.0.number
    }
}

impl Eq for Wanted {}

impl Hash for Wanted {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.number.hash(state);
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct OutputTable {
    /// Different for each description.
    pub(crate) number: u64,
    pub(crate) oid: Oid,
    /// The relation that its changes are sent as: itself, or a partitioned table above it.
    pub(crate) target: Oid,
    pub(crate) schema: String,
    pub(crate) name: String,
    /// Schema and name of the target.
    pub(crate) published_as: (String, String),
    pub(crate) actions: Actions,
    /// Whether its TRUNCATE is sent.
    pub(crate) truncates: bool,
    /// Whether an old row is sent as the whole row.
    pub(crate) whole_old: bool,
    /// The columns of its stored rows.
    pub(crate) attributes: Vec<Attribute>,
    /// Missing values that are known only in rendered form, by their place in a row.
    pub(crate) rendered: Vec<(usize, Missing)>,
    /// The columns that are sent, in their order.
    pub(crate) columns: Vec<Sent>,
    pub(crate) filters: RowFilters,
    /// Messages for the types and relations, without a transaction.
    pub(crate) announcements: Vec<Vec<u8>>,
    /// Why none of its rows can be sent.
    pub(crate) failure: Option<Failure>,
}

/// A column that is sent.
#[derive(Debug)]
pub(crate) struct Sent {
    /// Its place in a row.
    pub(crate) place: usize,
    pub(crate) name: String,
    pub(crate) codec: Codec,
}

/// The filters by action. A row is sent if one of them keeps it. `None` keeps every row.
#[derive(Debug, Default)]
pub(crate) struct RowFilters {
    pub(crate) insert: Option<Vec<Filter>>,
    pub(crate) update: Option<Vec<Filter>>,
    pub(crate) delete: Option<Vec<Filter>>,
    /// The place of each of the target's columns in a row, by the column's number, from 1.
    pub(crate) places: Vec<Option<usize>>,
}

#[derive(Debug)]
pub(crate) enum Failure {
    /// This program cannot send rows of the table; the server could.
    Refused(RefusedTable),
    /// The server could not send rows of the table either.
    Publication(String),
}

impl OutputTable {
    pub(crate) fn full_name(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }

    pub(crate) fn refused(&self) -> Option<&RefusedTable> {
        match &self.failure {
            Some(Failure::Refused(refused)) => Some(refused),
            _ => None,
        }
    }
}

/// How a relation is published, or why that is not defined.
enum How {
    Not,
    So(Published),
    Contradictory(String),
}

fn how(view: &View<'_>, options: &Options, relation: &Relation) -> How {
    if options.deletions.is_some() {
        return deletions_of(relation);
    }
    let names = match &options.publications {
        Publications::EveryTable => return every_table(relation),
        Publications::Named(names) => names,
    };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let wants_all = options.all_publications || options.settings.version.major() < WARNS_SINCE;
    if wants_all && is_publishable(relation) {
        let known = view.publications();
        if let Some(name) = names.iter().find(|name| !known.contains(name)) {
            return How::Contradictory(format!("publication \"{name}\" does not exist"));
        }
    }
    match view.published(&names, relation.oid) {
        Ok(None) => How::Not,
        Ok(Some(published)) => How::So(published),
        Err(error) => How::Contradictory(error.to_string()),
    }
}

fn is_publishable(relation: &Relation) -> bool {
    relation.oid.is_user_defined() && matches!(relation.kind, b'r' | b'p') && relation.persistence == b'p'
}

/// How a publication of all tables publishes the relation.
fn every_table(relation: &Relation) -> How {
    if !is_publishable(relation) || relation.kind == b'p' {
        return How::Not;
    }
    let columns = relation.columns.iter().filter(|column| is_ordinary(column)).map(|column| column.number);
    How::So(Published {
        as_relation: relation.oid,
        actions: Actions::ALL,
        columns: columns.collect(),
        filters: Filters::default(),
    })
}

/// Which records of the relation tell of deletions, and the columns of its identity.
fn deletions_of(relation: &Relation) -> How {
    if !is_publishable(relation) {
        return How::Not;
    }
    let in_identity = |column: &&Column| !column.stored.dropped && column.in_identity;
    let (changes, columns): (Actions, Vec<&Column>) = match relation.identity {
        // TRUNCATE is known without an identity.
        _ if relation.kind == b'p' => (Actions::NONE, Vec::new()),
        // It is known that a row was deleted.
        Identity::Nothing { .. } => (Actions::DELETE, Vec::new()),
        // An update that changes an indexed column is not HOT.
        Identity::Index { .. } => {
            (Actions::DELETE | Actions::NOT_HOT, relation.columns.iter().filter(in_identity).collect())
        }
        Identity::Full => {
            let is_whole = |column: &&Column| is_ordinary(column);
            (Actions::DELETE | Actions::UPDATE, relation.columns.iter().filter(is_whole).collect())
        }
    };
    How::So(Published {
        as_relation: relation.oid,
        actions: changes | Actions::TRUNCATE,
        columns: columns.into_iter().map(|column| column.number).collect(),
        filters: Filters::default(),
    })
}

fn is_ordinary(column: &Column) -> bool {
    !column.stored.dropped && column.stored.generated == Generated::No
}

/// Describes the relation `oid`; `None` if it is not published.
///
/// # Errors
/// The catalogs contradict themselves.
pub(crate) fn describe(
    view: &View<'_>,
    options: &Options,
    oid: Oid,
    number: u64,
) -> Result<Option<OutputTable>> {
    let Some(own) = view.relation(oid)? else { return Ok(None) };
    let mut published = match how(view, options, &own) {
        How::Not => return Ok(None),
        How::So(published) => published,
        How::Contradictory(what) => return Ok(Some(contradictory(&own, number, what))),
    };
    let above = if published.as_relation == oid { None } else { view.relation(published.as_relation)? };
    let target = above.as_ref().unwrap_or(&own);
    let has_rows = published.actions.any_of(Actions::INSERT | Actions::UPDATE | Actions::DELETE);
    if !has_rows && options.deletions.is_none() {
        // Column lists only matter for rows.
        published.columns = target.columns.iter().filter(|c| is_ordinary(c)).map(|c| c.number).collect();
    }
    let mut announcements = Vec::new();
    if let Some(above) = &above {
        announce(view, above, |column| published.columns.contains(&column.number), &mut announcements);
    }
    let is_sent = sent_of_own(&published, target, above.is_some());
    announce(view, &own, is_sent, &mut announcements);
    let mut table = OutputTable {
        actions: published.actions,
        target: target.oid,
        published_as: (target.schema.clone(), target.name.clone()),
        truncates: published.actions.any_of(Actions::TRUNCATE) && (!own.is_partition || target.oid == oid),
        whole_old: target.identity.letter() == Identity::Full.letter(),
        announcements,
        ..empty(&own, number)
    };
    if has_rows {
        let parts = Parts { view, options, own: &own, target, published: &published };
        match parts.rows() {
            Ok((columns, filters)) => (table.columns, table.filters) = (columns, filters),
            Err(refused) => table.failure = Some(Failure::Refused(refused)),
        }
    }
    Ok(Some(table))
}

fn empty(own: &Relation, number: u64) -> OutputTable {
    let rendered = own.columns.iter().enumerate().filter_map(|(place, column)| {
        let missing = column.missing.as_ref().filter(|missing| missing.stored.is_none())?;
        Some((place, missing.clone()))
    });
    OutputTable {
        number,
        oid: own.oid,
        target: own.oid,
        schema: own.schema.clone(),
        name: own.name.clone(),
        published_as: (own.schema.clone(), own.name.clone()),
        actions: Actions::ALL,
        truncates: true,
        whole_old: false,
        attributes: own.columns.iter().map(|column| column.stored.clone()).collect(),
        rendered: rendered.collect(),
        columns: Vec::new(),
        filters: RowFilters::default(),
        announcements: Vec::new(),
        failure: None,
    }
}

/// The server reports an error for the first change of the table, of any kind.
fn contradictory(own: &Relation, number: u64, what: String) -> OutputTable {
    OutputTable { failure: Some(Failure::Publication(what)), ..empty(own, number) }
}

/// Which columns the message of a relation itself has. If its rows are sent as rows of a table
/// above it and there is a column list, the server takes the numbers of that table's columns for
/// the relation's own.
fn sent_of_own<'p>(
    published: &'p Published,
    target: &Relation,
    is_below: bool,
) -> impl Fn(&Column) -> bool + use<'p> {
    let live = |of: &dyn Fn(&Column) -> bool| -> Vec<i16> {
        target.columns.iter().filter(|column| of(column)).map(|column| column.number).collect()
    };
    let has_stored = published.columns
        == live(&|column| !column.stored.dropped && column.stored.generated != Generated::Virtual);
    let is_list = !has_stored && published.columns != live(&is_ordinary);
    move |column| {
        if !is_below || is_list {
            return !column.stored.dropped && published.columns.contains(&column.number);
        }
        is_ordinary(column)
            || has_stored && !column.stored.dropped && column.stored.generated == Generated::Stored
    }
}

/// Makes the messages for the types of the published columns, and for the relation.
fn announce(
    view: &View<'_>,
    relation: &Relation,
    is_sent: impl Fn(&Column) -> bool,
    announcements: &mut Vec<Vec<u8>>,
) {
    let columns: Vec<&Column> = relation.columns.iter().filter(|column| is_sent(column)).collect();
    for column in columns.iter().filter(|column| column.stored.type_oid >= FIRST_ANNOUNCED) {
        let mut message = Vec::new();
        let name = view.type_name(column.stored.type_oid).unwrap_or_default();
        encode::type_name(&mut message, None, column.stored.type_oid, name);
        announcements.push(message);
    }
    let letter = relation.identity.letter();
    let identity = match letter {
        b'f' => ReplicaIdentity::Full,
        b'i' => ReplicaIdentity::Index,
        b'n' => ReplicaIdentity::Nothing,
        _ => ReplicaIdentity::Default,
    };
    let mut message = Vec::new();
    let name = (relation.schema.as_str(), relation.name.as_str());
    encode::relation(&mut message, None, relation.oid, name, identity, columns.len() as u16);
    for column in columns {
        let in_identity = relation.identity == Identity::Full || column.in_identity;
        let type_oid = column.stored.type_oid;
        encode::relation_column(&mut message, in_identity, &column.name, type_oid, column.typmod);
    }
    announcements.push(message);
}

/// What is needed to describe rows.
struct Parts<'a> {
    view: &'a View<'a>,
    options: &'a Options,
    own: &'a Relation,
    target: &'a Relation,
    published: &'a Published,
}

impl Parts<'_> {
    fn refused(&self, column: Option<&str>, reason: impl Into<String>) -> RefusedTable {
        RefusedTable {
            schema: self.own.schema.clone(),
            table: self.own.name.clone(),
            published_as: Box::new((self.target.schema.clone(), self.target.name.clone())),
            column: column.map(str::to_owned),
            is_filter: false,
            reason: reason.into(),
        }
    }

    fn filter_refused(&self, reason: impl Into<String>) -> RefusedTable {
        RefusedTable { is_filter: true, ..self.refused(None, reason) }
    }

    fn rows(&self) -> Result<(Vec<Sent>, RowFilters), RefusedTable> {
        let sent: Vec<&Column> =
            self.target.columns.iter().filter(|c| self.published.columns.contains(&c.number)).collect();
        let types = self.view.types(sent.iter().map(|column| column.stored.type_oid));
        let types = types.map_err(|error| self.refused(None, error.to_string()))?;
        let columns = sent.into_iter().map(|column| self.sent(column, &types)).collect::<Result<_, _>>()?;
        Ok((columns, self.filters()?))
    }

    /// The place of a column of the target in a row. Columns are found by their names.
    fn place(&self, column: &Column) -> Option<usize> {
        if self.own.oid == self.target.oid {
            return usize::try_from(column.number - 1).ok();
        }
        self.own.columns.iter().position(|own| !own.stored.dropped && own.name == column.name)
    }

    fn sent(&self, column: &Column, types: &HashMap<Oid, TypeInfo>) -> Result<Sent, RefusedTable> {
        let refused = |reason: String| self.refused(Some(&column.name), reason);
        let place =
            self.place(column).ok_or_else(|| refused("the partition has no such column".to_owned()))?;
        let codec = Codec::compile(column.stored.type_oid, types, &self.options.settings);
        let codec = codec.map_err(|unsupported| refused(unsupported.to_string()))?;
        Ok(Sent { place, name: column.name.clone(), codec })
    }

    fn filters(&self) -> Result<RowFilters, RefusedTable> {
        let Filters { insert, update, delete } = &self.published.filters;
        if insert.is_none() && update.is_none() && delete.is_none() {
            return Ok(RowFilters::default());
        }
        let compiled = |trees: &Option<Vec<String>>| {
            let each = |trees: &Vec<String>| trees.iter().map(|tree| self.filter(tree)).collect();
            trees.as_ref().map(each).transpose()
        };
        let is_there = |column: &Column| !column.stored.dropped;
        let places = self.target.columns.iter().map(|c| self.place(c).filter(|_| is_there(c))).collect();
        Ok(RowFilters {
            insert: compiled(insert)?,
            update: compiled(update)?,
            delete: compiled(delete)?,
            places,
        })
    }

    fn filter(&self, tree: &str) -> Result<Filter, RefusedTable> {
        let surroundings = Surroundings { default_collation_is_c: self.view.default_collation_is_c() };
        // Only the server can turn a tree into SQL.
        let text = format!("of {}.{}", self.target.schema, self.target.name);
        let filter = Filter::compile(tree, &text, surroundings);
        let filter = filter.map_err(|refused| self.filter_refused(refused.to_string()))?;
        let is_virtual = |number: &i16| {
            self.target
                .columns
                .iter()
                .any(|c| c.number == *number && c.stored.generated == Generated::Virtual)
        };
        if filter.columns().iter().any(is_virtual) {
            let reason = format!(
                "the row filter {text} cannot be evaluated outside the server: it has a virtual generated column"
            );
            return Err(self.filter_refused(reason));
        }
        Ok(filter)
    }
}
