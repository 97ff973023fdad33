//! Several subscriptions to one publisher: native with a walsender for each, beside one pass over
//! WAL for all.
//!
//! Each subscription has a table and a publication of its own. Each transaction changes a row of
//! every table, so no side may leave anything out. Nothing is off: the load is written while all
//! replicate. The clock stops when all have a row that was written last. The CPU time of the
//! writing sessions does not count.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use testkit::{Major, Sluice, wait_for};

use crate::lab::cpu::{Cpu, cpu_of, spent};
use crate::lab::load::{self, Amount, Script, Value};
use crate::lab::measure::{Run, finish};
use crate::lab::probe::Probe;
use crate::lab::rig::{DB, Rig, STEP_BOUND, first};
use crate::report::{Case, Unit};
use crate::{Arm, Options, Say};

const SUBSCRIPTIONS: usize = 4;
const TRANSACTIONS: u64 = 250_000;
const TRANSACTIONS_QUICK: u64 = 50_000;
const ROWS: i64 = 100_000;
const GOAL_WALSENDER: f64 = 10.0;
const GOAL_PIPELINE: f64 = 2.0;

fn numbers() -> std::ops::RangeInclusive<usize> {
    1..=SUBSCRIPTIONS
}

/// The SQL for all subscriptions.
fn each(sql: impl Fn(usize) -> String) -> String {
    numbers().map(sql).collect::<Vec<_>>().join("; ")
}

/// CPU seconds of walsenders, and of everything.
pub(crate) fn measure(options: &Options, say: &Say, major: Major) -> Result<Vec<Case>> {
    let name = format!("publisher-cost subscriptions-{major}");
    let transactions =
        options.transactions.unwrap_or(if options.quick { TRANSACTIONS_QUICK } else { TRANSACTIONS });
    // Each table has an origin while it is copied.
    let origins = (major >= Major::V18).then(|| ("max_active_replication_origins", "40".to_owned()));
    let mut rig = Rig::with(major, options.connections, origins.as_slice())?;
    rig.pair.both(
        DB,
        &each(|n| {
            format!(
                "CREATE TABLE t{n} (id integer PRIMARY KEY, n integer) WITH (fillfactor = 50); \
                 CREATE TABLE mark{n} (id integer PRIMARY KEY)"
            )
        }),
    )?;
    rig.pair.source.sql(DB, &each(|n| format!("CREATE PUBLICATION p{n} FOR TABLE t{n}, mark{n}")))?;
    rig.save("empty")?;
    let kinds = [
        ("subscriptions-walsenders", GOAL_WALSENDER, Unit::WalsenderPerMillion),
        ("subscriptions-pipeline", GOAL_PIPELINE, Unit::PipelinePerMillion),
    ];
    let mut cases = Vec::new();
    for (kind, goal, unit) in kinds {
        let mut case = Case::new(kind, major, rig.version()?, goal, transactions * SUBSCRIPTIONS as u64);
        case.source = "wal".to_owned();
        case.unit = unit;
        case.what = format!(
            "{SUBSCRIPTIONS} subscriptions to as many tables, {transactions} transactions that update a row of each"
        );
        cases.push(case);
    }
    for repeat in 0..options.repeats() {
        for arm in options.order(repeat) {
            let run = run(&mut rig, arm, transactions)?;
            for case in &mut cases {
                say.line(&format!("{name}: {}", case.describe(arm, repeat + 1, options.repeats(), &run)));
                case.add(arm, run.clone());
            }
        }
    }
    Ok(cases)
}

fn run(rig: &mut Rig, arm: Arm, transactions: u64) -> Result<Run> {
    rig.restore("empty")?;
    rig.drop_slots()?;
    // Each run starts with the same rows.
    let fill =
        |n| format!("TRUNCATE t{n}, mark{n}; INSERT INTO t{n} SELECT i, 0 FROM generate_series(1, {ROWS}) i");
    rig.pair.source.sql(DB, &each(fill))?;
    rig.pair.source.sql(DB, "VACUUM ANALYZE")?;
    rig.pair.source.sql(DB, "CHECKPOINT")?;
    rig.settle()?;
    let mut sluice = start(rig, arm)?;
    let probe = Probe::connect(&rig.pair.target.url(DB))?;
    mark(rig, &probe, sluice.as_mut(), 0)?;
    if let Some(sluice) = sluice.as_ref().filter(|_| arm == Arm::Wal) {
        shared(rig, sluice)?;
    }
    let script = Script {
        variables: vec![("id", Value::Random { from: 1, to: ROWS })],
        statements: STATEMENTS.to_vec(),
        sessions: 10,
    };
    let before = (cpu_of(&rig.pair.source), cpu_of(&rig.pair.target));
    let ours = sluice.as_ref().map_or(0.0, Sluice::cpu_seconds);
    let started = Instant::now();
    load::write(rig.pair.source.port(), &script, Amount::Transactions(transactions))?;
    mark(rig, &probe, sluice.as_mut(), 1)?;
    let seconds = started.elapsed().as_secs_f64();
    let cpu = Cpu {
        publisher: spent(before.0, cpu_of(&rig.pair.source)),
        subscriber: spent(before.1, cpu_of(&rig.pair.target)),
        pgsluice: sluice.as_ref().map_or(0.0, Sluice::cpu_seconds) - ours,
        ..Cpu::default()
    };
    let equal = rig.is_equal(&numbers().map(|n| format!("t{n}")).collect::<Vec<_>>());
    let resident_bytes_max = sluice.as_ref().map_or(0, Sluice::resident_bytes_max);
    match sluice {
        None => disable(rig)?,
        sluice => finish(sluice)?,
    }
    Ok(Run { seconds, cpu, resident_bytes_max, equal, ..Run::default() })
}

const STATEMENTS: [&str; SUBSCRIPTIONS] = [
    "UPDATE t1 SET n = n + 1 WHERE id = :id",
    "UPDATE t2 SET n = n + 1 WHERE id = :id",
    "UPDATE t3 SET n = n + 1 WHERE id = :id",
    "UPDATE t4 SET n = n + 1 WHERE id = :id",
];

/// Copies, and then streams.
fn start(rig: &Rig, arm: Arm) -> Result<Option<Sluice>> {
    let target = &rig.pair.target;
    if arm != Arm::Native {
        let mut text = format!("source_mode = \"{}\"\n", if arm == Arm::Wal { "wal" } else { "logical" });
        for n in numbers() {
            text += &format!(
                "[[subscription]]\nname = \"s{n}\"\npublication = \"p{n}\"\nsource = \"{}\"\ntarget = \"{}\"\n",
                rig.pair.source.url(DB),
                target.url(DB)
            );
        }
        let config = rig.pair.state_dir().join("subscriptions.toml");
        std::fs::write(&config, text)?;
        let mut command = Sluice::command(&rig.pair, &["run"])?;
        for name in ["PGSLUICE_SOURCE", "PGSLUICE_TARGET", "PGSLUICE_SOURCE_MODE"] {
            command.env_remove(name);
        }
        command.arg("--config").arg(config);
        return Ok(Some(Sluice::start(command)?));
    }
    for n in numbers() {
        target.sql(DB, &rig.create_subscription_named(&format!("s{n}"), &format!("p{n}")))?;
    }
    wait_for("native's first copies", STEP_BOUND, || {
        let ready = "SELECT coalesce(bool_and(srsubstate = 'r'), false) FROM pg_subscription_rel";
        Ok(first(target.sql(DB, ready)?) == "t")
    })?;
    Ok(None)
}

/// Writes a row for each subscription and waits until all are there.
fn mark(rig: &Rig, probe: &Probe, mut sluice: Option<&mut Sluice>, id: u32) -> Result<()> {
    rig.pair.source.sql(DB, &each(|n| format!("INSERT INTO mark{n} VALUES ({id})")))?;
    // A process that has just been started may not have copied the tables yet.
    let all = numbers().map(|n| format!("EXISTS (SELECT FROM mark{n} WHERE id = {id})")).collect::<Vec<_>>();
    let sql = format!("SELECT {}", all.join(" AND "));
    let waited = wait_for("all subscriptions", STEP_BOUND, || {
        if let Some(sluice) = &mut sluice {
            ensure!(sluice.is_running(), "pgsluice ended");
        }
        Ok(probe.row(&sql)?.first().cloned().flatten().as_deref() == Some("t"))
    });
    waited.with_context(|| sluice.map_or(String::new(), |sluice| sluice.stderr()))
}

/// Waits until one walsender is left, the pass's.
fn shared(rig: &Rig, sluice: &Sluice) -> Result<()> {
    let senders =
        "SELECT count(*) FILTER (WHERE application_name LIKE '%pass'), count(*) FROM pg_stat_replication";
    let only_pass = || -> Result<bool> {
        let rows = rig.pair.source.sql(DB, senders)?;
        Ok(rows.first().is_some_and(|row| row.iter().all(|count| count.as_deref() == Some("1"))))
    };
    wait_for("one pass for all", STEP_BOUND, only_pass).with_context(|| sluice.stderr())
}

fn disable(rig: &Rig) -> Result<()> {
    for n in numbers() {
        rig.pair.target.sql(DB, &format!("ALTER SUBSCRIPTION s{n} DISABLE"))?;
    }
    rig.workers_end()
}
