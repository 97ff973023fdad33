//! The check of both ends, for `pgsluice check` and for a start.
//!
//! A process checks once, on its first connection to both servers. Later attempts have the
//! pipeline's own look. A refused start lists every reason at once, so that one repair does not
//! only uncover the next. Each warning takes one line.

use check::{NewSchema, Refuses, Report, Severity, Wanted};

use crate::refusal::Refusal;
use crate::{Direction, Error, Origin, Settings, SourceMode, adoption_refuses};

/// Most warnings that a start logs; `pgsluice check` shows all.
const WARNINGS_SHOWN_MAX: usize = 10;

/// Returns every reason why the pipeline of `settings` would not work.
/// `direction` is the one of a pair that it is.
pub async fn check(settings: &Settings, direction: Option<&Direction>) -> Report {
    check::check(&settings.source, &settings.target, &wanted(settings, direction)).await
}

/// Checks before the first attempt of a process.
///
/// # Errors
/// The start is refused, with every reason; or a connection failed, which the retry policy handles.
pub(crate) async fn before_start(settings: &Settings, direction: Option<&Direction>) -> Result<(), Error> {
    let name = &settings.subscription;
    let (source, target) =
        tokio::try_join!(check::connect(&settings.source, name), check::connect(&settings.target, name))?;
    let adopted = state::adoption(&*target, name).await.map_err(|error| target.error(error))?;
    if let Some(why) = adopted.and_then(|own| adoption_refuses(&own, name, settings.origin == Origin::None)) {
        return Err(why);
    }
    let report = check::check_over(&source, &target, &wanted(settings, direction)).await?;
    if report.refuses() {
        return Err(Error::refused(refusal(&report)));
    }
    // Includes findings that `run` meets later, or checks once more by itself.
    let told: Vec<_> = report.findings.iter().filter(|own| own.severity > Severity::Note).collect();
    for finding in told.iter().take(WARNINGS_SHOWN_MAX) {
        tracing::warn!(subscription = %name, "{}, {}: {}", finding.end, finding.object, finding.what);
    }
    if !told.is_empty() {
        let rest = told.len().saturating_sub(WARNINGS_SHOWN_MAX);
        let more = if rest > 0 { format!(" and {rest} more warnings") } else { String::new() };
        tracing::warn!(subscription = %name, "pgsluice check shows the remedies{more}");
    }
    Ok(())
}

/// Checks before a native subscription is adopted whether `run` could go on with it. Conditions for
/// a new slot or a copy are not checked.
///
/// # Errors
/// The servers cannot provide what a setting needs, as at every start.
pub async fn before_adopting(settings: &Settings) -> Result<(), Error> {
    let name = &settings.subscription;
    let (source, target) =
        tokio::try_join!(check::connect(&settings.source, name), check::connect(&settings.target, name))?;
    let wanted = Wanted { copy_data: false, create_schema: None, ..wanted(settings, None) };
    let mut report = check::check_over(&source, &target, &wanted).await?;
    report.findings.retain(|own| own.severity == Severity::Cannot && own.refuses == Refuses::Every);
    match report.findings.is_empty() {
        true => Ok(()),
        false => Err(Error::refused(refusal(&report))),
    }
}

fn wanted(settings: &Settings, direction: Option<&Direction>) -> Wanted {
    Wanted {
        subscription: settings.subscription.clone(),
        publications: settings.publications.clone(),
        copy_data: settings.copy_data,
        create_schema: settings.create_schema.then(|| NewSchema { pg_dump: settings.pg_dump.clone() }),
        copy_connections: settings.max_sync_workers_per_subscription,
        apply_sessions: settings.apply_sessions(),
        allow_triggers: settings.allow_triggers,
        keep_commit_timestamps: settings.keep_commit_timestamps,
        synchronous_commit: settings.synchronous_commit.as_str(),
        physical_slot: settings.source_mode == SourceMode::Wal,
        wal_archive: settings.wal_archive.clone(),
        standby_slots: settings.synchronized_standby_slots.clone(),
        wal_stream: settings.followed_archive().is_none(),
        conflict_rules: settings.conflict_rules.clone(),
        clock_skew_max: settings.clock_skew_max,
        retain_dead_tuples: settings.retain_deletions.is_some(),
        shares_slot: direction.and_then(Direction::shared_slot).is_some(),
    }
}

fn refusal(report: &Report) -> Refusal {
    Refusal::Check(report.of(Severity::Cannot).map(ToString::to_string).collect())
}
