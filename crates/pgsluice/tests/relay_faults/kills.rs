//! Kills of the relay, the publisher and its subscribers, at random moments under load.
//!
//! Six subscriptions with different options follow two databases. Their first copies are still
//! under way when the first kill comes. In the end every table of every subscriber equals the
//! publisher's, and nothing in the relay's directory was ever missing that a slot names.

use std::fmt;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::{Cluster, Major, same_rows, wait_for, wait_while_it_moves};

use crate::conn::Conn;
use crate::kept::Kept;
use crate::load::{self, Kind, Load, TABLES};
use crate::lost_end::{LostEnd, copy_again};
use crate::stage::{
    BOUND, Stage, answers, database, is_ready, publish, publisher, run, subscribe, subscriber, wait,
};

/// Kills of a run without `PGSLUICE_RELAY_KILLS`.
pub(crate) const KILLS: u64 = 12;
/// The publisher's databases, and those of each subscriber.
const DATABASES: [&str; 2] = ["one", "two"];

/// The process that a kill ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Victim {
    Relay,
    Publisher,
    Subscriber(usize),
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Victim::Relay => f.write_str("relay"),
            Victim::Publisher => f.write_str("publisher"),
            Victim::Subscriber(number) => write!(f, "subscriber {number}"),
        }
    }
}

/// The options of the subscription of a subscriber in a database, as far as the major has them.
fn options(major: Major, subscriber: usize, db: &str) -> String {
    let since = |least: Major, option: &'static str| if major >= least { option } else { "" };
    let all: [&str; 2] = match (subscriber, db) {
        (0, "one") => ["binary = true", "streaming = off"],
        (0, _) => ["streaming = off", since(Major::V15, "two_phase = on")],
        (1, "one") => ["streaming = on", since(Major::V15, "two_phase = on")],
        (2, "one") => [if major >= Major::V16 { "streaming = parallel" } else { "streaming = on" }, ""],
        // Two of one form.
        _ => ["binary = true", since(Major::V16, "origin = none")],
    };
    let all = all.into_iter().chain(["synchronous_commit = on"]);
    all.filter(|option| !option.is_empty()).collect::<Vec<_>>().join(", ")
}

struct World {
    stage: Stage,
    subscribers: Vec<Cluster>,
    random: StdRng,
    kept: Kept,
    /// What was done, printed at the end.
    story: Vec<String>,
}

impl World {
    fn new(major: Major, seed: u64) -> World {
        let (publisher, subscribers) = std::thread::scope(|scope| {
            let publisher = scope.spawn(|| publisher(major));
            let subscribers = (0..3).map(|_| subscriber(major)).collect::<Vec<_>>();
            (publisher.join().unwrap(), subscribers)
        });
        for db in DATABASES {
            run(&publisher, "postgres", &format!("CREATE DATABASE {db}"));
            publish(&publisher, db);
            run(&publisher, db, load::SCHEMA);
            run(&publisher, db, load::ROWS);
            for cluster in &subscribers {
                database(cluster, db);
                run(cluster, db, load::SCHEMA);
                run(cluster, db, &load::columns());
            }
        }
        let source = publisher.url("postgres");
        let stage = Stage::beside(publisher, &source, None, "");
        let kept = Kept::new(stage.data_dir());
        let random = StdRng::seed_from_u64(seed);
        World { stage, subscribers, random, kept, story: Vec::new() }
    }

    fn load(&self, seed: u64) -> Load {
        let mut load = Load::new();
        let kinds = [Kind::Small, Kind::TwoPhase, Kind::Small, Kind::Large, Kind::Ddl];
        for (db, kinds) in [("one", &kinds[..]), ("two", &kinds[..2])] {
            for kind in kinds {
                load.add(self.stage.publisher.url(db), *kind, seed);
            }
        }
        load
    }

    fn subscribe(&self) {
        let major = self.stage.publisher.major();
        for (number, cluster) in self.subscribers.iter().enumerate() {
            for db in DATABASES {
                let name = format!("s{number}_{db}");
                let options = options(major, number, db);
                subscribe(cluster, (db, &name), (self.stage.port, db), &options);
            }
        }
    }

    /// The relay and the publisher are met more often than each subscriber.
    fn victim(&mut self) -> Victim {
        match self.random.random_range(0..10) {
            0..5 => Victim::Relay,
            5..7 => Victim::Publisher,
            number => Victim::Subscriber(number - 7),
        }
    }

    /// Kills after a while, and starts again.
    fn round(&mut self) {
        let begun = Instant::now();
        let until = begun + Duration::from_millis(self.random.random_range(200..1_300));
        let victim = self.victim();
        while Instant::now() < until {
            self.kept.look().unwrap_or_else(|why| panic!("{why}"));
            // Between two looks.
            std::thread::sleep(Duration::from_millis(5));
        }
        match victim {
            Victim::Relay => {
                self.stage.kill_relay();
                self.kept.look_when_down().unwrap_or_else(|why| panic!("{why}"));
                self.stage.start_relay();
            }
            Victim::Publisher => {
                self.stage.publisher.kill9();
                self.stage.publisher.start_again().unwrap();
            }
            Victim::Subscriber(number) => {
                self.subscribers[number].kill9();
                self.subscribers[number].start_again().unwrap();
            }
        }
        assert!(self.stage.relay.is_running(), "the relay ended by itself:\n{}", self.stage.relay.stderr());
        let back = begun.elapsed().as_secs_f64();
        self.story.push(format!("{victim} was killed, and was back after {back:.1} s"));
    }

    fn ends(&self) -> impl Iterator<Item = (&Cluster, &'static str)> {
        self.subscribers.iter().flat_map(|cluster| DATABASES.map(|db| (cluster, db)))
    }

    /// Waits until every subscriber has everything, and its tables are ready.
    fn settle(&self) {
        for db in DATABASES {
            let mark = self.stage.publisher.one(db, "INSERT INTO mark DEFAULT VALUES RETURNING id");
            let sql = format!("SELECT count(*) FROM mark WHERE id = {mark}");
            for cluster in &self.subscribers {
                let rows = || cluster.sql(db, "SELECT count(*) FROM ledger").ok();
                let is_level = || Ok(answers(cluster, db, &sql, "1"));
                wait_while_it_moves("a subscriber to be level", BOUND, is_level, rows)
                    .unwrap_or_else(|error| panic!("{error:#}, in {db}:\n{}", last_lines(&cluster.log())));
            }
        }
        for (cluster, db) in self.ends() {
            wait_for("every table to be ready", BOUND, || Ok(self.is_ready(cluster, db)))
                .unwrap_or_else(|error| panic!("{error:#}, in {db}:\n{}", self.tables(cluster, db)));
            let prepared = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()";
            wait("no prepared transaction", || answers(cluster, db, prepared, "0"));
        }
    }

    /// Whether all tables are ready. A copy whose end a killed subscriber lost by itself is made
    /// again; a slot that nobody dropped must be there.
    fn is_ready(&self, cluster: &Cluster, db: &str) -> bool {
        for lost in LostEnd::all(cluster, db) {
            let slot = &lost.slot;
            assert!(self.stage.was_dropped(slot), "nobody dropped {slot}:\n{}", self.tables(cluster, db));
            println!("a subscriber of {db} lost the end of a copy: its slot was {slot}");
            copy_again(cluster, db, &lost);
        }
        is_ready(cluster, db)
    }

    /// What a subscriber and the publisher say of a first copy that does not end.
    fn tables(&self, cluster: &Cluster, db: &str) -> String {
        let states = "SELECT subname, s.oid, srrelid, srrelid::regclass, srsubstate, srsublsn \
                        FROM pg_subscription_rel JOIN pg_subscription s ON s.oid = srsubid";
        let workers = "SELECT subname, pid, relid, received_lsn, last_msg_receipt_time, now() \
                         FROM pg_stat_subscription";
        let activity = "SELECT pid, backend_type, state, wait_event, backend_start, left(query, 200) \
                          FROM pg_stat_activity WHERE datname IS NOT NULL";
        let asked = [(cluster, states), (cluster, workers), (cluster, activity)];
        let publisher = &self.stage.publisher;
        let asked = asked.into_iter().chain([(publisher, activity)]);
        let rows = asked.flat_map(|(end, sql)| end.sql(db, sql).unwrap_or_default());
        let line = |row: Vec<Option<String>>| {
            row.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>().join(" | ")
        };
        let rows = rows.map(line).collect::<Vec<_>>().join("\n");
        format!("{rows}\n{}", last_lines(&cluster.log()))
    }

    /// What subscribers and the relay know of their positions.
    fn positions(&self) -> String {
        let sql = "SELECT subname, remote_lsn FROM pg_subscription \
                     JOIN pg_replication_origin_status ON external_id = 'pg_' || pg_subscription.oid";
        let origins = self.subscribers.iter().map(|cluster| cluster.sql("postgres", sql));
        let slots = std::fs::read_dir(self.stage.data_dir().join("slots")).unwrap();
        let slots = slots.filter_map(|slot| std::fs::read_to_string(slot.ok()?.path()).ok());
        format!("{:?}\n{}", origins.collect::<Vec<_>>(), slots.collect::<Vec<_>>().join("\n"))
    }

    /// Compares everything, and tells all differences at once.
    fn compare(&self) {
        let publisher = &self.stage.publisher;
        let mut differences = Vec::new();
        for (number, cluster) in self.subscribers.iter().enumerate() {
            for (db, table) in DATABASES.iter().flat_map(|db| TABLES.map(|table| (*db, table))) {
                if let Err(error) = same_rows(publisher, cluster, db, table) {
                    differences.push(format!("subscriber {number}, {db}: {error:#}"));
                }
            }
        }
        assert!(differences.is_empty(), "{}\n{}", differences.join("\n"), self.positions());
        for (cluster, db) in self.ends() {
            let totals = "SELECT count(*), count(DISTINCT (worker, seq)), sum(n) FROM ledger";
            let [ours, theirs] =
                [publisher, cluster].map(|end| Conn::new(end.url(db)).numbers(totals).unwrap());
            assert_eq!(ours, theirs, "ledger of {db}");
            assert_eq!(theirs[0], theirs[1], "transactions came twice in {db}");
        }
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// Kills of everybody cost nothing.
///
/// Fails if `Cursor` begins behind the subscriber's position, if `Walsender` takes what was handed
/// over for confirmed, or if the receiver goes on behind WAL that it does not have.
#[test]
fn subscribers_end_equal_whatever_is_killed() {
    let (seed, kills) = (crate::seed(), crate::environment("PGSLUICE_RELAY_KILLS"));
    let mut majors = Major::in_turn();
    if kills.is_none() {
        majors = vec![majors[seed as usize % majors.len()]];
    }
    let kills = kills.unwrap_or(KILLS);
    for major in majors {
        println!("PostgreSQL {major}: PGSLUICE_RELAY_SEED={seed}");
        let started = Instant::now();
        let mut world = World::new(major, seed);
        let load = world.load(seed);
        world.subscribe();
        let began = started.elapsed().as_secs_f64();
        for _ in 0..kills {
            world.round();
        }
        let tried = load.stop();
        let killed = started.elapsed().as_secs_f64();
        println!("{}", world.story.join("\n"));
        world.settle();
        world.compare();
        world.stage.kill_relay();
        world.kept.look_when_down().unwrap_or_else(|why| panic!("{why}"));
        println!(
            "{tried} transactions; begun after {began:.0} s, {kills} kills until {killed:.0} s, level and compared after {:.0} s",
            started.elapsed().as_secs_f64()
        );
        assert!(world.kept.looks > 100, "{} looks", world.kept.looks);
    }
}
