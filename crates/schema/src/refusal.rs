//! A statement that the target refused, as an error: what it would have made, and the remedy.

use client::{Session, SqlState};
use sql_tokens::words;

use crate::Error;

/// More of a statement is no help.
const STATEMENT_SHOWN_MAX: usize = 200;

/// A statement that the target did not take, with what to do about it.
pub(crate) fn refused(
    session: &Session,
    object: &str,
    statement: &str,
    error: tokio_postgres::Error,
) -> Error {
    let error = session.error(error);
    let remedy = error.sqlstate().and_then(|code| remedy(code, object));
    let shown = shown(statement);
    let object = if object.trim().is_empty() { "the schema" } else { object };
    Error::client(format!("create {object} on the target ({shown})"), error).with_remedy(remedy)
}

/// The beginning of a statement, on one line and without options: those of a
/// user mapping have passwords.
fn shown(statement: &str) -> String {
    let options = words(statement).into_iter().find(|word| word.is("options"));
    let end = options.map_or(statement.len(), |options| options.start);
    let one_line = statement[..end].split_whitespace().collect::<Vec<_>>().join(" ");
    let mut shown: String = one_line.chars().take(STATEMENT_SHOWN_MAX).collect();
    if shown.len() < one_line.len() || end < statement.len() {
        shown.push_str(" ...");
    }
    shown
}

pub(crate) fn remedy(code: &str, object: &str) -> Option<String> {
    let text = match SqlState::from_code(code) {
        SqlState::UNDEFINED_FILE | SqlState::FEATURE_NOT_SUPPORTED if object.starts_with("EXTENSION ") => {
            "install the extension's package on the target's machine, or drop the extension on the source if nothing needs it"
        }
        SqlState::INSUFFICIENT_PRIVILEGE => {
            "let a role that may create it run this start, a superuser for some; or GRANT CREATE ON the target's \
             DATABASE and SCHEMA to this one"
        }
        SqlState::DUPLICATE_SCHEMA
        | SqlState::DUPLICATE_TABLE
        | SqlState::DUPLICATE_OBJECT
        | SqlState::DUPLICATE_FUNCTION => {
            "--create-schema wants a target without the source's objects: drop it there, or use an empty database"
        }
        SqlState::SYNTAX_ERROR => {
            "the target's version may be too old for it: use a newer target, or change it on the source"
        }
        _ => return None,
    };
    Some(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_shown_in_short_and_without_options() {
        assert_eq!(shown("CREATE  TABLE t (\n    a int)"), "CREATE TABLE t ( a int)");
        let mapping = "CREATE USER MAPPING FOR me SERVER s OPTIONS (\n    password 'secret'\n)";
        assert_eq!(shown(mapping), "CREATE USER MAPPING FOR me SERVER s ...");
        let long = shown(&format!("SELECT '{}'", "é".repeat(300)));
        assert_eq!(long.chars().count(), STATEMENT_SHOWN_MAX + 4);
    }
}
