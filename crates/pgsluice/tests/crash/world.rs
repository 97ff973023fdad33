//! Both ends with pgsluice between them: how they are set up, followed, and compared in the end.

mod rounds;

use std::time::{Duration, Instant};

use base::crash_phases::Phase;
use rand::SeedableRng;
use rand::rngs::StdRng;
use testkit::matrix::Combination;
use testkit::{Cluster, Major, Pair, Patience, Proxy, Sluice, SourceMode, same_rows, wait_for};

use crate::conn::Conn;
use crate::load::{self, TABLES};
use crate::strike::{Recorder, Tally};
use crate::watch::{Claim, Watch};
use crate::{ARGUMENTS, BOUND, HITS_MIN, MOVING_BOUND, environment};

/// The events, round by round. They are printed at the end, so that a failure stands before them
/// and not after a hundred lines. A run of an hour that somebody watches prints them as it goes.
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
pub(crate) struct World {
    story: Story,
    pub(crate) pair: Pair,
    /// Between pgsluice and the target.
    link: Proxy,
    pub(crate) sluice: Sluice,
    settings: Combination,
    /// The source is read as WAL.
    decoded: bool,
    recorder: Recorder,
    random: StdRng,
    pub(crate) tally: Tally,
    rounds_min: u32,
    /// Rounds begin until then.
    until: Instant,
    /// How often each phase was wanted.
    tried: [u32; Phase::ALL.len()],
}

impl World {
    pub(crate) fn new(major: Major, seed: u64, settings: Combination, decoded: bool) -> World {
        let source = Cluster::builder(major).setting("logical_decoding_work_mem", "64kB");
        // What a crash may lose is what was not written yet: as much as the
        // server allows.
        let target = Cluster::builder(major).durable().setting("wal_writer_delay", "10s");
        let target = target.setting("wal_writer_flush_after", "1GB").setting("synchronous_commit", "off");
        let target = target.setting("wal_buffers", "32MB");
        let pair = Pair::with(source, target).expect("two clusters");
        pair.both("postgres", load::SCHEMA).expect("tables");
        pair.source.sql("postgres", &format!("{}; {}", load::rows(), load::LONG_ROWS)).expect("rows");
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
    pub(crate) fn hits_min(&self, phase: Phase) -> u32 {
        match phase {
            Phase::Look | Phase::Keep if !self.decoded => 0,
            // The first of these phases does not come again. The second comes every few seconds and
            // takes a thousandth of them, and only when the target has everything.
            Phase::Look | Phase::Keep => 1,
            _ => HITS_MIN,
        }
    }

    /// A reader of the target, from where `status` says that its states are the source's.
    pub(crate) fn watch(&self) -> Watch {
        let claim = Claim::of(self.pair.state_dir().to_owned(), "crash");
        Watch::start(self.pair.target.url("postgres"), self.settings.is_relaxed(), claim)
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

    /// Waits until what `reads` reads has reached `goal`, as long as it moves.
    fn wait_to_follow(&mut self, what: &str, goal: i64, reads: impl Fn(&World) -> Option<i64>) {
        let began = Instant::now();
        let (mut reached, mut still) = (None, Patience::new(BOUND));
        let followed = wait_for(what, MOVING_BOUND, || {
            anyhow::ensure!(self.sluice.is_running(), "pgsluice ended by itself");
            let now = reads(self);
            if now > reached {
                (reached, still) = (now, Patience::new(BOUND));
            }
            let waited = still.elapsed();
            anyhow::ensure!(!still.is_over(), "waited {waited:.0?} for {what}, which stands still");
            Ok(reached >= Some(goal))
        });
        followed.unwrap_or_else(|error| panic!("{error:#}\n{}\n{}", self.standing(), self.sluice.stderr()));
        if began.elapsed() > BOUND {
            let waited = began.elapsed().as_secs_f64();
            self.story.tell(format!("waited {waited:.0} s for {what}: a slow machine"));
        }
    }

    /// The slot's position, or the position that the target stores where there is no slot; 0 before
    /// there is any.
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

    /// Waits until every table is copied. Each is copied under a snapshot of its own. They are not
    /// at the same commit before the stream has passed the last of these snapshots.
    pub(crate) fn copied(&mut self) {
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
    pub(crate) fn copied_later(&self) -> i64 {
        let point = |table: &str| {
            format!("(SELECT consistent_point FROM pgsluice.copied_table WHERE table_name = '{table}')")
        };
        let sql = format!("SELECT {} - {}", point(crate::rewrite::TABLE), point("tally"));
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
    pub(crate) fn settle(&mut self) {
        self.pair.source.sql("postgres", "DELETE FROM victim").expect("rows to delete");
        self.caught_up();
        let status = self.sluice.terminate(Duration::from_secs(10)).expect("it ends");
        assert!(status.success(), "{status}\n{}", self.sluice.stderr());
    }

    /// Every table on both ends.
    pub(crate) fn compare(&self) -> anyhow::Result<()> {
        for table in tables(self.settings) {
            same_rows(&self.pair.source, &self.pair.target, "postgres", table)?;
        }
        Ok(())
    }

    /// A row too few, a row too many, money from nowhere: each is noticed.
    pub(crate) fn canary(&self) {
        let target = &self.pair.target;
        let relaxed = self.settings.is_relaxed();
        let look = || crate::watch::look(&mut Conn::new(target.url("postgres")), relaxed).expect("a state");
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

/// The published tables. Where transactions may overtake, `clock` is left out, because it makes
/// each transaction depend on the one before it.
pub(crate) fn tables(settings: Combination) -> Vec<&'static str> {
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
