//! Failovers of a source with `source_mode = wal` (rule W3): to a standby that has received all
//! decoded WAL, or to one that has not. `errors` tests logical slots.

use std::time::Duration;

use testkit::{Archive, Cluster, StopMode, wait_for};

use crate::archived::{self, keeps};
use crate::errors::{become_standby, promote};
use crate::support::{BOUND, Scenario, Session, position, scenario_alone};

const STREAMED: &[&str] = &["--source-mode", "wal", "--wal-stream", "on"];
const BEHIND_STANDBY: &[&str] =
    &["--source-mode", "wal", "--wal-stream", "on", "--synchronized-standby-slots", "standby"];

fn alone(strategies: &[&[&str]], scenario: impl Fn(&mut Scenario) + Sync) {
    scenario_alone(
        strategies,
        keeps,
        |target| target,
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
            s.source("CREATE TABLE noise (v text)");
            s.publish("FOR TABLE t, mark");
            scenario(s);
        },
    );
}

/// Waits until `standby` has received all WAL of the source.
fn level(s: &Scenario, standby: &Cluster) {
    let written = s.source_position();
    wait_for("the standby to have it all", BOUND, || {
        Ok(position(&standby.one("postgres", "SELECT coalesce(pg_last_wal_receive_lsn(), '0/0')")) >= written)
    })
    .unwrap();
}

/// Stops the source; `standby` takes its place.
fn fail_over(s: &mut Scenario, mut standby: Cluster) {
    s.kill();
    s.pair_mut().source.kill9();
    standby.start_again().unwrap();
    promote(&standby);
    s.pair_mut().source = standby;
}

#[test]
fn w3_what_the_named_standby_has_not_received_is_not_applied() {
    alone(&[BEHIND_STANDBY, &[BEHIND_STANDBY, &["--streaming", "off"]].concat()], |s| {
        for timeline in [2, 3] {
            let mut standby = s.pair_mut().source.standby("standby").unwrap();
            s.follow();
            let id = timeline * 100;
            s.live(&[&format!("INSERT INTO t SELECT i, 'both' FROM generate_series({id}, {id} + 9) i")]);
            if timeline == 2 {
                // The needed WAL begins in a segment of the old timeline, which is streamed to its
                // end.
                s.source("SELECT pg_switch_wal()");
                s.live(&[&format!("INSERT INTO t VALUES ({id} + 10, 'both')")]);
            } else {
                s.wait_for_log("on timeline 2: pgsluice follows it");
            }
            // A failover rolls back open transactions.
            s.source_in("open", &format!("BEGIN; INSERT INTO t VALUES ({id} + 20, 'open')"));
            level(s, &standby);
            standby.stop(StopMode::Immediate).unwrap();
            s.source(&format!("INSERT INTO t VALUES ({id} + 21, 'only here'); UPDATE t SET v = 'only here'"));
            for number in 0..s.followers() {
                let told = || {
                    let awaited = s.status(number)["decoded"]["awaited"].as_str().map(str::to_owned);
                    Ok(awaited.is_some_and(|what| what.contains("no standby uses it")))
                };
                wait_for("what is waited for to be told", BOUND, told).unwrap();
            }
            assert_eq!(s.target_one("SELECT count(*) FROM t WHERE v <> 'both'"), "0", "it was applied");
            fail_over(s, standby);
        }
        // Without named standbys, nothing delays decoding.
        let standby = s.pair_mut().source.standby("standby").unwrap();
        s.follow();
        s.wait_for_log("on timeline 3 now, which left timeline 2 at");
        s.live(&["UPDATE t SET v = v || ' and here'", "INSERT INTO t VALUES (1, 'both and here')"]);
        assert_eq!(s.target_one("SELECT string_agg(DISTINCT v, ',') FROM t"), "both and here");
        level(s, &standby);
    });
}

/// A copy under a snapshot that the standby has not reached could contain rows that the new primary
/// never had.
#[test]
fn w3_the_first_copy_waits_for_the_named_standby() {
    alone(&[BEHIND_STANDBY], |s| {
        let mut standby = s.pair_mut().source.standby("standby").unwrap();
        level(s, &standby);
        standby.stop(StopMode::Fast).unwrap();
        s.source("INSERT INTO t VALUES (1, 'x')");
        s.run();
        s.wait_for_log("before the standbys have it");
        assert_eq!(s.target_one("SELECT count(*) FROM t"), "0", "it was copied");
        standby.start_again().unwrap();
        s.follow();
        s.same();
    });
}

#[test]
fn w3_what_the_new_primary_never_received_is_refused() {
    alone(&[STREAMED], |s| {
        let mut standby = s.pair_mut().source.standby("standby").unwrap();
        s.follow();
        level(s, &standby);
        standby.stop(StopMode::Immediate).unwrap();
        // These changes are not published, but the catalogs are stored as of a position that the
        // standby never reached.
        let fork = s.source_position();
        let kept = || {
            s.source("INSERT INTO noise SELECT repeat('x', 1000) FROM generate_series(1, 500)");
            s.source("CHECKPOINT");
            // Between two looks at a condition that has a bound.
            std::thread::sleep(Duration::from_millis(300));
            let needed = s.status(0)["decoded"]["needed_from_lsn"].as_str().map(position);
            Ok(needed.is_some_and(|needed| needed > fork))
        };
        wait_for("the catalogs to be kept anew", BOUND, kept).unwrap();
        fail_over(s, standby);
        s.source("INSERT INTO t VALUES (1, 'new')");
        s.run();
        let (code, log) = s.ended().remove(0);
        let told = ["timeline 2, which left timeline 1 at", "was decoded up to", "pgsluice drop"];
        assert!(code == 1 && told.iter().all(|words| log.contains(words)), "{code}: {log}");
        assert_eq!(s.target_one("SELECT count(*) FROM t"), "0");
        // The remedy works.
        s.call(0, &["drop", "--force"]).expect_success();
        s.target("TRUNCATE t, mark");
        s.live(&["INSERT INTO t VALUES (2, 'new')"]);
    });
}

#[test]
fn w3_a_primary_without_our_slot_is_followed_while_it_has_the_wal() {
    alone(&[STREAMED], |s| {
        let standby = s.pair_mut().source.standby("standby").unwrap();
        s.live(&["INSERT INTO t VALUES (1, 'old')"]);
        level(s, &standby);
        fail_over(s, standby);
        s.source("INSERT INTO t VALUES (2, 'new')");
        s.follow();
        s.wait_for_log(&format!("created replication slot \"{}\" again", s.slot(0)));
        s.same();
        // The slot on the standby keeps WAL from now on, also while pgsluice is stopped.
        s.backlog(&["INSERT INTO t VALUES (3, 'new')", "SELECT pg_switch_wal()", "CHECKPOINT"]);
        // The next standby removes needed WAL before pgsluice connects.
        let standby = s.pair_mut().source.standby("standby").unwrap();
        s.follow();
        level(s, &standby);
        fail_over(s, standby);
        s.source("ALTER SYSTEM SET wal_keep_size = 0");
        s.source("SELECT pg_reload_conf()");
        for _ in 0..3 {
            s.source("INSERT INTO noise VALUES ('x')");
            s.source("SELECT pg_switch_wal()");
            s.source("CHECKPOINT");
        }
        s.run();
        let (code, log) = s.ended().remove(0);
        let told = ["has already been removed", "wal_archive", "copy again"];
        assert!(code == 1 && told.iter().all(|words| log.contains(words)), "{code}: {log}");
    });
}

/// With the addresses of both servers, and the slot created on the standby beforehand, no action is
/// needed. pgsluice does not use a standby before its promotion.
#[test]
fn w3_a_promoted_standby_is_followed_by_itself() {
    alone(&[STREAMED, &[STREAMED, &["--binary", "off"]].concat()], |s| {
        let standby = s.pair_mut().source.standby("standby").unwrap();
        let port = |cluster: &Cluster| format!("127.0.0.1:{}", cluster.port());
        let (own, other) = (port(&s.pair().source), port(&standby));
        let url = s.source_url().replace(&own, &format!("{own},{other}"));
        s.run_with(|command| {
            command.env("PGSLUICE_SOURCE", &url);
        });
        s.live(&["INSERT INTO t VALUES (1, 'old')"]);
        for number in 0..s.followers() {
            let slot = format!("SELECT pg_create_physical_replication_slot('{}', true)", s.slot(number));
            standby.sql("postgres", &slot).unwrap();
        }
        level(s, &standby);
        s.pair_mut().source.kill9();
        s.wait_for_log("the source is a standby");
        promote(&standby);
        s.pair_mut().source = standby;
        s.live(&["INSERT INTO t VALUES (2, 'new')", "UPDATE t SET v = v || ' seen'"]);
        assert_eq!(s.target_one("SELECT string_agg(v, ',' ORDER BY id) FROM t"), "old seen,new seen");
    });
}

/// pgsluice checks the finished copies before it copies the others, which belong to the new
/// timeline.
#[test]
fn w3_a_first_copy_is_finished_from_the_new_primary() {
    alone(&[STREAMED], |s| {
        s.both("CREATE TABLE u (id int PRIMARY KEY)");
        s.source("INSERT INTO t VALUES (1, 'old'); INSERT INTO u SELECT generate_series(1, 1000)");
        s.source("ALTER PUBLICATION p ADD TABLE u");
        let standby = s.pair_mut().source.standby("standby").unwrap();
        let mut holder = Session::to(&s.target_url(0));
        // No session may write to the table.
        holder.run("BEGIN; LOCK TABLE u IN SHARE MODE");
        s.run();
        let copied = "SELECT finished FROM pgsluice.copied_table WHERE table_name = 't'";
        wait_for("one table to be copied", BOUND, || {
            let finished = s.pair().target.sql(s.name(0), copied);
            Ok(finished.is_ok_and(|rows| rows.first().is_some_and(|row| row[0].as_deref() == Some("t"))))
        })
        .unwrap();
        level(s, &standby);
        fail_over(s, standby);
        holder.run("ROLLBACK");
        s.source("INSERT INTO t VALUES (2, 'new'); INSERT INTO u VALUES (2000)");
        s.follow();
        s.same();
        s.live(&["UPDATE t SET v = 'seen'", "DELETE FROM u WHERE id < 10"]);
        assert_eq!(s.target_one("SELECT count(*) FROM u"), "992");
    });
}

/// The segments of the new timeline arrive in the same directory.
#[test]
fn w3_an_archive_is_followed_onto_another_timeline() {
    const ONE: &[&[&str]] = &[&["--source-mode", "wal"]];
    scenario_alone(
        ONE,
        keeps,
        |target| target,
        |s| {
            let archive = Archive::start(&s.pair().source.data_dir()).unwrap();
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
            s.publish("FOR TABLE t, mark");
            archived::from(s, archive.path());
            s.live(&["INSERT INTO t VALUES (1, 'timeline 1')"]);
            s.source_in("open", "BEGIN; INSERT INTO t VALUES (2, 'open')");
            let source = &mut s.pair_mut().source;
            source.stop(StopMode::Immediate).unwrap();
            become_standby(source);
            promote(source);
            s.source("INSERT INTO t VALUES (3, 'timeline 2')");
            s.wait_for_log("the source is on timeline 2 now");
            s.live(&["UPDATE t SET v = v || ' seen'"]);
            assert_eq!(
                s.target_one("SELECT string_agg(v, ',' ORDER BY id) FROM t"),
                "timeline 1 seen,timeline 2 seen"
            );
        },
    );
}

/// The transactions that a standby's snapshot sees are not known (rule C2).
#[test]
fn c2_a_standby_as_source_is_refused() {
    alone(&[STREAMED], |s| {
        let standby = s.pair_mut().source.standby("standby").unwrap();
        level(s, &standby);
        let url = s
            .source_url()
            .replace(&format!(":{}/", s.pair().source.port()), &format!(":{}/", standby.port()));
        s.run_with(|command| {
            command.env("PGSLUICE_SOURCE", &url);
        });
        let (code, log) = s.ended().remove(0);
        assert!(code == 1 && log.contains("it is a standby") && log.contains("its primary"), "{code}: {log}");
        assert_eq!(s.left_behind().iter().filter(|left| left.starts_with("slot")).count(), 0);
        assert_eq!(standby.one("postgres", "SELECT count(*) FROM pg_replication_slots"), "0");
        s.live(&["INSERT INTO t VALUES (1, 'primary')"]);
    });
}
