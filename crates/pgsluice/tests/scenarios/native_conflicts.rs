//! Without rules, pgsluice meets the conflicts that native apply meets: the same types, in the same
//! transactions, in the same order. Where native apply stops is in `native_stops`.

use testkit::Builder;

use crate::support::{BOUND, DECODED, FOLDED, ONE_BY_ONE, Scenario, scenario_alone};

/// The database of the native subscription, in the target's cluster.
pub(crate) const NATIVE: &str = "native";

const TABLES: &str = "CREATE TABLE t (id int PRIMARY KEY, v text); \
     CREATE TABLE pair (a int, b text, v text, PRIMARY KEY (a, b))";

/// Runs the scenario with sets, small sets, one change at a time, and WAL decoded here, by one
/// worker, on a target that keeps commit times.
pub(crate) fn detecting(words: &[&str], run: impl Fn(&mut Scenario) + Sync) {
    let one_worker = ["--max-parallel-apply-workers-per-subscription", "1"];
    let strategies = [FOLDED, &["--batch-rows-max", "300"], ONE_BY_ONE, DECODED]
        .map(|strategy| [&one_worker, words, strategy].concat());
    let strategies = strategies.each_ref().map(Vec::as_slice);
    let track = |builder: Builder| builder.setting("track_commit_timestamp", "on");
    scenario_alone(&strategies, |builder| builder, track, run);
}

/// Makes the native subscription, where PostgreSQL logs conflicts by type.
pub(crate) fn subscribe_natively(s: &Scenario, tables: &str, options: &str) {
    if s.major() < 18 {
        println!("not compared with native: PostgreSQL {} logs no conflicts by type", s.major());
        return;
    }
    let target = &s.pair().target;
    target.sql("postgres", &format!("CREATE DATABASE {NATIVE}")).unwrap();
    target.sql(NATIVE, &format!("{tables}; CREATE TABLE mark (id int PRIMARY KEY)")).unwrap();
    let subscription = format!(
        "CREATE SUBSCRIPTION n CONNECTION '{}' PUBLICATION p WITH (copy_data = false{options})",
        s.source_url()
    );
    target.sql(NATIVE, &subscription).unwrap();
}

/// Runs a statement on every target, also on the native one.
pub(crate) fn local(s: &Scenario, sql: &str) {
    s.target(sql);
    if s.major() >= 18 {
        s.pair().target.sql(NATIVE, sql).unwrap();
    }
}

/// Rows that came by replication, then local writes to some of them.
fn collide(s: &mut Scenario) {
    s.source(
        "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 900) i; \
         INSERT INTO pair SELECT i, i % 7, 'v' FROM generate_series(1, 900) i",
    );
    s.catch_up();
    wait_for_native(s);
    for sql in [
        "UPDATE t SET v = 'local' WHERE id % 7 = 1",
        "DELETE FROM t WHERE id % 50 = 2",
        "UPDATE pair SET v = 'local' WHERE a % 3 = 1",
        "DELETE FROM pair WHERE a % 40 = 3",
    ] {
        local(s, sql);
    }
    s.stop();
    for sql in [
        "UPDATE t SET v = v || '1' WHERE id <= 300; DELETE FROM t WHERE id BETWEEN 200 AND 260",
        "UPDATE pair SET v = v || '1'",
        "DO $$ BEGIN FOR i IN 300..700 LOOP UPDATE t SET v = v || i WHERE id BETWEEN i AND i + 2; \
           DELETE FROM pair WHERE a = i AND i % 5 = 0; COMMIT; END LOOP; END $$",
        "DELETE FROM t WHERE id BETWEEN 750 AND 800",
        "DELETE FROM t WHERE id BETWEEN 400 AND 500; INSERT INTO t SELECT i, 'again' FROM generate_series(400, 450) i \
           WHERE i % 50 <> 2; UPDATE t SET v = 'end'",
    ] {
        s.source(sql);
    }
    s.run();
    s.catch_up();
    wait_for_native(s);
}

/// Waits until the native subscription, if there is one, has the last mark.
pub(crate) fn wait_for_native(s: &Scenario) {
    let target = &s.pair().target;
    if s.major() < 18 {
        return;
    }
    let mark = s.source_one("SELECT max(id) FROM mark");
    let sql = format!("SELECT count(*) FROM mark WHERE id = {mark}");
    testkit::wait_for("the native subscription", BOUND, || Ok(target.one(NATIVE, &sql) == "1")).unwrap();
}

/// What the native subscription has logged: `type relation xid`, one line for each conflict.
fn logged(s: &Scenario) -> String {
    let mut met = Vec::new();
    for line in s.pair().target.log().lines() {
        if let Some((_, found)) = line.split_once("conflict detected on relation \"") {
            let (relation, kind) = found.split_once("\": conflict=").expect("PostgreSQL's wording");
            met.push(format!("{kind} {relation}"));
        } else if let Some((_, place)) = line.split_once(" in transaction ")
            && line.contains("processing remote data")
            && let Some(last) = met.last_mut()
            && last.split(' ').count() == 2
        {
            let xid: String = place.chars().take_while(char::is_ascii_digit).collect();
            last.push_str(&format!(" {xid}"));
        }
    }
    met.join("\n")
}

/// The same from pgsluice's history, in the order of the records.
const RECORDED: &str = "SELECT string_agg(concat_ws(' ', type, table_name, remote_xid), E'\n' ORDER BY id) \
     FROM pgsluice.conflict_history";

#[test]
fn d1_the_types_and_their_order_are_those_of_the_native_log() {
    detecting(&[], |s| {
        s.both(TABLES);
        s.publish("FOR TABLE t, pair, mark");
        subscribe_natively(s, TABLES, "");
        s.follow();
        collide(s);
        let recorded = s.target_one(RECORDED).replace("public.", "");
        let kinds = ["update_origin_differs", "delete_origin_differs", "update_missing", "delete_missing"];
        for kind in kinds {
            let count = recorded.lines().filter(|line| line.starts_with(kind)).count() as u64;
            assert!(count > 0, "{kind} is among them");
            assert_eq!(s.conflicts(kind), count, "the counter of {kind}");
        }
        for number in 0..s.followers() {
            assert!(!s.log(number).contains("cannot read who wrote"), "rows are decided as sets");
        }
        if s.major() < 18 {
            return;
        }
        assert_eq!(recorded, logged(s).replace("public.", ""), "ours, then native's");
        let target = &s.pair().target;
        for kind in kinds {
            let native = format!("SELECT confl_{kind} FROM pg_stat_subscription_stats WHERE subname = 'n'");
            let ours = s.conflicts(kind).to_string();
            testkit::wait_for("native's counters", BOUND, || Ok(target.one(NATIVE, &native) == ours))
                .unwrap();
        }
        for table in ["t", "pair"] {
            let rows = format!("SELECT md5(string_agg(x::text, ' ' ORDER BY x::text)) FROM {table} x");
            assert_eq!(s.target_one(&rows), target.one(NATIVE, &rows), "{table}");
        }
        target.sql(NATIVE, "DROP SUBSCRIPTION n").unwrap();
    });
}

#[test]
fn d1_nobody_asks_who_wrote_a_row_if_that_is_turned_off() {
    detecting(&["--detect-origin-differs", "off"], |s| {
        s.both(TABLES);
        s.publish("FOR TABLE t, pair, mark");
        s.follow();
        s.source("INSERT INTO t VALUES (1, 'a'), (2, 'b')");
        s.catch_up();
        s.target("UPDATE t SET v = 'local'");
        s.source("UPDATE t SET v = 'x' WHERE id = 1; DELETE FROM t WHERE id = 2");
        s.catch_up();
        s.same_table("t");
        assert_eq!((s.conflicts("update_origin_differs"), s.conflicts("delete_origin_differs")), (0, 0));
    });
}
