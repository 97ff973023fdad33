//! `pgsluice check`: everything that would prevent replication, before it does.

use engine::{End, Finding, Report, Severity};
use serde::Serialize;

use crate::both_ways::directions;
use crate::exit::Code;
use crate::invocation::{complete, complete_json};
use crate::subject::Subject;

/// One line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    subscription: &'a str,
    verdict: &'static str,
    #[serde(flatten)]
    report: &'a Report,
}

/// Checks all `subjects`; the exit code is the worst of theirs.
pub(crate) async fn check(subjects: &[Subject], json: bool) -> anyhow::Result<Code> {
    let settings = subjects.iter().map(Subject::pipeline).collect::<anyhow::Result<Vec<_>>>()?;
    let directions = directions(subjects);
    let mut worst = None;
    for (position, (settings, direction)) in settings.iter().zip(&directions).enumerate() {
        let report = engine::check(settings, direction.as_ref()).await;
        worst = worst.max(report.worst());
        let subscription = settings.subscription.as_str();
        if json {
            let line = Line { subscription, verdict: verdict(report.worst()), report: &report };
            super::say(format_args!("{}", complete_json(&serde_json::to_string(&line)?, Some(subscription))));
        } else {
            let gap = if position > 0 { "\n" } else { "" };
            let text = text(subscription, &report);
            super::say(format_args!("{gap}{}", complete(text.trim_end(), Some(subscription))));
        }
    }
    Ok(match worst {
        None | Some(Severity::Note) => Code::Done,
        Some(Severity::Warning) => Code::WARNINGS,
        Some(Severity::Cannot) => Code::CANNOT,
    })
}

fn verdict(worst: Option<Severity>) -> &'static str {
    match worst {
        None | Some(Severity::Note) => "ok",
        Some(Severity::Warning) => "warnings",
        Some(Severity::Cannot) => "cannot",
    }
}

/// The report as text, with the worst findings first.
fn text(subscription: &str, report: &Report) -> String {
    let mut lines = vec![format!("{subscription}: {}", verdict(report.worst()))];
    for (end, place) in [(End::Source, &report.source), (End::Target, &report.target)] {
        let place = place.as_ref().map_or_else(
            || "not reached".to_owned(),
            |place| format!("{}, PostgreSQL {}", place.server, place.version),
        );
        lines.push(format!("{:<8}{place}", end.to_string()));
    }
    lines.push(format!("{:<8}{} published", "tables", report.tables));
    for (severity, title) in
        [(Severity::Cannot, "cannot work"), (Severity::Warning, "warnings"), (Severity::Note, "notes")]
    {
        let mut found = report.of(severity).peekable();
        if found.peek().is_some() {
            lines.push(format!("\n{title}"));
            lines.extend(found.map(describe));
        }
    }
    lines.join("\n") + "\n"
}

/// Object and cause in one line, the remedy below.
fn describe(finding: &Finding) -> String {
    let mut text = format!("  {}, {}: {}", finding.end, finding.object, finding.what);
    if !finding.remedy.is_empty() {
        text.push_str(&format!("\n    {}", finding.remedy));
    }
    for statement in &finding.sql {
        text.push_str(&format!("\n    {statement};"));
    }
    text
}
