//! `pgsluice conflicts [--json]`, and `pgsluice conflicts --id N`.
//!
//! Reads the history on the target, whether a process runs the subscription or not. The text is a
//! table of 100 columns, the newest conflict first. The JSON form is one object per conflict
//! and line. With `--id` the text explains one conflict, and the object has `undo`.

mod explained;
mod table;

use conflict::ColumnValues;
use explained::values;
use operate::conflicts::{self, Filter, StoredConflict, Undo};
use serde::Serialize;

use super::{connect, from_admin};
use crate::cli::ConflictsArgs;
use crate::exit::Code;
use crate::failure::Failure;
use crate::invocation::complete;
use crate::subject::Subject;

/// One line of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    subscription: &'a str,
    id: i64,
    at: &'a str,
    r#type: &'a str,
    schema: &'a str,
    table: &'a str,
    index: Option<&'a str>,
    resolution: &'a str,
    outcome: &'a str,
    remote_xid: i64,
    finished_at: String,
    remote_time: &'a str,
    remote_origin: Option<&'a str>,
    local_xid: Option<i64>,
    local_origin: Option<&'a str>,
    local_time: Option<&'a str>,
    key: Option<ColumnValues>,
    local_row: Option<ColumnValues>,
    remote_row: Option<ColumnValues>,
    replica_identity: Option<ColumnValues>,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    undo: Option<UndoDocument<'a>>,
}

/// What would undo a decision: statements, or the reason why there are none.
#[derive(Serialize)]
struct UndoDocument<'a> {
    statements: &'a [String],
    reason: Option<&'a str>,
}

/// Lists the conflicts that `args` asks for, or explains one.
pub(crate) async fn conflicts(subject: &Subject, args: &ConflictsArgs) -> anyhow::Result<Code> {
    let name = &subject.name;
    let target = connect("target", &subject.target()?, name).await?;
    if let Some(id) = args.id {
        let found = conflicts::explain(&target, name, id).await.map_err(from_admin)?;
        let (conflict, undo) = found.ok_or(Failure::NoConflict { name: name.clone(), id })?;
        match args.json {
            true => say_json(name.as_str(), &conflict, Some(&undo))?,
            false => {
                super::say(format_args!("{}", explained::text(name.as_str(), &conflict, &undo).trim_end()))
            }
        }
        return Ok(Code::Done);
    }
    let mut times = [None, None];
    for (time, (flag, text)) in times.iter_mut().zip([("--since", &args.since), ("--until", &args.until)]) {
        let Some(text) = text else { continue };
        let read = conflicts::time(&target, text).await.map_err(from_admin)?;
        *time = Some(read.map_err(|message| not_a_time(flag, text, &message))?);
    }
    let [since, until] = times;
    let filter = Filter {
        kind: args.r#type,
        table: args.table.clone(),
        key: (!args.key.is_empty()).then(|| key_of(&args.key).json()),
        since,
        until,
        resolution: args.resolution,
    };
    let mut found =
        conflicts::list(&target, name, &filter, args.limit.saturating_add(1)).await.map_err(from_admin)?;
    let more = found.len() > args.limit as usize;
    found.truncate(args.limit as usize);
    if args.json {
        for conflict in &found {
            say_json(name.as_str(), conflict, None)?;
        }
        return Ok(Code::Done);
    }
    let text = match found.as_slice() {
        [] if filter == Filter::default() => format!("{name}: the target's history has no conflict"),
        [] => format!("{name}: the target's history has no such conflict"),
        found => table::text(found, more),
    };
    super::say(format_args!("{}", complete(&text, Some(name.as_str()))));
    Ok(Code::Done)
}

fn key_of(key: &[(String, String)]) -> ColumnValues {
    let columns = key.iter().map(|(column, value)| (column.clone(), Some(value.clone())));
    ColumnValues { columns: columns.collect(), whole: false }
}

fn not_a_time(flag: &str, text: &str, message: &str) -> Failure {
    Failure::Value {
        value: text.to_owned(),
        place: flag.to_owned(),
        reason: format!(
            "{message}; write a time as PostgreSQL reads it, such as 2026-11-25 18:00 or yesterday"
        ),
    }
}

fn say_json(name: &str, conflict: &StoredConflict, undo: Option<&Undo>) -> anyhow::Result<()> {
    let undo = undo.map(|undo| match undo {
        Undo::Statements(statements) => UndoDocument { statements, reason: None },
        Undo::Nothing(why) | Undo::Unknown(why) => UndoDocument { statements: &[], reason: Some(why) },
    });
    let document = Document {
        subscription: name,
        id: conflict.id,
        at: &conflict.at,
        r#type: &conflict.kind,
        schema: &conflict.table.0,
        table: &conflict.table.1,
        index: conflict.index.as_deref(),
        resolution: &conflict.resolution,
        outcome: &conflict.outcome,
        remote_xid: conflict.remote_xid,
        finished_at: conflict.finished_at.to_string(),
        remote_time: &conflict.remote_time,
        remote_origin: conflict.remote_origin.as_deref(),
        local_xid: conflict.local_xid,
        local_origin: conflict.local_origin.as_deref(),
        local_time: conflict.local_time.as_deref(),
        key: values(conflict.key.as_ref()),
        local_row: values(conflict.local_row.as_ref()),
        remote_row: values(conflict.remote_row.as_ref()),
        replica_identity: values(conflict.replica_identity.as_ref()),
        detail: &conflict.detail,
        undo,
    };
    super::say(format_args!("{}", serde_json::to_string(&document)?));
    Ok(())
}
