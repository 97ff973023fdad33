//! The SQL that undoes what was decided about a conflict, from the values that were recorded.
//!
//! | type | the change was written: undone by | the change was left out: undone by |
//! | --- | --- | --- |
//! | `insert_exists`, `update_origin_differs` | giving the row its old values | giving the row the source's values |
//! | `delete_origin_differs` | inserting the old row | deleting the row |
//! | `update_missing`, `update_deleted` | deleting the row | inserting the source's row |
//! | `delete_missing` | nothing | nothing |
//! | `update_exists`, `multiple_unique_conflicts` | taking the change back, then inserting the rows that it replaced | deleting the rows in its way, then the change |
//!
//! A row is found by the table's primary key or replica identity, as it was right after the
//! conflict was resolved. Every value is a literal of the text that the server wrote, so its type
//! does not matter.

use base::{quote_ident, quote_literal};
use conflict::{ColumnValues, ConflictType};
use state::ConflictOutcome;
use state::conflict_history::StoredConflict;

use super::table::{TargetColumn, TargetTable};

/// What would undo a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undo {
    /// These statements, in one transaction.
    Statements(Vec<String>),
    /// Nothing need be undone, and why.
    Nothing(String),
    /// The record does not have what an undo needs. Says what that is, and what would have recorded
    /// it.
    Unknown(String),
}

/// A row by its columns.
type Row = Vec<(String, Option<String>)>;

/// The values of one record.
struct Recorded {
    local: Option<ColumnValues>,
    remote: Option<ColumnValues>,
    identity: Option<ColumnValues>,
}

impl Recorded {
    fn read(conflict: &StoredConflict) -> Recorded {
        let read = |json: &Option<String>| serde_json::from_str(json.as_deref()?).ok();
        Recorded {
            local: read(&conflict.local_row),
            remote: read(&conflict.remote_row),
            identity: read(&conflict.replica_identity),
        }
    }

    fn is_empty(&self) -> bool {
        self.local.is_none() && self.remote.is_none() && self.identity.is_none()
    }

    fn local(&self) -> Result<&Row, String> {
        Ok(&self.local.as_ref().ok_or("The record has no row of the target.")?.columns)
    }

    fn remote(&self) -> Result<&Row, String> {
        Ok(&self.remote.as_ref().ok_or("The record has no row of the source.")?.columns)
    }
}

/// What would undo the decision about `conflict`. `together` are all records of the same change.
pub(super) fn undo(
    conflict: &StoredConflict,
    together: &[StoredConflict],
    table: Option<&TargetTable>,
) -> Undo {
    let outcome = ConflictOutcome::from_name(&conflict.outcome);
    let kind = conflict.kind.parse::<ConflictType>();
    let (Some(outcome), Ok(kind)) = (outcome, kind) else {
        return Undo::Unknown("Another version of pgsluice wrote the record.".to_owned());
    };
    match (outcome, kind) {
        (ConflictOutcome::Error, _) => {
            return Undo::Nothing("pgsluice rolled the transaction back, so it wrote nothing.".to_owned());
        }
        (_, ConflictType::DeleteMissing) => {
            return Undo::Nothing("There was no row to delete, so nothing was written.".to_owned());
        }
        _ => {}
    }
    let recorded = Recorded::read(conflict);
    if recorded.is_empty() {
        return Undo::Unknown(
            "The record has no values: conflict_log_values was off when pgsluice met the conflict. With \
             conflict_log_values = on, later records have them."
                .to_owned(),
        );
    }
    let Some(table) = table else {
        let (schema, name) = &conflict.table;
        return Undo::Unknown(format!("The target has no table {schema}.{name} any more."));
    };
    let statements = match kind {
        ConflictType::UpdateExists | ConflictType::MultipleUniqueConflicts => {
            of_several(table, outcome, &recorded, together)
        }
        _ => of_one(table, kind, outcome, &recorded),
    };
    match statements {
        Ok(statements) => Undo::Statements(statements),
        Err(why) => Undo::Unknown(why),
    }
}

/// A conflict with one row, or with the lack of one.
fn of_one(
    table: &TargetTable,
    kind: ConflictType,
    outcome: ConflictOutcome,
    recorded: &Recorded,
) -> Result<Vec<String>, String> {
    let written = outcome == ConflictOutcome::Applied;
    Ok(match kind {
        ConflictType::DeleteOriginDiffers if written => {
            vec![insert(table, &whole(table, recorded.local()?)?)]
        }
        ConflictType::DeleteOriginDiffers => vec![delete(table, recorded.local()?)?],
        ConflictType::UpdateMissing | ConflictType::UpdateDeleted if written => {
            vec![delete(table, recorded.remote()?)?]
        }
        ConflictType::UpdateMissing | ConflictType::UpdateDeleted => {
            vec![insert(table, &sent(table, recorded)?)]
        }
        _ => {
            let local = whole(table, recorded.local()?)?;
            let both = overlaid(&local, recorded.remote()?);
            if written { rewrite(table, &both, &local)? } else { rewrite(table, &local, &both)? }
        }
    })
}

/// A change that several rows stood in the way of, or a row other than its own.
fn of_several(
    table: &TargetTable,
    outcome: ConflictOutcome,
    recorded: &Recorded,
    together: &[StoredConflict],
) -> Result<Vec<String>, String> {
    let mut holders: Vec<Row> = Vec::new();
    for other in together {
        let local = whole(table, Recorded::read(other).local()?)?;
        // One row may hold several of the keys.
        if !holders.contains(&local) {
            holders.push(local);
        }
    }
    let remote = recorded.remote()?;
    let mut statements = Vec::new();
    if outcome == ConflictOutcome::Kept {
        if let ([holder], None) = (holders.as_slice(), &recorded.identity) {
            return rewrite(table, holder, &overlaid(holder, remote));
        }
        for holder in &holders {
            statements.push(delete(table, holder)?);
        }
        match &recorded.identity {
            Some(identity) => statements.push(update(table, &identity.columns, remote)?),
            None => statements.push(insert(table, remote)),
        }
        return Ok(statements);
    }
    match &recorded.identity {
        Some(identity) => {
            let before = &identity.columns;
            if remote.iter().any(|(name, _)| get(before, name).is_none()) {
                return Err(
                    "The record lacks the row as it was before the UPDATE. With REPLICA IDENTITY FULL on \
                            the source, later records have it."
                        .to_owned(),
                );
            }
            statements.push(update(table, &overlaid(before, remote), before)?);
        }
        None => statements.push(delete(table, remote)?),
    }
    statements.extend(holders.iter().map(|holder| insert(table, holder)));
    Ok(statements)
}

/// `row` as a whole row of the table; the error names a column that it lacks.
fn whole(table: &TargetTable, row: &Row) -> Result<Row, String> {
    let value = |column: &TargetColumn| match get(row, &column.name) {
        Some(value) => Ok((column.name.clone(), value.clone())),
        None => Err(format!(
            "The record has no value of column \"{}\": it is too large to be recorded, or the column was added later.",
            column.name
        )),
    };
    table.written().map(value).collect()
}

/// The new row of an UPDATE, to be inserted. A column that only the target has takes its default.
fn sent(table: &TargetTable, recorded: &Recorded) -> Result<Row, String> {
    let before = recorded.identity.as_ref().map_or(&[][..], |identity| &identity.columns);
    let row = overlaid(before, recorded.remote()?);
    // With FULL, the identity has all columns of the source.
    let is_full = table.columns.iter().any(|column| !column.key && get(before, &column.name).is_some());
    let lacks = |column: &&TargetColumn| column.may_be_large && get(&row, &column.name).is_none();
    match table.written().find(lacks).filter(|_| !is_full) {
        None => Ok(row),
        Some(column) => Err(format!(
            "The record has no value of column \"{}\": the source did not send it, or has no such column. With REPLICA \
             IDENTITY FULL on the source, later records have all of its columns.",
            column.name
        )),
    }
}

fn get<'r>(row: &'r [(String, Option<String>)], name: &str) -> Option<&'r Option<String>> {
    row.iter().find(|(own, _)| own == name).map(|(_, value)| value)
}

/// `below` with the values of `above` where that has one.
fn overlaid(below: &[(String, Option<String>)], above: &[(String, Option<String>)]) -> Row {
    let mut row = below.to_vec();
    for (name, value) in above {
        match row.iter_mut().find(|(own, _)| own == name) {
            Some((_, own)) => own.clone_from(value),
            None => row.push((name.clone(), value.clone())),
        }
    }
    row
}

/// A value of any type: the server reads the text as the column's type.
fn literal(value: Option<&str>) -> String {
    value.map_or_else(|| "NULL".to_owned(), quote_literal)
}

/// The condition that finds `row`.
fn place(table: &TargetTable, row: &[(String, Option<String>)]) -> Result<String, String> {
    let mut conditions = Vec::new();
    for column in table.columns.iter().filter(|column| column.key) {
        let Some(Some(value)) = get(row, &column.name) else {
            return Err(format!("The record has no value of the key column \"{}\".", column.name));
        };
        let (name, type_name) = (quote_ident(&column.name), &column.type_name);
        conditions.push(format!("{name} = {}::{type_name}", quote_literal(value)));
    }
    match conditions.is_empty() {
        true => Err(
            "The table has no primary key and no replica identity index by which an undo could find the row."
                .to_owned(),
        ),
        false => Ok(conditions.join(" AND ")),
    }
}

fn delete(table: &TargetTable, row: &Row) -> Result<String, String> {
    Ok(format!("DELETE FROM {} WHERE {}", table.sql, place(table, row)?))
}

/// Inserts the values that `row` has.
fn insert(table: &TargetTable, row: &Row) -> String {
    let given = table.written().filter_map(|column| Some((column, get(row, &column.name)?)));
    let (names, values): (Vec<_>, Vec<_>) =
        given.map(|(column, value)| (quote_ident(&column.name), literal(value.as_deref()))).unzip();
    let overriding = match table.columns.iter().any(|column| column.identity_always) {
        true => " OVERRIDING SYSTEM VALUE",
        false => "",
    };
    let into = table.sql.trim_start_matches("ONLY ");
    format!("INSERT INTO {into} ({}){overriding} VALUES ({})", names.join(", "), values.join(", "))
}

/// Gives the row that is found as `at` the values of `new`.
fn update(table: &TargetTable, at: &Row, new: &Row) -> Result<String, String> {
    let given = table.written().filter(|column| !column.identity_always);
    let set = given.filter_map(|column| {
        let value = get(new, &column.name)?;
        Some(format!("{} = {}", quote_ident(&column.name), literal(value.as_deref())))
    });
    let set: Vec<String> = set.collect();
    let moved = table.columns.iter().filter(|column| column.identity_always);
    let moved = moved.map(|column| (get(at, &column.name), get(new, &column.name)));
    if set.is_empty() || moved.into_iter().any(|(at, new)| new.is_some() && at != new) {
        return Err("An UPDATE cannot give an identity column GENERATED ALWAYS its value.".to_owned());
    }
    Ok(format!("UPDATE {} SET {} WHERE {}", table.sql, set.join(", "), place(table, at)?))
}

/// Makes the row `at` into `new`, both whole. An identity column GENERATED ALWAYS takes a value
/// only from an INSERT.
fn rewrite(table: &TargetTable, at: &Row, new: &Row) -> Result<Vec<String>, String> {
    let moves =
        |column: &&TargetColumn| column.identity_always && get(at, &column.name) != get(new, &column.name);
    match table.columns.iter().any(|column| moves(&column)) {
        true => Ok(vec![delete(table, at)?, insert(table, new)]),
        false => Ok(vec![update(table, at, new)?]),
    }
}

#[cfg(test)]
mod tests;
