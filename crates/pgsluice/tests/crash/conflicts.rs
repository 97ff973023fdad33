//! Kills pgsluice and the target while both ends write the same rows, conflicts are resolved, and
//! deletions are remembered. In the end both ends hold the rows that the rules demand, and the
//! history on the target has each conflict exactly once.
//!
//! Rows collide in [`story`]s, whose ends are known beforehand. The load of the other test runs
//! beside them and must collide with nothing. A round:
//!
//! ```text
//!   stories begin --> both ends tell stories ---> pgsluice is stopped, ---> it goes on
//!   on both ends          ^                       or killed                      ^
//!                         |                       both ends tell stories         |
//!                    kills, meanwhile             perhaps the target is killed   a kill, meanwhile
//! ```
//! While pgsluice applies nothing, its UPDATEs meet deletions that are not forgotten: a horizon
//! that passes one of them, or a memory that loses one, shows as `update_missing`. The counters of
//! a process end with it, so the history is what counts.
//!
//! Variables are those of the other test.

mod outcome;
mod rig;
mod story;
mod tellers;

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::matrix::{self, Combination};
use testkit::{Major, SourceMode, same_rows};

use self::outcome::Outcome;
use self::rig::{Rig, Strike};
use self::story::{CONFLICTS, Plot, Row};
use self::tellers::Tellers;
use crate::load::Load;
use crate::strike::Victim;
use crate::{alone, environment, world};

/// Rounds on each major, from each source, unless more are asked for.
const ROUNDS: u32 = 4;
/// Rows that the source alone has in each table. Conflicts of missing rows use them up.
const ABSENT: i64 = 20_000;
/// Rows of these that a round takes, at most.
const ABSENT_ROUND: i64 = 50;
/// Instants of kills, after stories have begun to be told.
const INSTANTS_MS: std::ops::Range<u64> = 0..250;

/// Everything that a run needs.
struct Run {
    rig: Rig,
    tellers: Tellers,
    load: Load,
    plot: Plot,
    random: StdRng,
}

impl Run {
    fn begin(major: Major, seed: u64, settings: Combination, paths: &[&str]) -> Run {
        let absent: Vec<Row> = (1..=ABSENT).map(|number| (-number, -number, "absent")).collect();
        let mut random = StdRng::seed_from_u64(seed);
        let mut rig = Rig::start(major, settings, paths, &absent, StdRng::from_rng(&mut random));
        rig.streams();
        let [source, target] = [&rig.pair.source, &rig.pair.target].map(|end| end.url("postgres"));
        rig.on_source(&crate::load::rows());
        rig.on_source(&tellers::ballast());
        let load = Load::start(&source, seed, settings.batch < 10);
        let tellers = Tellers::new(source, target, StdRng::from_rng(&mut random), Outcome::begin(&absent));
        Run { rig, tellers, load, plot: Plot::default(), random }
    }

    /// Rounds until there were enough. Returns how many.
    fn rounds(&mut self, rounds_min: u32, until: Instant) -> u32 {
        let mut round = 0;
        while (round < rounds_min || Instant::now() < until) && self.plot.absent() + ABSENT_ROUND < ABSENT {
            self.while_it_runs(round);
            self.while_it_stands_still(round);
            round += 1;
        }
        round
    }

    /// Writes the rows with which stories begin, and waits until the target has them.
    fn begin_stories(&mut self, stories: &[story::Story]) {
        let (count, sql) = self.tellers.begin(stories);
        self.load.ebb(true);
        self.rig.wait_for_rows(count, &sql);
        self.load.ebb(false);
    }

    /// Both ends tell stories while pgsluice and the target are killed.
    fn while_it_runs(&mut self, round: u32) {
        let stories = self.plot.while_it_runs();
        self.begin_stories(&stories);
        let Run { rig, tellers, random, .. } = self;
        std::thread::scope(|scope| {
            let told = scope.spawn(|| tellers.tell(stories));
            for kill in 0..2 {
                // An instant of a kill, by the seed.
                std::thread::sleep(Duration::from_millis(random.random_range(INSTANTS_MS)));
                let strike = match (round, kill) {
                    (0, 0) => Strike::Target,
                    _ => Strike::pick(random),
                };
                rig.strike(strike);
            }
            told.join().expect("stories are told");
        });
    }

    /// Both ends tell stories while pgsluice applies nothing. It is killed once it applies again.
    fn while_it_stands_still(&mut self, round: u32) {
        let stories = self.plot.while_it_stands_still();
        self.begin_stories(&stories);
        let is_stopped = round.is_multiple_of(2);
        match is_stopped {
            true => self.rig.hold(),
            false => self.rig.end(),
        }
        self.tellers.tell_apart(stories);
        if self.random.random_bool(0.4) {
            self.rig.strike(Strike::Target);
        }
        match is_stopped {
            true => self.rig.go_on(),
            false => self.rig.run(),
        }
        self.rig.await_phase();
        let strike = if round == 0 { Strike::Sluice } else { Strike::pick(&mut self.random) };
        self.rig.strike(strike);
    }

    /// Ends the load, waits for the target, and compares.
    fn end(mut self, settings: Combination, seed: u64) -> String {
        let committed = self.load.stop();
        self.rig.caught_up();
        self.rig.forgets();
        self.rig.stop();
        let expected = self.tellers.expected;
        let seen = Outcome::read(&self.rig.pair).expect("both ends can be read");
        let differences = expected.differences(&seen);
        assert!(differences.is_empty(), "seed {seed}:\n{}\n{}", differences.join("\n"), self.rig.told());
        expected.canary(&seen);
        for table in world::tables(settings).into_iter().chain(["ballast"]) {
            same_rows(&self.rig.pair.source, &self.rig.pair.target, "postgres", table)
                .unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
        }
        let tally = &self.rig.tally;
        assert!(tally.of(Victim::Target) > 0 && tally.of(Victim::Sluice) > 0, "too few kills (seed {seed})");
        let met = CONFLICTS.map(|conflict| (conflict, expected.met(conflict)));
        let never = met.iter().find(|(_, count)| *count == 0);
        assert!(never.is_none(), "no story met {} (seed {seed})", never.map_or("", |(conflict, _)| conflict));
        let met = met.map(|(conflict, count)| format!("{conflict} {count}")).join(", ");
        format!("{}{tally}\n{committed} transactions of the load; {met}", self.rig.told())
    }
}

/// Ways to apply: sets and single transactions, with values in the history and without.
fn paths(seed: u64, number: usize) -> Vec<&'static str> {
    let choice = seed + number as u64;
    let times = if choice.is_multiple_of(2) { "on" } else { "off" };
    let values = if (choice / 2).is_multiple_of(2) { "off" } else { "on" };
    vec!["--keep-commit-timestamps", times, "--conflict-log-values", values]
}

#[test]
fn d1_each_conflict_is_resolved_and_recorded_once_whatever_is_killed() {
    let _alone = alone();
    let seed = environment("PGSLUICE_CRASH_SEED").unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    let modes: &[&str] = match testkit::source_mode() {
        Some(SourceMode::Logical) => &["logical"],
        Some(_) => &["wal"],
        None => &["logical", "wal"],
    };
    let rounds_min = environment("PGSLUICE_CRASH_ROUNDS").map_or(ROUNDS, |rounds| rounds as u32);
    let minutes = environment("PGSLUICE_CRASH_MINUTES").unwrap_or(0);
    let mut number = 0;
    for major in Major::in_turn() {
        for mode in modes {
            let mut settings = matrix::chosen(seed, number);
            settings.workers = testkit::apply_workers().unwrap_or(settings.workers);
            let paths = [&["--source-mode", *mode][..], &paths(seed, number)].concat();
            println!("PostgreSQL {major}, {settings}, {}: PGSLUICE_CRASH_SEED={seed}", paths.join(" "));
            let began = Instant::now();
            let until = began + Duration::from_secs(60 * minutes) / modes.len() as u32;
            let mut run = Run::begin(major, seed + number as u64, settings, &paths);
            let rounds = run.rounds(rounds_min, until);
            let told = run.end(settings, seed);
            println!("{told}; {rounds} rounds, {:.0} s", began.elapsed().as_secs_f64());
            number += 1;
        }
    }
}
