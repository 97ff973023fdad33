//! Rule D3: two sides that write the same rows end equal under `last_update_wins`.
//!
//! Both sides write a few hot rows at random, round by round, by a seed. Behind each round both
//! ends must come level and hold the same rows. Now and then a party is killed or stands still
//! while they write:
//!
//! ```text
//!   round:  side a writes --+            +--> both are level --> the same rows?
//!           side b writes --+--> ... ----+
//!                           |
//!                           +-- a direction killed, a direction paused, a server killed
//! ```
//! No key is inserted again after it was deleted: that is not promised.

use std::process::Command;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::{Builder, Cluster, Major, Pair, wait_for};

use crate::support::{BOUND, Scenario, Session, position, scenario_alone};
use crate::two_way::WayBack;

/// The number of rounds of all majors and sources together, and the seed of the first.
/// Longer than writers take that wait for nobody.
const PAUSE_MAX: Duration = Duration::from_secs(1);
const ROUNDS: &str = "PGSLUICE_CONVERGENCE_ROUNDS";
const SEED: &str = "PGSLUICE_CONVERGENCE_SEED";
/// If it is set: every pair of majors, not only equal ones.
const ALL_PAIRS: &str = "PGSLUICE_CONVERGENCE_PAIRS";
const ROUNDS_OF_ALL: u64 = 2_000;

const RULES: [&str; 6] = [
    "insert_exists=last_update_wins",
    "update_exists=last_update_wins",
    "update_origin_differs=last_update_wins",
    "delete_origin_differs=last_update_wins",
    "update_deleted=last_update_wins",
    "update_missing=last_update_wins",
];

fn number(name: &str, otherwise: u64) -> u64 {
    let set = std::env::var(name).ok().filter(|text| !text.is_empty());
    set.map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}: {text:?} is no number")))
}

fn track(builder: Builder) -> Builder {
    builder.setting("track_commit_timestamp", "on")
}

fn words(mode: &'static str) -> Vec<&'static str> {
    let rules = RULES.iter().flat_map(|rule| ["--conflict", rule]);
    let own = ["--source-mode", mode, "--origin", "none", "--retain-dead-tuples", "on"];
    own.into_iter().chain(rules).collect()
}

/// The transactions of one side in one round: updates of rows that both have, an insert that both
/// may make, and updates and deletes of rows that one of them made a few rounds ago.
fn transactions(random: &mut StdRng, side: &str, round: u64) -> Vec<String> {
    let mut all = Vec::new();
    if round.is_multiple_of(2) == (side == "a") {
        all.push(format!("INSERT INTO hot VALUES ({}, 'born of {side}')", 20_000 + round));
    }
    for number in 0..random.random_range(1..=3) {
        let mut statements = Vec::new();
        for part in 0..random.random_range(1..=3) {
            let version = format!("'{side} {round} {number} {part}'");
            let recent = 20_000 + round.saturating_sub(random.random_range(0..4));
            let row = random.random_range(1..=6);
            statements.push(match random.random_range(0..10) {
                0..5 => format!("UPDATE hot SET v = {version} WHERE id = {row}"),
                5 => format!(
                    "INSERT INTO hot VALUES ({}, {version}) ON CONFLICT (id) DO UPDATE SET v = {version}",
                    10_000 + round
                ),
                6..8 => format!("UPDATE hot SET v = {version} WHERE id = {recent}"),
                8 => format!("DELETE FROM hot WHERE id = {recent}"),
                _ => format!("UPDATE hot SET v = {version} WHERE id > {row} AND id < 10"),
            });
        }
        all.push(statements.join("; "));
    }
    all
}

/// Executes them; a side that a deadlock or a killed server interrupts goes on with the next.
fn write(session: &mut Session, transactions: &[String], side: &str, round: u64) {
    for sql in transactions {
        if let Err(error) = session.query(sql) {
            let passes = ["40P01", "57P0", "connect", "closed"].iter().any(|part| error.contains(part));
            assert!(passes, "{error}");
        }
    }
    let told = format!("INSERT INTO told VALUES ('{side}', {round}) ON CONFLICT DO NOTHING");
    wait_for("a side that can be written", BOUND, || Ok(session.query(&told).is_ok())).unwrap();
}

/// What is done to a party while both sides write.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trouble {
    None,
    ForthKilled,
    BackKilled,
    ForthPaused,
    BackPaused,
    SourceKilled,
    TargetKilled,
}

impl Trouble {
    /// Mostly none. A server is killed rarely, because it takes a second.
    fn of(random: &mut StdRng) -> Trouble {
        match random.random_range(0..400) {
            0..4 => Trouble::ForthKilled,
            4..8 => Trouble::BackKilled,
            8..20 => Trouble::ForthPaused,
            20..32 => Trouble::BackPaused,
            32 => Trouble::SourceKilled,
            33 => Trouble::TargetKilled,
            _ => Trouble::None,
        }
    }
}

fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([name, &pid.to_string()]).status().expect("kill is there");
    assert!(sent.success(), "kill {name} {pid}");
}

/// Both directions, and a session on each side.
struct Both<'s> {
    s: &'s mut Scenario,
    back: WayBack,
    sides: [Session; 2],
    random: StdRng,
}

impl Both<'_> {
    fn round(&mut self, round: u64) {
        let trouble = Trouble::of(&mut self.random);
        let plans = ["a", "b"].map(|side| transactions(&mut self.random, side, round));
        let paused = match trouble {
            Trouble::ForthPaused => Some(self.s.sluice(0).pid()),
            Trouble::BackPaused => Some(self.back.pid()),
            _ => None,
        };
        if let Some(pid) = paused {
            signal(pid, "-STOP");
        }
        let [here, there] = &mut self.sides;
        std::thread::scope(|scope| {
            let writers = [
                scope.spawn(|| write(here, &plans[0], "a", round)),
                scope.spawn(|| write(there, &plans[1], "b", round)),
            ];
            if let Some(pid) = paused {
                // It may have stopped while it holds a row that a writer waits for.
                let _ =
                    wait_for("the writers", PAUSE_MAX, || Ok(writers.iter().all(|own| own.is_finished())));
                signal(pid, "-CONT");
            }
            match trouble {
                Trouble::ForthKilled => {
                    self.s.kill();
                    self.s.run();
                }
                Trouble::BackKilled => self.back.kill_and_run(self.s),
                Trouble::SourceKilled => crash(&mut self.s.pair_mut().source),
                Trouble::TargetKilled => crash(&mut self.s.pair_mut().target),
                _ => {}
            }
        });
        self.compare(round, trouble);
    }

    /// Waits until the round of each side is on the other, and compares the rows.
    fn compare(&mut self, round: u64, trouble: Trouble) {
        let level = format!("SELECT count(*) FROM told WHERE n = {round}");
        let rows = "SELECT string_agg(concat_ws(' ', id, v), ', ' ORDER BY id) FROM hot";
        let waited = wait_for("both sides to be level", BOUND, || {
            let answers = self.sides.each_mut().map(|side| side.query(&level));
            Ok(answers.iter().all(|rows| rows.as_ref().is_ok_and(|rows| rows[0][0].as_deref() == Some("2"))))
        });
        assert!(waited.is_ok(), "round {round}, {trouble:?}\n{}\n{}", self.s.log(0), self.back.log());
        let [here, there] = self.sides.each_mut().map(|side| side.query(rows).unwrap());
        assert!(
            here == there,
            "round {round}, {trouble:?}: the ends differ\n{here:?}\n{there:?}\n{}\n{}",
            self.s.log(0),
            self.back.log()
        );
    }
}

fn crash(server: &mut Cluster) {
    server.kill9();
    server.start_again().expect("it comes back");
}

/// As many rounds as `rounds` says, on one pair of databases.
fn converge(s: &mut Scenario, words: &[&str], seed: u64, rounds: u64) {
    println!(
        "{SEED}={seed}: {rounds} rounds on PostgreSQL {} and {}",
        s.major(),
        s.pair().target.major().number()
    );
    s.both(
        "CREATE TABLE hot (id int PRIMARY KEY, v text); CREATE TABLE told (side text, n int, PRIMARY KEY (side, n)); \
         INSERT INTO hot SELECT n, 'both' FROM generate_series(1, 6) n",
    );
    s.run();
    s.wait_for_log("streaming from");
    let back = WayBack::start(s, words);
    crate::update_deleted::wait_for_capture(s);
    back.wait_for_capture(s);
    let sides = [s.source_url(), s.target_url(0)].map(|url| Session::to(&url));
    let random = StdRng::seed_from_u64(seed);
    let mut both = Both { s, back, sides, random };
    (1..=rounds).for_each(|round| both.round(round));
    let Both { s, back, .. } = both;
    let met = "SELECT string_agg(DISTINCT type, ' ' ORDER BY type) FROM pgsluice.conflict_history";
    println!("{} | {}", s.source_one(met), s.target_one(met));
    let verified = s.call(0, &["verify"]);
    assert!(verified.status.success(), "{verified:?}");
    back.end(s);
}

#[test]
fn d3_two_sides_end_equal_whatever_happens_to_them() {
    if std::env::var_os(ALL_PAIRS).is_some_and(|set| !set.is_empty()) {
        return every_pair();
    }
    let modes = ["logical", "wal"];
    let rounds = number(ROUNDS, ROUNDS_OF_ALL).div_ceil((modes.len() * Major::in_turn().len()) as u64);
    let seed = number(SEED, 1);
    for (part, mode) in modes.into_iter().enumerate() {
        let words = words(mode);
        let forth = [&words[..], &["--copy-data", "off"]].concat();
        scenario_alone(&[&forth], track, track, |s| {
            converge(s, &words, seed + 100 * part as u64 + u64::from(s.major()), rounds);
        });
    }
}

/// All pairs of the majors under test, one after another.
fn every_pair() {
    let majors = Major::under_test();
    let modes = ["logical", "wal"];
    let rounds = number(ROUNDS, ROUNDS_OF_ALL).div_ceil((modes.len() * majors.len() * majors.len()) as u64);
    let seed = number(SEED, 1);
    for (number, mode) in modes.into_iter().enumerate() {
        let words = words(mode);
        let forth = [&words[..], &["--copy-data", "off"]].concat();
        for (of_source, source) in majors.iter().enumerate() {
            for (of_target, target) in majors.iter().enumerate() {
                let builder = |major: &Major| track(Cluster::builder(*major));
                let pair = Pair::with(builder(source), builder(target)).expect("two clusters");
                let mut s = Scenario::alone(pair, &[&forth]);
                let seed = seed + 100 * number as u64 + (10 * of_source + of_target) as u64;
                converge(&mut s, &words, seed, rounds);
                s.stop();
            }
        }
    }
}

/// One side deletes a row. The other, which does not know that yet, updates it later. The deletion
/// is forgotten by then, because all older updates were applied.
#[test]
fn d3_an_update_that_is_newer_than_a_forgotten_deletion_brings_the_row_back() {
    for mode in ["logical", "wal"] {
        let words = words(mode);
        let forth = [&words[..], &["--copy-data", "off"]].concat();
        scenario_alone(&[&forth], track, track, |s| {
            s.both("CREATE TABLE hot (id int PRIMARY KEY, v text); INSERT INTO hot VALUES (1, 'both'), (2, 'both')");
            s.run();
            s.wait_for_log("streaming from");
            let back = WayBack::start(s, &words);
            crate::update_deleted::wait_for_capture(s);
            signal(back.pid(), "-STOP");
            s.target("DELETE FROM hot WHERE id = 1");
            let gone = position(&s.target_one("SELECT pg_current_wal_insert_lsn()"));
            let is_forgotten = || {
                let deletions = &s.status(0)["deletions"];
                let horizon = deletions["horizon_lsn"].as_str().map_or(0, position);
                Ok(horizon >= gone && deletions["count"] == 0)
            };
            wait_for("the deletion to be forgotten", BOUND, is_forgotten).unwrap();
            s.source("UPDATE hot SET v = 'later' WHERE id = 1");
            s.catch_up();
            assert_eq!((s.conflicts("update_missing"), s.conflicts("update_deleted")), (1, 0));
            assert_eq!(s.target_one("SELECT v FROM hot WHERE id = 1"), "later");
            signal(back.pid(), "-CONT");
            s.target("UPDATE hot SET v = 'passed by' WHERE id = 2");
            let passed = || Ok(s.source_one("SELECT v FROM hot WHERE id = 2") == "passed by");
            wait_for("the way back", BOUND, passed).unwrap();
            s.same_table("hot");
            back.end(s);
        });
    }
}
