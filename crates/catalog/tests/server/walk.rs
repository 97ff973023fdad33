//! Random DDL of several sessions, from one seed. The followed catalogs are compared with a fresh
//! look when no transaction is open, and with what the sessions see in the middle of their
//! transactions.

use base::Xid;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use testkit::{Major, StopMode};

use crate::stage::{DB, RELATIONS, Stage, Talk};

const ROUNDS: usize = 5;
const STEPS: usize = 60;
const SESSIONS: usize = 3;

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}: {text:?} is no number")),
        Err(_) => default,
    }
}

/// A statement. Some fail, because their objects do not exist or are in another state.
fn statement(rng: &mut StdRng, major: u32, serial: &mut usize) -> String {
    *serial += 1;
    let n = *serial;
    let schema = ["public", "s1", "s2"].choose(rng).unwrap();
    let table = format!("t{}", rng.random_range(0..5));
    let column = format!("c{}", rng.random_range(0..6));
    let kind =
        ["int", "bigint", "text", "numeric(10,2)", "mood", "timestamptz", "int[]", "short", "pair", "span"];
    let of_type = kind.choose(rng).unwrap();
    let publication = format!("p{}", rng.random_range(0..3));
    match rng.random_range(0..46) {
        0..4 => format!("CREATE TABLE {schema}.{table} (id int PRIMARY KEY, {column} {of_type}, z text)"),
        4 => format!(
            "CREATE TABLE {schema}.{table} (id int, {column} {of_type} NOT NULL, UNIQUE (id, {column}))"
        ),
        5..8 => format!("DROP TABLE IF EXISTS {schema}.{table} CASCADE"),
        8..11 => format!("ALTER TABLE {schema}.{table} ADD {column} {of_type}"),
        11 => format!("ALTER TABLE {schema}.{table} ADD {column} int DEFAULT {n}"),
        12 => format!("ALTER TABLE {schema}.{table} ADD {column} text NOT NULL DEFAULT 'd{n}'"),
        13..15 => format!("ALTER TABLE {schema}.{table} DROP COLUMN IF EXISTS {column}"),
        15 => format!("ALTER TABLE {schema}.{table} RENAME {column} TO c{}", rng.random_range(0..6)),
        16 => format!("ALTER TABLE {schema}.{table} ALTER {column} TYPE text"),
        17 => format!("ALTER TABLE {schema}.{table} RENAME TO t{}", rng.random_range(0..8)),
        18 => {
            format!("ALTER TABLE {schema}.{table} SET SCHEMA {}", ["public", "s1", "s2"].choose(rng).unwrap())
        }
        19 => format!(
            "ALTER TABLE {schema}.{table} REPLICA IDENTITY {}",
            ["FULL", "DEFAULT", "NOTHING"].choose(rng).unwrap()
        ),
        20 => format!("TRUNCATE {schema}.{table}"),
        21..23 => {
            format!("INSERT INTO {schema}.{table} (id, z) SELECT n, 'r' FROM generate_series({n}00, {n}03) n")
        }
        23 => format!("CREATE INDEX ON {schema}.{table} (id)"),
        24 => format!("CREATE PUBLICATION {publication} FOR TABLE {schema}.{table}"),
        25 if major >= 15 => {
            format!("CREATE PUBLICATION {publication} FOR TABLE {schema}.{table} (id) WHERE (id > {n})")
        }
        26 if major >= 15 => format!("ALTER PUBLICATION {publication} ADD TABLES IN SCHEMA {schema}"),
        27 => format!("ALTER PUBLICATION {publication} SET TABLE {schema}.{table}"),
        28 => format!(
            "ALTER PUBLICATION {publication} SET (publish = 'insert', publish_via_partition_root = {})",
            n.is_multiple_of(2)
        ),
        29 => format!("DROP PUBLICATION IF EXISTS {publication}"),
        30 => format!("CREATE PUBLICATION {publication} FOR ALL TABLES"),
        31 => format!("ALTER TYPE mood ADD VALUE 'm{n}'"),
        32 => format!(
            "CREATE TYPE e{n} AS ENUM ('a', 'b'); CREATE DOMAIN d{n} AS e{n}; CREATE TABLE of_e{n} (id d{n})"
        ),
        33 => format!("ALTER TYPE pair ADD ATTRIBUTE a{n} text CASCADE"),
        34 => format!(
            "CREATE TABLE parted{n} (id int, v text) PARTITION BY RANGE (id); \
             CREATE TABLE parted{n}_1 PARTITION OF parted{n} FOR VALUES FROM (0) TO (100)"
        ),
        35 => format!("CREATE TEMP TABLE temp{n} (id serial, v text)"),
        36 => format!("CREATE MATERIALIZED VIEW {schema}.v{n} AS SELECT * FROM pg_class LIMIT 3"),
        37 => format!("COMMENT ON TABLE {schema}.{table} IS 'comment {n}'"),
        38 => format!("CREATE SCHEMA more{n} CREATE TABLE inside (id int)"),
        39 => format!("GRANT SELECT ON {schema}.{table} TO PUBLIC"),
        40 => {
            format!("CLUSTER {} USING {}", CLUSTERED[n % CLUSTERED.len()].0, CLUSTERED[n % CLUSTERED.len()].1)
        }
        41 => format!("ANALYZE {schema}.{table}"),
        _ => format!("CREATE VIEW {schema}.w{n} AS SELECT {n} AS id"),
    }
}

/// Catalogs that a transaction may rewrite, each with one of its indexes.
const CLUSTERED: [(&str, &str); 7] = [
    ("pg_class", "pg_class_oid_index"),
    ("pg_attribute", "pg_attribute_relid_attnum_index"),
    ("pg_type", "pg_type_oid_index"),
    ("pg_index", "pg_index_indrelid_index"),
    ("pg_namespace", "pg_namespace_oid_index"),
    ("pg_publication_rel", "pg_publication_rel_oid_index"),
    ("pg_enum", "pg_enum_oid_index"),
];

/// Statements outside of transactions.
const UPKEEP: [&str; 12] = [
    "CHECKPOINT",
    "CHECKPOINT",
    "VACUUM pg_class",
    "VACUUM pg_attribute",
    "VACUUM FREEZE pg_type",
    "VACUUM FULL pg_class",
    "VACUUM FULL pg_attribute",
    "VACUUM FULL pg_publication_rel",
    "VACUUM FULL pg_namespace",
    "VACUUM (INDEX_CLEANUP on) pg_depend",
    "REINDEX TABLE pg_class",
    "ANALYZE",
];

const PREPARE: &str = "CREATE SCHEMA s1; CREATE SCHEMA s2; CREATE TYPE mood AS ENUM ('sad', 'ok'); \
    CREATE DOMAIN short AS text CHECK (length(value) < 9); CREATE TYPE pair AS (x int, y text); \
    CREATE TYPE span AS RANGE (subtype = float8); \
    SELECT format('CREATE TABLE %I.t%s (id int PRIMARY KEY, c%s int, z text)', s, t, t) \
      FROM unnest(ARRAY['public', 's1', 's2']) s, generate_series(0, 4) t";

/// A session with the state of its transaction.
struct Walker<'a> {
    talk: Talk<'a>,
    /// Whether it is in a transaction, and the savepoints there.
    inside: bool,
    savepoints: usize,
}

impl Walker<'_> {
    fn new(talk: Talk<'_>) -> Walker<'_> {
        // Another session may hold a lock until its transaction ends. Then the statement fails and
        // the walk goes on.
        talk.sql(
            "SET lock_timeout = '40ms'; SET client_min_messages = 'error'; SET statement_timeout = '30s'",
        );
        Walker { talk, inside: false, savepoints: 0 }
    }

    fn step(&mut self, rng: &mut StdRng, major: u32, serial: &mut usize) {
        if !self.inside {
            self.talk.sql("BEGIN");
            self.inside = true;
            return;
        }
        match rng.random_range(0..10) {
            0 => self.end(if rng.random_bool(0.7) { "COMMIT" } else { "ROLLBACK" }),
            1 => {
                self.talk.sql(&format!("SAVEPOINT s{}", self.savepoints));
                self.savepoints += 1;
            }
            2 if self.savepoints > 0 => {
                self.savepoints = rng.random_range(0..self.savepoints);
                self.talk.sql(&format!("ROLLBACK TO s{}; RELEASE s{}", self.savepoints, self.savepoints));
            }
            3 if self.savepoints > 0 => {
                self.savepoints = rng.random_range(0..self.savepoints);
                self.talk.sql(&format!("RELEASE s{}", self.savepoints));
            }
            _ => {
                let sql = statement(rng, major, serial);
                self.talk.sql("SAVEPOINT try");
                let tried = self.talk.try_sql(&sql);
                self.talk.sql(if tried.is_ok() { "RELEASE try" } else { "ROLLBACK TO try; RELEASE try" });
            }
        }
    }

    fn end(&mut self, how: &str) {
        if self.inside {
            self.talk.sql(how);
        }
        self.inside = false;
        self.savepoints = 0;
    }

    /// The id of its transaction, if that has one.
    fn xid(&self) -> Xid {
        let text = self.talk.one("SELECT pg_current_xact_id_if_assigned()::xid");
        text.parse().map_or(Xid::INVALID, Xid)
    }
}

fn walk(major: Major, seed: u64, rounds: usize) {
    let mut rng = StdRng::seed_from_u64(seed);
    let cluster = crate::stage::builder(major).setting("max_prepared_transactions", "5");
    let cluster = cluster.setting("allow_system_table_mods", "off").start().unwrap();
    for row in cluster.sql(DB, PREPARE).unwrap() {
        cluster.sql(DB, row[0].as_ref().unwrap()).unwrap();
    }
    let mut stage = Stage::look(cluster, &[DB]);
    let (mut serial, mut views) = (0, 0);
    for round in 0..rounds {
        let where_ = format!("seed {seed}, round {round}");
        let runtime = Stage::runtime();
        let url = stage.cluster.url(DB);
        // Connected before a walker locks a catalog, because a new session would wait for that lock
        // without end. Its own statements wait for a walker's lock only this long.
        let upkeep = Talk::connect(&runtime, &url);
        upkeep.sql("SET lock_timeout = '40ms'");
        let mut walkers: Vec<_> = (0..SESSIONS).map(|_| Walker::new(Talk::connect(&runtime, &url))).collect();
        for step in 0..STEPS {
            let at = rng.random_range(0..walkers.len());
            walkers[at].step(&mut rng, major.number(), &mut serial);
            if rng.random_bool(0.08) {
                let _ = upkeep.try_sql(UPKEEP.choose(&mut rng).unwrap());
            }
            if step % 9 == 8 {
                views += check_views(&mut stage, &walkers, &where_);
            }
        }
        for walker in &mut walkers {
            let how = if rng.random_bool(0.5) { "COMMIT" } else { "ROLLBACK" };
            walker.end(how);
        }
        drop((walkers, upkeep));
        if round % 3 == 1 {
            crash(&mut stage, &runtime, &mut serial);
        }
        stage.check(&where_);
    }
    println!(
        "{major}: seed {seed}: {} records ({} resolved), {serial} statements, {views} views",
        stage.records, stage.resolved
    );
    assert!(views > rounds * 6 && serial > rounds * STEPS / 4, "{views} views, {serial} statements");
}

/// Kills the server in the middle of transactions that changed catalogs.
fn crash(stage: &mut Stage, runtime: &tokio::runtime::Runtime, serial: &mut usize) {
    *serial += 1;
    let url = stage.cluster.url(DB);
    let lost = Talk::connect(runtime, &url);
    lost.sql(&format!(
        "BEGIN; CREATE TABLE lost{serial} (id int); SAVEPOINT a; ALTER TABLE lost{serial} ADD v text"
    ));
    // The records reach the disk with the next commit.
    stage.sql(&format!("CREATE TABLE kept{serial} (id int)"));
    stage.catch_up();
    stage.restart(StopMode::Immediate);
}

/// Checks that each session sees what we say that it sees. Returns how many sessions could look;
/// none can while a catalog is locked.
fn check_views(stage: &mut Stage, walkers: &[Walker<'_>], where_: &str) -> usize {
    stage.catch_up();
    let mut views = 0;
    for walker in walkers {
        if walker.inside {
            walker.talk.sql("SAVEPOINT look");
        }
        let rows = walker.talk.try_sql(RELATIONS);
        if walker.inside {
            walker.talk.sql("ROLLBACK TO look; RELEASE look");
        }
        if let Ok(rows) = rows {
            stage.compare_view(&rows, walker.xid(), where_);
            views += 1;
        }
    }
    views
}

/// `PGSLUICE_CATALOG_SEED` and `PGSLUICE_CATALOG_ROUNDS` set seed and length.
#[test]
fn a_random_walk_of_ddl_is_followed() {
    let seed = number("PGSLUICE_CATALOG_SEED", rand::random::<u32>().into());
    let rounds = number("PGSLUICE_CATALOG_ROUNDS", ROUNDS as u64) as usize;
    for major in Major::under_test() {
        println!("{major}: PGSLUICE_CATALOG_SEED={seed} PGSLUICE_CATALOG_ROUNDS={rounds}");
        walk(major, seed, rounds);
    }
}
