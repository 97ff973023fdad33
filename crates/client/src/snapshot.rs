//! Reads a snapshot from a row of a session, where the server sends it as text.

use std::error::Error;

use base::PgSnapshot;
use tokio_postgres::types::{FromSql, Type};

/// The value of `pg_current_snapshot()::text`. Text that is not a snapshot is an error of the row,
/// which names the column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotText(pub PgSnapshot);

impl FromSql<'_> for SnapshotText {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(SnapshotText(std::str::from_utf8(raw)?.parse()?))
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::TEXT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_no_snapshot_is_an_error() {
        let read = |raw: &[u8]| SnapshotText::from_sql(&Type::TEXT, raw).map(|text| text.0.to_string());
        assert_eq!(read(b"10:20:10,15").unwrap(), "10:20:10,15");
        for raw in [&b""[..], b"10:20", b"10:20:x", b"\xff"] {
            assert!(read(raw).is_err(), "{raw:?}");
        }
    }
}
