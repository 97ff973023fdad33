//! What a check found, and all of it together.

use std::fmt;

use serde::Serialize;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; nothing need be done.
    Note,
    /// It works, but something is lost, slow or easily missed.
    Warning,
    /// Replication fails, at once or as soon as it meets the object.
    Cannot,
}

/// The server concerned, where the remedy's SQL is to be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The publisher.
    Source,
    /// The subscriber.
    Target,
}

/// Whether `run` may start in spite of it.
///
/// A finding that a running system can live with must not stop it. A condition that passes by
/// itself (a server short of connections) is left to the retry policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Refuses {
    /// `run` starts, and fails later or tries again until the cause is gone.
    Never,
    /// `run` does not begin a new subscription.
    New,
    /// `run` does not continue an existing subscription either.
    Every,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// On which server.
    pub end: End,
    /// The table, setting, role, slot it is about.
    pub object: String,
    /// The fact and its consequence.
    pub what: String,
    /// What to do, where SQL alone does not say it; may be empty.
    pub remedy: String,
    /// Statements of the remedy, for somebody with the right to run them: each by itself, in this
    /// order.
    pub sql: Vec<String>,
    /// Whether `run` refuses because of it.
    pub refuses: Refuses,
}

impl Finding {
    fn new(severity: Severity, end: End, object: impl Into<String>, what: impl Into<String>) -> Finding {
        let refuses = if severity == Severity::Cannot { Refuses::New } else { Refuses::Never };
        let (object, what) = (object.into(), what.into());
        Finding { severity, end, object, what, remedy: String::new(), sql: Vec::new(), refuses }
    }

    /// A new subscription is refused for it, unless [`Finding::refusing`] says
    /// otherwise.
    pub(crate) fn cannot(end: End, object: impl Into<String>, what: impl Into<String>) -> Finding {
        Finding::new(Severity::Cannot, end, object, what)
    }

    pub(crate) fn warning(end: End, object: impl Into<String>, what: impl Into<String>) -> Finding {
        Finding::new(Severity::Warning, end, object, what)
    }

    pub(crate) fn note(end: End, object: impl Into<String>, what: impl Into<String>) -> Finding {
        Finding::new(Severity::Note, end, object, what)
    }

    pub(crate) fn remedy(mut self, text: impl Into<String>) -> Finding {
        self.remedy = text.into();
        self
    }

    pub(crate) fn sql(mut self, statement: impl Into<String>) -> Finding {
        self.sql.push(statement.into());
        self
    }

    pub(crate) fn refusing(mut self, refuses: Refuses) -> Finding {
        self.refuses = refuses;
        self
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Source => "source",
            End::Target => "target",
        })
    }
}

/// In one line: `target, table public.t: does not exist; CREATE TABLE ...`
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}: {}", self.end, self.object, self.what)?;
        let remedy = Some(&self.remedy).filter(|remedy| !remedy.is_empty());
        remedy.into_iter().chain(&self.sql).try_for_each(|step| write!(f, "; {step}"))
    }
}

/// One end as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Which server, database and user.
    pub server: String,
    /// Its version.
    pub version: String,
}

/// Everything that was found.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// The source, if it could be reached.
    pub source: Option<Place>,
    /// The target, if it could be reached.
    pub target: Option<Place>,
    /// The subscription was begun already and will be continued.
    pub begun: bool,
    /// Tables that are published together.
    pub tables: usize,
    /// The worst first, the source before the target.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The worst severity.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }

    /// All findings of one severity.
    pub fn of(&self, severity: Severity) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.severity == severity)
    }

    /// Whether `run` should not start.
    #[must_use]
    pub fn refuses(&self) -> bool {
        self.findings.iter().any(|finding| match finding.refuses {
            Refuses::Never => false,
            Refuses::New => !self.begun,
            Refuses::Every => true,
        })
    }

    pub(crate) fn sort(&mut self) {
        // Stable: within one end in the order of the table of checks.
        self.findings.sort_by_key(|finding| (std::cmp::Reverse(finding.severity), finding.end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_counts_and_an_old_subscription_is_refused_for_less() {
        let mut report = Report::default();
        assert_eq!((report.worst(), report.refuses()), (None, false));
        report.findings.push(Finding::note(End::Target, "a", "b"));
        report.findings.push(Finding::cannot(End::Source, "c", "d").refusing(Refuses::Never));
        report.sort();
        assert_eq!(report.findings[0].object, "c");
        assert_eq!((report.worst(), report.refuses()), (Some(Severity::Cannot), false));
        report.findings.push(Finding::cannot(End::Source, "e", "f").sql("GRANT"));
        assert_eq!(report.findings[2].to_string(), "source, e: f; GRANT");
        assert!(report.refuses());
        report.begun = true;
        assert!(!report.refuses());
        report.findings.push(Finding::cannot(End::Source, "g", "h").refusing(Refuses::Every));
        assert!(report.refuses());
    }
}
