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

/// Slots that are made while clients write, as many at the same time.
const SLOTS: usize = 32;
const TOGETHER: usize = 8;
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
            let mut all = Vec::new();
            for first in (0..SLOTS).step_by(TOGETHER) {
                let number = first..first + TOGETHER;
                let making: Vec<_> = number
                    .map(|number| {
                        let place = place.clone();
                        runtime.spawn(async move { seen(&place, major, number).await })
                    })
                    .collect();
                all.extend(making.into_iter().map(|made| runtime.block_on(made).unwrap()));
            }
            stop.store(true, Ordering::Relaxed);
            all
        });
        let ends = ends(publisher);
        let (mut sizes, mut points) = (BTreeSet::new(), BTreeSet::new());
        for (point, ids) in seen {
            let expected: BTreeSet<String> =
                ends.iter().filter(|(_, end)| **end <= point).map(|(id, _)| id.clone()).collect();
            let differ: Vec<_> = expected.symmetric_difference(&ids).take(5).collect();
            assert!(differ.is_empty(), "at {point}: {differ:?} of {} and {}", expected.len(), ids.len());
            sizes.insert(ids.len());
            points.insert(point);
        }
        println!("{major}: {SLOTS} slots have {} points", points.len());
        assert!(sizes.len() > SLOTS / TOGETHER, "nobody wrote meanwhile: {sizes:?}");
        assert!(points.len() < SLOTS, "nobody shared a point");
    });
}

/// A relay whose publisher has a transaction open, so that no slot can be made.
struct Held {
    served: Served,
    major: Major,
    place: ConnInfo,
    runtime: tokio::runtime::Runtime,
    open: tokio_postgres::Client,
}

/// Slots that the relay has at the publisher now.
const MADE: &str = "SELECT slot_name, active_pid FROM pg_replication_slots
                     WHERE slot_name LIKE 'pgsluice\\_relay\\_%'";
/// Sessions that wait to be let make one.
const WAITING: &str = "SELECT pid FROM pg_stat_activity
                        WHERE query LIKE 'BEGIN READ ONLY%' AND state = 'idle in transaction'";

impl Held {
    fn new() -> Held {
        let major = *Major::under_test().last().unwrap();
        let served = Served::on(major);
        let table = "CREATE TABLE ledger (id serial PRIMARY KEY); GRANT SELECT ON ledger TO sub";
        served.publisher.sql(DB, table).unwrap();
        let place = ConnInfo::parse(&served.place()).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        // The relay knows the database's catalogs afterwards.
        runtime.block_on(seen(&place, major, 0));
        let url = served.publisher.url(DB);
        let open = runtime.block_on(async {
            let (open, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            open.batch_execute("BEGIN; INSERT INTO ledger DEFAULT VALUES").await.unwrap();
            open
        });
        Held { served, major, place, runtime, open }
    }

    fn ask(&self, numbers: std::ops::Range<usize>) -> Vec<Asked> {
        let ask = |number| {
            let (place, major) = (self.place.clone(), self.major);
            self.runtime
                .spawn(async move { tokio::time::timeout(BOUND, seen(&place, major, number)).await.unwrap() })
        };
        numbers.map(ask).collect()
    }

    fn rows(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.served.publisher.sql(DB, sql).unwrap()
    }

    fn wait(&self, what: &str, sql: &str, count: usize) {
        wait_for(what, BOUND, || Ok(self.rows(sql).len() == count)).unwrap();
    }

    /// Ends the session that makes a slot which `known` has not.
    fn end_maker(&self, known: &[Vec<Option<String>>]) {
        let mut maker = None;
        wait_for("a slot that is being made", BOUND, || {
            maker = self.rows(MADE).into_iter().find(|slot| !known.contains(slot));
            Ok(maker.is_some())
        })
        .unwrap();
        let pid = maker.unwrap()[1].clone().unwrap();
        self.rows(&format!("SELECT pg_terminate_backend({pid})"));
    }
}

type Asked = tokio::task::JoinHandle<(Lsn, BTreeSet<String>)>;

/// Each slot of the publisher waits for transactions that were open before. So four are made at a
/// time, and the sessions that wait for a place share the next one.
///
/// Fails if a session takes over what had begun before it asked: it would not see what was
/// committed meanwhile.
#[test]
fn slots_that_are_made_together_share_the_publishers() {
    let held = Held::new();
    let first = held.ask(1..5);
    held.wait("slots that are being made", MADE, 4);
    held.rows("INSERT INTO ledger DEFAULT VALUES");
    let late = held.ask(5..17);
    held.wait("sessions that wait", WAITING, 12);
    for _ in 0..20 {
        assert_eq!(held.rows(MADE).len(), 4);
        // Only time can show that there come no more.
        std::thread::sleep(Duration::from_millis(25));
    }
    held.runtime.block_on(async {
        held.open.batch_execute("COMMIT").await.unwrap();
        for made in first {
            made.await.unwrap();
        }
        let mut points = BTreeSet::new();
        for made in late {
            let (point, ids) = made.await.unwrap();
            assert_eq!(ids.len(), 2, "all of them were asked for behind the row");
            points.insert(point);
        }
        assert_eq!(points.len(), 1, "{points:?}");
    });
    assert!(held.rows(MADE).is_empty());
}

/// Who makes a slot for others may be ended. The others then ask again.
#[test]
fn sessions_whose_slot_another_was_making_ask_again_when_that_one_ends() {
    let held = Held::new();
    let first = held.ask(1..5);
    held.wait("slots that are being made", MADE, 4);
    let late = held.ask(5..11);
    held.wait("sessions that wait", WAITING, 6);
    // Its place goes to one of the others, which makes a slot for them all.
    held.end_maker(&[]);
    held.wait("sessions that wait for that one", WAITING, 5);
    held.wait("slots that are being made", MADE, 4);
    let mut known = held.rows(MADE);
    known.sort_by_key(|slot| slot[1].as_deref().unwrap().parse::<u32>().unwrap());
    // Its process is the newest.
    held.end_maker(&known[..3]);
    held.wait("sessions that wait for the next one", WAITING, 4);
    held.runtime.block_on(async {
        held.open.batch_execute("COMMIT").await.unwrap();
        let mut lost = [0, 0];
        let mut points = BTreeSet::new();
        for made in first {
            lost[0] += usize::from(made.await.is_err());
        }
        for made in late {
            match made.await {
                Ok((point, _)) => drop(points.insert(point)),
                Err(_) => lost[1] += 1,
            }
        }
        assert_eq!((lost, points.len()), ([1, 1], 1), "{points:?}");
    });
    assert!(held.rows(MADE).is_empty());
}
