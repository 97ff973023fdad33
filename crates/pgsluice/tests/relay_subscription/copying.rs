//! The first copy: what stops it, tables that come later, and writes beside it.

use std::sync::atomic::{AtomicBool, Ordering};

use testkit::{Major, wait_for};

use crate::BOUND;
use crate::stage::{Way, scenario};

/// Stops a writer, also after a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_copy_that_meets_a_row_is_tried_again() {
    scenario(Major::V14, |scene| {
        scene.everywhere("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)");
        scene.publisher(
            "INSERT INTO t SELECT n, 'copied' FROM generate_series(1, 500) n; INSERT INTO u VALUES (1), (2);
             CREATE PUBLICATION p FOR TABLE t, u",
        );
        scene.subscribers("INSERT INTO t VALUES (250, 'in the way')");
        Way::BOTH.iter().for_each(|way| scene.try_to_subscribe(*way, "p", "").unwrap());
        scene.logged("duplicate key value violates unique constraint \"t_pkey\"");
        // The other table is copied nevertheless, and follows.
        scene.publisher("INSERT INTO u VALUES (3); UPDATE t SET v = 'changed' WHERE id < 10");
        scene.until("the other table", "SELECT count(*) FROM u", "3");
        scene.shows("SELECT count(*) FROM t", "1");
        scene.subscribers("DELETE FROM t");
        scene.ready();
        scene.level();
        scene.same(&["t", "u"]);
        // A subscription that is dropped while a copy fails leaves no slot.
        scene.everywhere("CREATE TABLE stuck (id int PRIMARY KEY); INSERT INTO stuck VALUES (1)");
        scene.publisher("ALTER PUBLICATION p ADD TABLE stuck");
        scene.subscribers("ALTER SUBSCRIPTION {sub} REFRESH PUBLICATION");
        scene.logged("duplicate key value violates unique constraint \"stuck_pkey\"");
    });
}

#[test]
fn tables_that_come_later_are_copied_with_a_refresh() {
    scenario(Major::V14, |scene| {
        scene.everywhere("CREATE TABLE t (id int PRIMARY KEY)");
        scene.publisher("CREATE PUBLICATION p FOR ALL TABLES; INSERT INTO t VALUES (1)");
        scene.subscribe("p", "copy_data = false");
        scene.shows("SELECT count(*) FROM t", "0");
        scene.publisher("CREATE TABLE late (id int PRIMARY KEY); INSERT INTO t VALUES (2)");
        scene.level();
        scene.shows("SELECT * FROM t", "2");
        let refused = Way::BOTH
            .map(|way| scene.try_at(way, "ALTER SUBSCRIPTION {sub} REFRESH PUBLICATION").unwrap_err());
        assert!(
            refused.iter().all(|words| words.contains("relation \"public.late\" does not exist")),
            "{}",
            refused.join("\n")
        );
        // A row of a table that is not there stops them.
        scene.publisher("INSERT INTO late VALUES (1), (2)");
        scene.logged("target relation \"public.late\" does not exist");
        scene.subscribers("CREATE TABLE late (id int PRIMARY KEY)");
        scene.subscribers("ALTER SUBSCRIPTION {sub} REFRESH PUBLICATION");
        scene.ready();
        scene.publisher("INSERT INTO late VALUES (3)");
        scene.level();
        scene.same(&["late"]);
        // A table of another object under the same name is copied anew.
        scene.everywhere("DROP TABLE late; CREATE TABLE late (id int PRIMARY KEY)");
        scene.publisher("INSERT INTO late VALUES (9)");
        scene.subscribers("ALTER SUBSCRIPTION {sub} REFRESH PUBLICATION");
        scene.ready();
        scene.level();
        scene.same(&["late"]);
    });
}

/// Every copy sees another state, and what commits meanwhile comes behind it.
#[test]
fn tables_are_copied_while_they_are_written() {
    scenario(Major::V14, |scene| {
        let names: Vec<String> = (0..6).map(|n| format!("t{n}")).collect();
        let tables: Vec<String> =
            names.iter().map(|name| format!("CREATE TABLE {name} (id int PRIMARY KEY, v text)")).collect();
        scene.everywhere(&tables.join("; "));
        for name in &names {
            scene.publisher(&format!(
                "INSERT INTO {name} SELECT n, 'row ' || n FROM generate_series(1, 3000) n"
            ));
        }
        scene.publisher(&format!("CREATE PUBLICATION p FOR TABLE {}", names.join(", ")));
        let (session, stop) = (scene.session(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let rounds = scope.spawn(|| {
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    for name in &names {
                        session.run(&format!(
                            "UPDATE {name} SET v = 'round {round}' WHERE id % 97 = {round} % 97; DELETE FROM {name} WHERE id = {round};
                             INSERT INTO {name} VALUES (10000 + {round}, 'new')"
                        ));
                    }
                }
                round
            });
            let stops = Stop(&stop);
            scene.subscribe("p", "");
            drop(stops);
            assert!(rounds.join().unwrap() > 1, "nobody wrote meanwhile");
        });
        scene.level();
        scene.same(&names.iter().map(String::as_str).collect::<Vec<_>>());
    });
}

/// Slots that were there before, and a subscription that is told of none.
#[test]
fn a_subscription_takes_a_slot_that_exists() {
    scenario(Major::V14, |scene| {
        scene.everywhere("CREATE TABLE t (f int); CREATE TABLE u (f int)");
        let fill =
            "INSERT INTO t SELECT generate_series(1, 1000); INSERT INTO u SELECT generate_series(1, 1000)";
        scene.publisher(fill);
        scene.publisher("CREATE PUBLICATION p FOR TABLE t");
        for way in Way::BOTH {
            scene.create_slot(way, &scene.sub(way));
        }
        scene.publisher(fill);
        scene.subscribe("p", "create_slot = false, slot_name = '{sub}'");
        scene.publisher(fill);
        scene.publisher("ALTER PUBLICATION p ADD TABLE u");
        scene.subscribers("ALTER SUBSCRIPTION {sub} REFRESH PUBLICATION");
        scene.ready();
        scene.level();
        scene.same(&["t", "u"]);
        // Without its slot a subscription is told so, and goes on when there is another one.
        scene.subscribers("ALTER SUBSCRIPTION {sub} DISABLE");
        let slots = "SELECT count(*) FILTER (WHERE active), count(*) FROM pg_replication_slots WHERE database = current_database()";
        scene.until_upstream("the slots to be free", slots, "0|1");
        scene.subscribers("ALTER SUBSCRIPTION {sub} SET (slot_name = NONE)");
        for way in Way::BOTH {
            scene.drop_slot(way, &scene.sub(way));
        }
        scene.publisher("INSERT INTO t VALUES (-1)");
        scene.subscribers("ALTER SUBSCRIPTION {sub} SET (slot_name = '{sub}')");
        scene.subscribers("ALTER SUBSCRIPTION {sub} ENABLE");
        for way in Way::BOTH {
            let words = format!("replication slot \"{}\" does not exist", scene.sub(way));
            wait_for(&words, BOUND, || Ok(scene.log(way).contains(&words)))
                .unwrap_or_else(|error| panic!("{error}"));
            scene.create_slot(way, &scene.sub(way));
        }
        scene.level();
        scene.shows("SELECT count(*), min(f) FROM t", "3000|1");
    });
}
