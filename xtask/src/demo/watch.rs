//! One line a second from `pgsluice status --json`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;
use testkit::{Pair, Sluice};

use super::load;

/// What was seen last, so that a line can show rates.
pub(super) struct Watch<'a> {
    pair: &'a Pair,
    program: PathBuf,
    status: Value,
    seen_at: Instant,
    /// Transactions written on the source, applied on the target, and rows copied, at that look.
    written: u64,
    applied: u64,
    copied: u64,
    /// The most rows copied, and the largest lag after the copy, at any look.
    copied_max: u64,
    lag_max: f64,
}

impl<'a> Watch<'a> {
    pub(super) fn new(pair: &'a Pair, program: &Path) -> Watch<'a> {
        let program = program.to_owned();
        Watch {
            pair,
            program,
            status: Value::Null,
            seen_at: Instant::now(),
            written: 0,
            applied: 0,
            copied: 0,
            copied_max: 0,
            lag_max: 0.0,
        }
    }

    /// A new process counts from nothing; `written` transactions stand on the source.
    pub(super) fn restarted(&mut self, written: u64) {
        self.seen_at = Instant::now();
        self.written = written;
        self.applied = 0;
        self.copied = 0;
        self.status = Value::Null;
    }

    pub(super) fn is_streaming(&self) -> bool {
        self.status["phase"] == "streaming"
    }

    /// Rows of the first copy.
    pub(super) fn copied_max(&self) -> u64 {
        self.copied_max
    }

    /// The largest lag seen while streaming, in seconds.
    pub(super) fn lag_max(&self) -> f64 {
        self.lag_max
    }

    /// Asks pgsluice and describes the second that has passed.
    pub(super) fn look(&mut self, written: u64) -> String {
        self.status = self.ask().unwrap_or(Value::Null);
        let seconds = self.seen_at.elapsed().as_secs_f64().max(0.001);
        self.seen_at = Instant::now();
        let rate = |now: u64, before: u64| format!("{:.0}/s", now.saturating_sub(before) as f64 / seconds);
        let status = &self.status;
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let applied = number(&status["totals"]["transactions"]);
        let tables = status["copy"]["tables"].as_array().cloned().unwrap_or_default();
        let sum = |key: &str| tables.iter().map(|table| number(&table[key])).sum::<u64>();
        let (copied, estimated) = (sum("rows"), sum("rows_estimated"));
        let mut line = match status["phase"].as_str() {
            Some(phase) => format!("{phase:9} written {:>7}", rate(written, self.written)),
            None => format!("starting  written {:>7}", rate(written, self.written)),
        };
        if copied > self.copied {
            line += &format!(", copied {copied} of about {estimated} rows ({})", rate(copied, self.copied));
        }
        line += &format!(", applied {:>7}", rate(applied, self.applied));
        line += &lag(&status["lag"]["total"]);
        if self.is_streaming() {
            self.lag_max = self.lag_max.max(status["lag"]["total"]["seconds"].as_f64().unwrap_or(0.0));
        }
        (self.written, self.applied, self.copied) = (written, applied, copied);
        self.copied_max = self.copied_max.max(copied);
        line
    }

    /// The status of the one subscription, or nothing while nobody answers.
    fn ask(&self) -> Option<Value> {
        let output = Sluice::call_of(
            &self.program,
            self.pair,
            &["status", "--json", "--subscription", load::PUBLICATION],
        )
        .ok()?;
        serde_json::from_str(output.stdout.lines().next()?).ok()
    }
}

fn lag(lag: &Value) -> String {
    match (lag["bytes"].as_u64(), lag["seconds"].as_f64()) {
        (None, _) => String::new(),
        (Some(bytes), None) => format!(", lag {} kB", bytes / 1024),
        (Some(bytes), Some(seconds)) => format!(", lag {} kB, {seconds:.1} s", bytes / 1024),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_shows_what_is_known_of_it() {
        assert_eq!(lag(&serde_json::json!({"bytes": 2048, "seconds": 0.25})), ", lag 2 kB, 0.2 s");
        assert_eq!(lag(&serde_json::json!({"bytes": 2048, "seconds": null})), ", lag 2 kB");
        assert_eq!(lag(&Value::Null), "");
    }
}
