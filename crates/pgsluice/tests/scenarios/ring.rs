//! Why three nodes are not replicated as a ring (docs/decisions/054-no-ring.md): the source is
//! followed by the target, that by a third database, and that by the source.

use std::time::Duration;

use testkit::{Sluice, wait_for};

use crate::support::{BOUND, Scenario, scenario_alone};

const THIRD: &str = "third";

/// Three directions, each a process.
struct Ring {
    sluices: Vec<Sluice>,
}

impl Ring {
    fn start(s: &Scenario, origin: &str) -> Ring {
        s.pair().target.sql("postgres", &format!("CREATE DATABASE {THIRD}")).unwrap();
        let third = s.pair().target.url(THIRD);
        let table = "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (0, 'all'); \
                     CREATE PUBLICATION p FOR TABLE t";
        s.both(table);
        s.pair().target.sql(THIRD, table).unwrap();
        let nodes = [s.source_url(), s.target_url(0), third];
        let ways = (0..3).map(|from| {
            let args = ["run", "--publication", "p", "--copy-data", "off", "--origin", origin];
            let mut command = s.command(0, &args);
            command.env("PGSLUICE_SOURCE", &nodes[from]).env("PGSLUICE_TARGET", &nodes[(from + 1) % 3]);
            command.env("PGSLUICE_SUBSCRIPTION", format!("{}_{from}", s.name(0)));
            let sluice = Sluice::start(command).unwrap();
            wait_for("a way", BOUND, || Ok(sluice.stderr().contains("streaming from"))).unwrap();
            sluice
        });
        Ring { sluices: ways.collect() }
    }

    fn end(self) {
        for mut sluice in self.sluices {
            assert!(sluice.terminate(Duration::from_secs(5)).unwrap().success(), "{}", sluice.stderr());
        }
    }
}

/// Runs the scenario, in which the vocabulary's own follower is not started.
fn ring(origin: &str, run: impl Fn(&Scenario) + Sync) {
    scenario_alone(
        &[&[]],
        |source| source,
        |target| target,
        |s| {
            let ring = Ring::start(s, origin);
            run(s);
            ring.end();
        },
    );
}

#[test]
fn a_ring_stops_after_one_step() {
    ring("none", |s| {
        s.source("INSERT INTO t VALUES (1, 'source')");
        wait_for("one step", BOUND, || Ok(s.target_one("SELECT count(*) FROM t") == "2")).unwrap();
        // Behind it in the same stream.
        s.target("INSERT INTO t VALUES (2, 'target')");
        let arrived = || Ok(s.pair().target.one(THIRD, "SELECT count(*) FROM t WHERE id = 2") == "1");
        wait_for("the next row", BOUND, arrived).unwrap();
        assert_eq!(s.pair().target.one(THIRD, "SELECT string_agg(id::text, ',' ORDER BY id) FROM t"), "0,2");
    });
}

#[test]
fn a_ring_goes_round() {
    ring("any", |s| {
        s.source("UPDATE t SET v = 'once' WHERE id = 0");
        let updates = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 't'";
        wait_for("many rounds", BOUND, || Ok(s.target_one(updates).parse::<u64>()? >= 20)).unwrap();
    });
}
