//! Kills pgsluice, the target and the source at seeded random instants under
//! load, and cuts connections; in the end both ends hold the same rows.
//!
//! Three things must show that it means something: each phase of
//! [`base::crash_phases::Phase`] is hit at least [`HITS_MIN`] times (the recorder
//! says so, not a guess); a reader of the target only ever sees states the
//! source was in, from the first moment at which `status` says *streaming*
//! ([`watch`]); and the checkers fail on a target that was
//! tampered with.
//!
//! One of two majors has the source `wal` (by the seed; `PGSLUICE_TEST_SOURCE_MODE` names one for all): there the
//! catalogs of the source change all the time, too, and the columns of a published table on both ends ([`ddl`]), and kills
//! must hit the look at them and what is kept of them.
//!
//! `PGSLUICE_CRASH_SEED` repeats a run's choices (the load and the servers
//! keep their own time), the combination of settings that each major has
//! among them ([`testkit::matrix`]; `PGSLUICE_MATRIX` names one),
//! `PGSLUICE_CRASH_ROUNDS` or `PGSLUICE_CRASH_MINUTES` (on each major) make it
//! longer, `PGSLUICE_TEST_MAJORS` chooses the servers.

mod conn;
mod ddl;
mod load;
mod rewrite;
mod strike;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::crash_phases::Phase;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;
use testkit::matrix::{self, Combination};
use testkit::{Cluster, Major, Pair, Proxy, Sluice, SourceMode, StopMode, same_rows, wait_for};

use crate::conn::Conn;
use crate::ddl::Ddl;
use crate::load::{Load, TABLES};
use crate::rewrite::Rewriter;
use crate::strike::{Recorder, Tally, Victim, await_phase, freeze_in, hold_in_commit, signal};
use crate::watch::{Claim, Watch};

/// Kills over all majors.
const KILLS_MIN: u32 = 60;
/// Kills that each phase must be hit by.
const HITS_MIN: u32 = 3;
/// After so many rounds for a phase that some victim was not hit in, it need not be that one: of what is received in bursts
/// it may never be. One that is over sooner than a signal arrives is then met with the process standing still.
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

#[test]
fn both_ends_end_equal_whatever_is_killed() {
    let seed = environment("PGSLUICE_CRASH_SEED").unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    let majors = Major::under_test();
    let kills_min = KILLS_MIN.div_ceil(u32::try_from(majors.len()).expect("a handful of majors"));
    for (number, major) in majors.into_iter().enumerate() {
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
        world.stream_rounds(&load, &watch, kills_min);
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
        assert!(world.tally.kills() >= kills_min, "too few kills (seed {seed}):\n{}", world.tally);
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

/// Deletes rows on the target that the source will still write to.
struct Saboteur {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<u64>,
}

impl Saboteur {
    fn start(url: String) -> Saboteur {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let (mut conn, mut deleted) = (Conn::new(url), 0);
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(300));
                    // Only one row: it waits for one lock and holds none.
                    let sql = "WITH gone AS (DELETE FROM victim WHERE id = (SELECT id FROM victim ORDER BY id DESC \
                               OFFSET 15 LIMIT 1) RETURNING 1) SELECT count(*) FROM gone";
                    deleted += conn.numbers(sql).map_or(0, |row| row[0].unsigned_abs());
                }
                deleted
            }
        });
        Saboteur { stop, thread }
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the saboteur does not panic")
    }
}

/// What was done, round by round. Told at the end, so that what went wrong stands before it and not behind a hundred lines;
/// a run that somebody watches for an hour is told as it goes.
struct Story {
    lines: Vec<String>,
    live: bool,
}

impl Story {
    fn tell(&mut self, line: String) {
        match self.live {
            true => println!("{line}"),
            false => self.lines.push(line),
        }
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        self.lines.iter().for_each(|line| println!("{line}"));
    }
}

/// Both ends, the program between them, and what was done to them.
struct World {
    story: Story,
    pair: Pair,
    /// Between pgsluice and the target.
    link: Proxy,
    sluice: Sluice,
    settings: Combination,
    /// The source is read as WAL.
    decoded: bool,
    recorder: Recorder,
    random: StdRng,
    tally: Tally,
    rounds_min: u32,
    /// Rounds begin until then.
    until: Instant,
    /// How often each phase was wanted.
    tried: [u32; Phase::ALL.len()],
}

impl World {
    fn new(major: Major, seed: u64, settings: Combination, decoded: bool) -> World {
        let source = Cluster::builder(major).setting("logical_decoding_work_mem", "64kB");
        // What a crash may lose is what was not written yet: as much as the
        // server allows.
        let target = Cluster::builder(major).durable().setting("wal_writer_delay", "10s");
        let target = target.setting("wal_writer_flush_after", "1GB").setting("synchronous_commit", "off");
        let target = target.setting("wal_buffers", "32MB");
        let pair = Pair::with(source, target).expect("two clusters");
        pair.both("postgres", load::SCHEMA).expect("tables");
        pair.source.sql("postgres", &load::rows()).expect("rows");
        pair.source
            .sql("postgres", &format!("CREATE PUBLICATION p FOR TABLE {}", tables(settings).join(", ")))
            .expect("a publication");
        let recorder = Recorder::create(&pair.state_dir().join("recorder"));
        let link = Proxy::to(pair.target.port()).expect("a proxy");
        let sluice = start(&pair, &link, settings, decoded);
        let rounds_min = environment("PGSLUICE_CRASH_ROUNDS").map_or(0, |rounds| rounds as u32);
        let minutes = environment("PGSLUICE_CRASH_MINUTES").unwrap_or(0);
        World {
            story: Story { lines: Vec::new(), live: minutes > 0 || rounds_min > 0 },
            pair,
            link,
            sluice,
            settings,
            decoded,
            recorder,
            random: StdRng::seed_from_u64(seed),
            tally: Tally::default(),
            rounds_min,
            until: Instant::now() + Duration::from_secs(60 * minutes),
            tried: [0; Phase::ALL.len()],
        }
    }

    /// How often each phase must be hit.
    fn hits_min(&self, phase: Phase) -> u32 {
        match phase {
            Phase::Look | Phase::Keep if !self.decoded => 0,
            // Once the first is over it does not come again; the second comes each few seconds, of which it takes one in
            // a thousand, and only when the target has everything.
            Phase::Look | Phase::Keep => 1,
            _ => HITS_MIN,
        }
    }

    /// Kills while state, slot and snapshot are being made, by the clock:
    /// what is left half made must not stop the next start.
    fn starting_rounds(&mut self) {
        while self.tally.counted(Phase::Look) < self.hits_min(Phase::Look) {
            if !await_phase(&self.recorder, Phase::Look, &mut self.random) {
                self.story.tell("Look did not come again".to_owned());
                break;
            }
            let phases = self.strike(Victim::Sluice, 0);
            self.tally.add(phases.hit(Phase::Look), Victim::Sluice);
        }
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(self.random.random_range(20..250)));
            let phases = self.strike(Victim::Sluice, 0);
            self.tally.add(phases.hit(Phase::Copy), Victim::Sluice);
        }
    }

    /// While the first copy runs; returns when it is finished.
    fn copy_rounds(&mut self) {
        while self.tally.counted(Phase::Copy) < HITS_MIN + 1
            || self.tally.hits(Phase::Copy, Victim::Target) == 0
        {
            let victim = self.victim(Phase::Copy);
            self.round(Phase::Copy, victim);
            assert!(self.tally.total() < ROUNDS_MAX, "the copy was over too soon:\n{}", self.tally);
        }
    }

    /// A reader of the target, from where `status` says that its states are the source's.
    fn watch(&self) -> Watch {
        let claim = Claim::of(self.pair.state_dir().to_owned(), "crash");
        Watch::start(self.pair.target.url("postgres"), self.settings.is_relaxed(), claim)
    }

    fn stream_rounds(&mut self, load: &Load, watch: &Watch, kills_min: u32) {
        let streaming: Vec<Phase> = Phase::ALL
            .into_iter()
            .filter(|phase| !matches!(phase, Phase::Copy | Phase::Look) && self.hits_min(*phase) > 0)
            .collect();
        for round in 0.. {
            let missing = |phase: &Phase| self.hits_min(*phase).saturating_sub(self.tally.counted(*phase));
            let most = streaming.iter().map(missing).max().unwrap_or_default();
            let seen = most == 0
                && self.tally.of(Victim::Source) >= HITS_MIN
                && self.tally.answers_lost > 0
                && self.tally.kills() >= kills_min;
            let is_long = round < self.rounds_min || Instant::now() < self.until;
            if !is_long && (seen || round >= ROUNDS_MAX) {
                return;
            }
            let rare: Vec<Phase> = streaming.iter().copied().filter(|phase| missing(phase) == most).collect();
            if self.random.random_bool(0.4) || self.behind() > BEHIND_MAX {
                load.ebb(true);
                self.breathe();
                load.ebb(false);
            }
            let wanted = rare[self.random.random_range(0..rare.len())];
            let victim = self.victim(wanted);
            // Into the stream, not only its beginning.
            std::thread::sleep(Duration::from_millis(self.random.random_range(0..400)));
            self.round(wanted, victim);
            assert_eq!(watch.violations(), Vec::<String>::new(), "{}", self.sluice.stderr());
        }
    }

    /// Commits that the source has and the target has not; none while either
    /// is down or has no rows yet.
    fn behind(&self) -> u64 {
        let committed = |cluster: &Cluster| {
            let mut conn = Conn::new(cluster.url("postgres"));
            conn.numbers("SELECT sum(n) FROM tally HAVING count(*) > 0").ok()?.first().copied()
        };
        committed(&self.pair.source)
            .zip(committed(&self.pair.target))
            .map_or(0, |(source, target)| source.abs_diff(target))
    }

    /// Lets the target come to where the source is now: else every kill
    /// would meet the same backlog.
    fn breathe(&mut self) {
        let committed = self.pair.source.one("postgres", "SELECT sum(n) FROM tally");
        let committed: i64 = committed.parse().expect("a count");
        self.wait_to_follow("the target to follow", committed, |world| {
            let row = world.pair.target.sql("postgres", "SELECT sum(n) FROM tally").unwrap_or_default();
            row.first().and_then(|row| row.first()?.as_deref()?.parse().ok())
        });
    }

    /// Waits until what `reads` reads has reached `goal`, as long as it moves.
    fn wait_to_follow(&mut self, what: &str, goal: i64, reads: impl Fn(&World) -> Option<i64>) {
        let began = Instant::now();
        let (mut reached, mut moved) = (None, began);
        let followed = wait_for(what, MOVING_BOUND, || {
            anyhow::ensure!(self.sluice.is_running(), "pgsluice ended by itself");
            let now = reads(self);
            if now > reached {
                (reached, moved) = (now, Instant::now());
            }
            anyhow::ensure!(moved.elapsed() < BOUND, "waited {BOUND:?} for {what}, which stands still");
            Ok(reached >= Some(goal))
        });
        followed.unwrap_or_else(|error| panic!("{error:#}\n{}\n{}", self.standing(), self.sluice.stderr()));
        if began.elapsed() > BOUND {
            let waited = began.elapsed().as_secs_f64();
            self.story.tell(format!("waited {waited:.0} s for {what}: a slow machine"));
        }
    }

    /// Whom to end in `wanted`: pgsluice and the target before anybody again, unless that does not succeed; in
    /// COMMIT the connection, and whoever was spared so far.
    fn victim(&mut self, wanted: Phase) -> Victim {
        let tried = &mut self.tried[wanted as usize];
        *tried += 1;
        if wanted == Phase::Keep {
            // It concerns nobody else, and is over before a probe of the target has been answered.
            return Victim::Sluice;
        }
        let missing = match *tried {
            ..=TRIES_MAX => [Victim::Sluice, Victim::Target]
                .into_iter()
                .find(|victim| self.tally.hits(wanted, *victim) == 0),
            _ => None,
        };
        match missing {
            Some(victim) => victim,
            None if wanted == Phase::Commit && self.tally.answers_lost == 0 => Victim::Link,
            None => match Victim::ALL.into_iter().find(|victim| self.tally.of(*victim) == 0) {
                Some(spared) => spared,
                None if self.is_fleeting(wanted) => Victim::Sluice,
                None => Victim::pick(&mut self.random),
            },
        }
    }

    /// Whether it was wanted often, and hit too rarely.
    fn is_fleeting(&self, wanted: Phase) -> bool {
        self.tried[wanted as usize] > TRIES_MAX && self.tally.counted(wanted) < self.hits_min(wanted)
    }

    /// One kill, and everything back on its feet.
    fn round(&mut self, wanted: Phase, victim: Victim) {
        assert!(self.sluice.is_running(), "pgsluice ended by itself:\n{}", self.sluice.stderr());
        let began = Instant::now();
        let backend = self.backend(wanted);
        let ready = began.elapsed();
        let first = self.tally.held == 0 || victim == Victim::Link && self.tally.answers_lost == 0;
        let coin = first || self.random.random_bool(0.5);
        let hold = wanted == Phase::Commit && victim.may_find_commit_held() && coin;
        let held = hold && hold_in_commit(&self.recorder, backend);
        let freeze = victim == Victim::Sluice && self.is_fleeting(wanted);
        let frozen = !held && freeze && freeze_in(&self.recorder, wanted, self.sluice.pid());
        if !held && !frozen && !await_phase(&self.recorder, wanted, &mut self.random) {
            self.story.tell(format!("{wanted:?} did not come"));
        }
        self.tally.held += u32::from(held);
        self.tally.answers_lost += u32::from(held && victim == Victim::Link);
        let seen = began.elapsed();
        let phases = self.strike(victim, backend);
        let hit = phases.hit(wanted);
        self.tally.add(hit, victim);
        let done = began.elapsed();
        let behind = self.behind();
        self.story.tell(format!(
            "{victim:?} in {hit:?}{}; ready {:.1} s, seen {:.1} s, done {:.1} s, {} behind",
            match (held, frozen) {
                (true, _) => ", held",
                (_, true) => ", stopped there",
                _ => "",
            },
            ready.as_secs_f64(),
            seen.as_secs_f64(),
            done.as_secs_f64(),
            behind
        ));
        if held && matches!(victim, Victim::Sluice | Victim::Link) {
            // The new process, or the new connection, meets a backend that is still committing.
            std::thread::sleep(Duration::from_millis(self.random.random_range(0..1_500)));
            signal(backend, Signal::CONT);
        }
    }

    /// Kills, restarts, and compares what the source was told with what the
    /// target has.
    fn strike(&mut self, victim: Victim, backend: u32) -> strike::Phases {
        match victim {
            Victim::Sluice => {
                self.sluice.kill9();
                let phases = self.recorder.read();
                self.recorder.clear();
                self.sluice = start(&self.pair, &self.link, self.settings, self.decoded);
                phases
            }
            Victim::Target | Victim::Backend => {
                // pgsluice lives on and soon notices: read before.
                let mut probe = Conn::new(self.pair.target.url("postgres"));
                let _ = probe.run("SELECT");
                let phases = self.recorder.read();
                signal(backend, Signal::KILL);
                self.recover_target(victim, &mut probe);
                phases
            }
            Victim::Session => {
                let phases = self.recorder.read();
                signal(backend, Signal::TERM);
                phases
            }
            Victim::Source => {
                let phases = self.recorder.read();
                match self.random.random_bool(0.5) {
                    true => self.pair.source.stop(StopMode::Immediate).expect("the source stops"),
                    false => self.pair.source.kill9(),
                }
                self.pair.source.start_again().expect("the source starts");
                phases
            }
            Victim::Link => {
                let phases = self.recorder.read();
                self.link.cut();
                phases
            }
        }
    }

    /// `probe` was connected before: a crash ends it, so as long as it answers
    /// there is nothing to recover from yet.
    fn recover_target(&mut self, victim: Victim, probe: &mut Conn) {
        let frozen = victim == Victim::Target && self.random.random_bool(0.5);
        if frozen {
            signal(self.sluice.pid(), Signal::STOP);
        }
        if victim == Victim::Target {
            self.pair.target.kill9();
        }
        let _ = wait_for("the crash", Duration::from_secs(5), || Ok(probe.run("SELECT").is_err()));
        let told = self.confirmed();
        if victim == Victim::Target {
            self.pair.target.start_again().expect("the target recovers");
        }
        let mut conn = Conn::new(self.pair.target.url("postgres"));
        // What was committed out of order counts as far as it follows without a gap.
        let sql = "WITH RECURSIVE o (lsn) AS (SELECT max(remote_lsn) FROM pg_replication_origin_status \
                      WHERE external_id ~ '^pgsluice_crash_[0-9]+$'), \
                   p (lsn) AS (SELECT max(applied_lsn) FROM pgsluice.progress WHERE subscription = 'crash'), \
                   b (lsn) AS (SELECT coalesce(CASE WHEN current_setting('server_version_num')::int < 160000 \
                      THEN greatest(p.lsn, o.lsn) ELSE coalesce(p.lsn, o.lsn) END, '0/0') FROM o, p \
                      UNION SELECT a.applied_lsn FROM b JOIN pgsluice.ahead a \
                         ON a.subscription = 'crash' AND a.since_lsn <= b.lsn AND a.applied_lsn > b.lsn) \
                   SELECT greatest((SELECT max(b.lsn) FROM b), confirmed_lsn) - '0/0' \
                     FROM pgsluice.subscription WHERE name = 'crash'";
        let mut has = None;
        wait_for("the target to recover", BOUND, || {
            has = conn.numbers(sql).ok();
            Ok(has.is_some())
        })
        .expect("the target recovers");
        // No row: the subscription was just being made.
        let has = has.and_then(|row| row.first().copied()).unwrap_or(i64::MAX);
        assert!(told <= has || has == 0, "the source was told {told}, the target has only {has}");
        if frozen {
            signal(self.sluice.pid(), Signal::CONT);
        }
    }

    /// The slot's position, or what the target keeps instead where there is none; 0 before there is any.
    fn confirmed(&self) -> i64 {
        if testkit::source_mode() == Some(SourceMode::Archive) {
            let sql = "SELECT coalesce(max(confirmed_lsn) - '0/0', 0) FROM pgsluice.subscription";
            let rows = self.pair.target.sql("postgres", sql).unwrap_or_default();
            let told = rows.into_iter().flatten().flatten().next();
            return told.and_then(|told| told.parse().ok()).unwrap_or_default();
        }
        let sql = "SELECT coalesce(min(coalesce(s.confirmed_flush_lsn, r.replay_lsn)) - '0/0', 0) \
                   FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid \
                   WHERE NOT s.temporary";
        self.pair.source.one("postgres", sql).parse().expect("a position")
    }

    /// The backend that copies or applies, of the process that runs now.
    fn backend(&mut self, wanted: Phase) -> u32 {
        let role = if wanted == Phase::Copy { "copy" } else { "apply" };
        // The newest is the one that executes streamed transactions early, if there is one; before it the workers, of
        // whom the first commits most; otherwise any may be hit.
        let early = usize::from(!self.settings.is_relaxed());
        let later = match wanted {
            Phase::Copy => 0,
            Phase::Commit => early + self.settings.workers - 1,
            _ => early + self.random.random_range(0..self.settings.workers),
        };
        let mut conn = Conn::new(self.pair.target.url("postgres"));
        // Who was ended while he had nothing to do is not missed before he has.
        let sql = format!(
            "WITH a AS (SELECT pid, backend_start FROM pg_stat_activity WHERE application_name = 'pgsluice crash {role}') \
             SELECT pid FROM a ORDER BY backend_start DESC \
             OFFSET (SELECT least({later}, greatest(count(*) - 1, 0)) FROM a) LIMIT 1"
        );
        let mut pid = 0;
        let found = wait_for("a backend of pgsluice", BOUND, || {
            anyhow::ensure!(self.sluice.is_running(), "pgsluice ended by itself");
            pid = conn.numbers(&sql).ok().and_then(|row| row.first().copied()).unwrap_or(0);
            Ok(pid != 0)
        });
        found.unwrap_or_else(|error| panic!("{error:#}:\n{}", self.sluice.stderr()));
        u32::try_from(pid).expect("a process id")
    }

    /// What everybody is doing, for who reads a failure.
    fn standing(&self) -> String {
        let activity = "SELECT pid, application_name, state, wait_event_type, wait_event, now() - xact_start, \
                        left(query, 120) FROM pg_stat_activity WHERE backend_type IN ('client backend', 'walsender')";
        let slots = "SELECT slot_name, active, restart_lsn, confirmed_flush_lsn, pg_current_wal_lsn() \
                     FROM pg_replication_slots";
        let mut text = String::new();
        for (who, cluster, sql) in [
            ("slots", &self.pair.source, slots),
            ("source", &self.pair.source, activity),
            ("target", &self.pair.target, activity),
            ("committed on the source", &self.pair.source, "SELECT sum(n) FROM tally"),
            ("committed on the target", &self.pair.target, "SELECT sum(n) FROM tally"),
        ] {
            for row in cluster.sql("postgres", sql).unwrap_or_default() {
                let row: Vec<String> = row.into_iter().map(Option::unwrap_or_default).collect();
                text.push_str(&format!("{who}: {}\n", row.join(" | ")));
            }
        }
        text
    }

    /// Waits until every table is copied. They are copied under snapshots of their own: before the stream has passed the last
    /// of these they are not at the same commit.
    fn copied(&mut self) {
        let copied =
            "SELECT count(*) FILTER (WHERE NOT finished) FROM pgsluice.copied_table HAVING count(*) > 0";
        let joined = wait_for("all tables to be copied", BOUND, || {
            anyhow::ensure!(self.sluice.is_running(), "pgsluice ended by itself");
            let open = self.pair.target.sql("postgres", copied).unwrap_or_default();
            Ok(open == [[Some("0".to_owned())]])
        });
        joined.unwrap_or_else(|error| panic!("{error:#}\n{}\n{}", self.standing(), self.sluice.stderr()));
    }

    /// How much WAL lies between the snapshots of the table that was written anew and of another.
    fn copied_later(&self) -> i64 {
        let point = |table: &str| {
            format!("(SELECT consistent_point FROM pgsluice.copied_table WHERE table_name = '{table}')")
        };
        let sql = format!("SELECT {} - {}", point(rewrite::TABLE), point("tally"));
        let mut conn = Conn::new(self.pair.target.url("postgres"));
        conn.numbers(&sql).ok().and_then(|row| row.first().copied()).unwrap_or_default()
    }

    /// Waits until every commit of the source so far is confirmed.
    fn caught_up(&mut self) {
        self.copied();
        let lsn = self.pair.source.one("postgres", "SELECT pg_current_wal_lsn() - '0/0'");
        let lsn = lsn.parse().expect("a position");
        self.wait_to_follow("the slot to pass every commit", lsn, |world| Some(world.confirmed()));
    }

    /// After the load: what was tampered with goes, the rest arrives.
    fn settle(&mut self) {
        self.pair.source.sql("postgres", "DELETE FROM victim").expect("rows to delete");
        self.caught_up();
        let status = self.sluice.terminate(Duration::from_secs(10)).expect("it ends");
        assert!(status.success(), "{status}\n{}", self.sluice.stderr());
    }

    /// Every table on both ends.
    fn compare(&self) -> anyhow::Result<()> {
        for table in tables(self.settings) {
            same_rows(&self.pair.source, &self.pair.target, "postgres", table)?;
        }
        Ok(())
    }

    /// A row too few, a row too many, money from nowhere: each is noticed.
    fn canary(&self) {
        let target = &self.pair.target;
        let relaxed = self.settings.is_relaxed();
        let look = || watch::look(&mut Conn::new(target.url("postgres")), relaxed).expect("a state");
        let again = "TRUNCATE ledger; INSERT INTO ledger SELECT * FROM kept";
        let tampered = [
            ("ledger", "DELETE FROM ledger WHERE at = 1", again, true),
            ("ledger", "INSERT INTO ledger SELECT * FROM ledger WHERE at = 2", again, true),
            (
                "saving",
                "UPDATE saving SET balance = balance + 1 WHERE id = 0",
                "UPDATE saving SET balance = balance - 1 WHERE id = 0",
                true,
            ),
            // The sum of all money does not show what only changed hands.
            (
                "saving",
                "UPDATE saving SET balance = balance + 1 - 2 * (id % 2) WHERE id < 2",
                "UPDATE saving SET balance = balance - 1 + 2 * (id % 2) WHERE id < 2",
                true,
            ),
            ("wide", "UPDATE wide SET big = big || '.' WHERE id = 0", "", false),
        ];
        target.sql("postgres", "CREATE TABLE kept AS SELECT * FROM ledger").expect("a copy");
        for (table, tamper, undo, visible) in tampered {
            let same = || same_rows(&self.pair.source, target, "postgres", table);
            assert!(look().is_ok() && same().is_ok());
            target.sql("postgres", tamper).expect(tamper);
            assert!(same().is_err(), "not noticed: {tamper}");
            assert!(!visible || look().is_err(), "not seen: {tamper}");
            target.sql("postgres", undo).expect(undo);
        }
    }
}

/// What is published: where transactions may overtake, not the clock, by which each depends on the one before it.
fn tables(settings: Combination) -> Vec<&'static str> {
    TABLES.into_iter().filter(|table| *table != "clock" || !settings.is_relaxed()).collect()
}

fn start(pair: &Pair, link: &Proxy, settings: Combination, decoded: bool) -> Sluice {
    let settings = settings.arguments();
    let mut arguments: Vec<&str> = ARGUMENTS.split_whitespace().collect();
    arguments.extend(settings.iter().map(String::as_str));
    let mut command = Sluice::command(pair, &arguments).expect("pgsluice is built");
    command.env("PGSLUICE_TARGET", link.url(&pair.target.url("postgres")));
    command.env("PGSLUICE_SOURCE_MODE", if decoded { "wal" } else { "logical" });
    command.env("PGSLUICE_FLIGHT_RECORDER", pair.state_dir().join("recorder"));
    Sluice::start(command).expect("pgsluice starts")
}
