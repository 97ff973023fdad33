//! Sessions that change rows and tables at the same time, from one seed.
//!
//! One driver does one thing after the other, so a seed gives the same interleaving. A statement
//! that needs a lock of another session fails at once, and the failure is part of the walk. Two
//! kinds of rounds alternate. In one, a decoder begins with a look in the middle of the work. The
//! other ends with a crash of the server while transactions are open and prepared. After each
//! round, the server's output and ours are compared.

use base::Lsn;
use catalog::Catalog;
use output::Streaming;
use rand::SeedableRng;
use rand::rngs::StdRng;
use testkit::Major;

use crate::census::{Census, Trap, Traps};
use crate::compare::Tally;
use crate::server::bytes;
use crate::stage::{DB, Form, LOOK, PLAIN, Stage, TWO_PHASE, Talk, builder, look};
use crate::statements::Statements;

const SESSIONS: u32 = 5;

/// The forms in which the walk is decoded.
fn forms(major: Major) -> Vec<Form> {
    let is_16 = major >= Major::V16;
    let two_phase = if is_16 { (4, Streaming::Parallel) } else { (3, Streaming::On) };
    vec![
        Form::new("v1, text", PLAIN, 1, &["p_all"]).messages(),
        Form::new("v1, binary, lists and filters, spilled", PLAIN, 1, &["p_list", "p_ins", "p_upd"])
            .binary()
            .memory(16 << 10),
        Form::new("v2, streamed, as roots", PLAIN, 2, &["p_root"]).streaming(Streaming::On).memory(8 << 10),
        Form::new("two-phase, streamed", TWO_PHASE, two_phase.0, &["p_all"])
            .streaming(two_phase.1)
            .messages()
            .memory(8 << 10),
        Form::new("two-phase, binary, schemas, local", TWO_PHASE, 3, &["p_schema", "p_list"])
            .binary()
            .origin_none(is_16),
    ]
}

/// What was walked and compared.
#[derive(Debug, Clone, Default)]
pub(crate) struct Walked {
    /// Transactions of all kinds that ended on the server.
    pub(crate) transactions: u64,
    /// Over all forms.
    pub(crate) compared: Tally,
    pub(crate) traps: Traps,
    pub(crate) wal_bytes: u64,
    pub(crate) statements: u64,
    pub(crate) failed: u64,
}

impl Walked {
    pub(crate) fn absorb(&mut self, other: &Walked) {
        self.transactions += other.transactions;
        self.compared += other.compared;
        self.traps.absorb(&other.traps);
        self.wal_bytes += other.wal_bytes;
        self.statements += other.statements;
        self.failed += other.failed;
    }
}

/// Everything that was sent to the server, so that a difference can be investigated.
#[derive(Default)]
struct Log {
    lines: Vec<String>,
    failed: u64,
}

impl Log {
    fn note(&mut self, who: u32, sql: &str, done: &Result<(), String>) {
        let how = match done {
            Ok(()) => String::new(),
            Err(error) => {
                self.failed += 1;
                format!("  -- {error}")
            }
        };
        self.lines.push(format!("/* {who} */ {sql};{how}"));
    }
}

/// A session with the state of its transaction.
struct Walker {
    number: u32,
    talk: Talk,
    is_open: bool,
    has_ddl: bool,
    savepoints: u32,
}

struct Walk {
    stage: Stage,
    census: Census,
    statements: Statements,
    log: Log,
    walkers: Vec<Walker>,
    upkeep: Option<Talk>,
    /// Prepared transactions, and whether the server has crashed since.
    prepared: Vec<(String, bool)>,
}

const SESSION: &str =
    "SET lock_timeout = '15ms'; SET client_min_messages = 'error'; SET statement_timeout = '60s'";

/// Walks as many rounds as `go_on` says, which is handed what was walked so far. Ends at the first
/// difference and reports it.
pub(crate) fn walk(
    major: Major,
    seed: u64,
    go_on: impl Fn(usize, &Walked) -> bool,
    steps: usize,
) -> (Walked, Option<String>) {
    let cluster = builder(major).start().unwrap();
    cluster.sql(DB, include_str!("world.sql")).unwrap();
    let stage = Stage::new(cluster, &forms(major));
    let from = stage.ours[0].alone().position();
    let mut walk = Walk {
        census: Census::new(stage.database, from),
        statements: Statements::new(StdRng::seed_from_u64(seed), major.number()),
        log: Log::default(),
        walkers: Vec::new(),
        upkeep: None,
        prepared: Vec::new(),
        stage,
    };
    let mut walked = Walked::default();
    let mut round = 0;
    let mut difference = None;
    while difference.is_none() && go_on(round, &walked) {
        match walk.round(round, steps) {
            Ok(tally) => walked.compared += tally,
            Err(found) => difference = Some(walk.tell(major, seed, round, &found)),
        }
        walked.transactions = walk.census.transactions;
        walked.traps = walk.census.traps.clone();
        walked.statements = walk.log.lines.len() as u64;
        walked.failed = walk.log.failed;
        walked.wal_bytes = walk.census.position().as_u64() - from.as_u64();
        round += 1;
    }
    (walked, difference)
}

impl Walk {
    /// Reports a difference, which ends the run: seed, place, both messages, and what was done.
    fn tell(&self, major: Major, seed: u64, round: usize, difference: &str) -> String {
        let path = std::env::temp_dir().join(format!("pgsluice-conformance-{major}-{seed}.sql"));
        std::fs::write(&path, self.log.lines.join("\n")).unwrap();
        for (sent, whose) in self.stage.differing.iter().flatten().zip(["ours", "theirs"]) {
            std::fs::write(path.with_extension(whose), crate::message::tell(sent)).unwrap();
        }
        let last: Vec<_> = self.log.lines.iter().rev().take(30).rev().cloned().collect();
        format!(
            "{major}: seed {seed}, round {round}, statement {}: {difference}\n\nthe last statements (all: {}; beside it what both sent):\n{}",
            self.log.lines.len(),
            path.display(),
            last.join("\n")
        )
    }

    fn round(&mut self, round: usize, steps: usize) -> Result<Tally, String> {
        let looks = round.is_multiple_of(2);
        self.connect();
        if looks {
            self.resolve_all();
        }
        let look_at = self.statements.below(steps as u32) as usize;
        let mut looking = None;
        for step in 0..steps {
            if looks && step == look_at {
                looking = Some(self.look()?);
            }
            self.step();
        }
        let crashes = !looks;
        if crashes {
            self.open_all();
        } else {
            self.end_all();
            self.resolve_all();
        }
        let catalog = looking.map(|looking| looking.join().expect("a look does not panic")).transpose()?;
        if crashes {
            // Brings the records of open transactions to disk. Without that, there would be nothing
            // to notice.
            self.stage.position();
            self.walkers.clear();
            self.upkeep = None;
            self.stage.crash();
            self.prepared.iter_mut().for_each(|(_, crashed)| *crashed = true);
        }
        self.compare(catalog)
    }

    fn connect(&mut self) {
        while self.walkers.len() < SESSIONS as usize {
            let number = self.walkers.len() as u32;
            let talk = self.stage.talk();
            talk.sql(SESSION);
            self.walkers.push(Walker { number, talk, is_open: false, has_ddl: false, savepoints: 0 });
        }
        if self.upkeep.is_none() {
            let upkeep = self.stage.talk();
            upkeep.sql(SESSION);
            self.upkeep = Some(upkeep);
        }
    }

    fn compare(&mut self, catalog: Option<Catalog>) -> Result<Tally, String> {
        let pieces = [1 << 20, 8192, 4096, 777, 64];
        let piece = pieces[self.statements.below(5) as usize];
        let together = (self.statements.below(2) > 0).then(|| self.statements.below(u32::MAX).into());
        let before = self.counters();
        let moves = self.stage.moves;
        let (to, mut tally) = self.stage.compare(piece, together)?;
        self.census.traps.add(Trap::JoinedPass, self.stage.moves.joined - moves.joined);
        self.census.traps.add(Trap::LeftPass, self.stage.moves.split - moves.split);
        let from = self.census.position();
        self.census.read(&bytes(&self.stage.cluster, from, to, 1));
        for (ours, theirs) in self.stage.ours.iter().zip(&self.stage.theirs) {
            self.census.messages(theirs, &ours.kept);
        }
        let spilled = self.counters() - before;
        self.census.traps.add(Trap::WeSpilled, spilled);
        if let Some(catalog) = catalog {
            tally += self.compare_from(&catalog, to)?;
        }
        self.stage.confirm(to);
        Ok(tally)
    }

    fn counters(&self) -> u64 {
        self.stage.ours.iter().map(|ours| ours.alone().counters().reorder.spill_txns).sum()
    }

    /// Compares decoders that begin with a look: each form that streams or spills, with little
    /// memory and with much, in pieces of other sizes.
    fn compare_from(&mut self, catalog: &Catalog, to: Lsn) -> Result<Tally, String> {
        let mut tally = Tally::default();
        let forms: Vec<Form> = self.stage.ours.iter().map(|ours| ours.form.clone()).collect();
        let at = self.statements.below(forms.len() as u32) as usize;
        for our_memory in [1 << 10, 64 << 20] {
            let form = Form { our_memory, ..forms[at].clone() };
            let piece = 1 + self.statements.below(20_000) as usize;
            tally += self.stage.compare_from(&form, catalog, to, piece)?;
        }
        Ok(tally)
    }

    fn step(&mut self) {
        if self.statements.chance(4) {
            let sql = self.statements.upkeep();
            let done = self.upkeep.as_ref().expect("connected").try_sql(sql);
            let is_rewrite = sql.starts_with("VACUUM FULL pg_") && done.is_ok();
            self.census.traps.add(Trap::CatalogRewrittenByUpkeep, is_rewrite.into());
            self.log.note(99, sql, &done);
        }
        if !self.prepared.is_empty() && self.statements.chance(15) {
            let at = self.statements.below(self.prepared.len() as u32) as usize;
            self.resolve(at);
        }
        let at = self.statements.below(SESSIONS) as usize;
        if self.walkers[at].is_open {
            self.inside(at);
        } else {
            self.outside(at);
        }
    }

    /// Sends a statement in a session. An error ends its transaction.
    fn say(&mut self, at: usize, sql: &str) -> bool {
        let walker = &mut self.walkers[at];
        let done = walker.talk.try_sql(sql);
        self.log.note(walker.number, sql, &done);
        if done.is_err() {
            walker.talk.sql("ROLLBACK");
            self.log.note(walker.number, "ROLLBACK", &Ok(()));
            (walker.is_open, walker.savepoints, walker.has_ddl) = (false, 0, false);
        }
        done.is_ok()
    }

    fn copy(&mut self, at: usize) {
        let sql = self.statements.copy(at as u32);
        self.say(at, &sql);
    }

    /// Between transactions: runs some whole ones at once, or the first statement of one that stays
    /// open.
    fn outside(&mut self, at: usize) {
        let session = at as u32;
        match self.statements.below(100) {
            0..62 => {
                let batch = self.batch(session);
                self.say(at, &batch);
            }
            62..78 => self.begin(at),
            78..83 => self.prepare(at),
            83..87 => self.copy(at),
            87..91 => {
                let sql = self.statements.rewrite();
                let end = if self.statements.chance(75) { "COMMIT" } else { "ROLLBACK" };
                let is_done = self.say(at, &format!("BEGIN; {sql}; {end}"));
                self.census.traps.add(Trap::CatalogRewrittenBeforeOwnDdl, is_done.into());
            }
            91..95 => {
                let sql = self.statements.many(session);
                let end = if self.statements.chance(80) { "COMMIT" } else { "ROLLBACK" };
                self.say(at, &format!("BEGIN; {sql}; {end}"));
            }
            95..98 => self.as_if_from_origin(at),
            _ => {
                let sql = self.statements.race();
                self.say(at, &sql);
            }
        }
    }

    /// Some whole transactions for one round trip.
    fn batch(&mut self, session: u32) -> String {
        self.statements.alone = self.prepared.is_empty() && self.walkers.iter().all(|walker| !walker.is_open);
        let mut parts = Vec::new();
        for _ in 0..2 + self.statements.below(7) {
            parts.push("BEGIN".to_owned());
            for _ in 0..1 + self.statements.below(3) {
                parts.push(self.statements.statement(session));
            }
            if self.statements.chance(20) {
                let back = if self.statements.chance(60) { "ROLLBACK TO a; " } else { "" };
                let inner = self.statements.statement(session);
                parts.push(format!(
                    "SAVEPOINT a; {inner}; {back}RELEASE a; {}",
                    self.statements.statement(session)
                ));
            }
            parts.push(if self.statements.chance(88) { "COMMIT" } else { "ROLLBACK" }.to_owned());
        }
        self.statements.alone = false;
        parts.join("; ")
    }

    fn begin(&mut self, at: usize) {
        let first = self.statements.statement(at as u32);
        self.walkers[at].is_open = true;
        self.say(at, &format!("BEGIN; {first}"));
    }

    fn inside(&mut self, at: usize) {
        let (session, savepoints) = (at as u32, self.walkers[at].savepoints);
        match self.statements.below(100) {
            0..16 => self.end(at),
            16..30 => {
                self.say(at, &format!("SAVEPOINT s{savepoints}"));
                self.walkers[at].savepoints += u32::from(self.walkers[at].is_open);
            }
            30..40 if savepoints > 0 => {
                let to = self.statements.below(savepoints);
                self.walkers[at].savepoints = to;
                self.say(at, &format!("ROLLBACK TO s{to}; RELEASE s{to}"));
            }
            40..46 if savepoints > 0 => {
                let to = self.statements.below(savepoints);
                self.walkers[at].savepoints = to;
                self.say(at, &format!("RELEASE s{to}"));
            }
            46..50 => self.copy(at),
            50..54 => {
                let sql = self.statements.many(session);
                self.say(at, &sql);
            }
            54..62 => {
                let sql = self.statements.definition(session);
                self.say(at, &format!("SELECT conf.try($q${sql}$q$)"));
                self.walkers[at].has_ddl = self.walkers[at].is_open;
            }
            _ => {
                let sql = self.statements.statement(session);
                self.say(at, &sql);
            }
        }
    }

    fn end(&mut self, at: usize) {
        let how = if self.statements.chance(75) { "COMMIT" } else { "ROLLBACK" };
        self.say(at, how);
        let walker = &mut self.walkers[at];
        (walker.is_open, walker.savepoints, walker.has_ddl) = (false, 0, false);
    }

    fn prepare(&mut self, at: usize) {
        // Each prepared transaction holds locks until a session ends it.
        if self.prepared.len() >= 4 {
            return self.resolve(0);
        }
        let gid = format!("gid {}", self.statements.serial());
        let mut sql = "BEGIN".to_owned();
        for _ in 0..1 + self.statements.below(4) {
            let statement = if self.statements.chance(85) {
                self.statements.rows(at as u32)
            } else {
                self.statements.statement(at as u32)
            };
            sql.push_str(&format!("; SELECT conf.try($r${statement}$r$)"));
        }
        if self.statements.chance(20) {
            sql.push_str(&format!("; {}", self.statements.many(at as u32)));
        }
        if self.say(at, &format!("{sql}; PREPARE TRANSACTION '{gid}'")) {
            self.prepared.push((gid, false));
        }
    }

    fn resolve(&mut self, which: usize) {
        let (gid, crashed) = self.prepared.swap_remove(which);
        let how = if self.statements.chance(70) { "COMMIT" } else { "ROLLBACK" };
        let sql = format!("{how} PREPARED '{gid}'");
        let done = self.upkeep.as_ref().expect("connected").try_sql(&sql);
        self.log.note(99, &sql, &done);
        done.unwrap_or_else(|error| panic!("{error} in: {sql}"));
        self.census.traps.add(Trap::PreparedAcrossCrash, crashed.into());
    }

    fn resolve_all(&mut self) {
        while !self.prepared.is_empty() {
            self.resolve(0);
        }
    }

    fn end_all(&mut self) {
        for at in 0..self.walkers.len() {
            if self.walkers[at].is_open {
                self.end(at);
            }
        }
    }

    /// Opens a transaction in each session that a crash will take away, and prepares one that it
    /// will not.
    fn open_all(&mut self) {
        for at in 0..self.walkers.len() {
            if !self.walkers[at].is_open {
                self.begin(at);
            }
            let (key, made) = (self.statements.below(40), self.statements.serial());
            if self.walkers[at].is_open {
                self.say(at, &format!("SAVEPOINT lost; CREATE TABLE lost{made} (id int); INSERT INTO lost{made} VALUES ({key})"));
            }
        }
        let key = self.statements.serial();
        for n in 0..2 {
            let gid = format!("across {key} {n}");
            let table = self.statements.serial();
            let sql = format!(
                "BEGIN; INSERT INTO np VALUES ({key}, 'across'); CREATE TABLE across{table} (id int); \
                 INSERT INTO across{table} VALUES ({n}); PREPARE TRANSACTION '{gid}'"
            );
            let done = self.upkeep.as_ref().expect("connected").try_sql(&sql);
            self.log.note(99, &sql, &done);
            match done {
                Ok(()) => self.prepared.push((gid, false)),
                Err(_) => self.upkeep.as_ref().expect("connected").sql("ROLLBACK"),
            }
        }
    }

    fn as_if_from_origin(&mut self, at: usize) {
        let n = self.statements.serial();
        if !self.say(at, "SELECT pg_replication_origin_session_setup('elsewhere')") {
            return;
        }
        let batch = match n % 3 {
            0 => self.batch(at as u32),
            _ => format!(
                "BEGIN; SELECT pg_replication_origin_xact_setup('0/{n:X}', timestamptz '2020-02-02 02:02:02Z' + {n} * interval '1s'); {}; COMMIT",
                self.statements.rows(at as u32)
            ),
        };
        self.say(at, &batch);
        self.say(at, "SELECT pg_replication_origin_session_reset()");
    }

    /// Begins a look while transactions with DDL are open, and lets it meet the rewrite of a
    /// catalog.
    fn look(&mut self) -> Result<std::thread::JoinHandle<Result<Catalog, String>>, String> {
        // The look would wait for prepared transactions.
        self.resolve_all();
        for at in 0..self.walkers.len() {
            if self.walkers[at].is_open && !self.walkers[at].has_ddl {
                self.end(at);
            }
            if !self.walkers[at].is_open {
                let made = self.statements.serial();
                self.walkers[at].is_open = true;
                self.walkers[at].has_ddl = true;
                self.say(at, &format!("BEGIN; CREATE TABLE amid{made} (id int PRIMARY KEY, v mood); INSERT INTO amid{made} VALUES (1, 'ok')"));
            }
        }
        let amid = self.walkers.iter().filter(|walker| walker.is_open && walker.has_ddl).count();
        let url = self.stage.cluster.url(DB);
        let looking = std::thread::spawn(move || look(&url));
        let waits = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{LOOK}' AND query ~ 'pg_snapshot_xmin'"
        );
        testkit::wait_for("a look that waits", std::time::Duration::from_secs(60), || {
            Ok(looking.is_finished() || self.stage.cluster.one("template1", &waits) != "0")
        })
        .map_err(|error| error.to_string())?;
        if looking.is_finished() {
            return Ok(looking);
        }
        // The look knows the files by now, and has not read them.
        let rewrite = "VACUUM FULL pg_namespace";
        let done = self.upkeep.as_ref().expect("connected").try_sql(rewrite);
        self.log.note(99, rewrite, &done);
        self.census.traps.add(Trap::LookAmidDdl, (amid > 0).into());
        self.census.traps.add(Trap::LookAmidCatalogRewrite, done.is_ok().into());
        Ok(looking)
    }
}
