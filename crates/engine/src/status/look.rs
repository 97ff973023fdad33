//! What a backend of ours does, as its server says when it is asked.

use std::time::Duration;

/// What a backend of ours does, by its server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BackendLook {
    /// `source` or `target`.
    pub(crate) end: &'static str,
    pub(crate) pid: i32,
    /// `None` where the server does not track it.
    pub(crate) state: Option<String>,
    pub(crate) wait_event: Option<(String, String)>,
    /// Operation and table of its statement.
    pub(crate) operation: Option<String>,
    pub(crate) table: Option<String>,
    pub(crate) lasts: Duration,
}

impl BackendLook {
    /// Whether the backend executes something for us.
    pub(crate) fn works(&self) -> bool {
        let active = self
            .state
            .as_deref()
            .is_none_or(|state| matches!(state, "active" | "fastpath function call" | "disabled"));
        active && !self.waits_for_us()
    }

    /// Whether it has nothing to do before we send more.
    pub(super) fn waits_for_us(&self) -> bool {
        self.wait_event.as_ref().is_some_and(|(_, name)| name == "ClientRead")
    }

    /// Explains a wait in its statement, if that helps more than its name.
    pub(super) fn why(&self) -> Option<String> {
        let (kind, name) = self.wait_event.as_ref()?;
        Some(match (kind.as_str(), name.as_str()) {
            (_, "SyncRep") => {
                "a synchronous standby that does not confirm (SyncRep): see pg_stat_replication there"
                    .to_owned()
            }
            (_, "WALSync" | "WalSync" | "WALWrite" | "WalWrite") => {
                format!("its WAL to reach the disk ({name})")
            }
            ("Client", "ClientWrite") => "us to take its answer (ClientWrite)".to_owned(),
            ("IO", _) => format!("its storage ({name})"),
            _ => format!("{kind}: {name}"),
        })
    }
}

/// The operation and the table of a statement of ours.
pub(crate) fn read_statement(sql: &str) -> (Option<String>, Option<String>) {
    let inner =
        ["WITH met AS (", "WITH d AS ("].iter().find_map(|start| sql.strip_prefix(start)).unwrap_or(sql);
    let operation: String = inner.trim_start().chars().take_while(char::is_ascii_alphabetic).collect();
    let behind = match operation.as_str() {
        "INSERT" => Some("INSERT INTO "),
        "UPDATE" => Some("UPDATE "),
        "DELETE" => Some("DELETE FROM "),
        "COPY" => Some("COPY "),
        "TRUNCATE" => Some("TRUNCATE "),
        "ANALYZE" => Some("ANALYZE "),
        // A look-up: its keys come from arrays, and the first real name is the table's.
        "SELECT" => inner.find("FROM \"").or_else(|| inner.find("FROM ONLY \"")).map(|_| "FROM "),
        _ => None,
    };
    let table = behind.and_then(|behind| match operation.as_str() {
        "SELECT" => inner.match_indices(behind).find_map(|(at, _)| name_at(&inner[at + behind.len()..])),
        _ => name_at(inner.trim_start().strip_prefix(behind)?),
    });
    (Some(operation).filter(|operation| !operation.is_empty()), table)
}

/// Reads `"schema"."table"`, with or without ONLY before it, as `schema.table`.
fn name_at(text: &str) -> Option<String> {
    let mut rest = text.strip_prefix("ONLY ").unwrap_or(text);
    let mut parts = Vec::new();
    loop {
        let (mut part, mut chars) = (String::new(), rest.strip_prefix('"')?.char_indices().peekable());
        let end = loop {
            match chars.next()? {
                (_, '"') if chars.peek().is_some_and(|(_, next)| *next == '"') => {
                    chars.next();
                    part.push('"');
                }
                (at, '"') => break at,
                (_, c) => part.push(c),
            }
        };
        parts.push(part);
        match rest[end + 2..].strip_prefix('.') {
            Some(more) => rest = more,
            None => return Some(parts.join(".")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_of_ours_names_its_operation_and_its_table() {
        for (sql, operation, table) in [
            ("UPDATE ONLY \"s\".\"t\" AS t SET \"a\" = s.c1 FROM (SELECT", "UPDATE", Some("s.t")),
            ("UPDATE \"s\".\"odd \"\"name\" AS t SET", "UPDATE", Some("s.odd \"name")),
            ("DELETE FROM ONLY \"s\".\"t\" AS t USING (SELECT", "DELETE", Some("s.t")),
            ("INSERT INTO \"s\".\"t\" (\"a\") OVERRIDING", "INSERT", Some("s.t")),
            ("WITH met AS (INSERT INTO \"s\".\"t\" (\"a\")", "INSERT", Some("s.t")),
            ("WITH d AS (DELETE FROM ONLY \"s\".\"t\" AS t WHERE", "DELETE", Some("s.t")),
            ("COPY \"s\".\"t\" (\"a\") FROM STDIN", "COPY", Some("s.t")),
            ("TRUNCATE ONLY \"s\".\"t\", \"s\".\"u\"", "TRUNCATE", Some("s.t")),
            (
                "SELECT 1 FROM (SELECT pg_catalog.unnest($1) AS c0) AS s WHERE EXISTS (SELECT FROM ONLY \"s\".\"t\" AS t",
                "SELECT",
                Some("s.t"),
            ),
            ("COMMIT", "COMMIT", None),
            ("UPDATE ONLY \"s\".\"cut of", "UPDATE", None),
        ] {
            assert_eq!(read_statement(sql), (Some(operation.to_owned()), table.map(str::to_owned)), "{sql}");
        }
        assert_eq!(read_statement(""), (None, None));
    }
}
