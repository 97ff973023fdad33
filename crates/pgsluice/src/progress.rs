//! The progress of the pipelines, for a person who watches.
//!
//! On a terminal: one bar per table that is being copied and one for all tables, then a line with
//! rate and lag. Elsewhere: a log line at intervals while the first copy runs, and one when it is
//! done.
//!
//! The view removes its bars from the screen when it ends. A bar that is only dropped would stay
//! there, and look as if it still moved.

mod echo;
mod layout;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{BuildingSnapshot, Status, StatusSnapshot, TableSnapshot};
use indicatif::{MultiProgress, ProgressBar};

pub(crate) use self::echo::Quiet;
use self::layout::Layout;
use crate::units::{show_bytes, show_count, show_seconds};

/// Time between two redraws on a terminal.
const REDRAW: Duration = Duration::from_millis(500);

/// Time between two log lines elsewhere.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Most bars of tables shown at the same time; the rest is in the total.
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

/// The screen content for one pipeline.
#[derive(Default)]
struct View {
    tables: HashMap<String, ProgressBar>,
    total: Option<ProgressBar>,
    schema: Option<ProgressBar>,
    line: Option<ProgressBar>,
    layout: Option<Layout>,
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
    /// Seconds left of the slowest table that has begun: the whole cannot end before it.
    seconds_left_min: f64,
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
            sum.seconds_left_min = sum.seconds_left_min.max(seconds_left(table).unwrap_or(0.0));
        }
        sum
    }

    /// Figures as text for a log, at `rate` bytes a second.
    fn words(&self, rate: Option<f64>) -> String {
        format!(
            "{} of {} tables, {} of about {} rows, {} of about {}{}",
            self.done,
            self.tables,
            show_count(self.rows),
            show_count(self.rows_estimated),
            show_bytes(self.bytes),
            show_bytes(self.bytes_estimated),
            self.outlook(rate).map_or_else(String::new, |[rate, left]| format!(", {rate}, {left}"))
        )
    }

    /// The same figures beside a bar, which shows the share that is done; each with its weight.
    fn figures(&self, rate: Option<f64>) -> Vec<(u8, String)> {
        let tables = format!("{} of {} tables", self.done, self.tables);
        let amount = amount(self.rows, self.bytes);
        let outlook = self.outlook(rate).map(weighed).into_iter().flatten();
        std::iter::once((3, tables)).chain(amount).chain(outlook).collect()
    }

    /// Rate and time left, once they are known.
    fn outlook(&self, rate: Option<f64>) -> Option<[String; 2]> {
        let rate = rate.filter(|rate| *rate >= 1.0)?;
        let left = self.bytes_estimated.saturating_sub(self.bytes) as f64 / rate;
        let left = left.max(self.seconds_left_min);
        Some([format!("{}/s", show_bytes(rate as u64)), format!("{} left", show_seconds(left))])
    }
}

/// Seconds that a table takes at its rate so far, once there is a rate.
fn seconds_left(table: &TableSnapshot) -> Option<f64> {
    let seconds = table.elapsed_ms as f64 / 1e3;
    (table.state == "copying" && seconds > 0.5 && table.rows > 0)
        .then(|| table.rows_estimated.saturating_sub(table.rows) as f64 * seconds / table.rows as f64)
}

/// The copied amount, in words with their weights.
fn amount(rows: u64, bytes: u64) -> [(u8, String); 2] {
    [(1, format!("{} rows", show_count(rows))), (2, show_bytes(bytes))]
}

/// Rate and time left with their weights.
fn weighed([rate, left]: [String; 2]) -> [(u8, String); 2] {
    [(4, rate), (5, left)]
}

/// A figure's growth per second over about the last ten seconds, or since it started to grow.
#[derive(Default)]
struct Rate {
    last: Option<(Instant, u64)>,
    /// Growth and seconds, each weighted less the longer ago it was.
    grown: f64,
    seconds: f64,
}

impl Rate {
    fn at(&mut self, now: Instant, figure: u64) -> Option<f64> {
        if let Some((then, before)) = self.last {
            let seconds = now.duration_since(then).as_secs_f64();
            if seconds < 0.05 {
                return self.per_second();
            }
            match figure.checked_sub(before) {
                // A figure that falls has restarted, and gives no rate.
                None => *self = Rate::default(),
                // A figure that has not started to grow has no rate yet.
                Some(_) if figure == 0 => {}
                Some(grown) => {
                    let kept = (-seconds / 10.0).exp();
                    self.grown = self.grown * kept + grown as f64;
                    self.seconds = self.seconds * kept + seconds;
                }
            }
        }
        self.last = Some((now, figure));
        self.per_second()
    }

    fn per_second(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.grown / self.seconds)
    }
}

impl View {
    fn draw(&mut self, snapshot: &StatusSnapshot, bars: &MultiProgress) {
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
            bars.add(ProgressBar::new_spinner().with_style(layout::style("{spinner} {prefix} {wide_msg}")))
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

    fn draw_copy(&mut self, snapshot: &StatusSnapshot, bars: &MultiProgress) {
        if let Some(line) = self.line.take() {
            line.finish_and_clear();
        }
        let layout = self.lay_out();
        for table in &snapshot.copy.tables {
            let shown = self.tables.len();
            match (table.state.as_str(), self.tables.get(&table.table)) {
                ("copying", None) if shown < BARS_MAX => {
                    let bar = ProgressBar::new(1).with_style(layout.style()).with_prefix(table.table.clone());
                    let bar = match &self.total {
                        Some(total) => bars.insert_before(total, bar),
                        None => bars.add(bar),
                    };
                    draw_table(&bar, table, layout);
                    self.tables.insert(table.table.clone(), bar);
                }
                ("copying", Some(bar)) => draw_table(bar, table, layout),
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
                    .with_style(layout.style())
                    .with_prefix(format!("{} in all", snapshot.subscription)),
            )
        });
        total.set_length(sum.rows_estimated.max(1));
        total.set_position(sum.rows);
        total.set_message(layout.words(sum.figures(rate)));
    }

    fn draw_schema(&mut self, snapshot: &StatusSnapshot, bars: &MultiProgress) {
        if let Some(line) = self.line.take() {
            line.finish_and_clear();
        }
        let layout = self.lay_out();
        let schema = &snapshot.schema;
        let bar = self.schema.get_or_insert_with(|| {
            let prefix = format!("{} indexing", snapshot.subscription);
            bars.add(ProgressBar::new(1).with_style(layout.style()).with_prefix(prefix))
        });
        bar.set_length(schema.objects.max(1) as u64);
        bar.set_position(schema.done as u64);
        let building: Vec<String> = schema.building.iter().map(show_building).collect();
        bar.set_message(format!("{} of {}; {}", schema.done, schema.objects, building.join("; ")));
    }

    /// Lays out again, because the terminal may have another width than before.
    fn lay_out(&mut self) -> Layout {
        let layout = Layout::of_terminal();
        if self.layout.replace(layout) != Some(layout) {
            for bar in self.tables.values().chain(&self.total).chain(&self.schema) {
                bar.set_style(layout.style());
            }
        }
        layout
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

    fn log(&mut self, snapshot: &StatusSnapshot) {
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

impl Drop for View {
    fn drop(&mut self) {
        self.clear_copy();
        for bar in self.schema.take().into_iter().chain(self.line.take()) {
            bar.finish_and_clear();
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
fn draw_table(bar: &ProgressBar, table: &TableSnapshot, layout: Layout) {
    bar.set_length(table.rows_estimated.max(1));
    bar.set_position(table.rows);
    let mut figures = amount(table.rows, table.bytes).to_vec();
    if let Some(left) = seconds_left(table) {
        let rate = (table.bytes as f64 * 1e3 / table.elapsed_ms.max(1) as f64) as u64;
        figures.extend(weighed([format!("{}/s", show_bytes(rate)), format!("{} left", show_seconds(left))]));
    }
    bar.set_message(layout.words(figures));
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
        assert_eq!(rate.at(at(1), 0), None, "nothing has come yet");
        assert_eq!(rate.at(at(2), 100), Some(100.0));
        // A slow second counts as much as a quick one, until it is long ago.
        let rounded = |rate: Option<f64>| rate.map(f64::round);
        assert_eq!(rounded(rate.at(at(3), 100)), Some(48.0));
        assert_eq!(rounded(rate.at(at(93), 9100)), Some(100.0));
        assert_eq!(rate.at(at(94), 0), None);
        assert_eq!(rate.at(at(95), 50), Some(50.0));
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
        // Many short rows: few bytes are left, but not little time.
        let slow = TableSnapshot { elapsed_ms: 20_000, ..table("copying", 1_000) };
        assert!(Sum::of(&[table("done", 2_000), slow]).words(Some(102_400.0)).ends_with(", 20 s left"));
    }
}
