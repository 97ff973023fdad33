//! Two directions from one command, `run --both-ways`: its set-up while clients write on both sides
//! and the process is killed, what it refuses, and three databases that follow each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use testkit::{Output, Sluice, wait_for};

use crate::create_schema::pg_dump;
use crate::support::{BOUND, FOLDED, Scenario, Session, scenario_with};

const MODES: [&str; 2] = ["logical", "wal"];

/// What the way back logs when clients may write on its side.
pub(crate) const MAY_BE_WRITTEN: &str = "both sides may be written";

/// Writes rows of one side until it is told to end: new rows, and changes of rows that only this
/// side writes.
struct Load {
    ends: Arc<AtomicBool>,
    writer: Option<JoinHandle<usize>>,
}

/// A test that fails must not go on writing.
impl Drop for Load {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

impl Load {
    fn start(url: String, side: usize) -> Load {
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let writer = std::thread::spawn(move || {
            let mut session = Session::to(&url);
            let mut round = 0;
            while !told.load(Ordering::Relaxed) {
                round += 1;
                let (new, old) = (1_000_000 + 2 * round + side, 2 * (round % 20_000) + side);
                session.run(&format!(
                    "INSERT INTO t VALUES ({new}, 'new of {side}'); \
                     UPDATE t SET v = 'changed by {side}' WHERE id = {old}; \
                     DELETE FROM t WHERE id = {old} + 2 AND {round} % 7 = 0"
                ));
            }
            round
        });
        Load { ends, writer: Some(writer) }
    }

    /// The number of transactions.
    fn end(mut self) -> usize {
        self.ends.store(true, Ordering::Relaxed);
        self.writer.take().expect("it runs").join().unwrap()
    }
}

/// Drops both directions; nothing is left on either server.
#[track_caller]
pub(crate) fn drop_both(s: &mut Scenario) {
    s.stop();
    for number in 0..s.followers() {
        let dropped = s.call(number, &["drop", "--both-ways"]);
        assert!(dropped.status.success(), "{dropped:?}");
    }
    assert_eq!(s.left_behind(), Vec::<String>::new());
}

/// Waits until what each side wrote before is on the other, and compares them.
#[track_caller]
fn assert_level(s: &mut Scenario) {
    s.target("INSERT INTO mark VALUES (1000000)");
    let back = "SELECT count(*) FROM mark WHERE id = 1000000";
    let there = wait_for("the way back", BOUND, || Ok(s.source_one(back) == "1"));
    assert!(there.is_ok(), "{}\n{:?}", s.log(0), s.call(0, &["status", "--both-ways"]));
    s.catch_up();
    let verified = s.call(0, &["verify", "--publication", "p"]);
    assert!(verified.status.success(), "{verified:?}\n{}", s.log(0));
    s.same_table("t");
}

/// Clients write on the side that has the rows all the time, and on the other as soon as the log
/// allows it, while the process is killed again and again. Nothing is lost or comes back.
#[test]
fn both_ways_are_set_up_while_both_sides_are_written() {
    for (seed, mode) in MODES.into_iter().enumerate() {
        let own = ["--both-ways", "--source-mode", mode, "--copy-split-bytes", "256kB"];
        scenario_with(&[&own], |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE large (id int PRIMARY KEY, v text)");
            s.source("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 40000) n");
            s.source("INSERT INTO large SELECT n, repeat('x', 200) FROM generate_series(1, 60000) n");
            s.publish("FOR ALL TABLES");
            s.target("CREATE PUBLICATION p FOR ALL TABLES");
            let here = Load::start(s.source_url(), 0);
            let mut there = None;
            for round in 0..7 {
                s.run();
                s.wait_until_started();
                // Any instant will do: the set-up takes about two seconds.
                std::thread::sleep(Duration::from_millis((round * 7 + seed as u64 * 3) * 97 % 700));
                s.kill();
                if there.is_none() && s.log(0).contains(MAY_BE_WRITTEN) {
                    there = Some(Load::start(s.target_url(0), 1));
                }
            }
            s.run();
            s.wait_for_log(MAY_BE_WRITTEN);
            let there = there.unwrap_or_else(|| Load::start(s.target_url(0), 1));
            s.wait_for_copy();
            wait_for("rows of both sides", BOUND, || {
                let both = "SELECT count(DISTINCT v) = 2 FROM t WHERE v LIKE 'new of%'";
                Ok(s.source_one(both) == "t" && s.target_one(both) == "t")
            })
            .unwrap();
            assert!(here.end() > 0 && there.end() > 0);
            assert_level(s);
            assert!(!s.log(0).contains("conflict"), "{}", s.log(0));
            drop_both(s);
        });
    }
}

/// Clients may write to a table before its copy has begun. A start that comes in between copies it
/// nevertheless: what is there is theirs.
#[test]
fn a_table_whose_copy_has_not_begun_keeps_what_clients_wrote() {
    for mode in MODES {
        let own = ["--both-ways", "--source-mode", mode, "--max-sync-workers-per-subscription", "1"];
        scenario_with(&[&own], |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE large (id int PRIMARY KEY, v text)");
            s.source("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 100) n");
            s.source(
                "INSERT INTO large SELECT n, repeat('x', 200) FROM generate_series(1, 20000) n; ANALYZE",
            );
            s.publish("FOR TABLE t, large, mark");
            s.target("CREATE PUBLICATION p FOR TABLE t, large, mark");
            let mut holder = Session::to(&s.target_url(0));
            holder.run("BEGIN; LOCK TABLE large IN SHARE MODE");
            s.run();
            s.wait_for_log(MAY_BE_WRITTEN);
            s.wait_for_log(&format!("\"pgsluice_{}\" at", s.name(0)));
            s.target("INSERT INTO t SELECT n, 'theirs' FROM generate_series(1001, 1010) n");
            s.kill();
            let begun = "SELECT begun FROM pgsluice.copied_table WHERE table_name = 't'";
            assert_eq!(s.target_one(begun), "f", "the copy has begun");
            holder.run("COMMIT");
            s.run();
            s.wait_for_copy();
            s.target("UPDATE t SET v = v || '!' WHERE id IN (1, 1001)");
            assert_level(s);
            assert_eq!(
                s.source_one("SELECT count(*) || ' ' || count(*) FILTER (WHERE v LIKE '%!') FROM t"),
                "110 2"
            );
            drop_both(s);
        });
    }
}

/// The direction back says whose first copy it waits for.
#[test]
fn the_way_back_says_that_it_waits_for_the_first_copy() {
    scenario_with(&[&["--both-ways"]], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.source("INSERT INTO t VALUES (1, 'old')");
        s.publish("FOR ALL TABLES");
        s.target("CREATE PUBLICATION p FOR ALL TABLES");
        let mut holder = Session::to(&s.target_url(0));
        holder.run("BEGIN; LOCK TABLE t IN SHARE MODE");
        s.run();
        let mut seen = String::new();
        let told = wait_for("the way back to wait", BOUND, || {
            seen = s.call(0, &["status", "--both-ways", "--json"]).stdout;
            let both = seen.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            Ok(both.filter(|own| own["phase"] == "waiting" && own["waits_for"]["stage"] == "copy").count()
                == 1)
        });
        assert!(told.is_ok(), "{seen}\n{}", s.log(0));
        let text = s.call(0, &["status", "--both-ways"]).stdout;
        let words = format!("waits for     the end of the first copy of subscription \"{}\"", s.name(0));
        assert!(text.contains(&words), "{words}\n{text}");
        holder.run("COMMIT");
        s.wait_for_copy();
        assert_level(s);
        drop_both(s);
    });
}

/// The tables are created on the way: the direction back begins when they are there.
#[test]
fn both_ways_bring_the_schema_over() {
    for mode in MODES {
        scenario_with(&[&["--both-ways", "--create-schema", "--source-mode", mode]], |s| {
            let Some(pg_dump) = pg_dump(s) else { return };
            s.target("DROP TABLE mark; CREATE PUBLICATION p FOR ALL TABLES");
            s.source("CREATE TABLE t (id int PRIMARY KEY, v text UNIQUE)");
            s.source("INSERT INTO t SELECT n, n FROM generate_series(1, 1000) n");
            s.run_with(|command| {
                command.arg("--pg-dump").arg(&pg_dump);
            });
            s.wait_for_copy();
            s.catch_up();
            s.source("INSERT INTO t VALUES (2000, 'a')");
            s.target("INSERT INTO t VALUES (3000, 'b'); UPDATE t SET v = 'c' WHERE id = 1");
            assert_level(s);
            drop_both(s);
        });
    }
}

/// Rows on the side that the copy goes to would never reach the other.
#[test]
fn two_sides_with_rows_are_refused_with_the_remedy() {
    for mode in MODES {
        scenario_with(&[&["--both-ways", "--source-mode", mode]], |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
            s.source("INSERT INTO t VALUES (1, 'a')");
            s.target("INSERT INTO t VALUES (2, 'b')");
            s.publish("FOR TABLE t, mark");
            s.target("CREATE PUBLICATION p FOR TABLE t, mark");
            s.run();
            let (code, log) = s.ended().remove(0);
            assert_eq!(code, 1, "{log}");
            let (name, back) = (s.name(0).to_owned(), format!("{}_back", s.name(0)));
            for words in [
                "table \"public.t\" in",
                "swap --source and --target",
                "give --copy-data off",
                "TRUNCATE \"public\".\"t\"",
                &format!("the other direction, subscription \"{back}\", has ended"),
                &format!("--subscription {back}"),
            ] {
                assert!(log.contains(words), "{words}\n{log}");
            }
            assert!(log.contains(&name) && s.left_behind().is_empty(), "{:?}", s.left_behind());
            s.target("TRUNCATE t");
            s.follow();
            s.target("INSERT INTO t VALUES (2, 'b')");
            assert_level(s);
            drop_both(s);
        });
    }
}

/// Both sides have the same rows: nothing is copied.
#[test]
fn both_ways_without_a_copy_begin_as_they_are() {
    scenario_with(&[&["--both-ways", "--copy-data", "off"]], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'both')");
        s.target("CREATE PUBLICATION p FOR ALL TABLES");
        s.run();
        streams_both_ways(s);
        s.source("INSERT INTO t VALUES (2, 'here')");
        s.target("INSERT INTO t VALUES (3, 'there')");
        assert_level(s);
        drop_both(s);
    });
}

#[track_caller]
fn streams_both_ways(s: &mut Scenario) {
    s.wait_for_follower(0, "two streams", |s| Ok(s.log(0).matches("streaming from").count() >= 2));
}

/// One direction runs and gets a way back, whose rows are all copied ones.
#[test]
fn a_way_back_can_be_added_to_one_direction() {
    for mode in MODES {
        scenario_with(&[&["--source-mode", mode]], |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
            s.source("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 100) n");
            s.follow();
            s.stop();
            s.target("CREATE PUBLICATION p FOR ALL TABLES");
            s.source("INSERT INTO t VALUES (200, 'meanwhile')");
            s.run_with(|command| {
                command.arg("--both-ways");
            });
            s.wait_for_log(MAY_BE_WRITTEN);
            s.target("UPDATE t SET v = 'there' WHERE id = 1");
            s.source("UPDATE t SET v = 'here' WHERE id = 2");
            assert_level(s);
            drop_both(s);
        });
    }
}

/// `check`, `status`, `stop` and `drop` are about both directions, and errors name theirs.
#[test]
fn commands_know_both_ways() {
    scenario_with(&[FOLDED], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.publish("FOR TABLE t, mark");
        let (name, back) = (s.name(0).to_owned(), format!("{}_back", s.name(0)));
        let check = ["check", "--publication", "p", "--both-ways"];
        let found = s.call(0, &check);
        assert_eq!(found.status.code(), Some(2), "{found:?}");
        assert!(found.stdout.contains(&format!("{back}: cannot")), "{}", found.stdout);
        assert!(found.stdout.contains("CREATE PUBLICATION \"p\""), "{}", found.stdout);
        s.target("CREATE PUBLICATION q FOR TABLE t, mark");
        let named = ["--both-ways", "--back-subscription", "home", "--back-publication", "q"];
        let found = s.call(0, &[&check[..3], &named].concat());
        assert!(found.status.code() < Some(2) && found.stdout.contains("home: "), "{found:?}");

        s.run_with(|command| {
            command.args(["--both-ways", "--back-publication", "q"]);
        });
        streams_both_ways(s);
        let subscriptions = |shown: &Output| -> Vec<(String, bool)> {
            let lines =
                shown.stdout.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
            lines
                .map(|own| (own["subscription"].as_str().unwrap().to_owned(), own["running"] == true))
                .collect()
        };
        let shown = s.call(0, &["status", "--json", "--both-ways"]);
        assert_eq!(subscriptions(&shown), [(name.clone(), true), (back.clone(), true)]);
        let verified = s.call(0, &["verify"]);
        assert!(verified.status.success(), "{verified:?}");
        let stopped = s.call(0, &["stop", "--both-ways"]);
        assert!(stopped.stdout.contains(&format!("{back}: stopped")), "{stopped:?}");
        assert_eq!(s.ended()[0].0, 0);
        let shown = s.call(0, &["status", "--json", "--both-ways"]);
        assert_eq!(subscriptions(&shown), [(name, false), (back, false)]);
        drop_both(s);
    });
}

/// A subscription between two followers, in one direction.
fn between(s: &Scenario, from: usize, to: usize, arguments: &[&str]) -> Sluice {
    let mut command = s.command(0, arguments);
    command.env("PGSLUICE_SOURCE", s.target_url(from));
    command.env("PGSLUICE_TARGET", s.target_url(to));
    command.env("PGSLUICE_SUBSCRIPTION", format!("{}_to_{to}", s.name(from)));
    Sluice::start(command).unwrap()
}

/// Three databases, each of which has a subscription to each other: a change reaches both others
/// in one step, and goes no further.
#[test]
fn three_databases_follow_each_other() {
    for mode in MODES {
        let own = ["--both-ways", "--source-mode", mode];
        scenario_with(&[&own, &own], |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
            s.source("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 1000) n");
            s.publish("FOR TABLE t, mark");
            s.target("CREATE PUBLICATION p FOR TABLE t, mark");
            s.follow();
            let run = [
                "run",
                "--publication",
                "p",
                "--origin",
                "none",
                "--copy-data",
                "off",
                "--source-mode",
                mode,
            ];
            let ways = [(0, 1), (1, 0)];
            let mut others = ways.map(|(from, to)| between(s, from, to, &run));
            for other in &others {
                let streams = wait_for("a stream", BOUND, || Ok(other.stderr().contains("streaming from")));
                assert!(streams.is_ok(), "{}", other.stderr());
            }
            let urls = [s.source_url(), s.target_url(0), s.target_url(1)];
            let mut nodes = urls.each_ref().map(|url| Session::to(url));
            for round in 0..50 {
                for (number, node) in nodes.iter_mut().enumerate() {
                    let (new, old) = (10_000 + 3 * round + number, 1 + 3 * round + number);
                    node.run(&format!(
                        "INSERT INTO t VALUES ({new}, 'of {number}'); UPDATE t SET v = 'by {number}' WHERE id = {old}"
                    ));
                }
            }
            for (number, node) in nodes.iter_mut().enumerate() {
                node.run(&format!("INSERT INTO mark VALUES (1000000 + {number})"));
            }
            let level = wait_for("all to be level", BOUND, || {
                let level = "SELECT count(*) FROM mark WHERE id >= 1000000";
                Ok(nodes.iter_mut().all(|node| node.query(level).unwrap()[0][0].as_deref() == Some("3")))
            });
            assert!(level.is_ok(), "{}\n{}\n{}", s.log(0), s.log(1), others[0].stderr());
            s.catch_up();
            s.same_table("t");
            for (other, (from, to)) in others.iter_mut().zip(ways) {
                assert!(!other.stderr().contains("conflict"), "{}", other.stderr());
                assert!(other.terminate(Duration::from_secs(5)).unwrap().success());
                let mut dropped = between(s, from, to, &["drop"]);
                assert!(dropped.wait(BOUND).unwrap().unwrap().success(), "{}", dropped.stderr());
            }
            assert!(![s.log(0), s.log(1)].iter().any(|log| log.contains("conflict")));
            drop_both(s);
        });
    }
}
