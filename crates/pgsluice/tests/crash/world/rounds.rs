//! Rounds of kills: the wanted phase, the victim, and how all start again.

use std::time::{Duration, Instant};

use base::crash_phases::Phase;
use rand::Rng;
use rustix::process::Signal;
use testkit::{StopMode, wait_for};

use super::{World, start};
use crate::conn::Conn;
use crate::load::Load;
use crate::strike::{self, Victim, await_phase, freeze_in, hold_in_commit, signal};
use crate::watch::Watch;
use crate::{BEHIND_MAX, BOUND, HITS_MIN, ROUNDS_MAX, TRIES_MAX};

impl World {
    /// Kills while state, slot and snapshot are being made, by the clock:
    /// what is left half made must not stop the next start.
    pub(crate) fn starting_rounds(&mut self) {
        while self.tally.counted(Phase::Look) < self.hits_min(Phase::Look) {
            if !await_phase(&self.recorder, Phase::Look, &mut self.random) {
                self.story.tell("Look did not come again".to_owned());
                break;
            }
            let phases = self.strike(Victim::Sluice, 0);
            self.tally.add(phases.hit(Phase::Look), Victim::Sluice);
        }
        for _ in 0..4 {
            // Any instant will do, and a random one finds more of them.
            std::thread::sleep(Duration::from_millis(self.random.random_range(20..250)));
            let phases = self.strike(Victim::Sluice, 0);
            self.tally.add(phases.hit(Phase::Copy), Victim::Sluice);
        }
    }

    /// While the first copy runs; returns when it is finished.
    pub(crate) fn copy_rounds(&mut self) {
        while self.tally.counted(Phase::Copy) < HITS_MIN + 1
            || self.tally.hits(Phase::Copy, Victim::Target) == 0
        {
            let victim = self.victim(Phase::Copy);
            self.round(Phase::Copy, victim);
            assert!(self.tally.total() < ROUNDS_MAX, "the copy was over too soon:\n{}", self.tally);
        }
    }

    pub(crate) fn stream_rounds(&mut self, load: &Load, watch: &Watch, kills_min: u32) {
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
            let rare: Vec<Phase> = match most {
                0 if self.tally.answers_lost == 0 => vec![Phase::Commit],
                _ => streaming.iter().copied().filter(|phase| missing(phase) == most).collect(),
            };
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

    /// The victim in `wanted`. pgsluice and the target come before any of them comes again, unless
    /// that does not succeed, or the phase was hit often enough and some victim is still spared. In
    /// COMMIT it is the connection, and then a victim that was spared so far.
    fn victim(&mut self, wanted: Phase) -> Victim {
        self.tried[wanted as usize] += 1;
        if wanted == Phase::Keep {
            // The phase concerns no other process, and is over before the target could answer a
            // probe.
            return Victim::Sluice;
        }
        let hit = self.tally.counted(wanted) >= self.hits_min(wanted) && self.spared().is_some();
        let missing = match self.tried[wanted as usize] {
            ..=TRIES_MAX if !hit => [Victim::Sluice, Victim::Target]
                .into_iter()
                .find(|victim| self.tally.hits(wanted, *victim) == 0),
            _ => None,
        };
        match missing {
            Some(victim) => victim,
            None if wanted == Phase::Commit && self.tally.answers_lost == 0 => Victim::Link,
            None => match self.spared() {
                Some(spared) => spared,
                None if self.is_fleeting(wanted) => Victim::Sluice,
                None => Victim::pick(&mut self.random),
            },
        }
    }

    /// A victim that was ended too rarely so far.
    fn spared(&self) -> Option<Victim> {
        Victim::ALL.into_iter().find(|victim| self.tally.of(*victim) < victim.hits_min())
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
        let held = hold && hold_in_commit(&self.recorder, backend, &self.pair.target.url("postgres"));
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

    /// The backend that copies or applies, of the process that runs now.
    fn backend(&mut self, wanted: Phase) -> u32 {
        let role = if wanted == Phase::Copy { "copy" } else { "apply" };
        // The newest session executes streamed transactions early, if there is one. Before it come
        // the workers, of which the first commits most. Otherwise any may be hit.
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
}
