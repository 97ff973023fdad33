//! Advice for refusals whose message has only the cause.
//!
//! Replication meets two of them: the target lacks a partition, or a function uses a name that only
//! the user's own `search_path` resolves. This module recognises both by SQLSTATE and by the place
//! in the server or the function that raised them, because the server may translate its message. It
//! never shows detail and context, because they may quote a row.

use base::quote_ident;
use proto::frame::ServerError;
use tokio_postgres::error::SqlState;

/// The advice for a server that refused something while it wrote a row; `None` if its own message
/// must suffice.
#[must_use]
pub fn advice(error: &ServerError) -> Option<String> {
    match SqlState::from_code(&error.code) {
        SqlState::CHECK_VIOLATION if error.routine.as_deref() == Some("ExecFindPartition") => {
            partition(error)
        }
        SqlState::UNDEFINED_FUNCTION
        | SqlState::UNDEFINED_OBJECT
        | SqlState::UNDEFINED_TABLE
        | SqlState::INVALID_SCHEMA_NAME => search_path(error),
        _ => None,
    }
}

fn partition(error: &ServerError) -> Option<String> {
    let (schema, table) = (error.schema.as_deref()?, error.table.as_deref()?);
    let [parent, new, default] = [table.to_owned(), format!("{table}_new"), format!("{table}_default")]
        .map(|name| format!("{}.{}", quote_ident(schema), quote_ident(&name)));
    Some(format!(
        "create the partition on the target as the source has it: CREATE TABLE {new} PARTITION OF {parent} FOR VALUES ...; \
         or one for all rows without, which a table that is partitioned by hash cannot have: CREATE TABLE {default} \
         PARTITION OF {parent} DEFAULT"
    ))
}

/// Only if a function was running: pgsluice's own statements give every name with its schema.
fn search_path(error: &ServerError) -> Option<String> {
    let function = running(error.context.as_deref()?)?;
    Some(format!(
        "pgsluice writes with an empty search_path, as native replication does, and function {function} names this without \
         its schema; name the schema there, or run on the target, in a session that finds it: ALTER FUNCTION {function} SET \
         search_path FROM CURRENT"
    ))
}

/// The function that was running, from the first line of the server's call stack.
fn running(context: &str) -> Option<String> {
    let line = context.lines().next()?;
    if line.starts_with("PL/pgSQL") {
        // "PL/pgSQL function public.f(integer) line 3 at RETURN", translated but for the signature.
        let open = line.find('(')?;
        let start = line[..open].rfind(' ')? + 1;
        let end = open + line[open..].find(')')?;
        return Some(line[start..=end].to_owned());
    }
    // `SQL function "f" statement 1`, without schema and arguments.
    let named = line.starts_with("SQL").then(|| line.split('"').nth(1))??;
    (!named.is_empty()).then(|| quote_ident(named))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(code: &str, context: &str) -> ServerError {
        let context = Some(context.to_owned());
        ServerError { context, ..ServerError::new("ERROR", code, "function f(integer) does not exist") }
    }

    #[test]
    fn the_function_that_lacks_a_schema_is_named() {
        let cases = [
            (
                "PL/pgSQL function public.valid(integer,text) line 1 at RETURN",
                Some("public.valid(integer,text)"),
            ),
            ("PL/pgSQL-Funktion public.valid(integer) Zeile 3 bei RETURN", Some("public.valid(integer)")),
            ("SQL function \"valid\" during inlining\nPL/pgSQL function a() line 1", Some("\"valid\"")),
            ("COPY t, line 1, column v: \"secret()\"", None),
            ("SQL statement", None),
        ];
        for (context, expected) in cases {
            let advice = advice(&with("42883", context));
            let command = expected.map(|name| format!("ALTER FUNCTION {name} SET search_path FROM CURRENT"));
            assert_eq!(advice.is_some(), expected.is_some(), "{context}");
            assert!(advice.is_none_or(|advice| advice.ends_with(&command.unwrap())), "{context}");
        }
    }

    #[test]
    fn a_missing_partition_has_its_sql_and_nothing_of_the_row() {
        let mut error = ServerError::new("ERROR", "23514", "no partition of relation \"t\" found for row");
        error.detail = Some("Partition key of the failing row contains (id) = (4711).".to_owned());
        assert_eq!(advice(&error), None, "another check");
        error.routine = Some("ExecFindPartition".to_owned());
        error.schema = Some("public".to_owned());
        error.table = Some("Orders".to_owned());
        let advice = advice(&error).unwrap();
        assert!(advice.contains("PARTITION OF \"public\".\"Orders\" FOR VALUES"), "{advice}");
        assert!(advice.contains("CREATE TABLE \"public\".\"Orders_default\" PARTITION OF"), "{advice}");
        assert!(!advice.contains("4711"), "{advice}");
    }
}
