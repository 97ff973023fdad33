//! Rule D3: two sides that write the same rows end equal under `last_update_wins`.
//!
//! The rows come to side b by a first copy, while both sides write them ([`FirstCopy`]). From then
//! on both sides write a few hot rows at random, round by round, by a seed. Behind each round both
//! ends must come level and hold the same rows. Now and then a party is killed or stands still
//! while they write, or a clock is set:
//!
//! ```text
//!   round:  side a writes --+            +--> both are level --> the same rows?
//!           side b writes --+--> ... ----+
//!                           |
//!                           +-- a direction killed, a direction paused, a server killed
//!                           +-- the clock of a or b set ahead
//! ```
//! No key is inserted again after it was deleted: that is not promised. Each server has a clock of
//! its own. A session with an origin could set commit times, as in `clock_skew`, but what has an
//! origin is not sent to the other side.

use std::process::Command;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::{Builder, Cluster, Major, Pair, wait_for};

use crate::both_ways::MAY_BE_WRITTEN;
use crate::support::{BOUND, Scenario, Session, position, scenario_alone};
use crate::two_way::WayBack;

/// Longer than writers take that wait for nobody.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The number of rounds of all majors and sources together, and the seed of the first.
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

fn with_clock(builder: Builder) -> Builder {
    track(builder).own_clock()
}

fn words(mode: &'static str) -> Vec<&'static str> {
    let rules = RULES.iter().flat_map(|rule| ["--conflict", rule]);
    let own = ["--source-mode", mode, "--origin", "none", "--retain-dead-tuples", "on"];
    own.into_iter().chain(rules).collect()
}

/// How far the clock of one side may be ahead of the other's.
const SKEW_MAX_MS: i64 = 1_000;
/// A skew that is about as long as what it may change the order of.
const SKEW_SMALL_MS: i64 = 20;

/// The clocks of sides a and b, as far as each is ahead of this machine's. Neither is ever set
/// back: for that nothing is promised. The one that is to be behind stays while the other is set
/// ahead.
struct Clocks {
    ahead_ms: [i64; 2],
    random: StdRng,
}

impl Clocks {
    /// Clocks that differ as far as may be.
    fn differing(pair: &Pair, mut random: StdRng) -> Clocks {
        let skew_ms = random.random_range(-SKEW_MAX_MS..=SKEW_MAX_MS);
        let mut clocks = Clocks { ahead_ms: [0; 2], random };
        clocks.set(pair, skew_ms);
        clocks
    }

    /// Sets a clock for a round, or leaves both as they are. They differ far only now and then,
    /// because each round then takes as much longer.
    fn turn(&mut self, pair: &Pair) {
        let skew_ms = match self.random.random_range(0..1_000) {
            0..2 => self.random.random_range(-SKEW_MAX_MS..=SKEW_MAX_MS),
            2..60 => self.random.random_range(-SKEW_SMALL_MS..=SKEW_SMALL_MS),
            60..650 => 0,
            _ => return,
        };
        self.set(pair, skew_ms);
    }

    /// Sets the clock of a this far ahead of b's, or behind it if that is negative.
    fn set(&mut self, pair: &Pair, skew_ms: i64) {
        let [a, b] = &mut self.ahead_ms;
        match skew_ms - (*a - *b) {
            more @ 0.. => *a += more,
            less => *b -= less,
        }
        for (server, ahead_ms) in [&pair.source, &pair.target].into_iter().zip(self.ahead_ms) {
            server.set_clock_ahead(Duration::from_millis(ahead_ms.unsigned_abs()));
        }
    }

    fn now_ms(&self) -> i64 {
        self.ahead_ms[0] - self.ahead_ms[1]
    }
}

/// Rows that are written during the first copy only, each a few times: what a later write of the
/// same side would make equal again is seen.
const RARE: std::ops::RangeInclusive<u64> = 101..=180;

/// What both sides may do in a round.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    /// The first copy is not over, or deletions are not remembered yet. Side b may not insert a key
    /// that the source may have, and equal ends are promised only where deletions are remembered.
    Copy,
    Rounds,
}

/// A row that both sides have.
fn common_row(random: &mut StdRng, stage: Stage) -> u64 {
    match stage {
        Stage::Copy if random.random() => random.random_range(RARE),
        _ => random.random_range(1..=6),
    }
}

/// The transactions of one side in one round: updates of rows that both have, an insert that both
/// may make, and updates and deletes of rows that one of them made a few rounds ago.
fn transactions(random: &mut StdRng, stage: Stage, side: &str, round: u64) -> Vec<String> {
    let mut all = Vec::new();
    if round.is_multiple_of(2) == (side == "a") {
        all.push(format!("INSERT INTO hot VALUES ({}, 'born of {side}')", 20_000 + round));
    }
    for number in 0..random.random_range(1..=3) {
        let mut statements = Vec::new();
        for part in 0..random.random_range(1..=3) {
            let version = format!("'{side} {round} {number} {part}'");
            let recent = 20_000 + round.saturating_sub(random.random_range(0..4));
            let row = common_row(random, stage);
            statements.push(match random.random_range(0..10) {
                0..5 => format!("UPDATE hot SET v = {version} WHERE id = {row}"),
                5 if stage == Stage::Rounds || side == "a" => format!(
                    "INSERT INTO hot VALUES ({}, {version}) ON CONFLICT (id) DO UPDATE SET v = {version}",
                    10_000 + round
                ),
                6..8 => format!("UPDATE hot SET v = {version} WHERE id = {recent}"),
                8 if stage == Stage::Rounds => format!("DELETE FROM hot WHERE id = {recent}"),
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

/// Waits until the round of each side is on the other, and compares the rows.
fn compare(sides: &mut [Session; 2], round: u64, what: &str, logs: impl Fn() -> String) {
    let level = format!("SELECT count(*) FROM told WHERE n = {round}");
    let rows = "SELECT string_agg(concat_ws(' ', id, v), ', ' ORDER BY id) FROM hot";
    let waited = wait_for("both sides to be level", BOUND, || {
        let answers = sides.each_mut().map(|side| side.query(&level));
        Ok(answers.iter().all(|rows| rows.as_ref().is_ok_and(|rows| rows[0][0].as_deref() == Some("2"))))
    });
    assert!(waited.is_ok(), "round {round}, {what}\n{}", logs());
    let [here, there] = sides.each_mut().map(|side| side.query(rows).unwrap());
    assert!(here == there, "round {round}, {what}: the ends differ\n{here:?}\n{there:?}\n{}", logs());
}

/// Both directions, and a session on each side.
struct Both<'s> {
    s: &'s mut Scenario,
    back: WayBack,
    sides: [Session; 2],
    clocks: Clocks,
    random: StdRng,
}

impl Both<'_> {
    fn round(&mut self, round: u64) {
        let trouble = Trouble::of(&mut self.random);
        let plans = ["a", "b"].map(|side| transactions(&mut self.random, Stage::Rounds, side, round));
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
            self.clocks.turn(self.s.pair());
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
        let what = format!("{trouble:?}, side a {} ms ahead of side b", self.clocks.now_ms());
        let (s, back) = (&self.s, &self.back);
        compare(&mut self.sides, round, &what, || format!("{}\n{}", s.log(0), back.log()));
    }
}

fn crash(server: &mut Cluster) {
    server.kill9();
    server.start_again().expect("it comes back");
}

/// Numbers of the rounds during the first copy begin behind this, apart from those afterwards.
const COPY_ROUNDS: u64 = 1_000_000;
/// Rounds in each part of the first copy.
const ROUNDS_OF_PART: u64 = 4;

/// The set-up of both directions by `run --both-ways`, with a first copy from side a, while both
/// sides write the rows that are copied:
///
/// | part | side a | side b | the copy |
/// | --- | --- | --- | --- |
/// | 1 | writes | | has not begun |
/// | 2 | writes | writes from the log's word on | of `hot`, under way |
/// | 3 | writes | writes | of `hot` is over, of `large` waits for a lock: nothing is streamed |
/// | 4 | writes | writes | of `large` ends, and both directions stream |
///
/// One clock is ahead of the other from the beginning on. In one part, by the seed, a party is
/// killed.
struct FirstCopy<'s> {
    s: &'s mut Scenario,
    sides: &'s mut [Session; 2],
    random: &'s mut StdRng,
    round: u64,
    killed_in: u64,
}

impl FirstCopy<'_> {
    fn set_up(&mut self) {
        self.s.both(
            "CREATE TABLE hot (id int PRIMARY KEY, v text); \
             CREATE TABLE told (side text, n int, PRIMARY KEY (side, n)); \
             CREATE TABLE large (id int PRIMARY KEY, v text)",
        );
        self.s.source(
            "INSERT INTO hot SELECT n, 'a' FROM generate_series(1, 180) n WHERE n <= 6 OR n > 100; \
             INSERT INTO large SELECT n, repeat('x', 200) FROM generate_series(1, 20000) n",
        );
        self.s.publish("FOR ALL TABLES");
        self.s.target("CREATE PUBLICATION p FOR ALL TABLES");
        let mut holder = Session::to(&self.s.target_url(0));
        holder.run("BEGIN; LOCK TABLE large IN SHARE MODE");
        self.rounds_of(1, &["a"]);
        self.run();
        self.until("word that both sides may be written", &["a"], |own| {
            own.s.log(0).contains(MAY_BE_WRITTEN)
        });
        self.rounds_of(2, &["a", "b"]);
        self.until("the copy of the rows", &["a", "b"], |own| own.is_copied("table_name = 'hot'"));
        self.rounds_of(3, &["a", "b"]);
        // Where its server was killed, the lock went with it.
        let _ = holder.query("COMMIT");
        self.rounds_of(4, &["a", "b"]);
        self.until("the first copy", &["a", "b"], |own| own.is_copied("true"));
        self.write(&["a", "b"]);
        let s = &self.s;
        compare(self.sides, self.round, "the first copy", || s.log(0));
    }

    fn run(&mut self) {
        self.s.run_with(|command| {
            command.arg("--both-ways");
        });
    }

    fn is_copied(&mut self, tables: &str) -> bool {
        let sql = format!("SELECT bool_and(finished) FROM pgsluice.copied_table WHERE {tables}");
        self.sides[1].query(&sql).is_ok_and(|rows| rows[0][0].as_deref() == Some("t"))
    }

    /// One round of these sides.
    fn write(&mut self, sides: &[&str]) {
        self.round += 1;
        let plans = ["a", "b"].map(|side| transactions(self.random, Stage::Copy, side, self.round));
        let round = self.round;
        std::thread::scope(|scope| {
            for ((session, plan), side) in self.sides.iter_mut().zip(&plans).zip(["a", "b"]) {
                if sides.contains(&side) {
                    scope.spawn(move || write(session, plan, side, round));
                }
            }
        });
    }

    fn rounds_of(&mut self, part: u64, sides: &[&str]) {
        for number in 0..ROUNDS_OF_PART {
            self.write(sides);
            if part == self.killed_in && number == ROUNDS_OF_PART / 2 {
                match self.random.random_range(0..4) {
                    0 => crash(&mut self.s.pair_mut().source),
                    1 => crash(&mut self.s.pair_mut().target),
                    _ => {
                        self.s.kill();
                        self.run();
                    }
                }
            }
        }
    }

    /// These sides write until `condition` holds.
    fn until(&mut self, what: &str, sides: &[&str], condition: impl Fn(&mut Self) -> bool) {
        let waited = wait_for(what, BOUND, || {
            self.write(sides);
            Ok(condition(self))
        });
        assert!(waited.is_ok(), "{waited:?}\n{}", self.s.log(0));
    }
}

/// A checksum of all rows, by the server alone: nothing of pgsluice takes part in it.
const CHECKSUM: &str = "\
SELECT md5((SELECT string_agg(t::text, ' ' ORDER BY id) FROM hot t)) \
    || md5((SELECT string_agg(t::text, ' ' ORDER BY side, n) FROM told t)) \
    || md5((SELECT string_agg(t::text, ' ' ORDER BY id) FROM large t))";

/// A first copy and as many rounds as `rounds` says, on one pair of databases.
fn converge(s: &mut Scenario, words: &[&str], seed: u64, rounds: u64) {
    println!(
        "{SEED}={seed}: {rounds} rounds on PostgreSQL {} and {}",
        s.major(),
        s.pair().target.major().number()
    );
    // Each for itself: the copy takes as many numbers as it takes time.
    let [random, of_clocks, mut of_copy] =
        [0, 1 << 32, 2 << 32].map(|apart| StdRng::seed_from_u64(seed + apart));
    let mut sides = [s.source_url(), s.target_url(0)].map(|url| Session::to(&url));
    let clocks = Clocks::differing(s.pair(), of_clocks);
    let began = Instant::now();
    let killed_in = of_copy.random_range(0..=4);
    FirstCopy { s, sides: &mut sides, random: &mut of_copy, round: COPY_ROUNDS, killed_in }.set_up();
    println!("the first copy took {:.1?}", began.elapsed());
    // Each direction is a process of its own from here on, so that one can be killed alone.
    s.stop();
    s.run();
    s.wait_until_started();
    let back = WayBack::start_published(s, words);
    crate::update_deleted::wait_for_capture(s);
    back.wait_for_capture(s);
    println!("both directions follow after {:.1?}", began.elapsed());
    let mut both = Both { s, back, sides, clocks, random };
    (1..=rounds).for_each(|round| both.round(round));
    let Both { s, back, mut sides, .. } = both;
    let met = "SELECT string_agg(DISTINCT type, ' ' ORDER BY type) FROM pgsluice.conflict_history";
    println!("{} | {}", s.source_one(met), s.target_one(met));
    let verified = s.call(0, &["verify"]);
    assert!(verified.status.success(), "{verified:?}");
    let [here, there] = sides.each_mut().map(|side| side.query(CHECKSUM).unwrap());
    assert_eq!(here, there, "verify found no difference");
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
        scenario_alone(&[&words], with_clock, with_clock, |s| {
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
        for (of_source, source) in majors.iter().enumerate() {
            for (of_target, target) in majors.iter().enumerate() {
                let builder = |major: &Major| with_clock(Cluster::builder(*major));
                let pair = Pair::with(builder(source), builder(target)).expect("two clusters");
                let mut s = Scenario::alone(pair, &[&words]);
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
