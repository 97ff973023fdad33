//! Makes the types on the target that hold one array each.
//!
//! The parameters of a set are one array for each column, and PostgreSQL has no array of arrays. So
//! a type of schema `pgsluice` with one column, `value`, wraps each inner array. One type serves
//! every table. The types that are needed are made before the stream begins or before a table joins
//! it, and they go with the schema. The plan puts the values into them.

use base::{Oid, quote_ident};

use crate::error::Error;
use crate::schema::STATE_SCHEMA;
use crate::state::State;

/// $1 array types. Returns, for those without a holder, the holder's name and the array type as
/// SQL.
const MISSING: &str = "
SELECT 'array_of_' || e.typname, pg_catalog.format('%I.%I[]', n.nspname, e.typname)
  FROM pg_catalog.pg_type a
  JOIN pg_catalog.pg_type e ON e.oid = a.typelem
  JOIN pg_catalog.pg_namespace n ON n.oid = e.typnamespace
 WHERE a.oid = ANY ($1)
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_type h JOIN pg_catalog.pg_namespace s ON s.oid = h.typnamespace
                    WHERE s.nspname = 'pgsluice' AND h.typname = 'array_of_' || e.typname)";

impl State {
    /// Makes the missing types that hold values of the built-in array types `arrays`.
    ///
    /// # Errors
    /// A statement failed: the role may have no right to create in the schema.
    pub async fn make_holders(&self, arrays: &[Oid]) -> Result<(), Error> {
        let arrays: Vec<u32> = arrays.iter().map(|oid| oid.0).collect();
        let session = self.session();
        let lost = |error| Error::from(session.error(error));
        if arrays.is_empty() || session.query(MISSING, &[&arrays]).await.map_err(lost)?.is_empty() {
            return Ok(());
        }
        // As for the schema's tables: wait for another process that may be making the same types.
        let begin = "BEGIN; SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('pgsluice'))";
        session.batch_execute(begin).await.map_err(lost)?;
        let made = async {
            for row in session.query(MISSING, &[&arrays]).await? {
                let (name, array): (String, String) = (row.get(0), row.get(1));
                let name = quote_ident(&name);
                session
                    .batch_execute(&format!("CREATE TYPE {STATE_SCHEMA}.{name} AS (value {array})"))
                    .await?;
            }
            session.batch_execute("COMMIT").await
        };
        let made = made.await;
        if made.is_err() {
            // The first error says what went wrong.
            let _ = session.batch_execute("ROLLBACK").await;
        }
        made.map_err(lost)
    }
}
