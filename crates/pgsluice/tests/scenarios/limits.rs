//! What limits a subscription that is behind, staged one part after the other: `status` names the
//! right one, and nothing when the target has caught up.
//!
//! Stages of pgsluice are not staged here. On a machine whose servers share its processors, none of
//! them is slower than the servers. `engine` has their tests.

use std::time::Duration;

use serde_json::Value;
use testkit::{Major, Proxy, SlowReads, StopMode, Then, wait_for};

use crate::support::{BOUND, Scenario, Session, scenario_alone};

const LOGICAL: &[&str] = &["--source-mode", "logical", "--batch-rows-max", "200"];

/// A row that is written costs the target some time.
const BURNS: &str = "\
CREATE FUNCTION public.burn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  PERFORM pg_catalog.count(*) FROM pg_catalog.generate_series(1, 3000); RETURN NEW; END $$;
CREATE TRIGGER burn BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION public.burn();
ALTER TABLE t ENABLE ALWAYS TRIGGER burn";

/// A filter that costs the source about a millisecond for each row, and sends none.
const FILTERED: &str = "filtered WHERE (length(repeat(md5(v), 20000)) < 0)";

/// Writes more of this on the source whenever less than these bytes of WAL are behind, until this
/// stage is named as the limit. Returns what `status` has of it. `{}` stands for a number that
/// grows by a million.
#[track_caller]
fn limited_by(s: &Scenario, stage: &str, (more, bytes): (&str, u64)) -> Value {
    let mut last = Value::Null;
    let mut written = 0;
    let seen = wait_for(stage, BOUND, || {
        last = s.status(0);
        if !more.is_empty() && last["lag"]["total"]["bytes"].as_u64() < Some(bytes) {
            written += 1_000_000;
            s.source(&more.replace("{}", &written.to_string()));
        }
        // Figures of lag may name a stage before its share of the time is known.
        let is_counted = more.is_empty() || stage == "storage" || !last["limited_by"]["share"].is_null();
        Ok(last["limited_by"]["stage"] == stage && is_counted)
    });
    assert!(seen.is_ok(), "{stage}: {last:#}\n{}", s.log(0));
    let text = s.call(0, &["status"]).stdout;
    let [_, well, behind, limit] = text.lines().collect::<Vec<_>>()[..4] else { panic!("{text}") };
    assert!(well.starts_with("well          ") && behind.starts_with("behind        "), "{text}");
    assert!(limit.starts_with("limited by    "), "{text}");
    last["limited_by"].take()
}

const NO_MORE: (&str, u64) = ("", 0);

/// Waits until the target keeps up, and nothing limits it.
#[track_caller]
fn keeps_up(s: &mut Scenario) {
    s.catch_up();
    let says = "\nlimited by    nothing: the target keeps up with the source\n";
    wait_for("nothing to limit it", BOUND, || {
        let text = s.call(0, &["status"]).stdout;
        Ok(text.contains(says) && text.contains("\nwell          yes\n"))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", s.call(0, &["status"]).stdout));
}

/// Leads the stream through a proxy.
fn through(s: &mut Scenario, proxy: &Proxy) {
    let source = proxy.url(&s.source_url());
    s.run_with(|command| {
        command.env("PGSLUICE_SOURCE", &source);
    });
}

#[test]
fn the_part_that_limits_is_named() {
    scenario_alone(
        &[LOGICAL],
        |source| source.setting("logical_decoding_work_mem", "64kB"),
        |target| target,
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE filtered (id int PRIMARY KEY, v text)");
            s.target(BURNS);
            let can_filter = s.major() >= 15;
            let filtered = if can_filter { FILTERED } else { "filtered" };
            s.publish(&format!("FOR TABLE t, mark, {filtered}"));
            s.follow();
            keeps_up(s);

            // The target's processor.
            let more = "INSERT INTO t SELECT {} + i, 'x' FROM generate_series(1, 10000) i";
            let limit = limited_by(s, "statement", (more, 500_000));
            assert_eq!(
                (&limit["operation"], &limit["table"]),
                (&"INSERT".into(), &"public.t".into()),
                "{limit}"
            );
            assert!(limit["share"].as_f64() >= Some(0.6), "{limit}");
            s.target("DROP TRIGGER burn ON t");
            keeps_up(s);

            // A lock on the target.
            let mut holder = Session::to(&s.target_url(0));
            holder.run("BEGIN; LOCK TABLE t");
            s.source("INSERT INTO t VALUES (50000, 'x')");
            let limit = limited_by(s, "lock", NO_MORE);
            assert!(limit["what"].as_str().unwrap().contains("lock on table public.t"), "{limit}");
            let text = s.call(0, &["status"]).stdout;
            assert!(text.contains("\nwell          no: waiting for a lock"), "{text}");
            assert!(text.contains("\nnext          it goes on when the lock is released"), "{text}");
            holder.run("ROLLBACK");
            keeps_up(s);

            // A large transaction that is open on the source.
            s.source_in(
                "open",
                "BEGIN; INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(60001, 70000) i",
            );
            let limit = limited_by(s, "open", NO_MORE);
            assert!(limit["what"].as_str().unwrap().contains("open on the source"), "{limit}");
            s.source_in("open", "COMMIT");
            keeps_up(s);

            // The source's walsender.
            if can_filter {
                let more = "INSERT INTO filtered SELECT {} + i, i FROM generate_series(1, 5000) i";
                let limit = limited_by(s, "source", (more, 300_000));
                assert!(limit["share"].as_f64() >= Some(0.6), "{limit}");
                keeps_up(s);
            } else {
                println!("{}: the source's walsender is not tested: it has no row filters", s.major());
            }

            // The network from the source.
            s.stop();
            let proxy = Proxy::to(s.pair().source.port()).unwrap();
            through(s, &proxy);
            keeps_up(s);
            proxy.alter(|_| {
                std::thread::sleep(Duration::from_millis(20));
                Then::Forward
            });
            let more = "INSERT INTO t SELECT 100000000 + {} + i, repeat(md5(i::text), 30)
                          FROM generate_series(1, 10000) i";
            let limit = limited_by(s, "network", (more, 5_000_000));
            assert!(limit["what"].as_str().unwrap().starts_with("the network from the source"), "{limit}");
            proxy.alter(|_| Then::Forward);
            keeps_up(s);
            s.same_table("t");
        },
    );
}

/// The pages of the target are in the kernel's cache, and each read of one takes two milliseconds.
#[test]
fn storage_that_limits_is_named() {
    let slow = SlowReads::build(Duration::from_millis(2)).unwrap();
    scenario_alone(
        &[LOGICAL],
        |source| source,
        |target| {
            let target = target.setting("shared_buffers", "1MB");
            if target.major() >= Major::V18 { target.setting("io_method", "sync") } else { target }
        },
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY, n int, v text)");
            s.source("INSERT INTO t SELECT i, 0, repeat('x', 500) FROM generate_series(1, 20000) i");
            s.publish("FOR TABLE t, mark");
            s.follow();
            let pair = s.pair_mut();
            pair.target.set_environment(&slow.environment().unwrap());
            pair.target.restart(StopMode::Fast).unwrap();
            assert!(slow.is_in(pair.target.pid().unwrap()).unwrap());
            let limit = limited_by(s, "storage", ("UPDATE t SET n = {} WHERE id % 10 = 3", 100_000));
            assert_eq!(
                (&limit["operation"], &limit["table"]),
                (&"UPDATE".into(), &"public.t".into()),
                "{limit}"
            );
            let pair = s.pair_mut();
            pair.target.set_environment(&[]);
            pair.target.restart(StopMode::Fast).unwrap();
            keeps_up(s);
            s.same_table("t");
        },
    );
}
