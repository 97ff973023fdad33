//! Every reason why a source and a target would not work together, all at
//! once, each with its object and its remedy.
//!
//! Handed: two connection strings and what is wanted of them ([`Wanted`]). Promises: nothing on
//! either server is changed. A missing right of the role is a finding and does not abort the check.
//! Every finding names the remedy, as SQL that works as printed if SQL can do it.
//!
//! Two steps, so that a check is a small function without I/O:
//!
//! ```text
//! server.rs      both ends: settings, limits, role  \
//! publisher.rs   what the source has                 > facts --> checks/*.rs --> findings
//! subscriber.rs  what the target has                /            (the table in checks.rs)
//! ```
//!
//! The checks judge a table by the applier's rules (`table.rs` in `plan`), which
//! they repeat in bulk. The places that must agree say so, and a test compares the two.
//!
//! Does not belong here: repairs, and problems that show only while rows are applied.

mod archive;
mod checks;
mod finding;
mod partitions;
mod publisher;
mod read;
mod server;
mod subscriber;
mod types;
mod wanted;

use base::{PgVersion, SubscriptionName};
use client::{ConnInfo, Session};
use schema::PgDump;
use tokio::sync::oneshot;

use crate::publisher::Publisher;
use crate::read::FactReader;
use crate::subscriber::Subscriber;

pub use finding::{End, Finding, Place, Refuses, Report, Severity};
pub use wanted::{NewSchema, Wanted};

/// Majors that are supported on either end, as the test suite has them.
const MAJORS: std::ops::RangeInclusive<u32> = 14..=18;

/// A session that reads catalogs and does not wait for locks.
///
/// # Errors
/// The server cannot be reached or refuses.
pub async fn connect(info: &ConnInfo, subscription: &SubscriptionName) -> Result<Session, client::Error> {
    let settings = [
        ("search_path", ""),
        ("statement_timeout", "15s"),
        ("lock_timeout", "2s"),
        ("idle_session_timeout", "0"),
        // Compiling a query takes longer than running it.
        ("jit", "off"),
    ];
    client::connect(info, &subscription.application_name("check"), &settings).await
}

/// Connects to both ends and checks them; an end that cannot be reached is a
/// finding like any other.
pub async fn check(source: &ConnInfo, target: &ConnInfo, wanted: &Wanted) -> Report {
    let name = &wanted.subscription;
    let (source, target) = tokio::join!(connect(source, name), connect(target, name));
    let mut unreachable = Vec::new();
    let mut reached = |end, session: Result<Session, client::Error>| {
        session.map_err(|error| unreachable.push(cannot_reach(end, &error))).ok()
    };
    let (source, target) = (reached(End::Source, source), reached(End::Target, target));
    match look(source.as_ref(), target.as_ref(), wanted).await {
        Ok(mut report) => {
            report.findings.splice(0..0, unreachable);
            report
        }
        Err((end, error)) => Report { findings: vec![cannot_reach(end, &error)], ..Report::default() },
    }
}

/// [`check`] over sessions made by [`connect`].
///
/// # Errors
/// A session was lost.
pub async fn check_over(
    source: &Session,
    target: &Session,
    wanted: &Wanted,
) -> Result<Report, client::Error> {
    look(Some(source), Some(target), wanted).await.map_err(|(_, error)| error)
}

fn cannot_reach(end: End, error: &client::Error) -> Finding {
    // The error's own words name server, cause and what to do.
    Finding::cannot(end, "connection", error.to_string())
        .remedy(format!("give a --{end} that can be connected to"))
        .refusing(Refuses::Never)
}

async fn look(
    source: Option<&Session>,
    target: Option<&Session>,
    wanted: &Wanted,
) -> Result<Report, (End, client::Error)> {
    let mut report = Report { source: source.map(place), target: target.map(place), ..Report::default() };
    let source = source.filter(|session| supported(End::Source, session, &mut report));
    let target = target.filter(|session| supported(End::Target, session, &mut report));
    // Both are asked at the same time. The target waits for the names of the tables that the source
    // publishes.
    let (tell_tables, published) = oneshot::channel();
    let of_source = async move {
        let Some(session) = source else { return Ok(None) };
        let mut reader = FactReader::new(End::Source, session);
        let slot = subscriber::slot_name(target, wanted).await;
        let read = Publisher::read(&mut reader, wanted, slot, tell_tables).await;
        let read = read.map_err(|error| (End::Source, error))?;
        Ok(Some((read, reader.into_findings())))
    };
    let of_target = async move {
        let Some(session) = target else { return Ok(None) };
        let mut reader = FactReader::new(End::Target, session);
        let read = Subscriber::read(&mut reader, wanted, published).await;
        let read = read.map_err(|error| (End::Target, error))?;
        Ok(Some((read, reader.into_findings())))
    };
    let (source_facts, target_facts) = tokio::try_join!(of_source, of_target)?;
    let mut publisher = source_facts.map(|(read, findings)| {
        report.tables = read.tables.len();
        report.findings.extend(findings);
        read
    });
    let subscriber = target_facts.map(|(read, findings)| {
        report.begun = read.state.is_begun();
        report.findings.extend(findings);
        read
    });
    if let (Some(session), Some(publisher)) = (source, &mut publisher)
        && let Some(new) = wanted.create_schema.as_ref().filter(|_| !report.begun)
    {
        let major = session.version().major();
        publisher.pg_dump = Some(PgDump::find(new.pg_dump.as_deref(), major).await);
    }
    report.findings.extend(checks::run(wanted, publisher.as_ref(), subscriber.as_ref()));
    report.sort();
    Ok(report)
}

fn place(session: &Session) -> Place {
    Place { server: session.describe().to_owned(), version: session.version().to_string() }
}

/// An older server may lack the catalogs that are queried, and a newer one may give them another
/// meaning. Neither is queried any further.
fn supported(end: End, session: &Session, report: &mut Report) -> bool {
    let finding = unsupported(end, session.version());
    let supported = finding.is_none();
    report.findings.extend(finding);
    supported
}

fn unsupported(end: End, version: PgVersion) -> Option<Finding> {
    if MAJORS.contains(&version.major()) {
        return None;
    }
    let what = format!("PostgreSQL {version} is not supported as a {end}");
    let remedy = format!("use a server of version {} to {}", MAJORS.start(), MAJORS.end());
    Some(Finding::cannot(end, "version", what).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_refused_by_name() {
        for supported in [140_000, 150_018, 189_999] {
            assert_eq!(unsupported(End::Source, PgVersion::from_num(supported)), None);
        }
        for other in [139_999, 190_000] {
            let finding = unsupported(End::Target, PgVersion::from_num(other)).unwrap();
            assert_eq!((finding.severity, finding.refuses), (Severity::Cannot, Refuses::New));
            assert!(finding.remedy.contains("14 to 18"), "{finding}");
        }
    }
}
