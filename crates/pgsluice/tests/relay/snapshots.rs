//! The snapshot of a slot that the relay makes sees all commits before the slot's point, and no
//! other (rule L1), while many clients write.
//!
//! The oracle is a slot of the publisher, read with `test_decoding`: it says where each commit
//! ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::Lsn;
use client::{ConnInfo, Replication, Wire};
use testkit::{Cluster, Major, wait_for};

use crate::{BOUND, DB, Served};

/// Slots that are made while clients write.
const SLOTS: usize = 12;
const WRITERS: usize = 4;

/// What the snapshot of a new slot of the relay sees, and the slot's point.
async fn seen(place: &ConnInfo, major: Major, number: usize) -> (Lsn, BTreeSet<String>) {
    let mut wire = Wire::connect(place, "snapshots", Replication::Database, &[]).await.unwrap();
    let words = if major >= Major::V15 { "(SNAPSHOT 'use')" } else { "USE_SNAPSHOT" };
    wire.query("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    let create = format!("CREATE_REPLICATION_SLOT snapshot_{number} TEMPORARY LOGICAL pgoutput {words}");
    let made = wire.query(&create).await.unwrap_or_else(|error| panic!("{}", base::with_causes(&error)));
    let rows = wire.query("SELECT id FROM ledger").await.unwrap();
    wire.query("COMMIT").await.unwrap();
    let ids = rows.into_iter().map(|row| row[0].clone().unwrap()).collect();
    (made[0][1].as_deref().unwrap().parse().unwrap(), ids)
}

/// Where the commit of each row ended, as the server's own decoding says.
fn ends(publisher: &Cluster) -> BTreeMap<String, Lsn> {
    let sql = "SELECT lsn, data FROM pg_logical_slot_get_changes('oracle', NULL, NULL)";
    let (mut open, mut ends) = (Vec::new(), BTreeMap::new());
    for row in publisher.sql(DB, sql).unwrap() {
        let (lsn, data) = (row[0].as_deref().unwrap(), row[1].as_deref().unwrap());
        if let Some(rest) = data.strip_prefix("table public.ledger: INSERT: id[integer]:") {
            open.push(rest.trim().to_owned());
        } else if data.starts_with("COMMIT") {
            ends.extend(open.drain(..).map(|id| (id, lsn.parse().unwrap())));
        }
    }
    ends
}

#[test]
fn l1_a_snapshot_sees_all_commits_before_the_slots_point_and_no_other() {
    Major::each(1, |major| {
        let served = Served::on(major);
        let publisher = &served.publisher;
        publisher
            .sql(DB, "CREATE TABLE ledger (id serial PRIMARY KEY); GRANT SELECT ON ledger TO sub")
            .unwrap();
        publisher.sql(DB, "SELECT pg_create_logical_replication_slot('oracle', 'test_decoding')").unwrap();
        let place = ConnInfo::parse(&served.place()).unwrap();
        let stop = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (stop, url) = (&stop, publisher.url(DB));
                // Commits that wait for the disk, and commits that do not.
                let commits = if writer % 2 == 0 { "on" } else { "off" };
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let many = "BEGIN; INSERT INTO ledger DEFAULT VALUES; COMMIT;".repeat(50);
                        testkit::query(&url, &format!("SET synchronous_commit = {commits}; {many}")).unwrap();
                    }
                });
            }
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let seen: Vec<_> =
                (0..SLOTS).map(|number| runtime.block_on(seen(&place, major, number))).collect();
            stop.store(true, Ordering::Relaxed);
            seen
        });
        let ends = ends(publisher);
        let mut sizes = BTreeSet::new();
        for (point, ids) in seen {
            let expected: BTreeSet<String> =
                ends.iter().filter(|(_, end)| **end <= point).map(|(id, _)| id.clone()).collect();
            let differ: Vec<_> = expected.symmetric_difference(&ids).take(5).collect();
            assert!(differ.is_empty(), "at {point}: {differ:?} of {} and {}", expected.len(), ids.len());
            sizes.insert(ids.len());
        }
        assert!(sizes.len() > SLOTS / 2, "nobody wrote meanwhile: {sizes:?}");
    });
}

/// Each takes a slot of the publisher for a moment. That moment lasts as long as a transaction that
/// was open before.
#[test]
fn slots_that_are_made_together_take_few_of_the_publishers() {
    let major = *Major::under_test().last().unwrap();
    let served = Served::on(major);
    let publisher = &served.publisher;
    publisher.sql(DB, "CREATE TABLE ledger (id serial PRIMARY KEY); GRANT SELECT ON ledger TO sub").unwrap();
    let place = ConnInfo::parse(&served.place()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // The relay knows the database's catalogs afterwards.
    runtime.block_on(seen(&place, major, 0));
    let open = runtime.block_on(async {
        let (session, connection) =
            tokio_postgres::connect(&publisher.url(DB), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        session.batch_execute("BEGIN; INSERT INTO ledger DEFAULT VALUES").await.unwrap();
        session
    });
    let making: Vec<_> = (1..=6)
        .map(|number| {
            let place = place.clone();
            runtime.spawn(async move { seen(&place, major, number).await })
        })
        .collect();
    let count = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'pgsluice\\_relay\\_%'";
    wait_for("slots that are being made", BOUND, || Ok(publisher.one(DB, count) == "4")).unwrap();
    for _ in 0..20 {
        assert_eq!(publisher.one(DB, count), "4");
        // Only time can show that there come no more.
        std::thread::sleep(Duration::from_millis(25));
    }
    runtime.block_on(async {
        open.batch_execute("COMMIT").await.unwrap();
        for made in making {
            let (_, ids) = made.await.unwrap();
            assert_eq!(ids.len(), 1, "all of them were made behind the transaction");
        }
    });
    assert_eq!(publisher.one(DB, count), "0");
}
