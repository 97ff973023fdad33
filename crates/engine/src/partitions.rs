//! Partitions of tables that are published as their root, while the stream flows. Changes to a leaf
//! as a table never come through the stream, so this module looks for them.
//!
//! ```text
//!   look: leaves on the source, beside those of the last look (state::PartitionRow)
//!     came         --> suspicion gained   \
//!     went         --> suspicion lost      >--> probe --> the ends agree: forgotten
//!     another file --> suspicion emptied  /          \--> differ: told, until they agree
//! ```
//! A suspicion is not yet a difference. Most new partitions are empty or were filled through their
//! root. VACUUM FULL also replaces a file. A partition may have been dropped on both ends. A probe
//! therefore compares some rows on both ends ([`probe`]), and only what it has seen is reported.
//!
//! The target stores what is known of the partitions. If a partition is attached while pgsluice
//! does not run, the next start reports it. If nothing is known of a root and its rows were copied,
//! all of its partitions are suspected: one may have been attached during the copy.
//!
//! Nothing here stops the stream, and the catalogs are read without locks on tables.

mod probe;
mod remedy;
mod subscription;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use client::{Session, SqlState};
use source::publication::{self, PublishedTable};
use state::{PartitionRow, State, Suspicion};
use tokio::time::Instant;

use self::probe::{Comparison, Probe};
pub(crate) use self::subscription::Subscription;
use crate::Origin;
use crate::error::Error;
use crate::status::DifferingPartition;

/// How long the probes of one look may take; the rest follow at the next look.
const PROBES_AT_ONCE: Duration = Duration::from_secs(2);

/// $1 the publications. Returns roots as the stream names them, and their leaves, if they have any.
/// It does not use `pg_partition_tree`, which waits for locks.
const LEAVES: &str = "
WITH RECURSIVE listed AS (
    SELECT DISTINCT t.relid FROM pg_catalog.pg_publication p
     CROSS JOIN LATERAL pg_catalog.pg_get_publication_tables(p.pubname::text) t
      JOIN pg_catalog.pg_class c ON c.oid = t.relid AND c.relkind = 'p' WHERE p.pubname = ANY ($1::text[])),
above (relid, ancestor) AS (
    SELECT l.relid, i.inhparent FROM listed l JOIN pg_catalog.pg_inherits i ON i.inhrelid = l.relid
     UNION ALL
    SELECT a.relid, i.inhparent FROM above a JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.ancestor),
roots AS (
    SELECT l.relid FROM listed l
     WHERE NOT EXISTS (SELECT FROM above a JOIN listed o ON o.relid = a.ancestor WHERE a.relid = l.relid)),
below (root, relid) AS (
    SELECT r.relid, r.relid FROM roots r
     UNION ALL
    SELECT b.root, i.inhrelid FROM below b JOIN pg_catalog.pg_inherits i ON i.inhparent = b.relid
     WHERE NOT i.inhdetachpending)
SELECT r.oid, rn.nspname::text, r.relname::text, l.oid, ln.nspname::text, l.relname::text, l.relfilenode
  FROM roots JOIN pg_catalog.pg_class r ON r.oid = roots.relid
  JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
  LEFT JOIN (below b JOIN pg_catalog.pg_class l ON l.oid = b.relid AND l.relkind = 'r' AND l.relpersistence = 'p'
             JOIN pg_catalog.pg_namespace ln ON ln.oid = l.relnamespace) ON b.root = roots.relid";

/// $1 partitions. Waits for any session that has one of them locked.
const BOUNDS: &str = "SELECT o, COALESCE(pg_catalog.pg_get_partition_constraintdef(o), 'true') \
                        FROM pg_catalog.unnest($1::oid[]) o";

/// A root and one of its leaves, by their OIDs on the source.
type Pair = (u32, u32);

/// What is known of the partitions of one subscription.
#[derive(Default)]
pub(crate) struct Partitions {
    /// The rows as the target stores them; `None` before the first look.
    known: Option<BTreeMap<Pair, PartitionRow>>,
    /// Differences that were reported and still exist.
    differing: BTreeMap<Pair, DifferingPartition>,
    /// Probes wait for the target, or for their turn.
    pub(crate) postponed: bool,
}

/// A look at the source's catalogs.
struct Seen {
    roots: BTreeSet<u32>,
    leaves: BTreeMap<Pair, PartitionRow>,
}

impl Partitions {
    /// The differences that the last look left.
    pub(crate) fn differing(&self) -> Vec<DifferingPartition> {
        self.differing.values().cloned().collect()
    }

    /// Compares the leaves with those of the last look, and probes both ends where they may differ.
    /// If leaves came or went and the stream is `stale` then, returns true and leaves the probes to
    /// a later look.
    pub(crate) async fn look(
        &mut self,
        subscription: Subscription<'_>,
        source: &Session,
        state: &State,
        stale: bool,
    ) -> Result<bool, Error> {
        self.postponed = false;
        let seen = seen(source, &subscription.settings.publications).await?;
        if seen.roots.is_empty() && self.known.as_ref().is_none_or(BTreeMap::is_empty) {
            return Ok(false);
        }
        let is_first = self.known.is_none();
        let known = match self.known.take() {
            Some(known) => known,
            None => {
                let rows = state.partitions().await?;
                rows.into_iter().map(|row| ((row.root_oid, row.oid), row)).collect()
            }
        };
        let copied = subscription.settings.copy_data && subscription.settings.origin == Origin::Any;
        let mut now = compare(&known, seen, copied);
        if !fill_bounds(source, &known, &mut now).await? {
            (self.known, self.postponed) = (Some(known), true);
            return Ok(false);
        }
        store(state, &known, &now).await?;
        // A subscription's first look has nothing to compare with.
        let moved = stale && !(is_first && known.is_empty()) && came_or_went(&known, &now);
        self.known = Some(now);
        if moved {
            return Ok(true);
        }
        self.differing.retain(|pair, _| self.known.as_ref().is_some_and(|known| known.contains_key(pair)));
        self.probe(subscription, source, state).await?;
        Ok(false)
    }

    /// Compares both ends where they may differ, and reports the differences.
    async fn probe(
        &mut self,
        subscription: Subscription<'_>,
        source: &Session,
        state: &State,
    ) -> Result<(), Error> {
        let Some(known) = &mut self.known else { return Ok(()) };
        let suspected: Vec<Pair> =
            known.iter().filter(|(_, row)| row.suspicion.is_some()).map(|(pair, _)| *pair).collect();
        if suspected.is_empty() {
            return Ok(());
        }
        let published = publication::inspect(source, &subscription.settings.publications).await?;
        let copied = state.copied_tables().await?;
        let joined = |table: &PublishedTable| {
            let own = |row: &&state::CopiedTable| {
                (&row.schema, &row.table) == (&table.name.schema, &table.name.name)
            };
            copied.iter().find(own).is_some_and(|row| row.finished)
        };
        let probe = Probe::new(subscription).await?;
        let before = known.clone();
        let until = Instant::now() + PROBES_AT_ONCE;
        for pair in suspected {
            let root = published.iter().find(|table| table.oid.0 == pair.0).filter(|table| joined(table));
            let (Some(table), Some(row)) = (root, known.get(&pair)) else { continue };
            if Instant::now() >= until {
                self.postponed = true;
                break;
            }
            match probe.compare(table, row).await? {
                Comparison::Postponed => self.postponed = true,
                Comparison::Differs(difference) => tell(subscription, &mut self.differing, pair, difference),
                Comparison::Level => {
                    if let Some(told) = self.differing.remove(&pair) {
                        tracing::info!(subscription = %subscription.settings.subscription,
                            "partition {} of {}: both ends agree again", told.partition, told.root);
                    }
                    match row.suspicion {
                        Some(Suspicion::Lost) => drop(known.remove(&pair)),
                        _ => {
                            known.entry(pair).and_modify(|row| row.suspicion = None);
                        }
                    }
                }
            }
        }
        store(state, &before, known).await
    }
}

/// Reads bounds anew when a leaf comes or goes, because a default partition's bounds change with
/// the others. Returns false if another session has a leaf locked.
async fn fill_bounds(
    source: &Session,
    known: &BTreeMap<Pair, PartitionRow>,
    now: &mut BTreeMap<Pair, PartitionRow>,
) -> Result<bool, Error> {
    let came_or_went = |(pair, row): &(&Pair, &PartitionRow)| match known.get(pair) {
        None => true,
        Some(before) => is_present(before) != is_present(row),
    };
    let changed: BTreeSet<u32> = now.iter().filter(came_or_went).map(|(pair, _)| pair.0).collect();
    let of_changed = now.iter().filter(|(pair, row)| changed.contains(&pair.0) && is_present(row));
    let oids: Vec<u32> = of_changed.map(|(pair, _)| pair.1).collect();
    if oids.is_empty() {
        return Ok(true);
    }
    let failed = |error| source.error(error);
    source.batch_execute("SET lock_timeout = '2s'").await.map_err(failed)?;
    let rows = source.query(BOUNDS, &[&oids]).await.map_err(failed);
    source.batch_execute("SET lock_timeout = 0").await.map_err(failed)?;
    let rows = match rows {
        Ok(rows) => rows,
        Err(error) if error.sqlstate() == Some(SqlState::LOCK_NOT_AVAILABLE.code()) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let bounds: BTreeMap<u32, String> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    for (pair, row) in now.iter_mut().filter(|(_, row)| is_present(row)) {
        if let Some(bounds) = bounds.get(&pair.1) {
            row.bounds.clone_from(bounds);
        }
    }
    Ok(true)
}

/// Whether a leaf is present in one of these only.
fn came_or_went(known: &BTreeMap<Pair, PartitionRow>, now: &BTreeMap<Pair, PartitionRow>) -> bool {
    let is_in = |rows: &BTreeMap<Pair, PartitionRow>, pair| rows.get(pair).is_some_and(is_present);
    known.keys().chain(now.keys()).any(|pair| is_in(known, pair) != is_in(now, pair))
}

/// A lost partition is recognized by its stored row.
fn is_present(row: &PartitionRow) -> bool {
    row.suspicion != Some(Suspicion::Lost)
}

fn tell(
    subscription: Subscription<'_>,
    differing: &mut BTreeMap<Pair, DifferingPartition>,
    pair: Pair,
    difference: DifferingPartition,
) {
    // Counts in the message may move; a reader of the log wants to see each remedy once.
    let is_told = differing.get(&pair).is_some_and(|told| told.remedy == difference.remedy);
    if !is_told {
        tracing::warn!(subscription = %subscription.settings.subscription, table = %difference.root,
            "partition {} of {}: {}; {}", difference.partition, difference.root, difference.what, difference.remedy);
    }
    differing.insert(pair, difference);
}

async fn seen(source: &Session, publications: &[String]) -> Result<Seen, Error> {
    let rows = source.query(LEAVES, &[&publications]).await.map_err(|error| source.error(error))?;
    let mut seen = Seen { roots: BTreeSet::new(), leaves: BTreeMap::new() };
    for row in rows {
        let root_oid: u32 = row.get(0);
        seen.roots.insert(root_oid);
        let Some(oid) = row.get::<_, Option<u32>>(3) else { continue };
        let leaf = PartitionRow {
            root_oid,
            root: (row.get(1), row.get(2)),
            oid,
            partition: (row.get(4), row.get(5)),
            filenode: row.get(6),
            bounds: String::new(),
            suspicion: None,
        };
        seen.leaves.insert((root_oid, oid), leaf);
    }
    Ok(seen)
}

/// Returns what is known after a look. `copied`: the target has the copied rows of a root that was
/// not known before, but may lack those of partitions that were attached during the copy.
fn compare(known: &BTreeMap<Pair, PartitionRow>, seen: Seen, copied: bool) -> BTreeMap<Pair, PartitionRow> {
    let known_roots: BTreeSet<u32> = known.keys().map(|pair| pair.0).collect();
    let mut now = BTreeMap::new();
    for (pair, mut leaf) in seen.leaves {
        match known.get(&pair) {
            Some(before) => {
                leaf.bounds.clone_from(&before.bounds);
                leaf.suspicion = match before.suspicion {
                    // The partition is back.
                    Some(Suspicion::Lost) => Some(Suspicion::Gained),
                    None if before.filenode != leaf.filenode => Some(Suspicion::Emptied),
                    // The source may have lost the rows that the target lacks, and the target may
                    // still have others.
                    Some(Suspicion::Gained) if before.filenode != leaf.filenode => Some(Suspicion::Emptied),
                    other => other,
                };
            }
            None => {
                let gained = copied || known_roots.contains(&pair.0);
                leaf.suspicion = gained.then_some(Suspicion::Gained);
            }
        }
        now.insert(pair, leaf);
    }
    for (pair, before) in known.iter().filter(|(pair, _)| seen.roots.contains(&pair.0)) {
        let lost = || PartitionRow { suspicion: Some(Suspicion::Lost), ..before.clone() };
        now.entry(*pair).or_insert_with(lost);
    }
    now
}

/// Updates the target's state from `before` to `now`.
async fn store(
    state: &State,
    before: &BTreeMap<Pair, PartitionRow>,
    now: &BTreeMap<Pair, PartitionRow>,
) -> Result<(), Error> {
    let changed: Vec<&PartitionRow> =
        now.iter().filter(|(pair, row)| before.get(pair) != Some(row)).map(|(_, row)| row).collect();
    let gone: Vec<Pair> = before.keys().filter(|pair| !now.contains_key(pair)).copied().collect();
    if !changed.is_empty() || !gone.is_empty() {
        state.store_partitions(&changed, &gone).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(oid: u32, filenode: u32, suspicion: Option<Suspicion>) -> PartitionRow {
        let name = |name: &str| ("s".to_owned(), name.to_owned());
        PartitionRow {
            root_oid: 1,
            root: name("root"),
            oid,
            partition: name("leaf"),
            filenode,
            bounds: "true".into(),
            suspicion,
        }
    }

    fn after(known: &[PartitionRow], leaves: &[PartitionRow], copied: bool) -> Vec<(u32, Option<Suspicion>)> {
        let map = |rows: &[PartitionRow]| rows.iter().map(|row| ((1, row.oid), row.clone())).collect();
        let seen = Seen { roots: [1].into(), leaves: map(leaves) };
        let now = compare(&map(known), seen, copied);
        now.into_iter().map(|(pair, row)| (pair.1, row.suspicion)).collect()
    }

    #[test]
    fn leaves_that_come_go_or_have_other_files_are_suspected() {
        use Suspicion::{Emptied, Gained, Lost};
        let (two, three) = (row(2, 20, None), row(3, 30, None));
        assert_eq!(after(&[], std::slice::from_ref(&two), true), [(2, Some(Gained))]);
        assert_eq!(after(&[], std::slice::from_ref(&two), false), [(2, None)]);
        let known = [two.clone(), three.clone()];
        assert_eq!(after(&known, &known, true), [(2, None), (3, None)]);
        assert_eq!(
            after(&known, &[two.clone(), row(4, 40, None)], false),
            [(2, None), (3, Some(Lost)), (4, Some(Gained))]
        );
        assert_eq!(after(&known, &[row(2, 21, None), three.clone()], true), [(2, Some(Emptied)), (3, None)]);
        // It is back, and its rows are still uncertain.
        assert_eq!(after(&[row(2, 20, Some(Lost))], std::slice::from_ref(&two), true), [(2, Some(Gained))]);
        assert_eq!(after(&[row(2, 20, Some(Gained))], &[two], true), [(2, Some(Gained))]);
    }

    #[test]
    fn a_root_that_is_published_no_longer_is_forgotten() {
        let known: BTreeMap<Pair, PartitionRow> = [((1, 2), row(2, 20, None))].into();
        let seen = Seen { roots: BTreeSet::new(), leaves: BTreeMap::new() };
        assert!(compare(&known, seen, true).is_empty());
    }
}
