//! Kills pgsluice, the target and the source at seeded random instants under load, and cuts
//! connections. In the end both ends hold the same rows.
//!
//! Conflicts and deletion memory have a test of their own in [`conflicts`].
//!
//! Three checks show that the test means something:
//! - The kills hit each phase of [`base::crash_phases::Phase`] at least [`HITS_MIN`] times. The
//!   recorder shows the phase; the test does not guess.
//! - A reader of the target only ever sees states that the source was in, from the first moment at
//!   which `status` says *streaming* ([`watch`]).
//! - The checkers fail on a target that was tampered with.
//!
//! One of two majors has the source `wal`. The seed decides which, or `PGSLUICE_TEST_SOURCE_MODE`
//! names the mode for all. There the catalogs of the source change all the time, and so do the
//! columns of a published table on both ends ([`ddl`]). Kills must then also hit the reading of the
//! catalogs and their storing.
//!
//! | variable | effect |
//! | --- | --- |
//! | `PGSLUICE_CRASH_SEED` | repeats a run's choices, among them each major's combination of settings ([`testkit::matrix`]); the load and the servers keep their own time |
//! | `PGSLUICE_MATRIX` | names one combination for all |
//! | `PGSLUICE_CRASH_ROUNDS`, `PGSLUICE_CRASH_MINUTES` | make the run longer, on each major |
//! | `PGSLUICE_TEST_MAJORS`, `PGSLUICE_TEST_TURNS` | choose the servers |

mod conflicts;
mod conn;
mod ddl;
mod load;
mod rewrite;
mod saboteur;
mod strike;
mod watch;
mod world;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::crash_phases::Phase;
use rand::Rng;
use testkit::matrix;
use testkit::{Major, SourceMode};

use crate::ddl::Ddl;
use crate::load::Load;
use crate::rewrite::Rewriter;
use crate::saboteur::Saboteur;
use crate::strike::Victim;
use crate::world::World;

/// Kills on each major.
const KILLS_MIN: u32 = 30;
/// Kills that each phase must be hit by.
const HITS_MIN: u32 = 3;
/// After this number of rounds for a phase, the test no longer insists on a victim that was not
/// hit: some never are while they receive in bursts. If a phase is over before a signal arrives,
/// the test stops the process in it first.
const TRIES_MAX: u32 = 6;
/// Rounds after which a phase that was not hit often enough fails the test.
const ROUNDS_MAX: u32 = 90;
/// Nothing stands still for so long, however busy the machine.
const BOUND: Duration = Duration::from_secs(120);
/// Nor does anything take so long that moves on.
const MOVING_BOUND: Duration = Duration::from_secs(600);
/// A larger backlog is worked off before the next kill: every kill costs the
/// batch in hand, so killing fast enough would starve any program.
const BEHIND_MAX: u64 = 1_000;
const ARGUMENTS: &str = "run --publication p --subscription crash --copy-split-bytes 4MB \
    --wal-retrieve-retry-interval 200ms --wal-receiver-status-interval 1s";

fn environment(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value}")))
}

/// Waits until no other test of this binary runs: each would be too slow for the other.
fn alone() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn both_ends_end_equal_whatever_is_killed() {
    let _alone = alone();
    let seed = environment("PGSLUICE_CRASH_SEED").unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    for (number, major) in Major::in_turn().into_iter().enumerate() {
        let mut settings = matrix::chosen(seed, number);
        settings.workers = testkit::apply_workers().unwrap_or(settings.workers);
        let decoded = match testkit::source_mode() {
            Some(mode) => mode != SourceMode::Logical,
            None => !(seed + number as u64).is_multiple_of(2),
        };
        let mode = match testkit::source_mode() {
            Some(SourceMode::Archive) => "archive",
            _ if decoded => "wal",
            _ => "logical",
        };
        println!("PostgreSQL {major}, {settings}, source_mode={mode}: PGSLUICE_CRASH_SEED={seed}");
        let started = Instant::now();
        let mut world = World::new(major, seed, settings, decoded);
        // Where each row takes a round trip, fewer of them.
        let load = Load::start(&world.pair.source.url("postgres"), seed, settings.batch < 10);
        let mut ddl = decoded.then(|| Ddl::start(world.pair.source.url("postgres"), seed));
        let watch = world.watch();
        let rewriter = Rewriter::start(world.pair.source.url("postgres"), seed);
        world.starting_rounds();
        world.copy_rounds();
        world.copied();
        rewriter.stop();
        let late = world.copied_later();
        if let Some(ddl) = &mut ddl {
            ddl.reshape(&world.pair, seed);
        }
        let saboteur = Saboteur::start(world.pair.target.url("postgres"));
        world.stream_rounds(&load, &watch, KILLS_MIN);
        let deleted = saboteur.stop();
        let committed = load.stop();
        let (changed, reshaped) = ddl.map_or((0, 0), Ddl::stop);
        world.settle();
        let seen = watch.stop();
        println!(
            "{}\n{committed} transactions, {changed} changes of catalogs, {reshaped} columns that came and went, {deleted} \
             rows deleted behind the back of the target; a table copied {late} bytes of WAL after the rest; {} states read, \
             {} visible commits lost to crashes and applied again; {:.0} s",
            world.tally,
            seen.states,
            seen.lost,
            started.elapsed().as_secs_f64()
        );
        assert_eq!(seen.violations, Vec::<String>::new(), "seed {seed}");
        assert!(
            seen.states > 0,
            "status never said that it streams (seed {seed}):\n{}",
            world.sluice.stderr()
        );
        world.compare().unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
        world.canary();
        assert!(reshaped > 0 || !decoded, "no column came and went (seed {seed})");
        assert!(world.tally.kills() >= KILLS_MIN, "too few kills (seed {seed}):\n{}", world.tally);
        assert!(world.tally.held > 0, "no COMMIT was certainly unanswered (seed {seed})");
        assert!(world.tally.answers_lost > 0, "no answer to COMMIT was lost (seed {seed})");
        assert!(world.tally.of(Victim::Source) >= HITS_MIN, "the source was killed too rarely (seed {seed})");
        for phase in Phase::ALL {
            assert!(
                world.tally.counted(phase) >= world.hits_min(phase),
                "{phase:?} was hit too rarely (seed {seed}):\n{}",
                world.tally
            );
        }
    }
}
