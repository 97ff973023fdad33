//! The first copy: from the start of replication until the rows of every table are committed on the
//! subscriber.
//!
//! Native's clock ends when the last table's copy has committed (state `f`), before the table has
//! joined the stream. Where the end is unclear, the measurement favours native. The plot shows the
//! size of the tables on the subscriber.

use anyhow::{Context, Result};
use testkit::{Major, StopMode};

use crate::lab::measure::{Look, Run, finish, measure};
use crate::lab::probe::Probe;
use crate::lab::rig::{DB, NAME, Rig};
use crate::report::Case;
use crate::{Arm, Options, Say};

/// The goal: no slower than native.
const GOAL: f64 = 1.0;
const ROWS: u64 = 5_000_000;
const ROWS_QUICK: u64 = 1_000_000;
const BYTES_PER_MEGABYTE: f64 = 1e6;

/// The number of tables that share the rows.
pub(crate) struct Shape {
    pub(crate) case: &'static str,
    pub(crate) tables: Vec<String>,
}

impl Shape {
    /// Creates the tables on both ends and fills the publisher's with `each` rows of about 150
    /// bytes.
    pub(crate) fn publish(&self, rig: &Rig, each: u64) -> Result<()> {
        for table in &self.tables {
            rig.pair.both(
                DB,
                &format!(
                    "CREATE TABLE {table} (id bigint PRIMARY KEY, account int NOT NULL, amount numeric(12, 2), \
                     at timestamptz, note text)"
                ),
            )?;
            rig.pair.source.sql(
                DB,
                &format!(
                    "INSERT INTO {table} SELECT i, i % 1000, (i % 100000) / 100.0, \
                     timestamptz '2024-01-01 00:00:00+00' + i * interval '1 second', repeat(md5(i::text), 3) \
                     FROM generate_series(1, {each}) i"
                ),
            )?;
        }
        let list = self.tables.join(", ");
        rig.pair.source.sql(DB, &format!("CREATE PUBLICATION {NAME} FOR TABLE {list}"))?;
        rig.pair.source.sql(DB, "VACUUM ANALYZE")?;
        rig.pair.source.sql(DB, "CHECKPOINT")?;
        Ok(())
    }
}

fn shapes() -> [Shape; 2] {
    let names = |count: u32| (0..count).map(|number| format!("c{number}")).collect();
    [Shape { case: "one-table", tables: names(1) }, Shape { case: "ten-tables", tables: names(10) }]
}

/// Every case on every major.
pub(crate) fn run(options: &Options, say: &Say) -> Result<Vec<Case>> {
    each_shape(options, |major, shape| run_case(options, say, major, shape))
}

/// Runs `run_case` for every wanted shape, on every major.
pub(crate) fn each_shape(
    options: &Options,
    run_case: impl Fn(Major, &Shape) -> Result<Case>,
) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for major in options.majors() {
        for shape in shapes().iter().filter(|shape| options.wants(shape.case)) {
            let case = run_case(major, shape);
            cases.push(case.with_context(|| format!("{} on {major}", shape.case))?);
        }
    }
    Ok(cases)
}

fn run_case(options: &Options, say: &Say, major: Major, shape: &Shape) -> Result<Case> {
    let name = format!("copy {}-{major}", shape.case);
    let tables = shape.tables.len() as u64;
    let each = options.rows.unwrap_or(if options.quick { ROWS_QUICK } else { ROWS }) / tables;
    let mut rig = Rig::start(major, options.connections)?;
    shape.publish(&rig, each)?;
    rig.save("empty")?;
    say.line(&format!("{name}: {tables} x {each} rows are on the publisher"));
    let mut case = Case::new(shape.case, major, rig.version()?, GOAL, each * tables);
    case.what = format!("{tables} x {each} rows of about 150 bytes, {} connections", options.connections);
    case.curve_label = "MB of table on the subscriber".into();
    for repeat in 0..options.repeats() {
        for arm in options.order(repeat) {
            let run = copy(&mut rig, shape, arm)?;
            say.line(&format!("{name}: {}", case.describe(arm, repeat + 1, options.repeats(), &run)));
            case.add(arm, run);
        }
    }
    Ok(case)
}

fn copy(rig: &mut Rig, shape: &Shape, arm: Arm) -> Result<Run> {
    rig.restore("empty")?;
    rig.settle()?;
    let start = |probe: &Probe| match arm {
        Arm::Native => probe.row(&rig.create_subscription()).map(|_| None),
        _ => rig.run_sluice(arm).map(Some),
    };
    let (mut run, sluice) = measure(rig, start, |probe| look(probe, shape, arm))?;
    run.equal = rig.is_equal(&shape.tables);
    finish(sluice)?;
    rig.pair.target.stop(StopMode::Fast)?;
    rig.drop_slots()?;
    Ok(run)
}

fn look(probe: &Probe, shape: &Shape, arm: Arm) -> Result<Look> {
    let number = |sql: &str| -> Result<u64> {
        let row = probe.row(sql)?;
        Ok(row.into_iter().next().flatten().and_then(|text| text.parse().ok()).unwrap_or(0))
    };
    let sizes: Vec<String> =
        shape.tables.iter().map(|table| format!("pg_relation_size('{table}')")).collect();
    let value = number(&format!("SELECT {}", sizes.join(" + ")))? as f64 / BYTES_PER_MEGABYTE;
    let finished = match arm {
        Arm::Native => {
            number("SELECT count(*) FROM pg_subscription_rel WHERE srsubstate IN ('f', 's', 'r')")?
        }
        // The table appears with the first start.
        Arm::Ours | Arm::Wal if number("SELECT count(to_regclass('pgsluice.copied_table'))")? == 0 => 0,
        _ => number("SELECT count(*) FROM pgsluice.copied_table WHERE finished")?,
    };
    Ok(Look { value, done: finished == shape.tables.len() as u64 })
}
