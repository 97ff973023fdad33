//! Catching up with a backlog that was written while the subscriber was off.
//!
//! ```text
//! copy, native -> image, parked slot ─┐
//! copy, ours   -> image, parked slot ─┴─> subscriber off, backlog written once, mark
//! ┌──────────────────────────────────────────────┘
//! └─> per run: image and slot back, warm up, clock on, replicate, mark seen, clock off, compare
//! ```
//!
//! The mark is a row written after the backlog. Changes are applied in commit order, so a session
//! that sees the mark sees everything. The plot shows how much of the backlog's WAL is not applied
//! yet. It comes from the replication origins, which both sides advance with each commit.
//!
//! With `--source wal` there is a third side, which reads WAL and decodes it itself. The report
//! compares it with native and with the side that reads from a logical slot, from the same runs.
//!
//! On slow storage ([`crate::lab::slow`]) buffers are cold when a run begins. The first copy is not
//! slowed.

use std::time::Instant;

use anyhow::{Context, Result};
use testkit::{Major, Sluice, StopMode, wait_for};

use crate::lab::aftermath::Aftermath;
use crate::lab::backlog::{self, Backlog, MARK};
use crate::lab::limit::{Alone, Limit, sets_alone, wal_alone, walsender_alone};
use crate::lab::load::{self, Amount, Written};
use crate::lab::measure::{Look, Run, finish, measure};
use crate::lab::probe::Probe;
use crate::lab::rig::{DB, NAME, Rig, STEP_BOUND, first, slot};
use crate::report::Case;
use crate::{Arm, Options, Say, Source};

const BYTES_PER_MEGABYTE: f64 = 1e6;

/// Every case on every major.
pub(crate) fn run(options: &Options, say: &Say) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for major in options.majors() {
        for backlog in backlog::all(options) {
            if options.wants(backlog.case) {
                let measured = run_case(options, say, major, &backlog);
                cases.extend(measured.with_context(|| format!("{} on {major}", backlog.case))?);
            }
        }
    }
    Ok(cases)
}

fn run_case(options: &Options, say: &Say, major: Major, backlog: &Backlog) -> Result<Vec<Case>> {
    let name = format!("catchup {}-{major}", backlog.case);
    let mut ready = prepare(options, say, &name, major, backlog, &[])?;
    let mut compared = compared(options, &ready, backlog);
    if backlog.slow.is_none() {
        // Slow storage has no such limit: a side that reads ahead waits less than one session that
        // writes sets.
        for arm in options.order(0).into_iter().filter(|arm| arm.is_pgsluice() && !arm.is_other_build()) {
            let limit = ready.limit(backlog, arm)?;
            say.line(&format!(
                "{name}: {}'s walsender alone {:.2} s ({:.2} CPU s), sets alone {:.2} s ({:.2} CPU s)",
                arm.name(),
                limit.walsender.seconds,
                limit.walsender.cpu,
                limit.sets.seconds,
                limit.sets.cpu
            ));
            let of_arm = compared.iter_mut().filter(|compared| compared.ours == arm);
            of_arm.for_each(|compared| compared.case.limit = Some(limit));
        }
    }
    for repeat in 0..options.repeats() {
        for arm in options.order(repeat) {
            // The settings that the documents advise for slow storage.
            let words: Vec<String> = backlog.words.iter().map(|word| (*word).to_owned()).collect();
            let run = ready.catch_up(backlog, arm, &words)?;
            let described = compared[0].case.describe(arm, repeat + 1, options.repeats(), &run);
            say.line(&format!("{name}: {described}"));
            compared.iter_mut().for_each(|compared| compared.add(arm, &run));
        }
    }
    Ok(compared.into_iter().map(|compared| compared.case).collect())
}

/// One case, and the sides whose runs it compares.
struct Compared {
    case: Case,
    stock: Arm,
    ours: Arm,
}

impl Compared {
    fn add(&mut self, arm: Arm, run: &Run) {
        if arm == self.stock {
            self.case.stock.push(run.clone());
        } else if arm == self.ours {
            self.case.ours.push(run.clone());
        }
    }
}

fn compared(options: &Options, ready: &Ready, backlog: &Backlog) -> Vec<Compared> {
    /// At least as fast as with a logical slot.
    const GOAL_BESIDE_LOGICAL: f64 = 1.0;
    /// Differences of a few per cent are noise.
    const GOAL_BESIDE_BEFORE: f64 = 0.95;
    let compare = |name: String, goal: f64, stock: Arm, ours: Arm| {
        let mut case = ready.case(backlog, name, goal);
        let words: Vec<&str> =
            (ours == Arm::Wal).then_some(["--source-mode", "wal"]).into_iter().flatten().collect();
        if ours == Arm::Wal {
            case.source = "wal".to_owned();
        }
        if stock.is_other_build() {
            case.sides = [stock.name().into(), "pgsluice".into()];
            case.what.push_str(", beside another build of pgsluice, which stands as native in the table");
        }
        let words = [words.as_slice(), backlog.words].concat();
        if !words.is_empty() {
            case.what.push_str(&format!("; pgsluice with `{}`", words.join(" ")));
        }
        if stock == Arm::Ours {
            case.sides = ["logical", "wal"].map(Into::into);
            case.what.push_str(
                ", beside the same with `--source-mode logical`, which stands as native in the table",
            );
        }
        Compared { case, stock, ours }
    };
    let name = backlog.case;
    let before = options.before.as_ref().map(|_| match options.source {
        Source::Logical => {
            compare(format!("{name}-beside-before"), GOAL_BESIDE_BEFORE, Arm::Before, Arm::Ours)
        }
        Source::Wal => {
            compare(format!("{name}-wal-beside-before"), GOAL_BESIDE_BEFORE, Arm::BeforeWal, Arm::Wal)
        }
    });
    if let Some(before) = before {
        return vec![before];
    }
    let logical = || compare(name.to_owned(), backlog.goal, Arm::Native, Arm::Ours);
    let wal = || compare(format!("{name}-wal"), backlog.goal_wal, Arm::Native, Arm::Wal);
    let beside = || compare(format!("{name}-wal-beside-logical"), GOAL_BESIDE_LOGICAL, Arm::Ours, Arm::Wal);
    match (options.only, options.source) {
        (Some(Arm::Wal), _) => vec![wal()],
        (None, Source::Wal) => vec![logical(), wal(), beside()],
        _ => vec![logical()],
    }
}

/// A written backlog, and an image of the subscriber for each side to return to.
pub(crate) struct Ready {
    rig: Rig,
    pub(crate) window: Window,
    written: Written,
    version: String,
}

/// Starts servers with the settings `more`, copies, and writes the backlog.
pub(crate) fn prepare(
    options: &Options,
    say: &Say,
    name: &str,
    major: Major,
    backlog: &Backlog,
    more: &[(&'static str, String)],
) -> Result<Ready> {
    let settings = [backlog.settings(major).as_slice(), more].concat();
    let mut rig = Rig::with(major, options.connections, &settings)?;
    rig.before.clone_from(&options.before);
    rig.timeline = options.timeline;
    let tables = backlog.tables.join(", ");
    rig.pair.both(DB, &format!("{MARK}{}", backlog.schema))?;
    rig.pair.source.sql(DB, &backlog.rows)?;
    rig.pair.source.sql(DB, &format!("CREATE PUBLICATION {NAME} FOR TABLE mark, {tables}"))?;
    rig.pair.source.sql(DB, "VACUUM ANALYZE")?;
    // A physical slot begins at the last checkpoint, which on other servers is minutes old. Without
    // this one, pgsluice would read the filling of the tables again with the backlog.
    rig.pair.source.sql(DB, "CHECKPOINT")?;
    say.line(&format!("{name}: rows are on the publisher"));
    rig.save("empty")?;
    for arm in options.order(0) {
        if rig.copied_by(arm) != arm {
            continue;
        }
        rig.restore("empty")?;
        synchronise(&mut rig, arm)?;
        say.line(&format!("{name}: {} has copied and is stopped", arm.name()));
    }
    let (written, window) = write_backlog(&rig, backlog)?;
    say.line(&format!(
        "{name}: {} transactions written by {} in {:.1} s, {:.0} MB of WAL",
        written.transactions,
        written.by,
        written.seconds,
        window.bytes() / BYTES_PER_MEGABYTE
    ));
    if backlog.slow.is_some() {
        rig.read_slowly()?;
    }
    let version = rig.version()?;
    Ok(Ready { rig, window, written, version })
}

impl Ready {
    pub(crate) fn case(&self, backlog: &Backlog, name: String, goal: f64) -> Case {
        let changes = self.written.transactions * backlog.changes_per_transaction;
        let mut case = Case::new(name, self.rig.major(), self.version.clone(), goal, changes);
        case.what.clone_from(&backlog.what);
        case.publisher = Some(self.written.clone());
        case.curve_label = "MB of WAL not applied yet".into();
        case
    }

    /// The time that the servers alone need for this backlog if it is replicated as `arm` does. The
    /// subscriber is off, and is stopped again.
    fn limit(&mut self, backlog: &Backlog, arm: Arm) -> Result<Limit> {
        let rig = &mut self.rig;
        rig.unpark(arm)?;
        let walsender = match arm {
            // The mark is one more.
            Arm::Native | Arm::Ours | Arm::Before => {
                walsender_alone(rig, &slot(arm), self.written.transactions + 1)?
            }
            Arm::Wal | Arm::BeforeWal => wal_alone(rig, &slot(arm), self.window.start, self.window.end)?,
        };
        rig.drop_slots()?;
        let sets = writing_alone(rig, backlog, arm)?;
        Ok(Limit { walsender, sets, cores: std::thread::available_parallelism()?.get() })
    }

    /// One run; pgsluice gets the extra arguments `words`.
    pub(crate) fn catch_up(&mut self, backlog: &Backlog, arm: Arm, words: &[String]) -> Result<Run> {
        self.rig.words = words.to_vec();
        catch_up(&mut self.rig, backlog, arm, &self.window, None)
    }

    /// One run of pgsluice that begins after the subscriber has executed `sql`. Afterwards both
    /// ends are compared by the rows whose keys are no multiple of ten.
    pub(crate) fn catch_up_after(
        &mut self,
        backlog: &Backlog,
        words: &[String],
        sql: Option<&str>,
    ) -> Result<Run> {
        self.rig.words = words.to_vec();
        let compared =
            "DROP VIEW IF EXISTS compared; CREATE VIEW compared AS SELECT * FROM t WHERE pk % 10 <> 0";
        self.rig.pair.source.sql(DB, compared)?;
        let sql = format!("{compared}; {}", sql.unwrap_or("SELECT"));
        catch_up(&mut self.rig, backlog, Arm::Ours, &self.window, Some(&sql))
    }
}

/// First copy by `arm`. Then its slot is parked, and the stopped subscriber kept as an image.
fn synchronise(rig: &mut Rig, arm: Arm) -> Result<()> {
    match join(rig, arm)? {
        None => rig.disable()?,
        sluice => finish(sluice)?,
    }
    rig.pair.target.sql(DB, "VACUUM ANALYZE")?;
    rig.save(arm.name())?;
    rig.park(arm)
}

/// First copy by `arm`, which then streams. Returns pgsluice if `arm` is pgsluice.
pub(crate) fn join(rig: &Rig, arm: Arm) -> Result<Option<Sluice>> {
    let target = &rig.pair.target;
    match arm {
        Arm::Native => {
            // Not by `Cluster::sql`: it would make one transaction of two statements, and no slot
            // can be created in that.
            target.sql(DB, &rig.create_subscription())?;
            wait_for("native's first copy", STEP_BOUND, || {
                let ready = "SELECT coalesce(bool_and(srsubstate = 'r'), false) FROM pg_subscription_rel";
                Ok(first(target.sql(DB, ready)?) == "t")
            })?;
            Ok(None)
        }
        _ => {
            let mut sluice = rig.run_sluice(arm)?;
            // A row that arrives by the stream proves that all tables have joined.
            rig.pair.source.sql(DB, "INSERT INTO mark VALUES (0) ON CONFLICT DO NOTHING")?;
            let streams = format!(
                "SELECT count(*) FROM pg_stat_replication WHERE application_name LIKE '%{NAME}%stream'"
            );
            let streamed = wait_for("our first copy", STEP_BOUND, || {
                anyhow::ensure!(sluice.is_running(), "pgsluice ended");
                let copied = first(target.sql(DB, "SELECT count(*) FROM mark WHERE id = 0")?) == "1";
                let finished = "SELECT coalesce(bool_and(finished), false) FROM pgsluice.copied_table";
                Ok(copied
                    && first(target.sql(DB, finished)?) == "t"
                    && first(rig.pair.source.sql(DB, &streams)?) != "0")
            });
            streamed.with_context(|| sluice.stderr())?;
            Ok(Some(sluice))
        }
    }
}

/// The backlog's place in the WAL.
pub(crate) struct Window {
    start: u64,
    end: u64,
}

impl Window {
    pub(crate) fn bytes(&self) -> f64 {
        (self.end - self.start) as f64
    }
}

/// Writes the backlog while the subscriber is off.
fn write_backlog(rig: &Rig, backlog: &Backlog) -> Result<(Written, Window)> {
    let source = &rig.pair.source;
    let lsn = || -> Result<u64> {
        Ok(first(source.sql(DB, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")?).parse()?)
    };
    let start = lsn()?;
    let written = load::write(source.port(), &backlog.script, Amount::Transactions(backlog.transactions))?;
    source.sql(DB, "INSERT INTO mark VALUES (1)")?;
    let end = lsn()?;
    source.sql(DB, "CHECKPOINT")?;
    Ok((written, Window { start, end }))
}

fn writing_alone(rig: &mut Rig, backlog: &Backlog, arm: Arm) -> Result<Alone> {
    rig.restore(rig.copied_by(arm).name())?;
    warm_up(rig, backlog)?;
    let sets = sets_alone(&rig.pair.target, &backlog.sets)?;
    rig.pair.target.stop(StopMode::Fast)?;
    Ok(sets)
}

/// Reads the tables, so that no run begins with cold buffers.
fn warm_up(rig: &Rig, backlog: &Backlog) -> Result<()> {
    let begun = Instant::now();
    let plan =
        "SET enable_seqscan = off; SET enable_bitmapscan = off; SET max_parallel_workers_per_gather = 0";
    rig.pair.target.sql(DB, &format!("{plan}; {}", backlog.warm_up))?;
    anyhow::ensure!(begun.elapsed() < STEP_BOUND, "warming up took {:?}", begun.elapsed());
    rig.settle()
}

fn catch_up(
    rig: &mut Rig,
    backlog: &Backlog,
    arm: Arm,
    window: &Window,
    before: Option<&str>,
) -> Result<Run> {
    rig.restore(rig.copied_by(arm).name())?;
    rig.unpark(arm)?;
    if let Some(sql) = before {
        rig.pair.target.sql(DB, sql)?;
    }
    if backlog.slow.is_none() {
        warm_up(rig, backlog)?;
    } else {
        rig.settle()?;
    }
    let start = |probe: &Probe| match arm {
        Arm::Native => probe.row(&format!("ALTER SUBSCRIPTION {NAME} ENABLE")).map(|_| None),
        _ => rig.run_sluice(arm).map(Some),
    };
    let was = Aftermath::look(rig, &backlog.tables)?;
    let (mut run, sluice) = measure(rig, start, |probe| look(probe, window))?;
    let compared = || vec!["compared".to_owned()];
    let mut tables = before.map_or_else(|| backlog.tables.clone(), |_| compared());
    // pgsluice has seen one mark before the backlog; native gets that mark with it.
    tables.push("mark".to_owned());
    run.equal = rig.is_equal(&tables);
    finish(sluice)?;
    if arm == Arm::Native {
        rig.disable()?;
    }
    run.aftermath = Some(Aftermath::look(rig, &backlog.tables)?.since(was));
    rig.pair.target.stop(StopMode::Fast)?;
    rig.drop_slots()?;
    Ok(run)
}

fn look(probe: &Probe, window: &Window) -> Result<Look> {
    let row = probe.row(
        "SELECT max(remote_lsn) - '0/0'::pg_lsn, EXISTS (SELECT FROM mark WHERE id = 1) \
         FROM pg_replication_origin_status",
    )?;
    let column = |index: usize| row.get(index).cloned().flatten();
    let applied = column(0).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let left = window.end.saturating_sub(applied.clamp(window.start, window.end));
    let done = column(1).as_deref() == Some("t");
    Ok(Look { value: if done { 0.0 } else { left as f64 / BYTES_PER_MEGABYTE }, done })
}
