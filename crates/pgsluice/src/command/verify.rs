//! `pgsluice verify [--json]`.
//!
//! The differences, one a line, and a summary go to stdout. The progress, and how the ends were
//! compared, go to stderr. The JSON form is one object: the subscription, `equal`, `seconds`, and
//! the keys of `verify::Report`.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use operate::admin;
use operate::control::{self, Request};
use operate::running_applier::RunningApplier;
use serde::Serialize;
use verify::{Applier, NoApplier, Options, Progress, ProgressSnapshot, Report};

use super::{connect, from_admin, from_control, from_verify};
use crate::cli::VerifyArgs;
use crate::exit::Code;
use crate::subject::Subject;
use crate::units::{show_bytes, show_count, show_seconds};

/// Most pairs of connections unless `--workers` asks for more.
const WORKERS_MAX: usize = 8;

/// Time between two redraws of the progress.
const REDRAW: Duration = Duration::from_millis(500);

/// Time between two lines where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The JSON form.
#[derive(Serialize)]
struct Document<'a> {
    subscription: &'a str,
    equal: bool,
    seconds: f64,
    #[serde(flatten)]
    report: &'a Report,
}

/// Compares both ends of `subject`.
pub(crate) async fn verify(subject: &Subject, args: &VerifyArgs) -> anyhow::Result<Code> {
    let (source, target) = (subject.source()?, subject.target()?);
    let publications = super::publications(subject).await?;
    let mut applier = find_applier(subject).await?;
    let options = Options {
        workers: args.workers.map_or_else(workers, usize::from),
        chunk_bytes: args.chunk_bytes.0,
        snapshot_max: args.snapshot_max.0,
        limit: args.limit,
        application_name: subject.name.application_name("verify"),
    };
    let began = Instant::now();
    let progress = Progress::default();
    let comparing = verify::verify(&source, &target, &publications, &mut *applier, &options, &progress);
    let compared = tokio::select! {
        compared = comparing => compared,
        () = show(&progress, began) => unreachable!("it shows for ever"),
    };
    let report = compared.map_err(|error| from_verify(&error))?;
    let seconds = began.elapsed().as_secs_f64();
    if args.json {
        let report = if args.hide_values { &without_values(report) } else { &report };
        let document =
            Document { subscription: subject.name.as_str(), equal: report.is_equal(), seconds, report };
        super::say(format_args!("{}", serde_json::to_string(&document)?));
        return Ok(code(report));
    }
    tell(subject, &report, seconds, args.hide_values);
    Ok(code(&report))
}

/// A difference that was found counts even if another table could not be compared.
fn code(report: &Report) -> Code {
    match (report.is_equal(), report.differs()) {
        (true, _) => Code::Done,
        (false, true) => Code::Differs,
        (false, false) => Code::Failed,
    }
}

fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX)
}

/// The process that can hold the stream, if one runs.
async fn find_applier(subject: &Subject) -> anyhow::Result<Box<dyn Applier>> {
    let name = &subject.name;
    match control::ask(&subject.state_dir, name, &Request::Status).await {
        Ok(_) => {}
        Err(error) if error.is_not_running() => {
            eprintln!("{}", standing(subject).await?);
            return Ok(Box::new(NoApplier));
        }
        Err(error) => return Err(from_control(error)),
    }
    let source = connect("source", &subject.source()?, name).await?;
    if admin::is_standby(&source).await.map_err(from_admin)? {
        eprintln!(
            "{name}: the source is a standby, whose snapshots do not tell which transactions they see; verify \
             compares the ends as they are, and differences may be changes that are under way"
        );
        return Ok(Box::new(NoApplier));
    }
    Ok(Box::new(RunningApplier::new(subject.state_dir.clone(), name.clone())))
}

/// Describes the positions of both ends when no process here applies changes.
async fn standing(subject: &Subject) -> anyhow::Result<String> {
    let name = &subject.name;
    let target = connect("target", &subject.target()?, name).await?;
    let Some(stored) = admin::stored(&target, name).await.map_err(from_admin)? else {
        return Ok(format!(
            "{name}: the target has no subscription of this name; verify compares the ends as they are"
        ));
    };
    let source = connect("source", &subject.source()?, name).await?;
    let own = stored.slot.clone().unwrap_or_else(|| name.slot());
    let slot = admin::slot_figures(&source, &own).await.map_err(from_admin)?;
    let applied = stored.applied_lsn.or(stored.confirmed_lsn).unwrap_or_else(|| "an unknown LSN".to_owned());
    let mut text = format!("{name}: no process on this machine runs the subscription");
    if let Some(pid) = slot.as_ref().and_then(|slot| slot.active_pid) {
        text.push_str(&format!(
            ", but walsender {pid} streams from its slot: run verify where it runs, with its --state-dir"
        ));
    }
    text.push_str(&format!("; the target stands at {applied}"));
    if let Some(slot) = slot {
        text.push_str(&format!(", the source at {}", slot.source_end));
    }
    text.push_str(
        "; verify compares the ends as they are, and differences may be changes that are not applied yet",
    );
    Ok(text)
}

/// Shows the progress until the future is dropped.
async fn show(progress: &Progress, began: Instant) {
    let on_terminal = std::io::stderr().is_terminal();
    let bar = ProgressBar::new(1);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {percent:>3}% {wide_msg}") {
        bar.set_style(style);
    }
    let bar = Cleared(bar);
    let mut told = Instant::now();
    loop {
        tokio::time::sleep(REDRAW).await;
        let now = progress.snapshot();
        if on_terminal {
            bar.0.set_length(now.bytes.max(1));
            bar.0.set_position(now.bytes_done);
            bar.0.set_message(words(&now, began.elapsed()));
        } else if told.elapsed() >= LINE_INTERVAL {
            told = Instant::now();
            eprintln!("{}", words(&now, began.elapsed()));
        }
    }
}

/// A bar that is removed from the screen when it is dropped.
struct Cleared(ProgressBar);

impl Drop for Cleared {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn words(now: &ProgressSnapshot, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    let mut text = format!(
        "{} of {} tables, {} rows, {} of {}",
        now.tables_done,
        now.tables,
        show_count(now.rows),
        show_bytes(now.bytes_done),
        show_bytes(now.bytes)
    );
    let rate = now.bytes_done as f64 / seconds.max(0.001);
    if now.bytes_done > 0 {
        let left = now.bytes.saturating_sub(now.bytes_done) as f64 / rate;
        text.push_str(&format!(", {}/s, {} left", show_bytes(rate as u64), show_seconds(left)));
    }
    if now.tables_differ > 0 {
        text.push_str(&format!(", {} tables differ", now.tables_differ));
    }
    text
}

/// Prints the report as text.
fn tell(subject: &Subject, report: &Report, seconds: f64, hide_values: bool) {
    let mut rows = 0;
    let (mut differ, mut failed) = (0, 0);
    for table in &report.tables {
        let name = &table.table;
        rows += table.source_rows;
        for note in &table.notes {
            super::say(format_args!("{name}: note: {note}"));
        }
        for difference in &table.differences {
            match hide_values {
                true => super::say(format_args!("{name}: {}", difference.without_values())),
                false => super::say(format_args!("{name}: {difference}")),
            }
        }
        if let Some(mismatch) = &table.mismatch {
            super::say(format_args!("{name}: {mismatch}"));
        }
        if let Some(error) = &table.error {
            failed += 1;
            super::say(format_args!("{name}: not compared: {error}"));
        }
        if !table.equal {
            differ += 1;
            let more = if table.more { "; there are more differences than these" } else { "" };
            super::say(format_args!(
                "{name}: differs: {} rows on the source, {} on the target{more}",
                show_count(table.source_rows),
                show_count(table.target_rows)
            ));
        }
    }
    let verdict = match (differ, failed) {
        (0, 0) => "equal".to_owned(),
        (differ, 0) => format!("{differ} differ"),
        (0, failed) => format!("{failed} not compared"),
        (differ, failed) => format!("{differ} differ, {failed} not compared"),
    };
    super::say(format_args!(
        "{}: {} tables, {} rows compared in {}: {verdict}",
        subject.name,
        report.tables.len(),
        show_count(rows),
        show_seconds(seconds)
    ));
}

/// The report without values of columns that are not part of a key.
fn without_values(mut report: Report) -> Report {
    for difference in report.tables.iter_mut().flat_map(|table| &mut table.differences) {
        difference.hide_values();
    }
    report
}
