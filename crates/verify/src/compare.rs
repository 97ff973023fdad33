//! One chunk on both ends.
//!
//! | the digests | then |
//! | --- | --- |
//! | are equal | nothing more is read |
//! | differ, few rows | hash and key of every row, in order of hashes; what has no partner differs |
//! | differ, many rows | digests of buckets first; then the rows of those buckets that differ |
//!
//! A row with another value has another hash. So it appears twice, once for each end, perhaps in
//! buckets that are far apart. A row without a partner therefore gives only its key. The rows with
//! these keys are fetched from both ends and compared column by column. Without a key there is only
//! the row itself, and how often each end has it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use client::Session;

use crate::Error;
use crate::range::KeyRange;
use crate::report::{Difference, KeyValues};
use crate::session::{self, Pair, Rows, number};
use crate::sql::{BUCKETS, Side, shown};
use crate::table::ComparedTable;

/// Rows up to which buckets would cost more than they save.
const FEW_ROWS: u64 = 5_000;
/// Rows of differing buckets that are listed together. The servers sort them. If more rows differ
/// than this, that many differences were found before.
const LISTED_MAX: u64 = 200_000;
/// Rows fetched at once.
const FETCH: usize = 500;

/// Count and sum of hashes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Digest {
    rows: u64,
    sum: Option<String>,
}

/// What was found in a chunk.
#[derive(Debug, Default)]
pub(crate) struct FoundDifferences {
    pub(crate) source_rows: u64,
    pub(crate) target_rows: u64,
    pub(crate) equal: bool,
    pub(crate) differences: Vec<Difference>,
    /// There are more than `limit`.
    pub(crate) more: bool,
}

/// Runs the statements of both ends at the same time.
async fn both(
    pair: &Pair,
    table: &ComparedTable,
    sql: impl Fn(&Side) -> String,
) -> Result<(Rows, Rows), Error> {
    let (ours, theirs) = (sql(&table.source), sql(&table.target));
    let attempt = |end: &str| format!("read table \"{}\" on the {end}", table.name);
    let (on_source, on_target) = (attempt("source"), attempt("target"));
    tokio::try_join!(
        session::rows(&pair.source, &on_source, &ours),
        session::rows(&pair.target, &on_target, &theirs)
    )
}

/// Compares the rows in `range`; names at most `limit` differences.
pub(crate) async fn compare(
    pair: &Pair,
    table: &ComparedTable,
    range: &KeyRange,
    limit: usize,
) -> Result<FoundDifferences, Error> {
    if !range.is_all() {
        // An index is right for all but huge ranges, whatever the planner assumes about the order
        // of rows: the statement runs once for each range.
        let plan = "SET LOCAL enable_seqscan = off";
        tokio::try_join!(session::run(&pair.source, "plan", plan), session::run(&pair.target, "plan", plan))?;
    }
    let found = compare_planned(pair, table, range, limit).await;
    if !range.is_all() && found.is_ok() {
        let plan = "SET LOCAL enable_seqscan = on";
        tokio::try_join!(session::run(&pair.source, "plan", plan), session::run(&pair.target, "plan", plan))?;
    }
    found
}

async fn compare_planned(
    pair: &Pair,
    table: &ComparedTable,
    range: &KeyRange,
    limit: usize,
) -> Result<FoundDifferences, Error> {
    let digest = |rows: &Rows| {
        rows.first().map_or_else(Digest::default, |row| Digest {
            rows: number(row, 0),
            sum: row.get(1).cloned().flatten(),
        })
    };
    let (ours, theirs) = both(pair, table, |side| side.digest(range)).await?;
    let (ours, theirs) = (digest(&ours), digest(&theirs));
    let mut found = FoundDifferences {
        source_rows: ours.rows,
        target_rows: theirs.rows,
        equal: ours == theirs,
        ..FoundDifferences::default()
    };
    if found.equal {
        return Ok(found);
    }
    if limit == 0 {
        found.more = true;
        return Ok(found);
    }
    let mut unmatched = Unmatched { limit, ..Unmatched::default() };
    if ours.rows.max(theirs.rows) <= FEW_ROWS {
        unmatched.list(pair, table, range, None).await?;
    } else {
        let (ours, theirs) = both(pair, table, |side| side.buckets(range)).await?;
        let (buckets, all) = differing_buckets(&ours, &theirs);
        unmatched.more |= !all;
        unmatched.list(pair, table, range, Some(&buckets)).await?;
    }
    found.more = unmatched.more;
    found.differences = match table.key.is_empty() {
        true => unmatched.rows,
        false => columns(pair, table, &unmatched.keys, limit, &mut found.more).await?,
    };
    if found.differences.is_empty() {
        let (source, target) = (found.source_rows, found.target_rows);
        found.differences.push(Difference::Unnamed { source, target });
    }
    Ok(found)
}

/// The buckets that differ, as many of them as may be listed together; true
/// if that is all.
fn differing_buckets(ours: &Rows, theirs: &Rows) -> (Vec<usize>, bool) {
    let mut digests = vec![(Digest::default(), Digest::default()); BUCKETS];
    let of = |row: &[Option<String>]| (number(row, 0) as usize % BUCKETS, row.get(2).cloned().flatten());
    for row in ours {
        let (bucket, sum) = of(row);
        digests[bucket].0 = Digest { rows: number(row, 1), sum };
    }
    for row in theirs {
        let (bucket, sum) = of(row);
        digests[bucket].1 = Digest { rows: number(row, 1), sum };
    }
    let (mut buckets, mut rows) = (Vec::new(), 0);
    for (bucket, (ours, theirs)) in digests.iter().enumerate().filter(|(_, (ours, theirs))| ours != theirs) {
        if rows > LISTED_MAX {
            return (buckets, false);
        }
        rows += ours.rows.max(theirs.rows);
        buckets.push(bucket);
    }
    (buckets, true)
}

/// Rows that only one end has, by key or by text.
#[derive(Debug, Default)]
struct Unmatched {
    limit: usize,
    /// For a table with a key.
    keys: BTreeSet<Vec<String>>,
    /// For a table without.
    rows: Vec<Difference>,
    more: bool,
}

impl Unmatched {
    /// Lists both ends in order of hashes and keeps what has no partner.
    async fn list(
        &mut self,
        pair: &Pair,
        table: &ComparedTable,
        range: &KeyRange,
        buckets: Option<&[usize]>,
    ) -> Result<(), Error> {
        let attempt = format!("list rows of table \"{}\"", table.name);
        let [ours, theirs] = [&table.source, &table.target].map(|side| side.named_rows(range, buckets));
        let (mut ours, mut theirs) = tokio::try_join!(
            Listing::open(&pair.source, &attempt, &ours),
            Listing::open(&pair.target, &attempt, &theirs)
        )?;
        loop {
            tokio::try_join!(ours.fill(), theirs.fill())?;
            let (source, target) = match (ours.hash(), theirs.hash()) {
                (None, None) => break,
                (Some(source), Some(target)) if source == target => {
                    tokio::try_join!(ours.take_run(), theirs.take_run())?
                }
                (Some(source), target) if target.is_none_or(|target| source < target) => {
                    (ours.take_run().await?, Run::default())
                }
                _ => (Run::default(), theirs.take_run().await?),
            };
            if source.count != target.count && !self.note(table, source, target) {
                break;
            }
        }
        ours.close().await?;
        theirs.close().await
    }

    /// Returns false if there is no room for more.
    fn note(&mut self, table: &ComparedTable, source: Run, target: Run) -> bool {
        if self.keys.len().max(self.rows.len()) >= self.limit {
            self.more = true;
            return false;
        }
        let name = if source.count > 0 { source.name } else { target.name };
        if table.key.is_empty() {
            let row = name.into_iter().flatten().next().unwrap_or_default();
            self.rows.push(Difference::Count { row, source: source.count, target: target.count });
        } else {
            // A key has no NULL.
            self.keys.insert(name.into_iter().map(Option::unwrap_or_default).collect());
        }
        true
    }
}

/// Rows of one hash, one after the other.
#[derive(Debug, Default)]
struct Run {
    count: u64,
    name: Vec<Option<String>>,
}

/// A cursor over hashes and names.
struct Listing<'a> {
    session: &'a Session,
    attempt: &'a str,
    rows: VecDeque<Vec<Option<String>>>,
    ended: bool,
}

impl<'a> Listing<'a> {
    async fn open(session: &'a Session, attempt: &'a str, sql: &str) -> Result<Listing<'a>, Error> {
        let sql = format!("DECLARE pgsluice_rows NO SCROLL CURSOR FOR {sql}");
        session::run(session, attempt, &sql).await?;
        Ok(Listing { session, attempt, rows: VecDeque::new(), ended: false })
    }

    /// Fetches the next row, if there is one.
    async fn fill(&mut self) -> Result<(), Error> {
        if self.rows.is_empty() && !self.ended {
            let sql = format!("FETCH FORWARD {FETCH} FROM pgsluice_rows");
            self.rows = session::rows(self.session, self.attempt, &sql).await?.into();
            self.ended = self.rows.len() < FETCH;
        }
        Ok(())
    }

    fn hash(&self) -> Option<i64> {
        self.rows.front()?.first()?.as_deref()?.parse().ok()
    }

    /// All rows that have the first one's hash.
    async fn take_run(&mut self) -> Result<Run, Error> {
        let hash = self.hash();
        let mut run = Run::default();
        while hash.is_some() && self.hash() == hash {
            let row = self.rows.pop_front().unwrap_or_default();
            if run.count == 0 {
                run.name = row.into_iter().skip(1).collect();
            }
            run.count += 1;
            self.fill().await?;
        }
        Ok(run)
    }

    async fn close(self) -> Result<(), Error> {
        session::run(self.session, self.attempt, "CLOSE pgsluice_rows").await
    }
}

/// Compares the rows with these keys column by column.
async fn columns(
    pair: &Pair,
    table: &ComparedTable,
    keys: &BTreeSet<Vec<String>>,
    limit: usize,
    more: &mut bool,
) -> Result<Vec<Difference>, Error> {
    let list: Vec<Vec<String>> = keys.iter().cloned().collect();
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let (ours, theirs) =
        both(pair, table, |side| side.values_of(&list, std::ptr::eq(side, &raw const table.source))).await?;
    let mut differences = Vec::new();
    let (mut ours, mut theirs) = (by_key(table, ours), by_key(table, theirs));
    let mut found: BTreeSet<Vec<Option<String>>> = ours.keys().chain(theirs.keys()).cloned().collect();
    while let Some(key) = found.pop_first() {
        let (source, target) =
            (ours.remove(&key).unwrap_or_default(), theirs.remove(&key).unwrap_or_default());
        compare_rows(table, &key, source, target, &mut differences);
    }
    if differences.len() > limit {
        differences.truncate(limit);
        *more = true;
    }
    Ok(differences)
}

/// The rest of each row, by its key.
fn by_key(table: &ComparedTable, rows: Rows) -> BTreeMap<Vec<Option<String>>, Rows> {
    let mut map: BTreeMap<_, Rows> = BTreeMap::new();
    for mut row in rows {
        let values = row.split_off(table.key.len().min(row.len()));
        map.entry(row).or_default().push(values);
    }
    map
}

/// Rows of one key: one on each end, unless something is wrong.
fn compare_rows(
    table: &ComparedTable,
    key: &[Option<String>],
    source: Rows,
    target: Rows,
    differences: &mut Vec<Difference>,
) {
    let names = table.key.iter().map(|column| table.columns[*column].clone());
    let key = KeyValues(names.zip(key.iter().cloned()).collect());
    let mut target = target.into_iter();
    for ours in source {
        let Some(theirs) = target.next() else {
            differences.push(Difference::Missing { key: key.clone() });
            continue;
        };
        for (position, column) in table.columns.iter().enumerate() {
            let of = |row: &Vec<Option<String>>, at: usize| row.get(2 * position + at).cloned().flatten();
            if of(&ours, 0) != of(&theirs, 0) {
                differences.push(Difference::Changed {
                    key: key.clone(),
                    column: column.clone(),
                    source: shown(of(&ours, 1).as_deref()),
                    target: shown(of(&theirs, 1).as_deref()),
                });
            }
        }
    }
    differences.extend(target.map(|_| Difference::Extra { key: key.clone() }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bucket: usize, rows: u64, sum: &str) -> Vec<Option<String>> {
        vec![Some(bucket.to_string()), Some(rows.to_string()), Some(sum.to_owned())]
    }

    #[test]
    fn buckets_that_differ_are_found_on_either_end() {
        let ours = vec![row(1, 2, "5"), row(3, 1, "7"), row(9, 1, "1")];
        let theirs = vec![row(1, 2, "5"), row(3, 1, "8"), row(1000, 1, "1")];
        assert_eq!(differing_buckets(&ours, &theirs), (vec![3, 9, 1000], true));
        let many: Rows = (0..BUCKETS).map(|bucket| row(bucket, LISTED_MAX / 2, "1")).collect();
        assert_eq!(differing_buckets(&many, &Rows::new()), (vec![0, 1, 2], false));
    }
}
