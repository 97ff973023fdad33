//! Sequences, which logical replication does not carry.
//!
//! They are compared by schema-qualified name, source against target, by the value that `nextval`
//! would give next. A sequence that counts down is ahead if it is lower: ahead is always the
//! direction of the increment.
//!
//! ## Hazard
//! A session on the target may call `nextval` between the reading of a sequence and its setting.
//! Setting it would then move it back, and hand out a value twice. So pgsluice locks the sequence
//! against `nextval`, reads it again under the lock, and sets it. `ALTER SEQUENCE ... OWNER TO` its
//! present owner changes nothing and takes the strongest lock; `LOCK TABLE` refuses sequences.
//!
//! A role that does not own the sequence cannot lock it. Then one statement both reads and sets it,
//! and the gap is a few microseconds.

use base::quote_ident;
use client::{Session, SqlState};
use serde::Serialize;

use crate::admin::Error;

/// Sequences that one statement reads; limits its length.
const CHUNK: usize = 200;

/// A sequence's state: PostgreSQL's `last_value` and `is_called`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Value {
    /// The value that was given last, or will be given first.
    pub last_value: i64,
    /// Whether `last_value` was already given.
    pub is_called: bool,
}

/// The state of the target's sequence compared with the source's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Both give the same value next.
    Level,
    /// The target would give a value that the source has already given.
    Behind,
    /// The target is past the source.
    Ahead,
    /// The target has no such sequence.
    Missing,
}

/// One sequence on both ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sequence {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// The source's increment; never zero.
    pub increment: i64,
    /// The source's state.
    pub source: Value,
    /// The target's state.
    pub target: Option<Value>,
}

impl Value {
    /// The value that `nextval` would give if there were no bounds.
    fn next(self, increment: i64) -> i128 {
        i128::from(self.last_value) + if self.is_called { i128::from(increment) } else { 0 }
    }
}

impl Sequence {
    /// Compares the target with the source.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let Some(target) = self.target else { return Standing::Missing };
        let ahead = (target.next(self.increment) - self.source.next(self.increment))
            * i128::from(self.increment.signum());
        match ahead {
            0 => Standing::Level,
            1.. => Standing::Ahead,
            _ => Standing::Behind,
        }
    }

    /// `"schema"."name"`
    fn quoted(&self) -> String {
        format!("{}.{}", quote_ident(&self.schema), quote_ident(&self.name))
    }
}

// Sequences of the published tables, their partition roots and partitions: those that they own
// (serial, identity) and those that their defaults call.
const SEQUENCES: &str = "\
WITH published AS (
  SELECT DISTINCT c.oid FROM pg_catalog.pg_publication_tables p
  JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
  WHERE p.pubname::text = ANY ($1)
), related AS (
  SELECT oid FROM published
  UNION SELECT a.relid FROM published, LATERAL pg_catalog.pg_partition_ancestors(oid) AS a (relid)
  UNION SELECT t.relid FROM published, LATERAL pg_catalog.pg_partition_tree(oid) AS t
), used AS (
  SELECT d.objid AS oid FROM pg_catalog.pg_depend d JOIN related r ON d.refobjid = r.oid
  WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
    AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.deptype IN ('a', 'i')
  UNION
  SELECT d.refobjid FROM pg_catalog.pg_attrdef e JOIN related r ON e.adrelid = r.oid
  JOIN pg_catalog.pg_depend d ON d.objid = e.oid
  WHERE d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass
    AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
)
SELECT n.nspname::text, c.relname::text, s.seqincrement
FROM pg_catalog.pg_sequence s
JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relpersistence <> 't' AND ($2 OR s.seqrelid IN (SELECT oid FROM used))
ORDER BY 1, 2";

/// Reads both ends' values of every sequence that the tables of `publications` own or use, or of
/// every sequence in the database.
pub async fn compare(
    source: &Session,
    target: &Session,
    publications: &[String],
    all: bool,
) -> Result<Vec<Sequence>, Error> {
    let failed = |error| Error::query(source, "list the source's sequences", error);
    let rows = source.query(SEQUENCES, &[&publications, &all]).await.map_err(failed)?;
    let unread = Value { last_value: 0, is_called: false };
    let mut sequences: Vec<_> = rows
        .iter()
        .map(|row| Sequence {
            schema: row.get(0),
            name: row.get(1),
            increment: row.get(2),
            source: unread,
            target: None,
        })
        .collect();
    for (sequence, value) in read(source, "source", &sequences).await?.into_iter().enumerate() {
        // If it was dropped since it was listed, it has no value to compare.
        sequences[sequence].source = value.unwrap_or(unread);
    }
    for (sequence, value) in read(target, "target", &sequences).await?.into_iter().enumerate() {
        sequences[sequence].target = value;
    }
    Ok(sequences)
}

/// Reads the values of `sequences` at one end, in their order; `None` for those that do not exist
/// there.
async fn read(session: &Session, end: &str, sequences: &[Sequence]) -> Result<Vec<Option<Value>>, Error> {
    let failed = |error| Error::query(session, format!("read the {end}'s sequences"), error);
    let mut values = vec![None; sequences.len()];
    let schemas: Vec<&str> = sequences.iter().map(|sequence| sequence.schema.as_str()).collect();
    let names: Vec<&str> = sequences.iter().map(|sequence| sequence.name.as_str()).collect();
    let sql = "\
SELECT w.position FROM ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::text[]))
       WITH ORDINALITY AS w (schema_name, name, position)
JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema_name
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name AND c.relkind = 'S'";
    let rows = session.query(sql, &[&schemas, &names]).await.map_err(failed)?;
    // Ordinality counts from 1.
    let present: Vec<usize> = rows.iter().map(|row| row.get::<_, i64>(0) as usize - 1).collect();
    for chunk in present.chunks(CHUNK) {
        let parts: Vec<_> = chunk
            .iter()
            .map(|position| {
                format!(
                    "SELECT {position}::int8, last_value, is_called FROM {}",
                    sequences[*position].quoted()
                )
            })
            .collect();
        for row in session.query(&parts.join(" UNION ALL "), &[]).await.map_err(failed)? {
            let value = Value { last_value: row.get(1), is_called: row.get(2) };
            values[row.get::<_, i64>(0) as usize] = Some(value);
        }
    }
    Ok(values)
}

/// Sets the target's `sequence` to the source's value if it is behind, or if it is ahead and
/// `force` is set. Returns false if that was not needed after all.
pub async fn bring_level(target: &mut Session, sequence: &Sequence, force: bool) -> Result<bool, Error> {
    match set(target, sequence, force).await {
        Ok(done) => Ok(done),
        Err(error) => {
            let doing = format!("set sequence {} on the target", sequence.quoted());
            Err(Error::query(target, doing, error))
        }
    }
}

async fn set(target: &mut Session, sequence: &Sequence, force: bool) -> Result<bool, tokio_postgres::Error> {
    let quoted = sequence.quoted();
    let mut transaction = target.transaction().await?;
    let sql = "\
SELECT pg_catalog.quote_ident(r.rolname) FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_roles r ON r.oid = c.relowner WHERE c.oid = $1::text::pg_catalog.regclass";
    let owner: String = transaction.query_one(sql, &[&quoted]).await?.get(0);
    let savepoint = transaction.transaction().await?;
    match savepoint.batch_execute(&format!("ALTER SEQUENCE {quoted} OWNER TO {owner}")).await {
        Ok(()) => savepoint.commit().await?,
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            savepoint.rollback().await?;
        }
        Err(error) => return Err(error),
    }
    // The same comparison as Sequence::standing.
    let sql = format!(
        "SELECT pg_catalog.setval($7::text::pg_catalog.regclass, $1::int8, $2::bool) FROM {quoted} \
         WHERE (last_value::numeric + CASE WHEN is_called THEN $3::int8 ELSE 0 END - $4::text::numeric) * $5::int8 < 0 \
            OR $6::bool AND (last_value, is_called) <> ($1::int8, $2::bool)"
    );
    let (value, increment) = (sequence.source, sequence.increment);
    let next = value.next(increment).to_string();
    let sign = increment.signum();
    let done = transaction
        .query_opt(&sql, &[&value.last_value, &value.is_called, &increment, &next, &sign, &force, &quoted])
        .await?
        .is_some();
    transaction.commit().await?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ahead_is_the_direction_of_the_increment() {
        let called = |last_value| Value { last_value, is_called: true };
        let fresh = |last_value| Value { last_value, is_called: false };
        let cases = [
            (1, called(10), Some(called(10)), Standing::Level),
            (1, called(10), Some(fresh(11)), Standing::Level),
            (1, called(10), Some(called(9)), Standing::Behind),
            (1, fresh(1), Some(called(1)), Standing::Ahead),
            (-1, called(-10), Some(called(-9)), Standing::Behind),
            (-1, called(-10), Some(called(-11)), Standing::Ahead),
            (5, called(i64::MAX), Some(fresh(i64::MAX)), Standing::Behind),
            (1, called(10), None, Standing::Missing),
        ];
        for (increment, source, target, expected) in cases {
            let sequence =
                Sequence { schema: "public".to_owned(), name: "s".to_owned(), increment, source, target };
            assert_eq!(sequence.standing(), expected, "{sequence:?}");
        }
    }
}
