//! One conflict in words: who wrote what and when, what was done and why, and what would undo it.

use std::fmt::Write as _;

use conflict::{ColumnValues, ConflictType, Resolution};
use operate::conflicts::{StoredConflict, Undo};

use super::table::WIDTH;
use crate::paragraph::wrapped;

/// Width of the names on the left.
const NAME: usize = 14;

/// All about one conflict.
pub(super) fn text(name: &str, conflict: &StoredConflict, undo: &Undo) -> String {
    let mut lines = Lines::default();
    let (schema, table) = &conflict.table;
    lines.add("conflict", &format!("{} of subscription {name}, met at {}", conflict.id, conflict.at));
    lines.add("type", &format!("{} on table {schema}.{table}", conflict.kind));
    lines.add("source", &source(conflict));
    lines.add("target", &target(conflict));
    lines.add("done", &done(conflict));
    lines.add("why", &why(conflict));
    lines.add("detail", &conflict.detail);
    rows(&mut lines, conflict);
    match undo {
        Undo::Nothing(why) | Undo::Unknown(why) => lines.add("undo", why),
        Undo::Statements(statements) => {
            lines.add("undo", "on the target, unless a later change has touched these rows:");
            let all: Vec<String> = match statements.as_slice() {
                [one] => vec![format!("{one};")],
                several => {
                    let inner = several.iter().map(|statement| format!("{statement};"));
                    ["BEGIN;".to_owned()].into_iter().chain(inner).chain(["COMMIT;".to_owned()]).collect()
                }
            };
            lines.0.push_str(&format!("\n{}\n", all.join("\n")));
        }
    }
    lines.0
}

/// A row or a key of the history; `None` if it was not recorded.
pub(super) fn values(json: Option<&String>) -> Option<ColumnValues> {
    serde_json::from_str(json?).ok()
}

/// Names on the left, values on the right.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, value: &str) {
        let first = format!("{name:<NAME$}");
        self.0.push_str(&wrapped(&first, value));
        self.0.push('\n');
    }
}

/// Whose change it was.
fn source(conflict: &StoredConflict) -> String {
    let StoredConflict { remote_xid, remote_time, finished_at, remote_origin, .. } = conflict;
    let origin =
        remote_origin.as_ref().map(|origin| format!(", from origin \"{origin}\"")).unwrap_or_default();
    format!("transaction {remote_xid}, committed at {remote_time}{origin}, finished at {finished_at}")
}

/// Who wrote the target's row, or deleted it.
fn target(conflict: &StoredConflict) -> String {
    let Some(xid) = conflict.local_xid else {
        return match conflict.kind.ends_with("_missing") {
            true => "has no such row".to_owned(),
            false => "pgsluice did not look who wrote the row".to_owned(),
        };
    };
    let by = match conflict.local_origin.as_deref() {
        None => "".to_owned(),
        Some("") => " of the target itself".to_owned(),
        Some("?") => " of an origin that was dropped".to_owned(),
        Some(origin) => format!(" of origin \"{origin}\""),
    };
    let at = match &conflict.local_time {
        Some(time) => format!(" at {time}"),
        None => "; track_commit_timestamp would say when, and from which origin".to_owned(),
    };
    let did = if conflict.kind == "update_deleted" { "deleted" } else { "last written" };
    format!("the row was {did} by transaction {xid}{by}{at}")
}

/// What became of the change.
fn done(conflict: &StoredConflict) -> String {
    match conflict.outcome.as_str() {
        "applied" => "pgsluice wrote the change from the source".to_owned(),
        "kept" => "pgsluice left the change out; the target's rows stay".to_owned(),
        _ => "pgsluice rolled the source's transaction back".to_owned(),
    }
}

/// The rule that decided, and what it compared.
fn why(conflict: &StoredConflict) -> String {
    let StoredConflict { kind, resolution, .. } = conflict;
    let (known, rule) = (kind.parse::<ConflictType>(), resolution.parse::<Resolution>());
    let means = match (&known, &rule) {
        (_, Ok(Resolution::LastUpdateWins)) => ": of two commit times the later wins",
        (_, Ok(Resolution::FirstUpdateWins)) => ": of two commit times the earlier wins",
        (Ok(kind), Ok(rule)) if kind.native() == *rule => ", as PostgreSQL's own subscriber does",
        _ => "",
    };
    format!("the rule {kind}={resolution}{means}")
}

/// Both rows, column by column; nothing where they were not recorded.
fn rows(lines: &mut Lines, conflict: &StoredConflict) {
    let local = values(conflict.local_row.as_ref());
    let remote = values(conflict.remote_row.as_ref());
    let identity = values(conflict.replica_identity.as_ref());
    if let Some(key) = values(conflict.key.as_ref()) {
        lines.add("key", &key.to_string());
    }
    if let Some(identity) =
        identity.filter(|own| remote.is_none() || local.is_none() && !own.columns.is_empty())
    {
        lines.add("identity", &identity.to_string());
    }
    if local.is_none() && remote.is_none() {
        return;
    }
    let none = ColumnValues::default();
    let (local, remote) = (local.unwrap_or_else(|| none.clone()), remote.unwrap_or(none));
    let mut names: Vec<&str> = local.columns.iter().map(|(name, _)| name.as_str()).collect();
    for (name, _) in &remote.columns {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let widest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).clamp(6, 20);
    let room = (WIDTH - widest - 4) / 2;
    let mut line = |name: &str, local: &str, remote: &str| {
        let cells = [cut(name, widest), cut(local, room), cut(remote, room)];
        let text = format!("{:<widest$}  {:<room$}  {}", cells[0], cells[1], cells[2]);
        // Writing to a String cannot fail.
        let _ = writeln!(lines.0, "{}", text.trim_end());
    };
    line("", "", "");
    line("column", "target's row", "source's row");
    for name in names {
        line(name, &cell(local.get(name)), &cell(remote.get(name)));
    }
    line("", "", "");
}

/// A value in one line; `-` where there is no such column.
fn cell(value: Option<Option<&str>>) -> String {
    match value {
        None => "-".to_owned(),
        Some(None) => "NULL".to_owned(),
        Some(Some(text)) => {
            let plain = |c: char| match c.is_control() {
                true => c.escape_default().to_string(),
                false => c.to_string(),
            };
            text.chars().map(plain).collect()
        }
    }
}

/// The beginning of `text`, with dots where it is longer than `room`.
fn cut(text: &str, room: usize) -> String {
    match text.chars().count() <= room {
        true => text.to_owned(),
        false => text.chars().take(room - 1).chain(['…']).collect(),
    }
}
