//! How far the pipelines are, for a person who watches.
//!
//! On a terminal: a bar per table that is being copied and one for all, then
//! a line with rate and lag. Elsewhere: a log line at intervals while the
//! first copy runs, and when it is done.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{BuildingSnapshot, Snapshot, Status, TableSnapshot};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::units::{show_bytes, show_count, show_seconds};

/// Time between two looks on a terminal.
const REDRAW: Duration = Duration::from_millis(500);

/// Time between two log lines elsewhere.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Bars of tables shown at the same time; the rest is in the total.
const BARS_MAX: usize = 12;

/// Shows `pipelines` until the future is dropped.
pub(crate) async fn show(pipelines: &[Arc<Status>], bars: &MultiProgress, on_terminal: bool) {
    let mut views: Vec<_> = pipelines.iter().map(|_| View::default()).collect();
    loop {
        for (status, view) in pipelines.iter().zip(&mut views) {
            let snapshot = status.snapshot();
            if on_terminal {
                view.draw(&snapshot, bars);
            } else {
                view.log(&snapshot);
            }
        }
        tokio::time::sleep(REDRAW).await;
    }
}

/// What is on the screen for one pipeline.
#[derive(Default)]
struct View {
    tables: HashMap<String, ProgressBar>,
    total: Option<ProgressBar>,
    schema: Option<ProgressBar>,
    line: Option<ProgressBar>,
    rate: Rate,
    logged: Option<Instant>,
    copied: bool,
}

/// All tables together.
#[derive(Default)]
struct Sum {
    tables: usize,
    done: usize,
    rows: u64,
    rows_estimated: u64,
    bytes: u64,
    bytes_estimated: u64,
}

impl Sum {
    fn of(tables: &[TableSnapshot]) -> Sum {
        let mut sum = Sum { tables: tables.len(), ..Sum::default() };
        for table in tables {
            sum.done += usize::from(table.state == "done");
            sum.rows += table.rows;
            sum.rows_estimated += table.rows_estimated;
            sum.bytes += table.bytes;
            sum.bytes_estimated += table.bytes_estimated;
        }
        sum
    }

    /// Figures in words for a log, at `rate` bytes a second.
    fn words(&self, rate: Option<f64>) -> String {
        format!(
            "{} of {} tables, {} of about {} rows, {} of about {}{}",
            self.done,
            self.tables,
            show_count(self.rows),
            show_count(self.rows_estimated),
            show_bytes(self.bytes),
            show_bytes(self.bytes_estimated),
            self.outlook(rate)
        )
    }

    /// The same beside a bar, which shows how much of it is done.
    fn short_words(&self, rate: Option<f64>) -> String {
        let (rows, bytes) = (show_count(self.rows), show_bytes(self.bytes));
        format!("{} of {} tables, {rows} rows, {bytes}{}", self.done, self.tables, self.outlook(rate))
    }

    /// Rate and time left, once they are known.
    fn outlook(&self, rate: Option<f64>) -> String {
        if let Some(rate) = rate.filter(|rate| *rate >= 1.0) {
            let left = self.bytes_estimated.saturating_sub(self.bytes) as f64 / rate;
            return format!(", {}/s, {} left", show_bytes(rate as u64), show_seconds(left));
        }
        String::new()
    }
}

/// A figure's growth per second, smoothed over about ten seconds.
#[derive(Default)]
struct Rate {
    last: Option<(Instant, u64)>,
    per_second: Option<f64>,
}

impl Rate {
    fn at(&mut self, now: Instant, figure: u64) -> Option<f64> {
        if let Some((then, before)) = self.last {
            let seconds = now.duration_since(then).as_secs_f64();
            if seconds < 0.05 {
                return self.per_second;
            }
            // A figure that falls has begun anew; it says nothing of a rate.
            let present = figure.checked_sub(before).map(|grown| grown as f64 / seconds);
            self.per_second = match (self.per_second, present) {
                (Some(smooth), Some(present)) => {
                    Some(smooth + (present - smooth) * (seconds / 10.0).min(1.0))
                }
                (None, present) => present,
                (_, None) => None,
            };
        }
        self.last = Some((now, figure));
        self.per_second
    }
}

impl View {
    fn draw(&mut self, snapshot: &Snapshot, bars: &MultiProgress) {
        let tables = &snapshot.copy.tables;
        if snapshot.phase == "copying" && !tables.is_empty() {
            self.draw_copy(snapshot, bars);
            return;
        }
        self.clear_copy();
        if snapshot.phase == "indexing" {
            self.draw_schema(snapshot, bars);
            return;
        }
        if let Some(bar) = self.schema.take() {
            bar.finish_and_clear();
        }
        let line = self.line.get_or_insert_with(|| {
            bars.add(ProgressBar::new_spinner().with_style(style("{spinner} {prefix} {wide_msg}")))
        });
        let totals = &snapshot.totals;
        let rows = totals.inserts + totals.updates + totals.deletes;
        let rate = self.rate.at(Instant::now(), rows).unwrap_or(0.0);
        let lag = match (snapshot.lag.total.bytes, snapshot.lag.total.seconds) {
            (Some(bytes), Some(seconds)) => format!("lag {}, {}", show_bytes(bytes), show_seconds(seconds)),
            (Some(bytes), None) => format!("lag {}", show_bytes(bytes)),
            (None, _) => "lag not known yet".to_owned(),
        };
        line.set_prefix(format!("{} {}", snapshot.subscription, snapshot.phase));
        line.set_message(format!("{} rows, {} rows/s, {lag}", show_count(rows), show_count(rate as u64)));
        line.tick();
    }

    fn draw_copy(&mut self, snapshot: &Snapshot, bars: &MultiProgress) {
        if let Some(line) = self.line.take() {
            line.finish_and_clear();
        }
        for table in &snapshot.copy.tables {
            let shown = self.tables.len();
            match (table.state.as_str(), self.tables.get(&table.table)) {
                ("copying", None) if shown < BARS_MAX => {
                    let bar = ProgressBar::new(1).with_style(bar_style()).with_prefix(table.table.clone());
                    let bar = match &self.total {
                        Some(total) => bars.insert_before(total, bar),
                        None => bars.add(bar),
                    };
                    draw_table(&bar, table);
                    self.tables.insert(table.table.clone(), bar);
                }
                ("copying", Some(bar)) => draw_table(bar, table),
                (_, Some(_)) => {
                    if let Some(bar) = self.tables.remove(&table.table) {
                        bar.finish_and_clear();
                    }
                }
                _ => {}
            }
        }
        let sum = Sum::of(&snapshot.copy.tables);
        let rate = self.rate.at(Instant::now(), sum.bytes);
        let total = self.total.get_or_insert_with(|| {
            bars.add(
                ProgressBar::new(1)
                    .with_style(bar_style())
                    .with_prefix(format!("{} in all", snapshot.subscription)),
            )
        });
        total.set_length(sum.rows_estimated.max(1));
        total.set_position(sum.rows);
        total.set_message(sum.short_words(rate));
    }

    fn draw_schema(&mut self, snapshot: &Snapshot, bars: &MultiProgress) {
        if let Some(line) = self.line.take() {
            line.finish_and_clear();
        }
        let schema = &snapshot.schema;
        let bar = self.schema.get_or_insert_with(|| {
            let prefix = format!("{} indexing", snapshot.subscription);
            bars.add(ProgressBar::new(1).with_style(bar_style()).with_prefix(prefix))
        });
        bar.set_length(schema.objects.max(1) as u64);
        bar.set_position(schema.done as u64);
        let building: Vec<String> = schema.building.iter().map(show_building).collect();
        bar.set_message(format!("{} of {}; {}", schema.done, schema.objects, building.join("; ")));
    }

    fn clear_copy(&mut self) {
        let bars = self.tables.drain().map(|(_, bar)| bar).chain(self.total.take());
        let mut any = false;
        for bar in bars {
            bar.finish_and_clear();
            any = true;
        }
        if any {
            // From bytes to rows.
            self.rate = Rate::default();
        }
    }

    fn log(&mut self, snapshot: &Snapshot) {
        let tables = &snapshot.copy.tables;
        let now = Instant::now();
        let sum = Sum::of(tables);
        if snapshot.phase == "copying" && !tables.is_empty() {
            let rate = self.rate.at(now, sum.bytes);
            let logged = self.logged.get_or_insert(now);
            if now.duration_since(*logged) >= LINE_INTERVAL {
                *logged = now;
                tracing::info!(subscription = snapshot.subscription, "first copy: {}", sum.words(rate));
            }
        } else if snapshot.phase == "indexing" {
            let logged = self.logged.get_or_insert(now);
            if now.duration_since(*logged) >= LINE_INTERVAL {
                *logged = now;
                let schema = &snapshot.schema;
                let building: Vec<String> = schema.building.iter().map(show_building).collect();
                tracing::info!(
                    subscription = snapshot.subscription,
                    "indexes and constraints: {} of {} created; now {}",
                    schema.done,
                    schema.objects,
                    building.join("; ")
                );
            }
        } else if snapshot.streams() && !tables.is_empty() && !self.copied {
            self.copied = true;
            tracing::info!(
                subscription = snapshot.subscription,
                "first copy done: {} tables, {} rows, {}",
                sum.done,
                show_count(sum.rows),
                show_bytes(sum.bytes)
            );
        }
    }
}

/// `INDEX public.t_v_idx: building index: scanning table, 45%, 12 s`
pub(crate) fn show_building(building: &BuildingSnapshot) -> String {
    let phase = building.phase.as_ref().map_or_else(String::new, |phase| format!(": {phase}"));
    let done = building.fraction.map_or_else(String::new, |done| format!(", {:.0}%", done * 100.0));
    format!("{}{phase}{done}, {}", building.object, show_seconds(building.elapsed_ms as f64 / 1e3))
}

/// One table's bar.
fn draw_table(bar: &ProgressBar, table: &TableSnapshot) {
    bar.set_length(table.rows_estimated.max(1));
    bar.set_position(table.rows);
    let seconds = table.elapsed_ms as f64 / 1e3;
    let mut words = format!("{} rows, {}", show_count(table.rows), show_bytes(table.bytes));
    if seconds > 0.5 && table.rows > 0 {
        let left = table.rows_estimated.saturating_sub(table.rows) as f64 * seconds / table.rows as f64;
        let rate = (table.bytes as f64 / seconds) as u64;
        words.push_str(&format!(", {}/s, {} left", show_bytes(rate), show_seconds(left)));
    }
    bar.set_message(words);
}

fn bar_style() -> ProgressStyle {
    style("{prefix:24!} {bar:24} {percent:>3}% {wide_msg}")
}

/// A template of ours, which is well-formed.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_smoothed_and_survive_a_new_beginning() {
        let mut rate = Rate::default();
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(rate.at(at(0), 0), None);
        assert_eq!(rate.at(at(1), 100), Some(100.0));
        assert_eq!(rate.at(at(2), 100), Some(90.0));
        assert_eq!(rate.at(at(3), 0), None);
        assert_eq!(rate.at(at(4), 50), Some(50.0));
    }

    #[test]
    fn what_is_built_in_words() {
        let mut building = BuildingSnapshot {
            object: "INDEX public.t_v".to_owned(),
            phase: Some("building index: scanning table".to_owned()),
            fraction: Some(0.454),
            elapsed_ms: 12_000,
        };
        assert_eq!(show_building(&building), "INDEX public.t_v: building index: scanning table, 45%, 12 s");
        (building.phase, building.fraction) = (None, None);
        assert_eq!(show_building(&building), "INDEX public.t_v, 12 s");
    }

    #[test]
    fn the_sum_in_words() {
        let table = |state: &str, rows| TableSnapshot {
            table: "public.t".to_owned(),
            state: state.to_owned(),
            rows,
            rows_estimated: 2_000,
            bytes: rows * 1_024,
            bytes_estimated: 2_000 * 1_024,
            elapsed_ms: 0,
        };
        let sum = Sum::of(&[table("done", 2_000), table("copying", 1_000)]);
        assert_eq!(
            sum.words(Some(102_400.0)),
            "1 of 2 tables, 3,000 of about 4,000 rows, 2.9 MB of about 3.9 MB, 100 kB/s, 10 s left"
        );
    }
}
