//! What an operator sees. `status` names the stage that takes long, an idle process notices a lost
//! end, and failures and conflicts are logged at a bounded rate with totals. No server works for a
//! process that has ended.

use std::time::Duration;

use serde_json::Value;
use testkit::{Sluice, SmallDisk, StopMode, wait_for};

use crate::support::{BOUND, DECODED, STOP, Scenario, Session, scenario_alone, scenario_with};

const LOGICAL: &[&str] = &["--source-mode", "logical"];
const BOTH: &[&[&str]] = &[LOGICAL, DECODED];

/// A statement that writes a row with `n` = 7 runs until `go` has a row.
const GATED: &str = "\
CREATE FUNCTION public.passes(n int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
  WHILE n = 7 AND NOT EXISTS (SELECT FROM public.go) LOOP PERFORM pg_catalog.pg_sleep(0.02); END LOOP;
  RETURN true; END $$";
const GATE: &str = "ALTER TABLE t ADD CHECK (public.passes(n))";

/// Creates a table whose statements can be blocked on the targets.
fn gated(s: &mut Scenario, publication: &str) {
    s.both("CREATE TABLE t (id int PRIMARY KEY, n int)");
    s.target("CREATE TABLE public.go (id int)");
    s.target(GATED);
    s.target(GATE);
    s.publish(publication);
}

/// Waits until the status of follower `number` is `wanted`, and returns it.
#[track_caller]
fn status_when(s: &Scenario, number: usize, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let seen = wait_for(what, BOUND, || {
        last = s.status(number);
        Ok(wanted(&last))
    });
    assert!(seen.is_ok(), "{what}: {last:#}\n{}", s.log(number));
    last
}

#[track_caller]
fn wait_of_stage(s: &Scenario, number: usize, stage: &str) -> Value {
    status_when(s, number, stage, |status| status["waits_for"]["stage"] == stage)
}

/// Sessions of follower `number` that execute a statement on either server.
fn active(s: &Scenario, number: usize) -> Vec<String> {
    let sql = format!(
        "SELECT application_name || ': ' || query FROM pg_stat_activity \
          WHERE state = 'active' AND starts_with(application_name, 'pgsluice {} ')",
        s.name(number)
    );
    let mut found = Vec::new();
    for url in [s.target_url(number), s.source_url()] {
        found.extend(Session::to(&url).query(&sql).unwrap().into_iter().flatten().flatten());
    }
    found
}

/// Sends SIGTERM to every pgsluice, and checks that no server executes anything for one that has
/// ended.
#[track_caller]
fn terminate_and_see_nothing_active(s: &mut Scenario) {
    for number in 0..s.followers() {
        let status = s.sluice(number).terminate(STOP).unwrap();
        let left = active(s, number);
        assert!(status.success() && left.is_empty(), "{left:?}\n{}", s.log(number));
    }
    s.kill();
}

#[test]
fn a_statement_that_runs_is_named_and_what_was_handed_over_counts_as_apply() {
    const PARTS: [&str; 2] = ["--batch-rows-max", "10"];
    scenario_with(&[&[LOGICAL, &PARTS].concat(), &[DECODED, &PARTS].concat()], |s| {
        gated(s, "FOR TABLE t, mark");
        s.follow();
        // A transaction in parts, of which the second is blocked, so its commit waits.
        s.source("INSERT INTO t SELECT i, CASE i WHEN 15 THEN 7 ELSE 0 END FROM generate_series(1, 100) i");
        let id = s.mark();
        for number in 0..s.followers() {
            // The process knows that it waits for a statement; the target tells which one.
            let named = |status: &Value| status["waits_for"]["pid"].is_i64();
            let status = status_when(s, number, "the statement", named);
            let waits = &status["waits_for"];
            assert_eq!(waits["stage"], "statement", "{waits}");
            assert_eq!(
                (&waits["operation"], &waits["table"]),
                (&"INSERT".into(), &"public.t".into()),
                "{waits}"
            );
            assert!(waits["seconds"].as_f64().unwrap() > 0.0, "{waits}");
            status_when(s, number, "apply lag", |status| {
                let apply = &status["lag"]["apply"];
                apply["bytes"].as_u64() > Some(0) && apply["seconds"].as_f64() > Some(0.0)
            });
            let words = "\nwaits for     INSERT on public.t on the target, in its process ";
            let said = || Ok(s.call(number, &["status"]).stdout.contains(words));
            wait_for("status to say it in words", BOUND, said).unwrap();
        }
        s.target("INSERT INTO public.go VALUES (1)");
        s.wait_for_mark(id);
        s.same();
        for number in 0..s.followers() {
            wait_of_stage(s, number, "source");
        }
    });
}

#[test]
fn what_is_applied_one_change_at_a_time_is_named() {
    scenario_with(BOTH, |s| {
        gated(s, "FOR TABLE t, mark");
        s.source("INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i");
        s.follow();
        // The set misses a row, so its rows are applied one by one.
        s.target("DELETE FROM t WHERE id = 3");
        s.source("UPDATE t SET n = CASE id WHEN 12 THEN 7 ELSE 1 END");
        for number in 0..s.followers() {
            let named = |status: &Value| {
                status["waits_for"]["stage"] == "statement" && status["waits_for"]["table"] == "public.t"
            };
            status_when(s, number, "the statement of one row", named);
        }
        s.target("INSERT INTO public.go VALUES (1)");
        s.catch_up();
        assert_eq!(s.conflicts("update_missing"), 1);
    });
}

/// SIGTERM then meets a waiting COMMIT.
#[test]
fn a_commit_that_waits_for_a_standby_is_named_and_cancelled_at_the_end() {
    const COMMITS: [&str; 2] = ["--synchronous-commit", "on"];
    let strategies: [&[&str]; 2] = [&[LOGICAL, &COMMITS].concat(), &[DECODED, &COMMITS].concat()];
    scenario_alone(
        &strategies,
        |source| source,
        |target| target,
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY)");
            s.follow();
            s.pair().target.set_synchronous_standby_names("nobody").unwrap();
            s.source("INSERT INTO t VALUES (1)");
            for number in 0..s.followers() {
                // The process knows that it waits; the target tells why. The COMMIT of an idle
                // position may wait first.
                let named = |status: &Value| {
                    status["waits_for"]["wait_event"] == "IPC: SyncRep"
                        && status["lag"]["total"]["bytes"].as_u64() > Some(0)
                };
                let status = status_when(s, number, "the wait for a standby", named);
                let waits = &status["waits_for"];
                assert_eq!(waits["stage"], "commit", "{waits}");
                assert!(waits["what"].as_str().unwrap().contains("a synchronous standby"), "{waits}");
            }
            terminate_and_see_nothing_active(s);
            s.pair().target.set_synchronous_standby_names("").unwrap();
            s.follow();
            s.same();
        },
    );
}

#[test]
fn nothing_is_executed_for_a_process_that_has_ended() {
    scenario_with(BOTH, |s| {
        gated(s, "FOR TABLE t, mark");
        s.source("INSERT INTO t SELECT i, CASE i WHEN 15 THEN 7 ELSE 0 END FROM generate_series(1, 100) i");
        s.run();
        // First the copy is blocked, then a batch.
        for begin in ["COPY", "INSERT"] {
            for number in 0..s.followers() {
                let works = || Ok(active(s, number).iter().any(|what| what.contains(begin)));
                wait_for("a statement that runs", BOUND, works).unwrap();
            }
            terminate_and_see_nothing_active(s);
            if begin == "COPY" {
                s.target("INSERT INTO public.go VALUES (1)");
                s.follow();
                s.target("DELETE FROM public.go");
                s.source("INSERT INTO t VALUES (1000, 7)");
            }
        }
        s.target("INSERT INTO public.go VALUES (1)");
        s.follow();
        s.same();
        // A comparison waits for a lock.
        for number in 0..s.followers() {
            let mut holder = Session::to(&s.target_url(number));
            holder.run("BEGIN; LOCK TABLE t");
            let mut verify = Sluice::start(s.command(number, &["verify", "--publication", "p"])).unwrap();
            let compares = || Ok(active(s, number).iter().any(|what| what.contains(" verify: ")));
            wait_for("the comparison", BOUND, compares).unwrap();
            let status = verify.terminate(STOP).unwrap();
            let left: Vec<_> =
                active(s, number).into_iter().filter(|what| what.contains(" verify: ")).collect();
            assert!(status.code() == Some(143) && left.is_empty(), "{status}, {left:?}");
            holder.run("ROLLBACK");
        }
    });
}

#[test]
fn an_end_that_is_lost_is_noticed_while_nothing_happens() {
    scenario_alone(
        BOTH,
        |source| source,
        |target| target,
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY)");
            s.follow();
            for end in ["target", "source"] {
                (0..s.followers()).for_each(|number| drop(wait_of_stage(s, number, "source")));
                let pair = s.pair_mut();
                let cluster = if end == "target" { &mut pair.target } else { &mut pair.source };
                cluster.stop(StopMode::Immediate).unwrap();
                for number in 0..s.followers() {
                    // Within a second, and what a busy machine needs to ask.
                    let left = || Ok(s.status(number)["phase"] != "streaming");
                    let left = wait_for("the status to leave streaming", Duration::from_secs(5), left);
                    assert!(left.is_ok(), "{end}: {left:?}\n{}", s.log(number));
                }
                s.wait_for_log(&format!("the {end} was lost: "));
                let pair = s.pair_mut();
                let cluster = if end == "target" { &mut pair.target } else { &mut pair.source };
                cluster.start_again().unwrap();
                s.source(&format!("INSERT INTO t VALUES ({})", end.len() + usize::from(end == "target")));
                s.catch_up();
                s.same();
            }
        },
    );
}

/// The same, while the first copy waits for a lock on the source and writes nothing.
#[test]
fn a_target_that_is_lost_is_noticed_while_the_first_copy_waits_for_the_source() {
    // Copies one table after the other, the large one first.
    let one_by_one = BOTH.iter().map(|own| [own, &["--max-sync-workers-per-subscription", "1"][..]].concat());
    let one_by_one: Vec<Vec<&str>> = one_by_one.collect();
    let followers: Vec<&[&str]> = one_by_one.iter().map(Vec::as_slice).collect();
    scenario_alone(
        &followers,
        |source| source,
        |target| target,
        |s| {
            // The large one is blocked on the targets until the small one is locked on the source.
            s.both("CREATE TABLE small (id int PRIMARY KEY)");
            gated(s, "FOR TABLE t, small, mark");
            s.source("INSERT INTO t SELECT i, i % 100 FROM generate_series(1, 10000) i");
            s.source("INSERT INTO small VALUES (1)");
            s.run();
            for number in 0..s.followers() {
                status_when(s, number, "the copy to begin", |status| status["phase"] == "copying");
            }
            let mut lock = Session::to(&s.source_url());
            lock.run("BEGIN; LOCK TABLE small IN ACCESS EXCLUSIVE MODE");
            s.target("INSERT INTO public.go VALUES (1)");
            for number in 0..s.followers() {
                status_when(s, number, "the copy to wait for the lock", |status| {
                    status["phase"] == "copying" && status["blocked"]["table"] == "public.small"
                });
            }
            s.pair_mut().target.stop(StopMode::Immediate).unwrap();
            for number in 0..s.followers() {
                // Within a second, and what a busy machine needs to ask.
                let left = || Ok(s.status(number)["phase"] != "copying");
                let left = wait_for("the status to leave copying", Duration::from_secs(5), left);
                assert!(left.is_ok(), "{left:?}\n{}", s.log(number));
            }
            s.pair_mut().target.start_again().unwrap();
            lock.run("ROLLBACK");
            s.wait_for_copy();
            s.catch_up();
            s.same();
        },
    );
}

/// Ends each session on both ends, one at a time.
#[test]
fn a_session_that_is_lost_is_noticed_while_nothing_happens() {
    scenario_with(BOTH, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.follow();
        for number in 0..s.followers() {
            for role in ["apply", "control", "catalog", "stream"] {
                wait_of_stage(s, number, "source");
                let connects = s.status(number)["connects"].as_u64().unwrap();
                let ended = format!(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                      WHERE application_name = 'pgsluice {} {role}'",
                    s.name(number)
                );
                let url = if role == "stream" { s.source_url() } else { s.target_url(number) };
                assert_ne!(Session::to(&url).query(&ended).unwrap()[0][0].as_deref(), Some("0"), "{role}");
                let again = |status: &Value| {
                    status["connects"].as_u64() > Some(connects) && status["phase"] == "streaming"
                };
                status_when(s, number, role, again);
            }
        }
        s.catch_up();
        s.same();
    });
}

#[test]
fn what_fails_again_and_again_is_told_once_and_that_it_is_over() {
    scenario_with(BOTH, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.follow();
        s.target("INSERT INTO t VALUES (1)");
        s.source("INSERT INTO t VALUES (1)");
        for number in 0..s.followers() {
            let often = |status: &Value| status["failing"]["attempts"].as_u64() >= Some(6);
            status_when(s, number, "six attempts", often);
            let text = s.call(number, &["status"]).expect_success();
            assert!(text.contains("attempts in a row"), "{text}");
            let pauses = |status: &Value| status["phase"] == "waiting";
            let paused = status_when(s, number, "a pause between attempts", pauses)["waits_for"].clone();
            assert_eq!(paused["stage"], "retry");
            let what = paused["what"].as_str().unwrap();
            assert!(what.starts_with("the next attempt, in ") && what.contains("public.t"), "{what}");
            let shown =
                || Ok(s.call(number, &["status"]).stdout.contains("waits for     the next attempt, in "));
            wait_for("a pause in text", BOUND, shown).unwrap();
        }
        s.target("DELETE FROM t WHERE id = 1");
        s.catch_up();
        s.wait_for_log("going on: streaming, and applied up to ");
        for number in 0..s.followers() {
            let log = s.log(number);
            let lines = |words: &str| log.lines().filter(|line| line.contains(words)).count();
            // Once in full, and a few reminders at most on a slow machine.
            let (full, still) = (lines("trying again in"), lines("still failing: "));
            assert!(full == 1 && still <= 3, "{full} {still}\n{log}");
            assert!(lines("streaming from") <= 3, "{log}");
            assert_eq!(s.status(number)["failing"], Value::Null);
        }
    });
}

#[test]
fn conflicts_that_stop_nothing_are_logged_at_a_bounded_rate_with_totals() {
    scenario_with(BOTH, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, n int)");
        s.source("INSERT INTO t SELECT i, 0 FROM generate_series(1, 150) i");
        s.follow();
        s.target("DELETE FROM t");
        s.source("UPDATE t SET n = 1 WHERE id <= 50; DELETE FROM t WHERE id > 50");
        s.catch_up();
        assert_eq!((s.conflicts("update_missing"), s.conflicts("delete_missing")), (50, 100));
        s.stop();
        for number in 0..s.followers() {
            let log = s.log(number);
            for (kind, total) in [("update_missing", 50), ("delete_missing", 100)] {
                let words = format!("conflict detected on relation \"public.t\": conflict={kind}: ");
                let lines: Vec<_> = log.lines().filter(|line| line.contains(&words)).collect();
                assert!(lines.iter().all(|line| line.contains("WARN")), "{lines:#?}");
                assert_eq!(
                    lines.iter().filter(|line| line.contains("Could not find")).count(),
                    10,
                    "{lines:#?}"
                );
                let rest = format!("{} more, not logged one by one total={total}", total - 10);
                assert!(lines.last().unwrap().contains(&rest), "{lines:#?}");
            }
        }
    });
}

#[test]
fn a_table_that_is_put_off_is_warned_about_once() {
    scenario_with(BOTH, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.follow();
        s.source("CREATE TABLE later (id int PRIMARY KEY)");
        let words = "a table of the publication is not replicated yet";
        (0..s.followers()).for_each(|number| drop(s.call(number, &["refresh"])));
        s.wait_for_log(words);
        for number in 0..s.followers() {
            let connects = s.status(number)["connects"].as_u64().unwrap();
            let ended = format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgsluice {} control'",
                s.name(number)
            );
            Session::to(&s.target_url(number)).run(&ended);
            status_when(s, number, "another attempt's look", |status| {
                status["connects"].as_u64() > Some(connects)
                    && status["refresh"]["waiting"][0]["table"] == "public.later"
            });
            // Once more, by the next attempt.
            s.call(number, &["refresh"]);
            assert_eq!(s.log(number).matches(words).count(), 1, "{}", s.log(number));
        }
    });
}

#[test]
fn a_stopped_subscription_says_where_it_stands() {
    scenario_with(BOTH, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        s.source("INSERT INTO t VALUES (1)");
        s.follow();
        s.stop();
        s.source("INSERT INTO t SELECT generate_series(2, 1000)");
        for number in 0..s.followers() {
            let output = s.call(number, &["status", "--json"]);
            let status: Value = serde_json::from_str(&output.stdout).unwrap();
            assert!(status["reached"].is_string() && status["slot"]["restart_lsn"].is_string(), "{status:#}");
            assert!(status["behind_bytes"].as_u64() > Some(10_000), "{status:#}");
            let text = s.call(number, &["status"]).stdout;
            let reached = format!("\nflushed       {} on the target, ", status["reached"].as_str().unwrap());
            assert!(text.contains(&reached) && !text.contains(" -,") && !text.contains(", - "), "{text}");
            if status["slot"]["physical"] == true {
                let from = format!("\n  from        {}, ", status["slot"]["restart_lsn"].as_str().unwrap());
                assert!(text.contains(&from), "{text}");
            }
        }
    });
}

/// Creating a slot waits for running transactions, and so does the look at the catalogs.
#[test]
fn a_source_that_is_waited_for_before_the_stream_is_named() {
    scenario_with(BOTH, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY)");
        let mut open = Session::to(&(s.source_url() + "?application_name=forgotten"));
        open.run("BEGIN; INSERT INTO t VALUES (1)");
        s.run();
        for number in 0..s.followers() {
            let status = wait_of_stage(s, number, "lock");
            let (phase, end) = (&status["phase"], &status["blocked"]["end"]);
            assert_eq!((phase, end), (&"starting".into(), &"source".into()), "{status:#}");
        }
        s.wait_for_log("waiting for another transaction on the source, held by process ");
        open.run("COMMIT");
        s.follow();
        s.same();
    });
}

#[test]
fn a_full_spool_is_asked_about_before_the_same_is_received_again() {
    for mode in BOTH {
        scenario_alone(
            &[mode],
            |source| source.setting("logical_decoding_work_mem", "64kB"),
            |target| target,
            |s| {
                // With room for the stored catalogs of the source.
                let Some(disk) = SmallDisk::mount(8 << 10) else { return };
                s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
                let state_dir = disk.path().join("state");
                s.run_with(|command| {
                    command.env("PGSLUICE_STATE_DIR", &state_dir);
                });
                s.follow();
                s.source("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 16000) i");
                s.wait_for_log("No space left on device");
                s.wait_for_log("pgsluice receives nothing before there is room");
                let often = |log: &str| log.matches("No space left on device").count();
                let before = often(&s.log(0));
                let asked = || {
                    let output =
                        s.command(0, &["status", "--json"]).env("PGSLUICE_STATE_DIR", &state_dir).output()?;
                    let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
                    Ok(status["failing"]["attempts"].as_u64() >= Some(3))
                };
                wait_for("further attempts", BOUND, asked).unwrap();
                assert_eq!(often(&s.log(0)), before, "received in vain: {}", s.log(0));
                disk.resize(64 << 10);
                s.wait_for_log("again");
                s.catch_up();
                s.same();
                s.stop();
            },
        );
    }
}
