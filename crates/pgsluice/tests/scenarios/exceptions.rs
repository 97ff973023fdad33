//! Rule D5: rows that conflict cost only themselves. The result is that of one change at a time.

use testkit::Builder;

use crate::support::{DECODED, FOLDED, ONE_BY_ONE, Scenario, scenario_alone};

/// A key alone, another unique key, a key of two columns, and partitions.
const TABLES: &str = "CREATE TABLE alone (id int PRIMARY KEY, v text); \
     CREATE TABLE two (id int PRIMARY KEY, u int UNIQUE, v text); \
     CREATE TABLE pair (a int, b text, v text, PRIMARY KEY (a, b)); \
     CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); \
     CREATE TABLE parted1 PARTITION OF parted FOR VALUES FROM (0) TO (700); \
     CREATE TABLE parted2 PARTITION OF parted FOR VALUES FROM (700) TO (100000)";

/// Runs the scenario under these rules with sets, small sets, one change at a time, and WAL decoded
/// here, on a target that keeps commit times. `keep` lets each transaction stay one.
fn under(of: &[&str], keep: &str, run: impl Fn(&mut Scenario) + Sync) {
    let strategies = [FOLDED, &["--batch-rows-max", "300"], ONE_BY_ONE, DECODED].map(|strategy| {
        let rules = of.iter().flat_map(|rule| ["--conflict", rule]);
        rules.chain(["--keep-commit-timestamps", keep]).chain(strategy.iter().copied()).collect::<Vec<_>>()
    });
    let strategies = strategies.each_ref().map(Vec::as_slice);
    let track = |builder: Builder| builder.setting("track_commit_timestamp", "on");
    scenario_alone(&strategies, |builder| builder, track, run);
}

/// All rows of a table, the same for every strategy.
fn rows(s: &Scenario, table: &str) -> String {
    s.target_one(&format!(
        "SELECT md5(coalesce(string_agg(t::text, ' ' ORDER BY t::text), '')) FROM {table} t"
    ))
}

/// Every conflict with what was done, the same for every strategy.
fn history(s: &Scenario) -> String {
    s.target_one(
        "SELECT string_agg(h, ' ' ORDER BY h) FROM (SELECT concat_ws('/', type, table_name, resolution, \
         outcome, remote_xid, count(*)) AS h FROM pgsluice.conflict_history \
         GROUP BY type, table_name, resolution, outcome, remote_xid) h",
    )
}

/// Local writes that collide with one row in fifty, then transactions of every size.
fn collide(s: &mut Scenario) {
    s.both(TABLES);
    s.publish("FOR TABLE alone, two, pair, parted, mark WITH (publish_via_partition_root = true)");
    s.source(
        "INSERT INTO alone SELECT i, 'v' FROM generate_series(1, 1500) i; \
         INSERT INTO two SELECT i, i, 'v' FROM generate_series(1, 1500) i; \
         INSERT INTO pair SELECT i, i % 7, 'v' FROM generate_series(1, 1500) i; \
         INSERT INTO parted SELECT i, 'v' FROM generate_series(1, 1500) i",
    );
    s.follow();
    s.catch_up();
    for (table, key) in [("alone", "id"), ("two", "id"), ("pair", "a"), ("parted", "id")] {
        s.target(&format!(
            "UPDATE {table} SET v = 'local' WHERE {key} % 50 = 1; DELETE FROM {table} WHERE {key} % 50 = 2"
        ));
    }
    s.target(
        "INSERT INTO alone SELECT i, 'local' FROM generate_series(2000, 2500, 50) i; \
         INSERT INTO two SELECT i, 100000 + i, 'local' FROM generate_series(2000, 2500, 50) i; \
         INSERT INTO pair SELECT i, '1', 'local' FROM generate_series(2000, 2500, 50) i; \
         INSERT INTO parted SELECT i, 'local' FROM generate_series(2000, 2500, 50) i",
    );
    s.stop();
    for sql in [
        "UPDATE alone SET v = 'w'; UPDATE two SET v = 'w'; UPDATE pair SET v = 'w'; UPDATE parted SET v = 'w'",
        "DELETE FROM alone WHERE id BETWEEN 1000 AND 1200; DELETE FROM two WHERE id BETWEEN 1000 AND 1200; \
         DELETE FROM pair WHERE a BETWEEN 1000 AND 1200; DELETE FROM parted WHERE id BETWEEN 1000 AND 1200",
        "INSERT INTO alone SELECT i, 'new' FROM generate_series(2000, 2600) i; \
         INSERT INTO pair SELECT i, '1', 'new' FROM generate_series(2000, 2600) i; \
         INSERT INTO parted SELECT i, 'new' FROM generate_series(2000, 2600) i",
        "INSERT INTO two SELECT i, i, 'new' FROM generate_series(2000, 2600) i",
        "DO $$ BEGIN FOR i IN 1..400 LOOP \
           UPDATE alone SET v = v || i WHERE id BETWEEN i AND i + 3; \
           UPDATE two SET v = v || i, u = u WHERE id = i; UPDATE pair SET v = v || i WHERE a = i; \
           UPDATE parted SET v = v || i WHERE id BETWEEN 400 + i AND 402 + i; \
           DELETE FROM alone WHERE id = 1200 + i AND i % 3 = 0; \
           INSERT INTO alone VALUES (3000 + i, 'x'); UPDATE alone SET v = 'y' WHERE id = 3000 + i; \
           DELETE FROM alone WHERE id = 3000 + i AND i % 2 = 0; \
           COMMIT; END LOOP; END $$",
    ] {
        s.source(sql);
    }
    s.run();
    s.catch_up();
}

/// Whether conflicts are left, overwritten or decided by time: every strategy ends with the same
/// rows, and has met the same conflicts in the same transactions.
#[test]
fn d5_rows_that_conflict_end_as_one_change_at_a_time_does() {
    let kinds = ["insert_exists", "update_origin_differs", "delete_origin_differs", "update_missing"];
    for (resolution, missing, keep) in [
        ("keep_local", "skip", "off"),
        ("apply_remote", "apply_remote", "off"),
        ("last_update_wins", "skip", "on"),
    ] {
        let of = kinds.map(|kind| {
            let by = if kind == "update_missing" { missing } else { resolution };
            format!("{kind}={by}")
        });
        let of = of.each_ref().map(String::as_str);
        under(&of, keep, |s| {
            collide(s);
            for table in ["alone", "two", "pair", "parted"] {
                rows(s, table);
            }
            let met = history(s);
            // A missing row that was inserted is not missing when it is deleted.
            let deleted = (missing == "skip").then_some("delete_missing");
            let kinds = ["insert_exists", "update_origin_differs", "update_missing"];
            for kind in kinds.into_iter().chain(deleted) {
                assert!(met.contains(kind), "{kind}: {met}");
                assert!(s.conflicts(kind) >= 10, "{kind}");
            }
        });
    }
}

/// After a conflict, small transactions and small parts are expected to meet others, and yet are
/// written as sets: again as plain ones when no other has come for a while.
#[test]
fn d5_a_conflict_leaves_small_sets_sets() {
    let strategies = [
        FOLDED,
        &["--batch-rows-max", "20"],
        &["--batch-rows-max", "20", "--max-parallel-apply-workers-per-subscription", "2"],
        DECODED,
    ];
    let logs = |builder: Builder| builder.setting("log_statement", "all");
    scenario_alone(
        &strategies,
        |builder| builder,
        logs,
        |s| {
            s.both("CREATE TABLE alone (id int PRIMARY KEY, v text)");
            s.publish("FOR TABLE alone, mark");
            s.source("INSERT INTO alone SELECT i, 'v' FROM generate_series(1, 100) i");
            s.follow();
            s.catch_up();
            s.target("DELETE FROM alone WHERE id = 1");
            s.source("UPDATE alone SET v = 'w' WHERE id <= 5");
            s.catch_up();
            assert_eq!(s.conflicts("update_missing"), 1);
            for round in 0..20 {
                let before = s.pair().target.log().len();
                s.source(&format!("UPDATE alone SET v = '{round}' WHERE id BETWEEN 11 AND 15"));
                s.source(&format!("UPDATE alone SET v = '{round}' WHERE id BETWEEN 21 AND 40"));
                s.catch_up();
                let log = s.pair().target.log().split_off(before);
                for number in 0..s.followers() {
                    let of = format!("pgsluice {} apply", s.name(number));
                    let to_table = |line: &&str| {
                        line.contains(&of) && line.contains("execute") && line.contains("\"alone\"")
                    };
                    let sent = log.lines().filter(to_table).count();
                    // Twenty-five rows; a set of five or more each time.
                    assert!((1..=5).contains(&sent), "{sent} statements in round {round}:\n{log}");
                }
            }
            assert_eq!(s.conflicts("update_missing"), 1);
        },
    );
}

/// Of 100,000 rows of a batch one is missing, and one holds a key that an INSERT brings: the others
/// are written by as few statements as without, and not row by row.
#[test]
fn d5_one_conflict_leaves_a_set_of_100_000_rows_a_set() {
    const ROWS: u32 = 100_000;
    let of = ["update_missing=skip", "insert_exists=keep_local"];
    let strategies = [FOLDED, DECODED].map(|strategy| {
        let rules = of.iter().flat_map(|rule| ["--conflict", rule]);
        rules.chain(strategy.iter().copied()).collect::<Vec<_>>()
    });
    let logs =
        |builder: Builder| builder.setting("log_statement", "all").setting("log_parameter_max_length", "20");
    scenario_alone(
        &strategies.each_ref().map(Vec::as_slice),
        |builder| builder,
        logs,
        |s| {
            s.both("CREATE TABLE alone (id int PRIMARY KEY, v text)");
            s.publish("FOR TABLE alone, mark");
            s.source(&format!("INSERT INTO alone SELECT i, 'v' FROM generate_series(1, {ROWS}) i"));
            s.follow();
            s.catch_up();
            let mut sent = Vec::new();
            for (round, conflicts) in [("without", 0), ("with", 1)] {
                if conflicts > 0 {
                    s.target(
                        "DELETE FROM alone WHERE id = 50000; INSERT INTO alone VALUES (250000, 'local')",
                    );
                }
                let before = s.pair().target.log().len();
                let first = ROWS * (conflicts as u32 + 1);
                s.source(&format!(
                    "BEGIN; UPDATE alone SET v = '{round}' WHERE id <= {ROWS}; \
                     INSERT INTO alone SELECT i, 'new' FROM generate_series({first} + 1, {first} + {ROWS}) i; COMMIT"
                ));
                s.catch_up();
                let log = s.pair().target.log().split_off(before);
                let of_table = |number: usize| {
                    let of = format!("pgsluice {} apply", s.name(number));
                    let to_table = |line: &&str| line.contains(&of) && line.contains("\"alone\"");
                    log.lines().filter(to_table).count()
                };
                sent.push((0..s.followers()).map(of_table).collect::<Vec<_>>());
                assert_eq!(s.conflicts("update_missing"), conflicts);
                assert_eq!(s.conflicts("insert_exists"), conflicts);
            }
            println!("{sent:?}");
            for (without, with) in sent[0].iter().zip(&sent[1]) {
                assert!(*without > 0 && *with <= without + 40, "statements: {sent:?}");
            }
        },
    );
}
