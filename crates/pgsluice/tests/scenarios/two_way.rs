//! The kind: a change that came by replication is sent back to where it was made.
//!
//! Two databases follow each other with `origin = none`. Nothing that one of them received goes
//! back: neither changes, nor copied rows, nor what a repeated copy removes first.

use std::time::Duration;

use testkit::{Builder, Sluice, wait_for};

use crate::support::{BOUND, Scenario, Session, scenario_alone, scenario_with};

/// The subscription in the other direction, from follower 0 to the source.
pub(crate) struct WayBack {
    sluice: Sluice,
    environment: [(&'static str, String); 3],
    arguments: Vec<String>,
}

impl WayBack {
    pub(crate) fn start(s: &Scenario, own: &[&str]) -> WayBack {
        s.target("CREATE PUBLICATION p FOR ALL TABLES");
        WayBack::start_published(s, own)
    }

    /// [`WayBack::start`] where the publication is there.
    pub(crate) fn start_published(s: &Scenario, own: &[&str]) -> WayBack {
        let environment = [
            ("PGSLUICE_SOURCE", s.target_url(0)),
            ("PGSLUICE_TARGET", s.source_url()),
            ("PGSLUICE_SUBSCRIPTION", format!("{}_back", s.name(0))),
        ];
        let arguments = [&["run", "--publication", "p", "--copy-data", "off"][..], own].concat();
        let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
        WayBack { sluice: WayBack::begin(s, &environment, &arguments), environment, arguments }
    }

    fn begin(s: &Scenario, environment: &[(&'static str, String)], arguments: &[String]) -> Sluice {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = s.command(0, &arguments);
        command.envs(environment.iter().cloned());
        let sluice = Sluice::start(command).unwrap();
        let streams = wait_for("the way back", BOUND, || Ok(sluice.stderr().contains("streaming from")));
        assert!(streams.is_ok(), "{}", sluice.stderr());
        sluice
    }

    /// Kills it and starts it again.
    pub(crate) fn kill_and_run(&mut self, s: &Scenario) {
        self.sluice.kill9();
        self.start_again(s);
    }

    pub(crate) fn stop(&mut self) {
        assert!(self.sluice.terminate(Duration::from_secs(5)).unwrap().success());
    }

    pub(crate) fn start_again(&mut self, s: &Scenario) {
        self.sluice = WayBack::begin(s, &self.environment, &self.arguments);
    }

    /// Had a change come back, it would have met an existing or a missing row by now. Conflicts
    /// with rows that were first written on this side are no sign of that.
    pub(crate) fn met_nothing(&mut self) {
        let log = self.sluice.stderr();
        let mut conflicts = log.lines().filter(|line| line.contains("conflict"));
        let are_ordinary = conflicts.all(|line| line.contains("_origin_differs: "));
        assert!(self.sluice.is_running() && are_ordinary, "{log}");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.sluice.pid()
    }

    /// What it logged since it was started last.
    pub(crate) fn log(&self) -> String {
        self.sluice.stderr()
    }

    /// Waits until it captures deletions on its target, and has passed the beginning of capture.
    pub(crate) fn wait_for_capture(&self, s: &Scenario) {
        let captures = || {
            let mut command = s.command(0, &["status", "--json"]);
            command.envs(self.environment.iter().cloned());
            let output = command.output()?;
            let status: serde_json::Value = serde_json::from_slice(&output.stdout)?;
            let deletions = &status["deletions"];
            Ok(deletions["state"] == "capturing" && deletions["cut_lsn"].is_null())
        };
        wait_for("the way back to capture", BOUND, captures).unwrap();
    }

    pub(crate) fn end(mut self, s: &Scenario) {
        assert!(self.sluice.is_running(), "{}", self.sluice.stderr());
        assert!(self.sluice.terminate(Duration::from_secs(5)).unwrap().success());
        let mut command = s.command(0, &["drop"]);
        command.envs(self.environment);
        let mut dropped = Sluice::start(command).unwrap();
        assert!(dropped.wait(BOUND).unwrap().unwrap().success(), "{}", dropped.stderr());
    }
}

/// Waits until a query answers `t` on both ends.
#[track_caller]
pub(crate) fn wait_until_both(s: &Scenario, back: &WayBack, sql: &str) {
    let level =
        wait_for("both ends to be level", BOUND, || Ok(s.source_one(sql) == "t" && s.target_one(sql) == "t"));
    assert!(level.is_ok(), "{sql}\n{}\n{}", s.log(0), back.sluice.stderr());
}

/// From any version and by either source, also where transactions are streamed while they are open.
#[test]
fn origin_none_keeps_two_way_replication_from_looping() {
    for mode in ["logical", "wal"] {
        let own = ["--source-mode", mode, "--origin", "none"];
        scenario_with(&[&[&own[..], &["--copy-data", "off"]].concat()], |s| {
            s.both(
                "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET logical_decoding_work_mem = 64', \
                 current_database()); END $$",
            );
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
            s.run();
            s.wait_for_log("streaming from");
            let mut back = WayBack::start(s, &own);
            for round in 0..10 {
                s.source(&format!(
                    "INSERT INTO t VALUES ({round}, 'source'); UPDATE t SET v = v || '.' WHERE id = {round}"
                ));
                s.target(&format!("INSERT INTO t VALUES (100 + {round}, 'target')"));
            }
            s.source("INSERT INTO t SELECT 1000 + n, repeat('source', 20) FROM generate_series(1, 3000) n");
            s.target("INSERT INTO t SELECT 5000 + n, repeat('target', 20) FROM generate_series(1, 3000) n");
            s.target("UPDATE t SET v = v || '!' WHERE id > 5000");
            let all = "SELECT count(*) = 6020 AND count(*) FILTER (WHERE v LIKE '%!') = 3000 FROM t";
            wait_until_both(s, &back, all);
            s.source("DELETE FROM t WHERE id = 105");
            wait_until_both(s, &back, "SELECT count(*) = 6019 FROM t");
            s.same_table("t");
            back.met_nothing();
            assert!(!s.log(0).contains("conflict"), "{}", s.log(0));
            back.end(s);
        });
    }
}

/// The first copy, one that is repeated after a kill, and that of a table that is added later. Each
/// copied row has an origin of its subscription.
#[test]
fn what_was_copied_is_not_sent_back() {
    let track = |builder: Builder| builder.setting("track_commit_timestamp", "on");
    for mode in ["logical", "wal"] {
        let own = ["--source-mode", mode, "--origin", "none", "--refresh-interval", "200ms"];
        let forth = [&own[..], &["--copy-split-bytes", "512kB", "--max-sync-workers-per-subscription", "3"]];
        scenario_alone(&[&forth.concat()], track, track, |s| {
            s.both(
                "CREATE TABLE few (id int PRIMARY KEY, v text); CREATE TABLE many (id int PRIMARY KEY, v text)",
            );
            s.source("INSERT INTO few SELECT n, 'copied' FROM generate_series(1, 100) n");
            s.source("INSERT INTO many SELECT n, repeat('copied', 20) FROM generate_series(1, 100000) n");
            s.publish("FOR TABLE few, many, mark");
            let mut back = WayBack::start(s, &own);
            s.run();
            let begun = "SELECT coalesce(bool_or(begun), false) FROM pgsluice.copied_table \
                         WHERE table_name = 'many'";
            wait_for("the copy to begin", BOUND, || {
                Ok(s.target_one("SELECT to_regclass('pgsluice.copied_table') IS NOT NULL") == "t"
                    && s.target_one(begun) == "t")
            })
            .unwrap();
            s.kill();
            // The copy may have been quicker than the kill: the state of an instant before its end.
            s.target("UPDATE pgsluice.copied_table SET finished = false WHERE table_name = 'many'");
            s.run();
            let done = "SELECT bool_and(finished) FROM pgsluice.copied_table";
            wait_for("the repeated copy", BOUND, || Ok(s.target_one(done) == "t")).unwrap();
            s.catch_up();
            s.target("UPDATE few SET v = 'target' WHERE id <= 10");
            s.source("UPDATE few SET v = 'source' WHERE id > 90");
            s.both("CREATE TABLE later (id int PRIMARY KEY)");
            s.source("INSERT INTO later SELECT generate_series(1, 1000)");
            s.source("ALTER PUBLICATION p ADD TABLE later");
            s.source("INSERT INTO later VALUES (5000)");
            let all = "SELECT (SELECT count(*) = 100 AND count(*) FILTER (WHERE v = 'copied') = 80 FROM few) \
                       AND (SELECT count(*) = 100000 FROM many) AND (SELECT count(*) = 1001 FROM later)";
            wait_until_both(s, &back, all);
            // Behind everything that could have come back.
            s.target("INSERT INTO few VALUES (1000, 'last')");
            wait_until_both(s, &back, "SELECT count(*) = 101 FROM few");
            s.catch_up();
            s.same();
            back.met_nothing();
            let without = "SELECT count(*) FROM (SELECT xmin FROM few WHERE id BETWEEN 11 AND 100 \
                           UNION ALL SELECT xmin FROM many UNION ALL SELECT xmin FROM later) t, \
                           pg_xact_commit_timestamp_origin(t.xmin) x LEFT JOIN pg_replication_origin o \
                           ON o.roident = x.roident WHERE o.roname IS NULL OR o.roname !~ '^pgsluice_.*_[0-9]+$'";
            assert_eq!(s.target_one(without), "0");
            back.end(s);
        });
    }
}

/// Transactions of each side.
const ROUNDS: usize = 500;

/// Writes hot rows at random, by a seed: updates of one and of several rows, and inserts of rows
/// that both sides insert.
fn write_hot_rows(url: &str, side: &str, seed: f64) {
    let mut session = Session::to(url);
    session.run(&format!("SELECT setseed({seed})"));
    session.run(&format!(
        "DO $$ BEGIN FOR i IN 1..{ROUNDS} LOOP \
           BEGIN \
             UPDATE hot SET n = n + 1, who = '{side}' || i WHERE id = 1 + floor(random() * 5); \
             IF random() < 0.2 THEN UPDATE hot SET who = '{side} all ' || i WHERE id > 3; END IF; \
             INSERT INTO hot VALUES (100 + i / 2, i, '{side}') \
               ON CONFLICT (id) DO UPDATE SET n = -i, who = '{side}'; \
           EXCEPTION WHEN deadlock_detected THEN NULL; END; \
           INSERT INTO told VALUES ('{side}', i); \
           COMMIT; PERFORM pg_sleep(0.001); END LOOP; END $$"
    ));
}

/// Rows that both sides write at the same time, while either direction is killed: the later version
/// of each row stays on both sides.
#[test]
fn two_sides_that_write_the_same_rows_end_equal() {
    let track = |builder: Builder| builder.setting("track_commit_timestamp", "on");
    let rules = ["insert_exists", "update_origin_differs"].map(|kind| format!("{kind}=last_update_wins"));
    let rules = rules.iter().flat_map(|rule| ["--conflict", rule.as_str()]);
    let own: Vec<&str> = ["--origin", "none"].into_iter().chain(rules).collect();
    for (seed, mode) in ["logical", "wal"].into_iter().enumerate() {
        let own = [own.as_slice(), &["--source-mode", mode]].concat();
        scenario_alone(&[&[own.as_slice(), &["--copy-data", "off"]].concat()], track, track, |s| {
            s.both(
                "CREATE TABLE hot (id int PRIMARY KEY, n int, who text); \
                 CREATE TABLE told (side text, n int, PRIMARY KEY (side, n)); \
                 INSERT INTO hot SELECT n, 0, 'both' FROM generate_series(1, 5) n",
            );
            s.run();
            s.wait_for_log("streaming from");
            let mut back = WayBack::start(s, &own);
            let (here, there) = (s.source_url(), s.target_url(0));
            let seed = 0.1 + seed as f64 / 10.0;
            let load = [(here, "a", seed), (there, "b", -seed)]
                .map(|(url, side, seed)| std::thread::spawn(move || write_hot_rows(&url, side, seed)));
            for part in 1..4 {
                let far = format!("SELECT count(*) >= {} FROM told", part * ROUNDS / 2);
                wait_until_both(s, &back, &far);
                if part % 2 == 0 {
                    back.kill_and_run(s);
                } else {
                    s.kill();
                    s.run();
                }
            }
            load.into_iter().for_each(|side| side.join().unwrap());
            wait_until_both(s, &back, &format!("SELECT count(*) = 2 * {ROUNDS} FROM told"));
            s.same_table("hot");
            let met = "SELECT count(*) FROM pgsluice.conflict_history WHERE type = ";
            for kind in ["'insert_exists'", "'update_origin_differs'"] {
                let both = [s.source_one(&format!("{met}{kind}")), s.target_one(&format!("{met}{kind}"))];
                assert!(both.iter().all(|count| count != "0"), "{kind}: {both:?}");
            }
            back.end(s);
        });
    }
}
