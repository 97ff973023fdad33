//! The words every stage shares, and nothing else.
//!
//! Positions in the WAL, transaction ids, object ids, server versions, a
//! subscription's name and its progress. Depends on nothing, does no I/O and
//! knows no protocol: a type belongs here only when at least three stages
//! need it and its meaning is PostgreSQL's, not ours.

pub mod crash_phases;
pub mod error_reference;
mod ids;
mod lsn;
pub mod pglz;
mod progress;
mod snapshot;
mod subscription;
mod time;
mod version;

pub use ids::{Oid, RelFileLocator, Xid};
pub use lsn::{Lsn, ParseLsnError};
pub use progress::{Progress, ProgressSnapshot};
pub use snapshot::{ParseSnapshotError, PgSnapshot};
pub use subscription::{NameError, SubscriptionName};
pub use time::PgTimestamp;
pub use version::PgVersion;

/// `name` as an SQL identifier: always quoted, embedded quotes doubled.
#[must_use]
pub fn quote_ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `text` as an SQL string literal that does not depend on
/// `standard_conforming_strings`.
#[must_use]
pub fn quote_literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') { format!("E'{}'", quoted.replace('\\', "\\\\")) } else { format!("'{quoted}'") }
}

/// `error` and its causes in one line.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        // Some errors print their cause themselves.
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_survives_quotes_and_backslashes() {
        assert_eq!(quote_ident(r#"a"B"#), r#""a""B""#);
        assert_eq!(quote_literal("it's"), "'it''s'");
        assert_eq!(quote_literal(r"a\'b"), r"E'a\\''b'");
    }
}
