//! Both ends with pgsluice between them: how they are started, killed, waited for and asked.

use std::time::Duration;

use engine::StatusSnapshot;
use rand::Rng;
use rand::rngs::StdRng;
use rustix::process::Signal;
use testkit::matrix::Combination;
use testkit::{Cluster, Major, Pair, Sluice, wait_for, wait_while_it_moves};

use base::crash_phases::Phase;

use super::story::{CONFLICTS, Row, Table, values};
use super::tellers;
use crate::conn::Conn;
use crate::strike::{Recorder, Tally, Victim, await_phase_for, is_stopped, signal};
use crate::watch::Claim;
use crate::{BOUND, load, world};

const NAME: &str = "conflicts";
const ARGUMENTS: &str = "run --publication p --copy-data off --retain-dead-tuples on \
    --wal-retrieve-retry-interval 200ms --wal-receiver-status-interval 1s";

/// Phases of which one is waited for before a kill. The first two are where conflicts are resolved.
const PHASES: [Phase; 4] = [Phase::Replay, Phase::Batch, Phase::Commit, Phase::Unreported];
/// How long a phase is waited for. Some never come with some settings.
const PHASE_BOUND: Duration = Duration::from_secs(1);

/// The process that SIGKILL ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strike {
    Sluice,
    /// Its postmaster and all children.
    Target,
    Both,
}

impl Strike {
    pub(crate) fn pick(random: &mut StdRng) -> Strike {
        match random.random_range(0..10) {
            0..5 => Strike::Sluice,
            5..8 => Strike::Target,
            _ => Strike::Both,
        }
    }
}

/// See the module.
pub(crate) struct Rig {
    pub(crate) pair: Pair,
    sluice: Sluice,
    words: Vec<String>,
    recorder: Recorder,
    claim: Claim,
    random: StdRng,
    /// The phase that was waited for last.
    wanted: Phase,
    pub(crate) tally: Tally,
    /// Records of the history that a crash of the target took back.
    lost: i64,
    /// What a failure may have come from.
    notes: Vec<String>,
}

impl Rig {
    /// `absent`: rows that the source alone has in each table of the stories.
    pub(crate) fn start(
        major: Major,
        settings: Combination,
        paths: &[&str],
        absent: &[Row],
        random: StdRng,
    ) -> Rig {
        let track = |end: Major| Cluster::builder(end).setting("track_commit_timestamp", "on");
        let source = track(major).setting("logical_decoding_work_mem", "64kB");
        // A crash may lose what was not written yet: as much as the server allows.
        let target = track(major).durable().setting("wal_writer_delay", "10s");
        let target = target.setting("wal_writer_flush_after", "1GB").setting("synchronous_commit", "off");
        let target = target.setting("wal_buffers", "32MB");
        let pair = Pair::with(source, target).expect("two clusters");
        pair.both("postgres", &format!("{}; {}", load::SCHEMA, tellers::schema())).expect("tables");
        let mut tables = world::tables(settings);
        tables.push("ballast");
        for table in Table::ALL.map(Table::name) {
            tables.push(table);
            pair.source
                .sql("postgres", &format!("INSERT INTO {table} VALUES {}", values(absent)))
                .expect("rows of the source alone");
        }
        let publication = format!("CREATE PUBLICATION p FOR TABLE {}", tables.join(", "));
        pair.source.sql("postgres", &publication).expect("a publication");
        let words = words(settings, paths);
        let recorder = Recorder::create(&pair.state_dir().join("recorder"));
        let (sluice, claim) = (begin(&pair, &words), Claim::of(pair.state_dir().to_owned(), NAME));
        Rig {
            pair,
            sluice,
            words,
            recorder,
            claim,
            random,
            wanted: Phase::Batch,
            tally: Tally::default(),
            lost: 0,
            notes: Vec::new(),
        }
    }

    pub(crate) fn on_source(&self, sql: &str) {
        self.pair.source.sql("postgres", sql).expect("the source is never down");
    }

    /// Waits until `condition` holds for the status of the process, as long as anything moves.
    fn wait_for_status(&mut self, what: &str, condition: impl Fn(&StatusSnapshot) -> bool) {
        let Rig { sluice, claim, .. } = self;
        let holds = || {
            anyhow::ensure!(sluice.is_running(), "pgsluice ended by itself");
            Ok(claim.status().is_some_and(|status| condition(&status)))
        };
        let moved = || claim.status().map(|status| (status.applied.clone(), status.totals.transactions));
        wait_while_it_moves(what, BOUND, holds, moved).unwrap_or_else(|error| self.fail(&error));
    }

    fn fail(&self, error: &anyhow::Error) -> ! {
        panic!("{error:#}\n{}{}", self.told(), self.sluice.stderr());
    }

    /// Waits until pgsluice streams, captures deletions, and has passed the beginning of capture.
    pub(crate) fn streams(&mut self) {
        self.wait_for_status("pgsluice to stream and to remember deletions", |status| {
            let remembers =
                |own: &engine::RetainedSnapshot| own.state == "capturing" && own.cut_lsn.is_none();
            status.phase == "streaming" && status.deletions.as_ref().is_some_and(remembers)
        });
    }

    /// Waits until the query counts as many rows on the target.
    pub(crate) fn wait_for_rows(&mut self, count: i64, sql: &str) {
        let Rig { sluice, pair, .. } = self;
        let mut target = Conn::new(pair.target.url("postgres"));
        let arrived = || {
            anyhow::ensure!(sluice.is_running(), "pgsluice ended by itself");
            Ok(target.numbers(sql).is_ok_and(|row| row == [count]))
        };
        let moved = || pair.target.sql("postgres", "SELECT sum(n) FROM tally").ok();
        wait_while_it_moves("rows to arrive", BOUND, arrived, moved)
            .unwrap_or_else(|error| self.fail(&error));
    }

    /// Waits until the target has all that was committed on the source.
    pub(crate) fn caught_up(&mut self) {
        let end = self.pair.source.one("postgres", "SELECT pg_current_wal_lsn()");
        let end: base::Lsn = end.parse().expect("a position");
        // The last transaction is behind the end, and nobody else writes.
        self.on_source("UPDATE ballast SET n = n + 1 WHERE id = 1");
        self.wait_for_status("the target to have everything", |status| {
            let applied = status.applied.as_deref().and_then(|lsn| lsn.parse().ok());
            applied.is_some_and(|lsn: base::Lsn| lsn > end)
        });
    }

    /// Waits until no deletion is remembered: none is needed any more, whatever was killed.
    pub(crate) fn forgets(&mut self) {
        self.note_what_is_not_covered();
        self.wait_for_status("deletions to be forgotten", |status| {
            status.deletions.as_ref().is_some_and(|own| own.state == "capturing" && own.count == 0)
        });
    }

    /// Ends pgsluice by SIGTERM.
    pub(crate) fn stop(&mut self) {
        let ended = self.sluice.terminate(Duration::from_secs(10)).expect("it ends");
        assert!(ended.success(), "{ended}\n{}", self.sluice.stderr());
    }

    /// Misses about which nothing is known are the first thing to look at after a failure.
    fn note_what_is_not_covered(&mut self) {
        let Some(deletions) = self.claim.status().and_then(|status| status.deletions) else { return };
        if deletions.retention_exceeded > 0 || deletions.cut_lsn.is_some() {
            let reason = deletions.not_covered_because.as_deref().unwrap_or("it is over");
            let note = format!("{} misses were not covered: {reason}", deletions.retention_exceeded);
            self.notes.push(note);
        }
    }

    /// Stops all threads of pgsluice where they are.
    pub(crate) fn hold(&mut self) {
        let pid = self.sluice.pid();
        signal(pid, Signal::STOP);
        wait_for("pgsluice to be stopped", BOUND, || Ok(is_stopped(pid))).expect("it is stopped");
    }

    pub(crate) fn go_on(&mut self) {
        signal(self.sluice.pid(), Signal::CONT);
    }

    /// Kills pgsluice, which [`Rig::run`] starts again.
    pub(crate) fn end(&mut self) {
        self.note_what_is_not_covered();
        self.sluice.kill9();
        let phases = self.recorder.read();
        self.recorder.clear();
        self.tally.add(phases.hit(self.wanted), Victim::Sluice);
    }

    pub(crate) fn run(&mut self) {
        self.sluice = begin(&self.pair, &self.words);
    }

    /// Waits a moment for a phase, by the seed.
    pub(crate) fn await_phase(&mut self) {
        self.wanted = PHASES[self.random.random_range(0..PHASES.len())];
        await_phase_for(&self.recorder, self.wanted, PHASE_BOUND, &mut self.random);
    }

    /// Kills, and starts again.
    pub(crate) fn strike(&mut self, strike: Strike) {
        if strike != Strike::Sluice {
            let mut target = Conn::new(self.pair.target.url("postgres"));
            let before = recorded(&mut target);
            self.tally.add(self.recorder.read().hit(self.wanted), Victim::Target);
            self.pair.target.kill9();
            if strike == Strike::Both {
                self.sluice.kill9();
            }
            self.pair.target.start_again().expect("the target recovers");
            let mut target = Conn::new(self.pair.target.url("postgres"));
            self.lost += (before - recorded(&mut target)).max(0);
        }
        if strike != Strike::Target {
            self.end();
            self.run();
        }
    }

    /// What a reader of a failure wants to know.
    pub(crate) fn told(&self) -> String {
        let notes: String = self.notes.iter().map(|note| format!("{note}\n")).collect();
        format!("{notes}{} records of conflicts lost to crashes and made again\n", self.lost)
    }
}

/// Records that the history has.
fn recorded(target: &mut Conn) -> i64 {
    let counted = target.numbers("SELECT count(*) FROM pgsluice.conflict_history");
    counted.ok().and_then(|row| row.first().copied()).unwrap_or(0)
}

/// The command line.
fn words(settings: Combination, paths: &[&str]) -> Vec<String> {
    let mut words: Vec<String> = ARGUMENTS.split_whitespace().map(str::to_owned).collect();
    words.extend(["--subscription", NAME].map(str::to_owned));
    words.extend(settings.arguments());
    words.extend(paths.iter().map(|&word| word.to_owned()));
    for table in Table::ALL {
        for conflict in CONFLICTS {
            let rule = format!("{conflict}={}:public.{}", table.resolution(conflict), table.name());
            words.extend(["--conflict".to_owned(), rule]);
        }
    }
    words
}

fn begin(pair: &Pair, words: &[String]) -> Sluice {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = Sluice::command(pair, &words).expect("pgsluice is built");
    command.env("PGSLUICE_FLIGHT_RECORDER", pair.state_dir().join("recorder"));
    Sluice::start(command).expect("pgsluice starts")
}
